"""Settings of cleaning: which steps a source's documents go through, with every threshold of every step.

A step that is off leaves no trace in `CleanSettings.identity`, so a corpus made without it stays valid when a later
version brings the step; a step that is on puts its version there, so that a change of what it does rebuilds. Files that
steps read count by their content, and callables by the version that they name, which the launcher pins before any
work.
"""

import unicodedata
from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = [
    "C4Settings",
    "CleanSettings",
    "CustomStep",
    "DecontaminationSettings",
    "FineWebSettings",
    "GopherQualitySettings",
    "GopherRepetitionSettings",
    "LanguageSettings",
    "PinnedFile",
    "STEP_VERSIONS",
    "WORD_SPLITTERS",
]

STEP_VERSIONS = {
    "bad_words": 1,
    "c4": 1,
    "controls": 1,
    "custom": 1,
    "decontaminate": 1,
    "fineweb": 1,
    "gopher_quality": 1,
    "gopher_repetition": 1,
    "languages": 1,
    "mask": 1,
    "newlines": 1,
    "unicode": 1,
    "url_lists": 1,
}
"""Version of each step; raised when its decisions or its texts change."""

WORD_SPLITTERS = {"words": "gristmill-words-1", "spaces": "white-space-1"}
"""What the manifest calls each way to split words."""

_USES_WORDS = ("gopher_quality", "gopher_repetition", "fineweb", "bad_words", "decontaminate")
_USES_UNICODE_TABLES = (*_USES_WORDS, "c4", "unicode")


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedFile:
    """A file that a step reads.

    Attributes:
        path: path or URL; no part of what the corpus follows from.
        digest: xxh3_128 of its bytes, empty until the launcher has pinned it.
    """

    path: str
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomStep:
    """A callable of the user's.

    Attributes:
        path: where to import it from, as ``package.module:function``.
        version: its attribute `version`, empty until the launcher has pinned it.
    """

    path: str
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GopherQualitySettings:
    """The quality rules of Rae et al. 2021 (Gopher), table A1; 0 turns a rule off.

    Attributes:
        min_words: fewest words that are not of symbols alone.
        max_words: most of them.
        min_mean_word_length: shortest mean length of those words, in code points.
        max_mean_word_length: longest.
        max_hash_ratio: most "#" per word.
        max_ellipsis_ratio: most "..." and "…" per word.
        max_bullet_lines: largest share of lines that begin with "•" or "-".
        max_ellipsis_lines: largest share of lines that end with an ellipsis.
        min_alpha_words: smallest share of words with a letter.
        min_stop_words: fewest different words of `stop_words`.
        stop_words: those words, as they are spelt.
    """

    min_words: int = 50
    max_words: int = 100_000
    min_mean_word_length: float = 3.0
    max_mean_word_length: float = 10.0
    max_hash_ratio: float = 0.1
    max_ellipsis_ratio: float = 0.1
    max_bullet_lines: float = 0.9
    max_ellipsis_lines: float = 0.3
    min_alpha_words: float = 0.8
    min_stop_words: int = 2
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")


@dataclass(frozen=True, slots=True, kw_only=True)
class GopherRepetitionSettings:
    """The repetition rules of Rae et al. 2021 (Gopher), table A1; 0 turns a rule off.

    Attributes:
        max_dup_paragraphs: largest share of paragraphs that are copies of an earlier one.
        max_dup_paragraph_chars: largest share of characters in such paragraphs.
        max_dup_lines: largest share of lines that are copies of an earlier one.
        max_dup_line_chars: largest share of characters in such lines.
        top_ngrams: for each n, the largest share of characters in the most frequent n-gram of words.
        dup_ngrams: for each n, the largest share of characters in n-grams that occurred before.
    """

    max_dup_paragraphs: float = 0.3
    max_dup_paragraph_chars: float = 0.2
    max_dup_lines: float = 0.3
    max_dup_line_chars: float = 0.2
    top_ngrams: tuple[tuple[int, float], ...] = ((2, 0.2), (3, 0.18), (4, 0.16))
    dup_ngrams: tuple[tuple[int, float], ...] = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1))


