"""Gives prepared or adopted data to other programs: one Megatron pair, or raw uint32 shards with a JSON manifest.

Both are written as a stream, in blocks. Raw shards hold nothing that tells documents apart but the EOS, so data whose
documents do not all end with it are refused rather than joined; a pair keeps every boundary.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from gristmill.formats.data_sources import agreed_ids, open_data_sources
from gristmill.formats.data_spec import parse_data_spec
from gristmill.formats.errors import CorpusError, FormatError, SettingsError
from gristmill.formats.fingerprint import pretty_json
from gristmill.formats.indexed import IndexedDataset
from gristmill.formats.indexed_writer import PairFacts
from gristmill.formats.log import tell
from gristmill.formats.manifest import FORMAT, MANIFEST_NAME, read_manifest
from gristmill.formats.merge import refuse_existing, write_joined
from gristmill.formats.raw_manifest import RAW_MANIFEST_NAME
from gristmill.formats.storage import Publication, exists, join, publish, read_bytes, write_bytes
from gristmill.formats.token_shards import TokenShard, examine_pair

__all__ = ["add_arguments", "export_pair", "export_raw", "ExportData", "FORMATS", "is_corpus", "open_export", "run"]

FORMATS = ("megatron", "raw-uint32")
"""What `gristmill export` can write."""

_SHARDS_FOLDER = "shards"
_SHARD_TOKENS = 50_000_000
_BLOCK_TOKENS = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportData:
    """What is exported.

    Attributes:
        sources: name and shards of each source, in order.
        eod_id: id that closes a document; None where nobody names one.
        vocabulary: bound of the ids; None where nobody names one.
        pad_id: the tokenizer's padding id, or None.
        tokenizer: what identifies the tokenizer; empty where it is not known.
    """

    sources: tuple[tuple[str, tuple[TokenShard, ...]], ...]
    eod_id: int | None
    vocabulary: int | None
    pad_id: int | None
    tokenizer: str

    @property
    def shards(self) -> list[TokenShard]:
        """All shards in order."""
        return [shard for _, shards in self.sources for shard in shards]


def open_export(
    data: str, *, sources: Sequence[str] = (), eod_id: int | None = None, vocabulary: int | None = None
) -> ExportData:
    """Opens a corpus, or data made by anyone.

    Args:
        data: folder or URL of a corpus; or prefixes, folders and manifests, separated by ``:``.
        sources: ids of the sources of a corpus to export; none means all.
        eod_id: id that closes a document; of a corpus, its own.
        vocabulary: bound of the ids; of a corpus, its own.

    Raises:
        SettingsError: a source is not in the corpus, or an option contradicts it.
        InputError: a path leads to no data.
        CorpusError: the corpus is unfinished.
        FormatError: a file is damaged.
    """
    if is_corpus(data):
        return _corpus(data, sources, eod_id, vocabulary)
    if sources:
        raise SettingsError(f"--source {sources[0]}: {data} is no corpus, so it has no sources by name")
    entries = parse_data_spec(data)
    if any(entry.weight is not None for entry in entries):
        raise SettingsError(f"{data}: weights say nothing about what is exported; leave them out")
    opened = open_data_sources(entries, eod_id=eod_id, vocabulary=vocabulary, write=False, identify=False)
    raw = any(source.raw for source in opened)
    eod, bound = agreed_ids(opened, eod_id, vocabulary) if raw or eod_id is not None else (None, vocabulary)
    return ExportData(
        sources=tuple((source.id, source.shards) for source in opened),
        eod_id=eod,
        vocabulary=bound,
        pad_id=None,
        tokenizer="",
    )


def is_corpus(data: str) -> bool:
    """Whether a folder or URL is that of a finished corpus."""
    path = join(data, MANIFEST_NAME)
    return ";" not in data and exists(path) and FORMAT.encode() in read_bytes(path)


def _corpus(folder: str, wanted: Sequence[str], eod_id: int | None, vocabulary: int | None) -> ExportData:
    manifest = read_manifest(folder)
    tokenizer = manifest.tokenizer
    for option, given, own in (("eod-id", eod_id, tokenizer.eod_id), ("vocabulary", vocabulary, tokenizer.vocabulary)):
        if given is not None and given != own:
            raise SettingsError(f"--{option} {given}: the corpus {folder} says {own}; leave the option out")
    known = [source.id for source in manifest.sources]
    for name in wanted:
        if name not in known:
            raise SettingsError(f"--source {name}: {folder} has no such source; there are {', '.join(known)}")
    sources = tuple(
        (source.id, tuple(examine_pair(join(folder, shard.path), identify=False) for shard in source.shards))
        for source in manifest.sources
        if not wanted or source.id in wanted
    )
    for source in manifest.sources:
        for shard, found in zip(source.shards, dict(sources).get(source.id, ()), strict=False):
            if found.tokens != shard.tokens:
                raise CorpusError(
                    f"{found.prefix}: holds {found.tokens} tokens, but the manifest says {shard.tokens}; `gristmill "
                    "verify` lists every such file"
                )
    return ExportData(
        sources=sources,
        eod_id=tokenizer.eod_id,
        vocabulary=tokenizer.vocabulary,
        pad_id=tokenizer.pad_id,
        tokenizer=tokenizer.fingerprint,
    )


def export_pair(data: ExportData, output: str, say: Callable[[str], None] | None = None) -> PairFacts:
    """Writes all shards as one pair: in their dtype where they share one that the format knows, else in int32.

    Args:
        data: what to export.
        output: prefix of the pair; there must be none yet.
        say: takes a line for each shard.

    Raises:
        SettingsError: the pair is there already.
        FormatError: a token does not fit int32, or a shard is damaged.
        StorageError: a file cannot be read or written.
    """
    refuse_existing(output)
    dtypes = {shard.dtype for shard in data.shards}
    dtype = np.dtype(dtypes.pop() if len(dtypes) == 1 and "uint32" not in dtypes else "int32")
    return write_joined(data.shards, output, dtype, say)


def export_raw(
    data: ExportData, folder: str, *, shard_tokens: int = _SHARD_TOKENS, say: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Writes raw uint32 shards and, last, the manifest that names them.

    A document belongs to shard ``floor(first token's position / shard_tokens)`` and is never cut; empty numbers are
    closed up. Documents without a token have no place in raw shards and are passed over.

    Args:
        data: what to export.
        folder: path or URL; it gets `manifest.json` and a folder `shards`.
        shard_tokens: tokens of a shard, at least 1; one that begins below it is finished.
        say: takes a line for each shard.

    Returns:
        The manifest.

    Raises:
        SettingsError: nobody names an EOD, the bound of a shard is below 1, or there is a manifest already.
        FormatError: a document does not end with the EOD, or an id is outside the vocabulary.
        StorageError: a file cannot be read or written.
    """
    place = join(folder, RAW_MANIFEST_NAME)
    if shard_tokens < 1:
        raise SettingsError(f"shards of {shard_tokens} tokens: at least 1 is needed")
    if exists(place):
        raise SettingsError(f"{place}: is there already; remove the folder, or name another")
    if data.eod_id is None:
        raise SettingsError("--eod-id is needed: raw shards tell documents apart by nothing else")
    writer = _RawWriter(folder, data, shard_tokens, say)
    sources: dict[str, dict[str, int]] = {}
    with writer:
        for name, shards in data.sources:
            before = writer.tokens, writer.documents
            for shard in shards:
                writer.add(shard)
            sources[name] = {"tokens": writer.tokens - before[0], "documents": writer.documents - before[1]}
    value = {
        "version": 1,
        "vocab_size": data.vocabulary,
        "eos_token_id": data.eod_id,
        "pad_token_id": data.pad_id,
        "tokenizer_name": data.tokenizer,
        "dtype": "uint32",
        "shard_size_tokens": shard_tokens,
        "total_tokens": writer.tokens,
        "shard_count": len(writer.entries),
        "shards_dir": _SHARDS_FOLDER,
        "shards": writer.entries,
        "sources": sources,
    }
    write_bytes(place, pretty_json(value))
    return value


