"""What of a text deduplication compares: its key, 128 bits of the text as it is or of a normalised form of it.

Only the key is normalised; the text that goes on is never touched. The normal form is Unicode's NFC, case-folded, with
one space for each run of white space and none at the ends. It is made by calls of the library on whole texts, in bytes
where a text is ASCII, which is several times as fast.
"""

import unicodedata
from collections.abc import Sequence

import numpy as np
import xxhash

__all__ = ["normal_form", "text_keys"]

_SPACE = ord(" ")
_PLAIN = bytes(_SPACE if chr(code).isspace() else ord(chr(code).lower()) for code in range(128)) + bytes(
    range(128, 256)
)


def normal_form(text: str) -> bytes:
    """The normal form of a text, as UTF-8."""
    if not text.isascii():
        return " ".join(unicodedata.normalize("NFC", text).casefold().split()).encode("utf-8")
    plain = text.encode("ascii").translate(_PLAIN)
    return b" ".join([part for piece in plain.split(b"  ") if (part := piece.strip())])


def text_keys(texts: Sequence[str], encoded: Sequence[bytes], *, normalized: bool) -> np.ndarray:
    """The keys of texts.

    Args:
        texts: the texts.
        encoded: the same as UTF-8.
        normalized: whether normal forms are compared, or the texts as they are.

    Returns:
        [texts, 2] uint64: xxh3_128 of each, in the byte order of its `digest()`.
    """
    compared = map(normal_form, texts) if normalized else encoded
    return np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, compared)), "<u8").reshape(-1, 2)
