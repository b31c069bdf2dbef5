"""Rules on texts: the first that a document breaks counts it, and no text is changed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.formats.clean_settings import CleanSettings
from gristmill.pipelines.clean import clean_batch
from gristmill.pipelines.records import Batch, RecordAccount


def clean(texts: list[str], **settings: Any) -> tuple[Batch, RecordAccount]:
    account = RecordAccount("fail")
    batch = Batch(texts, range(10, 10 + len(texts)))
    return clean_batch(batch, CleanSettings(**settings), account, lambda _: "a.jsonl"), account


def test_a_batch_without_fault_is_handed_on_as_it_is() -> None:
    batch = Batch(["a", " b "], range(2))
    assert clean_batch(batch, CleanSettings(), RecordAccount("fail"), lambda _: "x") is batch


@pytest.mark.parametrize(
    ("text", "settings", "reason"),
    [
        ("abc", {"min_chars": 3}, None),
        ("ab", {"min_chars": 3}, "min_chars"),
        ("\U0001f600\U0001f600\U0001f600", {"min_chars": 3}, None),
        ("e\u0301e\u0301", {"min_chars": 4, "max_chars": 4}, None),
        ("abc", {"max_chars": 3}, None),
        ("abcd", {"max_chars": 3}, "max_chars"),
        ("   ", {"max_chars": 2}, "max_chars"),
        ("  ", {}, "blank"),
        ("\n\t\u3000\u2028", {}, "blank"),
        ("\u200b", {}, None),
        ("\x00", {}, None),
        ("  ", {"min_chars": 3}, "min_chars"),
        ("a", {"max_chars": 0}, "max_chars"),
    ],
)
def test_rules(text: str, settings: dict[str, int], reason: str | None) -> None:
    found, account = clean(["keep me", text, "and me"][1:2], **settings)
    assert found.texts == ([text] if reason is None else [])
    assert account.dropped == ({} if reason is None else {reason: 1})
    assert account.bad == 0


def test_what_is_left_out_is_counted_and_sampled() -> None:
    found, account = clean(["long enough", "x", "", "also long", "y"], min_chars=5)
    assert (found.texts, list(found.records)) == (["long enough", "also long"], [10, 13])
    assert account.dropped == {"min_chars": 3}
    assert [sample["where"] for sample in account.samples] == [
        f"a.jsonl: record {record} of its split" for record in (11, 12, 14)
    ]


@given(st.lists(st.text(max_size=6)), st.integers(0, 4), st.integers(4, 6))
def test_every_document_is_kept_or_counted(texts: list[str], shortest: int, longest: int) -> None:
    found, account = clean(texts, min_chars=shortest, max_chars=longest)
    assert len(found.texts) + sum(account.dropped.values()) == len(texts)
    assert found.texts == [text for text in texts if shortest <= len(text) <= longest and text.strip()]
    assert [texts[record - 10] for record in found.records] == found.texts