@dataclass(frozen=True, slots=True, kw_only=True)
class C4Settings:
    """The rules of Raffel et al. 2020 (C4): lines go, and documents of which too little is left; 0 turns a rule off.

    Attributes:
        remove_citations: takes "[1]", "[edit]" and "[citation needed]" out of lines.
        terminal_punctuation: drops lines that do not end in . ? ! " or ', and those that end in "...".
        min_sentences: fewest sentences left of a document.
        min_words_per_line: drops lines of fewer words between white space.
        max_word_length: drops lines with a longer word, in code points.
        drop_lorem_ipsum: drops documents with "lorem ipsum".
        drop_javascript_lines: drops lines with "javascript".
        drop_curly_brackets: drops documents with "{".
        policy_phrases: drops lines with one of these, in ASCII and lower case.
    """

    remove_citations: bool = True
    terminal_punctuation: bool = True
    min_sentences: int = 5
    min_words_per_line: int = 3
    max_word_length: int = 1000
    drop_lorem_ipsum: bool = True
    drop_javascript_lines: bool = True
    drop_curly_brackets: bool = True
    policy_phrases: tuple[str, ...] = (
        "terms of use",
        "privacy policy",
        "cookie policy",
        "uses cookies",
        "use of cookies",
        "use cookies",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FineWebSettings:
    """The rules that Penedo et al. 2024 (FineWeb) added.

    Attributes:
        min_terminal_lines: smallest share of lines that end a sentence.
        accept_no_terminal: whether a document passes in which no line does.
        short_line_chars: longest line that counts as short, in code points.
        max_short_lines: largest share of short lines.
        max_dup_line_chars: largest share of characters in lines that are copies of an earlier one.
        max_newlines_per_word: most line ends per word.
    """

    min_terminal_lines: float = 0.12
    accept_no_terminal: bool = False
    short_line_chars: int = 30
    max_short_lines: float = 0.67
    max_dup_line_chars: float = 0.01
    max_newlines_per_word: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageSettings:
    """Which languages go on, and who tells them apart.

    Attributes:
        keep: language codes, as the detector names them.
        detector: "py3langid", "pycld2" or "fasttext".
        model: the fastText model; None for the others, which bring theirs.
        min_score: least certainty of the language, 0 to 1.
        chars: leading code points that are looked at.
    """

    keep: tuple[str, ...]
    detector: str = "py3langid"
    model: PinnedFile | None = None
    min_score: float = 0.0
    chars: int = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class DecontaminationSettings:
    """Evaluation texts that no training document may share an n-gram with.

    Attributes:
        files: text files, or JSON lines of which every string counts.
        ngram: words that must follow each other alike.
        min_hits: n-grams shared before a document is dropped.
    """

    files: tuple[PinnedFile, ...]
    ngram: int = 13
    min_hits: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanSettings:
    """What happens to the documents of a source before they are tokenized. Steps run in the order of the attributes.

    Attributes:
        enabled: False takes every non-empty document as it is.
        unicode: "keep" leaves code points as they are, "nfc" composes them, "repair" also mends text that was decoded
            by the wrong table.
        newlines: "keep", or "lf" for one kind of line end.
        controls: "keep", or "remove" for control characters other than tab, line ends and form feed.
        min_chars: shortest document kept, in code points; 0 for none.
        max_chars: longest document kept, in code points; None for any.
        url_field: field with the document's address, for `url_lists`.
        url_lists: files of domains and addresses; documents from there are dropped.
        languages: languages kept; None for all.
        words: how words are split, a key of `WORD_SPLITTERS`.
        gopher_repetition: rules on repetition; None for none.
        gopher_quality: rules on quality; None for none.
        c4: rules on lines; None for none.
        fineweb: rules on lists and layout; None for none.
        bad_words: files of words and phrases; documents with one are dropped.
        custom: callables of the user's, in order.
        decontaminate: evaluation texts; None for none.
        mask: kinds of personal data to mask, out of "email", "ip" and "phone".
        min_tokens: shortest document kept, in tokens without the EOD; 0 for none.
        max_tokens: longest document kept, in tokens without the EOD; None for any.
        exact_dedup: whether a document whose text occurred before, in any source, is dropped.
    """

    enabled: bool = True
    unicode: str = "keep"
    newlines: str = "keep"
    controls: str = "keep"
    min_chars: int = 0
    max_chars: int | None = None
    url_field: str = "url"
    url_lists: tuple[PinnedFile, ...] = ()
    languages: LanguageSettings | None = None
    words: str = "words"
    gopher_repetition: GopherRepetitionSettings | None = None
    gopher_quality: GopherQualitySettings | None = None
    c4: C4Settings | None = None
    fineweb: FineWebSettings | None = None
    bad_words: tuple[PinnedFile, ...] = ()
    custom: tuple[CustomStep, ...] = ()
    decontaminate: DecontaminationSettings | None = None
    mask: tuple[str, ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    exact_dedup: bool = True

    def steps(self) -> tuple[str, ...]:
        """Names of the steps that are on, out of `STEP_VERSIONS`, in order."""
        if not self.enabled:
            return ()
        on = {
            "unicode": self.unicode != "keep",
            "newlines": self.newlines != "keep",
            "controls": self.controls != "keep",
        }
        names = [field.name for field in fields(self) if field.name in STEP_VERSIONS]
        return tuple(name for name in names if (on[name] if name in on else getattr(self, name)))

    def identity(self) -> dict[str, Any]:
        """Everything that decides which documents go on and what becomes of their text, as JSON values."""
        found: dict[str, Any] = {
            name: getattr(self, name) for name in ("enabled", "min_chars", "max_chars", "exact_dedup")
        }
        found |= {name: getattr(self, name) for name in ("min_tokens", "max_tokens") if getattr(self, name)}
        steps = self.steps()
        for name in steps:
            found[name] = {"version": STEP_VERSIONS[name], "settings": _without_paths(getattr(self, name))}
        if "url_lists" in steps:
            found["url_field"] = self.url_field
        if any(name in steps for name in _USES_WORDS):
            found["words"] = WORD_SPLITTERS[self.words]
        if any(name in steps for name in _USES_UNICODE_TABLES):
            found["unicode_tables"] = unicodedata.unidata_version
        return found


def _without_paths(value: Any) -> Any:
    """Settings as JSON values, in which files count by their content alone."""
    if isinstance(value, PinnedFile):
        return value.digest
    if isinstance(value, tuple | list):
        return [_without_paths(entry) for entry in value]
    if hasattr(value, "__dataclass_fields__"):
        if isinstance(value, CustomStep):
            return asdict(value)
        return {field.name: _without_paths(getattr(value, field.name)) for field in fields(value)}
    return value
