"""What reading and waiting have cost so far, as plain numbers: always on, about a microsecond for each batch.

Everything is counted for whole batches and where it happens anyway; what would cost more, the rows and their sources,
is counted for hundreds of batches at once or when somebody asks. The price is that counts are those of this process: of
the rows that it reads, which are not all rows of the job.
"""

import threading
from collections import Counter
from collections.abc import Sized
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["BatchMetrics", "count_loss_tokens", "MeasuredStream", "ReadCounts"]

_MOST_UNCOUNTED = 256  # batches whose rows are counted together


@runtime_checkable
class MeasuredStream(Protocol):
    """A stream that can say what it read, where its rows come from, and what it waits for."""

    def read_counts(self) -> dict[str, int]:
        """What has been read so far, by name: at least ``bytes_read``, the bytes of tokens taken from files."""
        ...

    def rows_by_source(self, rows: ArrayLike) -> dict[str, int]:
        """How many of some rows come from each source.

        Args:
            rows: integers [R], 0 to ``len(self) - 1``.
        """
        ...

    def waiting_on(self) -> list[tuple[str, float]]:
        """What the reads that are under way are at, in words that name the file, and for how many seconds each runs.

        Safe to call from any thread, also while a read does not come back.
        """
        ...


class ReadCounts:
    """Adds up what a reader reads. Safe to use from many threads.

    Attributes:
        bytes_read: bytes of tokens taken from shards, with what was read between them.
        shard_hits: how often a read found a shard open that it needed.
    """

    def __init__(self) -> None:
        self.bytes_read = 0
        self.shard_hits = 0
        self._lock = threading.Lock()

    def add(self, *, bytes_read: int = 0, shard_hits: int = 0) -> None:
        """Adds to the counts."""
        with self._lock:
            self.bytes_read += bytes_read
            self.shard_hits += shard_hits


class BatchMetrics:
    """Adds up the batches that were handed to a training loop. Safe to use from many threads."""

    def __init__(self, stream: Sized, rows: NDArray[np.int64], sequence_length: int) -> None:
        """Starts at zero.

        Args:
            stream: where the rows come from; a `MeasuredStream` where it can say more than that.
            rows: int64 [R], ascending: the rows of a batch that this process reads, counted from the batch's first.
                Those behind the end of the stream, which pad a last batch, are not counted.
            sequence_length: L.
        """
        self._stream = stream
        self._rows = rows
        self._sequence_length = sequence_length
        self._lock = threading.Lock()
        self._batches = self._samples = self._loss_tokens = 0
        self._wait = self._last_wait = self._longest_wait = 0.0
        self._uncounted: list[int] = []  # first rows of batches
        self._sources: Counter[str] = Counter()

    def add(self, first: int, loss_tokens: int, waited_seconds: float) -> None:
        """Adds a batch that was delivered.

        Args:
            first: number of its first row.
            loss_tokens: positions that have a part in the loss, of the rows that this process reads.
            waited_seconds: how long the loop waited for it.
        """
        with self._lock:
            if len(self._uncounted) >= _MOST_UNCOUNTED:
                self._count_rows()  # first, since it reads an index and may fail: then nothing was added
            self._batches += 1
            self._loss_tokens += loss_tokens
            self._wait += waited_seconds
            self._last_wait = waited_seconds
            self._longest_wait = max(self._longest_wait, waited_seconds)
            self._uncounted.append(first)

    def snapshot(self) -> dict[str, int | float]:
        """The numbers so far.

        Returns:
            A flat dict of ints and floats, by name: a pytree of JAX, and what loggers take.
        """
        counts = self._stream.read_counts() if isinstance(self._stream, MeasuredStream) else {}
        with self._lock:
            self._count_rows()
            found: dict[str, int | float] = {
                "batches": self._batches,
                "samples": self._samples,
                "tokens": self._samples * self._sequence_length,
                "loss_tokens": self._loss_tokens,
                "wait_seconds": self._wait,
                "last_wait_seconds": self._last_wait,
                "longest_wait_seconds": self._longest_wait,
            }
            return found | counts | {f"samples/{source}": rows for source, rows in sorted(self._sources.items())}

    def _count_rows(self) -> None:
        """Adds up the rows that this process read and the stream has, and their sources, of the batches since."""
        if self._uncounted:
            rows = (np.array(self._uncounted)[:, None] + self._rows).ravel()
            rows = rows[rows < len(self._stream)]
            found = self._stream.rows_by_source(rows) if isinstance(self._stream, MeasuredStream) else {}
            self._sources.update(found)
            self._samples += len(rows)
            self._uncounted.clear()


def count_loss_tokens(
    inputs: NDArray[np.integer],
    eod_id: int,
    *,
    eod_mask_loss: bool = False,
    valid_length: NDArray[np.integer] | None = None,
) -> int:
    """How many positions of a batch have a part in the loss: those where `targets_segmentation` is not 0.

    Tokens are looked at only where EOD is left out of the loss.

    Args:
        inputs: integer [R, L].
        eod_id: id that closes a document.
        eod_mask_loss: whether positions whose input is EOD are left out.
        valid_length: integer [R], 0 to L: positions of each row that hold an input with its target; None: all L.
    """
    rows, length = inputs.shape
    counted = rows * length if valid_length is None else int(np.sum(valid_length))
    if not eod_mask_loss:
        return counted
    ends = inputs == eod_id
    if valid_length is not None:
        ends &= np.arange(length) < np.asarray(valid_length)[:, None]
    return counted - int(np.count_nonzero(ends))
