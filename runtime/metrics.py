"""What reading and waiting have cost so far, as plain numbers: always on, a few microseconds for each batch.

Everything is counted where it happens anyway, for whole batches; nothing is sampled, and no token is looked at for it.
The price is that counts are those of this process: of the rows that it reads, not of all rows of the job.
"""

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BatchCounts", "BatchMetrics", "ReadCounts", "rows_by_source"]


class ReadCounts:
    """Adds up what a reader reads. Safe to use from many threads.

    Attributes:
        bytes_read: bytes of tokens taken from shards.
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


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What one batch holds, of the rows that this process reads.

    Attributes:
        rows: number of rows.
        tokens: inputs that are no padding.
        loss_tokens: positions that have a part in the loss.
        sources: rows of each source by its name, or None where the stream does not tell.
    """

    rows: int
    tokens: int
    loss_tokens: int
    sources: dict[str, int] | None = None


class BatchMetrics:
    """Adds up the batches that were handed to a training loop. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches = self._rows = self._tokens = self._loss_tokens = 0
        self._wait = self._last_wait = self._longest_wait = 0.0
        self._sources: dict[str, int] = {}

    def add(self, counts: BatchCounts, waited_seconds: float) -> None:
        """Adds a batch that was delivered, and how long the loop waited for it."""
        with self._lock:
            self._batches += 1
            self._rows += counts.rows
            self._tokens += counts.tokens
            self._loss_tokens += counts.loss_tokens
            self._wait += waited_seconds
            self._last_wait = waited_seconds
            self._longest_wait = max(self._longest_wait, waited_seconds)
            for source, rows in (counts.sources or {}).items():
                self._sources[source] = self._sources.get(source, 0) + rows

    def snapshot(self) -> dict[str, int | float]:
        """The numbers so far, by name; a flat dict of plain numbers, which is a pytree of JAX and fits any logger."""
        with self._lock:
            found: dict[str, int | float] = {
                "batches": self._batches,
                "rows": self._rows,
                "tokens": self._tokens,
                "loss_tokens": self._loss_tokens,
                "wait_seconds": self._wait,
                "last_wait_seconds": self._last_wait,
                "longest_wait_seconds": self._longest_wait,
            }
            return found | {f"rows/{source}": rows for source, rows in self._sources.items()}


def rows_by_source(names: tuple[str, ...], members: NDArray[np.integer] | None, rows: int) -> dict[str, int]:
    """How many rows come from each source.

    Args:
        names: of the sources, by their numbers.
        members: [rows], the source of each row; None where there is one source.
        rows: number of rows.
    """
    if members is None:
        return {names[0]: rows}
    counts = np.bincount(members, minlength=len(names))
    return {name: int(count) for name, count in zip(names, counts, strict=True) if count}
