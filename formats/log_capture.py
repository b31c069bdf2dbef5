"""Takes over the descriptor of standard error, so that what any library writes there passes through one function.

Libraries in C and Rust, and worker processes, write to the descriptor and know nothing of Python's streams. A pipe and
a thread in between cost next to nothing; in return, words of a process that dies inside a library can be lost.
"""

import contextlib
import dataclasses
import os
import queue
import threading
from collections.abc import Callable, Iterator

__all__ = ["captured_lines", "CapturedOutput", "write_whole"]

_STANDARD_ERROR = 2
_END = b"\0end\0"
_HERE = b"\0here\0"
_BLOCK_BYTES = 1 << 16
_PATIENCE_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class CapturedOutput:
    """Standard error while it is taken over."""

    saved: int
    """The descriptor that standard error was, for what is to be written there as it is."""

    _writing: int
    _passed: "queue.SimpleQueue[None]"

    def settle(self) -> None:
        """Waits until all that was written to standard error before this call was handed over.

        Not for the function that takes the lines, nor for who holds a lock that it needs.
        """
        write_whole(self._writing, b"\n" + _HERE + b"\n")
        with contextlib.suppress(queue.Empty):
            self._passed.get(timeout=_PATIENCE_SECONDS)


@contextlib.contextmanager
def captured_lines(take: Callable[[bytes, int], None]) -> Iterator[CapturedOutput]:
    """Hands over each line that this process or one that it starts writes to standard error inside the block.

    Args:
        take: gets a line without its end, and the descriptor that standard error was; called in a thread.

    Yields:
        What was taken over.
    """
    saved = os.dup(_STANDARD_ERROR)
    reading, writing = os.pipe()
    os.dup2(writing, _STANDARD_ERROR)
    passed: queue.SimpleQueue[None] = queue.SimpleQueue()
    thread = threading.Thread(target=_read, args=(reading, saved, take, passed), name="gristmill-log", daemon=True)
    thread.start()
    try:
        yield CapturedOutput(saved, writing, passed)
    finally:
        os.dup2(saved, _STANDARD_ERROR)
        write_whole(writing, b"\n" + _END + b"\n")  # behind all that was written before; others may hold the pipe too
        os.close(writing)
        thread.join(_PATIENCE_SECONDS)
        if not thread.is_alive():
            os.close(reading)
            os.close(saved)


def write_whole(descriptor: int, data: bytes) -> None:
    """Writes all bytes; what reads the other end may be gone, which is no error here."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


def _read(reading: int, saved: int, take: Callable[[bytes, int], None], passed: "queue.SimpleQueue[None]") -> None:
    rest = b""
    while True:
        block = os.read(reading, _BLOCK_BYTES)
        *lines, rest = (rest + block.replace(b"\r", b"\n")).split(b"\n")
        for line in lines:
            if line == _END:
                return
            if line == _HERE:
                passed.put(None)
            elif line.strip():
                with contextlib.suppress(Exception):  # a line that cannot be logged must not stop the others
                    take(line, saved)
        if not block:
            return
