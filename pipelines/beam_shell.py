"""The Beam pipeline of a run: a thin shell around the functions that the plain loop calls.

Each stage takes one element, the word that the stage before is finished, fans out into items, and ends in one element
after its receipt is written; so a run is a single pipeline whatever stages it has, and nothing waits between jobs.
Only descriptors, packed keys and small reports cross a shuffle. Reshuffle spreads items over workers and decides no
byte: every step that gathers results sorts them by number.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam

from gristmill.formats.split import SPLITS
from gristmill.pipelines.beam_counts import count_item, count_rest
from gristmill.pipelines.beam_near import near_losers
from gristmill.pipelines.beam_paragraphs import Decided, with_cuts
from gristmill.pipelines.dedup import later_copies, write_drops
from gristmill.pipelines.encode import encode_split
from gristmill.pipelines.finish import finish
from gristmill.pipelines.index import blend_split, close_blend, close_index, index_member, plan_index
from gristmill.pipelines.job import Job
from gristmill.pipelines.lock_renewal import while_held
from gristmill.pipelines.plan import Split, read_plan
from gristmill.pipelines.raw import copies, copy_split
from gristmill.pipelines.run_lock import release
from gristmill.pipelines.scan import partition_keys, scan_split
from gristmill.pipelines.shards import assemble_shard, plan_shards
from gristmill.pipelines.stages import close_clean, close_download, close_tokenize

__all__ = [
    "build_pipeline",
    "Report",
]

Report = dict[str, Any]
"""What an item reports: a small JSON value."""


def build_pipeline(pipeline: beam.Pipeline, job: Job, stages: Sequence[str], *, write_manifest: bool) -> None:
    """Adds the stages of a run to a pipeline.

    Args:
        pipeline: where to.
        job: the run.
        stages: names out of `STAGES`, in order.
        write_manifest: whether to finish the corpus behind them.
    """
    done = pipeline | "Start" >> beam.Create([0])
    builders: dict[str, Callable[[Any, Job], Any]] = {
        "download": _download,
        "clean": _clean,
        "tokenize": _tokenize,
        "index": _index,
        "blend": _blend,
    }
    for stage in stages:
        done = builders[stage](done, job)
    if write_manifest:
        done = done | "Manifest" >> beam.Map(_finish, job)
    ended = done | "Release: apart" >> beam.Reshuffle()  # a step tried again must find its run still in its place
    _ = ended | "Release" >> beam.Map(_release, job)


def _finish(_: object, job: Job) -> int:
    finish(job)
    return 0


def _release(_: object, job: Job) -> int:
    """Ends the run's hold of the corpus, as its launcher may be gone by then."""
    release(job.corpus, job.run)
    return 0


def _items(done: Any, name: str, list_items: Callable[[Job], Iterable[Any]], job: Job) -> Any:
    """Fans one element out into items, spread over the workers."""
    return done | f"{name}: list" >> beam.ParDo(_List(list_items, job)) | f"{name}: spread" >> beam.Reshuffle()


def _close(reports: Any, name: str, close: Callable[[Job, list[Any]], Any], job: Job) -> Any:
    """Gathers reports into the stage's receipt; gives one element."""
    return reports | f"{name}: gather" >> beam.combiners.ToList() | f"{name}: receipt" >> beam.ParDo(_Close(close, job))


class _List(beam.DoFn):  # type: ignore[misc]  # Beam ships no types
    """Lists the items of a step, whatever the element that says to begin."""

    def __init__(self, list_items: Callable[[Job], Iterable[Any]], job: Job) -> None:
        self._list_items = list_items
        self._job = job

    def process(self, _: object) -> Iterable[Any]:
        """Gives the items."""
        return self._list_items(self._job)


class _Close(beam.DoFn):  # type: ignore[misc]  # Beam ships no types
    """Closes a stage unless the run works on one source only, which finishes no stage."""

    def __init__(self, close: Callable[[Job, list[Any]], Any], job: Job) -> None:
        self._close = close
        self._job = job

    def process(self, reports: list[Any]) -> Iterator[int]:
        """Gives one element when the receipt is written."""
        if self._job.source is None:
            self._close(self._job, reports)
        yield 0


class _Work(beam.DoFn):  # type: ignore[misc]  # Beam ships no types
    """Does one item and counts what came of it."""

    def __init__(self, job: Job, stage: str, name: str, work: Callable[[Job, Any], Any]) -> None:
        self._job = job
        self._stage = stage
        self._name = name
        self._work = work

    def process(self, item: Any) -> Iterator[tuple[Any, Any]]:
        """Gives the item together with its report."""
        began = time.monotonic()
        report = while_held(self._work, self._job, item)
        count_item(self._job, self._stage, self._name, report, time.monotonic() - began)
        yield item, report


def _report(pair: tuple[Any, Any]) -> Any:
    return pair[1]


