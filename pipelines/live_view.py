"""Some lines at the bottom of a terminal, drawn again in place; what else is printed goes above them.

Plain ANSI: up, and clear to the end. The cursor is neither hidden nor moved elsewhere, so a process that is killed
leaves a whole terminal behind. Lines are cut to the width that the terminal has at the time, so that none wraps.
"""

import contextlib
import io
import os
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TextIO

__all__ = ["is_terminal", "LiveView"]

_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can draw in place."""
    try:
        return stream.isatty() and os.environ.get("TERM") not in {"dumb", ""} and stream.fileno() >= 0
    except (OSError, ValueError, AttributeError):
        return False


class LiveView:
    """Draws lines; a context manager that stands for standard error meanwhile, and clears what it drew at its end.

    Args:
        stream: a terminal.

    Attributes:
        lock: held while something is printed.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lock = threading.RLock()
        self._drawn: list[str] = []
        self._shown: list[str] = []
        self._above = _Above(self)
        self._replaced: contextlib.AbstractContextManager[object] = contextlib.nullcontext()

    def __enter__(self) -> Self:
        if self._stream is sys.stderr:
            self._replaced = contextlib.redirect_stderr(self._above)
        self._replaced.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._replaced.__exit__(kind, error, trace)
        with self.lock:
            self.draw([])
            self._above.finish()

    def draw(self, lines: Sequence[str]) -> None:
        """Replaces what is drawn; the first line is bold unless NO_COLOR is set."""
        with self.lock:
            columns, rows = self._size()
            shown = [line[: max(1, columns - 1)] for line in lines[: max(1, rows - 1)]]
            text = self._cleared(columns) + "".join(
                f"{_BOLD}{line}{_PLAIN}\n" if number == 0 and not os.environ.get("NO_COLOR") else f"{line}\n"
                for number, line in enumerate(shown)
            )
            self._shown, self._drawn = list(lines), shown
            if text:
                self._write(text)

    def print(self, text: str) -> None:
        """Prints whole lines above what is drawn."""
        with self.lock:
            self._write(self._cleared(self._size()[0]) + text)
            self._drawn = []
            self.draw(self._shown)

    def fileno(self) -> int:
        """Descriptor of the terminal."""
        return self._stream.fileno()

    def _cleared(self, columns: int) -> str:
        """What clears the lines that are drawn: where the terminal became narrower, they take more rows by now."""
        rows = sum(max(1, -(-len(line) // max(1, columns))) for line in self._drawn)
        return f"\x1b[{rows}A\r\x1b[J" if rows else ""

    def _size(self) -> tuple[int, int]:
        try:
            columns, rows = os.get_terminal_size(self._stream.fileno())
        except OSError:
            return 80, 24
        return columns or 80, rows or 24

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
            self._stream.write(text)
            self._stream.flush()


class _Above(io.TextIOBase):
    """What is written here is printed above a view, line by line."""

    def __init__(self, view: LiveView) -> None:
        self._view = view
        self._rest = ""

    def write(self, text: str) -> int:
        with self._view.lock:
            whole, newline, self._rest = (self._rest + text).rpartition("\n")
            if newline:
                self._view.print(whole + newline)
        return len(text)

    def finish(self) -> None:
        """Prints a line that was begun."""
        if self._rest:
            self._view.print(self._rest + "\n")
            self._rest = ""

    def fileno(self) -> int:
        return self._view.fileno()

    def isatty(self) -> bool:
        return True
