"""Blends: Megatron's counts and greedy rule, weights that cannot be followed, compiled code against its definition."""

import math
import platform
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.formats import kernels
from gristmill.formats.blend import (
    MEMBER_LIMIT,
    blend_size,
    check_weights,
    draw_compiled,
    draw_numpy,
    empty_blend,
    exhaustive_blend,
    greedy_blend,
    member_samples,
    normalise,
    target_samples,
    unlimited,
    unrequested_size,
)
from gristmill.formats.errors import SettingsError

weight_lists = st.one_of(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12),
    st.lists(st.integers(1, 10).map(float), min_size=1, max_size=12),
    st.integers(1, 60).map(lambda members: [1.0] * members),
)


def twice(weights: list[float]) -> NDArray[np.float64]:
    return normalise(normalise(weights).tolist())


def assert_same(ours: tuple[NDArray[Any], NDArray[Any]], expected: tuple[NDArray[Any], NDArray[Any]]) -> None:
    for one, other in zip(ours, expected, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("weights", "members", "samples"),
    [
        ([0.7, 0.3], [0, 1, 0, 0, 1, 0, 0, 1, 0, 0], [0, 0, 1, 2, 1, 3, 4, 2, 5, 6]),
        ([0.5, 0.3, 0.2], [0, 1, 2, 0, 1, 0, 2, 0, 1, 0], [0, 0, 0, 1, 1, 2, 1, 3, 2, 4]),
        ([7, 3], [0, 1, 0, 0, 1, 0, 0, 1, 0, 0], [0, 0, 1, 2, 1, 3, 4, 2, 5, 6]),
        ([1], [0] * 10, list(range(10))),
    ],
)
def test_known_blends(weights: list[float], members: list[int], samples: list[int]) -> None:
    dataset_index, dataset_sample_index = greedy_blend(twice(weights), 10)
    assert (dataset_index.tolist(), dataset_sample_index.tolist()) == (members, samples)
    assert dataset_index.dtype == np.int16
    assert dataset_sample_index.dtype == np.int64


def test_members_are_built_for_a_little_more_than_their_target() -> None:
    shares = normalise([0.3, 0.7]).tolist()
    assert target_samples(100, shares) == [30, 70]
    assert member_samples(100, shares) == [31, 71]
    assert member_samples(100, shares, surplus=0.0) == [30, 70]


@settings(deadline=None)
@given(weight_lists, st.integers(1, 10_000))
def test_the_size_is_the_sum_of_ceilings(weights: list[float], samples: int) -> None:
    shares = normalise(weights).tolist()
    assert blend_size(samples, shares) == sum(math.ceil(samples * share) for share in shares)
    assert samples <= blend_size(samples, shares) + 1  # a sum of rounded shares can fall one short
    assert blend_size(samples, shares) < samples + len(weights) + 1


@settings(max_examples=200, deadline=None)
@given(weight_lists, st.integers(0, 400), st.data())
def test_the_compiled_rule_equals_its_definition(weights: list[float], size: int, data: st.DataObject) -> None:
    """Also from the middle of a blend and where members are used up."""
    limits = np.array([data.draw(st.sampled_from([1, 5, 50, 10**9])) for _ in weights])
    size = min(size, int(limits.sum()))
    begun = data.draw(st.integers(0, size))
    shares = twice(weights)
    expected, found = empty_blend(size), empty_blend(size)
    draw_numpy(shares, limits, np.zeros(len(weights), np.int64), 0, *expected)
    counts = np.zeros(len(weights), np.int64)
    for start, end in ((0, begun), (begun, size)):
        draw_compiled(shares, limits, counts, start, found[0][start:end], found[1][start:end])
        assert counts.tolist() == np.bincount(expected[0][:end], minlength=len(weights)).tolist()
    assert_same(found, expected)


@pytest.mark.parametrize("members", [2, 7, 8, 9, 33, 200])
def test_large_blends_are_compiled_and_equal_their_definition(members: int) -> None:
    shares, expected = twice([1.0 / (member + 1) for member in range(members)]), empty_blend(25_000)
    draw_numpy(shares, unlimited(members), np.zeros(members, np.int64), 0, *expected)
    assert_same(greedy_blend(shares, 25_000), expected)
    sizes = np.full(members, 25_000 // members)
    expected = empty_blend(int(sizes.sum()))
    draw_numpy(sizes / np.float64(sizes.sum()), sizes, np.zeros(members, np.int64), 0, *expected)
    assert_same(exhaustive_blend(sizes.tolist()), expected)


@settings(deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=12))
def test_an_exhaustive_blend_takes_every_sample_once_and_in_order(sizes: list[int]) -> None:
    dataset_index, dataset_sample_index = exhaustive_blend(sizes)
    for member, size in enumerate(sizes):
        assert dataset_sample_index[dataset_index == member].tolist() == list(range(size))


