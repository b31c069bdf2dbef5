"""When a failed request to a store is made again, and after how long: doubling waits with jitter, up to a limit.

Stores raise errors of their own libraries, which have no common root and are not imported here; so an error is judged
by what it carries, a status or an error number, and by the library that it comes from.
"""

import errno
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["is_passing", "Retries", "ShortReadError", "status_of"]

_STATUSES = frozenset({408, 425, 429, *range(500, 600)} - {501, 505})
_NUMBERS = frozenset(
    getattr(errno, name)
    for name in (
        "EAGAIN",
        "ECONNABORTED",
        "ECONNREFUSED",
        "ECONNRESET",
        "EHOSTUNREACH",
        "EIO",
        "ENETDOWN",
        "ENETRESET",
        "ENETUNREACH",
        "EPIPE",
        "ETIMEDOUT",
    )
)
_LASTING = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
_NETWORK_LIBRARIES = frozenset(
    {"aiohttp", "azure", "botocore", "http", "httpcore", "httpx", "httpx2", "requests", "ssl", "urllib3"}
)


class ShortReadError(Exception):
    """A store answered without an error and with another number of bytes than were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often and how patiently a request is made.

    Attributes:
        attempts: how often in all, at least 1.
        first_seconds: the longest wait after the first failure; it doubles with each.
        most_seconds: the longest wait of all.
    """

    attempts: int = 6
    first_seconds: float = 0.5
    most_seconds: float = 30.0

    def waits(self) -> Iterator[float]:
        """Seconds to wait after each failure but the last: a random part, at least half, of a doubling time.

        Many hosts that failed at the same moment so come back at different ones.
        """
        for attempt in range(self.attempts - 1):
            longest = min(self.most_seconds, self.first_seconds * 2.0**attempt)
            yield longest * (0.5 + random.random() / 2)


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error carries, or None."""
    response: Any = getattr(error, "response", None)
    candidates = [getattr(error, name, None) for name in ("status", "code", "status_code")]
    candidates += [getattr(response, name, None) for name in ("status", "status_code")]
    if isinstance(response, dict):  # botocore
        candidates.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    for candidate in candidates:
        if str(candidate).isdecimal():
            return int(str(candidate))
    return None


def is_passing(error: BaseException) -> bool:
    """Whether an error may be gone when the request is made again."""
    if isinstance(error, ShortReadError | ConnectionError | TimeoutError | json.JSONDecodeError):  # the last: cut off
        return True
    if isinstance(error, _LASTING):
        return False
    status = status_of(error)
    if status is not None and status >= 400:
        return status in _STATUSES
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _NUMBERS
    return type(error).__module__.split(".")[0] in _NETWORK_LIBRARIES
