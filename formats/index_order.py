"""A finished index set in memory: its key, the order of each split, its files, and its fingerprint.

The key names a folder and covers everything asked for; the fingerprint is carried by a training run and covers only
what decides rows, so that a run may move, rename or shorten what it reads from and still resume.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.formats.errors import CorpusError, SettingsError
from gristmill.formats.fingerprint import ORDER_VERSION, digest, short
from gristmill.formats.index_blend import BlendIndices, BlendReport, open_blend_files
from gristmill.formats.index_member import MemberReport
from gristmill.formats.index_plan import IndexSettings, LeftOut, MemberSource, SplitRequest
from gristmill.formats.indices import MemberIndices
from gristmill.formats.member_files import open_member_files
from gristmill.formats.schedule import Phase, phases_value
from gristmill.formats.split import SPLITS, canonical_split
from gristmill.formats.storage import FileFacts, join

__all__ = [
    "IndexSet",
    "INDICES_FOLDER",
    "member_value",
    "order_fingerprint",
    "order_history",
    "OrderChange",
    "set_key",
    "set_name",
    "set_path",
    "settings_value",
    "source_value",
    "SplitOrder",
    "weights_value",
]

INDICES_FOLDER = "indices"
"""Folder of a corpus that holds its index sets."""


def settings_value(settings: IndexSettings) -> dict[str, Any]:
    """Settings as JSON values, in their one spelling; a schedule only where there is one."""
    return {
        "sequence_length": settings.sequence_length,
        "seed": settings.seed,
        "splits": canonical_split(settings.splits),
        "add_extra_token": settings.add_extra_token,
        "requests": {split: _request_value(settings.request(split)) for split in SPLITS},
        **({"schedule": phases_value(settings.schedule)} if settings.schedule else {}),
    }


def _request_value(request: SplitRequest) -> dict[str, Any]:
    value = dataclasses.asdict(request)
    if request.drop_last_partial:  # unmentioned, as before there was a choice
        del value["drop_last_partial"]
    return value


def source_value(source: MemberSource) -> dict[str, Any]:
    """A source as JSON values: what decides bytes, so neither paths nor `max_epochs`."""
    return {
        "id": source.id,
        "weight": None if source.weight is None else float(source.weight),
        "shards": [{"identity": shard.identity, "sequences": shard.sequences} for shard in source.shards],
    }


def set_key(settings: IndexSettings, sources: Sequence[MemberSource], parent: str | None = None) -> str:
    """The content address of an index set: 64 hexadecimal digits.

    Covers the order version, the settings, and for every source in order its id, its weight, and the identity and
    sequence count of every shard; never a path. `max_epochs` is not part of it: it permits or forbids, and changes no
    byte.

    Args:
        settings: of the set.
        sources: of the set, in order.
        parent: key of the set that it extends, whose order is the beginning of its own.
    """
    value = {
        "order_version": ORDER_VERSION,
        "settings": settings_value(settings),
        "sources": [source_value(source) for source in sources],
    }
    return digest(value if parent is None else {**value, "parent": parent})


def set_name(settings: IndexSettings, sources: Sequence[MemberSource], parent: str | None = None) -> str:
    """The folder name of an index set: ``L<length>-s<seed>-<first 12 digits of the key>``; arguments as `set_key`."""
    return f"L{settings.sequence_length}-s{settings.seed}-{short(set_key(settings, sources, parent))}"


def set_path(
    corpus_folder: str, settings: IndexSettings, sources: Sequence[MemberSource], parent: str | None = None
) -> str:
    """Where the index set of these settings and sources lies in a corpus; further arguments as `set_key`."""
    return join(corpus_folder, INDICES_FOLDER, set_name(settings, sources, parent))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOrder:
    """The order of one split, as recorded.

    Attributes:
        split: ``train``, ``valid`` or ``test``.
        samples: number of samples of the split; the stored arrays may hold more.
        members: the members that take part, in the order in which a blend counts them.
        blend: the blend, or None where a single member's shuffle index is the order.
        left_out: the sources that take no part, with the reason.
    """

    split: str
    samples: int
    members: tuple[MemberReport, ...]
    blend: BlendReport | None
    left_out: tuple[LeftOut, ...]

    def member(self, source: str) -> MemberReport:
        """The member of that source.

        Raises:
            CorpusError: the source takes no part in the split; the message says why.
        """
        for report in self.members:
            if report.source == source:
                return report
        for entry in self.left_out:
            if entry.source == source:
                raise CorpusError(f"{self.split}: source {source!r} takes no part: {entry.reason}")
        names = ", ".join(repr(report.source) for report in self.members) or "no source at all"
        raise CorpusError(f"{self.split}: no source {source!r}; there is {names}")

    def require_samples(self) -> None:
        """Raises CorpusError when the split has no samples, saying why for each source."""
        if not self.members:
            reasons = "; ".join(f"{entry.source!r}: {entry.reason}" for entry in self.left_out)
            raise CorpusError(f"{self.split}: the index set holds no samples of this split ({reasons})")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSet:
    """A finished index set.

    Attributes:
        folder: path or URL of its folder.
        key: content address, 64 hexadecimal digits.
        settings: what it was built for.
        sources: the sources; paths of shards and `max_epochs` are not recorded, so they are empty here.
        orders: one entry per split, in the order train, valid, test.
        parent: key of the set that this one extends, or None.
        history: of an extended set, the changes that led to its training order; see `order_history`.
    """

    folder: str
    key: str
    settings: IndexSettings
    sources: tuple[MemberSource, ...]
    orders: tuple[SplitOrder, ...]
    parent: str | None = None
    history: tuple["OrderChange", ...] = ()

    @property
    def name(self) -> str:
        """Name of the folder."""
        return set_name(self.settings, self.sources, self.parent)

    def order(self, split: str) -> SplitOrder:
        """The order of a split.

        Raises:
            SettingsError: there is no split of that name.
        """
        for order in self.orders:
            if order.split == split:
                return order
        raise SettingsError(f"split {split!r}: the splits are {', '.join(SPLITS)}")

    @property
    def files(self) -> dict[str, FileFacts]:
        """Size and digest of every file but `set.json`, by its path relative to the folder."""
        found: dict[str, FileFacts] = {}
        for order in self.orders:
            for report in (*order.members, *(() if order.blend is None else (order.blend,))):
                found.update(report.files)
        return found

    def open_member(self, split: str, source: str) -> MemberIndices:
        """The three indices of a member, checked at both ends; memory-mapped where the files are local.

        Raises:
            CorpusError: the source takes no part in the split.
            FormatError: a file is missing, half-written or damaged; the message names it.
        """
        report = self.order(split).member(source)
        return open_member_files(
            self.folder,
            report,
            sequence_length=self.settings.sequence_length,
            add_extra_token=self.settings.add_extra_token,
        )

    def open_blend(self, split: str) -> BlendIndices | None:
        """The blend of a split, checked at both ends; None where a single member's shuffle index is the order.

        Raises:
            CorpusError: the split has no samples.
            FormatError: a file is missing, half-written or damaged; the message names it.
        """
        order = self.order(split)
        order.require_samples()
        return None if order.blend is None else open_blend_files(self.folder, order.blend, order.members)


@dataclass(frozen=True, slots=True)
class OrderChange:
    """A point of a stream from which on its rows are others than those of an earlier stream.

    Attributes:
        from_sample: first row that may differ; all before are those of the parent.
        change: what is different from there on, as JSON values.
        parent: fingerprint of the earlier stream.
    """

    from_sample: int
    change: Mapping[str, Any]
    parent: str

    @property
    def fingerprint(self) -> str:
        """Of the stream that the change leads to."""
        return digest({"kind": "change", "parent": self.parent, "from_sample": self.from_sample, "change": self.change})


def order_fingerprint(index_set: IndexSet, split: str) -> str:
    """Digest of what decides the rows of a split, and of nothing else.

    Covers the order version, length, seed, extra token, split proportions and name, and for each member in order the
    identities of its shards and the epochs it is shuffled over; for a blend also the rule and the weights. The number
    of epochs (and whether the last is shuffled apart) stands for the number of samples: Megatron's order is the same
    for all sizes that need the same epochs, and another for those that need more. Paths, the number of samples itself,
    batch size, source names and sources left out are not part of it.

    Of an order with a history it is the fingerprint of the last change, which covers the one before, and so on. A phase
    of weights is such a change, and what only later phases use is no part of the first fingerprint; so two sets whose
    first phases are equal have the same beginning of their histories, if all that they share is built for the same
    epochs.

    Raises:
        CorpusError: the split has no samples.
    """
    history = order_history(index_set, split)
    return history[-1].fingerprint if history else _first_fingerprint(index_set, index_set.order(split))


def order_history(index_set: IndexSet, split: str) -> tuple[OrderChange, ...]:
    """The changes that led to an order, oldest first; empty for an order that was built as it is, without a schedule.

    Raises:
        CorpusError: the split has no samples.
    """
    order = index_set.order(split)
    order.require_samples()
    if split == "train" and index_set.parent is not None:
        return index_set.history
    if order.blend is None:
        return ()
    history: list[OrderChange] = []
    parent = _first_fingerprint(index_set, order)
    for phase in order.blend.phases:
        history.append(
            OrderChange(phase.from_sample, {"weights": weights_value(index_set.sources, order.members, phase)}, parent)
        )
        parent = history[-1].fingerprint
    return tuple(history)


def weights_value(
    sources: Sequence[MemberSource], members: Sequence[MemberReport], phase: Phase
) -> list[dict[str, Any]]:
    """What a phase of weights draws from, as JSON values: the members of a weight above 0."""
    return [
        {**member_value(sources, member), "weight": weight}
        for member, weight in zip(members, phase.weights, strict=True)
        if weight > 0
    ]


def member_value(sources: Sequence[MemberSource], member: MemberReport) -> dict[str, Any]:
    """What decides the order inside a member's first block, as JSON values: its shards, and the epochs shuffled."""
    return {
        "shards": source_value(sources[member.place])["shards"],
        "epochs": member.epochs,
        "separate": member.separate,
    }


def _first_fingerprint(index_set: IndexSet, order: SplitOrder) -> str:
    """Fingerprint of an order up to its first change."""
    settings, members, blend = index_set.settings, list(order.members), None
    if order.blend is not None:
        shares = order.blend.weights
        if order.blend.phases:  # members of weight 0 are of later phases
            members = [member for member, share in zip(members, shares, strict=True) if share > 0]
            shares = tuple(share for share in shares if share > 0)
        if len(members) > 1:
            blend = {"kind": order.blend.kind, "weights": list(shares)}
    return digest(
        {
            "kind": "megatron",
            "order_version": ORDER_VERSION,
            "sequence_length": settings.sequence_length,
            "seed": settings.seed,
            "add_extra_token": settings.add_extra_token,
            "split": order.split,
            "splits": canonical_split(settings.splits),
            "members": [member_value(index_set.sources, member) for member in members],
            "blend": blend,
            **({} if settings.request(order.split).drop_last_partial else {"drop_last_partial": False}),
        }
    )