@settings(deadline=None)
@given(weight_lists, st.integers(1, 400))
def test_a_longer_blend_begins_with_the_shorter(weights: list[float], size: int) -> None:
    shares = twice(weights)
    longer, _ = greedy_blend(shares, size + 100)
    assert np.array_equal(longer[:size], greedy_blend(shares, size)[0])


@settings(deadline=None)
@given(weight_lists, st.integers(1, 2000))
def test_counts_stay_less_than_one_above_the_share_and_run_without_gaps(weights: list[float], size: int) -> None:
    shares = twice(weights)
    dataset_index, dataset_sample_index = greedy_blend(shares, size)
    counts = np.bincount(dataset_index, minlength=len(weights))
    assert bool(np.all(counts <= np.ceil(shares * size + 1e-9)))
    for member in range(len(weights)):
        assert dataset_sample_index[dataset_index == member].tolist() == list(range(int(counts[member])))


@pytest.mark.parametrize(
    ("weights", "members", "message"),
    [
        ([0.5, 0.3, 0.2], 2, "3 weights for 2 members"),
        ([], 0, "0 members: a blend holds 1 to 32766"),
        ([-1.0, 2.0], 2, r"weight -1.0 of member 0 is negative; 0 leaves a member out"),
        ([1.0, math.nan], 2, "weight nan of member 1 is not a finite number"),
        ([1.0, math.inf], 2, "weight inf of member 1 is not a finite number"),
        ([0.0, 0.0], 2, "all 2 weights are 0"),
        ([1e308, 1e308], 2, "the sum of the weights is too large"),
        ([1.0] * MEMBER_LIMIT, MEMBER_LIMIT, "32767 members: a blend holds 1 to 32766"),
    ],
    ids=["count", "none", "negative", "nan", "infinite", "all zero", "overflow", "too many"],
)
def test_weights_that_name_no_proportion_are_refused(weights: list[float], members: int, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_weights(weights, members)
    if len(weights) == members:
        with pytest.raises(SettingsError, match=message):
            normalise(weights)


def test_weights_need_not_sum_to_one() -> None:
    assert normalise([0.7, 0.2]).sum() == pytest.approx(1)
    assert normalise([10, 20]).tolist() == [1 / 3, 2 / 3]
    assert normalise([1, 0]).tolist() == [1.0, 0.0]


def test_a_blend_takes_no_member_of_weight_zero() -> None:
    with pytest.raises(SettingsError, match=r"weight 0.0 of member 1: leave members of weight 0 out of the blend"):
        greedy_blend(np.array([1.0, 0.0]), 5)
    with pytest.raises(SettingsError, match="member 1 has 0 samples: leave it out of the blend"):
        exhaustive_blend([5, 0])
    with pytest.raises(SettingsError, match="32767 members"):
        exhaustive_blend([1] * MEMBER_LIMIT)


def test_the_largest_blend_fits_its_dtype() -> None:
    members = MEMBER_LIMIT - 1  # more samples than NumPy draws
    dataset_index, _ = greedy_blend(twice([1.0] * members), members)
    assert np.array_equal(np.sort(dataset_index), np.arange(members))


def test_an_unsized_blend_repeats_no_member() -> None:
    weights = twice([0.9, 0.1])
    size = unrequested_size([100, 100], weights)
    assert size == 111
    assert bool(np.all(np.bincount(greedy_blend(weights, size)[0]) <= 100))


def test_lags_that_are_all_negative_are_compared_as_numbers() -> None:
    """Weights that sum to less than one: rounding does this for real weights, by a last digit."""
    weights, expected, found = np.array([0.3, 0.2, 0.1]), empty_blend(500), empty_blend(500)
    draw_numpy(weights, unlimited(3), np.zeros(3, np.int64), 0, *expected)
    draw_compiled(weights, unlimited(3), np.zeros(3, np.int64), 0, *found)
    assert_same(found, expected)


def test_products_and_differences_are_rounded_one_by_one() -> None:
    """Fast-math is off, and the machine code for this processor holds no fused multiply-add."""
    dispatcher: Any = kernels.blend_rows
    assert not dispatcher.targetoptions.get("fastmath")
    compiled = numba.njit(dispatcher.py_func, nogil=True)
    blend = empty_blend(4)
    compiled(np.ones(8) / 8, unlimited(8), np.zeros(8, np.int64), 0, *blend)
    assert blend[0].tolist() == [0, 1, 2, 3]
    code = "".join(compiled.inspect_asm().values())
    fused = {"x86_64": "vfmadd", "aarch64": "fmadd"}.get(platform.machine(), "fmadd")
    assert "mul" in code
    assert fused not in code
