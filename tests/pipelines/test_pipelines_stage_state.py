"""How far a run is, as `gristmill stages` tells it: by receipts, with nothing written."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gristmill.cli import main
from gristmill.formats.errors import SettingsError
from gristmill.formats.recipe import parse_recipe
from gristmill.pipelines.run_lock import working_on
from gristmill.pipelines.stage_graph import STAGE_GRAPH
from gristmill.pipelines.stage_report import state_lines
from gristmill.pipelines.stage_state import RunState, run_state
from gristmill.pipelines.workflow import PrepareOptions, draft_run

INDEX = {"sequence_length": 16, "epochs": 1, "splits": "98,1,1"}


def sources(workshop: Any) -> list[dict[str, Any]]:
    return [
        {"files": [workshop.jsonl("a.jsonl", [f"text {number} of a" for number in range(40)])]},
        {"files": [workshop.jsonl("b.jsonl", [f"text {number} of b" for number in range(40)])], "materialize": True},
    ]


def state_of(workshop: Any, *given: Any, **top: Any) -> RunState:
    recipe = parse_recipe(workshop.values(*given, index=INDEX, **top))
    return run_state(draft_run(recipe, PrepareOptions(quiet=True), writes=False))


def states(state: RunState) -> dict[str, str]:
    return {entry.stage.name: entry.state for entry in state.stages} | {"manifest": state.manifest}


def items(state: RunState, step: str) -> dict[str, tuple[int | None, int | None, int]]:
    return {
        entry.source: (entry.done, entry.of, entry.stale)
        for stage in state.stages
        for entry in stage.items
        if entry.step == step
    }


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def test_before_a_run_all_is_missing_and_no_folder_is_made(workshop: Any) -> None:
    state = state_of(workshop, *sources(workshop))
    assert set(states(state).values()) == {"missing"}
    assert state.todo == ("download", "clean", "tokenize", "index", "blend")
    assert items(state, "download") == {"s1": (0, 1, 0)}
    assert items(state, "scan") == {"s0": (None, 1, 0), "s1": (None, 1, 0)}
    assert items(state, "assemble") == {"s0": (None, None, 0), "s1": (None, None, 0)}
    assert not (workshop.folder / "out").exists()


def test_a_finished_run_is_done_and_stays_as_it_is(workshop: Any) -> None:
    workshop.prepare(*sources(workshop), index=INDEX)
    before = everything(workshop.folder / "out")
    state = state_of(workshop, *sources(workshop))
    assert set(states(state).values()) == {"done"}
    assert state.finished
    assert items(state, "encode") == {"s0": (1, 1, 0), "s1": (1, 1, 0)}
    assert items(state, "assemble") == {"s0": (1, 1, 0), "s1": (1, 1, 0)}
    assert items(state, "index") == {"s0": (2, 2, 0), "s1": (2, 2, 0)}
    assert everything(workshop.folder / "out") == before
    steps = {step for stage in STAGE_GRAPH for step, _ in stage.steps}
    assert {path.name for path in (workshop.folder / "out" / "_stages" / "items").iterdir()} <= steps


def test_a_run_that_was_cut_off_tells_the_items_that_are_done(workshop: Any) -> None:
    given = sources(workshop)
    workshop.prepare(*given, index=INDEX, options={"last": "clean"})
    assert states(state_of(workshop, *given)) | {"tokenize": "missing"} == {
        "download": "done",
        "clean": "done",
        "tokenize": "missing",
        "index": "missing",
        "blend": "missing",
        "manifest": "missing",
    }
    workshop.prepare(*given, index=INDEX, options={"last": "tokenize", "source": "s1"})
    state = state_of(workshop, *given)
    assert state.todo == ("tokenize", "index", "blend")
    assert items(state, "encode") == {"s0": (0, 1, 0), "s1": (1, 1, 0)}
    workshop.prepare(*given, index=INDEX, options={"last": "tokenize", "source": "s0"})
    state = state_of(workshop, *given)
    assert items(state, "encode") == {"s0": (1, 1, 0), "s1": (1, 1, 0)}
    assert items(state, "assemble") == {"s0": (1, 1, 0), "s1": (1, 1, 0)}
    workshop.prepare(*given, index=INDEX, options={"last": "tokenize"})
    state = state_of(workshop, *given)
    assert (state.todo, state.manifest) == (("index", "blend"), "stale")
    assert items(state, "index") == {"s0": (0, 2, 0), "s1": (0, 2, 0)}


def test_a_changed_setting_is_named_where_it_reaches(workshop: Any) -> None:
    given = sources(workshop)
    workshop.prepare(*given, index=INDEX)
    changed = [{**given[0], "clean": {"min_chars": 3}}, given[1]]
    state = state_of(workshop, *changed)
    assert states(state) == {
        "download": "done",
        **dict.fromkeys(("clean", "tokenize", "index", "blend", "manifest"), "stale"),
    }
    why = {entry.stage.name: entry.why for entry in state.stages}
    assert "sources.s0.clean.min_chars was " in why["clean"]
    assert why["tokenize"] == "a stage before it changed"
    assert items(state, "scan") == {"s0": (0, 1, 1), "s1": (1, 1, 0)}
    lines = list(state_lines(parse_recipe(workshop.values(*changed)), state))
    names = "clean, tokenize, index, blend"
    assert lines[-1] == f"a run would withdraw {names}, then do {names}, and write the manifest"
    assert "  s0                scan      0 of 1 splits, 1 stale" in lines


def test_a_missing_file_and_a_missing_receipt_are_told_apart(workshop: Any) -> None:
    given = sources(workshop)
    workshop.prepare(*given, index=INDEX)
    next((workshop.folder / "out" / "tokens").rglob("*.bin")).unlink()
    (workshop.folder / "out" / "_stages" / "index.json").unlink()
    state = state_of(workshop, *given)
    why = {entry.stage.name: (entry.state, entry.why) for entry in state.stages}
    assert why["tokenize"] == ("stale", "some of its files are missing or have another size")
    assert why["index"] == ("missing", "")
    assert why["blend"] == ("stale", "a stage before it is not finished")


def test_spills_that_were_left_are_work_for_a_run(workshop: Any) -> None:
    workshop.prepare(*sources(workshop), index=INDEX)
    (workshop.folder / "out" / "manifest.json").unlink()
    state = state_of(workshop, *sources(workshop))
    assert (state.todo, state.manifest, state.finished) == ((), "missing", False)


def test_the_corpus_of_another_recipe_is_refused_as_a_run_would(workshop: Any) -> None:
    workshop.prepare(*sources(workshop), index=INDEX)
    other = [{"files": [workshop.jsonl("c.jsonl", ["something else"])]}]
    with pytest.raises(
        SettingsError, match="holds the finished corpus 'test', of other inputs than this recipe's 'new'"
    ):
        state_of(workshop, *other, name="new")


def test_for_machines_and_with_an_exit_code(workshop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = workshop.recipe(*sources(workshop))
    assert main(["stages", recipe]) == 0
    assert main(["stages", recipe, "--exit-code", "--json"]) == 3
    said = capsys.readouterr().out
    assert said.splitlines()[0] == f"corpus 'test' -> {workshop.folder / 'out'}"
    value = json.loads(said[said.index("{\n") :])
    assert [(entry["stage"], entry["after"]) for entry in value["stages"]] == [
        ("download", []),
        ("clean", ["download"]),
        ("tokenize", ["clean"]),
    ]
    assert value["todo"] == ["download", "clean", "tokenize"]
    assert value["stages"][0]["items"] == [
        {"source": "s1", "step": "download", "unit": "splits", "of": 1, "done": 0, "stale": 0}
    ]
    assert main(["prepare", recipe, "--runner=loop", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["stages", recipe, "--exit-code"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "a run would do nothing"


def test_a_run_that_is_at_work_is_named(workshop: Any) -> None:
    given = sources(workshop)
    workshop.prepare(*given, index=INDEX, options={"last": "download"})
    assert state_of(workshop, *given).at_work == ""
    with working_on(str(workshop.folder / "out"), runner="a test"):
        state = state_of(workshop, *given)
    assert f"by process {os.getpid()} of " in state.at_work
    assert "(a test); last sign of life " in state.at_work
    line = list(state_lines(parse_recipe(workshop.values(*given)), state))[1]
    assert line == f"at work: a run that was {state.at_work}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_corpus_can_be_looked_at(workshop: Any) -> None:
    workshop.prepare(*sources(workshop), index=INDEX)
    (workshop.folder / "out").chmod(0o555)
    try:
        assert state_of(workshop, *sources(workshop)).finished
    finally:
        (workshop.folder / "out").chmod(0o755)


def test_a_corpus_on_a_store_is_looked_at_and_left_alone(workshop: Any, bucket: str, store: Any) -> None:
    given = [{"files": [workshop.jsonl("a.jsonl", [f"text {number}" for number in range(30)])]}]
    workshop.prepare(*given, index=INDEX, output=f"{bucket}/out", options={"last": "tokenize"})
    before = store.names("")
    state = state_of(workshop, *given, output=f"{bucket}/out")
    assert state.todo == ("index", "blend")
    assert items(state, "index") == {"s0": (0, 2, 0)}
    assert items(state, "encode") == {"s0": (1, 1, 0)}
    assert store.names("") == before
