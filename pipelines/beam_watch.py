"""Ends a run whose worker process died, which Beam at times would wait for without end.

Beam notices the death in a thread of its own, whose error nobody reads. It is taken from there, and when the run has
not ended by itself a few seconds later, the main thread is woken by a signal; nothing less gets it out of a lock. Beam
then waits for its other processes, and for one that was still starting it would wait without end, so after a few more
seconds they are killed. A run in another thread than the main one is not watched.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gristmill.formats.errors import DataError

__all__ = ["watched_workers", "WorkerGoneError"]

_EXITED = "Worker subprocess exited"  # what Beam's thread says
_WORKER = b"gristmill.pipelines.beam_worker"  # a word of their command lines
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


def _kill_workers() -> None:
    """Kills the worker processes that this process started and that are left."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it may end meanwhile
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and _WORKER in (folder / "cmdline").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)


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
    awake, noticing, ended = main.ident, threading.Lock(), threading.Event()
    watching: list[threading.Thread] = []
    before = threading.excepthook

    def end() -> None:
        if ended.wait(_PATIENCE_SECONDS):
            return
        with noticing:
            if ended.is_set():
                return
            signal.pthread_kill(awake, signal.SIGUSR1)
        if not ended.wait(_PATIENCE_SECONDS):
            _kill_workers()

    def noticed(found: threading.ExceptHookArgs) -> None:
        if _EXITED in str(found.exc_value):
            with noticing:
                if not watching:
                    watching.append(threading.Thread(target=end, name="gristmill-worker-watch", daemon=True))
                    watching[0].start()
        before(found)

    handler = signal.signal(signal.SIGUSR1, _raise_gone)
    threading.excepthook = noticed
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        threading.excepthook = before
        with noticing:
            ended.set()
        signal.signal(signal.SIGUSR1, handler)
