"""How local files are read: through a map, or by calls that can fail in peace.

A map is the fastest way, and where the file is on a disk of this machine, nothing can go wrong with it but that
somebody cuts the file short. On a network or user-space file system a lost server or a failed read ends the process by
a signal, without a word; there, ranged reads cost some nanoseconds more for each token and give an error that names
the file. `auto` decides by the type of the file system.
"""

import functools
import os
from typing import Literal, get_args

from gristmill.formats.errors import SettingsError
from gristmill.formats.storage import is_local, local_path

__all__ = ["Backend", "backend_of", "check_backend", "file_system_type"]

Backend = Literal["auto", "mmap", "pread"]
"""How local files are read; ``auto`` is ``pread`` on network and user-space file systems, else ``mmap``."""

_REMOTE = frozenset(
    {
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse",
        "fuseblk",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
        "wekafs",
    }
)
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def check_backend(backend: str) -> Backend:
    """The back-end that a word names.

    Raises:
        SettingsError: it is none.
    """
    for known in get_args(Backend):
        if backend == known:
            return known  # type: ignore[no-any-return]  # one of the three words
    raise SettingsError(
        f"backend {backend!r}: it is 'mmap', 'pread', or 'auto', which takes pread on network and user-space file "
        "systems"
    )


def backend_of(path: str, backend: Backend) -> Literal["mmap", "pread"]:
    """How a local file is read.

    Args:
        path: the file; it need not exist.
        backend: what was asked for.
    """
    if backend != "auto":
        return backend
    return _backend_of_folder(os.path.dirname(os.path.abspath(local_path(path))))


@functools.lru_cache(maxsize=4096)
def _backend_of_folder(folder: str) -> Literal["mmap", "pread"]:
    kind = file_system_type(folder)
    return "pread" if kind in _REMOTE or kind.startswith("fuse.") else "mmap"


def file_system_type(path: str, mounts: str = "/proc/self/mountinfo") -> str:
    """Type of the file system that holds a local path, in the kernel's words; empty where it cannot be told.

    Args:
        path: a file or folder, or where one would be.
        mounts: the table of mounts.
    """
    if not is_local(path):
        return ""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:  # not Linux
        return ""
    real = os.path.realpath(local_path(path))
    longest, found = -1, ""
    for line in lines:  # "36 35 98:0 /root /mount options [optional …] - type source options"
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) > 4 and right:
            mount = fields[4]
            for escape, character in _ESCAPES.items():
                mount = mount.replace(escape, character)
            inside = real == mount or real.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= longest:  # of two mounts in one place the later hides the earlier
                longest, found = len(mount), right.split(" ")[0]
    return found
