"""Keeps Beam's log, and the tracebacks its workers print, away from people who asked for neither.

What went wrong comes back as an exception and is reported once, in one sentence; `--verbose` shows the rest. Our own
log has a level of its own and is not touched.
"""

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import TextIO

__all__ = ["quiet"]

_TRACEBACK = "Traceback (most recent call last)"
_LOGGERS = ("", "apache_beam", "distributed")
_NOTHING = logging.CRITICAL + 1


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
    """Silences Beam's log and tracebacks on standard error, those of threads too, inside the block.

    Args:
        verbose: whether to let them through, and what Beam logs for information too.
    """
    if verbose:
        with _levels([""], logging.INFO):
            yield
        return
    of_threads = threading.excepthook
    threading.excepthook = _say_nothing
    try:
        with _levels(_LOGGERS, _NOTHING), contextlib.redirect_stderr(_WithoutTracebacks(sys.stderr)):
            yield
    finally:
        threading.excepthook = of_threads


@contextlib.contextmanager
def _levels(names: Iterable[str], level: int) -> Iterator[None]:
    """Gives loggers another level inside the block."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, own in zip(loggers, before, strict=True):
            logger.setLevel(own)
