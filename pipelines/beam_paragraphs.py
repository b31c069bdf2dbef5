"""Deduplication of paragraphs on Beam: what crosses a shuffle is 24 bytes a paragraph, and 12 for each that goes.

It begins where that of documents ends, split by split; so a paragraph of a document that was dropped is not among them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam

from gristmill.pipelines.dedup import later_copies
from gristmill.pipelines.job import Job
from gristmill.pipelines.paragraph_dedup import deal_paragraphs, write_cuts
from gristmill.pipelines.plan import Split

__all__ = ["Decided", "with_cuts"]

_PARTITION_BYTES = 32 << 20  # of input
_MOST_PARTITIONS = 4096
_LOCAL = "local"
_PACKED = tuple[int, bytes]

Decided = tuple[Split, dict[str, Any], dict[str, Any]]
"""A split with the reports of its scan and of its drops."""


def with_cuts(decided: Any, job: Job) -> Any:
    """The reports of scans and drops, each with that of the split's cuts, None where it loses no paragraphs.

    Args:
        decided: `Decided` of all splits.
        job: the run.
    """
    partitions = min(_MOST_PARTITIONS, 1 + job.input_bytes // _PARTITION_BYTES)
    dealt = decided | "Paragraphs: keys" >> beam.FlatMap(_deal, job, partitions).with_outputs(_LOCAL, main="keys")
    shared = (
        dealt["keys"]
        | "Paragraphs: by hash" >> beam.GroupByKey()
        | "Paragraphs: later copies" >> beam.FlatMap(_losers).with_output_types(_PACKED)
    )
    losers = (shared, dealt[_LOCAL]) | "Paragraphs: all" >> beam.Flatten()
    numbered = decided | "Paragraphs: number" >> beam.Map(_numbered).with_output_types(tuple[int, Any])
    return (
        {"decided": numbered, "losers": losers}
        | "Paragraphs: by split" >> beam.CoGroupByKey()
        | "Paragraphs: cuts" >> beam.Map(_cut, job)
    )


def _deal(decided: Decided, job: Job, partitions: int) -> Iterator[Any]:
    for number, packed, local in deal_paragraphs(job, decided[0], partitions):
        yield number, packed
        for losers in local:
            yield beam.pvalue.TaggedOutput(_LOCAL, losers)


def _losers(group: tuple[int, Iterable[bytes]]) -> list[_PACKED]:
    return later_copies(group[1])


def _numbered(decided: Decided) -> tuple[int, Decided]:
    return decided[0].number, decided


def _cut(joined: tuple[int, dict[str, Iterable[Any]]], job: Job) -> tuple[Any, Any, Any]:
    _, parts = joined
    split, scan, drop = next(iter(parts["decided"]))
    return scan, drop, write_cuts(job, split, parts["losers"]) if job.cuts(split) else None
