"""Weight schedules: weights that change at named samples of the training split.

A schedule is a list of phases. At the first sample of a phase Megatron's greedy rule begins anew, on the number of
samples since then and with counts since then; only each member's own sample counter goes on. Going on with the counts
of before would make the rule catch up: after 0.9 to 0.1 turns into 0.1 to 0.9 at sample 1,000, the next 500 samples
would all be of one member. Beginning anew trades that for members whose share over the whole run follows from the
phases and from no single weight.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.blend import check_weights, draw, normalise, unlimited
from gristmill.formats.errors import SettingsError

__all__ = [
    "count_members",
    "draw_phases",
    "drawn_before",
    "parse_phases",
    "Phase",
    "phase_of_members",
    "phase_spans",
    "phase_targets",
    "phases_value",
    "shares_above_zero",
    "source_phases",
]

_CHUNK_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Phase:
    """Weights that hold from some sample on, up to the next phase.

    Attributes:
        from_sample: first sample of the phase.
        weights: in settings one per source, in the order of the sources and in any unit; in a blend one per member,
            normalised. 0 draws nothing during the phase.
    """

    from_sample: int
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.from_sample < 0:
            raise SettingsError(f"a phase of weights begins at sample {self.from_sample}; samples count from 0")
        try:
            check_weights(self.weights, len(self.weights))
        except SettingsError as error:
            raise SettingsError(f"weights from sample {self.from_sample} on: {error}") from error


def phases_value(phases: Iterable[Phase]) -> list[dict[str, Any]]:
    """Phases as JSON values, weights as floats."""
    return [
        {"from_sample": phase.from_sample, "weights": [float(weight) for weight in phase.weights]} for phase in phases
    ]


def parse_phases(value: Iterable[Mapping[str, Any]]) -> tuple[Phase, ...]:
    """Phases from their JSON form.

    Raises:
        KeyError, TypeError, ValueError, SettingsError: the value holds something else.
    """
    return tuple(
        Phase(int(phase["from_sample"]), tuple(float(weight) for weight in phase["weights"])) for phase in value
    )


def shares_above_zero(weights: Sequence[float]) -> list[float]:
    """Weights normalised over those above 0, which are what takes part; 0 stays 0.

    A member of weight 0 changes no other share, not even in the last bit.
    """
    found = iter(normalise([weight for weight in weights if weight > 0]).tolist())
    return [next(found) if weight > 0 else 0.0 for weight in weights]


def source_phases(split: str, weights: Mapping[str, float | None], later: Sequence[Phase]) -> list[Phase]:
    """All phases of a split of a known number of samples, the sources' own weights first; empty without weights.

    Args:
        split: the split.
        weights: of the sources, by id.
        later: the phases after the first, by source.

    Raises:
        SettingsError: some sources have a weight and others none, all are 0, a phase has another number of weights, or
            there is a later phase and no source has a weight.
    """
    without = [source for source, weight in weights.items() if weight is None]
    own = [weight for weight in weights.values() if weight is not None]
    if not own:
        if later:
            raise SettingsError(f"{split}: a schedule changes weights, but the sources have none: give each a weight")
        return []
    if without:
        raise SettingsError(
            f"{split}: no weight for {', '.join(map(repr, without))} while other sources have one: give every source "
            "a weight or none"
        )
    if not any(own):
        raise SettingsError(f"{split}: every source has weight 0, so nothing would be drawn: give one a weight above 0")
    for phase in later:
        if len(phase.weights) != len(own):
            raise SettingsError(
                f"{split}: {len(phase.weights)} weights from sample {phase.from_sample} on for {len(own)} sources: "
                "give each source exactly one"
            )
    return [Phase(0, tuple(own)), *later]


def phase_of_members(split: str, phase: Phase, places: Sequence[int]) -> Phase:
    """A phase by member instead of by source: the shares of those that take part, normalised once.

    Args:
        split: the split.
        phase: the phase, by source.
        places: [members] the source of each member.

    Raises:
        SettingsError: no member has a weight above 0.
    """
    weights = [phase.weights[place] for place in places]
    if not any(weights):
        raise SettingsError(
            f"{split}: from sample {phase.from_sample} on, only sources without sequences in this split have a weight "
            "above 0, so nothing could be drawn: give another source a weight, or change splits"
        )
    return Phase(phase.from_sample, tuple(shares_above_zero(weights)))


def phase_spans(phases: Sequence[Phase], samples: int) -> Iterator[tuple[Phase, int]]:
    """Each phase and how many of the first `samples` samples are its own.

    Args:
        phases: by `from_sample`, the first from 0 on.
        samples: number of samples.
    """
    starts = [phase.from_sample for phase in phases]
    for phase, (start, stop) in zip(phases, itertools.pairwise([*starts, max(samples, starts[-1])]), strict=True):
        yield phase, max(0, min(stop, samples) - start)


def phase_targets(phases: Sequence[Phase], samples: int) -> list[int]:
    """Samples that the phases take from each member at most: the sum of ``ceil(samples of the phase * share)``.

    With one phase this is Megatron's target of a weighted member.

    Args:
        phases: by `from_sample`, the first from 0 on; weights by member, normalised once.
        samples: number of samples of the split.
    """
    targets = [0] * len(phases[0].weights)
    for phase, span in phase_spans(phases, samples):
        for member, share in enumerate(phase.weights):
            targets[member] += math.ceil(span * share)
    return targets


def count_members(dataset_index: NDArray[np.int16], members: int) -> NDArray[np.int64]:
    """How many of some rows of a blend are of each member: [members] int64."""
    counts = np.zeros(members, dtype=np.int64)
    for start in range(0, len(dataset_index), _CHUNK_ROWS):
        counts += np.bincount(dataset_index[start : start + _CHUNK_ROWS], minlength=members)
    return counts


def drawn_before(
    dataset_index: NDArray[np.int16], dataset_sample_index: NDArray[np.int64], row: int, members: int
) -> NDArray[np.int64]:
    """Samples drawn from each member before a row of a blend: [members] int64.

    Looked up backwards from the row, so that it costs as much as the rarest member is rare, not as the blend is long.
    """
    counts = np.zeros(members, dtype=np.int64)
    found = np.zeros(members, dtype=bool)
    stop, width = row, 1 << 12
    while stop > 0 and not found.all():
        start = max(0, stop - width)
        drawn, behind = np.unique(dataset_index[start:stop][::-1], return_index=True)
        new = ~found[drawn]
        counts[drawn[new]] = dataset_sample_index[start:stop][::-1][behind[new]] + 1
        found[drawn] = True
        stop, width = start, min(4 * width, _CHUNK_ROWS)
    return counts


def draw_phases(
    phases: Sequence[Phase],
    first: int,
    counts: NDArray[np.int64],
    since: NDArray[np.int64],
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
) -> None:
    """Draws the samples of a blend from any sample on.

    Args:
        phases: by `from_sample`, the first from 0 on; weights by member, normalised twice over those above 0.
        first: number of the first sample to draw.
        counts: [members] int64 samples drawn from each member before `first`; updated.
        since: [members] int64 those among them that were drawn in the phase that holds sample ``first - 1``; updated.
        dataset_index: [size] int16, filled with the member of each sample.
        dataset_sample_index: [size] int64, filled with the sample's number inside its member.
    """
    end = first + len(dataset_index)
    for number, phase in enumerate(phases):
        stop = phases[number + 1].from_sample if number + 1 < len(phases) else end
        start, stop = max(first, phase.from_sample), min(stop, end)
        if start >= stop:
            continue
        if start == phase.from_sample:
            since[:] = 0
        rows = slice(start - first, stop - first)
        _draw_phase(phase, start, counts, since, dataset_index[rows], dataset_sample_index[rows])


def _draw_phase(
    phase: Phase,
    start: int,
    counts: NDArray[np.int64],
    since: NDArray[np.int64],
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
) -> None:
    """Draws samples of one phase, whose rule knows only the members that take part and counts from the phase on."""
    members = np.flatnonzero(np.array(phase.weights) > 0)
    weights = np.array(phase.weights, dtype=np.float64)[members]
    drawn = since[members]
    before = counts[members] - drawn  # what the phase did not draw
    draw(weights, unlimited(len(members)), drawn, start - phase.from_sample, dataset_index, dataset_sample_index)
    if len(members) < len(phase.weights) or bool(before.any()):
        for row in range(0, len(dataset_index), _CHUNK_ROWS):
            chosen = dataset_index[row : row + _CHUNK_ROWS]
            dataset_sample_index[row : row + _CHUNK_ROWS] += before[chosen]
            chosen[:] = members[chosen]
    counts[members] = before + drawn
    since[members] = drawn
