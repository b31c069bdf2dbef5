"""Brings whole objects of a store into the cache of the host, and believes none before its content is checked.

Objects are brought side by side, each in pieces of some megabytes over as many connections as it has pieces, those
asked for first in front; so neither latency, nor small objects, nor the end of a large one leaves the line idle. Memory
holds the pieces that are under way or being written, 128 MiB at most with the default of 16 connections.
"""

import base64
import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from gristmill.formats.errors import CorpusError, StorageError
from gristmill.formats.fingerprint import digest
from gristmill.formats.storage import FileFacts
from gristmill.runtime.connections import Connections
from gristmill.runtime.file_cache import CachedFile, CacheFullError, FileCache
from gristmill.runtime.remote import RemoteObject, RemoteStore

__all__ = ["Downloads", "PIECE_BYTES"]

PIECE_BYTES = 4 << 20
"""Most bytes of one request."""

_PATIENCE_SECONDS = 2.0  # for room that others may let go of


class Downloads:
    """The files of one stream, in the cache of the host. Safe to use from many threads.

    Attributes:
        store: where they come from.
        cache: where they lie.
        hits: how often a file that was needed was in the cache, or came there meanwhile.
        misses: how many files this process brought.
    """

    def __init__(
        self, store: RemoteStore, cache: FileCache, facts: Mapping[str, FileFacts], pins: Mapping[str, RemoteObject]
    ) -> None:
        """Asks for nothing.

        Args:
            store: where the files come from.
            cache: where they are kept.
            facts: size and digest of files by URL, from a manifest.
            pins: the versions of others by URL; what is in neither is pinned when it is first asked for.
        """
        self.store = store
        self.cache = cache
        self.hits = self.misses = 0
        self._facts = facts
        self._pins = dict(pins)
        self._connections = Connections(store.options.connections)
        self._lock = threading.Lock()

    @property
    def side_by_side(self) -> int:
        """How many objects are brought at the same time: more than connections, since some are being written."""
        return self.store.options.connections * 3 // 2

    def path(self, url: str) -> str:
        """Where the copy of an object lies once it is there."""
        return self.cache.path(self._key(url)[0])

    def size(self, url: str) -> int:
        """Bytes of an object."""
        return self._key(url)[1]

    def take(
        self,
        url: str,
        stopped: threading.Event | None = None,
        make_room: Callable[[], None] | None = None,
        *,
        ahead: bool = False,
    ) -> CachedFile:
        """The copy of an object, brought if it is missing; it stays until it is closed.

        Args:
            url: the object.
            stopped: set to give up.
            make_room: called when there is no room; lets go of what is not needed yet. None: there is nothing such.
            ahead: whether it is for later, so that finding it in the cache is no hit.

        Raises:
            CacheFullError: there is no room, and none was made in two seconds.
            CorpusError: the object is not what the manifest lists, or was replaced meanwhile.
            StorageError: it cannot be read, or the cache cannot be written.
        """
        key, size = self._key(url)
        found = self.cache.find(key, size)
        if found is not None:
            self._count(hit=not ahead)
            return found
        end = time.monotonic() + (0.0 if make_room is None else _PATIENCE_SECONDS)
        while True:
            try:
                found, brought = self.cache.bring(key, size, lambda into: self._write(url, into, stopped), stopped)
                break
            except CacheFullError:
                if make_room is None or time.monotonic() > end:
                    raise
                make_room()
                if (stopped or threading.Event()).wait(0.05):
                    raise
        self._count(hit=not brought and not ahead, miss=brought)
        return found

    def take_all(self, urls: Sequence[str], stopped: threading.Event | None = None) -> list[CachedFile]:
        """The copies of several objects, some brought at the same time; raises as `take`."""
        if len(urls) < 2:
            return [self.take(url, stopped) for url in urls]
        with ThreadPoolExecutor(self.side_by_side, thread_name_prefix="gristmill-downloads") as pool:
            return list(pool.map(lambda url: self.take(url, stopped), urls))

    def _count(self, *, hit: bool = False, miss: bool = False) -> None:
        with self._lock:
            self.hits += hit
            self.misses += miss

    def _key(self, url: str) -> tuple[str, int]:
        """Name of the copy of an object, and its bytes: by content where it is known, else by place and version."""
        facts = self._facts.get(url)
        if facts is not None and facts.sha256:
            return facts.sha256, facts.size
        one = self._pin(url)
        return digest({"url": url, "size": one.size, "version": one.version}), one.size

    def _pin(self, url: str) -> RemoteObject:
        with self._lock:
            known = self._pins.get(url)
        if known is None:
            (known,) = self.store.pin([url])
            with self._lock:
                known = self._pins.setdefault(url, known)
        return known

    def _write(self, url: str, descriptor: int, stopped: threading.Event | None) -> None:
        """Brings an object into an open file.

        One whose digest a manifest has is not pinned: parts of two versions cannot have it.
        """
        facts = self._facts.get(url)
        if facts is None or not facts.sha256:
            one = self._pin(url)
            if facts is not None and one.size != facts.size:
                raise _other_size(one, facts.size)
            state = hashlib.md5(usedforsecurity=False) if one.md5 else None
            self._copy(one, descriptor, state, stopped)
            found = base64.b64encode(state.digest()).decode() if state is not None else ""
            if found != one.md5:
                raise _other_content(url, "md5", found, f"the store says {one.md5}")
            return
        state = hashlib.sha256()
        try:
            self._copy(RemoteObject(url=url, size=facts.size, version=""), descriptor, state, stopped)
        except StorageError as error:
            if stopped is not None and stopped.is_set():
                raise
            (one,) = self.store.pin([url], stopped)
            if one.size != facts.size:
                raise _other_size(one, facts.size) from error
            raise
        if state.hexdigest() != facts.sha256:
            raise _other_content(url, "sha256", state.hexdigest(), f"the manifest says {facts.sha256}")

    def _copy(
        self, one: RemoteObject, descriptor: int, state: "hashlib._Hash | None", stopped: threading.Event | None
    ) -> None:
        """Writes an object piece after piece, some of them asked for at the same time."""
        first = 0
        with self._connections.turn() as turn:
            while first < one.size:
                pieces = turn.call(-(-(one.size - first) // PIECE_BYTES), stopped)
                if not pieces or (stopped is not None and stopped.is_set()):
                    raise StorageError(f"{one.url}: given up because the stream was closed")
                begins = range(first, min(first + pieces * PIECE_BYTES, one.size), PIECE_BYTES)
                ends = [min(begin + PIECE_BYTES, one.size) for begin in begins]
                found = self.store.fetch([one] * len(ends), begins, ends, stopped, confirm=bool(one.version))
                turn.hang_up()
                for begin, data in zip(begins, found, strict=True):
                    _write_at(descriptor, data, begin, one.url)
                    if state is not None:
                        state.update(data)
                del found
                turn.forget()
                first = ends[-1]


def _other_size(one: RemoteObject, recorded: int) -> CorpusError:
    return CorpusError(
        f"{one.url}: has {one.size} bytes, but {recorded} are recorded: cut short or replaced; `gristmill verify` lists"
        " every such file"
    )


def _other_content(url: str, kind: str, found: str, wanted: str) -> CorpusError:
    return CorpusError(
        f"{url}: what came has the {kind} {found}, but {wanted}: damaged or replaced; `gristmill verify` lists every "
        "such file"
    )


def _write_at(descriptor: int, data: bytes, place: int, url: str) -> None:
    view = memoryview(data)
    try:
        while view:
            written = os.pwrite(descriptor, view, place)
            view, place = view[written:], place + written
    except OSError as error:
        raise StorageError(
            f"{url}: its copy cannot be written: {error.strerror}; lower cache_bytes, or name another folder with "
            "cache_dir"
        ) from error
