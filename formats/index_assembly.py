"""Puts the parts of an index set together and refuses what does not fit.

A set is written by several processes and read much later, so everything in its record that follows from something else
in it is compared. A set that was built as it is follows from settings and sources alone; an extension also from the set
that it extends, which need not be there any more, so that less of it can be compared.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from gristmill.formats.errors import DataError
from gristmill.formats.index_blend import BlendReport, blend_file_sizes, blend_rule, taking_part
from gristmill.formats.index_member import Block, MemberReport, member_epochs, member_file_sizes
from gristmill.formats.index_order import IndexSet, OrderChange, SplitOrder, set_key
from gristmill.formats.index_plan import IndexSettings, LeftOut, MemberPlan, MemberSource, SetPlan, plan_members
from gristmill.formats.indices import plan_epochs
from gristmill.formats.split import SPLITS, canonical_split, split_bounds

__all__ = ["assemble_extension", "assemble_set"]


def assemble_set(
    folder: str,
    settings: IndexSettings,
    sources: Sequence[MemberSource],
    members: Sequence[MemberReport],
    blends: Sequence[BlendReport],
) -> IndexSet:
    """Puts the reports of a set together, each checked against what settings and sources give.

    Args:
        folder: path or URL of the set's folder.
        settings: what it was built for.
        sources: the sources in manifest order.
        members: one report for each planned member.
        blends: one report for each blended split.

    Raises:
        DataError: a report is missing, surplus, or differs from what the settings give.
    """
    settings = dataclasses.replace(settings, splits=canonical_split(settings.splits))
    plan = plan_members(settings, sources)
    planned = {(member.split, member.source): member for member in plan}
    reported = _by_member(folder, members)
    for split, source in sorted(planned.keys() ^ reported.keys()):
        state = "was planned but not built" if (split, source) in planned else "was built but not planned"
        raise DataError(f"{folder}: {split}: source {source!r} {state}; build the indices again")
    for key, report in reported.items():
        _check_member(folder, planned[key], report)
    by_split = _by_split(folder, blends)
    return IndexSet(
        folder=folder,
        key=set_key(settings, sources),
        settings=settings,
        sources=tuple(_without_paths(source) for source in sources),
        orders=tuple(_order(folder, settings, split, plan, members, by_split.get(split)) for split in SPLITS),
    )


def assemble_extension(
    folder: str,
    settings: IndexSettings,
    sources: Sequence[MemberSource],
    members: Sequence[MemberReport],
    blends: Sequence[BlendReport],
    *,
    parent: str,
    history: Sequence[OrderChange],
    left_out: Sequence[LeftOut],
) -> IndexSet:
    """Puts the reports of an extension together.

    Args:
        folder: path or URL of the extension's folder.
        settings: what it was built for.
        sources: its sources in order.
        members: one report for each member.
        blends: one report for each blended split.
        parent: key of the set that it extends.
        history: the changes that led to its training order, oldest first.
        left_out: the sources that take no part in a split, by place.

    Raises:
        DataError: the reports contradict each other or the settings.
    """
    settings = dataclasses.replace(settings, splits=canonical_split(settings.splits))
    for report in _by_member(folder, members).values():
        _check_extended_member(folder, settings, sources, report)
    by_split = _by_split(folder, blends)
    return IndexSet(
        folder=folder,
        key=set_key(settings, sources, parent),
        settings=settings,
        sources=tuple(_without_paths(source) for source in sources),
        orders=tuple(
            _extended_order(folder, settings, split, members, by_split.get(split), left_out) for split in SPLITS
        ),
        parent=parent,
        history=tuple(history),
    )


def _check_extended_member(
    folder: str, settings: IndexSettings, sources: Sequence[MemberSource], report: MemberReport
) -> None:
    where = f"{folder}: {report.split}: source {report.source!r}"
    if not 0 <= report.place < len(sources) or sources[report.place].id != report.source:
        raise DataError(f"{where} is recorded at place {report.place}, where it is not: damaged; build it again")
    held = [_held(settings, report, block) for block in report.blocks]
    start, end = split_bounds(settings.splits, sources[report.place].sequences)[report.split]
    expected: dict[str, object] = {
        "start": start,
        "end": end,
        "rows of its blocks": [rows for rows, _ in held] if report.left_out is None else [0],
        "dropped tokens": [rest for _, rest in held[:-1]],
        "files": member_file_sizes(report),
    }
    found = {
        "start": report.start,
        "end": report.end,
        "rows of its blocks": [block.rows for block in report.blocks],
        "dropped tokens": [block.dropped_tokens for block in report.later],
        "files": _sizes(report),
    }
    _refuse_differences(where, expected, found)


def _held(settings: IndexSettings, report: MemberReport, block: Block) -> tuple[int, int]:
    """Samples of a block, and the tokens behind them."""
    extra = int(settings.add_extra_token)
    epochs = plan_epochs(
        tokens=max(1, report.tokens),
        sequence_length=settings.sequence_length,
        epochs=block.epochs,
        add_extra_token=settings.add_extra_token,
        drop_last_partial=settings.request(report.split).drop_last_partial,
    )
    return epochs.samples, block.epochs * report.tokens - extra - epochs.samples * settings.sequence_length


def _extended_order(
    folder: str,
    settings: IndexSettings,
    split: str,
    reports: Sequence[MemberReport],
    blend: BlendReport | None,
    left_out: Sequence[LeftOut],
) -> SplitOrder:
    members = taking_part(split, reports)
    wanted = settings.request(split).samples
    _check_blended(folder, split, members, blend)
    samples = 0
    if blend is not None:
        samples = blend.samples
        starts = [phase.from_sample for phase in settings.phases(split)]
        expected: dict[str, object] = {
            "weights of its phases": [len(members)] * len(blend.all_phases),
            "files": blend_file_sizes(blend),
        }
        found: dict[str, object] = {
            "weights of its phases": [len(phase.weights) for phase in blend.all_phases],
            "files": _sizes(blend),
        }
        if split == "train":
            expected |= {"samples": wanted, "phases": starts}
            found |= {"samples": samples, "phases": [phase.from_sample for phase in blend.phases]}
        _refuse_differences(f"{folder}: {split}: the blend", expected, found)
    elif members:
        samples = members[0].rows if wanted is None else wanted
    if split == "train" and not samples:
        raise DataError(f"{folder}: an extension without a training order: damaged; build it again")
    held = members[0].rows if blend is None and members else 0 if blend is None else blend.size
    if samples > held:
        raise DataError(f"{folder}: {split}: {samples} samples of {held} that are stored: damaged; build it again")
    return SplitOrder(
        split=split,
        samples=samples,
        members=tuple(members),
        blend=blend,
        left_out=tuple(entry for entry in left_out if entry.split == split),
    )


def _by_member(folder: str, members: Sequence[MemberReport]) -> dict[tuple[str, str], MemberReport]:
    reported = {(report.split, report.source): report for report in members}
    if len(reported) != len(members):
        raise DataError(f"{folder}: two reports of one member of the index set")
    return reported


def _by_split(folder: str, blends: Sequence[BlendReport]) -> dict[str, BlendReport]:
    by_split = {report.split: report for report in blends}
    if len(by_split) != len(blends) or not by_split.keys() <= set(SPLITS):
        raise DataError(f"{folder}: blends of {[report.split for report in blends]}: at most one for each split")
    return by_split


def _check_blended(folder: str, split: str, members: Sequence[MemberReport], blend: BlendReport | None) -> None:
    if (len(members) > 1) != (blend is not None):
        needed = "needs a blend and has none" if blend is None else "has a blend that it does not need"
        raise DataError(f"{folder}: {split}: {len(members)} sources take part, so the split {needed}")


def _without_paths(source: MemberSource) -> MemberSource:
    shards = tuple(dataclasses.replace(shard, path="") for shard in source.shards)
    weight = None if source.weight is None else float(source.weight)
    return dataclasses.replace(source, weight=weight, max_epochs=None, shards=shards)


def _check_member(folder: str, plan: MemberPlan, report: MemberReport) -> None:
    """Refuses a report that the plan and the member's token count do not lead to."""
    expected: dict[str, object] = {
        "place": plan.place,
        "start": plan.start,
        "end": plan.end,
        "weight": plan.weight,
        "files": member_file_sizes(report),
    }
    if report.left_out is None:
        epochs = member_epochs(plan, report.tokens)
        expected |= {"epochs": epochs.epochs, "separate": epochs.separate, "rows": epochs.samples, "later": ()}
    elif plan.required:
        expected["left_out"] = None
    else:
        expected["rows"] = 0
    found = {**{name: getattr(report, name) for name in expected}, "files": _sizes(report)}
    _refuse_differences(f"{folder}: {plan.split}: source {plan.source!r}", expected, found)


