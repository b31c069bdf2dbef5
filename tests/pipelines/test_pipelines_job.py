"""What makes which stage's work stale, and what a job says of its items."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.recipe import Recipe, parse_recipe
from gristmill.pipelines.job import Job, make_job
from gristmill.pipelines.plan import plan_run
from gristmill.pipelines.stage_names import STAGES
from gristmill.tokenize.definition import HuggingFaceEngine
from gristmill.tokenize.load import resolve_tokenizer

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def values(tmp_path: Path, tiny_tokenizer: Path) -> dict[str, Any]:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(b'{"text": "%s"}\n' % name.encode())
    return {
        "name": "test",
        "output": str(tmp_path / "out"),
        "tokenizer": {"path": str(tiny_tokenizer), "eod": "<|endoftext|>"},
        "sources": [
            {"id": "a", "files": [str(tmp_path / "a.jsonl")], "weight": 0.5},
            {"id": "b", "files": [str(tmp_path / "b.jsonl")], "weight": 0.5, "clean": False},
        ],
        "index": {"sequence_length": 8, "samples": 10},
    }


def job_of(values: dict[str, Any], source: int | None = None) -> Job:
    recipe: Recipe = parse_recipe(values)
    resolved = resolve_tokenizer(recipe.tokenizer.path, recipe.tokenizer.eod)
    return make_job(recipe, plan_run(recipe), tokenizer=resolved, engine=HuggingFaceEngine(resolved), source=source)


def set_in(path: str, value: Any) -> Change:
    """Sets `value` at a dotted path of the recipe."""

    def change(values: dict[str, Any]) -> None:
        *folders, name = path.split(".")
        place: Any = values
        for folder in folders:
            place = place[int(folder)] if folder.isdecimal() else place.setdefault(folder, {})
        place[name] = value

    return change


def rewrite(name: str) -> Change:
    return lambda values: Path(values["output"]).with_name(name).write_bytes(b'{"text": "new"}\n')


def swap(values: dict[str, Any]) -> None:
    values["sources"].reverse()


def drop_last(values: dict[str, Any]) -> None:
    values["sources"].pop()


CHANGES: dict[str, tuple[Change, str | None]] = {
    "name": (set_in("name", "other"), None),
    "output": (set_in("output", "elsewhere"), None),
    "content of an input": (rewrite("a.jsonl"), "download"),
    "order of sources": (swap, "download"),
    "one source less": (drop_last, "download"),
    "source id": (set_in("sources.0.id", "c"), "download"),
    "clean": (set_in("sources.0.clean", {"min_chars": 5}), "clean"),
    "text field": (set_in("sources.0.text_field", "body"), "clean"),
    "policy": (set_in("sources.0.bad_records", "skip"), "clean"),
    "eod": (set_in("tokenizer.eod", 7), "tokenize"),
    "control text": (set_in("tokenizer.control_text", "keep"), "tokenize"),
    "shards": (set_in("shards.target_tokens", 1000), "tokenize"),
    "seed": (set_in("seed", 1), "index"),
    "length": (set_in("index.sequence_length", 16), "index"),
    "samples": (set_in("index.samples", 11), "index"),
    "splits": (set_in("index.splits", "90,5,5"), "index"),
    "valid": (set_in("index.valid", {"samples": 1}), "index"),
    "weight": (set_in("sources.0.weight", 0.7), "index"),
    "epochs": (set_in("sources.0.max_epochs", 2), "index"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_makes_its_stage_and_those_behind_it_stale(values: dict[str, Any], name: str) -> None:
    change, first = CHANGES[name]
    before = job_of(values)
    change(values)
    after = job_of(values)
    changed = [stage for stage in STAGES if before.stage_digests[stage] != after.stage_digests[stage]]
    assert changed == ([] if first is None else list(STAGES[STAGES.index(first) :]))
    if first is not None:
        assert before.settings[first] != after.settings[first]


def test_the_tokenizer_is_known_by_what_it_does(values: dict[str, Any], tmp_path: Path) -> None:
    before = job_of(values)
    copy = tmp_path / "copy.json"
    copy.write_bytes(Path(values["tokenizer"]["path"]).read_bytes())
    values["tokenizer"] = {"path": str(copy), "eod": 0}
    assert job_of(values).stage_digests == before.stage_digests


def test_which_sources_a_job_works_on(values: dict[str, Any]) -> None:
    splits = plan_run(parse_recipe(values)).splits
    expected = {None: ([0], [0, 1]), 0: ([0], [0]), 1: ([0], [1])}
    for source, (scanned, encoded) in expected.items():
        job = job_of(values, source)
        assert [split.number for split in splits if job.scans(split)] == scanned
        assert [split.number for split in splits if job.wants(split.source)] == encoded
    assert [job_of(values).item(split) for split in splits] == ["a/00000", "b/00000"]
