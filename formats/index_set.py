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
from gristmill.formats.index_assembly import assemble_extension, assemble_set
from gristmill.formats.index_blend import (
    BlendIndices,
    BlendReport,
    build_blend,
    parse_blend_report,
    write_blend,
)
from gristmill.formats.index_member import (
    MemberReport,
    build_member,
    parse_member_report,
    write_member,
)
from gristmill.formats.index_order import (
    INDICES_FOLDER,
    IndexSet,
    OrderChange,
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
from gristmill.formats.split import SPLITS
from gristmill.formats.storage import exists, join, list_folders, read_bytes, write_bytes

__all__ = [
    "BlendIndices",
    "BlendReport",
    "build_blend",
    "build_member",
    "commit_extension",
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
    reports = sorted(members, key=_rank)
    index_set = assemble_set(set_folder, settings, sources, reports, list(blends))
    _write_record(index_set, reports)
    return index_set


def commit_extension(
    set_folder: str,
    settings: IndexSettings,
    sources: Sequence[MemberSource],
    members: Iterable[MemberReport],
    blends: Iterable[BlendReport],
    *,
    parent: str,
    history: Sequence[OrderChange],
    left_out: Iterable[LeftOut],
) -> IndexSet:
    """Records a finished extension of an index set in its `set.json`, which is written last.

    Args:
        set_folder: path or URL of the extension's folder.
        settings: what it was built for.
        sources: its sources: those of the parent, then new ones.
        members: one report for each member, in any order.
        blends: one report for each blended split, in any order.
        parent: key of the set that it extends.
        history: the changes that led to its training order, oldest first.
        left_out: the sources that take no part in a split, with the reason.

    Returns:
        The index set, equal to what `read_set` gives.

    Raises:
        DataError: the reports contradict each other or the settings.
        StorageError: the file cannot be written.
    """
    reports = sorted(members, key=_rank)
    index_set = assemble_extension(
        set_folder,
        settings,
        sources,
        reports,
        list(blends),
        parent=parent,
        history=history,
        left_out=sorted(left_out, key=lambda entry: entry.place),
    )
    _write_record(index_set, reports)
    return index_set


def _rank(report: MemberReport) -> tuple[int, int]:
    return SPLITS.index(report.split), report.place


def _write_record(index_set: IndexSet, reports: Sequence[MemberReport]) -> None:
    orders = index_set.orders
    value = {
        "format": _FORMAT,
        "version": _VERSION,
        "order_version": ORDER_VERSION,
        "key": index_set.key,
        "parent": index_set.parent,
        "history": [dataclasses.asdict(change) for change in index_set.history],
        "settings": settings_value(index_set.settings),
        "sources": [source_value(source) for source in index_set.sources],
        "members": [dataclasses.asdict(report) for report in reports],
        "blends": [dataclasses.asdict(order.blend) for order in orders if order.blend is not None],
        "splits": [_summary(order) for order in orders],
    }
    write_bytes(join(index_set.folder, SET_NAME), pretty_json(value))


def _summary(order: SplitOrder) -> dict[str, Any]:
    """What `set.json` says of a split beyond the reports, for people and as a cross-check."""
    return {
        "split": order.split,
        "samples": order.samples,
        "sources": [member.source for member in order.members],
        "left_out": [{"source": entry.source, "reason": entry.reason} for entry in order.left_out],
    }


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
    if value.get("parent") is None:
        index_set = assemble_set(folder, settings, sources, members, blends)
    else:
        places = {source.id: place for place, source in enumerate(sources)}
        index_set = assemble_extension(
            folder,
            settings,
            sources,
            members,
            blends,
            parent=str(value["parent"]),
            history=[
                OrderChange(int(change["from_sample"]), change["change"], str(change["parent"]))
                for change in value["history"]
            ],
            left_out=[
                LeftOut(entry["split"], one["source"], one["reason"], places[one["source"]])
                for entry in value["splits"]
                for one in entry["left_out"]
            ],
        )
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
