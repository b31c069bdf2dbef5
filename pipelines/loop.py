"""Runs the stages as a plain loop without Beam: in this process, or with its items spread over several.

It calls the same functions in the same order as the Beam shell. In one process it is the oracle that runners are
compared with; in several it is what uses one machine best, since Beam takes longer to import than a small corpus to
prepare, and each of its worker processes imports it again. It does not leave the machine.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from gristmill.formats.split import SPLITS
from gristmill.pipelines.clusters import losers_by_split
from gristmill.pipelines.dedup import later_copies, write_drops
from gristmill.pipelines.encode import encode_split
from gristmill.pipelines.finish import finish
from gristmill.pipelines.index import blend_split, close_blend, close_index, index_member, plan_index
from gristmill.pipelines.item_pool import ItemPool
from gristmill.pipelines.job import Job
from gristmill.pipelines.lock_renewal import while_held
from gristmill.pipelines.near_pairs import distinct_pairs, near_partitions, partition_pairs
from gristmill.pipelines.near_verify import verify_pairs
from gristmill.pipelines.paragraph_dedup import paragraph_losers, paragraph_partitions, write_cuts
from gristmill.pipelines.plan import Split, read_plan
from gristmill.pipelines.raw import copies, copy_split
from gristmill.pipelines.scan import partition_keys, scan_split
from gristmill.pipelines.shards import assemble_shard, plan_shards
from gristmill.pipelines.stages import close_clean, close_download, close_tokenize

__all__ = ["run_loop"]


_PARTITIONS_AT_ONCE = 16


class _Map(Protocol):
    """Does items and gives their results in order."""

    def __call__(self, work: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]: ...


def run_loop(job: Job, stages: Sequence[str], *, write_manifest: bool, pool: ItemPool | None = None) -> None:
    """Runs stages one after the other.

    Args:
        job: the run.
        stages: names out of `STAGES`, in order.
        write_manifest: whether to finish the corpus behind them.
        pool: processes that do the items; None has this process do them itself.

    Raises:
        PoolWorkerGoneError: a worker process ended before its work did.
        GristmillError: what an item raised.
    """
    do: _Map = _here if pool is None else pool.map
    splits = read_plan(job.corpus).splits
    for stage in stages:
        if stage == "download":
            _download(job, do)
        elif stage == "clean":
            _clean(job, splits, do)
        elif stage == "tokenize":
            _tokenize(job, splits, do)
        elif stage == "index":
            close_index(job, do(partial(while_held, index_member, job), plan_index(job)))
        elif stage == "blend":
            close_blend(job, do(partial(while_held, blend_split, job), SPLITS))
    if write_manifest:
        finish(job)


def _here(work: Callable[[Any], Any], items: Sequence[Any], /) -> list[Any]:
    return [work(item) for item in items]


def _download(job: Job, do: _Map) -> None:
    copied = do(partial(while_held, copy_split, job), copies(job, read_plan(job.corpus)))
    if job.source is None or not copied:
        close_download(job, copied)


def _clean(job: Job, splits: Sequence[Split], do: _Map) -> None:
    wanted = [split for split in splits if job.scans(split)]
    scans = do(partial(while_held, scan_split, job), wanted)
    groups: dict[int, list[bytes]] = {}
    for split in wanted:
        for group, keys in partition_keys(job, split):
            groups.setdefault(group, []).append(keys)
    losers: dict[int, list[bytes]] = {}
    for keys_of_group in groups.values():
        for number, records in later_copies(keys_of_group):
            losers.setdefault(number, []).append(records)
    near = _near_losers(job, wanted, do)
    lost = [(losers.get(split.number, []), near.get(split.number, [])) for split in wanted]
    drops = do(partial(while_held, _drop, job), list(zip(wanted, scans, lost, strict=True)))
    cuts = _cuts(job, wanted, do)
    if job.source is None:
        close_clean(job, scans, drops, cuts)


def _cuts(job: Job, splits: Sequence[Split], do: _Map) -> list[dict[str, Any]]:
    """Reports of the paragraphs that go, one partition of keys after the other, so that memory is bounded."""
    cut = [split for split in splits if job.cuts(split)]
    if not cut:
        return []
    partitions = paragraph_partitions(job, cut)
    losers: dict[int, list[bytes]] = {}
    for found in do(partial(paragraph_losers, job, cut, partitions), range(partitions)):
        for split_number, packed in found:
            losers.setdefault(split_number, []).append(packed)
    return do(partial(while_held, _cut, job), [(split, losers.get(split.number, [])) for split in cut])


def _drop(job: Job, item: tuple[Split, dict[str, Any], tuple[list[bytes], list[bytes]]]) -> dict[str, Any]:
    split, scan, (losers, near_losers) = item
    return write_drops(job, split, scan, losers, near_losers)


def _cut(job: Job, item: tuple[Split, list[bytes]]) -> dict[str, Any]:
    return write_cuts(job, *item)


def _near_losers(job: Job, splits: Sequence[Split], do: _Map) -> dict[int, list[bytes]]:
    """The near duplicates of each split, by its number; one partition of keys at a time, so that memory is bounded."""
    if not any(job.near(split) for split in splits):
        return {}
    partitions = near_partitions(job, splits)
    pairs: dict[int, bytes] = {}
    for start in range(0, partitions, _PARTITIONS_AT_ONCE):
        numbers = range(start, min(start + _PARTITIONS_AT_ONCE, partitions))
        fresh: dict[int, list[bytes]] = {}
        for found in do(partial(partition_pairs, job, splits, partitions), numbers):
            for number, packed in found:
                fresh.setdefault(number, []).append(packed)
        for number, parts in fresh.items():  # most pairs share several bands, and are kept once
            pairs[number] = distinct_pairs([pairs.get(number, b""), *parts])
    edges = do(partial(_verify, job), sorted(pairs.items()))
    return {number: [records] for number, records in losers_by_split(edges)}


def _verify(job: Job, pairs: tuple[int, bytes]) -> bytes:
    return verify_pairs(job, [pairs[1]])


def _tokenize(job: Job, splits: Sequence[Split], do: _Map) -> None:
    encodes = do(partial(while_held, encode_split, job), [split for split in splits if job.wants(split.source)])
    shards = do(partial(while_held, assemble_shard, job), plan_shards(job, encodes))
    if job.source is None:
        close_tokenize(job, encodes, shards)
