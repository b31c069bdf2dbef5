"""Deduplication of paragraphs against a loop over a set, and what a corpus keeps of its texts."""

import itertools
import json
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import DataError, RecipeError
from gristmill.pipelines import paragraph_dedup, paragraph_scan, sorted_keys
from gristmill.pipelines.paragraphs import keys_of, paragraphs_of, without

Texts = list[list[str]]


def normal(text: str) -> str:
    """The definition of a normal form."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def paragraphs(text: str) -> list[tuple[str, str]]:
    """The definition of paragraphs: lines that are not blank, each with what stands behind it up to the next."""
    found: list[tuple[str, str]] = []
    lines = text.split("\n")
    for number, line in enumerate(lines):
        feed = "\n" if number + 1 < len(lines) else ""
        if line.strip():
            found.append((line, feed))
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + line + feed)
    return found


def left_of(text: str, gone: set[int]) -> str:
    """The definition of a text without some paragraphs, of which at least one stays."""
    found = paragraphs(text)
    head = text[: len(text) - sum(len(line) + len(gap) for line, gap in found)]
    last = max(place for place in range(len(found)) if place not in gone)
    stays = [line + gap for place, (line, gap) in enumerate(found[:last]) if place not in gone]
    return head + "".join(stays) + found[last][0] + found[-1][1]


def oracle(sources: Texts, least: int, key: Callable[[str], str] = normal) -> Texts:
    """What is left of documents that are distinct already."""
    seen: set[str] = set()
    kept: Texts = []
    for texts in sources:
        kept.append([])
        for text in texts:
            found = paragraphs(text)
            gone = set()
            for place, (line, _) in enumerate(found):
                if len(line.strip()) >= least:
                    if key(line) in seen:
                        gone.add(place)
                    seen.add(key(line))
            if len(gone) < len(found):
                kept[-1].append(left_of(text, gone))
    return kept


LINES = st.sampled_from(
    [
        "one line",
        "One  Line ",
        "\tone line\r",
        "another line",
        "a third",
        "x",
        "",
        "  ",
        "\xa0",
        "e\u0301t\xe9",
        "\xc9T\xc9",
        "\xdf",
        "SS",
    ]
)
TEXTS = st.lists(LINES, min_size=1, max_size=9).map("\n".join)


@given(st.lists(TEXTS | st.text("ab\n \u3000\u4e16\U0001f600e\u0301\xc9", max_size=20), max_size=5), st.data())
@settings(max_examples=200, deadline=None)
def test_paragraphs_and_texts_without_some(texts: list[str], data: st.DataObject) -> None:
    found = paragraphs_of(texts)
    expected = [(number, line, gap) for number, text in enumerate(texts) for line, gap in paragraphs(text)]
    joined = "".join(texts)
    assert found.owners.tolist() == [number for number, _, _ in expected]
    assert [joined[a:b] for a, b in zip(found.starts, found.ends, strict=True)] == [line for _, line, _ in expected]
    assert found.lengths.tolist() == [len(line.strip()) for _, line, _ in expected]
    assert found.sizes.tolist() == [len(line.encode()) for _, line, _ in expected]
    assert found.gaps.tolist() == [len(gap) for _, _, gap in expected]
    assert found.gap_sizes.tolist() == [len(gap.encode()) for _, _, gap in expected]
    gone = []
    for text in texts:
        count = len(paragraphs(text))
        gone.append(data.draw(st.sets(st.integers(0, count - 1), max_size=count - 1) if count else st.just(set())))
    taken = [number for number, places in enumerate(gone) if places]
    owners = [owner for owner, number in enumerate(taken) for _ in gone[number]]
    places = [place for number in taken for place in sorted(gone[number])]
    fewer = without([texts[number] for number in taken], np.array(owners, np.int64), np.array(places, np.int64))
    assert fewer == [left_of(texts[number], gone[number]) for number in taken]


@pytest.mark.parametrize("normalized", [True, False])
@given(st.lists(TEXTS | st.text(st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_keys_are_equal_where_normal_forms_are(normalized: bool, texts: list[str]) -> None:
    found = paragraphs_of(texts)
    keys = keys_of(texts, found, np.ones(len(found.owners), bool), normalized=normalized)
    lines = [line for text in texts for line, _ in paragraphs(text)]
    forms = [normal(line) if normalized else line for line in lines]
    for (one, form), (other, twin) in itertools.combinations(zip(keys.tolist(), forms, strict=True), 2):
        assert (one == other) == (form == twin)


def test_every_code_point_folds_as_the_definition_says() -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000 and code != 10]
    folding = [char for char in every if char.casefold() != char or unicodedata.normalize("NFC", char) != char]
    texts = ["\n".join(f"a{char}b" for char in chars) for chars in (folding, map(normal, folding))]
    found = paragraphs_of(texts)
    keys = keys_of(texts, found, np.ones(len(found.owners), bool), normalized=True)
    forms = [normal(f"a{char}b") for chars in (folding, map(normal, folding)) for char in chars]
    assert len(keys) == len(forms) > 2000
    by_form: dict[str, list[int]] = {}
    for key, form in zip(keys.tolist(), forms, strict=True):
        assert by_form.setdefault(form, key) == key, form
    assert len({tuple(key) for key in by_form.values()}) == len(by_form)
    spaces = "\n".join(f"a{char}{char}b" for char in every if char.isspace())
    plain = keys_of(["a b"], paragraphs_of(["a b"]), np.ones(1, bool), normalized=True)
    found = paragraphs_of([spaces])
    assert (keys_of([spaces], found, np.ones(len(found.owners), bool), normalized=True) == plain).all()
    assert len(found.owners) == sum(map(str.isspace, every)) > 20


def of(texts: Texts, workshop: Any, **clean: Any) -> list[dict[str, Any]]:
    return [
        {"files": workshop.jsonl(f"{number}.jsonl", own), "clean": {"exact_dedup": False} | clean}
        for number, own in enumerate(texts)
    ]


LOOSE = {"warn_fraction": 1.0, "max_fraction": 1.0}


@given(
    st.lists(st.lists(TEXTS.filter(lambda text: text.strip() != ""), min_size=1, max_size=4), min_size=1, max_size=3),
    st.sampled_from(["normalized", "identical"]),
)
@settings(max_examples=15, deadline=None)
def test_what_is_left_is_what_a_loop_over_a_set_leaves(new_workshop: Callable[[], Any], texts: Texts, key: str) -> None:
    shop = new_workshop()
    expected = oracle(texts, 2, normal if key == "normalized" else str)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paragraph_dedup, "_PARTITION_BYTES", 100)
        patch.setattr(paragraph_scan, "_RUN", 3)
        patch.setattr(sorted_keys, "_PART", 2)
        patch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 90)
        arguments = {"paragraph_dedup": {"min_chars": 2, **LOOSE}, "dedup_key": key}
        if not all(expected):
            with pytest.raises(DataError, match="no document is left"):
                shop.prepare(*of(texts, shop), **arguments)
            return
        shop.prepare(*of(texts, shop), **arguments)
    assert [shop.texts(f"s{number}") for number in range(len(texts))] == expected
    for number, source in enumerate(shop.manifest()["sources"]):
        account = json.loads((shop.folder / "out" / "report" / "account.json").read_bytes())["sources"][f"s{number}"][
            "clean"
        ]
        before, after = (sum(map(len, own[number])) for own in (texts, expected))
        assert account["characters_kept"] == after
        assert account["bytes_kept"] == sum(len(text.encode()) for text in expected[number])
        assert before - after == account["counted"].get("paragraphs.characters_removed", 0)
        assert account["documents_kept"] == source["documents_kept"] == len(expected[number])


TALE = [f"paragraph number {number} of a tale that is told once" for number in range(8)]


class TestCorpus:
    def test_what_goes_is_told_with_what_stays(self, workshop: Any) -> None:
        first = [f"{TALE[0]}\n\n{TALE[1]}\n", f"{TALE[2]}\n\n{TALE[0].upper()}\n\n{TALE[3]}\n\n{TALE[1]}\n"]
        second = [f"short\n{TALE[3]}\n\n\n{TALE[4]}", f"{TALE[0]}\n \n{TALE[2]}", f"{TALE[5]}", "another short line"]
        sources = of([first, second], workshop)
        workshop.prepare(*sources, paragraph_dedup={"min_chars": 20, **LOOSE}, dedup_key="normalized")
        assert workshop.texts("s0") == [first[0], f"{TALE[2]}\n\n{TALE[3]}\n"]
        assert workshop.texts("s1") == [f"short\n{TALE[4]}", TALE[5], "another short line"]
        counts = [(source["dropped"], source["counted"]) for source in workshop.manifest()["sources"]]
        gone = 2 * len(TALE[0]) + 4, len(TALE[3]) + 3 + len(second[1])
        assert counts == [
            (
                {},
                {"paragraphs.characters_removed": gone[0], "paragraphs.documents_changed": 1, "paragraphs.removed": 2},
            ),
            (
                {"paragraphs.none_left": 1},
                {"paragraphs.characters_removed": gone[1], "paragraphs.documents_changed": 1, "paragraphs.removed": 3},
            ),
        ]
        rejected = workshop.folder / "out" / "rejected"
        told = [json.loads(line) for line in (rejected / "s1" / "00000.paragraphs.jsonl").read_text().splitlines()]
        where = [(sample["reason"], sample["where"], sample["kept"]) for sample in told]
        here = "1.jsonl: record {} of split 0, paragraph {}".format
        there = "s0/0.jsonl: record {} of split 0, paragraph {}".format
        assert where == [
            ("paragraphs.removed", here(0, 1), there(1, 2)),
            ("paragraphs.removed", here(1, 0), there(0, 0)),
            ("paragraphs.removed", here(1, 1), there(1, 0)),
            ("paragraphs.none_left", here(1, 0), there(0, 0)),
        ]
        cleaning = workshop.manifest()["sources"][1]["cleaning"]
        assert cleaning["paragraph_dedup"] == {"version": 1, "settings": {"min_chars": 20}}
        assert cleaning["dedup_key"]["key"] == "gristmill-normalized-1"

    def test_paragraphs_of_documents_that_were_dropped_take_nothing_along(self, workshop: Any) -> None:
        """A copy by its normal form, parted into other paragraphs, is gone before its paragraphs could be the first."""
        texts = [f"{TALE[0]} {TALE[1]}", f"{TALE[0]}\n{TALE[1]}", f"{TALE[1]}\n{TALE[2]}"]
        source = {"files": [workshop.jsonl("a.jsonl", texts)]}
        workshop.prepare(source, paragraph_dedup={"min_chars": 20}, dedup_key="normalized")
        assert workshop.texts("s0") == [texts[0], texts[2]]
        assert workshop.manifest()["sources"][0]["dropped"] == {"exact_duplicate": 1}

    def test_a_source_may_stay_out(self, workshop: Any) -> None:
        texts = [[TALE[0]], [f"{TALE[0]}\nx", f"{TALE[0]}\ny"], [f"{TALE[0]}\nz"]]
        workshop.prepare(*of(texts, workshop), paragraph_dedup={"min_chars": 20, "sources": ["s0", "s2"], **LOOSE})
        assert [workshop.texts(f"s{number}") for number in range(3)] == [*texts[:2], ["z"]]

    def test_too_little_left_is_no_document(self, workshop: Any) -> None:
        texts = [[f"{TALE[0]}\n{TALE[1]}", f"{TALE[0]}\n{TALE[2]}", f"{TALE[0]}\n{TALE[3]}\n{TALE[4]}"]]
        workshop.prepare(*of(texts, workshop, min_chars=50), paragraph_dedup={"min_chars": 20, **LOOSE})
        assert workshop.texts("s0") == [texts[0][0], f"{TALE[3]}\n{TALE[4]}"]
        assert workshop.manifest()["sources"][0]["dropped"] == {"paragraphs.min_chars": 1}

    def test_turning_it_on_and_off_rebuilds(self, workshop: Any) -> None:
        """The run before encoded while it scanned; what it left must not be taken for the texts as they are now."""
        texts = [[f"{TALE[0]}\n{TALE[1]}", f"{TALE[0]}\n{TALE[2]}"]]
        cut = {"paragraph_dedup": {"min_chars": 20, **LOOSE}}
        for rest, expected in (({}, texts[0]), (cut, [texts[0][0], TALE[2]]), ({}, texts[0])):
            workshop.prepare(*of(texts, workshop), **rest, options={"last": "clean"})
            workshop.prepare(*of(texts, workshop), **rest)
            assert workshop.texts("s0") == expected

    def test_a_source_that_would_lose_most_of_its_text(self, workshop: Any) -> None:
        texts = [[f"{TALE[0]}\n{number}" for number in range(10)]]
        with pytest.raises(
            DataError, match=r"'s0': 423 of 480 characters are in paragraphs that occurred before, more"
        ):
            workshop.prepare(*of(texts, workshop), paragraph_dedup={"min_chars": 20})
        below = {"min_chars": 20, "max_fraction": 0.2, "warn_fraction": 0.95}  # what is warned of
        with pytest.raises(DataError, match=r"max_fraction = 0\.2 allows"):
            workshop.prepare(*of(texts, workshop), paragraph_dedup=below)
        said = r"423 of 480 characters .* more than paragraph_dedup\.warn_fraction = 0\.3"
        with pytest.warns(UserWarning, match=said):
            workshop.prepare(*of(texts, workshop), paragraph_dedup={"min_chars": 20, "max_fraction": 0.9})
        account = json.loads((workshop.folder / "out" / "report" / "account.json").read_bytes())
        rate = account["sources"]["s0"]["clean"]["removal_rate"]
        assert rate == {"paragraphs.characters_removed": round(423 / 480, 6)}

    def test_mistakes_in_the_recipe(self, workshop: Any) -> None:
        table = {"min_chars": 0, "warn_fraction": 2, "sources": ["s1", "web"], "chars": 5}
        sources = of([["a"], ["b"]], workshop)
        sources[1]["clean"] = False
        with pytest.raises(RecipeError) as caught:
            workshop.prepare(*sources, paragraph_dedup=table)
        said = [str(problem) for problem in caught.value.problems]
        known = ("max_fraction", "min_chars", "sources", "warn_fraction")
        assert said == [
            "paragraph_dedup.min_chars: is 0; it must be a number of characters, 1 or more",
            "paragraph_dedup.warn_fraction: is 2.0; it must be a fraction above 0, at most 1",
            'paragraph_dedup.sources: names "s1", which is not cleaned (clean = false)',
            'paragraph_dedup.sources: names "web", which is no source; the sources are s0, s1',
            'paragraph_dedup.chars: is not a known key; did you mean "min_chars"? known here: ' + ", ".join(known),
        ]
