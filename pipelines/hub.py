"""The Hugging Face hub as a store of files: its commits, its listings, and byte ranges of its files.

Four requests of its protocol are all that is needed, so they are made here and not through a file system on top: a
range costs one request wherever it lies, no worker asks for a listing, and what fails on the way is asked for again
from the byte that was reached. Files are named by commit, which pins them. A token is taken from the environment when a
request is made, and goes nowhere else; the client drops it when the hub redirects to another host.
"""

import functools
import os
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from gristmill.formats.errors import SettingsError, StorageError
from gristmill.formats.retries import Retries, ShortReadError, is_passing

__all__ = ["hub_commit", "hub_range", "hub_size", "HubEntry", "list_hub"]

_T = TypeVar("_T")
_URL = re.compile(r"(?:hub://)?([^@]+)@([0-9a-f]{40})/(.+)", re.DOTALL)
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_ENDPOINT = "https://huggingface.co"
_RETRIES = Retries(attempts=7, first_seconds=0.5, most_seconds=60.0)
_MOST_WAIT_SECONDS = 600.0
_TIMEOUT_SECONDS = 60.0
_REFUSED = (401, 403)


class _AnswerError(Exception):
    """The hub answered with an error.

    Attributes:
        status: the HTTP status.
        wait_seconds: how long the hub asks to wait before the next request, or None.
    """

    def __init__(self, status: int, wait_seconds: float | None) -> None:
        super().__init__(f"the hub answered {status}")
        self.status = status
        self.wait_seconds = wait_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class HubEntry:
    """A file of a dataset's repository at one commit.

    Attributes:
        path: its path in the repository.
        size: bytes.
        checksum: "sha256:..." of a file in large storage, else "git:..." with the name of its blob.
    """

    path: str
    size: int
    checksum: str


def hub_commit(dataset: str, revision: str | None) -> str:
    """The commit that a revision of a dataset stands for now.

    Raises:
        SettingsError: there is no such dataset or revision, or it may not be seen.
        StorageError: the hub does not answer.
    """
    url = f"{_endpoint()}/api/datasets/{dataset}"
    if revision is not None:
        url += f"/revision/{urllib.parse.quote(revision, safe='')}"
    what = dataset if revision is None else f"{dataset} at revision {revision!r}"
    commit = str(_asked(what, lambda: _json(url)[0].get("sha", "")))
    if re.fullmatch("[0-9a-f]{40}", commit) is None:
        raise StorageError(f"{what}: the hub named no commit, but {commit!r}; is HF_ENDPOINT a hub?")
    return commit


def list_hub(dataset: str, commit: str, folder: str = "", *, recursive: bool = True) -> list[HubEntry]:
    """The files of a dataset below a folder, by path; a folder that is not there has none.

    Raises:
        SettingsError: the dataset may not be seen.
        StorageError: the hub does not answer.
    """
    below = urllib.parse.quote(f"/{folder}") if folder else ""
    url: str | None = f"{_endpoint()}/api/datasets/{dataset}/tree/{commit}{below}?recursive={str(recursive).lower()}"
    found = []
    while url is not None:
        try:
            entries, url = _asked(f"{dataset}: the listing", functools.partial(_json, url), missing=False)
        except _AnswerError:
            return []
        for entry in entries:
            if entry["type"] == "file":
                lfs = entry.get("lfs") or {}
                digest = lfs.get("oid") or lfs.get("sha256")
                checksum = f"sha256:{digest}" if digest else f"git:{entry['oid']}"
                found.append(HubEntry(path=entry["path"], size=int(lfs.get("size", entry["size"])), checksum=checksum))
    return sorted(found, key=lambda file: file.path)


def hub_range(url: str, start: int, length: int) -> bytes:
    """Some bytes of a file.

    Args:
        url: ``hub://OWNER/NAME@COMMIT/PATH``, with or without its protocol.
        start: first byte.
        length: how many.

    Raises:
        SettingsError: the file is gone, or may not be read.
        StorageError: the hub does not answer, or has no such bytes.
    """
    if length == 0:
        return b""
    address = _address(url)
    data = bytearray()

    def more() -> None:
        _stream(address, data, start, length)

    _asked(url, more, progress=lambda: len(data))
    return bytes(data)


def hub_size(url: str) -> int:
    """Bytes of a file; errors as of `hub_range`."""
    address = _address(url)

    def ask() -> int:
        answer = _session().head(
            address,
            headers={**_headers(), "Accept-Encoding": "identity"},
            timeout=_TIMEOUT_SECONDS,
            follow_redirects=False,  # the size of a file in large storage is told before the way there
        )
        _check(answer)
        name = "x-linked-size" if answer.status_code >= 300 else "content-length"
        size = answer.headers.get(name) or _told_by_range(address)
        if not size.isdecimal():
            raise StorageError(f"{url}: the hub tells no size")
        return int(size)

    return _asked(url, ask)


