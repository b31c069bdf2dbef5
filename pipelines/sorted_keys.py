"""Files of records sorted by a 64-bit key, of which a range of keys is read without the rest.

Keys are dealt to partitions by their value, so each partition is a range of every such file; whoever works on one looks
for its ends by halving and reads what lies between them.
"""

import numpy as np

from gristmill.formats.storage import read_range

__all__ = ["key_bounds", "read_keys_between"]

_PART = 1 << 12


def key_bounds(partitions: int) -> np.ndarray:
    """[partitions + 1] uint64: first key of each partition, and the largest of all."""
    step = (1 << 64) // partitions
    return np.array([*(number * step for number in range(partitions)), (1 << 64) - 1], np.uint64)


def read_keys_between(
    path: str, dtype: np.dtype, partition: int, partitions: int, *, first: int = 0, count: int
) -> np.ndarray:
    """The records of one partition.

    Args:
        path: a file.
        dtype: of its records; the field `key` is what they are sorted by.
        partition: number of the partition.
        partitions: how many there are.
        first: where in the file the sorted records begin.
        count: how many there are.
    """
    bounds = key_bounds(partitions)
    low = _search(path, dtype, first, first + count, bounds[partition])
    last = partition + 1 == partitions
    high = first + count if last else _search(path, dtype, low, first + count, bounds[partition + 1])
    return np.frombuffer(read_range(path, low * dtype.itemsize, (high - low) * dtype.itemsize), dtype)


def _search(path: str, dtype: np.dtype, low: int, high: int, key: np.uint64) -> int:
    """Number of the first record from `low` on that has no smaller key."""
    while high - low > _PART:
        middle = (low + high) // 2
        (found,) = np.frombuffer(read_range(path, middle * dtype.itemsize, dtype.itemsize), dtype)
        low, high = (middle, high) if found["key"] < key else (low, middle)
    part = np.frombuffer(read_range(path, low * dtype.itemsize, (high - low) * dtype.itemsize), dtype)
    return low + int(np.searchsorted(part["key"], key))
