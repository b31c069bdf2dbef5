"""Where arrays lie: their address in memory, and the file that they are mapped from."""

import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.errors import FormatError

__all__ = ["address_of", "ArrayFile", "file_of", "IndexWatch"]


def address_of(array: NDArray[Any]) -> int:
    """Memory address of an array's first element; the caller keeps the array alive."""
    return int(array.__array_interface__["data"][0])


class ArrayFile(NamedTuple):
    """The file that an array is mapped from.

    Attributes:
        path: its path.
        offset: byte of the file at which the array begins.
        map: the array that owns the map.
    """

    path: str
    offset: int
    map: Any


def file_of(array: NDArray[Any]) -> ArrayFile | None:
    """The file that an array, or the array that it is a view of, is mapped from; None for one in memory."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None:
        return None
    return ArrayFile(os.fspath(root.filename), root.offset + address_of(array) - address_of(root), root)


class IndexWatch:
    """Notices when a file that index arrays are mapped from is cut short, before a read runs into the missing part.

    Looks once a second at most: these files are published whole and replaced whole, so only somebody's mistake cuts
    one, and a look at each for every batch would cost more than the batch where there are many sources.
    """

    def __init__(self, arrays: Iterable[Any]) -> None:
        """Looks at nothing yet.

        Args:
            arrays: the index arrays; those that are not mapped are left out.
        """
        found = [file_of(array) for array in arrays if isinstance(array, np.ndarray)]
        self._files = list({id(one.map): one for one in found if one is not None}.values())
        self._next = 0.0

    def require_whole(self) -> None:
        """Looks if a second has passed since the last look.

        Raises:
            FormatError: a file is shorter than its map.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 1
        for path, _, array in self._files:
            size = array._mmap.size()  # noqa: SLF001 - NumPy has no other way to the open file
            needed = array.offset + array.nbytes
            if size < needed:
                raise FormatError(
                    f"{path}: has {size} bytes now, but {needed} are mapped: cut short while it was in use; build the "
                    "indices again, and open the stream again"
                )
