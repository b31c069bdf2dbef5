"""Folds what is not ASCII in UTF-8 as it lies: case, and white space, which becomes spaces.

What a character folds to is looked up in tables of those met so far, so that nothing has to be made ready for all of
Unicode, and a pass costs in proportion to the characters outside ASCII. A fold must be as long as what it stands for;
the few that are not, and what Unicode's NFC changes, are for the caller to put in place in the text, with `composed`.
"""

import functools
import itertools
import unicodedata

import numpy as np

__all__ = ["composed", "fold"]

_PIECE = 1 << 17  # bytes
_KEPT, _FOLDED, _ASKED, _RESIZED = 1, 2, 4, 8  # of a code point; 0 for one that has not been met


def fold(data: np.ndarray, bounds: np.ndarray) -> tuple[list[int], str]:
    """Folds in place the characters outside ASCII whose folds are as long in UTF-8.

    Args:
        data: [bytes] uint8: UTF-8 of texts in NFC, one after the other.
        bounds: [texts + 1] where each begins and the last one ends.

    Returns:
        Numbers of texts of which `composed` may make another, ascending; and the characters that were left as they are
        because their folds are longer or shorter.
    """
    kinds, folds = _tables()
    odd, resized = [np.empty(0, np.int64)], [np.empty(0, np.uint32)]
    start = 0
    while start < len(data):
        stop = min(start + _PIECE, len(data))
        while stop < len(data) and data[stop] & 0xC0 == 0x80:
            stop -= 1
        piece = data[start:stop]
        places = np.flatnonzero(piece >= 0x80)
        high = piece[places]
        codes = np.frombuffer(high.tobytes().decode("utf-8").encode("utf-32-le"), "<u4")
        own = kinds[codes]
        if not own.all():
            _meet(codes[own == 0])
            own = kinds[codes]
        if (own != _KEPT).any():
            leads = places[high >= 0xC0]
            change = (own & _FOLDED) != 0
            at, to = leads[change], folds[codes[change]]
            for part in range(4):
                filled = to[:, part] != 0
                piece[at[filled] + part] = to[filled, part]
            unsure = leads[(own & (_ASKED | _RESIZED)) != 0] + start
            odd.append(np.unique(np.searchsorted(bounds, unsure, side="right")) - 1)
            resized.append(np.unique(codes[(own & _RESIZED) != 0]))
        start = stop
    return np.unique(np.concatenate(odd)).tolist(), "".join(map(chr, np.unique(np.concatenate(resized)).tolist()))


def composed(text: str, resized: str) -> str:
    """NFC of a text, in which characters with folds of another length are folded.

    Args:
        text: the text.
        resized: those characters of it, and maybe more, as far as it is in NFC.
    """
    normal = unicodedata.normalize("NFC", text)
    if normal != text:
        resized = "".join(sorted(filter(_is_resized, set(normal))))
    for character in resized:
        normal = normal.replace(character, character.casefold())
    return normal


def _is_resized(character: str) -> bool:
    return len(character.casefold().encode("utf-8")) != len(character.encode("utf-8"))


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Kinds of code points, [1114112] uint8, and folds as UTF-8, [1114112, 4] uint8 with 0 behind the last byte."""
    return np.zeros(0x110000, np.uint8), np.zeros((0x110000, 4), np.uint8)


def _meet(codes: np.ndarray) -> None:
    """Puts code points outside ASCII into the tables."""
    kinds, folds = _tables()
    for code in np.unique(codes).tolist():
        character = chr(code)
        data = character.encode("utf-8")
        folded = b" " * len(data) if character.isspace() else character.casefold().encode("utf-8")
        kind = _KEPT
        if len(folded) != len(data):
            kind |= _RESIZED
        elif folded != data:
            kind |= _FOLDED
            folds[code, : len(folded)] = list(folded)
        if (
            unicodedata.combining(character)
            or character in _composing()
            or not unicodedata.is_normalized("NFC", character)
        ):
            kind |= _ASKED
        kinds[code] = kind  # last: it tells other threads that the fold is there


@functools.cache
def _composing() -> frozenset[str]:
    """Characters that NFC may compose with one before them."""
    hangul = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))  # composed by arithmetic
    places = itertools.chain(
        range(0xC0, 0x3400), range(0xA000, 0xAC00), range(0xF900, 0x17000), range(0x1B000, 0x1F000)
    )
    pairs = (unicodedata.decomposition(chr(code)).split() for code in places)  # between them are ideographs and Hangul
    seconds = (chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and not pair[0].startswith("<"))
    return frozenset((*map(chr, hangul), *seconds))
