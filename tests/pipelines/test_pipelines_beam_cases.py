"""Traps of Beam that others met, and that a run keeps out of: what its pipeline holds, groups by and relies on."""

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from gristmill.formats.recipe import parse_recipe
from gristmill.pipelines import beam_shell
from gristmill.pipelines.job import Job, make_job
from gristmill.pipelines.plan import Plan, plan_run
from gristmill.pipelines.runners import choose_runner
from gristmill.pipelines.stage_names import STAGES
from gristmill.tokenize.engine import choose_engine
from gristmill.tokenize.load import resolve_tokenizer

GROUPS = common_urns.primitives.GROUP_BY_KEY.urn


def planned(workshop: Any, texts: int, **top: Any) -> tuple[Job, Plan]:
    """A run of so many files of one text each."""
    for number in range(texts):
        workshop.jsonl(f"in/{number}.jsonl", [f"{number} the quick brown fox"])
    index = {"sequence_length": 16, "samples": 30}
    recipe = parse_recipe(workshop.values({"files": [f"{workshop.folder}/in"], "weight": 1.0}, index=index, **top))
    plan = plan_run(recipe)
    resolved = resolve_tokenizer(recipe.tokenizer.path, recipe.tokenizer.eod)
    engine = choose_engine(resolved, ["text"], keep_control_tokens=False).engine
    return make_job(recipe, plan, tokenizer=resolved, engine=engine), plan


def translated(job: Job) -> beam_runner_api_pb2.Pipeline:
    """The pipeline of all stages in Beam's portable form."""
    pipeline = beam.Pipeline(runner=FnApiRunner())
    beam_shell.build_pipeline(pipeline, job, list(STAGES), write_manifest=True)
    return pipeline.to_runner_api()


@pytest.fixture(scope="module")
def components(new_workshop: Callable[[], Any]) -> Any:
    """What the pipeline of a run with near deduplication is made of."""
    return translated(planned(new_workshop(), 1, near_dedup={})[0]).components


def test_a_pipeline_holds_neither_tokenizer_nor_splits(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 50)
    few, plan = planned(workshop, 1)
    assert len(plan.splits) == 1
    many, plan = planned(workshop, 400)
    assert len(plan.splits) == 400
    pipelines = [translated(job) for job in (few, many)]
    sizes = [pipeline.ByteSize() for pipeline in pipelines]
    assert abs(sizes[1] - sizes[0]) < 1000, "an element for each split would be 60 bytes and more"
    assert sizes[0] < 1_000_000, "a job's graph may be 10 MB on Dataflow"
    vocabulary = json.loads(Path(workshop.tokenizer).read_bytes())["model"]["vocab"]
    serialized = pipelines[0].SerializeToString()
    found = [token for token in vocabulary if len(token) > 4 and token.encode() in serialized]
    assert set(found) <= {"<|endoftext|>"}, "which the recipe names"


def test_steps_are_named_by_their_stage(components: Any) -> None:
    top = {step.unique_name.split("/")[0] for step in components.transforms.values()}
    allowed = ("Start", "Download: ", "Clean: ", "Near: ", "Tokenize: ", "Index: ", "Blend: ", "Manifest", "Release")
    assert [name for name in top if not name.startswith((*allowed, "ref_AppliedPTransform"))] == []
    assert len(top) > 30
    assert not [name for name in top if "lambda" in name or "ParDo(" in name]


def test_what_is_grouped_by_has_plain_keys(components: Any) -> None:
    """NumPy's integers and pickled keys cannot be grouped by for sure."""
    keys = {}
    for transform in components.transforms.values():
        if transform.spec.urn == GROUPS:
            (source,) = transform.inputs.values()
            coder = components.coders[components.pcollections[source].coder_id]
            keys[transform.unique_name] = components.coders[coder.component_coder_ids[0]].spec.urn
    own = {name: urn for name, urn in keys.items() if name.startswith(("Clean: by", "Near: by"))}
    assert len(own) >= 5
    assert set(own.values()) == {common_urns.coders.VARINT.urn}


def test_nothing_hangs_on_the_end_of_a_bundle_or_of_a_worker() -> None:
    steps = [found for _, found in inspect.getmembers(beam_shell, inspect.isclass) if issubclass(found, beam.DoFn)]
    assert len(steps) >= 3
    for step in steps:
        assert not {"start_bundle", "finish_bundle", "teardown"} & set(vars(step)), step


@pytest.mark.parametrize(("size", "least"), [(10**9, 1), (10**12, 450), (10**15, 4096)])
def test_no_group_of_keys_is_too_large_for_a_message(workshop: Any, size: int, least: int) -> None:
    """Beam's workers die of groups above 2 GB; keys are a part of what is read."""
    _, plan = planned(workshop, 1)
    ((file,),) = plan.inputs
    assert replace(plan, inputs=((replace(file, size=size),),)).partitions >= least


def test_a_local_run_never_asks_beam_which_runner() -> None:
    for name, flags in (("auto", ("--direct_num_workers=2",)), ("FnApiRunner", ())):
        assert choose_runner(name, flags, 10**9, 10).runner == "FnApiRunner", "DirectRunner may fetch Prism"
    assert choose_runner("auto", (), 10**9, 10).runner == "loop"