def _told_by_range(address: str) -> str:
    """The size that an answer to a range tells, wherever the hub redirects to; empty for none."""
    headers = {**_headers(), "Range": "bytes=0-0", "Accept-Encoding": "identity"}
    with _session().stream("GET", address, headers=headers, timeout=_TIMEOUT_SECONDS, follow_redirects=True) as answer:
        if answer.status_code != 416:  # a file of no bytes has no first one
            _check(answer)
        return str(answer.headers.get("content-range", "")).rpartition("/")[2]


def _address(url: str) -> str:
    match = _URL.fullmatch(url)
    if match is None:
        raise StorageError(f"{url}: is no file of a dataset at a commit, hub://OWNER/NAME@COMMIT/PATH")
    dataset, commit, path = match.groups()
    return f"{_endpoint()}/datasets/{dataset}/resolve/{commit}/{urllib.parse.quote(path)}"


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or _ENDPOINT


def _session() -> Any:
    from huggingface_hub import get_session

    return get_session()


def _headers() -> dict[str, str]:
    token = next(filter(None, map(os.environ.get, _TOKENS)), None)
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _json(url: str) -> tuple[Any, str | None]:
    """The value behind a URL, and the URL of the next page."""
    answer = _session().get(url, headers=_headers(), timeout=_TIMEOUT_SECONDS, follow_redirects=True)
    _check(answer)
    return answer.json(), answer.links.get("next", {}).get("url")


def _stream(url: str, data: bytearray, start: int, length: int) -> None:
    """Appends to `data` what is missing of a range, as far as it comes."""
    first, last = start + len(data), start + length - 1
    headers = {**_headers(), "Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
    with _session().stream("GET", url, headers=headers, timeout=_TIMEOUT_SECONDS, follow_redirects=True) as answer:
        _check(answer)
        is_range = answer.headers.get("content-range", "").startswith(f"bytes {first}-")
        if first and (answer.status_code != 206 or not is_range):
            raise StorageError(f"{url}: the hub, or a proxy before it, serves no byte ranges")
        for piece in answer.iter_raw():  # as it comes, so that a cut loses nothing
            data += piece[: length - len(data)]
            if len(data) == length:
                return
    raise ShortReadError(f"{len(data)} of {length} bytes came")


def _check(answer: Any) -> None:
    if answer.status_code >= 400:
        raise _AnswerError(answer.status_code, _wait(answer.headers))


def _wait(headers: Any) -> float | None:
    """Seconds that an answer asks to wait: ``Retry-After``, or ``RateLimit`` with its remaining ``t=``."""
    found = re.search(r"\bt=(\d+)", headers.get("ratelimit", ""))
    text = headers.get("retry-after", "") or (found[1] if found else "")
    return min(float(text), _MOST_WAIT_SECONDS) if re.fullmatch(r"\d+", text) else None


def _asked(what: str, ask: Callable[[], _T], *, missing: bool = True, progress: Callable[[], int] = lambda: 0) -> _T:
    """What a request gives, made again while it fails in passing; one that got further starts its patience anew.

    Args:
        what: what messages call it.
        ask: makes the request.
        missing: whether to tell that there is no such thing; without, the answer is raised as it is.
        progress: how far the request got.
    """
    waits, reached = _RETRIES.waits(), progress()
    while True:
        try:
            return ask()
        except _AnswerError as error:
            if error.status == 404 and not missing:
                raise
            if not is_passing(error):
                raise _refusal(what, error.status) from None
            waits, reached = _again(waits, reached, progress())
            _pause(what, waits, error, error.wait_seconds)
        except Exception as error:  # the client's own errors have no root that its versions share
            if not is_passing(error):
                raise
            waits, reached = _again(waits, reached, progress())
            _pause(what, waits, error, None)


def _again(waits: Iterator[float], reached: int, now: int) -> tuple[Iterator[float], int]:
    return (_RETRIES.waits(), now) if now > reached else (waits, reached)


def _pause(what: str, waits: Iterator[float], error: Exception, asked_for: float | None) -> None:
    wait = next(waits, None)
    if wait is None:
        raise StorageError(
            f"{what}: cannot be read from {_endpoint()}: {type(error).__name__}: {error}, {_RETRIES.attempts} times in "
            "a row; run again later, what is finished stays"
        ) from None
    time.sleep(wait if asked_for is None else asked_for)


def _refusal(what: str, status: int) -> Exception:
    if status in _REFUSED:
        given = "the token of the environment is not allowed to read it" if _headers() else "no HF_TOKEN is set"
        return SettingsError(
            f"{what}: the hub answered {status}: a gated or private dataset, or none of that name, and {given}; "
            "accept its terms on its page and set HF_TOKEN in the environment of the run and of its workers"
        )
    if status == 404:
        return SettingsError(f"{what}: the hub at {_endpoint()} has no such dataset, revision or file (status 404)")
    return StorageError(f"{what}: the hub at {_endpoint()} answered {status}")
