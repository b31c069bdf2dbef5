"""Shingles and signatures of documents: what near deduplication compares in place of their text.

A shingle is a run of n words. Words are runs of letters and digits in lower case; a character of a script that is
written without spaces is a word by itself. Two documents that differ in case, punctuation or layout alone have the same
shingles. A document of fewer than n words has none and is never a near duplicate.
"""

import functools
import unicodedata
from dataclasses import dataclass

import numpy as np

from gristmill.formats.near_table import NearDedup

__all__ = ["band_keys", "letters", "Shingles", "shingles_of"]

_ALONE = np.uint32(0x80000000)
_LAST_LETTER = 0x323B0  # no assigned letter or digit lies at or above it
_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x31FF), (0x31F0, 0x9FFF), (0xF900, 0xFAFF))


@dataclass(frozen=True, slots=True)
class Shingles:
    """The shingles of some documents.

    Attributes:
        hashes: [shingles] uint32: of each document its distinct shingles, ascending.
        counts: [documents] int64: how many each has.
    """

    hashes: np.ndarray
    counts: np.ndarray


@functools.cache
def letters() -> np.ndarray:
    """[1114112] uint32: what each code point is in a word; see `near_kernels.shingle_hashes`."""
    table = np.zeros(0x110000, np.uint32)
    for code in range(_LAST_LETTER):
        character = chr(code)
        if character.isalnum():
            lower = character.lower()
            table[code] = ord(lower) if len(lower) == 1 else code
        elif unicodedata.category(character) in {"Mn", "Mc"}:
            table[code] = code  # a vowel sign or accent belongs to its word
    for first, last in _UNSPACED:
        table[first : last + 1] |= np.where(table[first : last + 1] > 0, _ALONE, np.uint32(0))
    table[0x20000:_LAST_LETTER] |= np.where(table[0x20000:_LAST_LETTER] > 0, _ALONE, np.uint32(0))
    return table


def shingles_of(texts: list[str], ngram: int) -> Shingles:
    """The shingles of texts.

    Args:
        texts: the texts.
        ngram: words of a shingle.
    """
    from gristmill.pipelines.near_kernels import shingle_hashes

    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    stops = np.cumsum([len(text) for text in texts], dtype=np.int64)
    hashes = np.empty(len(codes) + 1, np.uint32)
    counts = np.zeros(len(texts), np.int64)
    total = shingle_hashes(codes, stops, letters(), ngram, hashes, counts)
    return Shingles(hashes[:total], counts)


@functools.cache
def _functions(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors and offsets of the hash functions, made of their numbers and the seed by a fixed mixing."""
    numbers = np.arange(2 * count, dtype=np.uint64) + (np.uint64(seed) << np.uint64(32))
    with np.errstate(over="ignore"):
        mixed = (numbers + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values = (mixed >> np.uint64(32)).astype(np.uint32)
    return values[:count] | np.uint32(1), values[count:]


def band_keys(shingles: Shingles, settings: NearDedup) -> np.ndarray:
    """The keys of the documents' bands.

    Args:
        shingles: of the documents.
        settings: bands, rows and seed.

    Returns:
        uint64 [documents, bands]: documents with equal keys agree in all rows of that band. Of a document without
        shingles they mean nothing.
    """
    from gristmill.pipelines.near_kernels import signatures

    factors, offsets = _functions(settings.bands * settings.rows, settings.seed)
    least = np.empty((len(shingles.counts), len(factors)), np.uint32)
    starts = np.cumsum(shingles.counts) - shingles.counts
    signatures(shingles.hashes, starts, shingles.counts, factors, offsets, least)
    rows = least.reshape(len(least), settings.bands, settings.rows)
    keys = np.broadcast_to(np.arange(settings.bands, dtype=np.uint64), rows.shape[:2]).copy()
    with np.errstate(over="ignore"):
        for row in range(settings.rows):  # a few passes over all documents
            keys = (keys ^ rows[:, :, row]) * np.uint64(0xBF58476D1CE4E5B9)
            keys ^= keys >> np.uint64(29)
        keys = (keys ^ (keys >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))