def _sizes(report: MemberReport | BlendReport) -> dict[str, int]:
    return {name: facts.size for name, facts in report.files.items()}


def _refuse_differences(where: str, expected: Mapping[str, object], found: Mapping[str, object]) -> None:
    wrong = [
        f"{name} {found[name]!r} instead of {expected[name]!r}" for name in expected if found[name] != expected[name]
    ]
    if wrong:
        raise DataError(f"{where} is recorded with {', '.join(wrong)}: of other settings or damaged; build it again")


def _order(
    folder: str,
    settings: IndexSettings,
    split: str,
    plan: SetPlan,
    reports: Sequence[MemberReport],
    blend: BlendReport | None,
) -> SplitOrder:
    members = taking_part(split, reports)
    wanted = settings.request(split).samples
    samples = 0
    _check_blended(folder, split, members, blend)
    if blend is not None:
        rule = blend_rule(settings, split, members)
        ruled = {rule_field.name: getattr(rule, rule_field.name) for rule_field in dataclasses.fields(rule)}
        expected: dict[str, object] = {**ruled, "files": blend_file_sizes(blend)}
        found = {**{name: getattr(blend, name) for name in expected}, "files": _sizes(blend)}
        _refuse_differences(f"{folder}: {split}: the blend", expected, found)
        samples = rule.samples
    elif members:
        samples = members[0].rows if wanted is None else wanted
    too_short = [
        LeftOut(split, report.source, report.left_out, report.place)
        for report in reports
        if report.split == split and report.left_out is not None
    ]
    left_out = [entry for entry in plan.left_out if entry.split == split] + too_short
    return SplitOrder(
        split=split,
        samples=samples,
        members=tuple(members),
        blend=blend,
        left_out=tuple(sorted(left_out, key=lambda entry: entry.place)),
    )
