"""Beam counters and distributions of a run: the account of its documents while it is being made, on any runner.

Names are `STAGE/SOURCE/WHAT` in the namespace `gristmill`. Items count what they come to as they end; what is known
only when a stage closes, copies among splits above all, is counted there. So at the end the counters equal the account,
and before it none of them runs ahead of it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from apache_beam.metrics import Metrics

from gristmill.pipelines.job import Job
from gristmill.pipelines.stages import require_stage

__all__ = ["count_item", "count_rest", "NAMESPACE"]

NAMESPACE = "gristmill"
"""Of all metrics."""

_MOST_SOURCES = 64  # each has some dozens of counters, and services bound the number of all
_TOGETHER = "all"


def count_item(job: Job, stage: str, step: str, report: Any, seconds: float) -> None:
    """Counts an item and what it came to.

    Args:
        job: the run.
        stage: name of the stage.
        step: what the item was: copy, scan, encode, assemble or build.
        report: what it reports.
        seconds: how long it took.
    """
    source = _source(job, report)
    _count(stage, source, {f"{step}_items": 1, **_item_counts(step, report)})
    Metrics.distribution(NAMESPACE, f"{stage}/{source}/{step}_milliseconds").update(round(seconds * 1000))


def count_rest(job: Job, stage: str, result: Mapping[str, Any], items: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Counts, when a stage has closed, what its items could not know.

    Args:
        job: the run.
        stage: name of the stage.
        result: of the stage.
        items: step and report of every item, as they were counted.
    """
    rest: dict[str, Counter[str]] = {}
    for source, counts in _stage_counts(job, stage, result).items():
        rest.setdefault(_label(job, source), Counter()).update(counts)
    counted: dict[str, Counter[str]] = {}
    for step, report in items:
        counted.setdefault(_source(job, report), Counter()).update(_item_counts(step, report))
    for source, counts in rest.items():
        counts.subtract({name: count for name, count in counted.get(source, Counter()).items() if name in counts})
        _count(stage, source, counts)


def _item_counts(step: str, report: Any) -> dict[str, int]:
    """What is known of an item when it ends."""
    if step == "scan":
        return {
            "documents_in": report["records"],
            "bad": report["bad"],
            "characters_in": report["text_in"][0],
            "bytes_in": report["text_in"][1],
            "tokens_made": report.get("tokens", 0),
            **_dropped(report["dropped"]),
        }
    if step == "encode":
        return {"tokens_made": report["tokens"]}
    if step == "assemble":
        return {
            "documents_kept": report["documents"],
            "tokens": report["tokens"],
            "bytes": report["bin"]["size"] + report["idx"]["size"],
            "shards": 1,
        }
    if step == "copy":
        return {"documents_copied": report["records"]}
    return {}


def _stage_counts(job: Job, stage: str, result: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """What a stage came to in all, by source: the numbers of the account."""
    if stage == "download":
        return {source: dict(found) for source, found in result["sources"].items()}
    if stage == "clean":
        return {
            source: {
                "documents_in": found["records"],
                "documents_kept": found["kept"],
                "bad": found["bad"],
                **found["text"],
                **_dropped(found["dropped"]),
            }
            for source, found in result["sources"].items()
        }
    cleaned = require_stage(job, "clean").result["sources"]
    counts = {}
    for source, found in zip(job.recipe.sources, result["sources"], strict=True):
        uncleaned = {"kept": found["records"], "dropped": {}}
        before = cleaned[source.id] if source.clean.enabled else uncleaned
        counts[found["id"]] = {
            "documents_in": before["kept"],
            "documents_kept": found["kept"],
            "tokens": sum(shard["tokens"] for shard in found["shards"]),
            "bytes": sum(shard["bin"]["size"] + shard["idx"]["size"] for shard in found["shards"]),
            "shards": len(found["shards"]),
            **_dropped({name: n - before["dropped"].get(name, 0) for name, n in found["dropped"].items()}),
        }
    return counts


def _dropped(counts: Mapping[str, int]) -> dict[str, int]:
    return {f"dropped/{reason}": count for reason, count in counts.items() if count}


def _source(job: Job, report: Any) -> str:
    source = report.get("source") if isinstance(report, Mapping) else None
    if isinstance(source, int):
        source = job.recipe.sources[source].id
    return _TOGETHER if source is None else _label(job, str(source))


def _label(job: Job, source: str) -> str:
    return source if len(job.recipe.sources) <= _MOST_SOURCES else _TOGETHER


def _count(stage: str, source: str, counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        if count:
            Metrics.counter(NAMESPACE, f"{stage}/{source}/{name}").inc(int(count))
