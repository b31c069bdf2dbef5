"""What a corpus, a shard or anyone's `.bin/.idx` pair holds, as text for people.

Lengths are counted over every index file, tokens are read only for the documents shown. Text is decoded with the
corpus's own tokenizer where that is there and the `tokenizers` library is installed; otherwise ids are shown.
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.errors import MissingExtraError, SettingsError
from gristmill.formats.fingerprint import short
from gristmill.formats.index_order import IndexSet
from gristmill.formats.indexed import IndexedDataset, bin_path, idx_path
from gristmill.formats.manifest import MANIFEST_NAME, SourceEntry
from gristmill.formats.metadata import MetadataFile
from gristmill.formats.storage import base_name, exists, join
from gristmill.runtime.corpus import Corpus, open_corpus
from gristmill.runtime.decoder import Decode, open_decoder
from gristmill.runtime.provenance import carried_line

__all__ = [
    "add_arguments",
    "inspect",
    "LengthCounts",
    "run",
]

_SHARDS_SHOWN = 12
_TOKENS_SHOWN = 96
_IDS_SHOWN = 16
_CHARACTERS_SHOWN = 160


@dataclass(slots=True)
class LengthCounts:
    """Lengths counted exactly, in memory bounded by the number of different ones.

    Attributes:
        counts: how many documents have each length.
    """

    counts: dict[int, int] = field(default_factory=dict)

    def add(self, lengths: NDArray[np.integer]) -> None:
        """Counts more lengths."""
        values, counts = np.unique(lengths, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self.counts[value] = self.counts.get(value, 0) + count

    def __str__(self) -> str:
        if not self.counts:
            return "none"
        lengths = np.array(sorted(self.counts), np.int64)
        counts = np.array([self.counts[length] for length in lengths.tolist()], np.int64)
        total = int(counts.sum())
        ends = np.cumsum(counts)
        low, high = (int(lengths[np.searchsorted(ends, rank, side="right")]) for rank in ((total - 1) // 2, total // 2))
        mean = float((lengths * counts).sum() / total)
        return f"min {lengths[0]:,}, median {(low + high) / 2:,.10g}, mean {mean:,.1f}, max {lengths[-1]:,}"


def inspect(path: str, documents: int = 3) -> str:
    """What lies at a path, as lines of text.

    Args:
        path: folder or URL of a corpus, or a `.bin/.idx` pair by its prefix or either file.
        documents: how many documents to show, of each source where there are several.

    Raises:
        CorpusError: there is neither a finished corpus nor a pair.
        FormatError: a file is damaged.
        SettingsError: `documents` is negative.
    """
    if documents < 0:
        raise SettingsError(f"--documents must be at least 0, not {documents}")
    prefix = path[:-4] if path.endswith((".bin", ".idx")) else path
    if exists(idx_path(prefix)) or exists(bin_path(prefix)):
        return "\n".join(_pair_lines(prefix, documents))
    return "\n".join(_corpus_lines(open_corpus(path), path, documents))


def _corpus_lines(corpus: Corpus, path: str, documents: int) -> Iterator[str]:
    manifest, tokenizer = corpus.manifest, corpus.manifest.tokenizer
    shards = sum(len(source.shards) for source in manifest.sources)
    yield f"{path}: corpus {manifest.name!r}, finished, made by gristmill {manifest.software}"
    yield (
        f"  {manifest.tokens:,} tokens ({manifest.dtype}) in {manifest.documents:,} documents; {shards:,} shards of "
        f"{len(manifest.sources):,} sources"
    )
    yield (
        f"  tokenizer {short(tokenizer.fingerprint)}, {tokenizer.vocabulary:,} ids, by {tokenizer.engine} "
        f"{tokenizer.engine_version}; EOD is {tokenizer.eod_id} {tokenizer.eod_token!r}"
    )
    decode = _decoder(corpus)
    for source in manifest.sources:
        yield ""
        yield from _source_lines(corpus, source, documents, decode)
    yield ""
    yield from _set_lines(corpus.index_sets(), manifest.index_set)


def _source_lines(corpus: Corpus, source: SourceEntry, documents: int, decode: Decode | None) -> Iterator[str]:
    lengths = LengthCounts()
    shown: list[str] = []
    for shard in source.shards:
        dataset = IndexedDataset(join(corpus.folder, shard.path), check="ends")
        lengths.add(_document_lengths(dataset))
        carried = MetadataFile(join(corpus.folder, shard.path)) if shard.meta is not None else None
        some = _documents(dataset, f" of {base_name(shard.path)}", decode, carried)
        shown += itertools.islice(some, documents - len(shown))
        dataset.close()
    weight = "" if source.weight is None else f", weight {source.weight:g}"
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(source.dropped.items()) if count)
    yield f"source {source.id!r}{weight}: {source.tokens:,} tokens in {source.documents_kept:,} documents"
    yield f"  from {source.documents_in:,} records in {len(source.inputs):,} files; dropped: {dropped or 'none'}"
    yield f"  tokens of a document: {lengths}"
    names = [f"  {shard.path}  {shard.tokens:,} tokens, {shard.documents:,} documents" for shard in source.shards]
    yield from _some(names, "shards")
    yield from shown


def _set_lines(sets: Sequence[IndexSet], own: str | None) -> Iterator[str]:
    if not sets:
        yield "index sets: none, so no stream can be opened yet"
    for index_set in sets:
        rows = ", ".join(f"{order.split} {order.samples:,}" for order in index_set.orders)
        mark = " (the corpus's own)" if index_set.name == own else ""
        settings = index_set.settings
        yield f"index set {index_set.name}{mark}"
        yield (
            f"  sequence length {settings.sequence_length:,}, seed {settings.seed}, splits {settings.splits}; rows: "
            f"{rows}"
        )
        if index_set.parent is not None:
            yield f"  extends the set {short(index_set.parent)}"
        for change in index_set.history:
            yield f"  goes on from the stream {short(change.parent)} at row {change.from_sample:,}"
        for order in index_set.orders:
            for entry in order.left_out if order.members else ():
                yield f"  {order.split} leaves out {entry.source!r}: {entry.reason}"


def _pair_lines(prefix: str, documents: int) -> Iterator[str]:
    dataset = IndexedDataset(prefix)
    lengths = LengthCounts()
    lengths.add(_document_lengths(dataset))
    corpus = _corpus_of(prefix)
    yield f"{prefix}: .bin/.idx pair" + ("" if corpus is None else f" of the corpus {corpus.manifest.name!r}")
    yield (
        f"  {dataset.num_tokens:,} tokens ({dataset.dtype}) in {dataset.num_sequences:,} sequences of "
        f"{dataset.num_documents:,} documents"
    )
    yield f"  tokens of a document: {lengths}"
    if corpus is not None:
        yield f"  EOD is {corpus.manifest.tokenizer.eod_id} {corpus.manifest.tokenizer.eod_token!r}"
    yield f"  documents end with: {_endings(dataset)}"
    decode = None if corpus is None else _decoder(corpus)
    yield from itertools.islice(_documents(dataset, "", decode), documents)
    dataset.close()


def _document_lengths(dataset: IndexedDataset) -> NDArray[np.int64]:
    """int64 [D], tokens of each document."""
    starts = np.append(dataset.pointers // dataset.dtype.itemsize, dataset.num_tokens)
    lengths: NDArray[np.int64] = np.diff(starts[dataset.document_indices])
    return lengths


def _endings(dataset: IndexedDataset) -> str:
    """The last token of the documents, where they agree: an EOD that somebody appended."""
    lengths = _document_lengths(dataset)
    last = np.cumsum(lengths)[lengths > 0] - 1
    some = last[np.linspace(0, len(last) - 1, min(len(last), 1000)).astype(np.int64)] if len(last) else last
    found = sorted({int(dataset.read(place, 1)[0]) for place in some.tolist()})
    looked_at = "all" if len(some) == len(last) else f"{len(some):,} looked at"
    if len(found) == 1:
        return f"id {found[0]} ({looked_at})"
    return f"{len(found):,} different ids ({looked_at}), so no EOD was appended" if found else "nothing"


def _documents(
    dataset: IndexedDataset, where: str, decode: Decode | None, carried: MetadataFile | None = None
) -> Iterator[str]:
    lengths = _document_lengths(dataset)
    starts = np.cumsum(lengths) - lengths
    for number in range(dataset.num_documents):
        ids = dataset.read(int(starts[number]), min(int(lengths[number]), _TOKENS_SHOWN)).tolist()
        text = _shown(ids, decode, whole=len(ids) == lengths[number])
        line = "" if carried is None else f"\n    {carried_line(carried.values(number))}"
        yield f"  document {number}{where}, {lengths[number]:,} tokens: {text}{line}"


def _shown(ids: list[int], decode: Decode | None, *, whole: bool) -> str:
    if decode is None:
        more = "" if whole and len(ids) <= _IDS_SHOWN else " …"
        return "ids " + " ".join(map(str, ids[:_IDS_SHOWN])) + more
    text = decode(ids)
    cut = len(text) > _CHARACTERS_SHOWN
    return repr(text[:_CHARACTERS_SHOWN]) + ("" if whole and not cut else " …")


def _some(lines: Sequence[str], noun: str) -> Iterator[str]:
    yield from lines[:_SHARDS_SHOWN]
    if len(lines) > _SHARDS_SHOWN:
        yield f"  … and {len(lines) - _SHARDS_SHOWN:,} more {noun}"


def _corpus_of(prefix: str) -> Corpus | None:
    """The corpus that a shard lies in, as ``<corpus>/tokens/<source>/<shard>``."""
    parts = prefix.rsplit("/", 3)
    if len(parts) == 4 and parts[1] == "tokens" and exists(join(parts[0], MANIFEST_NAME)):
        return open_corpus(parts[0])
    return None


def _decoder(corpus: Corpus) -> Decode | None:
    if not exists(corpus.tokenizer_path):
        return None
    try:
        return open_decoder(corpus.tokenizer_path)
    except MissingExtraError:
        return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `gristmill inspect`."""
    parser.add_argument("path", help="folder or URL of a corpus, or a .bin/.idx pair by its prefix or either file")
    parser.add_argument(
        "--documents", type=int, default=3, metavar="N", help="how many documents of each source to show (default 3)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints what `inspect` says; returns the exit code."""
    print(inspect(arguments.path, arguments.documents))
    return 0
