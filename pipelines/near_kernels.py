"""The loops of near deduplication, compiled by Numba: shingles of documents, their signatures, and shared shingles.

Imported inside the functions that need it, since importing Numba takes half a second. Integers wrap around, as the
mixing of hashes wants; the twins that define the results are in the tests.
"""

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled

__all__ = ["shared_counts", "shingle_hashes", "signatures"]

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_START = np.uint64(0x9E3779B97F4A7C15)


@compiled
def _mix(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


@compiled
def shingle_hashes(
    codes: NDArray[np.uint32],
    stops: NDArray[np.int64],
    letters: NDArray[np.uint32],
    ngram: int,
    hashes: NDArray[np.uint32],
    counts: NDArray[np.int64],
) -> int:
    """Hashes the shingles of documents.

    Args:
        codes: [characters] code points of all documents, one after the other.
        stops: [documents] where each ends in `codes`.
        letters: [1114112] what a code point is in a word: 0 for no part of one, itself or its lower case, with the
            highest bit set where it is a word alone.
        ngram: words of a shingle.
        hashes: [at least characters + 1] its first part is filled: of each document its distinct shingles, ascending.
        counts: [documents] filled with how many those are.

    Returns:
        How many shingles all documents have.
    """
    alone = np.uint32(0x80000000)
    window = np.empty(ngram, np.uint64)
    start = np.int64(0)
    first = np.int64(0)
    for document in range(stops.shape[0]):
        found = first
        words = 0
        word = np.uint64(0)
        inside = False
        for place in range(start, stops[document] + 1):
            letter = letters[codes[place]] if place < stops[document] else np.uint32(0)
            single = letter >= alone
            if inside and (letter == 0 or single):
                window[words % ngram] = _mix(word)
                words += 1
                inside = False
                if words >= ngram:
                    hashes[found] = _shingle(window, words, ngram)
                    found += 1
            if single:
                window[words % ngram] = _mix(_START + np.uint64(letter))
                words += 1
                if words >= ngram:
                    hashes[found] = _shingle(window, words, ngram)
                    found += 1
            elif letter != 0:
                if not inside:
                    word = _START
                    inside = True
                word = (word ^ np.uint64(letter)) * _MIX_1
                word ^= word >> np.uint64(29)
        if found > first:
            part = np.sort(hashes[first:found])
            found = first
            for place in range(part.shape[0]):
                if place == 0 or part[place] != part[place - 1]:
                    hashes[found] = part[place]
                    found += 1
        counts[document] = found - first
        first = found
        start = stops[document]
    return int(first)


@compiled
def _shingle(window: NDArray[np.uint64], words: int, ngram: int) -> np.uint32:
    value = np.uint64(ngram)
    for place in range(words - ngram, words):
        value = _mix(value ^ window[place % ngram]) + _START
    return np.uint32(_mix(value) >> np.uint64(32))


@compiled
def signatures(
    hashes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    factors: NDArray[np.uint32],
    offsets: NDArray[np.uint32],
    least: NDArray[np.uint32],
) -> None:
    """For each document and hash function, the least hash of its shingles.

    Args:
        hashes: shingles.
        starts: [documents] first shingle of each.
        counts: [documents] how many there are.
        factors: [functions] odd numbers.
        offsets: [functions] any numbers.
        least: [documents, functions] filled; the largest value where a document has no shingle.
    """
    functions = factors.shape[0]
    multiplier = np.uint32(0x7FEB352D)
    for document in range(starts.shape[0]):
        row = least[document]
        for function in range(functions):
            row[function] = np.uint32(0xFFFFFFFF)
        for place in range(starts[document], starts[document] + counts[document]):
            shingle = hashes[place]
            for function in range(functions):
                value = np.uint32(shingle * factors[function] + offsets[function])
                value = np.uint32((value ^ (value >> np.uint32(15))) * multiplier)
                value ^= value >> np.uint32(16)
                row[function] = min(row[function], value)


@compiled
def shared_counts(
    one: NDArray[np.uint32],
    one_starts: NDArray[np.int64],
    one_counts: NDArray[np.int64],
    other: NDArray[np.uint32],
    other_starts: NDArray[np.int64],
    other_counts: NDArray[np.int64],
    shared: NDArray[np.int64],
) -> None:
    """How many shingles the two documents of each pair have in common.

    Args:
        one: shingles of the first documents, ascending within each.
        one_starts: [pairs] where the first document of a pair starts in them.
        one_counts: [pairs] how many it has.
        other: likewise for the second documents.
        other_starts: [pairs].
        other_counts: [pairs].
        shared: [pairs] filled.
    """
    for pair in range(shared.shape[0]):
        left, left_stop = one_starts[pair], one_starts[pair] + one_counts[pair]
        right, right_stop = other_starts[pair], other_starts[pair] + other_counts[pair]
        count = 0
        while left < left_stop and right < right_stop:
            a, b = one[left], other[right]
            count += a == b
            left += a <= b
            right += b <= a
        shared[pair] = count
