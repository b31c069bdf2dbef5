"""Builds an extension of an index set: a folder of its own that begins with every byte of what it extends.

The parent is read and never written. Its arrays are copied as they are and new blocks are written behind them, so the
extension stands by itself and the parent may go; that costs the disk space of a copy. Members are worked on one after
the other, and old arrays pass through memory in pieces.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.blend import Blend, empty_blend
from gristmill.formats.errors import FormatError
from gristmill.formats.index_blend import (
    BlendReport,
    BlendRule,
    blend_file,
    check_each_is_drawn,
    check_enough,
    weighted_rule,
)
from gristmill.formats.index_build import source_lengths, source_tokens
from gristmill.formats.index_extension import Extension, KeptMember, plan_extension
from gristmill.formats.index_member import Block, MemberReport, check_member, make_member, member_file
from gristmill.formats.index_order import OrderChange, member_value, order_fingerprint, order_history, weights_value
from gristmill.formats.index_set import SET_NAME, IndexSet, commit_extension, read_set, set_path
from gristmill.formats.index_sources import index_sources
from gristmill.formats.indices import Lengths, MemberIndices, build_indices
from gristmill.formats.manifest import Manifest
from gristmill.formats.npy import write_npy
from gristmill.formats.schedule import Phase, count_members, draw_phases, drawn_before
from gristmill.formats.storage import FileFacts, exists, join

__all__ = ["extend_index_set"]

_CHUNK_ROWS = 1 << 20


def extend_index_set(
    corpus: str,
    manifest: Manifest,
    parent: IndexSet,
    *,
    samples: int | None = None,
    from_sample: int | None = None,
    weights: Mapping[str, float] | None = None,
    say: Callable[[str], None] | None = None,
) -> IndexSet:
    """Builds the extension of an index set, or gives the one that is there already.

    Args:
        corpus: folder or URL of the corpus.
        manifest: its manifest.
        parent: the set to extend.
        samples: samples of the training split from now on; None leaves them as they are.
        from_sample: first sample of new weights; needs `weights`.
        weights: a weight for each source that takes part so far, and for any other that joins; those not named get 0.
        say: takes a line for each member; None stays silent.

    Raises:
        SettingsError: the settings cannot be followed for this set.
        DataError: the corpus is not the one that the set was built from, an array of the set is damaged, or a source
            that joins is too short.
        StorageError: a file cannot be read or written.
    """
    sources = {source.id: source for source in index_sources(manifest.sources)}
    plan = plan_extension(parent, list(sources.values()), samples=samples, from_sample=from_sample, weights=weights)
    folder = set_path(corpus, plan.settings, plan.sources, parent.key)
    if exists(join(folder, SET_NAME)):
        return read_set(folder)
    for new in plan.joining:
        check_member(new, source_tokens(corpus, sources[new.source], new.start, new.end))
    rule = weighted_rule(plan.phases, plan.settings.train.samples or 0) if plan.phases else None
    tail = None if rule is None else _draw(parent, plan, rule)
    reports: list[MemberReport] = []
    for member in plan.kept:
        if member.block is None:
            report = _copy_member(folder, parent, member.stored)
        else:
            report = _append_block(folder, parent, member, source_lengths(corpus, sources[member.plan.source]))
        reports.append(dataclasses.replace(report, place=member.plan.place, weight=member.plan.weight))
    joined = 1 + max(member.stored.joined for member in plan.kept)
    for new in plan.joining:
        tokens = source_tokens(corpus, sources[new.source], new.start, new.end)
        report = make_member(folder, new, partial(source_lengths, corpus, sources[new.source]), tokens)
        reports.append(dataclasses.replace(report, joined=joined))
    if say is not None:
        for number, report in enumerate(reports):
            say(_told(report, plan.kept[number] if number < len(plan.kept) else None))
    change = _change(parent, plan, rule, reports, tail)
    blends = []
    if rule is not None and tail is not None:
        check_enough("train", reports, _counts(parent, plan, tail))
        blends.append(_write_blend(folder, parent, plan, rule, tail))
    held_out_members, held_out_blends = _copy_held_out(folder, parent)
    return commit_extension(
        folder,
        plan.settings,
        plan.sources,
        reports + held_out_members,
        blends + held_out_blends,
        parent=parent.key,
        history=[*order_history(parent, "train"), *([] if change is None else [change])],
        left_out=plan.left_out,
    )


def _told(report: MemberReport, member: KeptMember | None) -> str:
    if member is None:
        return f"train of {report.source}: joins, {report.rows:,} samples in {report.epochs} epochs"
    if member.block is None:
        return f"train of {report.source}: {report.rows:,} samples as before"
    last = report.later[-1]
    return (
        f"train of {report.source}: {last.rows:,} samples in {last.epochs} epochs behind {member.stored.rows:,}; "
        f"{last.dropped_tokens} tokens between them are dropped"
    )


# Members


def _copy_member(folder: str, parent: IndexSet, report: MemberReport) -> MemberReport:
    """Writes the arrays of a member as they are."""
    indices = parent.open_member(report.split, report.source)
    files = {
        member_file(report.split, report.source, index): write_npy(
            join(folder, member_file(report.split, report.source, index)), array
        )
        for index, array in _arrays(indices).items()
    }
    _refuse_other_bytes(parent, report.files, files)
    return report


def _arrays(indices: MemberIndices) -> dict[str, NDArray[Any]]:
    return {
        "document_index": indices.document_index,
        "sample_index": indices.sample_index,
        "shuffle_index": indices.shuffle_index,
    }


def _refuse_other_bytes(parent: IndexSet, recorded: Mapping[str, FileFacts], found: Mapping[str, FileFacts]) -> None:
    for name, facts in found.items():
        if facts != recorded[name]:
            raise FormatError(
                f"{join(parent.folder, name)}: sha256 {facts.sha256}, but {recorded[name].sha256} is recorded: "
                "damaged, so nothing can be built on it; build the index set again"
            )


def _append_block(folder: str, parent: IndexSet, member: KeptMember, lengths: Lengths) -> MemberReport:
    """Writes the arrays of a member with one more block behind them."""
    stored, plan, block = member.stored, member.plan, member.block
    if block is None:
        return _copy_member(folder, parent, stored)
    old = _arrays(parent.open_member("train", plan.source))
    number = len(stored.blocks)
    new = _arrays(build_indices(lengths, plan.start, plan.end, block, [plan.seed, number]))
    for index, array in new.items():
        new[index] = array.astype(old[index].dtype, copy=False)
    new["sample_index"][:, 0] += new["sample_index"].dtype.type(stored.entries)
    new["shuffle_index"] += new["shuffle_index"].dtype.type(stored.rows + number)  # rows of the old sample index
    files: dict[str, FileFacts] = {}
    for index in ("document_index", "sample_index", "shuffle_index"):
        name = member_file("train", plan.source, index)
        files[name] = write_npy(join(folder, name), old[index], new[index])
    last = stored.blocks[-1]
    used = last.rows * plan.sequence_length + int(plan.add_extra_token)
    appended = Block(
        epochs=block.epochs,
        separate=block.separate,
        rows=block.samples,
        dropped_tokens=last.epochs * stored.tokens - used,
    )
    return dataclasses.replace(stored, rows=stored.rows + block.samples, later=(*stored.later, appended), files=files)


def _copy_held_out(folder: str, parent: IndexSet) -> tuple[list[MemberReport], list[BlendReport]]:
    """Writes validation and test as they are."""
    reports: list[MemberReport] = []
    blends: list[BlendReport] = []
    for split in ("valid", "test"):
        order = parent.order(split)
        reports += [_copy_member(folder, parent, report) for report in order.members]
        blend = parent.open_blend(split) if order.blend is not None else None
        if blend is not None and order.blend is not None:
            files = {
                name: write_npy(join(folder, name), array)
                for name, array in (
                    (blend_file(split, "dataset_index"), blend.dataset_index),
                    (blend_file(split, "dataset_sample_index"), blend.dataset_sample_index),
                )
            }
            _refuse_other_bytes(parent, order.blend.files, files)
            blends.append(order.blend)
    return reports, blends


# The blend


def _phases(rule: BlendRule) -> list[Phase]:
    return [Phase(0, rule.weights), *rule.phases]


def _kept_rows(parent: IndexSet, plan: Extension) -> Blend:
    """The rows of the parent's blend that stay."""
    blend = parent.open_blend("train") if plan.keep else None
    if blend is None:
        return empty_blend(0)
    return blend.dataset_index[: plan.keep], blend.dataset_sample_index[: plan.keep]


