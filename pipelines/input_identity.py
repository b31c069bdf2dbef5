"""Says whether two spellings of a path or URL mean one file, cheaply for many files of few folders.

Where a folder really lies is asked of the disk once, and of a file only whether it is a link.
"""

import os
from collections.abc import Callable
from functools import cache

from gristmill.formats.storage import is_local, local_name
from gristmill.pipelines.input_stores import open_store

__all__ = ["identities"]

_NO_NAMES = frozenset({"", ".", ".."})


def identities() -> Callable[[str], str]:
    """A function that gives for a path or URL what all spellings of it have in common; good for one listing."""
    real_folder = cache(os.path.realpath)

    @cache
    def identity(path: str) -> str:
        if not is_local(path):
            file_system, inner = open_store(path)
            return str(file_system.unstrip_protocol(inner))
        here = local_name(path)
        folder, name = os.path.split(here)
        if name in _NO_NAMES or os.path.islink(here):
            return os.path.realpath(here)
        return os.path.join(real_folder(folder), name)

    return identity
