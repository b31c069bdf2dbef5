"""The manifest of a corpus: what it was made from, what it holds, and the digest of every shard.

`manifest.json` is written last, so its presence is the commit point: a folder without it is unfinished. It holds only
what follows from inputs, recipe and software, never a URL, time or job, so that two runs of one recipe give the same
bytes; the price is that where the inputs lay is told elsewhere, in `report/`.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.formats.errors import CorpusError, FormatError
from gristmill.formats.fingerprint import pretty_json
from gristmill.formats.indexed import HEADER_BYTES
from gristmill.formats.storage import FileFacts, exists, join, read_bytes, write_bytes

__all__ = [
    "FORMAT",
    "InputEntry",
    "Manifest",
    "MANIFEST_NAME",
    "MetadataEntry",
    "read_manifest",
    "RecordAddress",
    "ShardEntry",
    "SourceEntry",
    "TokenizerEntry",
    "VERSION",
    "write_manifest",
]

MANIFEST_NAME = "manifest.json"
"""File name of the manifest inside a corpus."""

FORMAT = "gristmill-corpus"
"""What the manifest's `format` says."""

VERSION = 1
"""Version of the manifest's form; readers refuse another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerEntry:
    """The tokenizer of a corpus.

    Attributes:
        fingerprint: digest of the canonical `tokenizer.json` and the EOD id.
        engine: library that made the ids.
        engine_version: its version.
        eod_id: id that closes every document.
        eod_token: text of that id.
        pad_id: the tokenizer's own padding id, or None; padding is by length, so nothing depends on it.
        vocabulary: bound of the ids: every id is smaller.
    """

    fingerprint: str
    engine: str
    engine_version: str
    eod_id: int
    eod_token: str
    pad_id: int | None
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputEntry:
    """One input file of a source.

    Attributes:
        path: its path relative to the pattern that named it.
        size: bytes as stored.
        xxh3: 32 hexadecimal digits over the xxh3 of each part that was read, in order.
    """

    path: str
    size: int
    xxh3: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordAddress:
    """Where a document came from.

    Attributes:
        input: path of the input file, as in `InputEntry`.
        split: number of the split within the source.
        record: number of the record within the split, bad records counted.
    """

    input: str
    split: int
    record: int


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """What was carried along with the documents of a shard.

    Attributes:
        lines: size and digest of the `.meta.jsonl`.
        offsets: size and digest of the `.meta.offsets`.
    """

    lines: FileFacts
    offsets: FileFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One `.bin/.idx` pair.

    Attributes:
        path: prefix relative to the corpus folder.
        tokens: tokens, EODs included.
        documents: documents, each of one sequence.
        eod_tokens: tokens equal to the EOD id.
        bin: size and digest of the `.bin`.
        idx: size and digest of the `.idx`.
        first: where its first document came from.
        last: where its last document came from.
        rec: size and digest of the `.rec`, which says where each document came from; None where there is none.
        meta: what the recipe carries along with the documents; None where it carries nothing.
    """

    path: str
    tokens: int
    documents: int
    eod_tokens: int
    bin: FileFacts
    idx: FileFacts
    first: RecordAddress
    last: RecordAddress
    rec: FileFacts | None = None
    meta: MetadataEntry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEntry:
    """One source of a corpus.

    Attributes:
        id: its name in the recipe.
        weight: its share of the training samples, or None.
        max_epochs: how often it may be repeated, or None.
        inputs: its input files, in reading order.
        documents_in: records read, bad ones included.
        documents_kept: documents in the shards.
        dropped: records left out, by reason; with `documents_kept` they sum to `documents_in`.
        counted: other counts by name, for example spellings of control tokens.
        shards: its shards, in order.
        cleaning: what decided which documents were kept and with which text: every step that was on, with its version
            and settings, and the splitter of words.
    """

    id: str
    weight: float | None
    max_epochs: float | None
    inputs: tuple[InputEntry, ...]
    documents_in: int
    documents_kept: int
    dropped: Mapping[str, int]
    counted: Mapping[str, int]
    shards: tuple[ShardEntry, ...]
    cleaning: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens in all shards, EODs included."""
        return sum(shard.tokens for shard in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a finished corpus holds.

    Attributes:
        name: the recipe's name.
        recipe_digest: digest of the recipe without `output`.
        software: version of Gristmill that wrote it.
        tokenizer: the tokenizer.
        dtype: name of the token dtype, "uint16" or "int32".
        sources: the sources, in the recipe's order.
        index_set: name of the index set that the recipe asked for, or None.
    """

    name: str
    recipe_digest: str
    software: str
    tokenizer: TokenizerEntry
    dtype: str
    sources: tuple[SourceEntry, ...]
    index_set: str | None

    @property
    def tokens(self) -> int:
        """Tokens of all sources, EODs included."""
        return sum(source.tokens for source in self.sources)

    @property
    def documents(self) -> int:
        """Documents of all sources."""
        return sum(source.documents_kept for source in self.sources)

    @property
    def token_dtype(self) -> np.dtype[np.integer]:
        """The token dtype."""
        return np.dtype(self.dtype)

    def source(self, source_id: str) -> SourceEntry:
        """The source of that name.

        Raises:
            CorpusError: there is none; the message lists those there are.
        """
        for source in self.sources:
            if source.id == source_id:
                return source
        raise CorpusError(f"source {source_id!r} is not in the corpus; it has {[source.id for source in self.sources]}")