def _draw(parent: IndexSet, plan: Extension, rule: BlendRule) -> Blend:
    """The rows of the blend behind those that stay."""
    tail = empty_blend(max(rule.size, plan.keep) - plan.keep)
    kept = _kept_rows(parent, plan)
    begun = max((phase.from_sample for phase in plan.phases if phase.from_sample < plan.keep), default=0)
    counts = drawn_before(*kept, plan.keep, len(plan.plans))
    since = counts - drawn_before(*kept, begun, len(plan.plans))
    asked = max(0, rule.samples - plan.keep)
    for rows in (slice(0, asked), slice(asked, len(tail[0]))):
        draw_phases(_phases(rule), plan.keep + rows.start, counts, since, tail[0][rows], tail[1][rows])
        if rows.start == 0:
            check_each_is_drawn("train", plan.plans, rule, counts)
    return tail


def _counts(parent: IndexSet, plan: Extension, tail: Blend) -> NDArray[np.int64]:
    """Samples that the whole blend draws from each member."""
    members = len(plan.plans)
    return drawn_before(*_kept_rows(parent, plan), plan.keep, members) + count_members(tail[0], members)


def _write_blend(folder: str, parent: IndexSet, plan: Extension, rule: BlendRule, tail: Blend) -> BlendReport:
    kept = _kept_rows(parent, plan)
    files: dict[str, FileFacts] = {}
    for number, index in enumerate(("dataset_index", "dataset_sample_index")):
        name = blend_file("train", index)
        parts: tuple[NDArray[Any], NDArray[Any]] = (kept[number], tail[number])
        files[name] = write_npy(join(folder, name), *parts)
    return BlendReport(
        split="train",
        kind=rule.kind,
        weights=rule.weights,
        samples=rule.samples,
        size=plan.keep + len(tail[0]),
        phases=rule.phases,
        files=files,
    )


