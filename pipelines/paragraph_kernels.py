"""The loops over paragraphs, compiled by Numba: where the paragraphs of documents lie, and the keys of some.

Imported inside the functions that need it, since importing Numba takes half a second. Integers wrap around, as the
mixing of hashes wants; plain Python in the tests says which paragraphs are alike.
"""

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.pipelines.text_key_kernels import MANY, WHITE

__all__ = ["paragraph_keys", "paragraph_spans"]

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MIX_3 = np.uint64(0x9E3779B97F4A7C15)
_MIX_4 = np.uint64(0xD6E8FEB86659FD93)
_FEED = 10
_SPACE = np.uint64(32)


@compiled
def paragraph_spans(
    codes: NDArray[np.uint32],
    stops: NDArray[np.int64],
    table: NDArray[np.uint32],
    spans: NDArray[np.int64],
) -> int:
    """Finds the paragraphs of documents: the lines, between line feeds, that are not blank.

    Args:
        codes: [characters] code points of all documents, one after the other.
        stops: [documents] where each ends in `codes`.
        table: [1114112] `WHITE` where a code point is white space.
        spans: [at least the lines of all documents, 6] filled, for each paragraph: number of its document, where it
            begins and ends in `codes`, code points without white space at its ends, bytes in UTF-8 of it, and of what
            stands between it and the next one or the document's end.

    Returns:
        How many paragraphs there are.
    """
    found = 0
    place = np.int64(0)
    for document in range(stops.shape[0]):
        first = found
        stop = stops[document]
        while place < stop:
            start = place
            first_letter, behind_letter = np.int64(-1), np.int64(-1)
            size = np.int64(0)
            while place < stop and codes[place] != _FEED:
                code = codes[place]
                size += 1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)
                if table[code] != WHITE:
                    behind_letter = place + 1
                    if first_letter < 0:
                        first_letter = place
                place += 1
            end = place
            feed = 0
            if place < stop:
                feed = 1
                place += 1
            if first_letter >= 0:
                row = spans[found]
                row[0], row[1], row[2], row[3], row[4], row[5] = (
                    document,
                    start,
                    end,
                    behind_letter - first_letter,
                    size,
                    feed,
                )
                found += 1
            elif found > first:
                spans[found - 1, 5] += size + feed
    return found


@compiled
def paragraph_keys(
    codes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    normalized: bool,
    keys: NDArray[np.uint64],
) -> None:
    """Hashes paragraphs to 128 bits.

    Args:
        codes: [characters] code points, in Unicode's NFC where `normalized`.
        starts: [paragraphs] where each begins.
        stops: [paragraphs] where each ends.
        table: [1114112] what each code point folds to; see `WHITE` and `MANY`.
        expansions: [rows, 3] code points that one folds to, 0 behind the last.
        normalized: whether normal forms are compared, or code points as they are.
        keys: [paragraphs, 2] filled.
    """
    for paragraph in range(starts.shape[0]):
        low, high = _MIX_3, _MIX_4
        gap, begun = False, False
        for place in range(starts[paragraph], stops[paragraph]):
            code = codes[place]
            if not normalized:
                low, high = _step(low, high, np.uint64(code))
                continue
            folded = table[code]
            if folded == WHITE:
                gap = begun
                continue
            if gap:
                low, high = _step(low, high, _SPACE)
            gap, begun = False, True
            if folded & MANY:
                row = expansions[folded & np.uint32(0x7FFFFFFF)]
                for part in range(3):
                    if row[part] != 0:
                        low, high = _step(low, high, np.uint64(row[part]))
            else:
                low, high = _step(low, high, np.uint64(folded))
        keys[paragraph, 0] = _last(low)
        keys[paragraph, 1] = _last(high)


@compiled
def _step(low: np.uint64, high: np.uint64, code: np.uint64) -> tuple[np.uint64, np.uint64]:
    low = (low ^ code) * _MIX_1
    low ^= low >> np.uint64(29)
    high = (high + code) * _MIX_2
    high ^= high >> np.uint64(31)
    return low, high


@compiled
def _last(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))
