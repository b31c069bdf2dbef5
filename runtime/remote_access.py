"""How the files of one stream on a store are read: through the cache of the host, or by ranges.

The one place that knows both ways. Readers see shards and index arrays as they see local ones, and tell which rows they
read; what comes next is then brought or read ahead.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

from numpy.typing import NDArray

from gristmill.formats.npy import remote_arrays
from gristmill.formats.storage import FileFacts, is_local
from gristmill.runtime.cached_arrays import open_cached_npy
from gristmill.runtime.cached_shards import ShardKeeper, cached_shard, remote_parts
from gristmill.runtime.downloads import Downloads
from gristmill.runtime.file_cache import FileCache
from gristmill.runtime.look_ahead import LookAhead, ShardsOf
from gristmill.runtime.object_storage import ObjectStorage, chosen_mode
from gristmill.runtime.remote import RemoteObject, RemoteStore
from gristmill.runtime.remote_ranges import RemoteFile, open_ends, open_remote_npy
from gristmill.runtime.remote_shards import RemoteShard, RemoteShards, remote_shard
from gristmill.runtime.rows_ahead import ReadRows, RowsAhead
from gristmill.runtime.shards import Shard, default_open_limit

__all__ = ["open_access", "RemoteAccess"]

_FILES_HELD, _FILES_BESIDE = 6, 4  # descriptors of an open shard, with and without those that hold its copies
_log = logging.getLogger(__name__)


class RemoteAccess:
    """What a stream needs to read its files from a store.

    Attributes:
        mode: ``cache`` or ``ranges``.
        store: what asks for objects.
        needed_bytes: size of all files that the stream may read.
        ranges: the shards, for reads by ranges; None with the cache, and before `shards` was called.
    """

    def __init__(
        self,
        options: ObjectStorage,
        shards: Sequence[Shard],
        facts: Mapping[str, FileFacts],
        arrays: Sequence[str] = (),
    ) -> None:
        """Chooses the way, and brings over or looks at the index arrays.

        Args:
            options: the options.
            shards: all shards that the stream may read.
            facts: size and digest of files by URL, where a manifest has them; others are pinned now.
            arrays: URLs of all index arrays, so that they come side by side.

        Raises:
            StorageError: an object is absent, the store does not answer, or the cache cannot be written.
            CorpusError: an index array is not the one that is recorded.
        """
        self.options = options
        self.store = RemoteStore(options)
        urls = [url for shard in shards for url in remote_parts(shard)]
        unknown = [url for url in (*urls, *arrays) if url not in facts]
        self._pins: dict[str, RemoteObject] = dict(zip(unknown, self.store.pin(unknown), strict=True))
        sizes = {url: facts[url].size if url in facts else self._pins[url].size for url in (*urls, *arrays)}
        self.needed_bytes = sum(sizes.values())
        self._largest = max((sizes[url] for url in urls), default=0)
        self.mode: Literal["cache", "ranges"] = "ranges"
        self.ranges: RemoteShards | None = None
        self.downloads: Downloads | None = None
        self._files: dict[str, RemoteFile] = {}
        if options.mode != "ranges":
            limit = options.limit(_held(options))
            self.mode = chosen_mode(options, self.needed_bytes, limit)
            _log.info(
                "%d bytes at %s may be read, the cache %s may hold %d: storage=%r",
                self.needed_bytes,
                next(iter(urls), "?"),
                options.folder,
                limit,
                self.mode,
            )
        if self.mode == "cache":
            self.downloads = Downloads(self.store, FileCache(options.folder, limit), facts, self._pins)
            self._keeper = ShardKeeper(self.downloads)
            self._taken = self.downloads.take_all(arrays)  # stay until they are mapped, and with their maps
        else:
            rest = [url for url in (*urls, *arrays) if url not in self._pins]
            self._pins.update(zip(rest, self.store.pin(rest), strict=True))
            files = open_ends(self.store, [self._pins[url] for url in arrays])
            self._files = dict(zip(arrays, files, strict=True))

    @contextmanager
    def arrays(self) -> Iterator[None]:
        """Within the block, `gristmill.formats.npy` opens arrays on a store this way."""
        with remote_arrays(self._open_array):
            yield
        self._taken = []

    def _open_array(self, url: str) -> NDArray[Any]:
        if self.downloads is not None:
            return open_cached_npy(self.downloads.take(url), url)
        if url not in self._files:
            self._pins.update(zip([url], self.store.pin([url]), strict=True))
            (self._files[url],) = open_ends(self.store, [self._pins[url]])
        return cast("NDArray[Any]", open_remote_npy(self._files[url]))  # is read like one

    def shards(self, shards: Sequence[Shard]) -> list[Shard]:
        """Shards that are read this way; each is opened with its backend as any other is."""
        if self.downloads is not None:
            return [cached_shard(shard, self._keeper) for shard in shards]
        remote = [
            shard if is_local(shard.parts[0]) else remote_shard(shard, self.store, self._pins) for shard in shards
        ]
        if all(isinstance(shard, RemoteShard) for shard in remote):
            self.ranges = RemoteShards(self.store, cast("list[RemoteShard]", remote))
        return list(remote)

    def open_limit(self, wanted: int | None) -> int | None:
        """How many shards are kept open, where the caller does not say.

        In a cache that is smaller than the data, those that are open and those that are being opened must have room.
        """
        if wanted is not None or self.downloads is None:
            return wanted
        limit = max(1, default_open_limit() * _FILES_BESIDE // _FILES_HELD)
        if self.needed_bytes > self.downloads.cache.limit_bytes:
            limit = max(1, min(limit, self.downloads.cache.limit_bytes // (4 * max(1, self._largest))))
        return limit

    def look_ahead(self, shards: Sequence[Shard], shards_of: ShardsOf, rows: int) -> LookAhead | None:
        """What brings shards before they are needed; None without the cache.

        Args:
            shards: from `shards`.
            shards_of: see `LookAhead`.
            rows: number of rows of the stream.
        """
        if self.downloads is None:
            return None
        limit = self.downloads.cache.limit_bytes
        fits = self.needed_bytes <= limit
        urls = [getattr(shard, "urls", ()) for shard in shards]
        ahead = LookAhead(self.downloads, urls, shards_of, rows, hold_bytes=None if fits else limit // 4)
        self._keeper.make_room = ahead.give_way
        return ahead

    def rows_ahead(self, read: ReadRows, rows: int, row_bytes: int) -> RowsAhead | None:
        """What reads rows before they are asked for; None with the cache. Arguments as `RowsAhead`."""
        if self.downloads is not None:
            return None
        return RowsAhead(read, rows, row_bytes, self.options.ahead_bytes)

    def counts(self) -> dict[str, int]:
        """What was asked of the store so far, by name."""
        found = {
            "bytes_fetched": self.store.bytes_fetched,
            "store_requests": self.store.requests,
            "store_retries": self.store.retried,
        }
        if self.downloads is not None:
            found |= {"cache_hits": self.downloads.hits, "cache_misses": self.downloads.misses}
        return found

    def pause(self) -> None:
        """Gives up what is being brought for a read."""
        if self.downloads is not None:
            self._keeper.stopped.set()

    def go_on(self) -> None:
        """Lets reads bring files again."""
        if self.downloads is not None:
            self._keeper.stopped.clear()


def open_access(
    options: ObjectStorage | None,
    shards: Sequence[Shard],
    facts: Mapping[str, FileFacts] | None = None,
    arrays: Sequence[str] = (),
) -> RemoteAccess | None:
    """How shards are read, see `RemoteAccess`; None where all of them are local.

    Args:
        options: the options; None takes the defaults.
        shards: as for `RemoteAccess`.
        facts: likewise.
        arrays: likewise.
    """
    if not any(remote_parts(shard) for shard in shards):
        return None
    return RemoteAccess(ObjectStorage() if options is None else options, shards, facts or {}, arrays)


def _held(options: ObjectStorage) -> int:
    if options.cache_bytes is not None or not options.folder.is_dir():
        return 0
    return FileCache(options.folder, 0).held_bytes
