"""How far a run is: which stages and items are done, which are stale and why, which are missing, and what comes next.

Everything is told by receipts, with the same questions that a run asks of them, and nothing is written. A finished
stage vouches for its items. Those of the first unfinished stage are looked at one by one; of later ones nothing can be
said, since what they follow from is yet to come.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from gristmill.formats.errors import GristmillError
from gristmill.formats.index_set import MemberPlan, set_name
from gristmill.formats.index_sources import index_sources
from gristmill.formats.manifest import MANIFEST_NAME
from gristmill.formats.receipts import STAGES_FOLDER, Receipt, stage_receipt_path
from gristmill.formats.storage import exists, list_files, relative_to
from gristmill.pipelines.encode import encode_receipt
from gristmill.pipelines.finish import manifest_is_current, source_entries
from gristmill.pipelines.index import index_receipt, plan_index
from gristmill.pipelines.job import Job
from gristmill.pipelines.lock_options import STALE_SECONDS
from gristmill.pipelines.lock_record import gone, read_holder
from gristmill.pipelines.plan import Plan, Split
from gristmill.pipelines.raw import copies, copy_receipt
from gristmill.pipelines.scan import scan_receipt
from gristmill.pipelines.shards import ShardPlan, plan_shards, shard_item, shard_receipt
from gristmill.pipelines.stage_graph import Stage, stage_named
from gristmill.pipelines.stages import require_stage
from gristmill.pipelines.stale import refuse_other_corpus, what_changed
from gristmill.pipelines.workflow import Draft

__all__ = ["DONE", "MISSING", "run_state", "RunState", "SourceItems", "StageState", "STALE"]

DONE = "done"
"""State of a stage whose receipt is valid."""

STALE = "stale"
"""State of a stage whose receipt is for something else, or whose files are not there."""

MISSING = "missing"
"""State of a stage without a receipt."""

_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceItems:
    """The items of a step that belong to a source.

    Attributes:
        source: its id.
        step: name of the step.
        unit: what one item is, in the plural.
        of: how many there are; None where that is yet to be found out.
        done: how many are done; None where that cannot be said.
        stale: how many were done for other inputs or settings.
    """

    source: str
    step: str
    unit: str
    of: int | None
    done: int | None
    stale: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """How far a stage is.

    Attributes:
        stage: the stage.
        state: "done", "stale" or "missing".
        why: of a stale one, what changed.
        items: its items by step and source.
    """

    stage: Stage
    state: str
    why: str = ""
    items: tuple[SourceItems, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """How far a run is.

    Attributes:
        stages: the stages that the recipe asks for, in order.
        manifest: state of the manifest; it is done when nothing is left to clear away behind it, too.
        todo: stages that a run would do, in order.
        at_work: who works on the corpus, in words; empty when nobody does, or only a run that is gone.
    """

    stages: tuple[StageState, ...]
    manifest: str
    todo: tuple[str, ...]
    at_work: str = ""

    @property
    def finished(self) -> bool:
        """Whether a run would find nothing to do."""
        return not self.todo and self.manifest == DONE


_Item = tuple[int, str, Any]
"""Number of the source, what receipts call the item, and what it is made of."""


def run_state(draft: Draft) -> RunState:
    """Finds out how far a run is.

    Args:
        draft: the run, worked out.

    Raises:
        SettingsError: a run would refuse the output, since it holds the corpus of another recipe.
        CorpusError: the record of who works on the corpus is damaged.
        StorageError: a receipt cannot be read.
    """
    job, todo = draft.job, draft.unfinished()
    if todo:
        refuse_other_corpus(job, todo)
    stages = []
    for name in draft.wanted:
        stage = stage_named(name)
        if name not in todo:
            found = StageState(stage=stage, state=DONE, items=tuple(_finished_items(job, draft.plan, stage)))
        else:
            open_items = _first_items if name == todo[0] else _later_items
            stale = exists(stage_receipt_path(job.corpus, name))
            found = StageState(
                stage=stage,
                state=STALE if stale else MISSING,
                why=what_changed(job, name) if stale else "",
                items=tuple(open_items(job, draft.plan, stage)),
            )
        stages.append(found)
    return RunState(stages=tuple(stages), manifest=_manifest_state(job, todo), todo=todo, at_work=_at_work(job.corpus))


def _at_work(corpus: str) -> str:
    holder = read_holder(corpus)
    if holder is None:
        return ""
    why, heard = gone(corpus, holder, time.time(), STALE_SECONDS, None, locked=False)
    return "" if why else f"{holder}; {heard}"


def _manifest_state(job: Job, todo: Sequence[str]) -> str:
    if not exists(job.path(MANIFEST_NAME)):
        return MISSING
    return DONE if not todo and manifest_is_current(job) and not exists(job.path("spill")) else STALE


def _finished_items(job: Job, plan: Plan, stage: Stage) -> Iterator[SourceItems]:
    """The items of a stage whose receipt is valid: all of them are done, or were when they were needed."""
    for step, unit in stage.steps:
        if step == "assemble":
            numbers = {entry["id"]: len(entry["shards"]) for entry in require_stage(job, stage.name).result["sources"]}
        elif step == "index":
            numbers = Counter(member["source"] for member in require_stage(job, stage.name).result["members"])
        else:
            numbers = Counter(job.source_of(split).id for split in _splits(job, plan, step))
        for source in job.recipe.sources:
            if source.id in numbers:
                of = numbers[source.id]
                yield SourceItems(source=source.id, step=step, unit=unit, of=of, done=of)


def _later_items(job: Job, plan: Plan, stage: Stage) -> Iterator[SourceItems]:
    """The items of a stage that waits for another one."""
    for step, unit in stage.steps:
        numbers = Counter(job.source_of(split).id for split in _splits(job, plan, step))
        for source in job.recipe.sources:
            if source.id in numbers or step in {"assemble", "index"}:
                yield SourceItems(source=source.id, step=step, unit=unit, of=numbers.get(source.id), done=None)


def _first_items(job: Job, plan: Plan, stage: Stage) -> Iterator[SourceItems]:
    """The items of the first unfinished stage, each looked at."""
    reports: list[dict[str, Any]] = []
    for step, unit in stage.steps:
        items, receipt_of = _items(job, plan, step, reports)
        if items is None:
            for source in job.recipe.sources:
                yield SourceItems(source=source.id, step=step, unit=unit, of=None, done=None)
            continue
        with ThreadPoolExecutor(_THREADS) as pool:
            receipts = list(pool.map(receipt_of, (made_of for _, _, made_of in items)))
        if step == "encode" and None not in receipts:
            reports = [
                {**receipt.result, "number": split.number, "source": split.source}
                for receipt, (_, _, split) in zip(receipts, items, strict=True)
                if receipt is not None
            ]
        yield from _counted(job, step, unit, items, receipts)


def _counted(
    job: Job, step: str, unit: str, items: Sequence[_Item], receipts: Sequence[Receipt | None]
) -> Iterator[SourceItems]:
    """Items by source: how many there are, are done, and have a receipt that is not for this run."""
    folder = job.path(STAGES_FOLDER, "items", step)
    present = {relative_to(path, folder).removesuffix(".json") for path in list_files(folder, recursive=True)}
    for number, source in enumerate(job.recipe.sources):
        own = [(name, receipt) for (of, name, _), receipt in zip(items, receipts, strict=True) if of == number]
        if own:
            left = [name for name, receipt in own if receipt is None]
            yield SourceItems(
                source=source.id,
                step=step,
                unit=unit,
                of=len(own),
                done=len(own) - len(left),
                stale=len(present.intersection(left)),
            )


def _items(
    job: Job, plan: Plan, step: str, encoded: list[dict[str, Any]]
) -> tuple[list[_Item] | None, Callable[[Any], Receipt | None]]:
    """The items of a step, and what gives the valid receipt of one; None where they are not known yet."""
    try:
        if step == "assemble":
            plans = plan_shards(job, encoded) if encoded else None
            return None if plans is None else list(_shards(job, plans)), partial(shard_receipt, job)
        if step == "index":
            return list(_members(job, plan_index(job))), partial(index_receipt, job)
    except GristmillError:  # which a run meets again, and names
        return None, partial(index_receipt, job)
    receipt_of = {"download": copy_receipt, "scan": scan_receipt, "encode": encode_receipt}[step]
    return [(split.source, job.item(split), split) for split in _splits(job, plan, step)], partial(receipt_of, job)


def _splits(job: Job, plan: Plan, step: str) -> list[Split]:
    if step == "download":
        return copies(job, plan)
    if step == "scan":
        return [split for split in plan.splits if job.scans(split)]
    return [split for split in plan.splits if job.wants(split.source)] if step == "encode" else []


def _shards(job: Job, plans: Iterable[ShardPlan]) -> Iterator[_Item]:
    for plan in plans:
        yield plan.source, shard_item(job.recipe.sources[plan.source].id, plan.number, plan.count), plan


def _members(job: Job, plans: Iterable[MemberPlan]) -> Iterator[_Item]:
    index = job.recipe.index
    if index is not None:
        name = set_name(index, index_sources(source_entries(job)))
        for plan in plans:
            yield plan.place, f"{name}/{plan.split}/{plan.source}", plan
