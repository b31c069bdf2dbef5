"""Files by path or URL, published whole or not at all.

A plain path (or ``file://``) is handled with the operating system's own calls; anything else goes through fsspec.
Publishing streams to a temporary name of this attempt and makes the file appear in one step: a rename on a disk, a
commit of the upload on an object store. That trades one extra rename for the promise that a reader never sees half a
file, however the writer died. Listings are never cached, so what another process wrote is seen.
"""

import contextlib
import functools
import hashlib
import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
import numpy as np
from fsspec.asyn import AsyncFileSystem

from gristmill.formats.attempt import attempt_and_rename, attempt_on_disk, attempt_upload
from gristmill.formats.errors import GristmillError, StorageError
from gristmill.formats.reasons import reason
from gristmill.formats.resuming import is_web, open_web

__all__ = [
    "base_name",
    "exists",
    "file_facts",
    "file_size",
    "FileFacts",
    "is_local",
    "join",
    "list_files",
    "list_folders",
    "local_name",
    "local_path",
    "make_folder",
    "named",
    "open_read",
    "Publication",
    "publish",
    "read_bytes",
    "read_range",
    "relative_to",
    "remote",
    "remove",
    "remove_tree",
    "write_bytes",
]

_URL = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.:-]*)://")  # with `:`, chained protocols are URLs too
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What identifies a published file.

    Attributes:
        size: bytes.
        sha256: lower-case hexadecimal digest of all bytes; empty where none was taken.
    """

    size: int
    sha256: str


def is_local(path: str) -> bool:
    """Whether `path` names a file of this machine: no URL scheme, or ``file://``."""
    match = _URL.match(path) if "://" in path else None
    return match is None or match.group(1).lower() == "file"


def local_name(path: str) -> str:
    """The operating system's name of a local `path`; many small files are opened by it, and a `Path` is made slowly.

    Raises:
        StorageError: `path` is a URL of another scheme.
    """
    if not is_local(path):
        raise StorageError(f"{path}: a local path is needed here, not a URL")
    return _URL.sub("", path) if "://" in path else path


def local_path(path: str) -> Path:
    """The same as a `Path`."""
    return Path(local_name(path))


def join(base: str, *parts: str) -> str:
    """Joins names to a path or URL with ``/``; an empty `base` gives a relative path."""
    return posixpath.join(base, *parts)


def base_name(path: str) -> str:
    """The last part of a path or URL."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def relative_to(path: str, base: str) -> str:
    """`path` without the folder `base` in front; `path` itself when it does not lie below `base`."""
    prefix = base if base.endswith("://") else base.rstrip("/") + "/"
    return path[len(prefix) :] if path.startswith(prefix) else path


def remote(path: str) -> tuple[Any, str]:
    """File system and inner path of a URL; listings that an earlier call cached are forgotten."""
    with named(path, "be opened"):
        file_system, inner = fsspec.core.url_to_fs(path)
        file_system.invalidate_cache()
    return file_system, inner


@contextmanager
def named(path: str, action: str) -> Iterator[None]:
    """Turns an operating system's or store's error into one that names the path and what was tried."""
    try:
        yield
    except GristmillError:
        raise
    except (OSError, ValueError) as error:
        place = local_path(path) if is_local(path) else None
        raise StorageError(f"{path}: cannot {action}: {reason(error, place)}") from error
    except Exception as error:  # stores raise errors of their own libraries, which have no common root
        if is_local(path):
            raise
        raise StorageError(f"{path}: cannot {action}: {reason(error)}") from error


def exists(path: str) -> bool:
    """Whether a file or folder is there.

    Raises:
        StorageError: it cannot be told: no permission, or the store does not answer.
    """
    with named(path, "be looked up"):
        if is_local(path):
            return local_path(path).exists()
        file_system, inner = remote(path)
        try:
            file_system.info(inner)
        except FileNotFoundError:
            return False
        return True


def file_size(path: str) -> int:
    """Size of a file in bytes.

    Raises:
        StorageError: the file is absent or cannot be examined.
    """
    with named(path, "be examined"):
        if is_local(path):
            return os.stat(local_name(path)).st_size
        file_system, inner = remote(path)
        return int(file_system.info(inner)["size"])


def list_files(folder: str, *, recursive: bool = False) -> list[str]:
    """Paths of the files in a folder, sorted by code point; a missing folder has none.

    Each begins with `folder` as it was given. Links to files count as files, links to folders are not followed.

    Args:
        folder: path or URL.
        recursive: also the files of all folders below.

    Raises:
        StorageError: the folder, or one below it, may not be listed.
    """
    with named(folder, "be listed"):
        names = _local_names(folder, recursive) if is_local(folder) else _remote_names(folder, recursive)
    return sorted(join(folder, name) for name in names)


def _local_names(folder: str, recursive: bool) -> list[str]:
    root = local_path(folder)
    if not root.is_dir():
        return []
    names: list[str] = []
    for where, _, files in os.walk(root, onerror=_unless_gone):
        below = Path(where).relative_to(root)
        names += [(below / name).as_posix() for name in files if Path(where, name).is_file()]
        if not recursive:
            break
    return names


def _unless_gone(error: OSError) -> None:
    """Raises what stopped the listing of a folder, unless the folder was removed meanwhile."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _remote_names(folder: str, recursive: bool) -> list[str]:
    file_system, inner = remote(folder)
    prefix = inner.rstrip("/") + "/"
    try:
        found = file_system.find(inner, maxdepth=None if recursive else 1)
    except FileNotFoundError:
        return []
    return [name[len(prefix) :] for name in found if name.startswith(prefix) and not name.endswith("/")]


