"""Why a file could not be read or written, in words; where a disk is full or may only be read, with what helps.

An operating system says what happened and no more. What is free and what to do follow from its number of the error, at
the price of a table of the few that people meet.
"""

import errno
import os
from pathlib import Path

__all__ = ["reason"]

_AGAIN = "then run the same command again; what is finished stays"
_REMEDIES = {
    errno.ENOSPC: f"free some space, or write to a larger disk, {_AGAIN}",
    errno.EDQUOT: f"free some of your quota, or have it raised, {_AGAIN}",
    errno.EFBIG: f"raise the limit on the size of files (`ulimit -f`, or that of the file system), {_AGAIN}",
    errno.EROFS: f"have the disk mounted for writing, {_AGAIN}",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)


def reason(error: Exception, place: Path | None = None) -> str:
    """Why something failed, in words.

    Args:
        error: what the operating system or a store's library raised.
        place: the file, where it is one of this machine.
    """
    if isinstance(error, OSError) and error.strerror:
        if place is None or error.errno not in _REMEDIES:
            return error.strerror
        free = f", {_free_bytes(place) / 1e6:,.1f} MB are free" if error.errno in _FULL else ""
        return f"{error.strerror}{free}; {_REMEDIES[error.errno]}"
    if isinstance(error, FileNotFoundError):  # of a store; its text is only the path once more
        return "No such file, folder or bucket"
    if isinstance(error, NotImplementedError):
        return (
            "its file system can neither rename nor copy a file, so nothing could appear there whole; write to a disk "
            "or an object store, and copy the finished corpus from there"
        )
    text = str(error).strip(" ,")
    if isinstance(error, OSError | ValueError):
        return text or type(error).__name__
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _free_bytes(place: Path) -> int:
    """Bytes that the disk of a file has left for users."""
    folder = os.path.abspath(place)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize
