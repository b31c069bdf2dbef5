"""What extending an index set takes: more samples, or other weights from some sample on, behind an order that stays.

Nothing that was stored changes. A member that must give more samples than it has gets one more block: whole epochs with
a document order of their own, shuffled by ``RandomState([seed, number of the block])``, a kind of seed that no fresh
order has. The samples of the old blocks come first, all of them; the tokens behind the last whole sample of an old
block, fewer than a sample has, are dropped and counted. So the rows before are the parent's to the last token; the
price is an order that Megatron would not build for the larger number.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gristmill.formats.blend import SURPLUS
from gristmill.formats.errors import CorpusError, SettingsError
from gristmill.formats.index_member import MemberReport, check_member
from gristmill.formats.index_order import IndexSet, SplitOrder, source_value
from gristmill.formats.index_plan import IndexSettings, LeftOut, MemberPlan, MemberSource, SplitRequest
from gristmill.formats.indices import EpochPlan, plan_epochs, sample_index_dtype, shuffle_index_dtype
from gristmill.formats.schedule import Phase, phase_of_members, phase_targets, shares_above_zero
from gristmill.formats.split import split_bounds

__all__ = ["Extension", "KeptMember", "plan_extension"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMember:
    """A member of the parent's training order, in the extension's.

    Attributes:
        plan: what it is needed for.
        stored: what the parent has of it.
        block: the block to append; None where what is stored is enough.
    """

    plan: MemberPlan
    stored: MemberReport
    block: EpochPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The work of extending an index set.

    Attributes:
        settings: of the extension.
        sources: of the extension: those of the parent, then new ones.
        kept: members that the parent has, as its blend counts them.
        joining: members that come behind them.
        phases: all phases of the training order, weights by member and normalised once; empty for a single member.
        keep: rows of the parent's blend that the extension's begins with.
        changed_from: first sample of the new weights, or None.
        left_out: the sources that take no part in a split.
    """

    settings: IndexSettings
    sources: tuple[MemberSource, ...]
    kept: tuple[KeptMember, ...]
    joining: tuple[MemberPlan, ...]
    phases: tuple[Phase, ...]
    keep: int
    changed_from: int | None
    left_out: tuple[LeftOut, ...]

    @property
    def plans(self) -> list[MemberPlan]:
        """What every member is needed for, as the blend counts them."""
        return [*(member.plan for member in self.kept), *self.joining]


def plan_extension(
    parent: IndexSet,
    sources: Sequence[MemberSource],
    *,
    samples: int | None = None,
    from_sample: int | None = None,
    weights: Mapping[str, float] | None = None,
) -> Extension:
    """Which members an extension of an index set has and what each must get.

    Args:
        parent: the set to extend.
        sources: the sources of the corpus now, with `max_epochs`; those of the parent must be among them, unchanged.
        samples: samples of the training split from now on; None leaves them as they are.
        from_sample: first sample of new weights; needs `weights`.
        weights: a weight for each source that takes part so far, and for any other that joins; those not named get 0.

    Raises:
        SettingsError: the settings ask for nothing, for fewer samples than there are, or for weights that cannot be.
        CorpusError: a source of the parent is gone or has other shards, or the parent has no training order.
        DataError: a source that joins is too short for a sample.
    """
    order = parent.order("train")
    order.require_samples()
    _check_parent(parent, order, sources)
    wanted = _samples(order, samples, from_sample, weights)
    now = {source.id: source for source in sources}
    known = _with_newcomers(parent, order, sources, weights or {})
    phases, joining = _phases(parent, order, known, from_sample, weights)
    schedule = tuple(
        phase for phase in parent.settings.schedule if from_sample is None or phase.from_sample < from_sample
    )
    schedule = tuple(_padded(phase, len(known)) for phase in schedule)
    if from_sample is not None and weights is not None:
        schedule += (Phase(from_sample, tuple(float(weights.get(source.id, 0.0)) for source in known)),)
    settings = dataclasses.replace(parent.settings, train=SplitRequest(samples=wanted), schedule=schedule)
    places = [*(report.place for report in order.members), *joining]
    targets = phase_targets(phases, wanted) if phases else [wanted]
    plans = [
        _member_plan(settings, known[place], now[known[place].id].max_epochs, place, target, weight)
        for place, target, weight in zip(places, targets, phases[0].weights if phases else [None], strict=True)
    ]
    keep = 0 if order.blend is None else order.blend.size
    if from_sample is not None:
        keep = min(keep, from_sample)
    return Extension(
        settings=settings,
        sources=tuple(known),
        kept=tuple(_kept(plan, report) for plan, report in zip(plans, order.members)),
        joining=tuple(plans[len(order.members) :]),
        phases=tuple(phases),
        keep=keep,
        changed_from=from_sample,
        left_out=_left_out(parent, known, joining),
    )


