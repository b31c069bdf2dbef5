"""A folder of files that came from elsewhere, shared by all processes of a host, and kept below a size.

    <folder>/<key>          a whole file, named by what it holds; read-only, never changed
    <folder>/<key>.part     one that is being brought; as long as the file will be from the start
    <folder>/lock           held while room is made

The files are their own locks (`flock`): who brings a file holds its part exclusively, who uses one holds it shared, and
only a file that nobody holds is removed, the one used longest ago first. The kernel lets go of the locks of a process
that ends, however it ends, so there is nothing to tidy up after one. The price is a file system that has `flock`.
"""

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gristmill.formats.errors import StorageError

__all__ = ["CachedFile", "CacheFullError", "FileCache"]

_PART = ".part"
_LOCK = "lock"
_LOOK_SECONDS = 0.02  # between two looks at a file that another process brings


class CacheFullError(StorageError):
    """There is no room for a file, and what there is is in use."""


class CachedFile:
    """A file of the cache that stays there until `close`.

    Attributes:
        path: where it lies.
        descriptor: of the open file, which holds it; -1 once it is let go.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def close(self) -> None:
        """Lets go of the file; may be called twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    size: int
    used: int


class FileCache:
    """The folder; safe to use from many threads and processes.

    Attributes:
        folder: where it lies.
        limit_bytes: most bytes that its files may have together.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Makes the folder where it is missing.

        Raises:
            StorageError: it cannot be made.
        """
        self.folder = folder
        self.limit_bytes = limit_bytes
        with self._named("be made"):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def held_bytes(self) -> int:
        """Bytes of all files in it, those that are being brought included."""
        return sum(entry.size for entry in self._entries())

    def path(self, key: str) -> str:
        """Where the file of a key lies once it is there."""
        return str(self.folder / key)

    def find(self, key: str, size: int) -> CachedFile | None:
        """The file of a key, if it is there; from now on it stays.

        Args:
            key: what it holds.
            size: bytes that it must have; one of another size is removed.
        """
        path = self.path(key)
        with self._named("be read"):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            found = CachedFile(path, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # nobody holds it exclusively for longer than it takes to remove it
            facts = os.fstat(descriptor)
            if facts.st_nlink == 0:  # removed before it was held
                found.close()
                return None
            if facts.st_size != size:
                found.close()
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                return None
            with contextlib.suppress(OSError):  # of another user's: then its age is the day it was brought
                os.utime(descriptor)
        return found

    def bring(
        self, key: str, size: int, write: Callable[[int], None], stopped: threading.Event | None = None
    ) -> tuple[CachedFile, bool]:
        """The file of a key; where it is missing one process of the host brings it, and the others wait.

        Args:
            key: what it holds.
            size: its bytes.
            write: writes them to a descriptor, and raises where they are not what they must be.
            stopped: set to give up waiting for another process.

        Returns:
            The file, which stays from now on, and whether it was brought by this call.

        Raises:
            CacheFullError: there is no room for it, and what could be removed is in use.
            StorageError: the folder cannot be written, or the wait was given up.
        """
        path = self.path(key)
        while True:
            found = self.find(key, size)
            if found is not None:
                return found, False
            with self._named("be written"):
                descriptor = os.open(path + _PART, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            part = CachedFile(path + _PART, descriptor)
            try:
                with self._named("be locked"):
                    mine = _locked(descriptor)
                if not mine:
                    if (stopped or threading.Event()).wait(_LOOK_SECONDS):
                        raise StorageError(f"{path}: given up waiting for another process, the stream was closed")
                elif _is_at(descriptor, part.path):  # else it was renamed or removed between opening and locking
                    if os.path.exists(path):  # brought meanwhile, so this is a new part
                        os.unlink(part.path)
                        part.close()
                        continue
                    self._fill(part, path, size, write)
                    if os.fstat(descriptor).st_nlink:
                        part.path = path
                        return part, True
            except BaseException:
                part.close()
                raise
            part.close()

    def _fill(self, part: CachedFile, path: str, size: int, write: Callable[[int], None]) -> None:
        """Brings a file whose part is held, and goes on holding it, shared."""
        try:
            self._make_room(part.descriptor, size)
            write(part.descriptor)
            with self._named("be written"):
                os.fsync(part.descriptor)  # a name whose bytes a loss of power took would be believed
                os.fchmod(part.descriptor, 0o444)
                os.utime(part.descriptor)
                os.rename(part.path, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part.path)
            raise
        fcntl.flock(part.descriptor, fcntl.LOCK_SH)

    def _make_room(self, descriptor: int, size: int) -> None:
        """Gives a part its size, once there is room for it."""
        if size > self.limit_bytes:
            raise CacheFullError(
                f"{self.folder}: a file of {size} bytes is larger than the cache, which may hold {self.limit_bytes}; "
                'raise cache_bytes, or read with storage="ranges"'
            )
        with self._named("be written"), (self.folder / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.ftruncate(descriptor, 0)
            entries = self._entries()
            surplus = sum(entry.size for entry in entries) + size - self.limit_bytes
            for entry in sorted(entries, key=lambda entry: (entry.used, entry.name)):
                if surplus <= 0:
                    break
                if self._remove(entry.name):
                    surplus -= entry.size
            if surplus > 0:
                raise CacheFullError(
                    f"{self.folder}: no room for {size} bytes: the cache may hold {self.limit_bytes}, and all but "
                    f"{max(0, size - surplus)} of them are in use by this process or others; raise cache_bytes, lower "
                    'max_open_shards, or read with storage="ranges"'
                )
            os.ftruncate(descriptor, size)

    def _remove(self, name: str) -> bool:
        """Removes a file or the part of a dead process, unless somebody holds it."""
        path = self.path(name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if not _locked(descriptor) or not _is_at(descriptor, path):
                return False
            os.unlink(path)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _entries(self) -> list[_Entry]:
        found: list[_Entry] = []
        with self._named("be listed"):
            for entry in os.scandir(self.folder):
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    if entry.name != _LOCK and entry.is_file(follow_symlinks=False):
                        found.append(_Entry(entry.name, facts.st_size, facts.st_mtime_ns))
        return found

    @contextlib.contextmanager
    def _named(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self.folder}: the cache cannot {action}: {error.strerror or error}; name another folder with "
                "cache_dir"
            ) from error


def _locked(descriptor: int) -> bool:
    """Takes an exclusive lock, if nobody else has one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: str) -> bool:
    """Whether an open file is what a path names."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
