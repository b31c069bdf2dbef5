"""The same corpus where items fail, die with their process, linger, or are done twice at the same time."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.errors import DataError
from gristmill.formats.verify import verify_corpus
from gristmill.pipelines import beam_watch

TOP: dict[str, Any] = {
    "shards": {"target_tokens": 2000},
    "index": {"sequence_length": 32, "samples": 200, "splits": "80,15,5"},
    "near_dedup": {"max_fraction": 1.0, "warn_fraction": 1.0},
}
FAILS = {"scan_split": "fails before", "assemble_shard": "fails after", "blend_split": "fails before"}
DIES = {"scan_split": "dies after", "index_member": "dies before"}

WAYS: dict[str, tuple[dict[str, Any], dict[str, str], int]] = {
    "loop": (
        {"runner": "loop"},
        {**FAILS, "copy_split": "fails before", "write_drops": "fails after", "encode_split": "fails after"},
        6,
    ),
    "processes without Beam": (
        {"runner": "auto", "max_workers": 2},
        {**DIES, "copy_split": "dies before", "write_drops": "dies after", "assemble_shard": "dies after"},
        5,
    ),
    "threads of Beam": (
        {"runner": "FnApiRunner", "flags": ("--direct_num_workers=2",)},
        {**FAILS, "index_member": "fails after"},
        4,
    ),
    "processes of Beam": (
        {"runner": "FnApiRunner", "flags": ("--direct_num_workers=2", "--direct_running_mode=multi_processing")},
        {**DIES, "blend_split": "dies after"},
        3,
    ),
    "processes of Dask": ({"runner": "DaskRunner", "max_workers": 2}, DIES, 0),
}
"""By name: options of a run, what befalls the first item of each function, and how many runs that ends."""


def fill(workshop: Any) -> list[dict[str, Any]]:
    """Two sources with copies, near copies and bad records."""
    rng = random.Random(3)
    words = ["the", "quick", "fox", "né", "\n", "x = 1", "世界", "jumps", "over"]
    shared = [" ".join(rng.choices(words, k=60)) + str(number) for number in range(12)]
    for part in range(4):
        own = [" ".join(rng.choices(words, k=rng.randint(1, 60))) + str(rng.random()) for _ in range(15)]
        near = [text + rng.choice(["", " so", " then"]) for text in rng.sample(shared, 6)]
        workshop.jsonl(f"web/{part}.jsonl", own + near)
    with open(workshop.folder / "web" / "2.jsonl", "ab") as file:
        file.write(b'oops\n{"text": 5}\n')
    workshop.write("lines.txt", "\n".join(text.replace("\n", " ") for text in shared).encode())
    web = {"files": [f"{workshop.folder}/web"], "bad_records": "skip", "max_bad_fraction": 0.5, "weight": 0.6}
    return [
        {**web, "materialize": True},
        {"files": [f"{workshop.folder}/lines.txt"], "document": "line", "weight": 0.4},
    ]


@pytest.fixture(scope="module")
def undisturbed(new_workshop: Callable[[], Any]) -> Iterator[tuple[Any, list[dict[str, Any]], dict[str, str]]]:
    """A filled workshop, its sources, and what the plain loop makes of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 4000)
        workshop = new_workshop()
        sources = fill(workshop)
        workshop.prepare(*sources, output=str(workshop.folder / "by-loop"), **TOP)
        tree = workshop.tree(workshop.folder / "by-loop")
        manifest = json.loads((workshop.folder / "by-loop" / "manifest.json").read_bytes())
        assert sum(source["dropped"].get("near_duplicate", 0) for source in manifest["sources"]) > 3
        yield workshop, sources, tree


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", WAYS)
def test_faults_are_not_seen(
    undisturbed: Any, fault_injector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(beam_watch, "_PATIENCE_SECONDS", 1.0)
    workshop, sources, expected = undisturbed
    options, once, ends = WAYS[name]
    output = workshop.folder / name
    with fault_injector.injected(tmp_path, once) as faults:
        for _ in range(ends):
            with pytest.raises((fault_injector.FaultError, RuntimeError, DataError)) as error:
                workshop.prepare(*sources, output=str(output), options=options, **TOP)
            assert "FaultError" in f"{error.type} {error.value}" or "ended without a word" in str(error.value)
            assert not (output / "manifest.json").exists()
        result = workshop.prepare(*sources, output=str(output), options=options, **TOP)
        happened = faults.happened()
    assert result.finished
    assert workshop.tree(output) == expected
    assert verify_corpus(str(output)) == []
    assert happened["fails"] + happened["dies"] == len(once)
    assert min(happened["twice"], happened["slow"]) >= 1