def _check_parent(parent: IndexSet, order: SplitOrder, sources: Sequence[MemberSource]) -> None:
    present = {source.id: source_value(source)["shards"] for source in sources}
    for source in parent.sources:
        if present.get(source.id) != source_value(source)["shards"]:
            raise CorpusError(
                f"{parent.folder}: built from other shards of source {source.id!r} than the corpus holds now, so its "
                "order cannot go on; build a new index set"
            )
    if order.blend is not None and order.blend.kind != "weighted":
        raise SettingsError(
            f"{parent.folder}: its training order takes every source in proportion to its length and has no weights to "
            "go on with; build a new index set instead, with more epochs or with weights"
        )


def _samples(
    order: SplitOrder, samples: int | None, from_sample: int | None, weights: Mapping[str, float] | None
) -> int:
    """Samples of the extension's training split."""
    if (from_sample is None) != (weights is None):
        missing = "weights" if weights is None else "from_sample"
        raise SettingsError(f"new weights need a sample from which they hold, and the reverse: {missing} is missing")
    wanted = order.samples if samples is None else samples
    if wanted < order.samples:
        raise SettingsError(f"{wanted} samples are fewer than the {order.samples} of the index set that is extended")
    if wanted == order.samples and from_sample is None:
        raise SettingsError(
            f"the index set has {order.samples} samples already: ask for more, or for other weights from some sample on"
        )
    if from_sample is not None and not 0 < from_sample < wanted:
        raise SettingsError(
            f"new weights from sample {from_sample} on: the rule is 1 to {wanted - 1}, inside the split"
        )
    return wanted


def _with_newcomers(
    parent: IndexSet, order: SplitOrder, sources: Sequence[MemberSource], weights: Mapping[str, float]
) -> list[MemberSource]:
    """The sources of the extension: the parent's in their places, then those that the new weights bring."""
    ids = [source.id for source in sources]
    for name in weights:
        if name not in ids:
            raise SettingsError(f"weights: there is no source {name!r}; the corpus has {', '.join(map(repr, ids))}")
    missing = [member.source for member in order.members if member.source not in weights]
    if weights and missing:
        raise SettingsError(
            f"weights: none for {', '.join(map(repr, missing))}, which takes part so far; write 0 to leave it out"
        )
    known = list(parent.sources)
    if weights and all(source.weight is None for source in known):  # a single one, which gave every sample
        members = {member.source for member in order.members}
        known = [dataclasses.replace(source, weight=float(source.id in members)) for source in known]
    present = {source.id for source in known}
    joining = [source for source in sources if source.id not in present and weights.get(source.id, 0.0) > 0]
    return known + [dataclasses.replace(source, weight=0.0, max_epochs=None) for source in joining]


