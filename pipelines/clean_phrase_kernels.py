"""The loop that looks for phrases and n-grams of a list in the words of a batch, compiled by Numba.

A phrase is the hash of its words' hashes; all phrases lie in one open table, whatever their length.
"""

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.pipelines.clean_kernels import BASE, HAS_OTHER, key_of

__all__ = ["enter", "find", "phrase_key"]

_NONE = np.uint64(0)
_ONE = np.uint64(1)


@compiled
def phrase_key(hashes: NDArray[np.uint64], first: int, words: int) -> np.uint64:
    """Key of the words from `first` on, never 0."""
    value = np.uint64(words)
    for place in range(first, first + words):
        value = value * BASE + key_of(hashes[place])
    return key_of(value)


@compiled
def enter(slots: NDArray[np.uint64], keys: NDArray[np.uint64]) -> None:
    """Enters keys into an open table, a power of two of slots above twice the keys, all 0 at first."""
    mask = np.uint64(len(slots) - 1)
    for key in keys:
        slot = key & mask
        while slots[slot] != _NONE and slots[slot] != key:
            slot = (slot + _ONE) & mask
        slots[slot] = key


@compiled
def find(
    word_starts: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    kinds: NDArray[np.uint8],
    skip_symbols: bool,
    sizes: NDArray[np.int64],
    first_words: NDArray[np.bool_],
    slots: NDArray[np.uint64],
    enough: int,
    hits: NDArray[np.int64],
    found: NDArray[np.uint64],
) -> None:
    """Counts the phrases of a table in each document, up to `enough` of them.

    Args:
        word_starts: [documents + 1] first word of each document.
        hashes: [words] hash of each word.
        kinds: [words] see `Words`.
        skip_symbols: whether words of symbols alone are passed over.
        sizes: [lengths] words of the table's phrases, each length once.
        first_words: [2**16] whether a phrase begins with a word whose key has these low bits.
        slots: the table.
        enough: hits at which looking ends.
        hits: [documents] filled with the count.
        found: [documents] filled with the key of the first phrase found, or 0.
    """
    mask = np.uint64(len(slots) - 1)
    low = np.uint64(len(first_words) - 1)
    longest = 0
    for document in range(len(word_starts) - 1):
        longest = max(longest, word_starts[document + 1] - word_starts[document])
    own = np.empty(longest, np.uint64)
    for document in range(len(word_starts) - 1):
        hits[document] = 0
        found[document] = _NONE
        words = 0
        for word in range(word_starts[document], word_starts[document + 1]):
            if not skip_symbols or kinds[word] & HAS_OTHER:
                own[words] = hashes[word]
                words += 1
        for place in range(words):
            if hits[document] >= enough:
                break
            if not first_words[key_of(own[place]) & low]:
                continue
            for size in sizes:
                if place + size <= words:
                    key = phrase_key(own, place, size)
                    slot = key & mask
                    while slots[slot] != _NONE and slots[slot] != key:
                        slot = (slot + _ONE) & mask
                    if slots[slot] == key:
                        hits[document] += 1
                        if found[document] == _NONE:
                            found[document] = key
