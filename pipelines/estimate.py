"""Estimates what a source will give, from the sizes of its inputs and a sample of a few hundred kilobytes.

A plan should cost seconds whatever the size of the corpus, so only a few places are read: evenly spaced byte ranges of
plain line files, beginnings of compressed ones, some row groups, some files. Cleaning rules are applied to the sample;
copies are not looked for, since they cannot be seen in one. The numbers are as good as the places are typical.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import STREAM, SourceSettings
from gristmill.formats.storage import open_read
from gristmill.pipelines.array_record_file import open_array_record, read_array_index
from gristmill.pipelines.arrow_file import arrow_batches, arrow_rows
from gristmill.pipelines.clean import clean_batch
from gristmill.pipelines.decompress import DecompressedStream
from gristmill.pipelines.hub_file_system import opened_files
from gristmill.pipelines.input_formats import NEVER_PACKED
from gristmill.pipelines.inputs import InputFile
from gristmill.pipelines.plan import Extent, Split
from gristmill.pipelines.read import read_split
from gristmill.pipelines.records import RecordAccount
from gristmill.pipelines.tfrecord_file import whole_frames

__all__ = ["estimate_source", "SourceEstimate"]

_PLACES = 4  # of a group of files that are read alike
_PLACE_BYTES = 128 << 10
_FILES = 32  # of those of which each is a document
_MOST_BYTES = 64 << 20  # for one place, where a record is longer than what was read
_MOST_SAMPLED = 1 << 20  # code points of one place that are encoded
_FED_BYTES = 16 << 10
_BURSTS = 3
_METADATA_FILES = 64
_ENCODED_CHARS = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEstimate:
    """What a source will give, estimated.

    Attributes:
        documents: documents kept.
        tokens: tokens in them, EODs included.
        sampled: documents that were looked at.
    """

    documents: int
    tokens: int
    sampled: int


@dataclass(slots=True)
class _Tally:
    """What was found in some places: documents kept, their tokens, and the amount of input that they stand for."""

    documents: int = 0
    tokens: float = 0.0
    amount: float = 0.0

    def scaled(self, total: float) -> tuple[float, float]:
        """Documents and tokens in an amount of input like the one looked at."""
        scale = total / self.amount if self.amount else 0.0
        return self.documents * scale, self.tokens * scale


def estimate_source(
    source: SourceSettings, files: Sequence[InputFile], count_tokens: Callable[[list[str]], int]
) -> SourceEstimate:
    """Estimates documents and tokens of a source.

    Args:
        source: the source.
        files: its input files.
        count_tokens: tokens of some documents, EODs included.

    Raises:
        InputError: the sample cannot be read: a field or column is missing, or a file is damaged.
        StorageError: a file cannot be read.
    """
    groups: dict[tuple[str, bool], list[InputFile]] = {}
    for file in files:
        if file.size:
            groups.setdefault((file.format, file.compression is not None), []).append(file)
    documents, tokens, sampled = 0.0, 0.0, 0
    for (kind, compressed), group in groups.items():
        sampler = _Sampler(source, count_tokens)
        stored = sum(file.size for file in group)
        if kind == "parquet":
            tally, total = sampler.parquet(group), _rows(group, _parquet_rows)
        elif kind == "arrow":
            tally, total = sampler.arrow(group), _rows(group, _arrow_rows)
        elif kind == "array_record":
            tally, total = sampler.array_records(group), _rows(group, _array_records)
        elif kind == STREAM:
            tally, total = sampler.shards(group), float(stored)
        elif _one_document_each(source, kind):
            tally, total = sampler.whole_files(group), float(stored)
        elif compressed or kind in {"csv", "warc", "tfrecord"}:
            tally, total = sampler.compressed_lines(group), float(stored)
        else:
            tally, total = sampler.plain_lines(group), float(stored)
        found = tally.scaled(total)
        if _one_document_each(source, kind):
            found = tally.documents * len(group) / min(len(group), _FILES), found[1]
        documents, tokens, sampled = documents + found[0], tokens + found[1], sampled + tally.documents
    return SourceEstimate(documents=round(documents), tokens=round(tokens), sampled=sampled)


def _one_document_each(source: SourceSettings, kind: str) -> bool:
    return kind == "python" or (kind == "text" and source.document == "file")


def _spaced(files: Sequence[InputFile], count: int) -> list[InputFile]:
    """Some of the files, evenly spaced in their order."""
    count = min(count, len(files))
    return [files[(2 * place + 1) * len(files) // (2 * count)] for place in range(count)]


def _rows(files: Sequence[InputFile], rows_of: Callable[[InputFile], int]) -> float:
    """Rows of files, of many by those of some."""
    some = _spaced(files, _METADATA_FILES)
    rows = sum(rows_of(file) for file in some)
    return rows * sum(file.size for file in files) / sum(file.size for file in some)


def _parquet_rows(file: InputFile) -> int:
    return int(_metadata(file).num_rows)


def _arrow_rows(file: InputFile) -> int:
    return arrow_rows(file.path)


def _array_records(file: InputFile) -> int:
    index = read_array_index(file.path, file.size)
    if index is not None:
        return int(index.records[-1])
    with open_array_record(file.path, file.size, [(0, file.size)]) as reader:
        return int(reader.num_records())


def _metadata(file: InputFile) -> pq.FileMetaData:
    try:
        with open_read(file.path) as raw:
            return pq.read_metadata(raw)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{file.path}: cannot be read as Parquet: {error}; fetch it again or leave it out") from error


class _Sampler:
    """Reads places of one group of files with the readers of a run."""

    def __init__(self, source: SourceSettings, count_tokens: Callable[[list[str]], int]) -> None:
        self._source = source
        self._count_tokens = count_tokens

    def plain_lines(self, files: Sequence[InputFile]) -> _Tally:
        """Evenly spaced byte ranges; the amount is bytes."""
        total = sum(file.size for file in files)
        width = _PLACE_BYTES
        while True:
            tally = _Tally()
            if total <= _PLACES * width:
                ranges = [(file, 0, file.size) for file in files]
            else:
                ranges = list(_ranges(files, total, width))
            faults = []
            for file, start, end in ranges:
                try:
                    self._add(tally, [_extent(file, start=start, end=end)], end - start)
                except InputError as error:  # in a place of few records none may have the text
                    faults.append(error)
                    tally.amount += end - start
            if faults and len(faults) == len(ranges):
                raise faults[0]
            if tally.documents or width * _PLACES >= min(total, _MOST_BYTES):
                return tally
            width *= 8

    def compressed_lines(self, files: Sequence[InputFile]) -> _Tally:
        """Beginnings of files; the amount is compressed bytes."""
        tally = _Tally()
        for file in _spaced(files, _PLACES):
            width = _PLACE_BYTES
            while True:
                data, consumed, whole = _beginning(file, width)
                last = whole_frames(data) if file.format == "tfrecord" else data.rfind(b"\n") + 1
                cut = len(data) if whole else last
                if cut or width >= _MOST_BYTES:
                    break
                width *= 8
            end = b"\n" if whole and file.format == "csv" else b""  # without which a row counts as cut
            self._add_bytes(tally, file, data[:cut] + end, consumed * cut / max(1, len(data)))
        return tally

    def whole_files(self, files: Sequence[InputFile]) -> _Tally:
        """Some files, of a long one its beginning; the amount is bytes as stored."""
        tally = _Tally()
        for file in _spaced(files, _FILES):
            data, consumed, whole = _beginning(file, _PLACE_BYTES)
            while not whole and data and data[-1] & 0xC0 == 0x80:  # not in the middle of a character
                data = data[:-1]
            if not whole and data and data[-1] >= 0xC0:
                data = data[:-1]
            part = _Tally()
            self._add_bytes(part, file, data, consumed)
            tally.documents += part.documents
            tally.tokens += part.tokens * file.size / max(1, consumed)
            tally.amount += file.size
        return tally

    def parquet(self, files: Sequence[InputFile]) -> _Tally:
        """First rows of row groups; the amount is rows."""
        tally = _Tally()
        for number, file in enumerate(_spaced(files, _PLACES)):
            groups = _metadata(file).num_row_groups
            if groups:
                group = groups * (2 * number + 1) // (2 * _PLACES)
                self._add(tally, [_extent(file, start=group, end=group + 1)], None)
        return tally

    def arrow(self, files: Sequence[InputFile]) -> _Tally:
        """First rows of record batches, or of streams; the amount is rows."""
        tally = _Tally()
        for number, file in enumerate(_spaced(files, _PLACES)):
            batches = arrow_batches(file.path)
            if batches is None:
                self._add(tally, [_extent(file, whole=True)], None)
            elif batches:
                batch = len(batches) * (2 * number + 1) // (2 * _PLACES)
                self._add(tally, [_extent(file, start=batch, end=batch + 1)], None)
        return tally

    def array_records(self, files: Sequence[InputFile]) -> _Tally:
        """First records from a chunk on; the amount is records."""
        tally = _Tally()
        for number, file in enumerate(_spaced(files, _PLACES)):
            index = read_array_index(file.path, file.size)
            if index is None:
                self._add(tally, [_extent(file, whole=True)], None)
            elif len(index.records) > 1:
                chunks = len(index.records) - 1
                chunk = chunks * (2 * number + 1) // (2 * _PLACES)
                end = 1 + int(np.searchsorted(index.bounds, index.bounds[chunk] + _PLACE_BYTES))
                self._add(tally, [_extent(file, start=chunk, end=min(end, chunks))], None)
        return tally

    def shards(self, files: Sequence[InputFile]) -> _Tally:
        """Beginnings of shards; the amount is the bytes of their files that had been read by then.

        A builder may read in pieces far larger than a record, so a beginning ends where it reads on.
        """
        tally = _Tally()
        for file in _spaced(files, _PLACES):
            account = RecordAccount("skip")
            split = Split(source=0, part=0, number=0, extents=(_extent(file, end=file.size),), digest="")
            texts: list[str] = []
            size, passed = 0, 0
            with opened_files() as opened:
                for batch in read_split(split, self._source, account):
                    position = opened[-1].tell() if opened and not opened[-1].closed else file.size
                    if size >= _PLACE_BYTES and position > passed:
                        break
                    kept = clean_batch(batch, self._source.clean, account, str) if self._source.clean.enabled else batch
                    texts += kept.texts
                    size, passed = size + sum(map(len, batch.texts)), position
                else:
                    passed = file.size
            some = texts[: -(-len(texts) * min(size, _MOST_SAMPLED) // max(1, size))]
            tally.amount += min(passed, file.size) * (len(some) / len(texts) if texts else 1.0)
            some = self._within_bounds(some)
            tally.documents += len(some)
            tally.tokens += self._tokens(some)
        return tally

    def _add_bytes(self, tally: _Tally, file: InputFile, data: bytes, amount: float) -> None:
        """Adds what some bytes hold, as a file of the same format."""
        with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
            path = os.path.join(folder, "sample")
            with open(path, "wb") as sample:
                sample.write(data)
            self._add(tally, [_extent(file, path=path, end=len(data), whole=True)], amount)

    def _add(self, tally: _Tally, extents: list[Extent], amount: float | None) -> None:
        """Adds what extents hold up to a bounded amount of text; without an amount, the records read are it."""
        account = RecordAccount("skip")
        source = self._source
        if extents[0].format in {"csv", "warc", "tfrecord"}:  # a part of a file may end inside a value or a page
            source = replace(source, expect_damaged=(extents[0].relative,))
        texts: list[str] = []
        size = 0
        for batch in read_split(Split(source=0, part=0, number=0, extents=tuple(extents), digest=""), source, account):
            kept = clean_batch(batch, self._source.clean, account, str) if self._source.clean.enabled else batch
            texts += kept.texts
            size += sum(map(len, kept.texts))
            if amount is None and size >= _PLACE_BYTES:
                break
        texts = self._within_bounds(texts)
        tally.documents += len(texts)
        tally.tokens += self._tokens(texts)
        tally.amount += account.records if amount is None else amount

    def _within_bounds(self, texts: list[str]) -> list[str]:
        """The texts that are neither too short nor too long in tokens, where the source has a rule on that."""
        clean = self._source.clean
        most = float("inf") if clean.max_tokens is None else clean.max_tokens
        if not clean.enabled or (not clean.min_tokens and clean.max_tokens is None):
            return texts
        return [text for text in texts if clean.min_tokens <= self._tokens([text]) - 1 <= most]

    def _tokens(self, texts: list[str]) -> float:
        """Tokens of documents; a long one is encoded in part."""
        if not texts:
            return 0.0
        short = [text for text in texts if len(text) <= _ENCODED_CHARS]
        found = float(self._count_tokens(short)) if short else 0.0
        for text in texts:
            if len(text) > _ENCODED_CHARS:
                found += self._count_tokens([text[:_ENCODED_CHARS]]) * len(text) / _ENCODED_CHARS
        return found


def _ranges(files: Sequence[InputFile], total: int, width: int) -> Iterator[tuple[InputFile, int, int]]:
    """Byte ranges, evenly spaced over all files; one that reaches the end of a file ends there."""
    for place in range(_PLACES):
        at = (2 * place + 1) * total // (2 * _PLACES)
        for file in files:
            if at < file.size:
                yield file, at, min(file.size, at + width)
                break
            at -= file.size


def _beginning(file: InputFile, size: int) -> tuple[bytes, float, bool]:
    """About the first `size` bytes of a file's text, the stored bytes that they took, and whether that is all.

    A decompressor gives text in bursts, when it has seen a whole block. What was read between the first burst and the
    last is what the text between them took.
    """
    with open_read(file.path) as raw:
        counted = _Counted(raw)
        stream: _Counted | DecompressedStream = counted
        if file.compression is not None:
            stream = DecompressedStream(cast("BinaryIO", counted), file.compression, file.path)
        data = BytesIO()
        bursts: list[tuple[int, int]] = []
        while data.tell() < size or len(bursts) < _BURSTS:
            before = counted.count
            block = stream.read(_FED_BYTES)
            if not block:
                return data.getvalue(), file.size, True
            if counted.count != before:
                bursts.append((counted.count, data.tell()))
            data.write(block)
        read, given = bursts[-1]
        return data.getvalue()[:given], read - bursts[0][0], False


class _Counted:
    """A file that is given out in small pieces, so that what was read is nearly what was used."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        """The next piece."""
        data = self._raw.read(_FED_BYTES if size < 0 else min(size, _FED_BYTES))
        self.count += len(data)
        return data


def _extent(file: InputFile, *, start: int = 0, end: int = 0, path: str | None = None, whole: bool = False) -> Extent:
    return Extent(
        file=0,
        path=file.path if path is None else path,
        relative=file.relative,
        format=file.format,
        compression=file.compression if path is None else None,
        start=start,
        end=end,
        whole=whole or (start == 0 and end == file.size and file.format not in NEVER_PACKED),
    )
