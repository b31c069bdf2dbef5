"""What a window stream is made of: the sources cut into splits, their blend, and the fingerprint of it all.

Splits are cut by Megatron's rule, whole sequences of every source in file order, before anything is cut into windows.
So train, valid and test share no document and no token, whatever is shuffled, and are the same documents as in an index
set of the same proportions. A plan needs the counts of each shard, and at most two look-ups in the index of a source.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gristmill.formats.blend import unrequested_size
from gristmill.formats.errors import CorpusError, DataError, SettingsError
from gristmill.formats.fingerprint import ORDER_VERSION, digest, short
from gristmill.formats.index_order import OrderChange, source_value
from gristmill.formats.index_plan import LeftOut, MemberSource
from gristmill.formats.periodic_blend import PERIOD, PeriodicBlend
from gristmill.formats.schedule import Phase, shares_above_zero, source_phases
from gristmill.formats.split import SPLITS, canonical_split, split_bounds
from gristmill.runtime.permutation import LARGEST, key_of
from gristmill.runtime.shards import Shard
from gristmill.runtime.window_index import WindowIndex, WindowMember, count_windows

__all__ = ["plan_windows", "WindowPlan", "WindowRequest", "WindowSource"]

_MOST_SOURCES = 24  # told one by one in the facts


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRequest:
    """What is wanted of a window stream.

    Attributes:
        sequence_length: L, at least 1; a row holds one token more.
        seed: of every shuffle, at least 0.
        split: ``train``, ``valid`` or ``test``.
        splits: proportions of the three.
        samples: number of rows; None takes `epochs`.
        epochs: passes over all windows, each once in each pass, whatever the weights; None is one, or with weights as
            many rows as no source repeats.
        weighted: whether the weights of the sources count.
        shuffle: whether each pass is shuffled; without, windows come in the order of the data.
        drop_last_partial: whether the tokens behind the last whole window of a source are left out.
        schedule: later phases of the weights, by `from_sample`, each with one weight for each source.
    """

    sequence_length: int
    seed: int
    split: str
    splits: str
    samples: int | None = None
    epochs: int | None = None
    weighted: bool = True
    shuffle: bool = True
    drop_last_partial: bool = True
    schedule: tuple[Phase, ...] = ()

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise SettingsError(f"split {self.split!r}: the splits are {', '.join(SPLITS)}")
        for name, value, least in (
            ("sequence_length", self.sequence_length, 1),
            ("seed", self.seed, 0),
            ("samples", self.samples, 1),
            ("epochs", self.epochs, 1),
        ):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise SettingsError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if self.samples is not None and self.epochs is not None:
            raise SettingsError(
                f"a window stream is sized by samples ({self.samples}) or by epochs ({self.epochs}), not by both: "
                "drop one"
            )
        for before, after in itertools.pairwise([Phase(0, (1.0,)), *self.schedule]):
            if self.samples is None or not before.from_sample < after.from_sample < self.samples:
                raise SettingsError(
                    f"schedule: weights from sample {after.from_sample} on: the rule is from_sample above "
                    f"{before.from_sample} and below samples, which is {self.samples}, in ascending order"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSource:
    """A source as it is: what identifies it, and where its shards lie.

    Attributes:
        source: the source as keys see it, with its weight.
        shards: its shards, in the same order.
    """

    source: MemberSource
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """A window stream, ready to be read.

    Attributes:
        index: what decides the rows.
        fingerprint: digest of it.
        history: the changes that led to it: phases of weights.
        facts: what decides the rows, as a few JSON values for messages.
        left_out: the sources that take no part, with the reason.
    """

    index: WindowIndex
    fingerprint: str
    history: tuple[OrderChange, ...]
    facts: dict[str, Any]
    left_out: tuple[LeftOut, ...]


def plan_windows(sources: Sequence[WindowSource], request: WindowRequest) -> WindowPlan:
    """Plans a window stream.

    Raises:
        CorpusError: the split has no window.
        DataError: a source would be gone through more often than its `max_epochs` allows.
        SettingsError: weights cannot be followed.
        GristmillError: an index cannot be read.
    """
    weights = {one.source.id: one.source.weight for one in sources}
    weighted = request.weighted and request.epochs is None
    phases = source_phases(request.split, weights, request.schedule) if weighted else []
    found: list[tuple[int, WindowMember]] = []
    left_out: list[LeftOut] = []
    for place, one in enumerate(sources):
        member, reason = _member(one, request)
        if phases and not any(phase.weights[place] for phase in phases):
            reason = "its weight is 0" if len(phases) == 1 else "its weight is 0 in every phase"
        if reason is None:
            found.append((place, member))
        else:
            left_out.append(LeftOut(request.split, one.source.id, reason, place))
    if not found:
        reasons = "; ".join(f"{entry.source!r}: {entry.reason}" for entry in left_out)
        raise CorpusError(f"{request.split}: no window of {request.sequence_length} tokens ({reasons})")
    members = tuple(member for _, member in found)
    chosen = [sources[place].source for place, _ in found]
    phases = _phases_of_members(request, phases, [place for place, _ in found])
    windows = [_windows(member, request) for member in members]
    rows, blend = request.samples or sum(windows) * (request.epochs or 1), None
    if phases:
        rows = request.samples or unrequested_size(windows, phases[0].weights)
        blend = PeriodicBlend(phases, rows)
        _check_epochs(request, chosen, windows, blend)
    elif request.split == "train":
        _check_passes(request, chosen, windows, rows)
    if max(rows, sum(windows)) > LARGEST:
        raise SettingsError(f"{rows} rows of {sum(windows)} windows are more than {LARGEST}")
    index = WindowIndex(
        members=members,
        rows=rows,
        sequence_length=request.sequence_length,
        keys=_keys(request, chosen, blended=blend is not None),
        blend=blend,
        partial=not request.drop_last_partial,
    )
    fingerprint, history = _fingerprint(request, chosen, phases)
    return WindowPlan(
        index=index,
        fingerprint=fingerprint,
        history=history,
        facts=_facts(request, chosen, phases, history),
        left_out=tuple(left_out),
    )


def _member(one: WindowSource, request: WindowRequest) -> tuple[WindowMember, str | None]:
    """A source's part of the split, and why it takes no part."""
    count = one.source.sequences
    first, last = split_bounds(request.splits, count)[request.split]
    start = _first_token(one.shards, first)
    member = WindowMember(
        source=one.source.id, shards=one.shards, start=start, tokens=_first_token(one.shards, last) - start
    )
    if first == last:
        return member, f"splits {request.splits!r} give it none of the source's {count} sequences"
    if not _windows(member, request):
        return member, f"its {member.tokens} tokens are too few for a window of {request.sequence_length} and a target"
    return member, None