class _RawWriter:
    """Cuts a stream of documents into raw shards; the last shard is finished when the block ends."""

    def __init__(self, folder: str, data: ExportData, shard_tokens: int, say: Callable[[str], None] | None) -> None:
        self.tokens = 0
        self.documents = 0
        self.entries: list[dict[str, Any]] = []
        self._folder = folder
        self._eod = data.eod_id
        self._bound = 2**31 if data.vocabulary is None else data.vocabulary
        self._shard_tokens = shard_tokens
        self._say = say
        self._number = -1  # of the bound that the open shard began below
        self._eods = 0
        self._context: AbstractContextManager[Publication] | None = None
        self._publication: Publication | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        elif self._context is not None:
            self._context.__exit__(kind, error, trace)

    def add(self, shard: TokenShard) -> None:
        """Appends the documents of a shard."""
        pair = shard.open()
        edges = np.append(pair.pointers // pair.dtype.itemsize, pair.num_tokens)[pair.document_indices]
        edges = np.unique(edges)  # documents without tokens leave no edge of their own
        numbers = (edges[:-1] + self.tokens) // self._shard_tokens
        cuts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for first, stop in itertools.pairwise([*cuts.tolist(), len(numbers)]):
            if int(numbers[first]) != self._number:
                self._finish()
                self._begin(int(numbers[first]))
            self._copy(shard, pair, edges[first : stop + 1])
        self.tokens += pair.num_tokens
        self.documents += len(edges) - 1
        pair.close()

    def _copy(self, shard: TokenShard, pair: IndexedDataset, edges: np.ndarray) -> None:
        """Copies the documents between edges to the open shard."""
        publication = self._publication
        if publication is None:
            raise FormatError(f"{shard.prefix}: no shard is open")
        for start, block in _blocks(pair, int(edges[0]), int(edges[-1])):
            bad = (block < 0) | (block >= self._bound)
            if bad.any():
                at = int(np.argmax(bad))
                raise FormatError(
                    f"{shard.prefix}: token {start + at} is {int(block[at])}; ids must be at least 0 and below "
                    f"{self._bound}"
                )
            low, high = np.searchsorted(edges, (start, start + len(block)), side="right")
            ends = edges[low:high] - 1 - start
            wrong = block[ends] != self._eod
            if wrong.any():
                at = int(ends[np.argmax(wrong)])
                raise FormatError(
                    f"{shard.prefix}: the document that ends at token {start + at} ends with {int(block[at])}, not "
                    f"with the EOD {self._eod}; raw shards could not tell it from the next"
                )
            self._eods += int(np.count_nonzero(block == self._eod))
            publication.write(block.astype("<u4"))

    def _begin(self, number: int) -> None:
        self._number = number
        self._eods = 0
        self._context = publish(join(self._folder, _SHARDS_FOLDER, f"shard_{len(self.entries):05d}.bin"))
        self._publication = self._context.__enter__()

    def _finish(self) -> None:
        if self._context is None or self._publication is None:
            return
        publication = self._publication
        self._context.__exit__(None, None, None)
        self._context = self._publication = None
        facts = publication.facts()
        entry = {
            "index": len(self.entries),
            "path": publication.path.rsplit("/", 1)[-1],
            "n_tokens": facts.size // 4,
            "sha256": facts.sha256,
            "n_eos": self._eods,
        }
        self.entries.append(entry)
        if self._say is not None:
            self._say(f"{entry['path']}: {entry['n_tokens']:,} tokens, {entry['n_eos']:,} EOS")


def _blocks(pair: IndexedDataset, start: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
    for first in range(start, stop, _BLOCK_TOKENS):
        yield first, pair.read(first, min(_BLOCK_TOKENS, stop - first))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gristmill export`."""
    parser.add_argument("data", help="folder or URL of a corpus; or prefixes, folders or manifests, separated by ':'")
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write: %(choices)s")
    parser.add_argument(
        "--output", required=True, metavar="PATH", help="prefix of the pair, or folder of the raw shards; path or URL"
    )
    parser.add_argument(
        "--source", action="append", default=[], metavar="ID", help="only this source of a corpus; repeatable"
    )
    parser.add_argument("--eod-id", type=int, metavar="ID", help="id that closes a document, where the data do not say")
    parser.add_argument("--vocabulary", type=int, metavar="N", help="bound of the ids, where the data do not say")
    parser.add_argument(
        "--shard-tokens",
        type=int,
        default=_SHARD_TOKENS,
        metavar="N",
        help="tokens of a raw shard (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Exports; returns the exit code."""
    data = open_export(
        arguments.data, sources=arguments.source, eod_id=arguments.eod_id, vocabulary=arguments.vocabulary
    )
    if arguments.format == "megatron":
        facts = export_pair(data, arguments.output, partial(tell, name="shard"))
        counts = {"tokens": facts.tokens, "documents": facts.documents}
        says = f"{arguments.output}: {facts.tokens:,} tokens in {facts.documents:,} documents"
        tell(says, "exported", file=arguments.output, **counts)
        return 0
    value = export_raw(data, arguments.output, shard_tokens=arguments.shard_tokens, say=partial(tell, name="shard"))
    place = join(arguments.output, RAW_MANIFEST_NAME)
    documents = sum(source["documents"] for source in value["sources"].values())
    counts = {"tokens": value["total_tokens"], "documents": documents, "shards": value["shard_count"]}
    says = f"{place}: {counts['tokens']:,} tokens of {documents:,} documents in {counts['shards']:,} shards"
    tell(says, "exported", file=place, **counts)
    surplus = sum(entry["n_eos"] for entry in value["shards"]) - documents
    if surplus:
        tell(f"the EOD stands {surplus:,} times inside documents: readers of raw shards will see so many more of them")
    return 0
