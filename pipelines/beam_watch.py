"""Ends a run whose worker process died, which Beam at times would wait for without end.

Beam notices the death in a thread of its own, whose error nobody reads. It is taken from there, and when the run has
not ended by itself a few seconds later, the main thread is woken by a signal; nothing less gets it out of a lock. A run
in another thread than the main one is not watched.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from gristmill.formats.errors import DataError

__all__ = ["watched_workers", "WorkerGoneError"]

_EXITED = "Worker subprocess exited"  # what Beam's thread says
_PATIENCE_SECONDS = 5.0


class WorkerGoneError(DataError):
    """A worker process ended before its work did."""

    def __init__(self) -> None:
        super().__init__(
            "a worker process of Beam ended without a word; if the system killed it for lack of memory, run again with "
            "fewer (--direct_num_workers=1). What is finished stays"
        )


def _raise_gone(_: int, __: FrameType | None) -> NoReturn:
    raise WorkerGoneError


@contextlib.contextmanager
def watched_workers() -> Iterator[None]:
    """Raises inside the block, within seconds, when a worker process of Beam has died.

    Raises:
        WorkerGoneError: it has.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main or main.ident is None:
        yield
        return
    timers: list[threading.Timer] = []
    before = threading.excepthook

    def noticed(found: threading.ExceptHookArgs) -> None:
        if _EXITED in str(found.exc_value):
            timer = threading.Timer(_PATIENCE_SECONDS, signal.pthread_kill, (main.ident, signal.SIGUSR1))
            timer.daemon = True
            timer.start()
            timers.append(timer)
        before(found)

    handler = signal.signal(signal.SIGUSR1, _raise_gone)
    threading.excepthook = noticed
    try:
        yield
    finally:
        threading.excepthook = before
        for timer in timers:
            timer.cancel()
        signal.signal(signal.SIGUSR1, handler)
