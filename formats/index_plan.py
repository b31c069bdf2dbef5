"""What an index set is asked for, and what follows from it before any token count is known.

Settings and sources go in; out come the members to build (one per split and source that has sequences there) and the
sources left out with the reason. Everything here is a pure function of counts and weights, so planning costs nothing
and can be shown to the user first.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gristmill.formats.blend import MEMBER_LIMIT, SURPLUS
from gristmill.formats.errors import DataError, SettingsError
from gristmill.formats.schedule import Phase, phase_of_members, phase_targets, source_phases
from gristmill.formats.split import SPLITS, parse_split, split_bounds

__all__ = [
    "IndexSettings",
    "LeftOut",
    "MemberPlan",
    "MemberSource",
    "plan_members",
    "SetPlan",
    "ShardIdentity",
    "SplitRequest",
]

_SOURCE_ID = re.compile(r"[^/\\\x00-\x1f]+")
_INT32_MAX = 2**31 - 1
_SEED_LIMIT = 2**32


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """How much of a split is wanted.

    Attributes:
        samples: number of samples; sources with weights are blended by them, sources without in proportion to their
            length and at most one pass each (a single source is repeated as often as needed).
        epochs: whole passes over every source, unweighted. Both None: one pass, unweighted.
        drop_last_partial: whether the tokens behind a source's last whole sample are left out. Kept, they are one more
            sample that is shorter than the others; of validation and test alone (Megatron's
            ``drop_last_partial_validation_sequence``).
    """

    samples: int | None = None
    epochs: int | None = None
    drop_last_partial: bool = True

    def __post_init__(self) -> None:
        if self.samples is not None and self.epochs is not None:
            raise SettingsError(
                f"a split is sized by samples ({self.samples}) or by epochs ({self.epochs}), not by both: drop one"
            )
        for name, value in (("samples", self.samples), ("epochs", self.epochs)):
            if value is not None and value < 1:
                raise SettingsError(f"{name} of a split must be at least 1, not {value}; leave it out for one pass")

    @property
    def one_pass(self) -> bool:
        """Whether nothing in particular is asked for: one unweighted pass."""
        return self.samples is None and self.epochs is None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """Everything but the data that decides the order of samples.

    Attributes:
        sequence_length: tokens per sample, the extra one not counted; at least 1.
        seed: of every shuffle, 0 to 2**32 - 1. All splits and sources share it, as in Megatron.
        splits: split string, see `gristmill.formats.split`.
        train: what is wanted of the training split.
        valid: what is wanted of the validation split.
        test: what is wanted of the test split.
        add_extra_token: whether a sample holds one token more than its length, so that targets are inputs shifted by
            one (Megatron's ``add_extra_token_to_sequence``).
        schedule: later phases of the training split, by `from_sample`, each with one weight per source in the order of
            the sources. Up to the first of them the sources' own weights hold.
    """

    sequence_length: int
    seed: int
    splits: str
    train: SplitRequest = SplitRequest()
    valid: SplitRequest = SplitRequest()
    test: SplitRequest = SplitRequest()
    add_extra_token: bool = True
    schedule: tuple[Phase, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.sequence_length <= _INT32_MAX - 1:
            raise SettingsError(f"sequence_length must be 1 to {_INT32_MAX - 1}, not {self.sequence_length}")
        if not 0 <= self.seed < _SEED_LIMIT:
            raise SettingsError(f"seed must be 0 to {_SEED_LIMIT - 1}, not {self.seed}")
        parse_split(self.splits)
        if not self.train.drop_last_partial:
            raise SettingsError(
                "train: the partial last sample is always dropped, as Megatron does; only validation and test can keep "
                "theirs"
            )
        before = 0
        for phase in self.schedule:
            if self.train.samples is None:
                raise SettingsError("a schedule of weights needs a number of samples of the training split")
            if not before < phase.from_sample < self.train.samples:
                raise SettingsError(
                    f"schedule: weights from sample {phase.from_sample} on: the rule is from_sample above {before} and "
                    f"below the {self.train.samples} samples of the training split, in ascending order"
                )
            before = phase.from_sample

    def request(self, split: str) -> SplitRequest:
        """What is wanted of ``train``, ``valid`` or ``test``."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    def phases(self, split: str) -> tuple[Phase, ...]:
        """The later phases of a split's weights; only ``train`` can have some."""
        return self.schedule if split == "train" else ()


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """One shard of a source, by content.

    Attributes:
        path: where it lies; never part of a key or a fingerprint.
        identity: digest of the token data.
        sequences: number of sequences in it.
    """

    path: str
    identity: str
    sequences: int


@dataclass(frozen=True, slots=True)
class MemberSource:
    """One source as the indices see it: its shards behave as their concatenation in this order.

    Attributes:
        id: names the source and the folder of its indices.
        weight: its share in a weighted blend, not negative; 0 leaves it out there. None: the source has no weight.
        max_epochs: most passes over its tokens that the training order may take; None sets no limit.
        shards: the shards in manifest order.
    """

    id: str
    weight: float | None
    max_epochs: float | None
    shards: tuple[ShardIdentity, ...]

    def __post_init__(self) -> None:
        if _SOURCE_ID.fullmatch(self.id) is None or self.id in {".", ".."} or self.id.endswith(".npy"):
            raise SettingsError(
                f"source id {self.id!r} cannot name a folder: it must not be empty, '.' or '..', hold '/', '\\' or "
                "control characters, or end in '.npy'"
            )
        if self.weight is not None and not (math.isfinite(self.weight) and self.weight >= 0):
            raise SettingsError(
                f"source {self.id!r}: weight {self.weight} must be a finite number of at least 0 (0 leaves it out)"
            )
        if self.max_epochs is not None and not (math.isfinite(self.max_epochs) and self.max_epochs > 0):
            raise SettingsError(
                f"source {self.id!r}: max_epochs {self.max_epochs} must be a finite number above 0; leave it out for "
                "no limit"
            )
        for shard in self.shards:
            if shard.sequences < 0:
                raise SettingsError(f"source {self.id!r}: shard {shard.path} cannot hold {shard.sequences} sequences")

    @property
    def sequences(self) -> int:
        """Number of sequences in all shards."""
        return sum(shard.sequences for shard in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlan:
    """One item of work: the three indices of one source in one split.

    Attributes:
        split: ``train``, ``valid`` or ``test``.
        source: id of the source.
        place: position of the source among all sources.
        start: first sequence of the split, counted over the source's concatenated shards.
        end: one past its last sequence.
        source_sequences: sequences of the whole source.
        samples: number of samples the member is built for, blend surplus included; None when `epochs` decides.
        epochs: passes the member is built for; None when `samples` decides.
        draws: most samples that the split's order takes from the member; None: all it has.
        weight: share of the member in a weighted blend, normalised once over the members left; with a schedule that of
            the first phase, which can be 0; None: unweighted.
        max_epochs: most passes allowed, or None.
        sequence_length: tokens per sample.
        seed: of the shuffles.
        add_extra_token: whether samples overlap by one token.
        required: whether a member too short for one sample is an error; otherwise it is left out.
        drop_last_partial: whether a last sample that is shorter than the others is dropped.
    """

    split: str
    source: str
    place: int
    start: int
    end: int
    source_sequences: int
    samples: int | None
    epochs: int | None
    draws: int | None
    weight: float | None
    max_epochs: float | None
    sequence_length: int
    seed: int
    add_extra_token: bool
    required: bool
    drop_last_partial: bool = True


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A source that takes no part in a split.

    Attributes:
        split: the split.
        source: id of the source.
        reason: why, as a clause for people.
        place: position of the source among all sources.
    """

    split: str
    source: str
    reason: str
    place: int


@dataclass(frozen=True, slots=True)
class SetPlan:
    """The work of an index set; iterating gives the members.

    Attributes:
        members: one per split and source to build, by split and then in the order of the sources.
        left_out: the sources that take no part in a split, with the reason.
    """

    members: tuple[MemberPlan, ...]
    left_out: tuple[LeftOut, ...]

    def __iter__(self) -> Iterator[MemberPlan]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def split(self, name: str) -> tuple[MemberPlan, ...]:
        """The members of one split, in the order of the sources."""
        return tuple(member for member in self.members if member.split == name)


def plan_members(settings: IndexSettings, sources: Sequence[MemberSource]) -> SetPlan:
    """Which members an index set has and what each is built for.

    The counts follow Megatron's builder (BlendedMegatronDatasetBuilder, megatron-core 0.16.1): a single member is
    built for the samples asked for; members of a weighted blend for ``ceil(ceil(samples * weight) * 1.005)`` each,
    with weights normalised over the members left; members without weights for one pass (or the epochs asked for). With
    a schedule, ``ceil(samples * weight)`` is summed over the phases, each with its own samples and weights; with one
    phase that is Megatron's count again.

    Args:
        settings: what is wanted.
        sources: the sources in manifest order.

    Returns:
        The members and the sources left out. A source without sequences in a split is left out there, and one of
        weight 0 (in every phase) of every weighted blend.

    Raises:
        SettingsError: ids repeat, weights are missing, all zero, or given without a number of samples; too many
            members; a source too large for int32 sequence numbers; a schedule of other sources, or one that leaves a
            phase without any.
        DataError: samples or epochs are asked of a split in which no source has a sequence.
    """
    _check_sources(sources)
    members: list[MemberPlan] = []
    left_out: list[LeftOut] = []
    for split in SPLITS:
        split_members, split_left_out = _plan_split(settings, split, sources)
        members += split_members
        left_out += split_left_out
    return SetPlan(tuple(members), tuple(left_out))


def _check_sources(sources: Sequence[MemberSource]) -> None:
    if not sources:
        raise SettingsError("an index set needs at least one source")
    if len(sources) >= MEMBER_LIMIT:
        raise SettingsError(
            f"{len(sources)} sources: a blend holds fewer than {MEMBER_LIMIT} (int16 numbers); merge some of them"
        )
    seen: set[str] = set()
    for source in sources:
        if source.id in seen:
            raise SettingsError(f"source id {source.id!r} is used twice: every source needs an id of its own")
        seen.add(source.id)
        if source.sequences > _INT32_MAX:
            raise SettingsError(
                f"source {source.id!r} holds {source.sequences} sequences: a document index numbers at most "
                f"{_INT32_MAX} (int32); split it into several sources"
            )


def _plan_split(
    settings: IndexSettings, split: str, sources: Sequence[MemberSource]
) -> tuple[list[MemberPlan], list[LeftOut]]:
    request = settings.request(split)
    weights = {source.id: source.weight for source in sources}
    phases = [] if request.samples is None else source_phases(split, weights, settings.phases(split))
    present: list[tuple[int, int, int]] = []
    left_out: list[LeftOut] = []
    for place, source in enumerate(sources):
        start, end = split_bounds(settings.splits, source.sequences)[split]
        if phases and not any(phase.weights[place] for phase in phases):
            reason = "its weight is 0" if len(phases) == 1 else "its weight is 0 in every phase"
            left_out.append(LeftOut(split, source.id, reason, place))
        elif start == end:
            reason = f"splits {settings.splits!r} give it none of the source's {source.sequences} sequences"
            left_out.append(LeftOut(split, source.id, reason, place))
        else:
            present.append((place, start, end))
    if not present and not request.one_pass:
        _refuse_empty(settings, split, left_out)
    if split == "train" and request.samples is None and len(present) > 1:
        _refuse_weights_without_samples(request, [sources[place] for place, _, _ in present])
    shared = [phase_of_members(split, phase, [place for place, _, _ in present]) for phase in phases]
    if len(present) == 1:
        shared = []
    counts = _counts(request, shared, len(present))
    members = [
        MemberPlan(
            split=split,
            source=sources[place].id,
            place=place,
            start=start,
            end=end,
            source_sequences=sources[place].sequences,
            samples=samples,
            epochs=epochs,
            draws=draws,
            weight=shared[0].weights[member] if shared else None,
            max_epochs=sources[place].max_epochs if split == "train" else None,
            sequence_length=settings.sequence_length,
            seed=settings.seed,
            add_extra_token=settings.add_extra_token,
            required=split == "train" or not request.one_pass,
            drop_last_partial=request.drop_last_partial,
        )
        for member, ((place, start, end), (samples, epochs, draws)) in enumerate(zip(present, counts, strict=True))
    ]
    return members, left_out


def _refuse_empty(settings: IndexSettings, split: str, left_out: Sequence[LeftOut]) -> None:
    request = settings.request(split)
    wanted = f"{request.samples} samples" if request.samples is not None else f"{request.epochs} epochs"
    reasons = "; ".join(f"{entry.source!r}: {entry.reason}" for entry in left_out)
    raise DataError(
        f"{split}: {wanted} asked for, but no source can give any ({reasons}): change splits "
        f"{settings.splits!r}, add data, or ask for nothing of {split}"
    )


def _refuse_weights_without_samples(request: SplitRequest, sources: Sequence[MemberSource]) -> None:
    weights = {source.id: source.weight for source in sources if source.weight is not None}
    if weights:
        sized = "one pass" if request.epochs is None else f"{request.epochs} epochs"
        raise SettingsError(
            f"train: weights {weights} together with {sized} over every source: weights share out a number of "
            "samples, so set samples or tokens, or drop the weights"
        )


def _counts(
    request: SplitRequest, phases: list[Phase], members: int
) -> list[tuple[int | None, int | None, int | None]]:
    """For each member the samples or epochs to build for, and the most samples drawn from it."""
    if request.samples is None:
        return [(None, request.epochs or 1, None)] * members
    if members == 1:
        return [(request.samples, None, request.samples)]
    if phases:
        targets = phase_targets(phases, request.samples)
        return [(math.ceil(target * (1 + SURPLUS)), None, target) for target in targets]
    return [(None, 1, None)] * members
