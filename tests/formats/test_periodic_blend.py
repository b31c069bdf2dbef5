"""The blend of any length: Megatron's within a period, the same shares beyond, and any row at once."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats import periodic_blend
from gristmill.formats.blend import greedy_blend, normalise
from gristmill.formats.periodic_blend import PERIOD, PeriodicBlend
from gristmill.formats.schedule import Phase, draw_phases, shares_above_zero

WEIGHTS = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=6)


def phase(start: int, weights: list[float]) -> Phase:
    return Phase(start, tuple(shares_above_zero(shares_above_zero(weights))))


@settings(deadline=None)
@given(weights=WEIGHTS, samples=st.integers(1, 500))
def test_a_short_blend_is_megatrons(weights: list[float], samples: int) -> None:
    shares = normalise(normalise(weights).tolist())
    members, places = PeriodicBlend([Phase(0, tuple(shares.tolist()))], samples).locate(np.arange(samples))
    dataset_index, dataset_sample_index = greedy_blend(shares, samples)
    assert np.array_equal(members, dataset_index)
    assert np.array_equal(places, dataset_sample_index)


@settings(deadline=None)
@given(st.data())
def test_phases_are_those_of_a_stored_blend(data: st.DataObject) -> None:
    members = data.draw(st.integers(1, 4))
    starts = sorted(data.draw(st.sets(st.integers(1, 150), max_size=3)))
    one = st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=members, max_size=members).filter(any)
    phases = [phase(start, data.draw(one)) for start in (0, *starts)]
    found = PeriodicBlend(phases, 200)
    stored = np.empty(200, np.int16), np.empty(200, np.int64)
    counts = np.zeros(members, np.int64)
    draw_phases(phases, 0, counts, np.zeros_like(counts), *stored)
    rows = np.array(data.draw(st.permutations(range(200))))
    drawn, places = found.locate(rows)
    assert np.array_equal(drawn, stored[0][rows])
    assert np.array_equal(places, stored[1][rows])
    assert np.array_equal(found.counts(), counts)


@pytest.fixture
def short_period(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(periodic_blend, "PERIOD", 32)
    return 32


def test_beyond_a_period_each_sample_of_a_member_still_comes_once_and_in_order(short_period: int) -> None:
    phases = [phase(0, [0.7, 0.2, 0.1]), phase(300, [0.0, 0.5, 0.5]), phase(333, [1.0, 1.0, 1.0])]
    blend = PeriodicBlend(phases, 1000)
    members, samples = blend.locate(np.arange(1000))
    for member, count in enumerate(blend.counts().tolist()):
        assert samples[members == member].tolist() == list(range(count))
    assert blend.counts().sum() == 1000
    shares = np.bincount(members[:288], minlength=3) / 288
    assert np.abs(shares - phases[0].weights).max() < 1 / short_period
    assert not (members[300:333] == 0).any()


def test_a_longer_blend_begins_with_a_shorter_one(short_period: int) -> None:
    phases = [phase(0, [0.7, 0.3]), phase(40, [0.5, 0.5])]
    long = PeriodicBlend(phases, 500).locate(np.arange(500))
    for samples in (41, 71, 72, 73, 200):
        for found, expected in zip(PeriodicBlend(phases, samples).locate(np.arange(samples)), long, strict=True):
            assert np.array_equal(found, expected[:samples])


def test_memory_does_not_grow_with_the_samples() -> None:
    blend = PeriodicBlend([phase(0, [0.9, 0.1])], 10**15)
    members, samples = blend.locate(np.array([0, PERIOD, 10**15 - 1]))
    assert members[0] == members[1] == 0
    assert int(samples[2]) < int(blend.counts()[members[2]]) <= 10**15
    assert len(pickle.dumps(blend)) < 300
    again = pickle.loads(pickle.dumps(blend))
    assert np.array_equal(again.locate(np.array([10**14]))[1], blend.locate(np.array([10**14]))[1])
