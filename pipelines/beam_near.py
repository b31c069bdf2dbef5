"""Near deduplication on Beam: keys of bands, pairs of documents and edges of clusters are what crosses a shuffle.

Nothing is gathered in one place: keys are dealt to partitions by value, pairs to the split of their later document,
edges by document. Only chains so long that the rounds do not reach their ends send all edges to one worker.
"""

from collections.abc import Iterable
from typing import Any

import apache_beam as beam

from gristmill.pipelines.clusters import (
    ROUNDS,
    deal_both,
    deal_larger,
    large_star,
    losers_by_split,
    small_star,
    unfinished,
)
from gristmill.pipelines.job import Job
from gristmill.pipelines.near_pairs import local_pairs, pairs_by_split, pairs_of_groups, partition_bands
from gristmill.pipelines.near_verify import verify_pairs
from gristmill.pipelines.plan import Split

__all__ = ["near_losers"]

_PARTITION_BYTES = 32 << 20  # of input: the bands of tiny documents are several times as large, of usual ones a tenth
_MOST_PARTITIONS = 4096
_PACKED = tuple[int, bytes]
_Scanned = tuple[Split, dict[str, Any]]
_Group = tuple[int, Iterable[bytes]]


def near_losers(scanned: Any, job: Job) -> Any:
    """The near duplicates that go, as (split number, packed record numbers).

    Args:
        scanned: the splits with their reports, once they are scanned.
        job: the run.
    """
    partitions = min(_MOST_PARTITIONS, 1 + job.input_bytes // _PARTITION_BYTES)
    pairs = (
        scanned
        | "Near: bands" >> beam.FlatMap(_bands, job, partitions).with_output_types(_PACKED)
        | "Near: by key" >> beam.GroupByKey()
        | "Near: pairs" >> beam.FlatMap(_pairs).with_output_types(_PACKED)
    )
    local = scanned | "Near: local pairs" >> beam.FlatMap(_local, job).with_output_types(_PACKED)
    edges = (
        (pairs, local)
        | "Near: all pairs" >> beam.Flatten()
        | "Near: by split" >> beam.GroupByKey()
        | "Near: verify" >> beam.Map(_verify, job).with_output_types(bytes)
    )
    for number in range(ROUNDS):
        edges = (
            edges
            | f"Near: to both ends {number}" >> beam.FlatMap(deal_both, job.partitions).with_output_types(_PACKED)
            | f"Near: by end {number}" >> beam.GroupByKey()
            | f"Near: large star {number}" >> beam.Map(_large).with_output_types(bytes)
            | f"Near: to the later end {number}" >> beam.FlatMap(deal_larger, job.partitions).with_output_types(_PACKED)
            | f"Near: by later end {number}" >> beam.GroupByKey()
            | f"Near: small star {number}" >> beam.Map(_small).with_output_types(bytes)
        )
    left = (
        edges
        | "Near: to both ends" >> beam.FlatMap(deal_both, job.partitions).with_output_types(_PACKED)
        | "Near: by end" >> beam.GroupByKey()
        | "Near: unfinished" >> beam.Map(_unfinished).with_output_types(int)
        | "Near: how many" >> beam.CombineGlobally(sum)
    )
    return (
        edges
        | "Near: clusters"
        >> beam.FlatMap(_deal_clusters, job.partitions, beam.pvalue.AsSingleton(left)).with_output_types(_PACKED)
        | "Near: by cluster" >> beam.GroupByKey()
        | "Near: losers" >> beam.FlatMap(_losers).with_output_types(_PACKED)
    )


def _bands(scanned: _Scanned, job: Job, partitions: int) -> list[_PACKED]:
    return partition_bands(job, scanned[0], partitions)


def _local(scanned: _Scanned, job: Job) -> list[_PACKED]:
    return local_pairs(job, scanned[0])


def _pairs(group: _Group) -> list[_PACKED]:
    return pairs_by_split(pairs_of_groups(group[1]))


def _verify(group: _Group, job: Job) -> bytes:
    return verify_pairs(job, list(group[1]))


def _large(group: _Group) -> bytes:
    return large_star(group[1])


def _small(group: _Group) -> bytes:
    return small_star(group[1])


def _unfinished(group: _Group) -> int:
    return unfinished(group[1])


def _deal_clusters(packed: bytes, partitions: int, left: int) -> list[_PACKED]:
    """Stars go by their later ends, which nothing else is said of; where some are unfinished, all go to one place."""
    if left:
        return [(0, packed)] if packed else []
    return deal_larger(packed, partitions)


def _losers(group: _Group) -> list[_PACKED]:
    return losers_by_split(group[1])
