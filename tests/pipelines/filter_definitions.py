"""The rules on texts in plain Python: the definition that the compiled ones are compared with.

Written from the papers and for reading, not for speed. It needs nothing but Python, so that the program that makes the
golden decisions can hand the same splitter to the reference.
"""

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

JOINERS = "'\u2019\u00ad\u200c\u200d"
SINGLES = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


def in_word(character: str) -> bool:
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")


def single(character: str) -> bool:
    return character.isalnum() and any(first <= ord(character) <= last for first, last in SINGLES)


def runs(character: str) -> bool:
    return in_word(character) and not single(character)


def words_of(text: str) -> list[str]:
    """`gristmill-words-1`."""
    found = []
    place = 0
    while place < len(text):
        character = text[place]
        end = place + 1
        if character.isspace():
            place = end
            continue
        if runs(character):
            while end < len(text):
                if runs(text[end]):
                    end += 1
                elif text[end] in JOINERS and not in_word(text[end]) and end + 1 < len(text) and runs(text[end + 1]):
                    end += 2
                else:
                    break
        elif not single(character):
            while end < len(text) and text[end] == character:
                end += 1
        found.append(text[place:end])
        place = end
    return found


def sentences_of(text: str, terminals: frozenset[str]) -> list[str]:
    """Pieces that end behind terminals and what closes there, before white space or the end."""
    found = []
    begin = place = 0
    while place < len(text):
        place += 1
        if text[place - 1] in terminals:
            while place < len(text) and (text[place] in terminals or text[place] in "\"')]\u2019\u201d"):
                place += 1
            if place == len(text) or text[place].isspace():
                found.append(text[begin:place])
                begin = place
    found.append(text[begin:])
    return [piece.strip() for piece in found if piece.strip()]


def copies(pieces: list[str]) -> tuple[int, int]:
    """How many pieces are copies of earlier ones, and their characters."""
    seen: set[str] = set()
    count = chars = 0
    for piece in pieces:
        if piece in seen:
            count += 1
            chars += len(piece)
        seen.add(piece)
    return count, chars


def repetition(text: str, words: list[str], own: Any) -> str | None:
    paragraphs = re.split(r"\n{2,}", text.strip())
    lines = re.split(r"\n+", text)
    for pieces, name in ((paragraphs, "paragraph"), (lines, "line")):
        count, chars = copies(pieces)
        limit, chars_limit = getattr(own, f"max_dup_{name}s"), getattr(own, f"max_dup_{name}_chars")
        if limit and count / len(pieces) > limit:
            return f"max_dup_{name}s"
        if chars_limit and chars / len(text) > chars_limit:
            return f"max_dup_{name}_chars"
    for n, limit in own.top_ngrams:
        grams = Counter(" ".join(words[place : place + n]) for place in range(len(words) - n + 1))
        if grams:
            gram, count = grams.most_common(1)[0]
            if len(gram) * count / len(text) > limit:
                return f"top_{n}gram"
    for n, limit in own.dup_ngrams:
        seen: set[str] = set()
        chars = place = 0
        while place <= len(words) - n:
            joined = "".join(words[place : place + n])
            if joined in seen:
                chars += len(joined)
            place += n if joined in seen else 1
            seen.add(joined)
        if chars / len(text) > limit:
            return f"dup_{n}gram"
    return None


def quality(text: str, words: list[str], symbols: frozenset[str], own: Any) -> str | None:
    real = [word for word in words if not set(word) <= symbols]
    lines = [line.strip() for line in text.splitlines()]
    mean = sum(map(len, real)) / len(real) if real else None
    tests: list[tuple[str, bool]] = [
        ("min_words", len(real) < own.min_words),
        ("max_words", len(real) > own.max_words),
        ("min_mean_word_length", mean is not None and mean < own.min_mean_word_length),
        ("max_mean_word_length", mean is not None and mean > own.max_mean_word_length),
    ]
    if words:
        alpha = sum(any(map(str.isalpha, word)) for word in words)
        tests += [
            ("max_hash_ratio", text.count("#") / len(words) > own.max_hash_ratio),
            ("max_ellipsis_ratio", (text.count("...") + text.count("\u2026")) / len(words) > own.max_ellipsis_ratio),
            (
                "max_bullet_lines",
                sum(line[:1] in ("\u2022", "-") for line in lines) / len(lines) > own.max_bullet_lines,
            ),
            (
                "max_ellipsis_lines",
                sum(line.endswith(("...", "\u2026")) for line in lines) / len(lines) > own.max_ellipsis_lines,
            ),
            ("min_alpha_words", alpha / len(words) < own.min_alpha_words),
            ("min_stop_words", len(set(own.stop_words) & set(words)) < own.min_stop_words),
        ]
    return next((name for name, broken in tests if broken and getattr(own, name)), None)


def c4(text: str, terminals: frozenset[str], own: Any) -> tuple[str | None, str]:
    """The rule that is broken, and the text that is left."""
    kept = []
    count = 0
    for line in map(str.strip, text.splitlines()):
        words = line.split()
        if own.max_word_length and any(len(word) > own.max_word_length for word in words):
            continue
        if own.remove_citations:
            line = re.sub(r"\[\d*\]|\[edit\]|\[citation needed\]", "", line)
        if own.terminal_punctuation and (line[-1:] not in tuple(".?!\"'") or line.endswith("...")):
            continue
        if len(words) < own.min_words_per_line:
            continue
        lower = line.lower()
        if own.drop_lorem_ipsum and "lorem ipsum" in lower:
            return "drop_lorem_ipsum", ""
        if own.drop_javascript_lines and "javascript" in lower:
            continue
        if own.drop_curly_brackets and "{" in line:
            return "drop_curly_brackets", ""
        if any(phrase in lower for phrase in own.policy_phrases):
            continue
        count += len(sentences_of(line, terminals))
        kept.append(line)
    if count < own.min_sentences:
        return "min_sentences", ""
    return None, "\n".join(kept).strip()


def fineweb(text: str, split: Callable[[str], list[str]], terminals: frozenset[str], own: Any) -> str | None:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return "no_line"
    ends = sum(line[-1] in terminals for line in lines)
    if ends / len(lines) < own.min_terminal_lines and not (ends == 0 and own.accept_no_terminal):
        return "min_terminal_lines"
    if sum(len(line) <= own.short_line_chars for line in lines) / len(lines) > own.max_short_lines:
        return "max_short_lines"
    if copies(lines)[1] / len(text.replace("\n", "")) > own.max_dup_line_chars:
        return "max_dup_line_chars"
    if text.count("\n") / len(split(text)) > own.max_newlines_per_word:
        return "max_newlines_per_word"
    return None


def characters(flagged: Any) -> frozenset[str]:
    """The characters where an array of all code points is true."""
    return frozenset(chr(code) for code in itertools.compress(range(0x110000), flagged))