# What changes, and from where on


def _change(
    parent: IndexSet, plan: Extension, rule: BlendRule | None, reports: Sequence[MemberReport], tail: Blend | None
) -> OrderChange | None:
    """The link that the extension adds to the history; None where no row can ever differ from the parent's."""
    appended = [report for report, member in zip(reports, plan.kept) if member.block is not None]
    change: dict[str, Any] = {}
    starts: list[int] = []
    if appended:
        change["blocks"] = [
            {**member_value(plan.sources, report), "later": [[block.epochs, block.separate] for block in report.later]}
            for report in appended
        ]
        starts.append(_first_beyond(plan, tail))
    if rule is not None and plan.changed_from is not None:
        change["weights"] = weights_value(plan.sources, reports, rule.phases[-1])
        starts.append(plan.changed_from)
        if starts[0] < plan.changed_from:
            change["weights_from"] = plan.changed_from
    if not change:
        return None
    return OrderChange(min(starts), change, order_fingerprint(parent, "train"))


def _first_beyond(plan: Extension, tail: Blend | None) -> int:
    """The first row that lies in a block which the extension appends."""
    if tail is None:
        return plan.kept[0].stored.rows
    limits = np.full(len(plan.plans), np.iinfo(np.int64).max)
    limits[: len(plan.kept)] = [member.stored.rows for member in plan.kept]
    for start in range(0, len(tail[0]), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        beyond = tail[1][rows] >= limits[tail[0][rows]]
        if beyond.any():
            return plan.keep + start + int(np.argmax(beyond))
    return plan.keep + len(tail[0])
