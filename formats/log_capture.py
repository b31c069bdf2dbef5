"""Takes over the descriptor of standard error, so that what any library writes there passes through one function.

Libraries in C and Rust, and worker processes, write to the descriptor and know nothing of Python's streams. A pipe and
a thread in between cost next to nothing; in return, words of a process that dies inside a library can be lost.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

__all__ = ["captured_lines", "write_whole"]

_STANDARD_ERROR = 2
_END = b"\0end\0"
_BLOCK_BYTES = 1 << 16
_PATIENCE_SECONDS = 2.0


@contextlib.contextmanager
def captured_lines(take: Callable[[bytes, int], None]) -> Iterator[int]:
    """Hands over each line that this process or one that it starts writes to standard error inside the block.

    Args:
        take: gets a line without its end, and the descriptor that standard error was; called in a thread.

    Yields:
        The descriptor that standard error was, for what is to be written there as it is.
    """
    saved = os.dup(_STANDARD_ERROR)
    reading, writing = os.pipe()
    os.dup2(writing, _STANDARD_ERROR)
    thread = threading.Thread(target=_read, args=(reading, saved, take), name="gristmill-log", daemon=True)
    thread.start()
    try:
        yield saved
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


def _read(reading: int, saved: int, take: Callable[[bytes, int], None]) -> None:
    rest = b""
    while True:
        block = os.read(reading, _BLOCK_BYTES)
        *lines, rest = (rest + block.replace(b"\r", b"\n")).split(b"\n")
        for line in lines:
            if line == _END:
                return
            if line.strip():
                with contextlib.suppress(Exception):  # a line that cannot be logged must not stop the others
                    take(line, saved)
        if not block:
            return
