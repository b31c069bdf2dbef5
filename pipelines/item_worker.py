"""The process behind `ItemPool`: does one item after the other until its launcher closes the connection or is gone.

What an item raises goes back as it is where it can be pickled, with its traceback as a note; the launcher decides what
a user sees of it.
"""

import importlib
import pickle
import signal
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

from gristmill.formats.log import inherit_log
from gristmill.pipelines.launcher_watch import end_with

__all__ = ["main"]


def main(descriptor: int, launcher: int, preload: Sequence[str]) -> None:
    """Serves a connection.

    Args:
        descriptor: file descriptor of the connection.
        launcher: process id of the launcher.
        preload: modules to import at once.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the launcher ends this process
    end_with(launcher)
    inherit_log()
    for name in preload:
        importlib.import_module(name)
    with Connection(descriptor) as connection:
        while True:
            try:
                work, item = connection.recv()
            except (EOFError, OSError):
                return
            try:
                answer = (True, work(item))
            except Exception as error:  # noqa: BLE001 - whatever it is, the launcher is to know
                answer = (False, _sendable(error))
            connection.send(answer)


def _sendable(error: Exception) -> Exception:
    """The error with its traceback as a note; one that cannot be pickled gives way to its text."""
    trace = "".join(traceback.format_exception(error))
    error.add_note(f"in a worker process:\n{trace}")
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - an error of this process, not data
    except Exception:  # noqa: BLE001 - whatever its class does
        return RuntimeError(f"a worker process raised what cannot be sent:\n{trace}")
    return error
