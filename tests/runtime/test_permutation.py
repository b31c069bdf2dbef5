"""The computed shuffle: a bijection for every size, epoch and key, the same in NumPy and compiled, and well mixed."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.runtime.permutation import LARGEST, key_of, shuffle, shuffle_numpy


def epoch(size: int, key: int, number: int = 0) -> NDArray[np.int64]:
    """All numbers of an epoch in their order."""
    samples = np.arange(size, dtype=np.int64) + number * size
    return shuffle(samples, np.zeros(size, np.int64), np.array([size]), np.array([key], np.uint64))


@settings(deadline=None)  # code is compiled within
@given(size=st.integers(1, 5000), key=st.integers(0, 2**64 - 1), number=st.integers(0, 10**6))
def test_every_epoch_has_each_number_once(size: int, key: int, number: int) -> None:
    assert np.array_equal(np.sort(epoch(size, key, number)), np.arange(size))


@pytest.mark.parametrize("size", [1, 2, 3, 1023, 1024, 1025, 4095, 4096, 4097, 65_537])
def test_sizes_about_powers_of_two(size: int) -> None:
    assert np.array_equal(np.sort(epoch(size, 5)), np.arange(size))


@settings(deadline=None)  # code is compiled within
@given(st.data())
def test_compiled_code_gives_what_the_definition_gives(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 4))
    sizes = np.array(data.draw(st.lists(st.integers(1, LARGEST), min_size=groups, max_size=groups)), np.int64)
    keys = np.array(data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=groups, max_size=groups)), np.uint64)
    rows = data.draw(st.lists(st.tuples(st.integers(0, groups - 1), st.integers(0, 2**63 - 1)), max_size=40))
    group, samples = np.array(rows, np.int64).reshape(-1, 2).T
    found = shuffle(samples, group, sizes, keys)
    assert np.array_equal(found, shuffle_numpy(samples, group, sizes, keys))
    assert ((found >= 0) & (found < sizes[group])).all()


def test_epochs_keys_and_sizes_give_orders_of_their_own() -> None:
    orders = [epoch(500, key, number).tobytes() for key in (0, 1, 2**63) for number in (0, 1, 2)]
    assert len(set(orders)) == len(orders)
    assert not np.array_equal(epoch(500, 1)[:400], epoch(400, 1))


def test_the_order_is_pinned() -> None:
    """Other numbers here are another order of every window stream: `ORDER_VERSION` must then rise."""
    assert epoch(12, 1234).tolist() == [1, 2, 5, 9, 3, 6, 10, 8, 0, 7, 11, 4]
    found = shuffle(np.arange(3), np.zeros(3, np.int64), np.array([10**12]), np.array([7], np.uint64))
    assert found.tolist() == [258595930147, 757347561620, 374249039091]


@pytest.mark.parametrize("size", [3, 4, 5])
def test_small_sizes_have_every_order_equally_often(size: int) -> None:
    count = 24_000
    samples = np.arange(count * size, dtype=np.int64)
    orders = shuffle(samples, np.zeros_like(samples), np.array([size]), np.array([99], np.uint64)).reshape(count, size)
    counts = Counter(map(tuple, orders.tolist()))
    possible = list(itertools.permutations(range(size)))
    expected = count / len(possible)
    square = sum((counts[one] - expected) ** 2 / expected for one in possible)
    freedom = len(possible) - 1
    assert abs(square - freedom) < 5 * np.sqrt(2 * freedom)  # fixed numbers: this passes always or never


@pytest.mark.parametrize("size", [31, 257])
def test_places_and_neighbours_are_mixed(size: int) -> None:
    count = 4000
    samples = np.arange(count * size, dtype=np.int64)
    orders = shuffle(samples, np.zeros_like(samples), np.array([size]), np.array([5], np.uint64)).reshape(count, size)
    first = np.bincount(orders[:, 0], minlength=size)
    steps = np.bincount(((orders[:, 1:] - orders[:, :-1]) % size).ravel(), minlength=size)[1:]
    for counts in (first, steps):
        expected = counts.sum() / len(counts)
        square, freedom = ((counts - expected) ** 2 / expected).sum(), len(counts) - 1
        assert abs(square - freedom) < 5 * np.sqrt(2 * freedom)


def test_keys_follow_from_what_they_stand_for() -> None:
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1}) != key_of({"a": 1, "b": 3})
    assert 0 <= key_of([]) < 2**64
