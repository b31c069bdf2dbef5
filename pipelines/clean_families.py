"""The families of rules (Gopher's repetition and quality, C4's, FineWeb's) as one cleaning step.

They share the code points of a batch and its words, so they are one step; C4 hands the lines it keeps straight on to
FineWeb's rules, and only texts that changed become strings again.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.clean_settings import (
    C4Settings,
    CleanSettings,
    FineWebSettings,
    GopherQualitySettings,
    GopherRepetitionSettings,
)
from gristmill.pipelines.clean_classes import class_table
from gristmill.pipelines.clean_documents import Documents
from gristmill.pipelines.clean_words import Words, split

__all__ = ["Families", "word_hashes"]

_QUALITY = (
    ("min_words", "<"),
    ("max_words", ">"),
    ("min_mean_word_length", "<"),
    ("max_mean_word_length", ">"),
    ("max_hash_ratio", ">"),
    ("max_ellipsis_ratio", ">"),
    ("max_bullet_lines", ">"),
    ("max_ellipsis_lines", ">"),
    ("min_alpha_words", "<"),
    ("min_stop_words", "<"),
)
_REPETITION = ("max_dup_paragraphs", "max_dup_paragraph_chars", "max_dup_lines", "max_dup_line_chars")
_C4 = ("drop_lorem_ipsum", "drop_curly_brackets", "min_sentences")
_FINEWEB = (
    ("min_terminal_lines", "<"),
    ("max_short_lines", ">"),
    ("max_dup_line_chars", ">"),
    ("max_newlines_per_word", ">"),
)

_Rule = tuple[str, str, float]
"""Name of a rule with its family, how its value compares when it is broken, and the limit."""


class Families:
    """The families that settings ask for.

    Attributes:
        changes_texts: whether C4's rules are among them.
    """

    def __init__(self, settings: CleanSettings) -> None:
        """Reads the settings; nothing is compiled before the first batch."""
        self.changes_texts = settings.c4 is not None
        self._settings = settings
        self._by_space = settings.words == "spaces"

    def apply(self, documents: Documents) -> None:
        """Drops what breaks a rule, and takes out the lines that C4's rules do not keep."""
        settings = self._settings
        if settings.gopher_repetition or settings.gopher_quality:
            words = split(documents, by_space=self._by_space)
            if settings.gopher_repetition:
                _repetition(documents, words, settings.gopher_repetition)
            if settings.gopher_quality:
                _quality(documents, words, settings.gopher_quality)
        if settings.c4:
            _c4(documents, settings.c4)
        if settings.fineweb:
            _fineweb(documents, settings.fineweb, by_space=self._by_space)


def _repetition(documents: Documents, words: Words, own: GopherRepetitionSettings) -> None:
    from gristmill.pipelines.clean_gopher_kernels import repetition

    limits = [float(getattr(own, name)) for name in _REPETITION]
    top, duplicate = _table(own.top_ngrams), _table(own.dup_ngrams)
    rules: list[_Rule] = [(f"gopher_repetition.{name}", ">", limit) for name, limit in zip(_REPETITION, limits)]
    rules += [(f"gopher_repetition.top_{n:.0f}gram", ">", limit) for n, limit in top.tolist()]
    rules += [(f"gopher_repetition.dup_{n:.0f}gram", ">", limit) for n, limit in duplicate.tolist()]
    codes, starts = documents.codes()
    judge = partial(repetition, codes, starts, documents.alive, class_table(), words.starts, words.lengths)
    _judge(documents, partial(judge, words.hashes, np.array(limits), top, duplicate), rules)


def _quality(documents: Documents, words: Words, own: GopherQualitySettings) -> None:
    from gristmill.pipelines.clean_gopher_kernels import quality

    limits = [float(getattr(own, name)) for name, _ in _QUALITY]
    rules = [(f"gopher_quality.{name}", sign, limit) for (name, sign), limit in zip(_QUALITY, limits)]
    stop_words = word_hashes(tuple(dict.fromkeys(own.stop_words)))
    codes, starts = documents.codes()
    judge = partial(quality, codes, starts, documents.alive, class_table(), words.starts, words.lengths)
    _judge(documents, partial(judge, words.hashes, words.kinds, np.array(limits), stop_words), rules)


