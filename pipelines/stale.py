"""Finds out what is left to do of a run, withdraws what that makes stale, and puts back what proves to be as it was.

Finished stages are recognised by their receipts. What changed since is named, setting by setting, before anything is
done again, so that nobody wonders why a run of hours begins anew.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gristmill.formats.errors import CorpusError, FormatError, GristmillError, SettingsError
from gristmill.formats.fingerprint import canonical_json
from gristmill.formats.manifest import MANIFEST_NAME, read_manifest
from gristmill.formats.receipts import (
    STAGES_FOLDER,
    Receipt,
    read_receipt,
    stage_receipt_path,
    withdraw,
    write_receipt,
)
from gristmill.formats.storage import exists, join, list_files, remove, remove_tree
from gristmill.pipelines.job import Job
from gristmill.pipelines.lock_record import read_holder
from gristmill.pipelines.spill import SPILL_STEP
from gristmill.pipelines.stage_graph import behind, stage_named
from gristmill.pipelines.stage_names import STAGES
from gristmill.pipelines.stages import require_stage, valid_stage

__all__ = ["close_again", "finished_stages", "refuse_other_corpus", "stages_to_run", "unfinished", "what_changed"]


def stages_to_run(
    job: Job, wanted: Sequence[str], first: str, say: Callable[[str], None], *, force: bool = False
) -> list[str]:
    """Which stages are not finished; withdraws the receipts and the manifest that the work will make stale.

    Args:
        job: the run.
        wanted: the stages up to the last one wanted, in order.
        first: the stage to begin with; those before it must be finished.
        say: is told what is withdrawn, and why.
        force: whether the stages from `first` on are done again although they are finished, item by item.

    Raises:
        CorpusError: a stage before `first` is not finished, or what it left is needed and was cleared away.
        SettingsError: the output holds the finished corpus of another recipe.
    """
    for stage in wanted[: wanted.index(first)]:
        require_stage(job, stage)
    todo = unfinished(job, wanted, first if force else None)
    if not todo:
        return []
    if wanted.index(todo[0]) < wanted.index(first):
        raise CorpusError(
            f"{job.corpus}: what stage {todo[0]!r} left was cleared away, and stage {first!r} needs it; run "
            f"`gristmill prepare` without --from, or with --from {todo[0]}"
        )
    refuse_other_corpus(job, todo)
    stale = [stage for stage in behind(todo[0]) if exists(stage_receipt_path(job.corpus, stage))]
    for stage in stale:
        why = "it is to be done again" if force else f"{what_changed(job, stage)}; it is done again"
        say(f"stage {stage} was finished before, but {why}")
    remove(join(job.corpus, MANIFEST_NAME))
    for stage in stale:
        withdraw(stage_receipt_path(job.corpus, stage))
    for stage in todo if force else ():
        _forget_items(job, stage)
    return todo


def finished_stages(job: Job, stages: Sequence[str]) -> dict[str, Receipt]:
    """The valid receipts of stages, by name, whose files are all there."""
    receipts = {stage: valid_stage(job, stage) for stage in stages}
    return {stage: receipt for stage, receipt in receipts.items() if receipt is not None and not receipt.cleared}


def close_again(job: Job, stages: Sequence[str], before: Mapping[str, Receipt], say: Callable[[str], None]) -> None:
    """Puts back the receipts of stages of which one source was done again, where all of it came out as it was.

    A run for one source closes no stage; but where the other sources are as they were and this one is too, so is the
    stage, and what lies behind it need not wait for every split to be encoded once more.

    Args:
        job: the run, for one source.
        stages: what it did, in order.
        before: receipts that were valid before it.
        say: is told of each stage.
    """
    for stage in stages:
        path = stage_receipt_path(job.corpus, stage)
        holder = read_holder(job.corpus)  # none where the last step of a pipeline released the run
        if stage not in before or (holder is not None and holder.run != job.run):
            return
        if exists(path):
            continue
        other = _other_file(job, stage, before[stage])
        if other is None:
            write_receipt(path, before[stage])
            if valid_stage(job, stage) is not None:
                say(f"stage {stage} is finished again: every file is what it was")
                continue
            withdraw(path)
        what = other or "a file"
        say(f"stage {stage} is open: {what} is not what it was; `gristmill prepare` without --source closes it")
        return


def _other_file(job: Job, stage: str, receipt: Receipt) -> str | None:
    """A file that the items of the source left and that differs from what a stage's receipt says of it."""
    for step, _ in stage_named(stage).steps:
        for number, source in enumerate(job.recipe.sources):
            folder = job.path(STAGES_FOLDER, "items", step, source.id)
            for path in list_files(folder, recursive=True) if job.wants(number) else ():
                item = read_receipt(path)
                for name, facts in ({} if item is None else item.files).items():
                    if receipt.files.get(name, facts) != facts:
                        return name
    return None


