"""The graph of stages: what follows from what each reads and leaves."""

import pytest

from gristmill.pipelines.stage_graph import STAGE_GRAPH, StageJob, before, behind, needs_tokenizer, stage_jobs
from gristmill.pipelines.stage_names import STAGES

OUTSIDE = {"inputs", "tokenizer"}


def test_each_stage_reads_what_an_earlier_one_left() -> None:
    there = set(OUTSIDE)
    for stage in STAGE_GRAPH:
        assert set(stage.reads) <= there, f"{stage.name} reads what nobody left"
        assert not set(stage.leaves) & there, f"{stage.name} leaves what is there already"
        there |= set(stage.leaves)


def test_the_order_is_that_of_the_graph() -> None:
    assert STAGES == ("download", "clean", "tokenize", "index", "blend")
    for place, name in enumerate(STAGES):
        assert set(before(name)) <= set(STAGES[:place])
        assert behind(name)[0] == name
        assert all(name in behind(earlier) for earlier in before(name))


def test_what_a_stage_waits_for_is_not_said_twice() -> None:
    assert [before(name) for name in STAGES] == [(), ("download",), ("clean",), ("tokenize",), ("index",)]
    assert behind("tokenize") == ("tokenize", "index", "blend")


@pytest.mark.parametrize(("names", "needed"), [(("download", "clean"), False), (STAGES[:3], True), (STAGES, True)])
def test_who_needs_a_tokenizer(names: tuple[str, ...], needed: bool) -> None:
    assert needs_tokenizer(names) is needed


def test_jobs_cover_the_stages_once_each() -> None:
    each = stage_jobs(every_source=True, grouped=False)
    assert [(job.name, job.first, job.last) for job in each] == [(name, name, name) for name in STAGES]
    assert [job.after for job in each] == [before(name) for name in STAGES]
    assert stage_jobs(every_source=True, grouped=True) == (
        StageJob(name="shards", first="download", last="tokenize", after=()),
        StageJob(name="indices", first="index", last="blend", after=("shards",)),
    )
    assert [job.name for job in stage_jobs(every_source=False, grouped=False)] == ["download", "clean", "tokenize"]