def _windows(member: WindowMember, request: WindowRequest) -> int:
    return count_windows(member.tokens, request.sequence_length, partial=not request.drop_last_partial)


def _first_token(shards: Sequence[Shard], sequence: int) -> int:
    """Tokens before a sequence of a source; opens the shard that it lies in, unless it is its first."""
    tokens = 0
    for shard in shards:
        if sequence < shard.sequences and sequence > 0:
            dataset = shard.open("pread")
            try:
                return tokens + int(dataset.pointers[sequence]) // dataset.dtype.itemsize
            finally:
                dataset.close()
        if sequence <= 0:
            break
        tokens += shard.tokens
        sequence -= shard.sequences
    return tokens


def _phases_of_members(request: WindowRequest, phases: Sequence[Phase], places: Sequence[int]) -> list[Phase]:
    """Phases by member, weights normalised twice over those above 0 as Megatron does; none for a single member."""
    if len(places) < 2:
        return []
    found = []
    for phase in phases:
        weights = [phase.weights[place] for place in places]
        if not any(weights):
            raise SettingsError(
                f"{request.split}: from sample {phase.from_sample} on, only sources without windows have a weight "
                "above 0, so nothing could be drawn: give another source a weight"
            )
        found.append(replace(phase, weights=tuple(shares_above_zero(shares_above_zero(weights)))))
    return found


