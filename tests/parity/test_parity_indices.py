"""Splits, indices and blends against megatron-core 0.16.1 itself, on random cases.

Needs the extra `parity`. 300 cases run by default; a long run takes the number from the environment:

    GRISTMILL_PARITY_CASES=2500 python -m pytest tests/parity/test_parity_indices.py
"""

import dataclasses
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.formats import blend as blend_module
from gristmill.formats import indices as indices_module
from gristmill.formats.blend import exhaustive_blend, greedy_blend, normalise
from gristmill.formats.indices import plan_epochs, sample_index_compiled, sample_index_numpy

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # Megatron's own imports warn

CASES = int(os.environ.get("GRISTMILL_PARITY_CASES", "300"))
BATCHES = 10
FIRST_SEED = 1_000  # the golden file has the seeds below


@pytest.fixture(scope="module", autouse=True)
def megatron() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'gristmill[parity]'")
    pytest.importorskip("megatron.core", reason="megatron-core is not installed: pip install 'gristmill[parity]'")


def assert_same(ours: NDArray[Any], expected: NDArray[Any], where: str) -> None:
    assert ours.dtype == expected.dtype, where
    assert np.array_equal(ours, expected), where


def assert_same_pair(
    ours: tuple[NDArray[Any], NDArray[Any]], expected: tuple[NDArray[Any], NDArray[Any]], where: str
) -> None:
    assert_same(ours[0], expected[0], f"{where}, dataset index")
    assert_same(ours[1], expected[1], f"{where}, dataset sample index")


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_cases_equal_megatrons(
    batch: int, oracle: ModuleType, rebuild: Callable[[Any], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other batch goes through compiled code, which is otherwise used for large inputs alone."""
    if batch % 2:
        for module in (blend_module, indices_module):
            monkeypatch.setattr(module, "_SMALL", -1)
    for seed in range(FIRST_SEED + batch, FIRST_SEED + CASES, BATCHES):
        case, built = run(oracle, rebuild, oracle.random_case(seed))
        expected = {split: arrays for split, arrays in built.items() if arrays is not None}
        found = rebuild(case)
        assert found.keys() == expected.keys(), f"seed {seed}"
        for split, arrays in expected.items():
            where = f"seed {seed}, {split}"
            assert len(found[split]["members"]) == len(arrays["members"]), where
            for ours, theirs in zip(found[split]["members"], arrays["members"], strict=True):
                for name, one, other in zip(("document", "sample", "shuffle"), ours, theirs, strict=True):
                    assert_same(one, other, f"{where}, {name} index")
            assert_same_blend(case, split, found[split]["blend"], arrays["blend"], where)


def run(oracle: ModuleType, rebuild: Callable[[Any], dict[str, Any]], case: Any) -> tuple[Any, dict[str, Any]]:
    """The case as Megatron can run it, and what it makes of it.

    Where the stream of a validation split ends in an empty sequence, Megatron refuses to keep the last partial sample;
    the case is then compared without it.
    """
    try:
        return case, dict(oracle.run_megatron(case))
    except AssertionError:
        assert case.keep_last_partial
        assert case.add_extra_token
        documents, rows, _ = rebuild(case)["valid"]["members"][0]
        assert case.lengths[0][documents[-1]] == 0
        assert rows[-1, 1] == case.lengths[0][documents[rows[-1, 0]]] - 1
        case = dataclasses.replace(case, keep_last_partial=False)
        return case, dict(oracle.run_megatron(case))


def assert_same_blend(case: Any, split: str, ours: Any, theirs: Any, where: str) -> None:
    if theirs is None:
        assert ours is None, where
    elif isinstance(ours, str):
        wanted = case.samples[("train", "valid", "test").index(split)]
        counts = np.bincount(theirs[0][:wanted], minlength=len(case.lengths))
        assert f"would get none of the {wanted} samples" in ours, where
        assert f"'source{int(np.argmin(counts))}'" in ours, where
        assert counts.min() == 0, where
    else:
        assert_same_pair(ours, theirs, where)


def test_blends_equal_the_compiled_helpers(oracle: ModuleType) -> None:
    random = np.random.default_rng(1)
    weights = [*oracle.nice_weights(), *(random.random(int(random.integers(2, 300))).tolist() for _ in range(40))]
    for one in weights:
        shares = normalise(normalise(one).tolist())
        assert_same_pair(greedy_blend(shares, 25_000), oracle.megatron_blend(shares, 25_000), f"weights {one}")
    for _ in range(60):
        sizes = random.integers(1, int(random.choice([3, 50, 3000])), size=int(random.integers(1, 40))).tolist()
        assert_same_pair(exhaustive_blend(sizes), oracle.megatron_exhaustive(sizes), f"sizes {sizes}")


@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_sample_indices_equal_the_compiled_helper(extra: bool, drop_last: bool, oracle: ModuleType) -> None:
    random = np.random.default_rng(2)
    compared = 0
    for _ in range(400):
        count, length = int(random.integers(1, 60)), int(random.integers(2, 65))
        lengths = random.integers(0, int(random.choice([2, 9, 200])), size=count).astype(np.int32)
        tokens = int(lengths.sum())
        if tokens < 2:
            continue
        plan = plan_epochs(tokens=tokens, sequence_length=length, add_extra_token=extra, drop_last_partial=drop_last)
        order = np.arange(count, dtype=np.int32)
        ours = sample_index_compiled(lengths, order, plan)
        assert_same(sample_index_numpy(lengths, order, plan), ours, f"{lengths}")
        if extra and not drop_last and lengths[-1] == 0 and (tokens - 1) % length:
            with pytest.raises(AssertionError):  # Megatron writes an offset of -1 and refuses it
                oracle.megatron_sample_index(lengths.tolist(), length, extra, drop_last)
            last = int(np.flatnonzero(lengths)[-1])
            assert ours[-1].tolist() == [last, int(lengths[last]) - 1]
            continue
        assert_same(ours, oracle.megatron_sample_index(lengths.tolist(), length, extra, drop_last), f"{lengths}")
        compared += 1
    assert compared > 100
