"""Hostile strings on which two tokenizer engines must agree before the faster one may be used.

They aim at what engines disagree about: character classes at the edges of Unicode's tables, combining marks, white
space and line ends, digits, contractions, control characters, spellings of control tokens, and very long words. The
set is the same in every process and Python version. About 7,000 strings and 200 kB trade completeness for a check that
costs a tenth of a second, since it runs at every start.
"""
# ruff: noqa: RUF001  characters that look like others are what these strings are about

import random
from collections.abc import Iterable, Iterator

import numpy as np

__all__ = ["first_difference", "probe_texts"]

_RANGES = (
    (0x20, 0x3000, 2),
    (0x3000, 0xD800, 31),
    (0xE000, 0x10000, 7),
    (0x10000, 0x20000, 5),
    (0x20000, 0x110000, 1009),
)
"""First, limit and step of the code points that are tried; no range touches the surrogates."""

_NEW_CODE_POINTS = (*range(0x11DE0, 0x11DEA), *range(0x16EA0, 0x16ED4), 0x1C89, 0x1C8A, 0xA7CB, 0xA7CD, 0xA7DA, 0x105C0)
"""Letters and digits of the latest Unicode versions: older tables call them unassigned."""

_SPACES = (
    " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u00a0", "\u1680", "\u2003",
    "\u2009", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\u180e", "\u2060",
)  # fmt: skip
_WORDS = (
    "a", "I", "the", "Hello", "WORLD", "naïve", "straße", "ﬁn", "ǅ", "İstanbul", "Σίσυφος", "Привет", "שלום", "مرحبا",
    "नमस्ते", "ประเทศไทย", "こんにちは", "世界", "안녕", "한국어", "ⅷ", "½", "x²", "²", "٣", "१२३", "１２３", "𝟘𝟙", "①",
    "e\u0301", "o\u0302\u0323", "n\u0303n", "\u0301a", "a\u200db", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪🇫🇷", "❤️", "#️⃣", "☺", "…",
    "—", "“q”", "don't", "DON'T", "we'LL", "I'Ve", "y'all'd've", "'s", "'S", "'ſ", "’s", "'re", "'RE", "'m", "' d",
    "'tis", "0", "7", "42", "123", "1234", "1234567", "3.14159", "1,000,000", "0x1F", "1e-9", "__init__", "snake_case",
    "camelCase", "HTTPServer", "PDFs", "foo.bar()", "a->b", "a::b", "!=", "===", "<=>", "...", "!!!", "?!", "//", "/*",
    "*/", "\\n", "\\", "{}", "[]", "()", "<s>", "</s>", "<unk>", "<|x|>", "<0x0A>", "▁", "▁▁a", "Ġ", "Ċ", "##a", "@@",
    "\x00", "\x01", "\x1f", "\x7f", "\x80", "\x9f", "\ufffd", "\ufffe", "\uffff", "\U0001ffff", "\U0010ffff", "\ue000",
)  # fmt: skip
_PASSAGES = (
    "def f(x: int = 0) -> None:\n\tif x:\n\t\treturn {'a': [1, 2.5e3]}  # note\n\n\nclass A(B):\n    pass\n",
    "for (int i = 0; i < n; ++i) {\r\n  printf(\"%d\\n\", a[i]);\r\n}\r\n\r\n",
    "<!DOCTYPE html><p class=\"x\">A &amp; B</p>\n<script>if (a<b && c>d) {}</script>\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n* item\n  * sub-item\n\n$$\\int_0^\\infty e^{-x^2}\\,dx$$\n",
    "The year 2024: prices rose 3.5% (vs. 12,345.67 in '99), didn't they? They'd've said so... \"OK!\"\n",
    "Ein Straßenfest in Köln; l'été déjà fini; ¿qué pasó? Zażółć gęślą jaźń. Việt Nam, Türkçe İı.\n",
    "吾輩は猫である。名前はまだ無い。中文没有空格，标点也不同。한국어는 띄어쓰기가 있다. ภาษาไทยไม่มีช่องว่าง\n",
    "https://example.org/a/b?q=1&r=%20x#frag user.name+tag@example.org C:\\Users\\x\\ ~/.config 10.0.0.1:8080\n",
)  # fmt: skip


def probe_texts(special_tokens: Iterable[str] = ()) -> list[str]:
    """The hostile strings.

    Args:
        special_tokens: the tokenizer's control spellings; the first 64 are tried alone and inside text.

    Returns:
        About 7,000 strings, the same for the same argument.
    """
    return list(_all(list(special_tokens)[:64]))


def _all(special_tokens: list[str]) -> Iterator[str]:
    yield ""
    yield "".join(map(chr, range(0x100)))
    yield "a".join(map(chr, range(0x100)))
    yield from _WORDS
    yield from _SPACES
    yield from _PASSAGES
    for token in special_tokens:
        yield from (
            token,
            f"a{token}b",
            f" {token} ",
            f"{token}{token}",
            f"{token[:-1]}",
            f"x\n{token}\n",
            f"{token}'s 12",
        )
    points = [*_NEW_CODE_POINTS, *(point for first, limit, step in _RANGES for point in range(first, limit, step))]
    for start in range(0, len(points), 8):
        group = [chr(point) for point in points[start : start + 8]]
        yield "".join(group)
        yield f" {group[0]}a{group[-1]} 1{group[len(group) // 2]}2"
    for width in (1, 2, 3, 4, 7, 16, 63, 255, 1000):
        yield from (" " * width + "x", "x" + "\n" * width, "\t" * width + " x", "a" * width, "9" * width, "=" * width)
        yield from (
            "é" * width,
            "世" * width,
            "ab" * width + "\n",
            "-" * width + " ",
            " \n" * width + "y",
            "🙂" * width,
        )
    for first in _SPACES:
        for second in _SPACES:
            yield f"a{first}{second}b {first}"
    rng = random.Random(20240229)
    pieces = [*_WORDS, *_SPACES, *_SPACES, *special_tokens[:8]]
    for _ in range(500):
        yield "".join(rng.choice(pieces) for _ in range(rng.randint(2, 12)))


def first_difference(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> tuple[int, list[int], list[int]] | None:
    """The first text for which two engines' ids differ.

    Args:
        first: flat ids and offsets of one engine.
        second: the same of the other, for the same texts.

    Returns:
        The text's number and its ids by either engine; None when all are equal.
    """
    if np.array_equal(first[1], second[1]) and np.array_equal(first[0], second[0]):
        return None
    for number in range(len(first[1]) - 1):
        one = first[0][first[1][number] : first[1][number + 1]].tolist()
        other = second[0][second[1][number] : second[1][number + 1]].tolist()
        if one != other:
            return number, one, other
    return None
