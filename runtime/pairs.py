"""Inputs and targets of rows, each side by side in memory, so that they can go to devices as they are.

A row of L + 1 tokens holds both, one place apart. As views of it they would be copied once more on the way to a device;
kept apart and aligned, JAX takes them over as they lie where its devices share the host's memory. The price is that the
tokens between the ends are written twice, by whoever reads them.
"""

import ctypes
import math
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["aligned_arrays", "pairs_of", "PairStream", "TokenPairs"]

TokenPairs = tuple[NDArray[np.uint16 | np.int32], NDArray[np.uint16 | np.int32]]
"""Inputs and targets, [R, L] each: all tokens of a row but the last, and all but the first."""

_ALIGNED_BYTES = 64


@runtime_checkable
class PairStream(Protocol):
    """A stream that reads inputs and targets at once; what `pairs_of` makes of its rows is the definition."""

    def read_pairs(self, rows: ArrayLike) -> TokenPairs:
        """Inputs and targets of rows, in the order given.

        Args:
            rows: as for `gristmill.runtime.streams.Stream.read`, which says what is raised.

        Returns:
            [R, L] of the stream's dtype each; fresh, C-contiguous, aligned to 64 bytes.
        """
        ...


def aligned_arrays(count: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, zeros: bool = False) -> list[Any]:
    """Fresh C-contiguous arrays that begin at multiples of 64 bytes, in one piece of memory.

    Args:
        count: how many.
        shape: of each.
        dtype: of each.
        zeros: whether they hold 0; else they hold anything.
    """
    size = math.prod(shape) * dtype.itemsize
    room = size + -size % _ALIGNED_BYTES
    memory = (np.zeros if zeros else np.empty)(count * room + _ALIGNED_BYTES, np.uint8)
    first = -ctypes.addressof(ctypes.c_char.from_buffer(memory.data)) % _ALIGNED_BYTES  # `.ctypes` takes longer
    starts = range(first, first + count * room, room) if room else [first] * count
    return [np.ndarray(shape, dtype, memory, start) for start in starts]


def pairs_of(tokens: NDArray[np.uint16 | np.int32]) -> TokenPairs:
    """Inputs and targets of rows, as `PairStream.read_pairs` gives them.

    Args:
        tokens: [R, L + 1].
    """
    inputs, targets = aligned_arrays(2, (tokens.shape[0], tokens.shape[1] - 1), tokens.dtype)
    inputs[:] = tokens[:, :-1]
    targets[:] = tokens[:, 1:]
    return inputs, targets
