"""Keeps Beam's log, and the tracebacks its workers print, away from people who asked for neither.

What went wrong comes back as an exception and is reported once, in one sentence; `--verbose` shows the rest.
"""

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

__all__ = ["quiet"]

_TRACEBACK = "Traceback (most recent call last)"


class _WithoutTracebacks(io.TextIOBase):
    """Passes on what is written, except whole tracebacks (a worker prints each in one call)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if _TRACEBACK not in text and text.strip():
            self._stream.write(text.rstrip("\n") + "\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()


def _say_nothing(_: threading.ExceptHookArgs) -> None:
    """Takes the place of what prints the error that ended a thread."""


@contextlib.contextmanager
def quiet(*, verbose: bool = False) -> Iterator[None]:
    """Silences logging and tracebacks on standard error, those of threads too, inside the block, unless `verbose`."""
    if verbose:
        yield
        return
    before, of_threads = logging.root.manager.disable, threading.excepthook
    logging.disable(logging.CRITICAL)
    threading.excepthook = _say_nothing
    try:
        with contextlib.redirect_stderr(_WithoutTracebacks(sys.stderr)):
            yield
    finally:
        logging.disable(before)
        threading.excepthook = of_threads
