"""Runs the stages as a plain loop in this process: the oracle that runners are compared with, and for tiny runs.

It calls the same functions in the same order as the Beam shell and never imports Beam, which takes longer to import
than a small corpus takes to prepare.
"""

from collections.abc import Sequence

from gristmill.formats.split import SPLITS
from gristmill.pipelines.dedup import later_copies, write_drops
from gristmill.pipelines.encode import encode_split
from gristmill.pipelines.finish import finish
from gristmill.pipelines.index import blend_split, close_blend, close_index, index_member, plan_index
from gristmill.pipelines.job import Job
from gristmill.pipelines.plan import Split, read_plan
from gristmill.pipelines.scan import partition_keys, scan_split
from gristmill.pipelines.shards import assemble_shard, plan_shards
from gristmill.pipelines.stages import close_clean, close_download, close_tokenize

__all__ = ["run_loop"]


def run_loop(job: Job, stages: Sequence[str], *, write_manifest: bool) -> None:
    """Runs stages one item after the other.

    Args:
        job: the run.
        stages: names out of `STAGES`, in order.
        write_manifest: whether to finish the corpus behind them.
    """
    splits = read_plan(job.corpus).splits
    for stage in stages:
        if stage == "download":
            close_download(job)
        elif stage == "clean":
            _clean(job, splits)
        elif stage == "tokenize":
            _tokenize(job, splits)
        elif stage == "index":
            close_index(job, [index_member(job, member) for member in plan_index(job)])
        elif stage == "blend":
            close_blend(job, [blend_split(job, split) for split in SPLITS])
    if write_manifest:
        finish(job)


def _clean(job: Job, splits: Sequence[Split]) -> None:
    wanted = [split for split in splits if job.scans(split)]
    scans = [scan_split(job, split) for split in wanted]
    groups: dict[int, list[bytes]] = {}
    for split in wanted:
        for group, keys in partition_keys(job, split):
            groups.setdefault(group, []).append(keys)
    losers: dict[int, list[bytes]] = {}
    for keys_of_group in groups.values():
        for number, records in later_copies(keys_of_group):
            losers.setdefault(number, []).append(records)
    drops = [write_drops(job, split, losers.get(split.number, [])) for split in wanted]
    if job.source is None:
        close_clean(job, scans, drops)


def _tokenize(job: Job, splits: Sequence[Split]) -> None:
    encodes = [encode_split(job, split) for split in splits if job.wants(split.source)]
    shards = [assemble_shard(job, plan) for plan in plan_shards(job, encodes)]
    if job.source is None:
        close_tokenize(job, encodes, shards)
