"""The loop that makes normal forms of texts, compiled by Numba: case folding and white space, on UTF-8 as it lies.

Imported inside the functions that need it, since importing Numba takes half a second. What it gives is defined by
`text_keys.normal_form`.
"""

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled

__all__ = ["MANY", "normal_forms", "WHITE"]

WHITE = np.uint32(0xFFFFFFFF)
"""What stands for white space in a table of folded code points."""
MANY = np.uint32(0x80000000)
"""Set where a code point folds to several: the rest is their row among the expansions."""

_SPACE = 32


@compiled
def normal_forms(
    data: NDArray[np.uint8],
    stops: NDArray[np.int64],
    ascii_table: NDArray[np.uint8],
    table: NDArray[np.uint32],
    expansions: NDArray[np.uint32],
    forms: NDArray[np.uint8],
    ends: NDArray[np.int64],
) -> None:
    """Makes normal forms of texts in Unicode's NFC.

    Args:
        data: [bytes] UTF-8 of all texts, one after the other.
        stops: [texts] where each ends in `data`.
        ascii_table: [128] the same for ASCII, with a space for white space.
        table: [1114112] what each code point folds to; see `WHITE` and `MANY`.
        expansions: [rows, 3] code points that one folds to, 0 behind the last.
        forms: [at least 3 * bytes + 1] its first part is filled: UTF-8 of all normal forms, one after the other.
        ends: [texts] filled: where each ends in `forms`.
    """
    place, at = np.int64(0), np.int64(0)
    for text in range(stops.shape[0]):
        first, stop = at, stops[text]
        last = np.uint8(_SPACE)
        while place < stop:
            byte = data[place]
            if byte < 0x80:
                plain = ascii_table[byte]
                forms[at] = plain
                at += 1 - ((plain == _SPACE) & (last == _SPACE))  # a second space is written over
                last = plain
                place += 1
                continue
            code = np.uint32(byte)
            if code < 0xE0:
                code = ((code & 0x1F) << 6) | (np.uint32(data[place + 1]) & 0x3F)
                place += 2
            elif code < 0xF0:
                code = ((code & 0xF) << 12) | ((np.uint32(data[place + 1]) & 0x3F) << 6)
                code |= np.uint32(data[place + 2]) & 0x3F
                place += 3
            else:
                code = ((code & 0x7) << 18) | ((np.uint32(data[place + 1]) & 0x3F) << 12)
                code |= ((np.uint32(data[place + 2]) & 0x3F) << 6) | (np.uint32(data[place + 3]) & 0x3F)
                place += 4
            folded = table[code]
            if folded == WHITE:
                forms[at] = _SPACE
                at += np.int64(last != _SPACE)
                last = np.uint8(_SPACE)
                continue
            last = np.uint8(0)
            if folded & MANY:
                row = expansions[folded & np.uint32(0x7FFFFFFF)]
                for part in range(3):
                    if row[part] != 0:
                        at = _put(forms, at, row[part])
            else:
                at = _put(forms, at, folded)
        if last == _SPACE and at > first:
            at -= 1
        ends[text] = at


@compiled
def _put(forms: NDArray[np.uint8], at: np.int64, code: np.uint32) -> np.int64:
    """Writes a code point as UTF-8; gives where the next one goes."""
    if code < 0x80:
        forms[at] = code
        return at + 1
    if code < 0x800:
        forms[at] = 0xC0 | (code >> 6)
        forms[at + 1] = 0x80 | (code & 0x3F)
        return at + 2
    if code < 0x10000:
        forms[at] = 0xE0 | (code >> 12)
        forms[at + 1] = 0x80 | ((code >> 6) & 0x3F)
        forms[at + 2] = 0x80 | (code & 0x3F)
        return at + 3
    forms[at] = 0xF0 | (code >> 18)
    forms[at + 1] = 0x80 | ((code >> 12) & 0x3F)
    forms[at + 2] = 0x80 | ((code >> 6) & 0x3F)
    forms[at + 3] = 0x80 | (code & 0x3F)
    return at + 4