def list_folders(folder: str) -> list[str]:
    """Names (not paths) of the folders directly inside a folder, sorted; a missing folder has none."""
    with named(folder, "be listed"):
        if is_local(folder):
            root = local_path(folder)
            return sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []
        file_system, inner = remote(folder)
        try:
            entries = file_system.ls(inner, detail=True)
        except FileNotFoundError:
            return []
        return sorted({base_name(entry["name"]) for entry in entries if entry["type"] == "directory"})


def make_folder(folder: str) -> None:
    """Makes a folder and its parents; an object store needs none, so nothing happens there."""
    if is_local(folder):
        with named(folder, "be created"):
            local_path(folder).mkdir(parents=True, exist_ok=True)


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading bytes from its start.

    Raises:
        StorageError: the file is absent or may not be read.
    """
    with named(path, "be opened"):
        if is_local(path):
            return open(local_name(path), "rb")
        if is_web(path):
            return open_web(path)
        file_system, inner = remote(path)
        return file_system.open(inner, "rb")  # type: ignore[no-any-return]


def read_bytes(path: str) -> bytes:
    """All bytes of a (small) file."""
    with open_read(path) as file, named(path, "be read"):
        return file.read()


def read_range(path: str, start: int, length: int) -> bytes:
    """`length` bytes of a file from byte `start`.

    Raises:
        StorageError: the file ends before ``start + length``.
    """
    if length == 0:  # a range of no bytes cannot be asked of a store
        return b""
    with named(path, "be read"):
        if is_local(path) or is_web(path):
            with open_web(path) if is_web(path) else open(local_name(path), "rb") as file:
                file.seek(start)
                data = file.read(length)
        else:
            file_system, inner = remote(path)
            data = bytes(file_system.cat_file(inner, start=start, end=start + length))
    if len(data) != length:
        raise StorageError(f"{path}: {len(data)} bytes came where {length} were asked for at byte {start}: cut short?")
    return data


class Publication:
    """A file being written; hashes what passes through it.

    Attributes:
        path: the name that the file will have.
        size: bytes written so far.
    """

    def __init__(self, path: str, raw: BinaryIO, *, hashed: bool = True) -> None:
        self.path = path
        self.size = 0
        self._raw = raw
        self._digest = hashlib.sha256() if hashed else None

    def write(self, data: bytes | bytearray | memoryview | np.ndarray) -> None:
        """Appends bytes, or the raw bytes of an array in C order and its own byte order."""
        if isinstance(data, np.ndarray):
            data = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        view = memoryview(data)
        with named(self.path, "be written"):
            self._raw.write(view)
        if self._digest is not None:
            self._digest.update(view)
        self.size += view.nbytes

    def flush(self) -> None:
        """Hands what is buffered to the disk or store, so that a full disk is met here and not when the block ends."""
        with named(self.path, "be written"):
            self._raw.flush()

    def facts(self) -> FileFacts:
        """Size and digest of the bytes written so far."""
        return FileFacts(self.size, "" if self._digest is None else self._digest.hexdigest())


@contextmanager
def publish(path: str, *, scratch: bool = False) -> Iterator[Publication]:
    """Writes a file that appears whole when the block ends, and not at all when the block raises.

    Missing parent folders are made. Writers of the same name do not disturb each other: the last to finish wins.

    Args:
        path: path or URL of the file.
        scratch: whether the file is only of use to the run that writes it. Such a file is not hashed, so its facts have
            no digest, and not forced to the disk: after a loss of power it may be short, which its size then shows.

    Yields:
        The publication to write to.

    Raises:
        StorageError: the file cannot be written (no permission, disk full, refused by the store).
    """
    guard = functools.partial(named, path, "be written")
    if is_local(path):
        attempt = attempt_on_disk(local_path(path), guard, durable=not scratch)
    else:
        file_system, inner = remote(path)
        is_store = isinstance(file_system, AsyncFileSystem)
        attempt = (attempt_upload if is_store else attempt_and_rename)(file_system, inner, guard)
    with attempt as raw:
        yield Publication(path, raw, hashed=not scratch)


def write_bytes(path: str, data: bytes) -> FileFacts:
    """Publishes a small file whole."""
    with publish(path) as publication:
        publication.write(data)
    return publication.facts()


def file_facts(path: str) -> FileFacts:
    """Reads a whole file for its size and digest."""
    digest = hashlib.sha256()
    size = 0
    with open_read(path) as file, named(path, "be read"):
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileFacts(size, digest.hexdigest())


def remove(path: str) -> None:
    """Removes a file; one that is already gone is no error."""
    with named(path, "be removed"):
        if is_local(path):
            local_path(path).unlink(missing_ok=True)
            return
        file_system, inner = remote(path)
        try:
            file_system.rm_file(inner)
        except FileNotFoundError:
            return


def remove_tree(folder: str) -> None:
    """Removes a folder with all that lies below it; a missing one is no error.

    A link inside the folder is removed, not followed; a folder that is itself a link is emptied and stays.
    """
    if not is_local(folder):
        for path in list_files(folder, recursive=True):
            remove(path)
        return
    root = local_path(folder)
    with named(folder, "be removed"):
        for where, folders, names in os.walk(root, topdown=False, onerror=_unless_gone):
            for name in names:
                Path(where, name).unlink(missing_ok=True)
            for name in folders:
                _remove_folder(Path(where, name), link=True)
        _remove_folder(root, link=False)


def _remove_folder(folder: Path, *, link: bool) -> None:
    """Removes an empty folder, or a link to one if `link` says so."""
    if folder.is_symlink():
        if link:
            folder.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()
