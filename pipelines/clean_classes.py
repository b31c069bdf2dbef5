"""What the compiled rules know about each code point: one number of flags for all of Unicode, made once a process.

The flags say what Python's own string methods say, so a rule that is written with `str.isspace` and one that looks here
decide alike. The table follows the Unicode version of the interpreter, which is part of what a corpus follows from.
"""

import unicodedata
from functools import cache

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ALPHA",
    "class_table",
    "DIGIT",
    "fold_table",
    "JOINER",
    "LINE_END",
    "SINGLE",
    "SPACE",
    "SYMBOL",
    "TERMINAL",
    "WORD",
]

SPACE = 1
"""White space: what `str.strip` takes away and `str.split` splits at."""
WORD = 2
"""Letters, digits, marks and the underscore."""
JOINER = 4
"""What stays inside a word between two `WORD`s: apostrophes, the soft hyphen, zero-width joiners."""
ALPHA = 8
"""Letters: `str.isalpha`."""
SYMBOL = 16
"""Punctuation and controls, of which words that do not count as words are made."""
LINE_END = 32
"""What `str.splitlines` splits at."""
TERMINAL = 64
"""What ends a sentence."""
DIGIT = 128
"""Decimal digits."""
SINGLE = 256
"""Ideographs and kana, each a word by itself."""

_JOINERS = "'\u2019\u00ad\u200c\u200d"
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
# Ranges of code points in hexadecimal. The first two are the sets that the published implementations of Gopher's and
# FineWeb's rules use: CCNet's punctuation, and Unicode's sentence terminals of the version they were made with.
_SYMBOLS = (
    "0-8 B-1F 22-2D 2F 3A-3E 40 5B-60 7B-9F AB B4 BB 2013-2014 2019 201C-201E 2026 2236 2501 25BA 3001 3008-300D "
    "3010-3011 FF05 FF08-FF09 FF0C FF11 FF1A-FF1B FF5E"
)
_TERMINALS = (
    "21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D6 "
    "17D9-17DA 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049 "
    "2E2E 2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB "
    "FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143 "
    "111C5-111C6 111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 "
    "1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 "
    "16B37-16B38 16B44 16E98 1BC9F 1DA88"
)
_SINGLES = "3040-30FF 3400-4DBF 4E00-9FFF F900-FAFF 20000-3FFFF"
_CODE_POINTS = 0x110000


def _ranges(text: str) -> NDArray[np.bool_]:
    """[code points] bool, true inside the ranges."""
    found = np.zeros(_CODE_POINTS, bool)
    for entry in text.split():
        first, _, last = entry.partition("-")
        found[int(first, 16) : int(last or first, 16) + 1] = True
    return found


def _those(characters: str) -> NDArray[np.bool_]:
    found = np.zeros(_CODE_POINTS, bool)
    found[[ord(character) for character in characters]] = True
    return found


@cache
def class_table() -> NDArray[np.uint16]:
    """Flags of each code point, [0x110000] uint16."""
    characters = [chr(code) for code in range(_CODE_POINTS)]
    marks = (unicodedata.category(character)[0] == "M" for character in characters)

    def where(test: object) -> NDArray[np.bool_]:
        return np.fromiter(test, bool, _CODE_POINTS)  # type: ignore[call-overload, no-any-return]

    alphanumeric = where(map(str.isalnum, characters))
    terminal = _ranges(_TERMINALS)
    flags = {
        SPACE: where(map(str.isspace, characters)),
        WORD: alphanumeric | where(marks) | _those("_"),
        JOINER: _those(_JOINERS),
        ALPHA: where(map(str.isalpha, characters)),
        SYMBOL: _ranges(_SYMBOLS) | terminal,
        LINE_END: _those(_LINE_ENDS),
        TERMINAL: terminal,
        DIGIT: where(map(str.isdecimal, characters)),
        SINGLE: _ranges(_SINGLES) & alphanumeric,
    }
    table = np.zeros(_CODE_POINTS, np.uint16)
    for flag, found in flags.items():
        table[found] |= flag
    table.setflags(write=False)
    return table


@cache
def fold_table() -> NDArray[np.uint32]:
    """Lower case of each code point where that is one code point, else itself: [0x110000] uint32."""
    table = np.arange(_CODE_POINTS, dtype=np.uint32)
    for code in range(_CODE_POINTS):
        lower = chr(code).lower()
        if len(lower) == 1 and lower != chr(code):
            table[code] = ord(lower)
    table.setflags(write=False)
    return table
