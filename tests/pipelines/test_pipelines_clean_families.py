"""The families of rules decide as their definitions do, and as datatrove's own filter classes."""

import dataclasses
import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.clean_settings import (
    C4Settings,
    CleanSettings,
    FineWebSettings,
    GopherQualitySettings,
    GopherRepetitionSettings,
)
from gristmill.pipelines.clean import clean_batch
from gristmill.pipelines.clean_classes import SYMBOL, TERMINAL, class_table
from gristmill.pipelines.clean_documents import Documents
from gristmill.pipelines.clean_families import Families, word_hashes
from gristmill.pipelines.clean_words import split
from gristmill.pipelines.records import Batch, RecordAccount


def beside(name: str) -> Any:
    """A module of this folder that no test is in."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


definitions = beside("filter_definitions")
documents = beside("filter_documents").documents
ODD: tuple[str, ...] = beside("filter_documents").ODD
FAMILIES: dict[str, Any] = {
    "gopher_repetition": GopherRepetitionSettings(),
    "gopher_quality": GopherQualitySettings(),
    "c4": C4Settings(),
    "fineweb": FineWebSettings(),
}
# What datatrove calls each rule.
THEIRS = {
    "dup_para_frac": "max_dup_paragraphs",
    "dup_para_char_frac": "max_dup_paragraph_chars",
    "dup_line_frac": "max_dup_lines",
    "dup_line_char_frac": "max_dup_line_chars",
    **{f"top_{n}_gram": f"top_{n}gram" for n in range(2, 5)},
    **{f"duplicated_{n}_n_grams": f"dup_{n}gram" for n in range(5, 11)},
    "gopher_short_doc": "min_words",
    "gopher_long_doc": "max_words",
    "gopher_below_avg_threshold": "min_mean_word_length",
    "gopher_above_avg_threshold": "max_mean_word_length",
    "gopher_too_many_hashes": "max_hash_ratio",
    "gopher_too_many_ellipsis": "max_ellipsis_ratio",
    "gopher_too_many_bullets": "max_bullet_lines",
    "gopher_too_many_end_ellipsis": "max_ellipsis_lines",
    "gopher_below_alpha_threshold": "min_alpha_words",
    "gopher_enough_stop_words": "min_stop_words",
    "lorem_ipsum": "drop_lorem_ipsum",
    "curly_bracket": "drop_curly_brackets",
    "too_few_sentences": "min_sentences",
    "line_punct_ratio": "min_terminal_lines",
    "short_line_ratio": "max_short_lines",
    "char_dup_ratio": "max_dup_line_chars",
    "list_ratio": "max_newlines_per_word",
    "empty": "no_line",
}


def decide(texts: list[str], name: str, **more: Any) -> tuple[list[str | None], list[str]]:
    """The rule of one family that each document breaks, and the texts."""
    chosen = {name: FAMILIES[name], **more}
    found = Documents(texts)
    Families(CleanSettings(**chosen)).apply(found)
    reasons = [found.verdicts.get(number, (None, ""))[0] for number in range(len(texts))]
    return [None if reason is None else reason.removeprefix(f"{name}.") for reason in reasons], found.texts


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def ours(texts: list[str]) -> list[list[str | None]]:
    """What `make_filters.decisions` gives, in our names."""
    columns = [decide(texts, name) for name in FAMILIES]
    left = [None if reason else digest(text) for reason, text in zip(*columns[2], strict=True)]
    return [list(row) for row in zip(*(reasons for reasons, _ in columns), left, strict=True)]


def renamed(row: list[str | None]) -> list[str | None]:
    return [*(reason and THEIRS[reason] for reason in row[:4]), row[4]]


def test_decisions_are_those_of_the_reference(repository: Path) -> None:
    rows = json.loads((repository / "tests" / "golden" / "filters.json").read_bytes())
    assert ours(documents(len(rows))) == [renamed(row) for row in rows]
    met = {reason for row in rows for reason in row[:4]}
    assert len(met) > 22, "the documents must break nearly every rule"


@pytest.mark.parity
@pytest.mark.skipif(importlib.util.find_spec("datatrove") is None, reason="datatrove (extra `parity`) is not installed")
def test_decisions_are_those_of_the_installed_reference(repository: Path, tmp_path: Path) -> None:
    program = (
        "import json, sys; sys.path[:0] = ['tests/pipelines', 'tests/golden']\n"
        "from make_filters import decisions; from filter_documents import documents\n"
        "json.dump(decisions(documents(3000, seed=11)), open(sys.argv[1], 'w'))\n"
    )
    path = tmp_path / "decisions.json"
    subprocess.run([sys.executable, "-c", program, str(path)], cwd=repository, check=True, timeout=600)
    assert ours(documents(3000, seed=11)) == [renamed(row) for row in json.loads(path.read_bytes())]


SYMBOLS = definitions.characters(class_table() & SYMBOL != 0)
TERMINALS = definitions.characters(class_table() & TERMINAL != 0)
LETTERS = "ab Ab\n\n\n.…-•#'\u2019\r\u2028\u3000東かé\u0301\u00ad_1{[]\"!?Kk\x1f\x85。"
TEXTS = st.lists(
    st.one_of(
        st.text(LETTERS, min_size=1, max_size=80),
        st.text(min_size=1, max_size=12),
        st.lists(st.sampled_from([*ODD, "the cat.", "the cat and", "", " of "]), min_size=1, max_size=30).map(
            "\n".join
        ),
    ).filter(bool),
    min_size=1,
    max_size=4,
)
LOW = {
    "gopher_repetition": GopherRepetitionSettings(
        top_ngrams=((1, 0.4), (2, 0.3)), dup_ngrams=((1, 0.5), (2, 0.3), (3, 0.2)), max_dup_lines=0.0
    ),
    "gopher_quality": GopherQualitySettings(min_words=2, min_stop_words=1, max_words=9, min_mean_word_length=1.5),
    "c4": C4Settings(min_sentences=1, min_words_per_line=0, terminal_punctuation=False),
    "fineweb": FineWebSettings(min_terminal_lines=0.3, accept_no_terminal=True, short_line_chars=3),
}


def by_definition(text: str, name: str, own: Any, words: str) -> tuple[str | None, str]:
    split_text = definitions.words_of if words == "words" else str.split
    if name == "gopher_repetition":
        return definitions.repetition(text, split_text(text), own), text
    if name == "gopher_quality":
        return definitions.quality(text, split_text(text), SYMBOLS, own), text
    if name == "c4":
        reason, left = definitions.c4(text, TERMINALS, own)
        return reason, left
    return definitions.fineweb(text, split_text, TERMINALS, own), text


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("words", ["words", "spaces"])
@settings(max_examples=150, deadline=None)
@given(texts=TEXTS, low=st.booleans())
def test_compiled_rules_decide_as_defined(name: str, words: str, texts: list[str], low: bool) -> None:
    own = LOW[name] if low else FAMILIES[name]
    reasons, left = decide(texts, name, **{name: own, "words": words})
    for text, reason, after in zip(texts, reasons, left, strict=True):
        expected = by_definition(text, name, own, words)
        assert reason == expected[0]
        if reason is None:
            assert after == expected[1]


@pytest.mark.parametrize("name", FAMILIES)
def test_made_documents_are_decided_as_defined(name: str) -> None:
    texts = documents(300, seed=3)
    reasons, left = decide(texts, name)
    for text, reason, after in zip(texts, reasons, left, strict=True):
        assert (reason, after if reason is None else text) == (
            lambda found: (found[0], found[1] if found[0] is None else text)
        )(by_definition(text, name, FAMILIES[name], "words"))


@pytest.mark.parametrize("words", ["words", "spaces"])
@given(texts=TEXTS)
@settings(max_examples=150, deadline=None)
def test_words_are_split_as_defined(words: str, texts: list[str]) -> None:
    found = split(Documents(texts), by_space=words == "spaces")
    expected = [definitions.words_of(text) if words == "words" else text.split() for text in texts]
    assert (found.starts[1:] - found.starts[:-1]).tolist() == [len(own) for own in expected]
    flat = [word for own in expected for word in own]
    assert found.lengths[: len(flat)].tolist() == [len(word) for word in flat]
    assert found.hashes[: len(flat)].tolist() == word_hashes(flat).tolist()
    kinds = [any(map(str.isalpha, word)) + 2 * (not set(word) <= SYMBOLS) for word in flat]
    assert found.kinds[: len(flat)].tolist() == kinds


def test_families_together_are_families_one_after_the_other() -> None:
    texts = documents(200, seed=5)
    chosen = CleanSettings(**FAMILIES)
    account = RecordAccount("fail")
    together = clean_batch(Batch(texts, range(len(texts))), chosen, account, lambda _: "x")
    apart, counts = Batch(texts, range(len(texts))), RecordAccount("fail")
    for name, own in FAMILIES.items():
        apart = clean_batch(apart, CleanSettings(**{name: own}), counts, lambda _: "x")
    assert (together.texts, list(together.records)) == (apart.texts, list(apart.records))
    assert account.dropped == counts.dropped
    assert 0 < len(together.texts) < len(texts)


@pytest.mark.parametrize("size", [1, 7, 200])
def test_a_decision_does_not_depend_on_the_batch(size: int) -> None:
    texts = documents(60, seed=9)
    chosen = CleanSettings(**FAMILIES)
    found = []
    for start in range(0, len(texts), size):
        batch = Batch(texts[start : start + size], range(start, min(start + size, len(texts))))
        kept = clean_batch(batch, chosen, RecordAccount("fail"), lambda _: "x")
        found += list(zip(kept.records, kept.texts, strict=True))
    whole = clean_batch(Batch(texts, range(len(texts))), chosen, RecordAccount("fail"), lambda _: "x")
    assert found == list(zip(whole.records, whole.texts, strict=True))


def test_rules_can_be_turned_off_one_by_one() -> None:
    text = "# # # # # # # word"
    assert decide([text], "gopher_quality")[0] == ["min_words"]
    off: dict[str, Any] = {
        field.name: 0 for field in dataclasses.fields(GopherQualitySettings) if field.name != "stop_words"
    }
    assert decide([text], "gopher_quality", gopher_quality=GopherQualitySettings(**off))[0] == [None]
    only = GopherQualitySettings(**{**off, "max_hash_ratio": 0.1})
    assert decide([text], "gopher_quality", gopher_quality=only)[0] == ["max_hash_ratio"]


def test_the_sample_tells_value_and_limit() -> None:
    account = RecordAccount("fail")
    batch = Batch(["one two three. " * 3], range(1))
    clean_batch(batch, CleanSettings(gopher_quality=GopherQualitySettings()), account, lambda _: "a.jsonl")
    assert [(sample["reason"], sample["found"]) for sample in account.samples] == [
        ("gopher_quality.min_words", "9 < 50")
    ]
