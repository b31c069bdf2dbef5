"""Objects of a store, pinned to one version, and read by many ranges at a time.

What is read in pieces over days must be one object, not parts of two: on Google Cloud Storage every request names the
generation that was there when the object was pinned; elsewhere size and version are compared again after each read,
which costs a request more for each object. Answers are not believed: an error that comes as data, a range of another
length and a lost connection are each noticed, and asked for again while that can help.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem, sync

from gristmill.formats.errors import CorpusError, StorageError
from gristmill.formats.retries import ShortReadError, is_passing, status_of
from gristmill.runtime.object_storage import ObjectStorage

__all__ = ["RemoteObject", "RemoteStore"]

_GENERATIONS = frozenset({"gs", "gcs"})
_VERSION_KEYS = (
    "generation",
    "ETag",
    "etag",
    "blob_id",
    "content_md5",
    "mtime",
    "LastModified",
    "last_modified",
    "created",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteObject:
    """One version of an object.

    Attributes:
        url: where it lies.
        size: bytes.
        version: what the store tells versions apart by; empty where it tells nothing but the size.
        md5: its digest as the store tells it, base64; empty where it tells none.
    """

    url: str
    size: int
    version: str
    md5: str = ""


class RemoteStore:
    """Asks stores for objects; safe to use from many threads, pickles as its options.

    Attributes:
        options: how patiently it asks.
        bytes_fetched: bytes that came so far.
        requests: how many ranges were asked for so far, repeated ones included.
        retried: how many of them were asked for again.
    """

    def __init__(self, options: ObjectStorage) -> None:
        self.options = options
        self.bytes_fetched = self.requests = self.retried = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.options,))

    def pin(self, urls: Sequence[str], stopped: threading.Event | None = None) -> list[RemoteObject]:
        """Asks what is there now.

        Args:
            urls: the objects.
            stopped: set to give up between two attempts.

        Raises:
            StorageError: an object is absent, or the store cannot be asked.
        """
        infos = self._persist(urls, [f"{url}: cannot be examined" for url in urls], self._infos, stopped)
        return [_object(url, info) for url, info in zip(urls, infos, strict=True)]

    def fetch(
        self,
        objects: Sequence[RemoteObject],
        begins: Sequence[int],
        ends: Sequence[int],
        stopped: threading.Event | None = None,
        *,
        confirm: bool = True,
    ) -> list[bytes]:
        """Bytes of ranges, as many requests at the same time as the options allow.

        Args:
            objects: for each range, the object.
            begins: first byte of each.
            ends: one past the last byte of each, above the first.
            stopped: set to give up between two attempts.
            confirm: whether objects whose version no request can name are looked at once more; without, the caller
                checks what came.

        Raises:
            CorpusError: an object was replaced or removed since it was pinned.
            StorageError: a range does not come, or comes short, however often it is asked for.
        """
        names = [f"{one.url}: bytes {begin} to {end} cannot be read" for one, begin, end in zip(objects, begins, ends)]

        def ask(numbers: Sequence[int]) -> list[Any]:
            answers = self._ranges(
                [objects[number] for number in numbers],
                [int(begins[number]) for number in numbers],
                [int(ends[number]) for number in numbers],
            )
            return [
                _whole(answer, int(ends[number]) - int(begins[number]))
                for number, answer in zip(numbers, answers, strict=True)
            ]

        def explain(number: int, error: BaseException) -> None:
            if isinstance(error, FileNotFoundError | FileExistsError) or status_of(error) in {304, 404, 412, 416}:
                self._require_unchanged([objects[number]])

        found = self._persist(range(len(names)), names, ask, stopped, explain)
        unpinned = {one.url: one for one in objects if not _pinned(one)}
        if unpinned and confirm:
            self._require_unchanged(list(unpinned.values()))
        with self._lock:
            self.bytes_fetched += sum(map(len, found))
        return found

    def _require_unchanged(self, objects: Sequence[RemoteObject]) -> None:
        """Raises CorpusError where an object is no longer the one that was pinned."""
        names = [f"{one.url}: cannot be examined" for one in objects]
        answers = self._persist([one.url for one in objects], names, self._infos_or_none, None)
        for one, answer in zip(objects, answers, strict=True):
            if answer is None:
                raise CorpusError(
                    f"{one.url}: removed while it was in use; put it back as it was, and open the stream again"
                )
            now = _object(one.url, answer)
            if now.size != one.size or (one.version and now.version != one.version):
                raise CorpusError(
                    f"{one.url}: replaced while it was in use: {one.size} bytes of version {one.version or 'unknown'} "
                    f"when it was pinned, {now.size} bytes of version {now.version or 'unknown'} now; nothing of the "
                    "new one was used. Put the former object back, or open the data anew"
                )

    def _persist(
        self,
        items: Sequence[Any],
        names: Sequence[str],
        ask: Callable[[Sequence[Any]], list[Any]],
        stopped: threading.Event | None,
        explain: Callable[[int, BaseException], None] | None = None,
    ) -> list[Any]:
        """Answers of `ask` for all items; failed ones are asked for again while that can help."""
        found: list[Any] = [None] * len(items)
        pending = list(range(len(items)))
        waits = self.options.retries.waits()
        began = time.monotonic()
        attempts = 0
        while pending:
            attempts += 1
            self._count(len(pending), attempts > 1)
            failed: list[tuple[int, BaseException]] = []
            for place, answer in zip(pending, ask([items[place] for place in pending]), strict=True):
                if isinstance(answer, BaseException):
                    failed.append((place, answer))
                else:
                    found[place] = answer
            for place, error in failed:
                if not is_passing(error):
                    if explain is not None:
                        explain(place, error)
                    raise StorageError(f"{names[place]}: {_reason(error)}") from error
            pending = [place for place, _ in failed]
            if not pending:
                break
            place, error = failed[0]
            wait = next(waits, None)
            if wait is None:
                spent = time.monotonic() - began
                raise StorageError(
                    f"{names[place]}: {_reason(error)} ({attempts} attempts in {spent:.0f} s); is the store answering?"
                ) from error
            if (stopped or threading.Event()).wait(wait):
                raise StorageError(f"{names[place]}: given up because the stream was closed") from error
        return found

    def _count(self, requests: int, again: bool) -> None:
        with self._lock:
            self.requests += requests
            self.retried += requests if again else 0

    def _ranges(self, objects: Sequence[RemoteObject], begins: Sequence[int], ends: Sequence[int]) -> list[Any]:
        """For each range its bytes or the error that came in their place."""
        answers: list[Any] = [None] * len(objects)
        for file_system, places in _by_system([one.url for one in objects]):
            paths = [_path(file_system, objects[place]) for place in places]
            some = ([begins[place] for place in places], [ends[place] for place in places])
            try:
                if isinstance(file_system, AsyncFileSystem):
                    got = sync(
                        file_system.loop,
                        file_system._cat_ranges,  # noqa: SLF001 - the way to give it a time limit
                        paths,
                        *some,
                        batch_size=self.options.connections,
                        on_error="return",
                        timeout=self._patience(len(paths)),
                    )
                else:
                    got = file_system.cat_ranges(paths, *some, on_error="return")
            except Exception as error:  # noqa: BLE001 - judged by whoever asked, with the others
                got = [error] * len(places)
            for place, answer in zip(places, got, strict=True):
                answers[place] = answer
        return answers

    def _infos(self, urls: Sequence[str]) -> list[Any]:
        """For each object what the store says of it, or the error."""
        answers: list[Any] = [None] * len(urls)
        for file_system, places in _by_system(urls):
            paths = [file_system._strip_protocol(urls[place]) for place in places]  # noqa: SLF001 - it has no other
            file_system.invalidate_cache()
            if isinstance(file_system, AsyncFileSystem):
                try:
                    got = sync(file_system.loop, _gather_infos, file_system, paths, timeout=self._patience(len(paths)))
                except Exception as error:  # noqa: BLE001 - as above
                    got = [error] * len(places)
            else:
                got = [_attempt(partial(file_system.info, path)) for path in paths]
            for place, answer in zip(places, got, strict=True):
                answers[place] = answer
        return answers

    def _infos_or_none(self, urls: Sequence[str]) -> list[Any]:
        return [None if isinstance(answer, FileNotFoundError) else answer for answer in self._infos(urls)]

    def _patience(self, requests: int) -> float:
        """Seconds for requests that go out in turns."""
        return self.options.timeout_seconds * (1 + (requests - 1) // self.options.connections)


def _attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - judged by whoever asked
        return error


async def _gather_infos(file_system: Any, paths: Sequence[str]) -> list[Any]:
    run = fsspec.asyn._run_coros_in_chunks  # noqa: SLF001 - as fsspec's own gathers
    found = await run([file_system._info(path) for path in paths], nofiles=True, return_exceptions=True)  # noqa: SLF001
    return list(found)


def _by_system(urls: Sequence[str]) -> list[tuple[Any, list[int]]]:
    """File systems, each with the places of its URLs."""
    found: dict[int, tuple[Any, list[int]]] = {}
    known: dict[str, Any] = {}
    for place, url in enumerate(urls):
        root = "/".join(url.split("/")[:3])
        if root not in known:
            pinning = {"version_aware": True} if root.split(":")[0] in _GENERATIONS else {}
            try:
                known[root], _ = fsspec.core.url_to_fs(url, **pinning)
            except (ImportError, ValueError) as error:
                raise StorageError(f"{url}: cannot be opened: {error}") from error
        found.setdefault(id(known[root]), (known[root], []))[1].append(place)
    return list(found.values())


def _path(file_system: Any, one: RemoteObject) -> str:
    """The path of an object in its file system; with its version, where that can be asked for."""
    path: str = file_system._strip_protocol(one.url)  # noqa: SLF001 - it has no other
    return f"{path}#{one.version}" if _pinned(one) else path


def _pinned(one: RemoteObject) -> bool:
    """Whether a request for an object names its version."""
    return one.url.split(":")[0] in _GENERATIONS and one.version.isdecimal()


def _object(url: str, info: Any) -> RemoteObject:
    if info.get("type") == "directory" or info.get("size") is None:
        raise StorageError(f"{url}: is no file of a known size")
    version = next((str(info[key]) for key in _VERSION_KEYS if info.get(key) is not None), "")
    return RemoteObject(url=url, size=int(info["size"]), version=version, md5=str(info.get("md5Hash") or ""))


def _whole(answer: Any, wanted: int) -> Any:
    """An answer to a range, or the error that it is."""
    if isinstance(answer, BaseException):
        return answer
    if not isinstance(answer, bytes | bytearray | memoryview):
        return ShortReadError(f"{type(answer).__name__} came in place of bytes")
    if len(answer) != wanted:
        return ShortReadError(f"{len(answer)} bytes came where {wanted} were asked for")
    return bytes(answer)


def _reason(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "No such file, folder or bucket"
    text = str(error).strip(" ,")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
