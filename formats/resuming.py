"""Files of the web, read by byte ranges, and asked for again from the byte that was reached when a connection breaks.

fsspec's own files give up at the first fault and trust what comes. Here every answer is checked for the range that was
asked for, waits double up to a limit, and a server's ``Retry-After`` is heeded.
"""

import http.client
import io
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from gristmill.formats.errors import StorageError
from gristmill.formats.retries import Retries, ShortReadError, is_passing, status_of

__all__ = ["is_web", "open_ranges", "open_web", "web_length"]

_WEB = re.compile(r"https?://", re.IGNORECASE)
_RETRIES = Retries(attempts=7, first_seconds=0.5, most_seconds=60.0)
_MOST_WAIT_SECONDS = 600.0
_TIMEOUT_SECONDS = 60.0
_PIECE_BYTES = 1 << 20
_LEAST_BYTES = 128 << 10
_MOST_BYTES = 8 << 20


def is_web(url: str) -> bool:
    """Whether a URL is an address of the web."""
    return _WEB.match(url) is not None


def web_length(url: str) -> tuple[int, Mapping[str, str]]:
    """Bytes of a file, and the headers of the answer by lower-case name.

    Raises:
        StorageError: the server does not answer, or serves no byte ranges.
    """
    answer = _Transfer(url, 0, 1)
    answer.run()
    return answer.total, answer.headers


def open_web(url: str) -> io.BufferedReader:
    """Opens a file of the web for reading from its start.

    Raises:
        StorageError: as of `web_length`; from a read, also that the file is another one by now.
    """
    size, headers = web_length(url)
    etag = headers.get("etag")

    def fetch(start: int, length: int) -> bytes:
        transfer = _Transfer(url, start, length)
        transfer.run()
        if (transfer.total, transfer.headers.get("etag")) != (size, etag):
            raise StorageError(f"{url}: changed while it was read; start again")
        return bytes(transfer.data)

    return open_ranges(fetch, size)


def open_ranges(fetch: Callable[[int, int], bytes], size: int) -> io.BufferedReader:
    """Opens a file that is fetched by ranges.

    What is read one after the other is fetched in blocks that double up to 8 MiB; a read elsewhere begins with small
    ones again, so that of the columns of a table little more is fetched than is read.

    Args:
        fetch: gives the bytes of a range by its start and length.
        size: bytes of the file.
    """
    return io.BufferedReader(_RangeFile(fetch, size), _LEAST_BYTES)


class _RangeFile(io.RawIOBase):
    """The file behind `open_ranges`."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._position = 0
        self._ahead = _LEAST_BYTES
        self._block = b""
        self._start = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes to a byte."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Reads some bytes; raises what `fetch` raises."""
        view = memoryview(buffer).cast("B")
        if self._position >= self._size or not len(view):
            return 0
        inside = self._position - self._start
        if not 0 <= inside < len(self._block):
            goes_on = inside == len(self._block)
            self._ahead = min(_MOST_BYTES, 2 * self._ahead) if goes_on else _LEAST_BYTES
            self._start, inside = self._position, 0
            self._block = self._fetch(self._start, min(max(len(view), self._ahead), self._size - self._start))
        count = min(len(view), len(self._block) - inside)
        view[:count] = self._block[inside : inside + count]
        self._position += count
        return count


class _Transfer:
    """One range on its way.

    Attributes:
        data: what came of it so far.
        total: bytes of the whole file.
        headers: of the last answer, by lower-case name.
    """

    def __init__(self, url: str, start: int, length: int) -> None:
        self.data = bytearray()
        self.total = 0
        self.headers: dict[str, str] = {}
        self._url, self._start, self._length = url, start, length

    def run(self) -> None:
        """Fetches the range."""
        waits, reached = _RETRIES.waits(), 0
        while True:
            try:
                self._attempt()
                return
            except Exception as error:
                if isinstance(error, StorageError):
                    raise
                if status_of(error) == 416 and self._empty(error):
                    return
                cause = getattr(error, "reason", None)  # of a connection that did not come about
                if not is_passing(cause if isinstance(cause, Exception) else error):
                    raise StorageError(f"{self._url}: cannot be read: {_says(error)}") from error
                if len(self.data) > reached:
                    waits, reached = _RETRIES.waits(), len(self.data)
                wait = next(waits, None)
                if wait is None:
                    raise StorageError(
                        f"{self._url}: cannot be read: {_says(error)}, {_RETRIES.attempts} times in a row; run again "
                        "later, what is finished stays"
                    ) from error
                asked = getattr(error, "headers", None) or {}
                after = str(asked.get("Retry-After", ""))
                time.sleep(min(float(after), _MOST_WAIT_SECONDS) if after.isdecimal() else wait)

    def _empty(self, error: BaseException) -> bool:
        """Whether the server refused the first byte of a file because it has none."""
        headers: Any = getattr(error, "headers", None) or {}
        self.headers = {str(name).lower(): str(value) for name, value in headers.items()}
        return self.headers.get("content-range", "").replace(" ", "") == "bytes*/0"

    def _attempt(self) -> None:
        first, last = self._start + len(self.data), self._start + self._length - 1
        headers = {"Range": f"bytes={first}-{last}", "Accept-Encoding": "identity", "User-Agent": "gristmill"}
        request = urllib.request.Request(self._url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                self.headers = {name.lower(): value for name, value in answer.headers.items()}
                found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", self.headers.get("content-range", ""))
                if answer.status != 206 or found is None or int(found[1]) != first:
                    raise StorageError(
                        f"{self._url}: the server serves no byte ranges (status {answer.status}); fetch the file and "
                        "name the local copy"
                    )
                self.total = int(found[2])
                wanted = min(self._length, self.total - self._start)
                while len(self.data) < wanted:
                    piece = answer.read(min(_PIECE_BYTES, wanted - len(self.data)))
                    if not piece:
                        raise ShortReadError(f"{len(self.data)} of {wanted} bytes came")
                    self.data += piece
        except http.client.IncompleteRead as error:
            self.data += error.partial
            raise ShortReadError(f"{len(self.data)} of {self._length} bytes came") from error


def _says(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    reason = getattr(error, "reason", error)
    return f"{type(error).__name__}: {reason}"