def write_manifest(folder: str, manifest: Manifest) -> FileFacts:
    """Writes `manifest.json` into a corpus folder: from then on the corpus is finished."""
    value = {"format": FORMAT, "version": VERSION, **_fields(manifest)}
    value["tokens"], value["documents"] = manifest.tokens, manifest.documents
    value["sources"] = [
        {**_fields(source), "shards": [_shard_fields(shard) for shard in source.shards]} for source in manifest.sources
    ]
    return write_bytes(join(folder, MANIFEST_NAME), pretty_json(value))


def _fields(entry: Any) -> dict[str, Any]:
    return {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}


def _shard_fields(shard: ShardEntry) -> dict[str, Any]:
    value = _fields(shard)
    if shard.meta is None:
        del value["meta"]
    return value


def read_manifest(folder: str) -> Manifest:
    """Reads and checks the manifest of a corpus.

    Raises:
        CorpusError: the folder is missing or its corpus is unfinished.
        FormatError: the manifest is damaged or of another version.
    """
    path = join(folder, MANIFEST_NAME)
    if not exists(path):
        if not exists(folder):
            raise CorpusError(f"{folder}: no such folder; a corpus is made by `gristmill prepare RECIPE`")
        raise CorpusError(
            f"{folder}: no {MANIFEST_NAME}, so this is no finished corpus; run `gristmill prepare` on its recipe "
            "again, which completes what is missing"
        )
    try:
        value = json.loads(read_bytes(path))
        if value["format"] != FORMAT:
            raise FormatError(f"{path}: format {value['format']!r}; a corpus manifest says {FORMAT!r}")
        if value["version"] != VERSION:
            raise FormatError(f"{path}: version {value['version']}; this software reads {VERSION}")
        manifest = _manifest(value)
        _check(path, manifest)
        _check_totals(path, manifest, value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: damaged manifest: {type(error).__name__}: {error}") from error
    return manifest


def _facts(value: Any) -> FileFacts:
    return FileFacts(size=int(value["size"]), sha256=str(value["sha256"]))


def _metadata(value: Any) -> MetadataEntry | None:
    return None if value is None else MetadataEntry(_facts(value["lines"]), _facts(value["offsets"]))


def _manifest(value: Any) -> Manifest:
    return Manifest(
        name=value["name"],
        recipe_digest=value["recipe_digest"],
        software=value["software"],
        tokenizer=TokenizerEntry(**value["tokenizer"]),
        dtype=value["dtype"],
        sources=tuple(_source(source) for source in value["sources"]),
        index_set=value["index_set"],
    )


def _source(value: Any) -> SourceEntry:
    shards = tuple(
        ShardEntry(
            **{
                **shard,
                "bin": _facts(shard["bin"]),
                "idx": _facts(shard["idx"]),
                "first": RecordAddress(**shard["first"]),
                "last": RecordAddress(**shard["last"]),
                "rec": None if shard.get("rec") is None else _facts(shard["rec"]),
                "meta": _metadata(shard.get("meta")),
            }
        )
        for shard in value["shards"]
    )
    inputs = tuple(InputEntry(**entry) for entry in value["inputs"])
    return SourceEntry(**{**value, "shards": shards, "inputs": inputs})


def _check(path: str, manifest: Manifest) -> None:
    if manifest.dtype not in {"uint16", "int32"}:
        raise FormatError(f"{path}: dtype {manifest.dtype!r}; the rule is uint16 or int32")
    tokenizer = manifest.tokenizer
    if not 0 <= tokenizer.eod_id < tokenizer.vocabulary:
        raise FormatError(f"{path}: EOD id {tokenizer.eod_id} lies outside the vocabulary of {tokenizer.vocabulary}")
    largest = int(np.iinfo(manifest.token_dtype).max)
    if tokenizer.vocabulary - 1 > largest:
        raise FormatError(
            f"{path}: a vocabulary of {tokenizer.vocabulary} does not fit {manifest.dtype}; its largest id is {largest}"
        )
    ids = [source.id for source in manifest.sources]
    paths = [shard.path for source in manifest.sources for shard in source.shards]
    for names, what in ((ids, "source"), (paths, "shard")):
        again = [name for name, count in Counter(names).items() if count > 1]
        if again:
            raise FormatError(f"{path}: two of its {what}s are called {again[0]!r}")
    for source in manifest.sources:
        where = f"{path}: source {source.id!r}"
        dropped = sum(source.dropped.values())
        if source.documents_in != source.documents_kept + dropped:
            raise FormatError(
                f"{where}: {source.documents_in} documents in, but {source.documents_kept} kept and {dropped} dropped"
            )
        held = sum(shard.documents for shard in source.shards)
        if held != source.documents_kept:
            raise FormatError(f"{where}: its shards hold {held} documents, but {source.documents_kept} were kept")
        for shard in source.shards:
            _check_shard(f"{path}: shard {shard.path}", shard, manifest.token_dtype)


def _check_shard(where: str, shard: ShardEntry, dtype: np.dtype[np.integer]) -> None:
    if shard.path.startswith("/") or "://" in shard.path or ".." in shard.path.split("/"):
        raise FormatError(f"{where}: lies outside the corpus; the rule is a path relative to its folder")
    if shard.bin.size != shard.tokens * dtype.itemsize:
        raise FormatError(f"{where}: {shard.tokens} {dtype.name} tokens are not {shard.bin.size} bytes")
    expected = HEADER_BYTES + 12 * shard.documents + 8 * (shard.documents + 1)
    if shard.idx.size != expected:
        raise FormatError(
            f"{where}: the index of {shard.documents} documents has {expected} bytes, not {shard.idx.size}"
        )
    if not shard.documents <= shard.eod_tokens <= shard.tokens:
        raise FormatError(
            f"{where}: {shard.eod_tokens} EODs in {shard.tokens} tokens for {shard.documents} documents; each document "
            "ends with one"
        )


def _check_totals(path: str, manifest: Manifest, value: Any) -> None:
    for what, total in (("tokens", manifest.tokens), ("documents", manifest.documents)):
        if value[what] != total:
            raise FormatError(f"{path}: says {value[what]} {what}, but its sources hold {total}")