def _work(items: Any, stage: str, name: str, work: Callable[[Job, Any], Any], job: Job) -> Any:
    """The reports of the items."""
    return (
        items
        | f"{stage}: {name}" >> beam.ParDo(_Work(job, stage.lower(), name, work))
        | f"{stage}: {name} report" >> beam.Map(_report)
    )


def _download(done: Any, job: Job) -> Any:
    reports = _work(_items(done, "Download", _splits_to_copy, job), "Download", "copy", copy_split, job)
    return (
        reports | "Download: gather" >> beam.combiners.ToList() | "Download: receipt" >> beam.Map(_close_download, job)
    )


def _splits_to_copy(job: Job) -> list[Split]:
    return copies(job, read_plan(job.corpus))


def _close_download(reports: list[Report], job: Job) -> int:
    if job.source is None or not reports:
        count_rest(job, "download", close_download(job, reports), ())
    return 0


def _splits_to_scan(job: Job) -> list[Split]:
    return [split for split in read_plan(job.corpus).splits if job.scans(split)]


def _splits_to_encode(job: Job) -> list[Split]:
    return [split for split in read_plan(job.corpus).splits if job.wants(split.source)]


def _keys(scanned: tuple[Split, Report], job: Job) -> list[tuple[int, bytes]]:
    return partition_keys(job, scanned[0])


def _numbered(scanned: tuple[Split, Report]) -> tuple[int, tuple[Split, Report]]:
    return scanned[0].number, scanned


def _losers(group: tuple[int, Iterable[bytes]]) -> list[tuple[int, bytes]]:
    return later_copies(group[1])


def _drops(joined: tuple[int, dict[str, Iterable[Any]]], job: Job) -> Decided:
    _, parts = joined
    split, report = next(iter(parts["scanned"]))
    return split, report, write_drops(job, split, report, parts["losers"], parts.get("near", ()))


def _uncut(decided: Decided) -> tuple[Report, Report, None]:
    return decided[1], decided[2], None


def _close_clean(job: Job, reports: list[tuple[Report, Report, Report | None]]) -> Any:
    scans, drops = [scan for scan, _, _ in reports], [drop for _, drop, _ in reports]
    result = close_clean(job, scans, drops, [cut for _, _, cut in reports if cut is not None])
    count_rest(job, "clean", result, [("scan", scan) for scan in scans])
    return result


def _clean(done: Any, job: Job) -> Any:
    scan = beam.ParDo(_Work(job, "clean", "scan", scan_split))
    scanned = _items(done, "Clean", _splits_to_scan, job) | "Clean: scan" >> scan
    losers = (
        scanned
        | "Clean: keys" >> beam.FlatMap(_keys, job).with_output_types(tuple[int, bytes])
        | "Clean: by hash" >> beam.GroupByKey()
        | "Clean: later copies" >> beam.FlatMap(_losers).with_output_types(tuple[int, bytes])
    )
    numbered = scanned | "Clean: number" >> beam.Map(_numbered).with_output_types(tuple[int, Any])
    parts = {"scanned": numbered, "losers": losers}
    if job.recipe.near_dedup is not None:
        parts["near"] = near_losers(scanned, job)
    decided = parts | "Clean: by split" >> beam.CoGroupByKey() | "Clean: drops" >> beam.Map(_drops, job)
    cuts = job.recipe.paragraph_dedup is not None
    reports = with_cuts(decided, job) if cuts else decided | "Clean: reports" >> beam.Map(_uncut)
    return _close(reports, "Clean", _close_clean, job)


def _tokenize(done: Any, job: Job) -> Any:
    encodes = _work(_items(done, "Tokenize", _splits_to_encode, job), "Tokenize", "encode", encode_split, job)
    encoded = encodes | "Tokenize: all splits" >> beam.combiners.ToList()
    plans = (
        encoded
        | "Tokenize: plan shards" >> beam.FlatMap(_plan_shards, job)
        | "Tokenize: spread shards" >> beam.Reshuffle()
    )
    assembled = _work(plans, "Tokenize", "assemble", assemble_shard, job)
    shards = assembled | "Tokenize: all shards" >> beam.combiners.ToList()
    return shards | "Tokenize: receipt" >> beam.Map(_close_tokenize, job, beam.pvalue.AsSingleton(encoded))


def _plan_shards(reports: list[Report], job: Job) -> list[Any]:
    return plan_shards(job, reports)


def _close_tokenize(shards: list[Report], job: Job, encodes: list[Report]) -> int:
    if job.source is None:
        result = close_tokenize(job, encodes, shards)
        count_rest(job, "tokenize", result, [("assemble", shard) for shard in shards])
    return 0


def _index(done: Any, job: Job) -> Any:
    members = _work(_items(done, "Index", plan_index, job), "Index", "build", index_member, job)
    return _close(members, "Index", close_index, job)


def _split_names(_: Job) -> tuple[str, ...]:
    return SPLITS


def _blend(done: Any, job: Job) -> Any:
    blends = _work(_items(done, "Blend", _split_names, job), "Blend", "build", blend_split, job)
    return _close(blends, "Blend", close_blend, job)
