"""Runs killed in every stage, and the run after: the same corpus to the last byte, and nothing finished is done again.

One moment in each stage in the usual run; with GRISTMILL_LONG set to 10 ten random ones in each, of the launching
process and of workers, on the loop and on Beam.
"""

import importlib.util
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gristmill.cli import main
from gristmill.formats.errors import CorpusError
from gristmill.formats.manifest import read_manifest
from gristmill.formats.verify import verify_corpus

KILLS = int(os.environ.get("GRISTMILL_LONG", "0"))
LONG = pytest.mark.skipif(KILLS < 1, reason="ten kills in each stage on five ways to run: set GRISTMILL_LONG=10")
TOP: dict[str, Any] = {
    "shards": {"target_tokens": 1500},
    "index": {"sequence_length": 32, "samples": 200, "splits": "80,15,5"},
}
STEPS = {"download": "download", "scan": "clean", "encode": "tokenize", "assemble": "tokenize", "index": "index"}
"""By step whose items leave receipts, the stage that closes it."""

WAYS: dict[str, tuple[dict[str, Any], bool]] = {
    "loop": ({"runner": "loop"}, False),
    "processes": ({"runner": "loop", "max_workers": 2}, True),
    "processes whose launcher dies": ({"runner": "loop", "max_workers": 2}, False),
    "threads of Beam": ({"runner": "FnApiRunner", "flags": ["--direct_num_workers=2"]}, False),
    "processes of Beam": (
        {"runner": "FnApiRunner", "flags": ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]},
        True,
    ),
}
"""By name: options of a run, and whether workers die; else the launching process does."""


def _killers() -> ModuleType:
    if "run_killer" not in sys.modules:
        path = Path(__file__).with_name("run_killer.py")
        spec = importlib.util.spec_from_file_location("run_killer", path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["run_killer"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["run_killer"])
    return sys.modules["run_killer"]


KILLERS = _killers()
STAGES: list[str] = list(KILLERS.STAGES)


@pytest.fixture(scope="module")
def ground(new_workshop: Callable[[], Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A recipe of three sources, what an undisturbed run makes of it, and the program that runs and kills."""
    workshop = new_workshop()
    rng = random.Random(11)
    words = ["the", "quick", "fox", "né", "\n", "x = 1", "世界"]
    shared = [" ".join(rng.choices(words, k=20)) + str(number) for number in range(30)]
    sources = []
    for number in range(3):
        texts = [" ".join(rng.choices(words, k=rng.randint(1, 60))) + str(rng.random()) for _ in range(40)]
        path = workshop.jsonl(f"{number}.jsonl", texts + shared)
        sources.append({"files": [path], "weight": 1.0 + number, "materialize": number == 1})
    recipe = workshop.recipe(*sources, **TOP)
    with KILLERS.killer(tmp_path_factory.mktemp("killer")) as killer:
        common = {"recipe": recipe, "split_bytes": 6000}
        whole = killer.run(KILLERS.Order(output=str(workshop.folder / "out"), options={"runner": "loop"}, **common))
        assert (whole.code, whole.said) == (0, "")
        yield SimpleNamespace(
            workshop=workshop, killer=killer, common=common, whole=whole, tree=workshop.tree(), runs=iter(range(10**6))
        )  # fmt: skip


def items_of(names: list[str]) -> dict[str, set[str]]:
    """Receipts of items, by step."""
    found: dict[str, set[str]] = {step: set() for step in STEPS}
    for name in names:
        if name.startswith("_stages/items/") and name.split("/")[2] in found:
            found[name.split("/")[2]].add(name)
    return found


def check(ground: Any, killer: Any, stage: str, way: str, number: int, delay: float = 0.0) -> bool:
    """Has a run killed and completes it; says whether it was killed before its end."""
    options, worker = WAYS[way]
    orphans = not worker and "max_workers" in options
    workshop, output = ground.workshop, ground.workshop.folder / f"killed-{next(ground.runs)}"
    order = {"output": str(output), "options": options, **ground.common}
    killed = killer.run(KILLERS.Order(stage=stage, number=number, delay=delay, worker=worker, **order))
    if worker and killed.died:
        assert (killed.code, "ended without a word" in killed.said) in {(1, True), (0, False)}, killed.said
    else:
        assert killed.code in {-signal.SIGKILL, 0}, killed.said
    ended_early: bool = killed.died and killed.code != 0
    if ended_early and not (output / "manifest.json").exists():
        with pytest.raises(CorpusError, match=r"no manifest|not finished|unfinished"):
            read_manifest(str(output))
        assert main(["index", str(output), "--seq-length", "8"]) == 1
    finished = items_of([path.relative_to(output).as_posix() for path in output.rglob("*.json")])
    closed = {path.stem for path in (output / "_stages").glob("*.json")}
    again = killer.run(KILLERS.Order(**order))
    assert (again.code, again.said) == (0, "")
    assert workshop.tree(output) == ground.tree
    redone, whole = items_of(again.renamed), items_of(ground.whole.renamed)
    for step, closing in STEPS.items():
        left = set() if closing in closed else whole[step] - finished[step]
        # Workers whose launcher died may finish the items at hand, which are then not redone either.
        assert redone[step] <= left if orphans else redone[step] == left, step
    names = (path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file())
    assert not [name for name in names if name.endswith(".tmp") or name.startswith(("spill/", "_stages/holder"))]
    return ended_early


@pytest.mark.parametrize("stage", STAGES)
def test_the_launching_process_dies_in_a_stage(ground: Any, stage: str) -> None:
    touched = ground.whole.touched[stage][0]
    number = random.Random(f"launcher {stage}").randint(1, touched)
    assert check(ground, ground.killer, stage, "loop", number), f"at {number} of {touched}"
    assert all(items_of(ground.whole.renamed).values()), "every step has items to be counted"


@pytest.mark.parametrize("stage", ["scan", "assemble"])
def test_a_worker_dies_in_a_stage(ground: Any, stage: str) -> None:
    assert check(ground, ground.killer, stage, "processes", 3)


@LONG
@pytest.mark.parametrize("way", WAYS)
def test_random_kills_in_each_stage(
    ground: Any, way: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    options, worker = WAYS[way]
    rng = random.Random(f"{KILLS} of {way}")
    hits: Counter[str] = Counter()
    with KILLERS.killer(tmp_path, beam="Beam" in way) as killer:
        output = ground.workshop.folder / f"whole-{next(ground.runs)}"
        whole = killer.run(KILLERS.Order(output=str(output), options=options, **ground.common))
        assert (whole.code, whole.said) == (0, "")
        assert ground.workshop.tree(output) == ground.tree
        stages = [stage for stage in STAGES if whole.touched[stage][int(worker)]]
        for stage in stages:
            for _ in range(KILLS):
                number = rng.randint(1, whole.touched[stage][int(worker)])
                hits[stage] += check(ground, killer, stage, way, number, rng.choice([0.0, rng.random() * 0.02]))
    record_property("killed", dict(hits))
    print(f"{way}: killed before the end {dict(hits)}")
    assert len(stages) >= 6, "in the others such a process writes nothing"
    assert set(hits) == set(stages)
    assert all(2 * count >= KILLS for count in hits.values()), hits
    assert verify_corpus(str(output)) == []
