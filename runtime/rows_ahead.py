"""Reads rows from a store before they are asked for, where a training loop's reads show which come next.

Some batches at a time become one read, so that the rounds of requests that a read takes are shared by all of them, and
two such reads run side by side. What is kept is bounded by bytes. Where reads follow no pattern, each is made as it
comes.
"""

import threading
from collections.abc import Callable, Generator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.runtime.prefetch import Prefetcher
from gristmill.runtime.row_pattern import RowPattern

__all__ = ["ReadRows", "RowsAhead", "TokensAndStarts"]

TokensAndStarts = tuple[NDArray[np.uint16 | np.int32], NDArray[np.bool_]]
"""Tokens [R, width] of rows, and where each goes on with another entry, bool [R, width]."""

ReadRows = Callable[[ArrayLike], TokensAndStarts]
"""Reads rows at once."""

_LANES = 2
_KEPT = 2  # reads of a lane: one ready, one under way
_MOST_BATCHES = 16  # of one read


class RowsAhead:
    """Follows the reads of one stream. Safe to use from many threads, of use to one."""

    def __init__(self, read: ReadRows, rows: int, row_bytes: int, most_bytes: int) -> None:
        """Reads nothing.

        Args:
            read: reads rows; must not refer to the object that owns this one.
            rows: number of rows of the stream.
            row_bytes: bytes of what is kept of a row.
            most_bytes: most bytes to keep; one batch for each of four reads is kept at least.
        """
        self._read = read
        self._rows = rows
        self._most_rows = max(1, most_bytes // (_LANES * _KEPT * row_bytes))
        self._lock = threading.Lock()
        self._pattern = RowPattern()
        self._lanes: list[Prefetcher[list[TokensAndStarts]]] = []
        self._ready: list[TokensAndStarts] = []
        self._turn = 0

    def read(self, rows: ArrayLike) -> TokensAndStarts:
        """Rows, from what was read ahead where they are there; raises what reading them raised."""
        with self._lock:
            if self._pattern.add(rows) and self._lanes:
                try:
                    if not self._ready:
                        lane = self._lanes[self._turn]
                        self._turn = (self._turn + 1) % _LANES
                        self._ready = list(lane.get())
                    return self._ready.pop(0)
                except StopIteration:  # closed by another thread, or the end of the stream
                    self._drop()
                except BaseException:
                    self._drop()
                    self._pattern = RowPattern()
                    raise
            self._drop()
            if self._pattern.step is not None:
                self._begin()
        return self._read(rows)

    def _begin(self) -> None:
        batch = max(1, len(self._pattern.rows))
        batches = max(1, min(_MOST_BATCHES, self._most_rows // batch))
        pattern = RowPattern()
        pattern.rows, pattern.step = self._pattern.rows, self._pattern.step
        self._turn = 0
        for lane in range(_LANES):
            groups = _groups(self._read, pattern, self._rows, 1 + lane * batches, batches)
            self._lanes.append(Prefetcher(groups, _KEPT - 1, name=f"gristmill reading ahead {lane}"))

    def _drop(self) -> None:
        lanes, self._lanes, self._ready = self._lanes, [], []
        for lane in lanes:
            lane.stop()

    def stop(self) -> None:
        """Tells the threads to end, without waiting for them."""
        for lane in self._lanes:
            lane.stop()

    def close(self) -> None:
        """Ends the threads and drops what was read ahead; may be called twice. A later read begins anew."""
        lanes = list(self._lanes)
        for lane in lanes:
            lane.stop()
        for lane in lanes:
            lane.close()
        with self._lock:
            self._drop()
            self._pattern = RowPattern()


def _groups(
    read: ReadRows, pattern: RowPattern, end: int, first: int, batches: int
) -> Generator[list[TokensAndStarts], None, None]:
    """What a lane reads: some batches, then as many batches later, until the stream ends."""
    while True:
        some = [pattern.batch(first + number, end) for number in range(batches)]
        some = [rows for rows in some if len(rows) == len(pattern.rows)]
        if not some:
            return
        tokens, starts = read(np.concatenate(some))
        parts = zip(np.split(tokens, len(some)), np.split(starts, len(some)), strict=True)
        yield [(some_tokens.copy(), some_starts.copy()) for some_tokens, some_starts in parts]
        del tokens, starts
        first += _LANES * batches
