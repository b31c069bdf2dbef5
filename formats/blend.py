"""Blends: which member dataset gives each sample, and which of its samples.

The rule is Megatron's (BlendedDataset, megatron-core 0.16.1): for sample s with ``x = max(s, 1)`` draw the member with
the largest ``weight * x - drawn``, the lowest number winning ties, and give its next sample. Product and difference
are two float64 roundings; a fused multiply-add would move ties, so the compiled loops are built without it. The greedy
rule trades a shuffle of its own for counts that are never a whole sample above a member's share, at any point, and
seldom one below; members are already shuffled inside.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.errors import SettingsError

__all__ = [
    "Blend",
    "blend_size",
    "check_weights",
    "draw",
    "draw_compiled",
    "draw_numpy",
    "empty_blend",
    "exhaustive_blend",
    "greedy_blend",
    "MEMBER_LIMIT",
    "member_samples",
    "normalise",
    "SURPLUS",
    "target_samples",
    "unlimited",
    "unrequested_size",
]

MEMBER_LIMIT = 32_767
"""A blend has fewer members than this: its dataset index is int16, and Megatron refuses more."""

SURPLUS = 0.005
"""Share of samples that a weighted member is built for beyond its target (Megatron's mid_level_dataset_surplus)."""

_SMALL = 20_000  # samples: NumPy draws them before Numba is loaded

Blend = tuple[NDArray[np.int16], NDArray[np.int64]]
"""dataset_index [samples] int16 and dataset_sample_index [samples] int64: a sample's member, and its number there."""


def check_weights(weights: Sequence[float], members: int) -> None:
    """Refuses weights that name no proportion.

    Args:
        weights: one per member, in any unit; 0 is allowed and means "never".
        members: number of members.

    Raises:
        SettingsError: another number of weights than of members, a negative or non-finite weight, only zeros, or as
            many members as MEMBER_LIMIT.
    """
    if len(weights) != members:
        raise SettingsError(f"{len(weights)} weights for {members} members: give each member exactly one")
    if not 1 <= members < MEMBER_LIMIT:
        raise SettingsError(f"{members} members: a blend holds 1 to {MEMBER_LIMIT - 1} (int16 numbers)")
    for place, weight in enumerate(weights):
        if not math.isfinite(weight):
            raise SettingsError(f"weight {weight} of member {place} is not a finite number")
        if weight < 0:
            raise SettingsError(f"weight {weight} of member {place} is negative; 0 leaves a member out")
    with np.errstate(over="ignore"):
        total = float(np.sum(np.array(weights, dtype=np.float64)))
    if not math.isfinite(total):
        raise SettingsError("the sum of the weights is too large for a number: divide them by a common factor")
    if total <= 0:
        raise SettingsError(f"all {members} weights are 0, so nothing would be drawn: give one a value above 0")


def normalise(weights: Sequence[float]) -> NDArray[np.float64]:
    """Weights divided by their sum, in float64 with NumPy's pairwise sum.

    Megatron does this once for the sizes of the members and, on the result, once more for the blend itself, which can
    move the last bit; `greedy_blend` therefore expects weights normalised twice.

    Returns:
        [members] float64, summing to 1 within rounding.

    Raises:
        SettingsError: see `check_weights`.
    """
    check_weights([float(weight) for weight in weights], len(weights))
    values = np.array(weights, dtype=np.float64)
    return values / np.sum(values)


def target_samples(samples: int, shares: Sequence[float]) -> list[int]:
    """Samples that a weighted blend of `samples` takes from each member at most: ``ceil(samples * share)``.

    Args:
        samples: number of samples asked for.
        shares: [members] weights normalised once.
    """
    return [math.ceil(samples * float(share)) for share in shares]


def member_samples(samples: int, shares: Sequence[float], surplus: float = SURPLUS) -> list[int]:
    """Samples that each member of a weighted blend is built for: ``ceil(target * (1 + surplus))``.

    Args:
        samples: number of samples asked for.
        shares: [members] weights normalised once.
        surplus: share built beyond the target.
    """
    return [math.ceil(target * (1 + surplus)) for target in target_samples(samples, shares)]


def blend_size(samples: int, shares: Sequence[float]) -> int:
    """Length of a weighted blend's arrays: the sum of the members' targets, up to members - 1 more than asked for."""
    return sum(target_samples(samples, shares))


def unrequested_size(lengths: Sequence[int], weights: Sequence[float] | NDArray[np.float64]) -> int:
    """Samples of a weighted blend that nobody sized: as many as no member repeats, ``floor(min(length / share))``.

    Args:
        lengths: [members] samples of each member.
        weights: [members] weights normalised twice, all above 0.
    """
    return math.floor(min(length / float(weight) for length, weight in zip(lengths, weights, strict=True)))


def _positive(weights: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    values = np.ascontiguousarray(weights, dtype=np.float64)
    check_weights(values.tolist(), len(values))
    if not bool(np.all(values > 0)):
        place = int(np.argmin(values))
        raise SettingsError(f"weight {values[place]} of member {place}: leave members of weight 0 out of the blend")
    return values


def greedy_blend(weights: NDArray[np.float64], size: int) -> Blend:
    """The first `size` samples of a blend. A longer blend of the same weights begins with a shorter one.

    Args:
        weights: [members] float64, all above 0, normalised twice (`normalise` of `normalise`).
        size: number of samples.

    Returns:
        dataset_index: [size] int16, the member of each sample.
        dataset_sample_index: [size] int64, the sample's number inside its member.

    Raises:
        SettingsError: a weight is not above 0, or there are too many members.
    """
    values = _positive(weights)
    blend = empty_blend(size)
    draw(values, unlimited(len(values)), np.zeros(len(values), dtype=np.int64), 0, *blend)
    return blend


def exhaustive_blend(sizes: Sequence[int]) -> Blend:
    """Every sample of every member once, in proportion to the members' sizes.

    Args:
        sizes: [members] samples of each member, at least 1.

    Returns:
        dataset_index: [sum of sizes] int16, the member of each sample.
        dataset_sample_index: [sum of sizes] int64, the sample's number inside its member.

    Raises:
        SettingsError: a member has no sample, or there are too many members.
    """
    limits = np.array(sizes, dtype=np.int64)
    if not 1 <= len(limits) < MEMBER_LIMIT:
        raise SettingsError(f"{len(limits)} members: a blend holds 1 to {MEMBER_LIMIT - 1} (int16 numbers)")
    if int(limits.min()) < 1:
        place = int(np.argmin(limits))
        raise SettingsError(f"member {place} has {limits[place]} samples: leave it out of the blend")
    blend = empty_blend(int(limits.sum()))
    draw(limits / np.float64(limits.sum()), limits, np.zeros(len(limits), dtype=np.int64), 0, *blend)
    return blend


def empty_blend(size: int) -> Blend:
    """Room for the two indices of `size` samples."""
    return np.empty(size, dtype=np.int16), np.empty(size, dtype=np.int64)


def unlimited(members: int) -> NDArray[np.int64]:
    """Limits for `draw` that no member reaches."""
    return np.full(members, 2**53)  # counts are exact as float64 below


def draw(
    weights: NDArray[np.float64],
    limits: NDArray[np.int64],
    counts: NDArray[np.int64],
    first: int,
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
) -> None:
    """The rule itself, from any point on: `draw_compiled`, or `draw_numpy` where that is done before Numba is loaded.

    Args:
        weights: [members] float64 shares, all above 0.
        limits: [members] int64 samples that each member has; together at least as many as are drawn.
        counts: [members] int64 samples drawn from each member before `first`; updated.
        first: number of samples drawn before.
        dataset_index: [size] int16, filled with the member of each sample.
        dataset_sample_index: [size] int64, filled with the sample's number inside its member.
    """
    rule = draw_numpy if len(dataset_index) <= _SMALL else draw_compiled
    rule(weights, limits, counts, first, dataset_index, dataset_sample_index)


def draw_numpy(
    weights: NDArray[np.float64],
    limits: NDArray[np.int64],
    counts: NDArray[np.int64],
    first: int,
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
) -> None:
    """`draw` as its definition in NumPy: a few vector operations per sample."""
    for row in range(len(dataset_index)):
        lags = weights * np.float64(max(first + row, 1)) - counts
        lags[counts >= limits] = -np.inf
        best = int(np.argmax(lags))
        dataset_index[row] = best
        dataset_sample_index[row] = counts[best]
        counts[best] += 1


def draw_compiled(
    weights: NDArray[np.float64],
    limits: NDArray[np.int64],
    counts: NDArray[np.int64],
    first: int,
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
) -> None:
    """`draw` in compiled code, for any size."""
    from gristmill.formats import kernels

    kernels.blend_rows(weights, limits, counts, first, dataset_index, dataset_sample_index)
