"""Splits, indices and blends equal what megatron-core 0.16.1 made of the same inputs; needs no Megatron.

`tests/golden/README.md` records how the files were made.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.formats import blend as blend_module
from gristmill.formats import indices as indices_module
from gristmill.formats.blend import exhaustive_blend, greedy_blend, normalise
from gristmill.formats.indices import plan_epochs, sample_index_compiled, sample_index_numpy

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
KERNELS = json.loads((GOLDEN / "megatron_kernels.json").read_text())


def load_archive() -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    with np.load(GOLDEN / "megatron_indices.npz", allow_pickle=False) as archive:
        cases = json.loads(str(archive["cases"]))
        starts: dict[str, int] = {}
        arrays: dict[str, NDArray[Any]] = {}
        flat = {name: archive[name] for name in archive.files}
    for name, dtype, shape in json.loads(str(flat["table"])):
        start, size = starts.get(dtype, 0), int(np.prod(shape))
        arrays[name] = flat[dtype][start : start + size].reshape(shape)
        starts[dtype] = start + size
    return cases, arrays


CASES, ARRAYS = load_archive()


def digest(*arrays: NDArray[Any]) -> str:
    state = hashlib.sha256()
    for array in arrays:
        state.update(f"{array.dtype.name}{list(array.shape)}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "compiled"])
def test_every_array_of_a_case_is_megatrons(
    number: int,
    compiled: bool,
    oracle: ModuleType,
    rebuild: Callable[[Any], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if compiled:
        for module in (blend_module, indices_module):
            monkeypatch.setattr(module, "_SMALL", -1)
    found: dict[str, NDArray[Any]] = {}
    for split, arrays in rebuild(oracle.Case.from_json(CASES[number])).items():
        for place, indices in enumerate(arrays["members"]):
            for name, array in zip(("document", "sample", "shuffle"), indices, strict=True):
                found[f"{number}/{split}/{place}/{name}_index"] = array
        if arrays["blend"] is not None:
            for name, array in zip(("dataset_index", "dataset_sample_index"), arrays["blend"], strict=True):
                found[f"{number}/{split}/{name}"] = array
    expected = {name: array for name, array in ARRAYS.items() if name.startswith(f"{number}/")}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert np.array_equal(found[name], array), name


@pytest.mark.parametrize("blend", KERNELS["blends"], ids=lambda blend: f"{len(blend['weights'])} members")
def test_blends_of_weights_with_ties_are_megatrons(blend: dict[str, Any]) -> None:
    assert digest(*greedy_blend(normalise(blend["weights"]), blend["size"])) == blend["sha256"]


@pytest.mark.parametrize("blend", KERNELS["exhaustive"], ids=lambda blend: f"{len(blend['sizes'])} members")
def test_exhaustive_blends_are_megatrons(blend: dict[str, Any]) -> None:
    assert digest(*exhaustive_blend(blend["sizes"])) == blend["sha256"]


@pytest.mark.parametrize(
    "case", KERNELS["kept_partial"], ids=lambda case: f"{case['extra']}, off by {case['miscount']}"
)
def test_kept_partial_samples_are_miscounted_as_megatron_does(case: dict[str, Any]) -> None:
    lengths = np.array(case["lengths"], dtype=np.int32)
    plan = plan_epochs(
        tokens=sum(case["lengths"]),
        sequence_length=case["sequence_length"],
        add_extra_token=case["extra"],
        drop_last_partial=False,
    )
    exact = -(-(sum(case["lengths"]) - int(case["extra"])) // case["sequence_length"])
    assert plan.samples - exact == case["miscount"]
    order = np.arange(len(lengths), dtype=np.int32)
    for build in (sample_index_numpy, sample_index_compiled):
        assert digest(build(lengths, order, plan)) == case["sha256"]


def test_the_golden_file_covers_what_it_should() -> None:
    """Both uses of the extra token, kept partial samples, blends of each kind, several epochs, empty sequences."""
    assert {case["add_extra_token"] for case in CASES} == {True, False}
    assert any(case["keep_last_partial"] for case in CASES)
    assert any(case["weights"] for case in CASES)
    assert any(len(case["lengths"]) > 1 and not case["weights"] and case["samples"][0] is None for case in CASES)
    assert any(len(case["lengths"]) > 1 and not case["weights"] and case["samples"][0] for case in CASES)
    assert any(0 in lengths for case in CASES for lengths in case["lengths"])
    assert len(CASES) >= 40
