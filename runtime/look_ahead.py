"""Brings the files of a stream into the cache before its rows are read, in the order of their first use.

Some threads work through the rows that come next, as far as room allows. What they bring while the cache is smaller
than the data stays there until the rows that need it have been read; so the look-ahead is bounded by bytes, files and
rows. What fails is told in the log and tried again with the next read; the read that needs the file raises the error.
Threads end when there is nothing to do and are begun again by a read.
"""

import atexit
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.runtime.downloads import Downloads
from gristmill.runtime.file_cache import CachedFile, CacheFullError
from gristmill.runtime.row_pattern import RowPattern

__all__ = ["LookAhead", "ShardsOf"]

ShardsOf = Callable[[NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.int64]]]
"""The shards that rows need, in the order of their first use, and the place of the first row that needs each."""

_FIRST_ROWS, _BLOCK_ROWS = 64, 4096  # looked up together: few at first, so that the first shards come at once
_MOST_ROWS = 1 << 18  # ahead
_MOST_HELD = 32  # shards that are held for later rows
_CLOSE_SECONDS = 5.0
_log = logging.getLogger(__name__)
_living: "weakref.WeakSet[LookAhead]" = weakref.WeakSet()
_at_exit = threading.Event()


def _stop_all() -> None:
    living = list(_living)
    for one in living:
        one.stop()
    for one in living:
        one.close()


