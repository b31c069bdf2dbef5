"""Weight schedules against megatron-core 0.16.1: every phase is a blend of Megatron's compiled helper.

Needs the extra `parity`.
"""

from types import ModuleType

import numpy as np
import pytest

from gristmill.formats.blend import empty_blend
from gristmill.formats.schedule import Phase, draw_phases, shares_above_zero

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # Megatron's own imports warn


@pytest.fixture(scope="module", autouse=True)
def megatron() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'gristmill[parity]'")
    pytest.importorskip("megatron.core", reason="megatron-core is not installed: pip install 'gristmill[parity]'")


@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "compiled"])
def test_every_phase_is_megatrons_blend_of_its_weights(
    oracle: ModuleType, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled:
        monkeypatch.setattr("gristmill.formats.blend._SMALL", -1)
    random = np.random.default_rng(7)
    for _ in range(60):
        members = int(random.integers(2, 10))
        spans = random.integers(1, 300, size=int(random.integers(1, 6))).tolist()
        weights = [random.integers(0, 6, members) * (1.0 if random.random() < 0.5 else random.random()) for _ in spans]
        weights = [one if one.any() else np.ones(members) for one in weights]
        starts = np.cumsum([0, *spans]).tolist()
        shares = [tuple(shares_above_zero(shares_above_zero(one.tolist()))) for one in weights]
        phases = [Phase(start, share) for start, share in zip(starts, shares)]
        counts, since = np.zeros(members, np.int64), np.zeros(members, np.int64)
        dataset_index, numbers = empty_blend(starts[-1])
        draw_phases(phases, 0, counts, since, dataset_index, numbers)
        drawn = np.zeros(members, np.int64)
        for phase, span in zip(phases, spans, strict=True):
            place = np.flatnonzero(phase.weights)
            positive = np.array(phase.weights)[place]
            expected = oracle.megatron_blend(positive, span)
            rows = slice(phase.from_sample, phase.from_sample + span)
            chosen = place[expected[0]]
            assert dataset_index[rows].tolist() == chosen.tolist()
            assert numbers[rows].tolist() == (expected[1] + drawn[chosen]).tolist()
            drawn += np.bincount(chosen, minlength=members)
        assert counts.tolist() == drawn.tolist()