def _check_epochs(
    request: WindowRequest, sources: Sequence[MemberSource], windows: Sequence[int], blend: PeriodicBlend
) -> None:
    for source, count, drawn in zip(sources, windows, blend.counts().tolist(), strict=True):
        if request.split == "train" and source.max_epochs is not None and drawn > source.max_epochs * count:
            most = math.floor(source.max_epochs * count)
            raise DataError(
                f"{source.id}: {drawn} samples are drawn from it, but {count} windows, max_epochs = "
                f"{source.max_epochs:g}, allow {most}: lower samples or its weight, or raise max_epochs"
            )


def _check_passes(request: WindowRequest, sources: Sequence[MemberSource], windows: Sequence[int], rows: int) -> None:
    passes = rows / sum(windows)
    for source in sources:
        if source.max_epochs is not None and passes > source.max_epochs:
            raise DataError(
                f"{source.id}: {rows} samples of {sum(windows)} windows go through it {passes:.4g} times, but its "
                f"max_epochs is {source.max_epochs:g}: lower {'samples' if request.samples else 'epochs'}, or raise it"
            )


def _keys(request: WindowRequest, sources: Sequence[MemberSource], *, blended: bool) -> tuple[int, ...]:
    """What the shuffles follow from: seed, split and content, so a source keeps its order whatever is beside it."""
    if not request.shuffle:
        return ()
    groups = [[source] for source in sources] if blended else [list(sources)]
    return tuple(
        key_of({"seed": request.seed, "split": request.split, "shards": [source_value(one)["shards"] for one in group]})
        for group in groups
    )


def _fingerprint(
    request: WindowRequest, sources: Sequence[MemberSource], phases: Sequence[Phase]
) -> tuple[str, tuple[OrderChange, ...]]:
    """Digest of what decides the rows, their number left out; with the phases of weights as its history."""

    def drawn(phase: Phase) -> list[dict[str, Any]]:
        shares = zip(sources, phase.weights, strict=True)
        return [{"shards": source_value(one)["shards"], "weight": share} for one, share in shares if share > 0]

    parent = digest(
        {
            "kind": "window",
            "order_version": ORDER_VERSION,
            "sequence_length": request.sequence_length,
            "seed": request.seed if request.shuffle else None,
            "split": request.split,
            "splits": canonical_split(request.splits),
            "drop_last_partial": request.drop_last_partial,
            "members": drawn(phases[0]) if phases else [source_value(one)["shards"] for one in sources],
            "period": PERIOD if phases else None,
        }
    )
    history: list[OrderChange] = []
    for phase in phases[1:]:
        history.append(OrderChange(phase.from_sample, {"weights": drawn(phase)}, parent))
        parent = history[-1].fingerprint
    return parent, tuple(history)


def _facts(
    request: WindowRequest, sources: Sequence[MemberSource], phases: Sequence[Phase], history: Sequence[OrderChange]
) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for place, source in enumerate(sources):
        shards = source_value(source)["shards"]
        told[source.id] = {"shards": len(shards), "content": short(digest(shards))}
        if phases:
            told[source.id]["weight"] = float(f"{phases[0].weights[place]:.6g}")
    facts = {
        "kind": "window",
        "order_version": ORDER_VERSION,
        "sequence_length": request.sequence_length,
        "seed": request.seed if request.shuffle else None,
        "split": request.split,
        "splits": canonical_split(request.splits),
        "drop_last_partial": request.drop_last_partial,
        "sources": told if len(told) <= _MOST_SOURCES else {"count": len(told), "all": short(digest(told))},
    }
    if history:
        facts["changed_from_row"] = [change.from_sample for change in history]
    return facts
