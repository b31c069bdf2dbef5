"""Shards whose files are copies in the cache of the host: brought when they are opened, held while they are open."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from gristmill.formats.indexed import IndexedDataset, PairFiles
from gristmill.formats.storage import is_local
from gristmill.runtime.backends import Backend
from gristmill.runtime.downloads import Downloads
from gristmill.runtime.file_cache import CachedFile
from gristmill.runtime.shards import Shard

__all__ = ["cached_shard", "CachedShard", "remote_parts", "ShardKeeper"]


def remote_parts(shard: Shard) -> list[str]:
    """URLs of the files of a shard that lie on a store."""
    return [part for part in shard.parts if isinstance(part, str) and not is_local(part)]


class ShardKeeper:
    """Holds the copies that open shards are mapped from. Safe to use from many threads.

    Attributes:
        downloads: what brings them.
        make_room: called when the cache is full of files that are in use or held for later; lets go of the latter.
        stopped: set to give up what is being brought.
    """

    def __init__(self, downloads: Downloads) -> None:
        self.downloads = downloads
        self.make_room: Callable[[], None] | None = None
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._held: dict[str, list[list[CachedFile]]] = {}

    def take(self, shard: "CachedShard") -> None:
        """Brings the files of a shard where they are missing, and holds them; raises as `Downloads.take`."""
        files = [self.downloads.take(url, self.stopped, self.make_room) for url in shard.urls]
        with self._lock:
            self._held.setdefault(shard.prefix, []).append(files)

    def let_go(self, shard: "CachedShard") -> None:
        """Ends one `take`."""
        with self._lock:
            held = self._held.get(shard.prefix)
            files = held.pop() if held else []
        for file in files:
            file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedShard(Shard):
    """A shard on a store that is read from its copy.

    Attributes:
        keeper: what holds the copy.
        urls: where its files lie.
        copies: paths of their copies, which may not be there yet, in place of what `files` would say.
    """

    keeper: ShardKeeper
    urls: tuple[str, ...]
    copies: PairFiles

    @property
    def parts(self) -> tuple[str, str | bytes]:
        """Paths of the copies."""
        return self.copies.tokens, self.copies.index

    def open(self, backend: Backend = "mmap") -> IndexedDataset:
        """Opens the copy, bringing it first where it is missing; see `Shard.open` and `Downloads.take`."""
        self.keeper.take(self)
        try:
            copy = Shard(
                prefix=self.prefix,
                name=self.name,
                dtype=self.dtype,
                sequences=self.sequences,
                tokens=self.tokens,
                files=self.copies,
                unit=self.unit,
            )
            return copy.open(backend)
        except BaseException:
            self.let_go()
            raise

    def let_go(self) -> None:
        """Ends what `open` began."""
        self.keeper.let_go(self)


def cached_shard(shard: Shard, keeper: ShardKeeper) -> Shard:
    """A shard that is read from copies of those of its files that lie on a store."""
    urls = remote_parts(shard)
    if not urls:
        return shard
    tokens, index = shard.parts
    path = keeper.downloads.path
    return CachedShard(
        prefix=shard.prefix,
        name=shard.name,
        dtype=shard.dtype,
        sequences=shard.sequences,
        tokens=shard.tokens,
        files=shard.files,
        unit=shard.unit,
        keeper=keeper,
        urls=tuple(urls),
        copies=PairFiles(
            tokens=path(tokens) if tokens in urls else tokens,
            index=path(index) if isinstance(index, str) and index in urls else index,
            dtype=None if shard.files is None else shard.files.dtype,
        ),
    )
