"""What of a text deduplication compares: its key, 128 bits of the text as it is or of a normalised form of it.

Only the key is normalised; the text that goes on is never touched. The normal form is Unicode's NFC, case-folded, with
one space for each run of white space and none at the ends. Calls of the library make it of the first megabytes that a
process sees; a compiled loop, four times as fast but half a second in loading, of the rest. Both give the same bytes.
"""

import functools
import itertools
import sys
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import xxhash

__all__ = ["fold_tables", "normal_form", "normal_forms_of", "text_keys"]

_CODE_POINTS = 0x110000
_PLAIN = bytes(32 if chr(code).isspace() else ord(chr(code).lower()) for code in range(128)) + bytes(range(128, 256))
_BY_CALLS = 64 << 20  # characters; loading Numba pays for as many more
_seen = [0]


def normal_form(text: str) -> bytes:
    """The normal form of a text, as UTF-8."""
    if not text.isascii():
        return " ".join(unicodedata.normalize("NFC", text).casefold().split()).encode("utf-8")
    plain = text.encode("ascii").translate(_PLAIN)
    return b" ".join([part for piece in plain.split(b"  ") if (part := piece.strip())])


@functools.cache
def fold_tables() -> tuple[np.ndarray, np.ndarray]:
    """What each code point is in a normal form, [1114112] uint32, and the expansions, [rows, 3] uint32."""
    from gristmill.pipelines.text_key_kernels import MANY, WHITE

    table = np.arange(_CODE_POINTS, dtype=np.uint32)
    expansions: list[list[int]] = []
    for code in range(0x20000):  # no code point above is white space or has case
        character = chr(code)
        if character.isspace():
            table[code] = WHITE
            continue
        folded = character.casefold()
        if len(folded) > 1:
            table[code] = MANY | np.uint32(len(expansions))
            expansions.append([*map(ord, folded), 0][:3])
        elif folded != character:
            table[code] = ord(folded)
    table.setflags(write=False)
    return table, np.array(expansions, np.uint32)


def normal_forms_of(texts: Sequence[str], encoded: Sequence[bytes]) -> list[memoryview]:
    """The normal forms of texts by the compiled loop, the same bytes as `normal_form` gives.

    Args:
        texts: the texts.
        encoded: the same as UTF-8.
    """
    from gristmill.pipelines.text_key_kernels import normal_forms

    composed = [
        data
        if text.isascii() or unicodedata.is_normalized("NFC", text)
        else unicodedata.normalize("NFC", text).encode("utf-8")
        for text, data in zip(texts, encoded, strict=True)
    ]
    data = np.frombuffer(b"".join(composed), np.uint8)
    stops = np.cumsum([len(entry) for entry in composed], dtype=np.int64)
    forms, ends = np.empty(3 * len(data) + 1, np.uint8), np.empty(len(texts), np.int64)
    normal_forms(data, stops, np.frombuffer(_PLAIN, np.uint8), *fold_tables(), forms, ends)
    view = memoryview(forms.data)
    return [view[start:stop] for start, stop in itertools.pairwise([0, *ends.tolist()])]


def text_keys(texts: Sequence[str], encoded: Sequence[bytes], *, normalized: bool) -> np.ndarray:
    """The keys of texts.

    Args:
        texts: the texts.
        encoded: the same as UTF-8.
        normalized: whether normal forms are compared, or the texts as they are.

    Returns:
        [texts, 2] uint64: xxh3_128 of each, in the byte order of its `digest()`.
    """
    compared: Iterable[bytes | memoryview] = encoded
    if normalized:
        _seen[0] += sum(map(len, texts))
        compiled = _seen[0] > _BY_CALLS or "numba" in sys.modules
        compared = normal_forms_of(texts, encoded) if compiled else map(normal_form, texts)
    return np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, compared)), "<u8").reshape(-1, 2)
