"""The loops that index building spends its time in, compiled by Numba.

Each has a twin in NumPy or plain Python beside the code that calls it, which is its definition. This module is
imported inside the functions that need it, because importing Numba takes half a second. Compiled code is cached on
disk where a place for it can be written; elsewhere it is compiled anew. Fast-math stays off: the products and
differences of the blends must be rounded one by one, as Megatron's are.
"""

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled

__all__ = ["blend_rows", "sample_rows"]

# Members of a blend. Measured: up to the first, a search of the largest lag is guessed right; up to the second, rounds
# without guesses are faster, and so is writing all counts instead of one.
_VERY_FEW = 5
_FEW = 32


@compiled
def sample_rows(
    lengths: NDArray[np.int32 | np.uint16],
    document_index: NDArray[np.int32],
    sequence_length: int,
    extra: int,
    rows: NDArray[np.int32 | np.int64],
) -> None:
    """Fills the sample index in one walk over the document index.

    The lengths of a block of entries are fetched before they are summed: fetches that wait for nothing overlap, which
    makes the walk about twice as fast as one entry at a time.

    Args:
        lengths: [sequences] tokens of every sequence, by sequence number.
        document_index: [entries] sequence numbers in the order of the stream; at least one entry.
        sequence_length: tokens per sample.
        extra: 1 when samples overlap by one token, else 0.
        rows: [samples + 1, 2] int32 or int64; filled with positions in `document_index` and token offsets there.
    """
    count = np.uint64(rows.shape[0])
    entries = document_index.shape[0]
    block = np.empty(2048, np.int64)
    rows[0, 0] = 0
    rows[0, 1] = 0
    row = np.uint64(1)
    stream_end = np.int64(0)
    needed = np.int64(sequence_length + extra)  # tokens that the stream must have before the row can be written
    first = 0
    while first < entries and row < count:
        width = min(block.shape[0], entries - first)
        for place in range(width):
            block[place] = lengths[np.uint32(document_index[first + place])]
        for place in range(width):
            start = stream_end
            stream_end += block[place]
            while needed <= stream_end and row < count:
                rows[row, 0] = first + place
                rows[row, 1] = needed - extra - start
                row += np.uint64(1)
                needed += sequence_length
        first += width
    if row < count:
        position = entries - 1
        if extra == 1:
            while position > 0 and lengths[document_index[position]] == 0:
                position -= 1
        offset = np.int64(lengths[document_index[position]]) - extra
        while row < count:
            rows[row, 0] = position
            rows[row, 1] = offset
            row += np.uint64(1)


@compiled
def _larger(value: np.int64, place: int, other: np.int64, other_place: int) -> tuple[np.int64, int]:
    """The larger of two values with its place; the first of equal ones."""
    return (other, other_place) if other > value else (value, place)


@compiled
def _first_largest(bits: NDArray[np.int64], width: int) -> int:
    """Place of the first largest of `width` integers, a multiple of 8, or -1 when all are negative.

    Found in rounds, eight by eight, without a branch that could be guessed wrong.
    """
    best, top = -1, np.int64(-1)
    for start in range(0, width, 8):
        a, a_place = _larger(bits[start], 0, bits[start + 1], 1)
        b, b_place = _larger(bits[start + 2], 2, bits[start + 3], 3)
        c, c_place = _larger(bits[start + 4], 4, bits[start + 5], 5)
        d, d_place = _larger(bits[start + 6], 6, bits[start + 7], 7)
        a, a_place = _larger(a, a_place, b, b_place)
        c, c_place = _larger(c, c_place, d, d_place)
        a, a_place = _larger(a, a_place, c, c_place)
        top, best = _larger(top, best, a, start + a_place)
    return best


@compiled
def blend_rows(
    weights: NDArray[np.float64],
    limits: NDArray[np.int64],
    counts: NDArray[np.int64],
    first: int,
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
) -> None:
    """Draws one member after the other, always the one that lags most behind its weight, while it has samples.

    The largest lag is found among the bit patterns: those of non-negative floats are ordered like the floats, and
    integers are compared several at a time. A lag is never a negative zero, because a difference of equal numbers is a
    positive one. Only when every lag is negative (by rounding) are the floats themselves compared. The members' numbers
    lie in arrays made here, which the compiler knows not to overlap, padded to a multiple of 8 with places that are
    never drawn, so that its vector loops have no rest. Where they are few, all counts are rewritten, because a wide
    read soon after a narrow write waits for it.

    Args:
        weights: [members] shares, all above 0.
        limits: [members] samples that each member has; together at least as many as are drawn.
        counts: [members] samples drawn from each member before `first`; updated.
        first: number of samples drawn before.
        dataset_index: [size] filled with the member of each sample.
        dataset_sample_index: [size] filled with the sample's number inside its member.
    """
    room = (weights.shape[0] + 7) // 8 * 8
    share = np.empty(room, np.float64)  # of the members that have samples left, in order; then padding
    drawn = np.empty(room, np.float64)
    member = np.empty(room, np.int64)
    lags = np.empty(room, np.float64)
    bits = lags.view(np.int64)
    left = 0
    for place in range(weights.shape[0]):
        if counts[place] < limits[place]:
            share[left] = weights[place]
            drawn[left] = np.float64(counts[place])
            member[left] = place
            left += 1
    for place in range(left, room):
        share[place] = 0.0
        drawn[place] = 1.0
    width = (left + 7) // 8 * 8
    for row in range(dataset_index.shape[0]):
        scale = np.float64(max(first + row, 1))
        for place in range(width):
            lags[place] = share[place] * scale - drawn[place]
        best = -1
        if _VERY_FEW < left <= _FEW:
            best = _first_largest(bits, width)
        else:
            top = bits[0]
            for place in range(width):
                top = max(top, bits[place])
            if top >= 0:
                best = 0
                while bits[best] != top:
                    best += 1
        if best < 0:
            best = 0
            for place in range(1, left):
                if lags[place] > lags[best]:
                    best = place
        chosen = member[best]
        count = np.int64(drawn[best])
        dataset_index[row] = chosen
        dataset_sample_index[row] = count
        if left <= _FEW:
            for place in range(width):
                drawn[place] += 1.0 if place == best else 0.0
        else:
            drawn[best] += 1.0
        if count + 1 == limits[chosen]:
            counts[chosen] = count + 1
            left -= 1
            for place in range(best, left):
                share[place] = share[place + 1]
                drawn[place] = drawn[place + 1]
                member[place] = member[place + 1]
            share[left] = 0.0
            drawn[left] = 1.0
            width = (left + 7) // 8 * 8
    for place in range(left):
        counts[member[place]] = np.int64(drawn[place])
