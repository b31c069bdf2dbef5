"""Many ranged reads of a file in one call, compiled: neighbours become one read, and the GIL is held by none of them.

A call of the operating system costs as much as copying some kilobytes, so ranges with a small gap between them are
read together, the gap into a place of its own. What fails is left to the caller, from the first that did.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.runtime.raw_memory import read_at

__all__ = ["GAP_BYTES", "read_items", "read_ranges"]

GAP_BYTES = 4096
"""Ranges with at most so many bytes between them are read together: the kernel reads whole pages anyway."""

_MOST_PARTS = 1024  # of one preadv


@compiled
def read_items(descriptor: int, begins: NDArray[np.int64], item_bytes: int, out: NDArray[Any]) -> int:
    """Reads items of one size.

    Args:
        descriptor: of the open file.
        begins: int64 [P], byte at which each begins.
        item_bytes: bytes of an item.
        out: C-contiguous, of P times `item_bytes` bytes; filled.

    Returns:
        -1, or the number of the first item that did not come whole.
    """
    part = np.empty(2, np.int64)
    part[1] = item_bytes
    for number in range(len(begins)):
        part[0] = out.ctypes.data + number * item_bytes
        got = read_at(np.int64(descriptor), np.int64(part.ctypes.data), np.int64(1), begins[number])
        if got != item_bytes:
            return number
    return -1


@compiled
def read_ranges(
    descriptor: int,
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    places: NDArray[np.int64],
    out: NDArray[Any],
) -> tuple[int, int]:
    """Reads ranges, in ascending order, merging what is close.

    Args:
        descriptor: of the open file.
        begins: int64 [P], byte at which each range begins, ascending.
        lengths: int64 [P], bytes of each, at least 1.
        places: int64 [P], byte of `out` that each begins at.
        out: C-contiguous; filled there.

    Returns:
        -1, or the number of the first range of the first read that did not come whole; and the bytes read before.
    """
    gap = np.empty(GAP_BYTES, np.uint8)
    parts = np.empty((_MOST_PARTS, 2), np.int64)
    total = 0
    first = 0
    while first < len(begins):
        used = 0
        at = begins[first]
        number = first
        while number < len(begins) and used + 2 <= _MOST_PARTS:
            between = begins[number] - at
            if between < 0 or between > GAP_BYTES:
                break
            if between > 0:
                parts[used, 0] = gap.ctypes.data
                parts[used, 1] = between
                used += 1
            parts[used, 0] = out.ctypes.data + places[number]
            parts[used, 1] = lengths[number]
            used += 1
            at = begins[number] + lengths[number]
            number += 1
        wanted = at - begins[first]
        got = read_at(np.int64(descriptor), np.int64(parts.ctypes.data), np.int64(used), begins[first])
        if got != wanted:
            return first, total
        total += wanted
        first = number
    return -1, total