def _forget_items(job: Job, stage: str) -> None:
    """Withdraws the receipts of a stage's items, as far as the run has them done."""
    steps = [step for step, _ in stage_named(stage).steps]
    for step in [*steps, SPILL_STEP] if "encode" in steps else steps:
        folder = job.path(STAGES_FOLDER, "items", step)
        own = [source.id for number, source in enumerate(job.recipe.sources) if job.wants(number)]
        for below in [join(folder, source) for source in own] if step != "index" else [folder]:
            remove_tree(below)


def unfinished(job: Job, wanted: Sequence[str], again: str | None = None) -> list[str]:
    """The stages that are to be done: from the first without a valid receipt on.

    A stage whose files were cleared away counts as finished as long as none of these needs them.

    Args:
        job: the run.
        wanted: the stages up to the last one wanted, in order.
        again: a stage to begin with at the latest; None does no finished one again.
    """
    done: list[str] = []
    for stage in wanted:
        if stage == again or valid_stage(job, stage) is None:
            break
        done.append(stage)
    todo = list(wanted[len(done) :])
    for stage in reversed(done):
        receipt = valid_stage(job, stage)
        needed = {name for other in todo for name in stage_named(other).reads}
        if receipt is not None and receipt.cleared and needed.intersection(stage_named(stage).leaves):
            todo = list(wanted[wanted.index(stage) :])
    return todo


def refuse_other_corpus(job: Job, todo: Sequence[str]) -> None:
    """Refuses to build a corpus of another name and other inputs over a finished one.

    Args:
        job: the run.
        todo: its stages that are not finished.

    Raises:
        SettingsError: the output holds one.
    """
    if todo[0] != STAGES[0] or not exists(job.path(MANIFEST_NAME)):
        return
    try:
        name = read_manifest(job.corpus).name
    except GristmillError:
        return
    if name != job.recipe.name:
        raise SettingsError(
            f"output {job.corpus}: holds the finished corpus {name!r}, of other inputs than this recipe's "
            f"{job.recipe.name!r}; give another folder, or remove that corpus first"
        )


def what_changed(job: Job, stage: str) -> str:
    """Why a stage whose receipt is there is done again, in words."""
    try:
        receipt = read_receipt(stage_receipt_path(job.corpus, stage))
    except FormatError:
        return "its receipt is damaged"
    if receipt is None or receipt.digest == job.stage_digests[stage]:
        if receipt is not None and receipt.cleared:
            return "its files were cleared away, and a stage behind it needs them"
        if valid_stage(job, stage) is not None:
            return "a stage before it is not finished"
        return "some of its files are missing or have another size"
    details = _difference("", dict(receipt.settings), json.loads(canonical_json(job.settings[stage])))
    return details or "a stage before it changed"


def _difference(name: str, before: Any, now: Any) -> str:
    """What differs between two settings, by dotted path."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        inner = (_difference(f"{name}.{key}" if name else str(key), before.get(key), now.get(key)) for key in keys)
        return "; ".join(inner)
    shown = [str(value) if len(str(value)) <= 40 else str(value)[:12] for value in (before, now)]
    return f"{name} was {shown[0]}, now {shown[1]}"
