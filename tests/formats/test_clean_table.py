"""The `clean` tables of a recipe: what they mean, what is inherited, and every mistake in them."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.clean_settings import (
    C4Settings,
    CleanSettings,
    CustomStep,
    DecontaminationSettings,
    FineWebSettings,
    GopherQualitySettings,
    GopherRepetitionSettings,
    LanguageSettings,
    PinnedFile,
)
from gristmill.formats.clean_table import read_clean
from gristmill.formats.errors import Problem
from gristmill.formats.settings_table import SettingsTable


def read(*tables: Any) -> tuple[CleanSettings, list[str]]:
    """What tables give, each inheriting from the one before, and the mistakes in the last."""
    settings = CleanSettings()
    problems: list[Problem] = []
    for table in tables:
        problems = []
        settings = read_clean(SettingsTable({"clean": table}, "", problems), settings)
    return settings, [str(problem) for problem in problems]


CASES: dict[str, tuple[tuple[Any, ...], CleanSettings]] = {
    "published": (
        ({"gopher_quality": True, "gopher_repetition": True, "c4": True, "fineweb": True},),
        CleanSettings(
            gopher_quality=GopherQualitySettings(),
            gopher_repetition=GopherRepetitionSettings(),
            c4=C4Settings(),
            fineweb=FineWebSettings(),
        ),
    ),
    "one threshold": (
        ({"gopher_quality": {"min_words": 10, "max_hash_ratio": 1, "stop_words": ["der", "die"]}},),
        CleanSettings(
            gopher_quality=GopherQualitySettings(min_words=10, max_hash_ratio=1.0, stop_words=("der", "die"))
        ),
    ),
    "n-grams": (
        ({"gopher_repetition": {"top_ngrams": {"3": 0.5, "2": 0.25}, "dup_ngrams": {}}},),
        CleanSettings(gopher_repetition=GopherRepetitionSettings(top_ngrams=((2, 0.25), (3, 0.5)), dup_ngrams=())),
    ),
    "a source adds to a family": (
        ({"c4": {"min_sentences": 2}}, {"c4": {"remove_citations": False}}),
        CleanSettings(c4=C4Settings(min_sentences=2, remove_citations=False)),
    ),
    "a source turns a family on as inherited": (
        ({"c4": {"min_sentences": 2}}, {"c4": True}),
        CleanSettings(c4=C4Settings(min_sentences=2)),
    ),
    "a source turns a family off": (({"c4": True, "min_chars": 3}, {"c4": False}), CleanSettings(min_chars=3)),
    "languages": (
        ({"languages": ["en", "de", "en"], "min_language_score": 0.5, "language_chars": 500},),
        CleanSettings(languages=LanguageSettings(keep=("de", "en"), min_score=0.5, chars=500)),
    ),
    "a source keeps other languages": (
        ({"languages": "en", "language_detector": "pycld2"}, {"languages": "fr"}),
        CleanSettings(languages=LanguageSettings(keep=("fr",), detector="pycld2")),
    ),
    "a source keeps all languages": (({"languages": "en"}, {"languages": []}), CleanSettings()),
    "a model": (
        ({"languages": "en", "language_detector": "fasttext", "language_model": "lid.bin"},),
        CleanSettings(languages=LanguageSettings(keep=("en",), detector="fasttext", model=PinnedFile(path="lid.bin"))),
    ),
    "lists": (
        ({"bad_words": ["a", "b"], "url_lists": "c", "url_field": "meta.url"},),
        CleanSettings(
            bad_words=(PinnedFile(path="a"), PinnedFile(path="b")),
            url_lists=(PinnedFile(path="c"),),
            url_field="meta.url",
        ),
    ),
    "decontamination": (
        ({"decontaminate": "e.jsonl", "decontaminate_ngram": 8}, {"decontaminate_hits": 2}),
        CleanSettings(decontaminate=DecontaminationSettings(files=(PinnedFile(path="e.jsonl"),), ngram=8, min_hits=2)),
    ),
    "the rest": (
        (
            {"unicode": "nfc", "controls": "remove", "newlines": "lf", "words": "spaces", "mask": ["phone", "email"]},
            {"custom": "a.b:c.d", "min_tokens": 2, "max_tokens": 2},
        ),
        CleanSettings(
            unicode="nfc",
            controls="remove",
            newlines="lf",
            words="spaces",
            mask=("email", "phone"),
            custom=(CustomStep(path="a.b:c.d"),),
            min_tokens=2,
            max_tokens=2,
        ),
    ),
}


@pytest.mark.parametrize(("tables", "expected"), CASES.values(), ids=CASES)
def test_tables_mean(tables: tuple[Any, ...], expected: CleanSettings) -> None:
    assert read(*tables) == (expected, [])


MISTAKES: dict[str, tuple[Any, str]] = {
    "unicode": ({"unicode": "nfkc"}, 'clean.unicode: is "nfkc"; it must be one of "keep", "nfc", "repair"'),
    "family": ({"c4": 3}, "clean.c4: is 3; it must be a table"),
    "key of a family": (
        {"gopher_quality": {"min_word": 3}},
        'clean.gopher_quality.min_word: is not a known key; did you mean "min_words"?',
    ),
    "threshold": (
        {"fineweb": {"max_short_lines": -1}},
        "clean.fineweb.max_short_lines: is -1.0; it must be a",
    ),
    "count": ({"c4": {"min_sentences": 0.5}}, "clean.c4.min_sentences: is 0.5; it must be an integer, 0 or more"),
    "n-gram": (
        {"gopher_repetition": {"top_ngrams": {"two": 0.2}}},
        "clean.gopher_repetition.top_ngrams.two: is 0.2; it must be a fraction for a number of words, 1 to 64",
    ),
    "n-grams": (
        {"gopher_repetition": {"dup_ngrams": 5}},
        "clean.gopher_repetition.dup_ngrams: is 5; it must be a",
    ),
    "phrases": ({"c4": {"policy_phrases": ["Terms"]}}, "clean.c4.policy_phrases: holds a phrase that is not ASCII in"),
    "stop words": (
        {"gopher_quality": {"stop_words": [f"w{number}" for number in range(65)]}},
        "clean.gopher_quality.stop_words: holds 65 words; at most 64 are possible",
    ),
    "model without languages": (
        {"language_model": "x"},
        "clean.language_model: says how languages are told apart, but `languages` names none to keep",
    ),
    "no model": (
        {"languages": "en", "language_detector": "fasttext"},
        'clean.language_model: is missing; language_detector = "fasttext" needs the path of its model',
    ),
    "model of another": (
        {"languages": "en", "language_model": "x"},
        'clean.language_model: is a fastText model, but language_detector is "py3langid"',
    ),
    "score": ({"languages": "en", "min_language_score": 2}, "clean.min_language_score: is 2.0; it must be a fraction"),
    "callable": ({"custom": "module.function"}, 'clean.custom[0]: is "module.function"; it must be "package.module:fu'),
    "mask": ({"mask": ["names"]}, 'clean.mask[0]: is "names"; it must be one of "email", "ip", "phone"'),
    "n-gram of nothing": ({"decontaminate_ngram": 8}, "clean.decontaminate_ngram: says how evaluation texts are found"),
    "long n-gram": (
        {"decontaminate": "x", "decontaminate_ngram": 99},
        "clean.decontaminate_ngram: is 99; it must be a number of words, 1 to 64",
    ),
    "field of nothing": (
        {"url_field": "u"},
        "clean.url_field: names the field that url_lists are about",
    ),
    "tokens": (
        {"min_tokens": 5, "max_tokens": 4},
        "clean.max_tokens: is 4, less than min_tokens, 5; no",
    ),
}


@pytest.mark.parametrize(("table", "beginning"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told(table: Any, beginning: str) -> None:
    (told,) = read(table)[1]
    assert told.startswith(beginning)


class TestIdentity:
    def test_what_is_off_leaves_no_trace(self) -> None:
        assert CleanSettings().identity() == {
            "enabled": True,
            "min_chars": 0,
            "max_chars": None,
            "exact_dedup": True,
        }

    @pytest.mark.parametrize(("tables", "settings"), CASES.values(), ids=CASES)
    def test_every_setting_counts(self, tables: Any, settings: CleanSettings) -> None:
        others = [other.identity() for _, other in CASES.values() if other != settings]
        assert settings.identity() not in others

    def test_versions_and_splitter_are_named(self) -> None:
        found = CleanSettings(fineweb=FineWebSettings()).identity()
        assert found["fineweb"]["version"] == 1
        assert found["fineweb"]["settings"]["max_short_lines"] == 0.67
        assert found["words"] == "gristmill-words-1"
        assert re.fullmatch(r"\d+\.\d+\.\d+", found["unicode_tables"])

    def test_files_count_by_their_bytes_alone(self) -> None:
        here, there = PinnedFile(path="here", digest="d"), PinnedFile(path="there", digest="d")
        other = PinnedFile(path="here", digest="e")
        identities = [CleanSettings(bad_words=(file,)).identity() for file in (here, there, other)]
        assert identities[0] == identities[1] != identities[2]


def test_the_guide_names_every_threshold_and_its_default(repository: Path) -> None:
    page = (repository / "docs" / "guide" / "cleaning.md").read_text("utf-8")
    for family in (GopherRepetitionSettings(), GopherQualitySettings(), C4Settings(), FineWebSettings()):
        name = {"GopherRepetitionSettings": "gopher_repetition", "GopherQualitySettings": "gopher_quality"}.get(
            type(family).__name__, type(family).__name__.removesuffix("Settings").lower()
        )
        section = page.split(f"\n### `{name}`\n")[1].split("\n#")[0]
        listed: dict[str, str] = {}
        for keys, values in re.findall(r"^\| (`.*?) \| (.*?) \|", section, re.MULTILINE):
            names = re.findall(r"`(\w+)`", keys)
            told = [values] if len(names) == 1 else values.split(", ")
            listed |= dict(zip(names, told, strict=True))
        assert set(listed) == {field.name for field in dataclasses.fields(family)}
        for key, told in listed.items():
            default = getattr(family, key)
            if isinstance(default, bool):
                assert told == str(default).lower(), key
            elif isinstance(default, int | float):
                assert float(told.replace(",", "")) == default, key
            elif key.endswith("ngrams"):
                assert told == "`{" + ", ".join(f"{n} = {share:g}" for n, share in default) + "}`"
