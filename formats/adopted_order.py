"""The order of data that no recipe made: planned, found in a cache or built, and kept there for the next start.

Data, options and rules give the key of every array, so what a folder holds is either right or not looked at. Each host
that finds nothing builds the same arrays for itself, in memory; one of them writes them down. That costs every host
the time of the first build, and needs neither a barrier nor a lock nor a shared folder.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from gristmill.formats.adopted_blend import blend_of_members
from gristmill.formats.adopted_plan import OrderPlan
from gristmill.formats.blend_store import BlendRequest
from gristmill.formats.caches import Caches, warn_unwritten
from gristmill.formats.data_sources import DataSource
from gristmill.formats.errors import CorpusError, FormatError, StorageError
from gristmill.formats.fingerprint import digest
from gristmill.formats.foreign_index import ForeignIndex, find_foreign_indices, open_by_prefix, use_foreign_index
from gristmill.formats.index_blend import BlendIndices, BlendReport, taking_part
from gristmill.formats.index_member import MemberReport, build_member, member_epochs, write_member
from gristmill.formats.index_order import IndexSet, SplitOrder
from gristmill.formats.index_plan import LeftOut, MemberPlan
from gristmill.formats.indices import EpochPlan, Lengths, MemberIndices
from gristmill.formats.member_store import build_stored, load_member, member_facts, member_prefix
from gristmill.formats.storage import base_name
from gristmill.formats.token_shards import shard_lengths, tokens_in_range

__all__ = [
    "AdoptedOrder",
    "BuiltMember",
    "member_of",
    "order_of",
    "store_member",
    "StoredMember",
]

_Lengths = Callable[[], Lengths]
_Listing = Callable[[str, str], list[ForeignIndex]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """Where the arrays of a member lie, for whoever knows that they are the right ones.

    Attributes:
        prefix: path or URL of the arrays up to the dash before their names.
        plan: the member.
        epochs: how often its tokens are gone through.
    """

    prefix: str
    plan: MemberPlan
    epochs: EpochPlan

    def open(self) -> MemberIndices:
        """The indices; see `open_by_prefix`."""
        return open_by_prefix(self.prefix, self.plan, self.epochs)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltMember:
    """A member with its indices.

    Attributes:
        report: what it is.
        indices: its arrays.
        stored: where they lie; None for arrays in memory.
    """

    report: MemberReport
    indices: MemberIndices
    stored: StoredMember | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedOrder:
    """An order, ready to be read.

    Attributes:
        index_set: the order as an index set of one split that lies nowhere; its fingerprint is that of the stream.
        sources: the data, those that take no part included.
        members: those that take part, as the blend numbers them.
        blend: the blend, or None for a single member.
        stored_blend: the folder where `find_blend` finds it, and for what request; None for one in memory, or none.
    """

    index_set: IndexSet
    sources: tuple[DataSource, ...]
    members: tuple[BuiltMember, ...]
    blend: BlendIndices | None
    stored_blend: tuple[str, BlendRequest] | None


def order_of(plan: OrderPlan, caches: Caches) -> AdoptedOrder:
    """Loads or builds everything that a plan names.

    Raises:
        CorpusError: the split has no samples, or foreign indices are required and none fit.
        DataError: a member has too few tokens for one sample, or fewer samples than the blend asks for.
        SettingsError: a member of a weighted blend would get no sample.
        StorageError: a file cannot be read.

    Warns:
        UserWarning: stored indices are damaged, foreign ones do not fit, or new ones cannot be written.
    """
    split = plan.request.split
    listing = cache(find_foreign_indices)
    built = [member_of(plan, member, caches, listing) for member in plan.members]
    reports = [member.report for member in built]
    taking = taking_part(split, reports)
    blend, stored_blend = blend_of_members(plan, reports, caches)
    samples = blend.samples if blend is not None else plan.request.samples or sum(report.rows for report in taking)
    too_short = [
        LeftOut(split, report.source, report.left_out, report.place)
        for report in reports
        if report.left_out is not None
    ]
    order = SplitOrder(
        split=split,
        samples=samples,
        members=tuple(taking),
        blend=None if blend is None else _blend_report(split, blend),
        left_out=tuple(sorted([*plan.left_out, *too_short], key=lambda entry: entry.place)),
    )
    order.require_samples()
    index_set = IndexSet(
        folder="",
        key="",
        settings=plan.settings,
        sources=tuple(source.member_source for source in plan.sources),
        orders=(order,),
    )
    return AdoptedOrder(
        index_set=index_set,
        sources=plan.sources,
        members=tuple(member for member in built if member.report.left_out is None),
        blend=blend,
        stored_blend=stored_blend,
    )


def _blend_report(split: str, blend: BlendIndices) -> BlendReport:
    return BlendReport(
        split=split,
        kind=blend.kind,
        weights=blend.weights,
        samples=blend.samples,
        size=len(blend.dataset_index),
        phases=blend.phases,
    )


def member_of(
    plan: OrderPlan, member: MemberPlan, caches: Caches, listing: _Listing = find_foreign_indices
) -> BuiltMember:
    """The indices of a member: stored ones, fitting ones of Megatron's or MaxText's, or new ones.

    Args:
        plan: the order.
        member: one of its members.
        caches: where to look and where to write.
        listing: lists the foreign indices of a folder for a split.

    Raises:
        DataError: it has no tokens, or too few for one sample.
        CorpusError: foreign indices are required and none fit.
        StorageError: a file cannot be read.

    Warns:
        UserWarning: stored indices are damaged, foreign ones do not fit, or new ones cannot be written.
    """
    source = plan.sources[member.place]
    lengths = partial(shard_lengths, source.shards)
    tokens = tokens_in_range(source.shards, member.start, member.end)
    if tokens == 0 or member_epochs(member, tokens).samples == 0:
        empty = build_member(member, lengths())  # refuses, or gives a member without samples,
        return BuiltMember(report=write_member("", member, empty), indices=empty, stored=None)  # of which it tells why
    epochs = member_epochs(member, tokens)
    folder = caches.member_folder(source)
    found: tuple[str, MemberIndices] | None = None
    if folder is not None:
        found = _stored(folder, member, epochs, source)
        if found is None and caches.foreign != "ignore":
            found = _foreign(folder, member, tokens, source, lengths, listing, must=caches.foreign == "require")
    elif caches.foreign == "require":
        raise CorpusError(f"{source.id}: stored indices are required, but no cache folder is named; give cache_dir")
    if found is None and caches.write and folder is not None:
        found = _kept(folder, member, epochs, source, lengths)
    if found is None:
        found = "", build_member(member, lengths)
    prefix, indices = found
    return BuiltMember(
        report=_report(member, epochs),
        indices=indices,
        stored=StoredMember(prefix=prefix, plan=member, epochs=epochs) if prefix else None,
    )


def store_member(folder: str, source: DataSource, member: MemberPlan) -> MemberReport:
    """Builds and writes the indices of a member, unless they are there; an item of work, for any process.

    Args:
        folder: path or URL.
        source: the member's data.
        member: what to build.

    Raises:
        DataError: it has no tokens, or too few for one sample.
        StorageError: a file cannot be read or written.
    """
    tokens = tokens_in_range(source.shards, member.start, member.end)
    if tokens == 0 or member_epochs(member, tokens).samples == 0:
        return write_member("", member, build_member(member, shard_lengths(source.shards)))
    epochs = member_epochs(member, tokens)
    try:
        found = load_member(folder, member, epochs, source.member_source)
    except FormatError:  # cut short or damaged: written anew
        found = None
    if found is None:
        build_stored(folder, member, epochs, source.member_source, partial(shard_lengths, source.shards))
    return _report(member, epochs)


def _report(member: MemberPlan, epochs: EpochPlan) -> MemberReport:
    return MemberReport(
        split=member.split,
        source=member.source,
        place=member.place,
        start=member.start,
        end=member.end,
        tokens=epochs.tokens,
        epochs=epochs.epochs,
        separate=epochs.separate,
        rows=epochs.samples,
        weight=member.weight,
        left_out=None,
    )


def _stored(folder: str, member: MemberPlan, epochs: EpochPlan, source: DataSource) -> tuple[str, MemberIndices] | None:
    try:
        found = load_member(folder, member, epochs, source.member_source)
    except (FormatError, StorageError) as error:
        warnings.warn(f"{source.id}: stored indices cannot be used: {error}; they are built anew", stacklevel=2)
        return None
    return None if found is None else (_own_prefix(folder, member, epochs, source), found)


def _own_prefix(folder: str, member: MemberPlan, epochs: EpochPlan, source: DataSource) -> str:
    return member_prefix(folder, digest(member_facts(member, epochs, source.member_source)))


def _foreign(
    folder: str,
    member: MemberPlan,
    tokens: int,
    source: DataSource,
    lengths: _Lengths,
    listing: _Listing,
    *,
    must: bool,
) -> tuple[str, MemberIndices] | None:
    names = [base_name(path) for path in source.entry.paths] + [shard.name for shard in source.shards]
    found, reasons = use_foreign_index(listing(folder, member.split), member, tokens, names, lengths)
    if found is not None:
        return found[0].prefix, found[1]
    if must:
        why = "; ".join(reasons) or f"none there is for {names[0]}, seed {member.seed}, length {member.sequence_length}"
        raise CorpusError(f"{folder}: stored indices are required for {source.id!r}, but none fits: {why}")
    for reason in reasons:
        warnings.warn(f"{source.id}: stored indices are not used: {reason}", stacklevel=2)
    return None


def _kept(
    folder: str, member: MemberPlan, epochs: EpochPlan, source: DataSource, lengths: _Lengths
) -> tuple[str, MemberIndices]:
    """Builds indices into a folder; with an empty prefix where they could not be written."""
    built, error = build_stored(folder, member, epochs, source.member_source, lengths, required=False)
    if error is not None:
        warn_unwritten(f"{source.id}: indices", error, "cache_dir")
        return "", built
    return _own_prefix(folder, member, epochs, source), built
