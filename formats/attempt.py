"""One attempt at writing a file: streamed to where no reader looks, then made to appear in one step, or dropped.

How a file appears depends on where it lies: a rename on a disk, the commit of an upload on an object store. Each way
here is a context manager that yields a file to write to; errors of the disk or store are passed through `guard`, which
trades one more argument for messages that name the path as the caller knows it.
"""

import contextlib
import os
import posixpath
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["attempt_and_rename", "attempt_on_disk", "attempt_upload", "Guard", "is_temporary_name"]

Guard = Callable[[], AbstractContextManager[None]]
"""Makes the context in which the disk or store is used, and in which its errors are renamed."""

_TEMPORARY = re.compile(r"^\..+\.[0-9a-f]{32}\.tmp$")
_BUFFER_BYTES = 1 << 20


def is_temporary_name(name: str) -> bool:
    """Whether a file name is one that an unfinished attempt leaves behind."""
    return _TEMPORARY.match(name) is not None


def _temporary_name(name: str) -> str:
    return f".{name}.{uuid.uuid4().hex}.tmp"


@contextmanager
def attempt_on_disk(final: Path, guard: Guard, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Writes beside `final` under a name of this attempt, flushes to the disk if it is to be durable, then renames."""
    temporary = final.with_name(_temporary_name(final.name))
    with guard():
        final.parent.mkdir(parents=True, exist_ok=True)
        raw = temporary.open("wb", buffering=_BUFFER_BYTES)
    try:
        yield raw
        with guard():
            raw.flush()
            if durable:
                os.fsync(raw.fileno())
            raw.close()
            temporary.replace(final)
    except BaseException:
        with contextlib.suppress(OSError):  # on a full disk closing fails once more; the first error is told
            raw.close()
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def attempt_upload(file_system: Any, inner: str, guard: Guard) -> Iterator[BinaryIO]:
    """Uploads to an object store: the object comes to be when the upload is committed."""
    with guard():
        raw = file_system.open(inner, "wb", autocommit=False)
    try:
        yield raw
        with guard():
            raw.close()
            raw.commit()
    except BaseException:
        with contextlib.suppress(Exception):  # an upload that is not committed is no object; the first error is told
            raw.discard()
        raw.closed = True  # else collecting the file would begin another upload
        raise


@contextmanager
def attempt_and_rename(file_system: Any, inner: str, guard: Guard) -> Iterator[BinaryIO]:
    """Writes to a file system that is no object store; these may ignore a request to commit later, so a rename does."""
    folder, name = posixpath.split(inner)
    temporary = posixpath.join(folder, _temporary_name(name))
    with guard():
        if file_system.isdir(inner):  # a rename would move the file into it
            raise IsADirectoryError("Is a directory")
        file_system.makedirs(folder, exist_ok=True)
        raw = file_system.open(temporary, "wb")
    try:
        yield raw
        with guard():
            raw.close()
            file_system.mv(temporary, inner)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is told
            raw.close()
        with contextlib.suppress(Exception):
            file_system.rm_file(temporary)
        raise