class LookAhead:
    """Follows the reads of one stream. `seen` comes from the threads that read, `close` from any."""

    def __init__(
        self,
        downloads: Downloads,
        files: Sequence[Sequence[str]],
        shards_of: ShardsOf,
        rows: int,
        *,
        hold_bytes: int | None,
    ) -> None:
        """Starts nothing.

        Args:
            downloads: what brings files.
            files: URLs of the files of each shard.
            shards_of: see `ShardsOf`.
            rows: number of rows of the stream.
            hold_bytes: how much is held for later rows; None where the cache has room for everything, so that nothing
                need be held.
        """
        self._downloads = downloads
        self._files = files
        self._shards_of = shards_of
        self._rows = rows
        self._hold_bytes = hold_bytes
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._planning = threading.Lock()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._forget()
        if not _at_exit.is_set():
            _at_exit.set()
            atexit.register(_stop_all)

    def _forget(self) -> None:
        self._pattern = RowPattern()
        self._reads = 0  # so many reads have been seen
        self._begin_anew()
        self._known: set[int] = set()  # brought, where nothing is held

    def _begin_anew(self) -> None:
        self._planned = self._reads  # reads looked at so far; may be ahead of `_reads`
        self._block_rows = _FIRST_ROWS
        self._queue: list[tuple[int, int]] = []  # shards to bring, with the read that needs them
        self._held: dict[int, tuple[int, list[CachedFile]]] = {}
        self._under_way: set[int] = set()
        self._generation = object()
        self._full = False

    def seen(self, rows: ArrayLike) -> None:
        """Takes note of rows that are read now, and brings what comes after them."""
        if os.getpid() != self._process or self.done:
            return
        with self._changed:
            expected = self._pattern.add(rows)
            known = self._pattern.rows
            if len(known) and not 0 <= int(known.min()) <= int(known.max()) < self._rows:
                self._pattern = RowPattern()  # a read that will fail
            self._reads += 1
            self._full = False
            if not expected:
                self._begin_anew()
                self._planned = self._reads - 1  # these rows are looked at, too
            elif self._planned < self._reads - 1:
                self._planned = self._reads - 1
            for number in [number for number, (read, _) in self._held.items() if read < self._reads - 1]:
                del self._held[number]
            self._changed.notify_all()
            if self._queue or not self._beyond_end():
                self._start()

    @property
    def done(self) -> bool:
        """Whether everything has been brought for good."""
        return self._hold_bytes is None and len(self._known) == len(self._files)

    def give_way(self) -> None:
        """Lets go of what is held for later rows, because rows that are read now need the room."""
        with self._changed:
            self._held.clear()
            self._full = True  # until the next read

    def _start(self) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if self._threads or self._stopped.is_set():
            return
        _living.add(self)
        for number in range(self._downloads.side_by_side):
            thread = threading.Thread(
                target=_work, args=(self, self._stopped), name=f"gristmill look-ahead {number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def next_shard(self, stopped: threading.Event) -> tuple[int, int, object] | None:
        """A shard to bring, with the read that needs it and what it belongs to, waiting for one; None to end."""
        with self._planning:  # one thread plans, the others wait for what it finds
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: stopped.is_set() or self._room())
                    if stopped.is_set() or self.done:
                        return None
                    while self._queue:
                        number, read = self._queue.pop(0)
                        if number not in self._held and number not in self._under_way and number not in self._known:
                            self._under_way.add(number)
                            return number, read, self._generation
                    blocks, generation = self._next_rows(), self._generation
                if blocks is None:
                    return None
                try:
                    numbers, places = self._shards_of(blocks[1])
                    found = list(zip(numbers.tolist(), blocks[0][places].tolist(), strict=True))
                except Exception as error:  # noqa: BLE001 - the read of these rows raises it
                    with self._changed:
                        self._pause(error)
                    continue
                with self._changed:
                    if generation is self._generation:
                        self._queue += found

    def _room(self) -> bool:
        """Whether more may be brought, or looked at, now."""
        if self._full:
            return False
        ahead = (self._planned - self._reads) * max(1, len(self._pattern.rows))
        if not self._queue and (ahead > _MOST_ROWS or self._all_asked()):
            return False
        if self._hold_bytes is None:
            return True
        busy = [*self._held, *self._under_way]
        held = sum(self._downloads.size(url) for number in busy for url in self._files[number])
        return len(busy) < _MOST_HELD and (held < self._hold_bytes or not busy)

    def _all_asked(self) -> bool:
        """Whether every file is here for good or on its way, so that there is nothing to look for."""
        return self._hold_bytes is None and len(self._known) + len(self._under_way) == len(self._files)

    def _next_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """For each row of the next reads the number of the read, and the row; None where the stream ends before."""
        found: list[NDArray[np.int64]] = []
        first, count = self._planned, 0
        while count < self._block_rows:
            rows = self._rows_of(self._planned)
            if not len(rows):
                break
            found.append(rows)
            count += len(rows)
            self._planned += 1
        self._block_rows = min(_BLOCK_ROWS, 4 * self._block_rows)
        if not found:
            return None
        return np.repeat(np.arange(first, first + len(found)), [len(rows) for rows in found]), np.concatenate(found)

    def _rows_of(self, read: int) -> NDArray[np.int64]:
        """The rows of a read, the last one or later; of no rows where nothing is to be looked at."""
        number = read - (self._reads - 1)
        if number == 0:
            return self._pattern.rows
        if self._pattern.step is None and self._reads > 1 and self._hold_bytes is not None:
            return self._pattern.rows[:0]  # rows at random: what is brought for the next ones would be guessed
        return self._pattern.batch(number, self._rows)

    def _beyond_end(self) -> bool:
        return not len(self._rows_of(self._planned))

    def bring(self, number: int, stopped: threading.Event) -> list[CachedFile]:
        """The files of a shard."""
        return [self._downloads.take(url, stopped, ahead=True) for url in self._files[number]]

    def settle(
        self,
        number: int,
        read: int,
        generation: object,
        outcome: list[CachedFile] | Exception,
        stopped: threading.Event,
    ) -> None:
        """Takes note of what became of a shard."""
        with self._changed:
            self._under_way.discard(number)
            if isinstance(outcome, CacheFullError):
                self._full = True  # until the next read; a read that needs the shard makes room
            elif isinstance(outcome, Exception):
                if not stopped.is_set():
                    self._pause(outcome)
            elif self._hold_bytes is None:
                self._known.add(number)
            elif generation is self._generation and read >= self._reads - 1:
                self._held[number] = (read, outcome)
            self._changed.notify_all()

    def _pause(self, error: Exception) -> None:
        """Tells an error, the first since the last read, and waits for the next."""
        if not self._full:
            _log.warning("bringing files ahead failed and is tried again with the next read: %s", error)
        self._full = True

    def stop(self) -> None:
        """Tells the threads to end, without waiting for them."""
        self._stopped.set()
        if os.getpid() == self._process:
            with self._changed:
                self._changed.notify_all()
        _living.discard(self)

    def close(self) -> None:
        """Ends the threads and lets go of what is held; may be called twice. A later read begins anew.

        Warns:
            RuntimeWarning: a request did not come back in time. Its thread ends when it does.
        """
        if os.getpid() != self._process:
            return
        self.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_CLOSE_SECONDS)
        if any(thread.is_alive() for thread in self._threads):
            warnings.warn(
                f"a request to the store has not come back after {_CLOSE_SECONDS:g} s, so the thread that waits for it "
                "is left to end by itself; is the store still answering?",
                RuntimeWarning,
                stacklevel=2,
            )
        with self._changed:
            self._threads = []
            self._stopped = threading.Event()
            self._forget()


def _work(ahead: LookAhead, stopped: threading.Event) -> None:
    while (task := ahead.next_shard(stopped)) is not None:
        number, read, generation = task
        outcome: list[CachedFile] | Exception
        try:
            outcome = ahead.bring(number, stopped)
        except Exception as error:  # noqa: BLE001 - told in the log; the read that needs the file raises it
            outcome = error
        ahead.settle(number, read, generation, outcome, stopped)
        del outcome, task
