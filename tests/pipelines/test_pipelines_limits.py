"""Limits: an exact prefix of each source, no more of it read than is needed, and a shortfall named."""

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.errors import DataError, RecipeError


@pytest.fixture(autouse=True)
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of two kilobytes."""
    monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 2000)


def texts(name: str, count: int = 300) -> list[str]:
    return [f"{name} number {number} " + "word " * (number % 9) for number in range(count)]


def lengths(workshop: Any, source: str) -> list[int]:
    return [len(document) for document in workshop.documents(source)]


def planned(workshop: Any) -> int:
    return len(json.loads((workshop.folder / "out" / "_stages" / "plan.json").read_bytes())["splits"])


@pytest.fixture
def whole(workshop: Any) -> tuple[Any, list[int], int]:
    """A workshop, the lengths of all documents of its source, and of how many splits."""
    workshop.jsonl("a.jsonl", texts("a"))
    workshop.prepare({"files": [f"{workshop.folder}/a.jsonl"]}, output=str(workshop.folder / "whole"))
    found = [len(document) for document in workshop.documents("s0", workshop.folder / "whole")]
    splits = len(json.loads((workshop.folder / "whole" / "_stages" / "plan.json").read_bytes())["splits"])
    return workshop, found, splits


@pytest.mark.parametrize("most", [1, 7, 100, 299, 300, 1000])
def test_documents(whole: tuple[Any, list[int], int], most: int) -> None:
    workshop, found, splits = whole
    workshop.prepare({"files": [f"{workshop.folder}/a.jsonl"], "max_documents": most}, shards={"target_tokens": 400})
    assert lengths(workshop, "s0") == found[:most]
    source = workshop.manifest()["sources"][0]
    assert source["documents_in"] == source["documents_kept"] + source["dropped"].get("over_limit", 0)
    if most <= 100:
        assert planned(workshop) < splits
    if most >= 300:
        assert "over_limit" not in source["dropped"]
        assert planned(workshop) == splits


@pytest.mark.parametrize("most", [40, 399, 400, 401, 2000])
@pytest.mark.parametrize("runner", ["loop", "FnApiRunner"])
def test_tokens(whole: tuple[Any, list[int], int], most: int, runner: str) -> None:
    workshop, found, splits = whole
    source = {"files": [f"{workshop.folder}/a.jsonl"], "max_tokens": most}
    workshop.prepare(source, shards={"target_tokens": 400}, options={"runner": runner})
    kept = lengths(workshop, "s0")
    assert kept == found[: len(kept)]
    assert sum(kept) <= most < sum(found[: len(kept) + 1])
    assert planned(workshop) < splits
    assert sum(shard["documents"] for shard in workshop.manifest()["sources"][0]["shards"]) == len(kept)


def test_bytes(whole: tuple[Any, list[int], int]) -> None:
    workshop, found, splits = whole
    workshop.prepare({"files": [f"{workshop.folder}/a.jsonl"], "max_bytes": 5000})
    kept = lengths(workshop, "s0")
    assert kept == found[: len(kept)]
    assert 0 < planned(workshop) < splits
    size = sum(len(json.dumps({"text": text})) + 1 for text in texts("a")[: len(kept)])
    assert 2000 < size <= 5000 + 100


def test_a_limit_that_changes_takes_up_what_was_read(whole: tuple[Any, list[int], int]) -> None:
    workshop, found, _ = whole
    for most in (50, 120, 20):
        workshop.prepare({"files": [f"{workshop.folder}/a.jsonl"], "max_documents": most})
        assert lengths(workshop, "s0") == found[:most]


def test_a_budget_is_dealt_by_weight(workshop: Any) -> None:
    sources = [
        {"files": [workshop.jsonl(f"{name}.jsonl", texts(name))], "weight": weight}
        for name, weight in (("a", 0.6), ("b", 0.4))
    ]
    workshop.prepare(*sources, budget={"tokens": 1500})
    totals = [sum(lengths(workshop, source)) for source in ("s0", "s1")]
    assert 900 - 40 < totals[0] <= 900
    assert 600 - 40 < totals[1] <= 600


def test_a_source_that_holds_less_than_its_share(workshop: Any) -> None:
    sources = [
        {"files": [workshop.jsonl("a.jsonl", texts("a"))], "weight": 0.5},
        {"files": [workshop.jsonl("b.jsonl", texts("b", 5))], "weight": 0.5},
    ]
    with pytest.raises(DataError, match=r"source 's1': 1000 tokens are wanted, but \d+ tokens in 5 documents are all"):
        workshop.prepare(*sources, budget={"tokens": 2000})
    assert not Path(workshop.folder / "out" / "manifest.json").exists()


def test_a_source_of_which_too_few_bytes_are_read(workshop: Any) -> None:
    source = {"files": [workshop.jsonl("a.jsonl", texts("a"))], "max_bytes": 1}
    with pytest.raises(DataError, match=r"are all it has; lower budget\.tokens .* or raise its max_bytes"):
        workshop.prepare(source, budget={"tokens": 2_000_000})


def test_a_limit_below_the_first_document(workshop: Any) -> None:
    source = {"files": [workshop.jsonl("a.jsonl", texts("a"))], "max_tokens": 1}
    with pytest.raises(
        DataError, match=r"over_limit\. The first that is left has more tokens .*: raise max_tokens, or"
    ):
        workshop.prepare(source)


def test_a_share_of_nothing_is_refused(workshop: Any) -> None:
    sources = [{"files": ["a"], "weight": 1}, {"files": ["b"], "weight": 0}, {"files": ["c"], "weight": 0.001}]
    with pytest.raises(RecipeError) as caught:
        workshop.prepare(*sources, budget={"tokens": 100})
    for name, weight in (("s1", "0"), ("s2", "0.001")):
        assert f'budget: leaves no token to source "{name}", whose weight is {weight}; raise the' in str(caught.value)
    assert "s0" not in str(caught.value)
    with pytest.raises(RecipeError, match='leaves no token to source "s2"; raise'):
        workshop.prepare(*({"files": ["a"]} for _ in range(3)), budget={"tokens": 1})


def test_a_sample_that_promised_too_much(workshop: Any) -> None:
    every = [*texts("a", 60), *["the same text again and again, said once more"] * 400]
    source = {"files": [workshop.jsonl("a.jsonl", every)], "max_documents": 70}
    with pytest.raises(DataError, match=r"'s0': 70 documents are wanted, but .* raise budget\.margin, now 0, so that"):
        workshop.prepare(source, budget={"margin": 0})
    workshop.prepare(source, budget={"margin": 20})
    assert len(lengths(workshop, "s0")) == 61


def test_mistakes(workshop: Any) -> None:
    source = {"files": ["a"], "max_documents": 0, "max_tokens": -1, "max_bytes": 1.5}
    with pytest.raises(RecipeError) as caught:
        workshop.prepare(source, budget={"tokens": 0, "margin": -1})
    said = str(caught.value)
    for key in ("max_documents", "max_tokens", "max_bytes", "budget.tokens", "budget.margin"):
        assert key in said
