"""What the order of adopted data is made of, before any index is looked at.

The counts are those of Megatron's builder and of MaxText's reader, which agree where both have a rule. Planning needs
the number of sequences of each source and nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gristmill.formats.blend import SURPLUS
from gristmill.formats.data_sources import DataSource
from gristmill.formats.errors import SettingsError
from gristmill.formats.index_plan import IndexSettings, LeftOut, MemberPlan, MemberSource, SplitRequest, plan_members
from gristmill.formats.schedule import Phase
from gristmill.formats.split import SPLITS, split_bounds

__all__ = ["OrderPlan", "OrderRequest", "plan_order"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRequest:
    """What is wanted of adopted data.

    Attributes:
        sequence_length: tokens per sample, the extra one not counted.
        seed: of every shuffle.
        split: ``train``, ``valid`` or ``test``.
        splits: proportions of the three; None gives the split all of the data.
        samples: number of samples; None takes `epochs`.
        epochs: passes over each member where no number of samples is asked for; None is one.
        surplus: share that a weighted member is built for beyond its target.
        add_extra_token: whether neighbouring samples share one token.
        drop_last_partial: whether a last sample that is shorter than the others is dropped, see `SplitRequest`.
        schedule: later phases of the weights of the training split, see `IndexSettings`.
    """

    sequence_length: int
    seed: int
    split: str = "train"
    splits: str | None = None
    samples: int | None = None
    epochs: int | None = None
    surplus: float = SURPLUS
    add_extra_token: bool = True
    drop_last_partial: bool = True
    schedule: tuple[Phase, ...] = ()

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise SettingsError(f"split {self.split!r}: the splits are {', '.join(SPLITS)}")
        if self.schedule and self.split != "train":
            raise SettingsError(f"schedule: weights change in the training split alone, not in {self.split}")
        if not (math.isfinite(self.surplus) and self.surplus >= 0):
            raise SettingsError(f"a surplus of {self.surplus} is no share of at least 0; Megatron's is {SURPLUS}")

    @property
    def all_splits(self) -> str:
        """The proportions, those that give the split everything where none are given."""
        if self.splits is not None:
            return self.splits
        return ",".join("1" if split == self.split else "0" for split in SPLITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPlan:
    """The members of an order.

    Attributes:
        request: what is wanted.
        settings: the same as settings of an index set.
        sources: the data; a member's `place` counts them.
        members: the members that are planned, in the order of the sources.
        left_out: the sources that take no part, with the reason.
        unsized: [sources] weights of a blend that nobody sized; None in all other cases.
    """

    request: OrderRequest
    settings: IndexSettings
    sources: tuple[DataSource, ...]
    members: tuple[MemberPlan, ...]
    left_out: tuple[LeftOut, ...]
    unsized: tuple[float, ...] | None


def plan_order(sources: Sequence[DataSource], request: OrderRequest) -> OrderPlan:
    """Plans the members of an order.

    With weights and a number of samples each member is built for ``ceil(ceil(samples * weight) * (1 + surplus))``; so
    too a single one that has a weight (Megatron's blend of one). With weights and no number, each member is gone
    through once, or `epochs` times, and the blend is as long as no member repeats (MaxText's rule). Without weights,
    see `plan_members`.

    Raises:
        SettingsError: the request cannot be followed for these sources.
        DataError: no source has a sequence in the split.
    """
    members = [source.member_source for source in sources]
    weights = [source.weight for source in members if source.weight is not None]
    unsized = bool(weights) and request.samples is None
    kept = [source for source in members if source.weight != 0] if unsized else members
    planned = [replace(source, weight=None) for source in kept] if unsized else kept
    settings = _settings(planned, request)
    plan = plan_members(settings, planned)
    places = [members.index(source) for source in kept]
    chosen = [replace(member, place=places[member.place]) for member in plan.split(request.split)]
    if weights and request.samples is not None:
        chosen = [
            replace(member, samples=math.ceil(target * (1 + request.surplus)))
            for member, target in ((member, member.draws or request.samples) for member in chosen)
        ]
    left_out = [
        replace(entry, place=places[entry.place]) for entry in plan.left_out if entry.split == request.split
    ] + [
        LeftOut(request.split, source.id, "its weight is 0", place)
        for place, source in enumerate(members)
        if source not in kept
    ]
    return OrderPlan(
        request=request,
        settings=settings,
        sources=tuple(sources),
        members=tuple(chosen),
        left_out=tuple(sorted(left_out, key=lambda entry: entry.place)),
        unsized=tuple(weights) if unsized else None,
    )


def _settings(sources: Sequence[MemberSource], request: OrderRequest) -> IndexSettings:
    """The request as settings of an index set.

    Nothing is built for the other splits; but a training split of one pass by weights would be refused, so it is said
    to be sized where it has sequences.
    """
    wanted = SplitRequest(samples=request.samples, epochs=request.epochs, drop_last_partial=request.drop_last_partial)
    requests = {request.split: wanted}
    settings = IndexSettings(
        sequence_length=request.sequence_length,
        seed=request.seed,
        splits=request.all_splits,
        add_extra_token=request.add_extra_token,
        train=requests.get("train", SplitRequest()),
        valid=requests.get("valid", SplitRequest()),
        test=requests.get("test", SplitRequest()),
        schedule=request.schedule,
    )
    trains = (split_bounds(settings.splits, source.sequences)["train"] for source in sources if source.weight != 0)
    if request.split != "train" and any(start < end for start, end in trains):
        return replace(settings, train=SplitRequest(samples=1))
    return settings
