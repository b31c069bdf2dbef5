"""Where the documents of a shard came from: `.rec` files, one beside each `.bin/.idx` pair of a corpus.

Four bytes a document lead from a shard back to the record of an input file, so that a sample can be followed to the
text that somebody wrote, without reading any input. Records are numbered within their split, as in every other file of
the corpus, and a short table of runs says which file a split's records are in and what to add to count within it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.errors import FormatError
from gristmill.formats.storage import FileFacts, Publication, file_size, publish, read_bytes, read_range

__all__ = [
    "Extent",
    "FOOTER_BYTES",
    "ORIGIN_MAGIC",
    "OriginFile",
    "OriginPlace",
    "origins_path",
    "OriginWriter",
    "read_origins",
    "RUN_DTYPE",
    "write_origins",
]

ORIGIN_MAGIC = b"GMILREC1"
"""Last bytes of the file; the digit is the version."""

RUN_DTYPE = np.dtype([("document", "<i8"), ("offset", "<i8"), ("input", "<u4"), ("split", "<u4")])
"""A run of documents from one file in one split: its first document, what to add to a record's number within the split
to have its number within the file, number of the file among the inputs of the source, number of the split."""

_FOOTER_DTYPE = np.dtype([("documents", "<i8"), ("runs", "<i8"), ("magic", "S8")])

FOOTER_BYTES = _FOOTER_DTYPE.itemsize
"""Bytes behind the runs: counts of documents and runs, and the magic."""


def origins_path(prefix: str) -> str:
    """Path of the `.rec` file of a pair."""
    return f"{prefix}.rec"


@dataclass(frozen=True, slots=True)
class Extent:
    """A part of a split that lies in one file.

    Attributes:
        input: number of the file among the inputs of the source.
        end: number, within the split, behind that of its last record.
        offset: what to add to a number within the split to have the number within the file.
    """

    input: int
    end: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginPlace:
    """Where a document came from, in numbers.

    Attributes:
        input: number of the input file within the source.
        record: number of the record within the file, from 0.
        split: number of the split within the source.
        split_record: number of the record within the split, as the `.keys` and the manifest count.
    """

    input: int
    record: int
    split: int
    split_record: int


class OriginWriter:
    """Collects where the documents of a shard came from, in their order."""

    def __init__(self, publication: Publication) -> None:
        """Writes to a publication; `write_origins` makes both."""
        self._publication = publication
        self._documents = 0
        self._runs: list[np.ndarray] = []

    def add(self, split: int, records: NDArray[np.uint32], extents: Sequence[Extent]) -> None:
        """Appends documents of one split.

        Args:
            split: its number within the source.
            records: uint32 [n], numbers of their records within the split, ascending.
            extents: the split's, in order.

        Raises:
            FormatError: a record lies behind the last extent.
        """
        if not len(records):
            return
        ends = np.array([extent.end for extent in extents], np.int64)
        within = np.searchsorted(ends, records, side="right")
        if within[-1] == len(ends):
            raise FormatError(
                f"{self._publication.path}: record {int(records[-1])} of split {split}, which has {int(ends[-1])}"
            )
        starts = np.flatnonzero(np.diff(within, prepend=-1))
        runs = np.empty(len(starts), RUN_DTYPE)
        runs["document"] = self._documents + starts
        runs["offset"] = np.array([extent.offset for extent in extents], np.int64)[within[starts]]
        runs["input"] = np.array([extent.input for extent in extents], np.uint32)[within[starts]]
        runs["split"] = split
        self._runs.append(runs)
        self._publication.write(np.asarray(records, "<u4"))
        self._documents += len(records)

    def finish(self) -> None:
        """Writes what follows the numbers; called by `write_origins`."""
        runs = np.concatenate([np.empty(0, RUN_DTYPE), *self._runs])
        self._publication.write(runs)
        self._publication.write(np.array([(self._documents, len(runs), ORIGIN_MAGIC)], _FOOTER_DTYPE))
        self._publication.flush()

    def facts(self) -> FileFacts:
        """Size and digest of the file, once the block has ended."""
        return self._publication.facts()


@contextlib.contextmanager
def write_origins(path: str) -> Iterator[OriginWriter]:
    """Writes a `.rec` file, which appears when the block ends.

    Raises:
        StorageError: it cannot be written.
    """
    with publish(path) as publication:
        writer = OriginWriter(publication)
        yield writer
        writer.finish()


@dataclass(slots=True)
class OriginFile:
    """A `.rec` file, of which only runs and the numbers asked for are read.

    Attributes:
        path: path or URL.
        documents: number of documents; -1 until something was read.
    """

    path: str
    documents: int = -1
    _runs: np.ndarray = field(default_factory=lambda: np.empty(0, RUN_DTYPE))

    def place(self, document: int) -> OriginPlace:
        """Where a document came from.

        Args:
            document: its number in the shard.

        Raises:
            FormatError: the file is damaged, or has no such document.
            StorageError: the file cannot be read.
        """
        if self.documents < 0:
            self._open()
        if not 0 <= document < self.documents:
            raise FormatError(f"{self.path}: document {document} of {self.documents}: not the file of this shard")
        run = self._runs[np.searchsorted(self._runs["document"], document, side="right") - 1]
        number = int.from_bytes(read_range(self.path, 4 * document, 4), "little")
        return OriginPlace(
            input=int(run["input"]), record=number + int(run["offset"]), split=int(run["split"]), split_record=number
        )

    def _open(self) -> None:
        size = file_size(self.path)
        if size < FOOTER_BYTES:
            raise FormatError(f"{self.path}: {size} bytes are too few; cut short, so prepare the corpus again")
        documents, runs = _footer(self.path, read_range(self.path, size - FOOTER_BYTES, FOOTER_BYTES), size)
        found = np.frombuffer(read_range(self.path, 4 * documents, RUN_DTYPE.itemsize * runs), RUN_DTYPE)
        _check_runs(self.path, documents, found)
        self._runs, self.documents = found, documents


def _footer(path: str, data: bytes, size: int) -> tuple[int, int]:
    """Numbers of documents and runs, which must account for every byte."""
    (footer,) = np.frombuffer(data, _FOOTER_DTYPE)
    documents, runs, magic = int(footer["documents"]), int(footer["runs"]), bytes(footer["magic"])
    if magic != ORIGIN_MAGIC:
        raise FormatError(f"{path}: ends with {magic!r}, not with {ORIGIN_MAGIC!r}: cut short, or of another version")
    if documents < 0 or runs < 0 or 4 * documents + RUN_DTYPE.itemsize * runs + FOOTER_BYTES != size:
        raise FormatError(f"{path}: {documents} documents in {runs} runs do not make {size} bytes; it is damaged")
    return documents, runs


def _check_runs(path: str, documents: int, runs: np.ndarray) -> None:
    starts = runs["document"]
    sound = not documents if not len(runs) else starts[0] == 0 and starts[-1] < documents
    if not sound or (np.diff(starts) <= 0).any():
        raise FormatError(f"{path}: its runs do not begin at document 0 and go on below {documents}; it is damaged")


def read_origins(path: str) -> tuple[NDArray[np.uint32], np.ndarray]:
    """Everything that a `.rec` file holds.

    Returns:
        numbers: uint32 [D], each document's record within its split.
        runs: [R] of `RUN_DTYPE`.

    Raises:
        FormatError: the file is damaged.
        StorageError: the file cannot be read.
    """
    data = read_bytes(path)
    if len(data) < FOOTER_BYTES:
        raise FormatError(f"{path}: {len(data)} bytes are too few; cut short, so prepare the corpus again")
    documents, runs = _footer(path, data[-FOOTER_BYTES:], len(data))
    table = np.frombuffer(data, RUN_DTYPE, runs, 4 * documents)
    _check_runs(path, documents, table)
    return np.frombuffer(data, "<u4", documents), table
