"""The loops that index building spends its time in, compiled by Numba.

Each has a twin in NumPy or plain Python beside the code that calls it, which is its definition. This module is
imported inside the functions that need it, because importing Numba takes half a second. Compiled code is cached on
disk where a place for it can be written; elsewhere it is compiled anew. Fast-math stays off: the products and
differences of the blends must be rounded one by one, as Megatron's are.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["blend_greedy", "blend_until_spent", "sample_rows"]

_Function = TypeVar("_Function", bound=Callable[..., object])


def _compiled(function: _Function) -> _Function:
    try:
        return cast("_Function", numba.njit(function, nogil=True, cache=True))
    except RuntimeError:  # no folder for the cache can be written
        return cast("_Function", numba.njit(function, nogil=True))


@_compiled
def sample_rows(
    lengths: NDArray[np.int32],
    document_index: NDArray[np.int32],
    sequence_length: int,
    extra: int,
    rows: NDArray[np.int32 | np.int64],
) -> None:
    """Fills the sample index in one walk over the document index.

    Args:
        lengths: [sequences] tokens of every sequence, by sequence number.
        document_index: [entries] sequence numbers in the order of the stream; at least one entry.
        sequence_length: tokens per sample.
        extra: 1 when samples overlap by one token, else 0.
        rows: [samples + 1, 2] int32 or int64; filled with positions in `document_index` and token offsets there.
    """
    count = rows.shape[0]
    rows[0, 0] = 0
    rows[0, 1] = 0
    row = 1
    stream_end = np.int64(0)
    boundary = np.int64(sequence_length)  # stream position of the row
    for position in range(document_index.shape[0]):
        length = np.int64(lengths[document_index[position]])
        stream_end += length
        while boundary + extra <= stream_end and row < count:
            rows[row, 0] = position
            rows[row, 1] = boundary - (stream_end - length)
            row += 1
            boundary += sequence_length
    if row < count:
        position = document_index.shape[0] - 1
        if extra == 1:
            while position > 0 and lengths[document_index[position]] == 0:
                position -= 1
        offset = lengths[document_index[position]] - extra
        while row < count:
            rows[row, 0] = position
            rows[row, 1] = offset
            row += 1


@_compiled
def blend_greedy(
    weights: NDArray[np.float64],
    counts: NDArray[np.int64],
    first: int,
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
) -> None:
    """Draws one member after the other, always the one that lags most behind its weight.

    Args:
        weights: [members] shares.
        counts: [members] samples drawn from each member before `first`; updated.
        first: number of samples drawn before.
        dataset_index: [size] filled with the member of each sample.
        dataset_sample_index: [size] filled with the sample's number inside its member.
    """
    members = weights.shape[0]
    drawn = counts.astype(np.float64)
    for place in range(dataset_index.shape[0]):
        scale = np.float64(max(first + place, 1))
        best = 0
        most = weights[0] * scale - drawn[0]
        for member in range(1, members):
            lag = weights[member] * scale - drawn[member]
            if lag > most:
                most = lag
                best = member
        dataset_index[place] = best
        dataset_sample_index[place] = counts[best]
        counts[best] += 1
        drawn[best] += 1.0


@_compiled
def blend_until_spent(
    weights: NDArray[np.float64],
    sizes: NDArray[np.int64],
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
) -> None:
    """The same rule among the members that have samples left, until none has.

    Args:
        weights: [members] shares.
        sizes: [members] samples of each member, at least 1.
        dataset_index: [sum of sizes] filled with the member of each sample.
        dataset_sample_index: [sum of sizes] filled with the sample's number inside its member.
    """
    members = np.arange(weights.shape[0])
    left = weights.shape[0]
    counts = np.zeros(weights.shape[0], np.int64)
    for place in range(dataset_index.shape[0]):
        scale = np.float64(max(place, 1))
        best_slot = 0
        most = weights[members[0]] * scale - np.float64(counts[members[0]])
        for slot in range(1, left):
            member = members[slot]
            lag = weights[member] * scale - np.float64(counts[member])
            if lag > most:
                most = lag
                best_slot = slot
        best = members[best_slot]
        dataset_index[place] = best
        dataset_sample_index[place] = counts[best]
        counts[best] += 1
        if counts[best] == sizes[best]:
            for slot in range(best_slot, left - 1):
                members[slot] = members[slot + 1]
            left -= 1
