"""Files that only one of several writers makes, and times by the clock of the place where a file lies.

A local file is written aside and linked into place, an object is uploaded on condition that there is none: whoever
comes second is told so. Ages are differences of times that one store gave, so clocks of machines need not agree. File
systems of fsspec that take no such condition are looked at first and then written to, which leaves a gap of
milliseconds between two writers.
"""

import errno
import os
import uuid
from datetime import UTC, datetime
from typing import Any

from gristmill.formats.storage import is_local, list_files, local_path, named, relative_to, remote

__all__ = ["create_bytes", "modified_seconds", "sizes_below"]

_NO_CONDITIONS = (errno.ENOSYS, errno.EOPNOTSUPP)


def create_bytes(path: str, data: bytes) -> bool:
    """Publishes a small file whole unless there is one; says whether it did.

    Raises:
        StorageError: the file cannot be written.
    """
    with named(path, "be written"):
        if is_local(path):
            return _create_local(path, data)
        file_system, inner = remote(path)
        try:
            file_system.pipe_file(inner, data, mode="create")
        except FileExistsError:
            return False
        except (NotImplementedError, OSError, TypeError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_CONDITIONS:
                raise
            if file_system.exists(inner):
                return False
            file_system.pipe_file(inner, data)
        return True


def _create_local(path: str, data: bytes) -> bool:
    final = local_path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(data)
        try:
            os.link(temporary, final)
        except FileExistsError:
            return False
        except OSError:  # a file system without links; what is half written then has no meaning yet to readers
            try:
                with final.open("xb") as file:
                    file.write(data)
            except FileExistsError:
                return False
        return True
    finally:
        temporary.unlink(missing_ok=True)


def modified_seconds(path: str) -> float | None:
    """When a file was last written, in seconds by the clock of its disk or store; None where there is none.

    Raises:
        StorageError: it cannot be told.
    """
    with named(path, "be examined"):
        try:
            if is_local(path):
                return local_path(path).stat().st_mtime
            file_system, inner = remote(path)
            return _seconds(file_system.modified(inner))
        except FileNotFoundError:
            return None


def _seconds(found: Any) -> float:
    if isinstance(found, int | float):
        return float(found)
    moment = found if isinstance(found, datetime) else datetime.fromisoformat(str(found))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def sizes_below(folder: str) -> dict[str, int]:
    """Bytes of every file below a folder by its path, which begins with `folder` as it was given; one listing.

    Raises:
        StorageError: the folder may not be listed.
    """
    with named(folder, "be listed"):
        if is_local(folder):
            root = local_path(folder)
            names = (relative_to(path, folder) for path in list_files(folder, recursive=True))
            return {f"{folder.rstrip('/')}/{name}": (root / name).stat().st_size for name in names}
        file_system, inner = remote(folder)
        prefix = inner.rstrip("/") + "/"
        try:
            found = file_system.find(inner, detail=True)
        except FileNotFoundError:
            return {}
        return {
            f"{folder.rstrip('/')}/{name[len(prefix) :]}": int(facts["size"])
            for name, facts in sorted(found.items())
            if name.startswith(prefix) and not name.endswith("/")
        }
