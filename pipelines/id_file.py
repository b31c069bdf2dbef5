"""What the documents of a split call themselves, by record: written while it is scanned, read for those of a sample.

Which documents deduplication will drop, and which stay in their place, is known when their texts are gone; so all ids
that the rules let through are kept, some tens of bytes a document, and finding a few of them costs three short reads of
a file of any size. Only sources that name an `id_field` and are deduplicated have one.
"""

import contextlib
import json
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from gristmill.formats.errors import FormatError
from gristmill.formats.storage import FileFacts, file_size, publish, read_range
from gristmill.pipelines.carried import carried_id_text
from gristmill.pipelines.job import Job
from gristmill.pipelines.plan import Split
from gristmill.pipelines.records import Batch

__all__ = ["ids_of", "ids_path", "IdWriter"]

_RUN_LINES = 256
_RUN_DTYPE = np.dtype([("record", "<u4"), ("start", "<u8")])
_COUNT_BYTES = 8
_TAIL_BYTES = 64 << 10


def ids_path(source_id: str, part: int) -> str:
    """Path of a split's ids, relative to the corpus."""
    return f"clean/{source_id}/{part:05d}.ids"


class IdWriter:
    """Takes a split's documents batch by batch; a context manager whose file appears when the block ends.

    Attributes:
        name: path of the file, relative to the corpus.
    """

    def __init__(self, job: Job, split: Split) -> None:
        """Writes nothing yet."""
        self.name = ids_path(job.source_of(split).id, split.part)
        self._path = job.path(self.name)
        self._lines = 0
        self._runs: list[np.ndarray] = []
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._file = self._closing.enter_context(publish(self._path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            runs = np.concatenate([np.empty(0, _RUN_DTYPE), *self._runs])
            self._file.write(runs)
            self._file.write(len(runs).to_bytes(_COUNT_BYTES, "little"))
        self._closing.__exit__(kind, error, trace)

    def add(self, batch: Batch, kept: Batch) -> None:
        """Takes those of a batch that the rules let through.

        Args:
            batch: documents as they were read, with what they carry along.
            kept: those that are left, with their record numbers.
        """
        if batch.carried is None or not kept.texts:
            return
        carried: Iterable[bytes] = batch.carried
        if kept is not batch:
            places = np.searchsorted(np.asarray(batch.records), np.asarray(kept.records)).tolist()
            carried = map(batch.carried.__getitem__, places)
        named = [
            (record, text)
            for record, text in zip(kept.records, map(carried_id_text, carried), strict=True)
            if text is not None
        ]
        lines = [f"[{record},{text}]\n".encode() for record, text in named]
        sizes = np.array(list(map(len, lines)), np.int64)
        first = -self._lines % _RUN_LINES
        runs = np.empty(len(sizes[first::_RUN_LINES]), _RUN_DTYPE)
        runs["record"] = [record for record, _ in named[first::_RUN_LINES]]
        runs["start"] = (self._file.size + np.cumsum(sizes) - sizes)[first::_RUN_LINES]
        self._runs.append(runs)
        self._lines += len(lines)
        self._file.write(b"".join(lines))

    def facts(self) -> dict[str, FileFacts]:
        """The file by its path, once the block has ended."""
        return {self.name: self._file.facts()}


def ids_of(path: str, records: Sequence[int]) -> dict[int, Any]:
    """The ids of some records; those without one are left out.

    Args:
        path: path or URL of a file that `IdWriter` wrote.
        records: numbers of records.

    Raises:
        FormatError: the file is damaged.
        StorageError: it cannot be read.
    """
    try:
        return _found(path, file_size(path), records)
    except (ValueError, IndexError) as error:
        raise FormatError(f"{path}: damaged file of ids ({error}); remove it and run again") from error


def _found(path: str, size: int, records: Sequence[int]) -> dict[int, Any]:
    tail_start = max(0, size - _TAIL_BYTES)
    tail = read_range(path, tail_start, size - tail_start)
    directory_bytes = _COUNT_BYTES + _RUN_DTYPE.itemsize * int.from_bytes(tail[-_COUNT_BYTES:], "little")
    end = size - directory_bytes
    if size < _COUNT_BYTES or end < 0:
        raise ValueError(f"{size} bytes, {directory_bytes} of them behind the lines")
    if end < tail_start:
        tail_start, tail = end, read_range(path, end, directory_bytes)
    runs = np.frombuffer(tail[end - tail_start : -_COUNT_BYTES], _RUN_DTYPE)
    places = np.searchsorted(runs["record"], np.array(records, np.uint32), side="right") - 1
    bounds = [*runs["start"].tolist(), end]
    found: dict[int, Any] = {}
    wanted = set(records)
    for place in np.unique(places[places >= 0]).tolist():
        start, stop = bounds[place], bounds[place + 1]
        inside = start >= tail_start
        run = tail[start - tail_start : stop - tail_start] if inside else read_range(path, start, stop - start)
        for line in run.splitlines():
            number = int(line[1 : line.index(b",")])
            if number in wanted:
                found[number] = json.loads(line)[1]
    return found