def _c4(documents: Documents, own: C4Settings) -> None:
    from gristmill.pipelines.clean_line_kernels import select_lines

    phrases = [("lorem ipsum", 1)] * own.drop_lorem_ipsum + [("javascript", 2)] * own.drop_javascript_lines
    phrases += [(phrase, 4) for phrase in own.policy_phrases]
    patterns = np.array([ord(letter) for phrase, _ in phrases for letter in phrase], np.uint32)
    bounds = np.cumsum([0, *(len(phrase) for phrase, _ in phrases)], dtype=np.int64)
    initials = np.zeros(128, bool)
    initials[[ord(phrase[0]) for phrase, _ in phrases]] = True
    meanings = np.array([meaning for _, meaning in phrases], np.int64)
    numbers = np.array([own.min_sentences, own.min_words_per_line, own.max_word_length], np.int64)
    codes, starts = documents.codes()
    written = np.empty(len(codes), np.uint32)
    new_starts = np.empty(len(starts), np.int64)
    before = documents.alive.copy()
    removed = 0

    def judge(broken: NDArray[np.int32], values: NDArray[np.float64]) -> None:
        nonlocal removed
        removed = select_lines(
            codes,
            starts,
            before,
            class_table(),
            numbers,
            own.remove_citations,
            own.terminal_punctuation,
            initials,
            patterns,
            bounds,
            meanings,
            own.drop_curly_brackets,
            written,
            new_starts,
            broken,
            values,
        )

    _judge(documents, judge, [(f"c4.{name}", "<", own.min_sentences) for name in _C4])
    changed = [
        number
        for number in documents.numbers()
        if not np.array_equal(
            codes[starts[number] : starts[number + 1]], written[new_starts[number] : new_starts[number + 1]]
        )
    ]
    written = written[: new_starts[-1]]
    written.setflags(write=False)
    documents.replace_codes(written, new_starts, changed)
    if changed:
        documents.counted["c4.changed"] += len(changed)
    if removed:
        documents.counted["c4.lines_removed"] += removed


def _fineweb(documents: Documents, own: FineWebSettings, *, by_space: bool) -> None:
    from gristmill.pipelines.clean_line_kernels import fineweb

    limits = [float(getattr(own, name)) for name, _ in _FINEWEB]
    rules = [(f"fineweb.{name}", sign, limit) for (name, sign), limit in zip(_FINEWEB, limits)]
    codes, starts = documents.codes()
    judge = partial(fineweb, codes, starts, documents.alive, class_table(), by_space, np.array(limits))
    judge = partial(judge, own.accept_no_terminal, own.short_line_chars)
    _judge(documents, judge, [*rules, ("fineweb.no_line", "", 0.0)])


def _table(ngrams: Sequence[tuple[int, float]]) -> NDArray[np.float64]:
    return np.array(ngrams, np.float64).reshape(-1, 2)


def _judge(documents: Documents, judge: Any, rules: Sequence[_Rule]) -> None:
    """Lets compiled rules fill the number of the first rule that each document breaks, and drops those that do."""
    broken = np.full(len(documents.alive), -1, np.int32)
    values = np.zeros(len(documents.alive), np.float64)
    judge(broken, values)
    for number in np.flatnonzero(broken >= 0).tolist():
        name, sign, limit = rules[broken[number]]
        documents.drop(number, name, f"{values[number]:.6g} {sign} {limit:g}" if _has_value(name) else "")


def _has_value(name: str) -> bool:
    return name not in {"c4.drop_lorem_ipsum", "c4.drop_curly_brackets", "fineweb.no_line"}


def word_hashes(words: Sequence[str]) -> NDArray[np.uint64]:
    """Hash of each word as `split` gives it: [words] uint64."""
    from gristmill.pipelines.clean_kernels import hash_codes

    codes = (np.array([ord(letter) for letter in word], np.uint32) for word in words)
    return np.array([hash_codes(own, 0, len(own)) for own in codes], np.uint64)
