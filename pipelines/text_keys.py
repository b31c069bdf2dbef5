"""What of a text deduplication compares: its key, 128 bits of the text as it is or of a normalised form of it.

Only the key is normalised; the text that goes on is never touched. The normal form is Unicode's NFC, case-folded, with
one space for each run of white space and none at the ends. Forms are made of a batch at a time: Arrow lowers ASCII and
takes out what goes, which some passes of NumPy's find over pieces that stay in the processor's cache. For ASCII that
is faster than a compiled loop, with nothing to load. For the rest it takes up to five times as long as the loop; so
where a process meets much of that, Numba is loaded after all. All ways give the same bytes.
"""

import functools
import itertools
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import xxhash

from gristmill.pipelines.folding import composed, fold

__all__ = ["fold_tables", "normal_form", "normal_forms_of", "text_keys"]

_CODE_POINTS = 0x110000
_PIECE = 1 << 17  # bytes: what the passes over a piece touch fits in 0.5 MB
_SPACE = 32
_PLAIN = bytes(32 if chr(code).isspace() else ord(chr(code).lower()) for code in range(128)) + bytes(range(128, 256))
_BY_CALLS = 8192, 128  # bytes of a batch, and bytes a text in it, below which calls for each text cost less
_BY_NUMPY = 16 << 20  # bytes more than characters; loading Numba pays for as many more
_seen = [0]


def normal_form(text: str) -> bytes:
    """The normal form of a text, as UTF-8: its definition."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split()).encode("utf-8")


def text_keys(texts: Sequence[str], *, normalized: bool) -> tuple[np.ndarray, list[int]]:
    """The keys of texts, and their sizes.

    Args:
        texts: the texts.
        normalized: whether normal forms are compared, or the texts as they are.

    Returns:
        [texts, 2] uint64: xxh3_128 of each, in the byte order of its `digest()`; and how many bytes each has as it is,
        in UTF-8.
    """
    encoded = [text.encode("utf-8") for text in texts]
    sizes = list(map(len, encoded))
    compared: Iterable[bytes | memoryview] = encoded
    if normalized:
        few = sum(sizes) < max(_BY_CALLS[0], _BY_CALLS[1] * len(texts))
        compared = map(normal_form, texts) if few else normal_forms_of(texts, encoded)
    return np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, compared)), "<u8").reshape(-1, 2), sizes


def normal_forms_of(texts: Sequence[str], encoded: Sequence[bytes]) -> list[memoryview]:
    """The normal forms of texts, the same bytes as `normal_form` gives.

    Args:
        texts: the texts.
        encoded: the same as UTF-8.
    """
    mixed = [number for number, text in enumerate(texts) if not text.isascii()]
    if not mixed:
        return _squeezed(*_lowered(encoded))
    plain = [number for number, text in enumerate(texts) if text.isascii()]
    others = [texts[number] for number in mixed], [encoded[number] for number in mixed]
    _seen[0] += sum(map(len, others[1])) - sum(map(len, others[0]))
    make = _compiled if _seen[0] > _BY_NUMPY else _looked_up
    forms = dict(zip(plain, _squeezed(*_lowered([encoded[number] for number in plain])), strict=True))
    forms.update(zip(mixed, make(*others), strict=True))
    return [forms[number] for number in range(len(texts))]


def _looked_up(texts: Sequence[str], encoded: Sequence[bytes]) -> list[memoryview]:
    """The normal forms of any texts, by tables of the characters met."""
    data, bounds = _lowered(encoded)
    odd, resized = fold(data, bounds)
    forms = _squeezed(data, bounds)
    others = {number: composed(texts[number], resized) for number in odd}
    others = {number: text for number, text in others.items() if text != texts[number]}
    if others:
        data, bounds = _lowered([text.encode("utf-8") for text in others.values()])
        fold(data, bounds)
        for number, form in zip(others, _squeezed(data, bounds), strict=True):
            forms[number] = form
    return forms


def _compiled(texts: Sequence[str], encoded: Sequence[bytes]) -> list[memoryview]:
    """The normal forms of any texts, by the compiled loop."""
    from gristmill.pipelines.text_key_kernels import normal_forms

    normal = [
        data if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text).encode("utf-8")
        for text, data in zip(texts, encoded, strict=True)
    ]
    data = np.frombuffer(b"".join(normal), np.uint8)
    stops = np.cumsum([len(entry) for entry in normal], dtype=np.int64)
    forms, ends = np.empty(3 * len(data) + 1, np.uint8), np.empty(len(texts), np.int64)
    normal_forms(data, stops, np.frombuffer(_PLAIN, np.uint8), *fold_tables(), forms, ends)
    view = memoryview(forms.data)
    return [view[start:stop] for start, stop in itertools.pairwise([0, *ends.tolist()])]


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


def _lowered(encoded: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Texts in UTF-8, one after the other, with ASCII in lower case; and where each begins and the last one ends."""
    import pyarrow as pa
    from pyarrow import compute

    bounds = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    ends = pa.py_buffer(bounds[[0, -1]])
    whole = pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(b"".join(encoded))])
    return np.frombuffer(compute.ascii_lower(whole).buffers()[2], np.uint8), bounds


def _squeezed(data: np.ndarray, bounds: np.ndarray) -> list[memoryview]:
    """Texts with one space for each run of ASCII's white space, and none at the ends.

    Args:
        data: [bytes] uint8: UTF-8 of texts, one after the other; white space is made spaces in it.
        bounds: [texts + 1] where each begins and the last one ends.
    """
    import pyarrow as pa

    width = min(_PIECE, len(data))
    spaces, turned = np.full(width, _SPACE, np.uint8), np.empty(width, np.uint8)
    solid = np.ones(width + 1, bool)  # whether a byte is no space, from the one before the piece on
    stays = np.zeros(-(-(len(data) + 1) // 64) * 64, bool)
    for start in range(0, len(data), _PIECE):
        piece = data[start : start + _PIECE]
        size = len(piece)
        if piece.min() < 9 or np.subtract(piece, 14, out=turned[:size]).min() < 14:  # controls that are no white space
            piece[:] = np.frombuffer(piece.tobytes().translate(_PLAIN), np.uint8)
        else:
            np.maximum(piece, spaces[:size], out=piece)
        np.not_equal(piece, _SPACE, out=solid[1 : size + 1])
        np.logical_or(solid[:size], solid[1 : size + 1], out=stays[start : start + size])
        solid[0] = solid[size]
    bits = np.packbits(stays, bitorder="little")
    mask = pa.Array.from_buffers(pa.bool_(), len(data), [None, pa.py_buffer(bits)])
    found = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)]).filter(mask)
    left = np.frombuffer(found.buffers()[1], np.uint8, len(found), found.offset)  # its `to_numpy` loads pandas
    places = _ones_before(bits.view("<u8"), bounds)
    begins, ends = places[:-1], places[1:]
    if len(left):
        begins = begins + ((begins < ends) & (left[np.minimum(begins, len(left) - 1)] == _SPACE))
        ends = ends - ((begins < ends) & (left[ends - 1] == _SPACE))
    view = memoryview(left.data)
    return [view[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _ones_before(words: np.ndarray, places: np.ndarray) -> np.ndarray:
    """How many bits are set before places in words of 64, the lowest first, [places] int64."""
    totals = np.cumsum(np.bitwise_count(words), dtype=np.int64)
    word = places >> 6
    within = words[word] & ((np.uint64(1) << (places & 63).astype(np.uint64)) - np.uint64(1))
    counts: np.ndarray = np.append(0, totals)[word] + np.bitwise_count(within)
    return counts
