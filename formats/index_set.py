"""An index set on disk: all that decides the order of samples of one corpus for one length, seed and size.

    indices/L<length>-s<seed>-<key>/set.json                                      written last: the commit point
    indices/L<length>-s<seed>-<key>/<split>/<source>/{document,sample,shuffle}_index.npy
    indices/L<length>-s<seed>-<key>/<split>/{dataset_index,dataset_sample_index}.npy     where members are blended

The key covers the data's identity and every setting, so changed data or settings make another folder and an old order
is never served for new input. A folder without `set.json` is unfinished and is not read. Building is `plan_members`,
then for each member `build_member` and `write_member`, for each split `build_blend` and `write_blend`, then
`commit_set`; all of them can be imported from here.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gristmill.formats.errors import CorpusError, DataError, FormatError, SettingsError
from gristmill.formats.fingerprint import ORDER_VERSION, pretty_json, short
from gristmill.formats.index_blend import (
    BlendIndices,
    BlendReport,
    blend_file_sizes,
    blend_rule,
    build_blend,
    parse_blend_report,
    taking_part,
    write_blend,
)
from gristmill.formats.index_member import (
    MemberReport,
    build_member,
    member_epochs,
    member_file_sizes,
    parse_member_report,
    write_member,
)
from gristmill.formats.index_order import (
    INDICES_FOLDER,
    IndexSet,
    SplitOrder,
    order_fingerprint,
    set_key,
    set_name,
    set_path,
    settings_value,
    source_value,
)
from gristmill.formats.index_plan import (
    IndexSettings,
    LeftOut,
    MemberPlan,
    MemberSource,
    SetPlan,
    ShardIdentity,
    SplitRequest,
    plan_members,
)
from gristmill.formats.indices import MemberIndices
from gristmill.formats.schedule import parse_phases
from gristmill.formats.split import SPLITS, canonical_split
from gristmill.formats.storage import exists, join, list_folders, read_bytes, write_bytes

__all__ = [
    "BlendIndices",
    "BlendReport",
    "build_blend",
    "build_member",
    "commit_set",
    "find_sets",
    "IndexSet",
    "IndexSettings",
    "INDICES_FOLDER",
    "LeftOut",
    "MemberIndices",
    "MemberPlan",
    "MemberReport",
    "MemberSource",
    "order_fingerprint",
    "parse_blend_report",
    "parse_member_report",
    "plan_members",
    "read_set",
    "set_key",
    "SET_NAME",
    "set_name",
    "set_path",
    "SetPlan",
    "ShardIdentity",
    "SplitOrder",
    "SplitRequest",
    "write_blend",
    "write_member",
]

SET_NAME = "set.json"
"""The record of an index set; a folder without it is unfinished."""

_FORMAT = "gristmill-index-set"
_VERSION = 1


class _OtherVersionError(FormatError):
    """A record that another version of this software wrote: whole, but not for this one."""


def commit_set(
    set_folder: str,
    settings: IndexSettings,
    sources: Sequence[MemberSource],
    members: Iterable[MemberReport],
    blends: Iterable[BlendReport],
) -> IndexSet:
    """Records a finished index set in its `set.json`, which is written last.

    Args:
        set_folder: path or URL of the index set's folder.
        settings: what it was built for.
        sources: the sources in manifest order.
        members: one report for each planned member, in any order.
        blends: one report for each blended split, in any order.

    Returns:
        The index set, equal to what `read_set` gives.

    Raises:
        DataError: a report is missing, surplus, or differs from what the settings give.
        StorageError: the file cannot be written.
    """
    reports = sorted(members, key=lambda report: (SPLITS.index(report.split), report.place))
    index_set = _assemble(set_folder, settings, sources, reports, list(blends))
    orders = index_set.orders
    value = {
        "format": _FORMAT,
        "version": _VERSION,
        "order_version": ORDER_VERSION,
        "key": index_set.key,
        "settings": settings_value(settings),
        "sources": [source_value(source) for source in sources],
        "members": [dataclasses.asdict(report) for report in reports],
        "blends": [dataclasses.asdict(order.blend) for order in orders if order.blend is not None],
        "splits": [_summary(order) for order in orders],
    }
    write_bytes(join(set_folder, SET_NAME), pretty_json(value))
    return index_set


def _summary(order: SplitOrder) -> dict[str, Any]:
    """What `set.json` says of a split beyond the reports, for people and as a cross-check."""
    return {
        "split": order.split,
        "samples": order.samples,
        "sources": [member.source for member in order.members],
        "left_out": [{"source": entry.source, "reason": entry.reason} for entry in order.left_out],
    }


def _assemble(
    folder: str,
    settings: IndexSettings,
    sources: Sequence[MemberSource],
    members: Sequence[MemberReport],
    blends: Sequence[BlendReport],
) -> IndexSet:
    """Puts the reports of a set together, each checked against what settings and sources give."""
    settings = dataclasses.replace(settings, splits=canonical_split(settings.splits))
    plan = plan_members(settings, sources)
    planned = {(member.split, member.source): member for member in plan}
    reported = {(report.split, report.source): report for report in members}
    if len(reported) != len(members):
        raise DataError(f"{folder}: two reports of one member of the index set")
    for split, source in sorted(planned.keys() ^ reported.keys()):
        state = "was planned but not built" if (split, source) in planned else "was built but not planned"
        raise DataError(f"{folder}: {split}: source {source!r} {state}; build the indices again")
    for key, report in reported.items():
        _check_member(folder, planned[key], report)
    by_split = {report.split: report for report in blends}
    if len(by_split) != len(blends) or not by_split.keys() <= set(SPLITS):
        raise DataError(f"{folder}: blends of {[report.split for report in blends]}: at most one for each split")
    return IndexSet(
        folder=folder,
        key=set_key(settings, sources),
        settings=settings,
        sources=tuple(_without_paths(source) for source in sources),
        orders=tuple(_order(folder, settings, split, plan, members, by_split.get(split)) for split in SPLITS),
    )


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
        expected |= {"epochs": epochs.epochs, "separate": epochs.separate, "rows": epochs.samples}
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
    if (len(members) > 1) != (blend is not None):
        needed = "needs a blend and has none" if blend is None else "has a blend that it does not need"
        raise DataError(f"{folder}: {split}: {len(members)} sources take part, so the split {needed}")
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


def read_set(set_folder: str) -> IndexSet:
    """Reads and checks the record of an index set; its arrays stay untouched.

    Args:
        set_folder: path or URL of the index set's folder.

    Raises:
        CorpusError: there is no `set.json`: the set is missing or unfinished.
        FormatError: `set.json` is damaged, of another version, or contradicts itself.
    """
    path = join(set_folder, SET_NAME)
    if not exists(path):
        raise CorpusError(f"{set_folder}: no {SET_NAME}, so this index set is missing or unfinished; build it again")
    try:
        return _parse(set_folder, path, json.loads(read_bytes(path)))
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, DataError, SettingsError) as error:
        raise FormatError(
            f"{path}: damaged record of an index set ({type(error).__name__}: {error}); build the indices again"
        ) from error


def _parse(folder: str, path: str, value: Mapping[str, Any]) -> IndexSet:
    if value["format"] != _FORMAT:
        raise FormatError(
            f"{path}: format {value['format']!r}; an index set's record says {_FORMAT!r}; build the indices again"
        )
    for name, expected in (("version", _VERSION), ("order_version", ORDER_VERSION)):
        if value[name] != expected:
            raise _OtherVersionError(
                f"{path}: {name} {value[name]!r}; this software reads {expected!r}; build the indices again"
            )
    stored = value["settings"]
    requests = {split: SplitRequest(**stored["requests"][split]) for split in SPLITS}
    settings = IndexSettings(
        sequence_length=stored["sequence_length"],
        seed=stored["seed"],
        splits=stored["splits"],
        add_extra_token=stored["add_extra_token"],
        schedule=parse_phases(stored.get("schedule", ())),
        **requests,
    )
    sources = [
        MemberSource(
            id=source["id"],
            weight=source["weight"],
            max_epochs=None,
            shards=tuple(ShardIdentity("", shard["identity"], shard["sequences"]) for shard in source["shards"]),
        )
        for source in value["sources"]
    ]
    members = [parse_member_report(report) for report in value["members"]]
    blends = [parse_blend_report(report) for report in value["blends"]]
    index_set = _assemble(folder, settings, sources, members, blends)
    if index_set.key != value["key"]:
        raise FormatError(
            f"{path}: the key {short(str(value['key']))} is not that of the settings and sources in it; build the "
            "indices again"
        )
    if [_summary(order) for order in index_set.orders] != value["splits"]:
        raise FormatError(f"{path}: the summary of the splits contradicts the reports; build the indices again")
    return index_set


def find_sets(corpus_folder: str) -> list[IndexSet]:
    """The finished index sets of a corpus, by folder name.

    Unfinished folders and sets of another version of the rules are passed over.

    Raises:
        FormatError: a `set.json` is damaged.
    """
    indices = join(corpus_folder, INDICES_FOLDER)
    found: list[IndexSet] = []
    for name in list_folders(indices):
        folder = join(indices, name)
        if exists(join(folder, SET_NAME)):
            with suppress(_OtherVersionError):
                found.append(read_set(folder))
    return found
