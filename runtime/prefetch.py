"""A background thread that works ahead by a fixed number of items and can always be stopped.

Unlike an executor it holds no reference to who consumes it, hands an error on in its place in the order, and gives up
waiting for a call that does not return: such a thread is left to end with the process, and a warning says so. Threads
that are still running when the interpreter ends are stopped before the libraries they use are taken down. A process
that was forked has no such thread and is told so, instead of waiting for it. Items are handed over through queues
written in C, since a condition in Python costs as much as a small batch.
"""

import atexit
import os
import threading
import time
import warnings
import weakref
from collections.abc import Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from gristmill.runtime.stall import StallReports

__all__ = ["Prefetcher"]

_Item = TypeVar("_Item")
_living: "weakref.WeakSet[Prefetcher[Any]]" = weakref.WeakSet()
_at_exit = threading.Event()


def _stop_all() -> None:
    living = list(_living)
    for prefetcher in living:  # all of them first, so that those which are stuck are waited for side by side
        prefetcher.stop()
    for prefetcher in living:
        prefetcher.close()


class Prefetcher(Generic[_Item]):
    """Runs a generator ahead of its consumer. One consumer at a time; `close` may come from any thread."""

    def __init__(
        self, items: Generator[_Item, None, None], depth: int, *, name: str, close_seconds: float = 5.0
    ) -> None:
        """Starts the thread.

        Args:
            items: what to produce; run and closed by the thread alone. It must not refer to the consumer.
            depth: most items that wait to be taken, at least 1.
            name: of the thread, shown in warnings and debuggers.
            close_seconds: how long `close` waits for an item that is being made.
        """
        self._items = items
        self._close_seconds = close_seconds
        self._process = os.getpid()
        self._room: SimpleQueue[None] = SimpleQueue()  # an entry for each item that may be made
        self._ready: SimpleQueue[tuple[_Item] | None] = SimpleQueue()  # None: no more, which stays there
        for _ in range(depth):
            self._room.put(None)
        self._end: BaseException | None = None  # StopIteration or the error; set before None is in `_ready`
        self._stopped = False
        if not _at_exit.is_set():  # after the imports of whoever is here: exit functions run last come, first served
            _at_exit.set()
            atexit.register(_stop_all)
        _living.add(self)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        end: BaseException = StopIteration()
        try:
            while self._wait_for_room():
                self._ready.put((next(self._items),))
        except BaseException as error:  # noqa: BLE001 - handed on to the consumer, whatever it is
            end = error
        finally:
            self._items.close()
            self._end = end
            if self._stopped:  # nobody will take it any more
                self._drop()
            self._ready.put(None)

    def _wait_for_room(self) -> bool:
        self._room.get()
        return not self._stopped

    def _drop(self) -> None:
        """Lets go of what waits."""
        with suppress(Empty):
            while True:
                self._ready.get_nowait()

    def get(self, reports: StallReports | None = None) -> _Item:
        """The next item, waiting for it.

        Args:
            reports: told while the wait goes on; None tells nobody.

        Raises:
            StopIteration: there are no more, or `close` was called.
            RuntimeError: this process was forked from the one that has the thread.
            BaseException: whatever making the item raised.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self._thread.name}: started before this process was forked, which does not take threads along; open "
                "the data anew in each process"
            )
        began = time.monotonic()
        patience = None if reports is None or reports.seconds > threading.TIMEOUT_MAX else reports.seconds
        while True:
            try:
                found = self._ready.get(timeout=patience)
            except Empty:
                if reports is not None:
                    patience = reports.report(time.monotonic() - began)
                continue
            if found is None:
                self._ready.put(None)
                raise StopIteration if self._stopped or self._end is None else self._end
            if self._stopped:
                raise StopIteration
            self._room.put(None)
            return found[0]

    def stop(self) -> None:
        """Tells the thread to stop and drops what waits, without waiting for it."""
        if os.getpid() != self._process:
            return  # no thread here, and what it holds is the other process's
        self._stopped = True
        self._room.put(None)  # wakes the thread
        self._drop()
        self._ready.put(None)  # wakes the consumer
        _living.discard(self)

    def close(self) -> None:
        """Stops the thread and drops what waits; may be called twice.

        Warns:
            RuntimeWarning: an item in the making did not come back in time. The thread ends when it does.
        """
        self.stop()
        if self._thread is threading.current_thread() or os.getpid() != self._process:
            return
        self._thread.join(self._close_seconds)
        if self._thread.is_alive():
            warnings.warn(
                f"{self._thread.name}: a read has not come back after {self._close_seconds:g} s, so its thread is left "
                "to end by itself; is the storage still answering?",
                RuntimeWarning,
                stacklevel=2,
            )
