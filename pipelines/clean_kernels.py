"""Loops that the rules on texts share, compiled by Numba: splitting words and lines, hashing.

They work on all code points of a batch in one array and release the interpreter's lock. Imported inside the functions
that need it, because importing Numba takes half a second. Plain Python beside the tests is their definition.
"""

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.pipelines.clean_classes import ALPHA, JOINER, LINE_END, SINGLE, SPACE, SYMBOL, WORD

__all__ = [
    "BASE",
    "count_words",
    "HAS_ALPHA",
    "HAS_OTHER",
    "hash_codes",
    "INVERSE",
    "key_of",
    "MIX",
    "next_line",
    "split_words",
    "word_end",
]

BASE = np.uint64(0x9E3779B97F4A7C15)
"""Base of polynomial hashes; odd, so that it has an inverse."""
INVERSE = np.uint64(pow(int(BASE), -1, 2**64))
"""What undoes a multiplication by `BASE`."""
MIX = np.uint64(0xBF58476D1CE4E5B9)
"""Odd factor that spreads a hash over all its bits."""
_ONE = np.uint64(1)
_NONE = np.uint64(0)
_32 = np.uint64(32)
_29 = np.uint64(29)
HAS_ALPHA = np.uint8(1)
"""Kind of a word with a letter."""
HAS_OTHER = np.uint8(2)
"""Kind of a word that is not of symbols alone."""
_FEED, _RETURN = 10, 13


@compiled
def key_of(value: np.uint64) -> np.uint64:
    """A hash spread over all bits, never 0, which marks a free slot."""
    value = (value ^ (value >> _32)) * MIX
    value ^= value >> _29
    return value if value != _NONE else _ONE


@compiled
def hash_codes(codes: NDArray[np.uint32], first: int, last: int) -> np.uint64:
    """Polynomial hash of the code points from `first` up to `last`."""
    value = _NONE
    for place in range(first, last):
        value = value * BASE + np.uint64(codes[place]) + _ONE
    return value


@compiled
def word_end(codes: NDArray[np.uint32], place: int, last: int, table: NDArray[np.uint16], by_space: bool) -> int:
    """End of the word that begins at `place`, which is no white space."""
    if by_space:
        place += 1
        while place < last and not table[codes[place]] & SPACE:
            place += 1
        return place
    flags = table[codes[place]]
    if flags & SINGLE:
        return place + 1
    if not flags & WORD:
        first = codes[place]
        place += 1
        while place < last and codes[place] == first:
            place += 1
        return place
    place += 1
    while place < last:
        flags = table[codes[place]]
        if flags & WORD:
            if flags & SINGLE:
                break
            place += 1
        elif flags & JOINER and place + 1 < last and table[codes[place + 1]] & (WORD | SINGLE) == WORD:
            place += 2
        else:
            break
    return place


@compiled
def count_words(codes: NDArray[np.uint32], first: int, last: int, table: NDArray[np.uint16], by_space: bool) -> int:
    """Number of words from `first` up to `last`."""
    count = 0
    place = first
    while place < last:
        if table[codes[place]] & SPACE:
            place += 1
            continue
        place = word_end(codes, place, last, table, by_space)
        count += 1
    return count


@compiled
def split_words(
    codes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    alive: NDArray[np.bool_],
    table: NDArray[np.uint16],
    by_space: bool,
    word_starts: NDArray[np.int64],
    lengths: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    kinds: NDArray[np.uint8],
) -> int:
    """Splits the documents that are alive into words.

    Args:
        codes: [characters] code points of the batch.
        starts: [documents + 1] where each document starts.
        alive: [documents] which to look at; the others get no words.
        table: classes of the code points.
        by_space: whether words end at white space alone.
        word_starts: [documents + 1] filled with the first word of each document.
        lengths: [characters] filled with each word's code points.
        hashes: [characters] filled with each word's hash.
        kinds: [characters] filled with 1 for a word with a letter, plus 2 for one with more than symbols.

    Returns:
        The number of words.
    """
    count = 0
    for document in range(len(starts) - 1):
        word_starts[document] = count
        if not alive[document]:
            continue
        place, last = starts[document], starts[document + 1]
        while place < last:
            if table[codes[place]] & SPACE:
                place += 1
                continue
            end = word_end(codes, place, last, table, by_space)
            value = _NONE
            any_flags = 0
            other = False
            for inside in range(place, end):
                code = codes[inside]
                flags = table[code]
                any_flags |= flags
                other = other or not flags & SYMBOL
                value = value * BASE + np.uint64(code) + _ONE
            lengths[count] = end - place
            hashes[count] = value
            kinds[count] = (HAS_ALPHA if any_flags & ALPHA else 0) | (HAS_OTHER if other else 0)
            count += 1
            place = end
    word_starts[len(starts) - 1] = count
    return count


@compiled
def next_line(codes: NDArray[np.uint32], place: int, last: int, table: NDArray[np.uint16]) -> tuple[int, int]:
    """End of the line that begins at `place`, and where the next one begins, as `str.splitlines` cuts."""
    while place < last and not table[codes[place]] & LINE_END:
        place += 1
    if place == last:
        return last, last
    if codes[place] == _RETURN and place + 1 < last and codes[place + 1] == _FEED:
        return place, place + 2
    return place, place + 1