def _phases(
    parent: IndexSet,
    order: SplitOrder,
    known: Sequence[MemberSource],
    from_sample: int | None,
    weights: Mapping[str, float] | None,
) -> tuple[list[Phase], list[int]]:
    """All phases by member, and the places of the sources that join."""
    places = [report.place for report in order.members]
    shares = [1.0] if order.blend is None else [report.weight or 0.0 for report in order.members]
    phases = [Phase(0, tuple(shares))]
    if order.blend is not None:
        phases += [phase_of_members("train", phase, places) for phase in parent.settings.schedule]
    if from_sample is None or weights is None:
        return ([] if order.blend is None else phases), []
    new = Phase(from_sample, tuple(float(weights.get(source.id, 0.0)) for source in known))
    joining = [place for place, weight in enumerate(new.weights) if weight > 0 and place not in places]
    for place in joining:
        start, end = split_bounds(parent.settings.splits, known[place].sequences)["train"]
        if start == end:
            raise SettingsError(
                f"weights: splits {parent.settings.splits!r} give training none of the {known[place].sequences} "
                f"sequences of source {known[place].id!r}, so it has nothing to join with; give it weight 0"
            )
    if len(places) + len(joining) == 1:
        raise SettingsError(
            "weights: a single source takes part, so there is nothing to weigh; name another that joins"
        )
    count = len(places) + len(joining)
    phases = [_padded(phase, count) for phase in phases if phase.from_sample < from_sample]
    shares = shares_above_zero([new.weights[place] for place in (*places, *joining)])
    return [*phases, Phase(from_sample, tuple(shares))], joining


def _padded(phase: Phase, count: int) -> Phase:
    return Phase(phase.from_sample, phase.weights + (0.0,) * (count - len(phase.weights)))


def _member_plan(
    settings: IndexSettings,
    source: MemberSource,
    max_epochs: float | None,
    place: int,
    target: int,
    weight: float | None,
) -> MemberPlan:
    start, end = split_bounds(settings.splits, source.sequences)["train"]
    return MemberPlan(
        split="train",
        source=source.id,
        place=place,
        start=start,
        end=end,
        source_sequences=source.sequences,
        samples=target if weight is None else math.ceil(target * (1 + SURPLUS)),
        epochs=None,
        draws=target,
        weight=weight,
        max_epochs=max_epochs,
        sequence_length=settings.sequence_length,
        seed=settings.seed,
        add_extra_token=settings.add_extra_token,
        required=True,
    )


def _kept(plan: MemberPlan, stored: MemberReport) -> KeptMember:
    check_member(plan, stored.tokens)
    if plan.draws is None or plan.samples is None or plan.draws <= stored.rows:
        return KeptMember(plan=plan, stored=stored, block=None)
    block = plan_epochs(
        tokens=stored.tokens,
        sequence_length=plan.sequence_length,
        samples=plan.samples - stored.rows,
        add_extra_token=plan.add_extra_token,
    )
    _check_integers(stored, block)
    return KeptMember(plan=plan, stored=stored, block=block)


def _check_integers(stored: MemberReport, block: EpochPlan) -> None:
    """Refuses a block behind which the stored integers would have to be wider than they are."""
    entries = stored.entries + block.epochs * (stored.end - stored.start)
    numbers = stored.rows + len(stored.later)
    longer = numbers + 1 + block.samples
    if sample_index_dtype(entries, 0) is not sample_index_dtype(stored.entries, 0) or shuffle_index_dtype(
        longer
    ) is not shuffle_index_dtype(numbers):
        raise SettingsError(
            f"train: source {stored.source!r} would have {entries} entries and {longer} samples, more than its stored "
            "indices can number without being rewritten; build a new index set of this size instead"
        )


def _left_out(parent: IndexSet, known: Sequence[MemberSource], joining: Sequence[int]) -> tuple[LeftOut, ...]:
    found = [
        entry
        for order in parent.orders
        for entry in order.left_out
        if not (order.split == "train" and entry.place in joining)
    ]
    for place in range(len(parent.sources), len(known)):
        reason = "an extension brought it into the training order alone"
        found += [LeftOut(split, known[place].id, reason, place) for split in ("valid", "test")]
    return tuple(found)
