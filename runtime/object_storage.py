"""How data on an object store are read: the options, and the choice between a cache on the disk and ranged reads.

A cache brings each file over once, whole, and is then as fast as local data; ranged reads need no disk and pay a
request for each piece of a row. Which is better follows from the sizes alone, so `auto` decides by them.
"""

import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from gristmill.formats.errors import SettingsError
from gristmill.formats.retries import Retries
from gristmill.formats.storage import is_local, local_path
from gristmill.runtime.whole_number import whole_or_none

__all__ = ["chosen_mode", "object_storage", "ObjectStorage", "StorageMode"]

StorageMode = Literal["auto", "cache", "ranges"]
"""How files of a store are read: through a cache on the disk, by ranges, or as their size and the disk allow."""

_CACHE_VARIABLE = "GRISTMILL_CACHE_DIR"
_FREE_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStorage:
    """Options for data at a URL; data at a path need none and ignore them.

    Attributes:
        mode: ``cache``: files are downloaded whole, in the order of their first use, into a folder that all processes
            of the host share, and mapped. ``ranges``: only the tokens that rows need are read; nothing is written.
            ``auto``: ``cache`` where everything that the stream may read fits into the cache, else ``ranges``.
        cache_dir: folder of the cache; None takes the environment variable GRISTMILL_CACHE_DIR, else
            ``gristmill`` in the user's folder for caches.
        cache_bytes: most bytes that the folder may hold, those of other streams and processes included; None takes
            0.8 of what is free there or held by the cache already.
        connections: most requests that are under way at the same time, at least 1.
        ahead_bytes: most bytes of tokens that ranged reads keep ready for the next rows, at least 1 MiB.
        timeout_seconds: after how long a request without an answer counts as failed, above 0.
        retries: how often a request is made.
    """

    mode: StorageMode = "auto"
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: int | None = None
    connections: int = 16
    ahead_bytes: int = 128 << 20
    timeout_seconds: float = 120.0
    retries: Retries = field(default_factory=Retries)

    def __post_init__(self) -> None:
        if self.mode not in get_args(StorageMode):
            raise SettingsError(f"storage {self.mode!r}: it is {', '.join(map(repr, get_args(StorageMode)))}")
        if self.cache_dir is not None and not is_local(os.fspath(self.cache_dir)):
            raise SettingsError(f"cache_dir {os.fspath(self.cache_dir)!r} is a URL; the cache is a folder of this host")
        for name, least in (("cache_bytes", 1), ("connections", 1), ("ahead_bytes", 1 << 20)):
            value = whole_or_none(name, getattr(self, name))
            if value is not None and value < least:
                raise SettingsError(f"{name} must be at least {least}, not {value!r}")
        if not self.timeout_seconds > 0:
            raise SettingsError(f"timeout_seconds must be above 0, not {self.timeout_seconds!r}")
        if self.retries.attempts < 1:
            raise SettingsError(f"attempts must be at least 1, not {self.retries.attempts!r}")

    @property
    def folder(self) -> Path:
        """The folder of the cache."""
        if self.cache_dir is not None:
            return local_path(os.fspath(self.cache_dir)).absolute()
        named = os.environ.get(_CACHE_VARIABLE)
        if named:
            return Path(named).absolute()
        base = os.environ.get("XDG_CACHE_HOME")
        return (Path(base) if base else Path.home() / ".cache") / "gristmill"

    def limit(self, held_bytes: int) -> int:
        """Most bytes that the cache may hold.

        Args:
            held_bytes: what it holds now.
        """
        if self.cache_bytes is not None:
            return self.cache_bytes
        place = self.folder
        while not place.exists() and place != place.parent:
            place = place.parent
        return int(_FREE_SHARE * (shutil.disk_usage(place).free + held_bytes))


def object_storage(
    storage: StorageMode | ObjectStorage,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> ObjectStorage:
    """The options that arguments of an opening function name; the latter two go before those of `storage`.

    Raises:
        SettingsError: an option is out of range.
    """
    options = storage if isinstance(storage, ObjectStorage) else ObjectStorage(mode=storage)
    if cache_dir is not None:
        options = replace(options, cache_dir=cache_dir)
    return options if cache_bytes is None else replace(options, cache_bytes=cache_bytes)


def chosen_mode(options: ObjectStorage, needed_bytes: int, limit_bytes: int) -> Literal["cache", "ranges"]:
    """What ``auto`` stands for.

    Args:
        options: the options.
        needed_bytes: size of all files that may be read.
        limit_bytes: most that the cache may hold.
    """
    if options.mode == "auto":
        return "cache" if needed_bytes <= limit_bytes else "ranges"
    return options.mode
