"""Beam's metrics of a run: at the end they are the account, whatever the runner."""

import json
from typing import Any

import pytest

ALL = ("download", "clean", "tokenize", "index", "blend")


def metrics_of(workshop: Any, sources: list[dict[str, Any]], **top: Any) -> tuple[dict[str, int], dict[str, Any]]:
    """Final counters by name, and distributions by name, of a run on Beam's own runner."""
    import apache_beam as beam
    from apache_beam.metrics import MetricsFilter
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    from gristmill.formats.recipe import parse_recipe
    from gristmill.pipelines.beam_shell import build_pipeline
    from gristmill.pipelines.runners import Executor, RunnerChoice
    from gristmill.pipelines.workflow import PrepareOptions, draft_run, execute_draft

    found: list[Any] = []

    class Measured(Executor):
        def execute(self, job: Any, stages: Any, *, write_manifest: bool, verbose: bool = False) -> None:
            pipeline = beam.Pipeline(runner=FnApiRunner())
            build_pipeline(pipeline, job, stages, write_manifest=write_manifest)
            result = pipeline.run()
            result.wait_until_finish()
            found.append(result.metrics().query(MetricsFilter().with_namespace("gristmill")))

    options = PrepareOptions(quiet=True)
    draft = draft_run(parse_recipe(workshop.values(*sources, **top)), options)
    choice = RunnerChoice(runner="FnApiRunner", flags=(), engine_threads=1, says="")
    execute_draft(draft, options, Measured(choice), began=0.0)
    (metrics,) = found
    counters = {entry.key.metric.name: entry.committed for entry in metrics["counters"]}
    return counters, {entry.key.metric.name: entry.committed for entry in metrics["distributions"]}


def account_counters(workshop: Any) -> dict[str, int]:
    """The account by the counters' names."""
    account = json.loads((workshop.folder / "out" / "report" / "account.json").read_bytes())["sources"]
    expected: dict[str, int] = {}
    for source, stages in account.items():
        for stage, values in stages.items():
            for name, value in values.items():
                if isinstance(value, int):
                    expected[f"{stage}/{source}/{name}"] = value
                elif name == "dropped":
                    expected |= {f"{stage}/{source}/dropped/{reason}": count for reason, count in value.items()}
    return {name: value for name, value in expected.items() if value}


@pytest.mark.slow
def test_counters_equal_the_account(workshop: Any) -> None:
    texts = [f"document {number} of a few words" for number in range(60)] + ["short", "", "bad" * 30]
    sources: list[dict[str, Any]] = [
        {"id": "a", "files": [workshop.jsonl("a.jsonl", texts)], "clean": {"min_chars": 10, "max_tokens": 40}},
        {"id": "b", "files": [workshop.jsonl("b.jsonl", [*texts[40:], "only in b, it is"])], "max_documents": 1},
        {"id": "c", "files": [workshop.jsonl("c.jsonl", ["x", "y", ""])], "clean": False},
    ]
    counters, distributions = metrics_of(
        workshop, sources, index={"sequence_length": 2, "splits": "1,0,0"}, shards={"target_tokens": 200}
    )
    expected = account_counters(workshop)
    assert {name: counters.get(name) for name in expected} == expected
    assert expected["clean/b/dropped/exact_duplicate"] >= 20, "copies of another source are told by its split's drops"
    assert expected["tokenize/b/dropped/over_limit"] >= 1
    assert counters["clean/a/tokens_made"] >= counters["tokenize/a/tokens"]
    work = {name for name in counters if name.endswith("_items")} | {name for name in counters if "tokens_made" in name}
    assert counters.keys() - work == expected.keys(), "nothing is counted that the account does not know"
    items = {name.replace("_milliseconds", "_items"): entry.count for name, entry in distributions.items()}
    assert items == {name: count for name, count in counters.items() if name.endswith("_items")}
    assert items["tokenize/a/assemble_items"] == expected["tokenize/a/shards"] > 1
