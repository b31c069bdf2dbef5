"""Blends in a folder: kept by what they are, and anyone's checked against the rule itself."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.formats.blend import exhaustive_blend, greedy_blend, normalise
from gristmill.formats.blend_store import BlendRequest, find_blend, load_blend, save_blend
from gristmill.formats.errors import FormatError
from gristmill.formats.index_blend import BlendRule

Arrays = tuple[NDArray[np.int16], NDArray[np.int64]]


def request(weights: list[float], samples: int, *, surplus: int = 2, kind: str = "weighted") -> BlendRequest:
    if kind == "exhaustive":
        rows = tuple(int(weight) for weight in weights)
        shares, samples, surplus = [weight / sum(weights) for weight in weights], sum(rows), 0
    else:
        shares = normalise(normalise(weights).tolist()).tolist()
        rows = tuple(int(samples * share) + 10 for share in shares)
    rule = BlendRule(kind=kind, weights=tuple(shares), samples=samples, size=samples + surplus)
    return BlendRequest(split="train", rule=rule, rows=rows)


def arrays_of(wanted: BlendRequest) -> Arrays:
    if wanted.rule.kind == "exhaustive":
        return exhaustive_blend(wanted.rows)
    return greedy_blend(np.array(wanted.rule.weights), wanted.rule.size)


def leave(folder: Path, arrays: Arrays, stem: str = "ab12-BlendedDataset-train-") -> str:
    np.save(folder / f"{stem}dataset_index.npy", arrays[0])
    np.save(folder / f"{stem}dataset_sample_index.npy", arrays[1])
    return str(folder / f"{stem}dataset_index.npy")


@pytest.mark.parametrize("named", [True, False])
def test_what_is_kept_is_found(tmp_path: Path, named: bool) -> None:
    wanted = request([3, 5, 2], 500)
    assert find_blend(str(tmp_path / "none"), wanted) == (None, [])
    blend = wanted.indices(*arrays_of(wanted))
    save_blend(str(tmp_path), wanted, blend, named=named)
    found = load_blend(str(tmp_path), wanted) if named else find_blend(str(tmp_path), wanted)[0]
    assert found is not None
    np.testing.assert_array_equal(found.dataset_index, blend.dataset_index)
    np.testing.assert_array_equal(found.dataset_sample_index, blend.dataset_sample_index)
    assert (found.samples, len(found.dataset_index)) == (500, 502)
    names = sorted(path.name for path in tmp_path.iterdir())
    stem, record = (f"{wanted.key[:32]}-blend-", f"{wanted.key[:32]}-blend.json") if named else ("", "blend.json")
    assert names == sorted([f"{stem}dataset_index.npy", f"{stem}dataset_sample_index.npy", record])


def test_the_key_is_that_of_rule_and_size(tmp_path: Path) -> None:
    wanted = request([3, 5, 2], 500)
    rule = wanted.rule
    same = [
        replace(wanted, split="valid"),
        replace(wanted, rows=(9999, 9999, 9999)),
        replace(wanted, rule=replace(rule, samples=499)),
    ]
    others = [
        replace(wanted, rule=replace(rule, size=503)),
        replace(wanted, rule=replace(rule, weights=rule.weights[::-1])),
        replace(wanted, rule=replace(rule, kind="proportional")),
    ]
    assert {one.key for one in same} == {wanted.key}
    assert len({one.key for one in [wanted, *others]}) == 4
    whole = request([5, 3], 0, kind="exhaustive")
    assert replace(whole, rows=(3, 5)).key != whole.key


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=6),
    st.integers(1, 400),
    st.integers(0, 60),
    st.sampled_from(["weighted", "exhaustive"]),
)
def test_any_pair_that_the_rule_gives_fits_and_a_longer_one_is_cut(
    tmp_path_factory: pytest.TempPathFactory, weights: list[int], samples: int, longer: int, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("blend")
    wanted = request([float(weight) for weight in weights], samples, kind=kind)
    wanted = replace(wanted, rows=tuple(row + (longer + 1) * (kind == "weighted") for row in wanted.rows))
    made = wanted if kind == "exhaustive" else replace(wanted, rule=replace(wanted.rule, size=samples + longer))
    leave(folder, arrays_of(made))
    found, reasons = find_blend(str(folder), wanted)
    assert found is not None, reasons
    np.testing.assert_array_equal(found.dataset_index[:samples], arrays_of(wanted)[0][:samples])
    assert len(found.dataset_index) <= wanted.rule.size


@pytest.mark.parametrize("place", [0, 1, 4_000, 40_000, 59_990])
@pytest.mark.parametrize("what", ["swap", "gap", "stranger"])
def test_damage_is_found_wherever_it_changes_the_counts_or_a_window(tmp_path: Path, place: int, what: str) -> None:
    wanted = request([0.61, 0.3, 0.09], 60_000)
    first, second = arrays_of(wanted)
    if what == "swap":  # two neighbours of different members, each still counted through
        place = next(row for row in range(place, len(first)) if row + 1 < len(first) and first[row] != first[row + 1])
        first[[place, place + 1]], second[[place, place + 1]] = first[[place + 1, place]], second[[place + 1, place]]
    elif what == "gap":
        second[place] += 1
    else:
        first[place] = 3
    leave(tmp_path, (first, second))
    found, reasons = find_blend(str(tmp_path), wanted)
    if what == "swap" and place in {40_000, 40_001, 40_002}:
        assert found is not None, "between the windows only the counts are compared"
    else:
        assert found is None
        assert reasons


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: (arrays[0][:400], arrays[1][:400]), "400 samples, but 500 are needed"),
        (lambda arrays: (arrays[0].astype(np.int32), arrays[1]), "a blend is int16 and int64 of one length"),
        (lambda arrays: (arrays[0], arrays[1][:-1]), "a blend is int16 and int64 of one length"),
        (lambda arrays: (arrays[0][None], arrays[1]), "a blend is int16 and int64 of one length"),
        (
            lambda arrays: (arrays[0] + np.int16(1), arrays[1]),
            "sample 0 is of member 2, but these weights give member 1",
        ),
        (lambda arrays: (arrays[0] - np.int16(2), arrays[1]), "sample 0 is of member -1, but these weights give"),
        (lambda arrays: (arrays[0], arrays[1] + 1), "the samples of a member are not counted through"),
        (lambda arrays: greedy_blend(np.array([0.4, 0.4, 0.2]), 502), "but these weights give member .*other weights"),
        (
            lambda arrays: greedy_blend(np.array([0.8, 0.1, 0.1]), 502),
            "other weights|draws .* samples of member 0, whi",
        ),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, change: Callable[[Arrays], Arrays], message: str) -> None:
    wanted = request([3, 5, 2], 500)
    path = leave(tmp_path, change(arrays_of(wanted)))
    found, (reason,) = find_blend(str(tmp_path), wanted)
    assert found is None
    with pytest.raises(FormatError, match=message):
        raise FormatError(reason)
    assert reason.startswith(path)


def test_a_member_that_is_not_there_is_told_behind_the_windows_too(tmp_path: Path) -> None:
    wanted = request([0.61, 0.3, 0.09], 60_000)
    first, second = arrays_of(wanted)
    first[40_000] = 3
    leave(tmp_path, (first, second))
    assert "names a member beyond the 3 there are: made for another blend" in find_blend(str(tmp_path), wanted)[1][0]


def test_more_samples_than_a_member_has_are_told(tmp_path: Path) -> None:
    wanted = replace(request([3, 5, 2], 500), rows=(200, 200, 200))
    leave(tmp_path, arrays_of(wanted))
    found, (reason,) = find_blend(str(tmp_path), wanted)
    assert found is None
    assert "draws 250 samples of member 1, which has 200" in reason or "draws 251 samples of member 1" in reason


def test_which_pair_of_several_is_taken(tmp_path: Path) -> None:
    wanted = request([3, 5, 2], 500)
    leave(tmp_path, arrays_of(request([1, 1, 1], 500)), "")
    leave(tmp_path, arrays_of(request([1, 2, 1], 500)), "cd34-BlendedDataset-valid-")
    leave(tmp_path, arrays_of(request([2, 1, 1], 500)), "ef56-BlendedDataset-train-")
    save_blend(str(tmp_path), request([5, 3, 2], 400), wanted.indices(*arrays_of(wanted)))
    found, reasons = find_blend(str(tmp_path), wanted)
    assert found is None
    assert [Path(reason.partition(":")[0]).name for reason in reasons] == [
        "dataset_index.npy",
        "ef56-BlendedDataset-train-dataset_index.npy",
    ]
    leave(tmp_path, arrays_of(wanted), "0a-")
    found, _ = find_blend(str(tmp_path), wanted)
    assert found is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stem: Path(f"{stem}.json").write_text("{"), "blend.json: damaged record"),
        (lambda stem: Path(f"{stem}.json").write_text("[]"), "blend.json: damaged record"),
        (lambda stem: Path(f"{stem}-dataset_index.npy").unlink(), "dataset_index.npy: missing"),
        (
            lambda stem: np.save(f"{stem}-dataset_sample_index.npy", np.zeros(3)),
            "dataset_sample_index.npy: .*half-writ",
        ),
        (
            lambda stem: np.save(f"{stem}-dataset_index.npy", np.full(502, 9, np.int16)),
            "row 0 names sample 0 of member 9",
        ),
    ],
)
def test_damage_of_what_was_kept_is_named(tmp_path: Path, change: Callable[[str], object], message: str) -> None:
    wanted = request([3, 5, 2], 500)
    save_blend(str(tmp_path), wanted, wanted.indices(*arrays_of(wanted)))
    change(f"{tmp_path}/{wanted.key[:32]}-blend")
    with pytest.raises(FormatError, match=message):
        load_blend(str(tmp_path), wanted)
    found, reasons = find_blend(str(tmp_path), wanted)
    assert found is None
    assert len(reasons) == 1


def test_a_plain_pair_of_another_blend_is_not_taken_for_its_record(tmp_path: Path) -> None:
    other = request([1, 1], 100)
    save_blend(str(tmp_path), other, other.indices(*arrays_of(other)), named=False)
    assert json.loads((tmp_path / "blend.json").read_text())["key"] == other.key
    found, reasons = find_blend(str(tmp_path), request([1, 3], 100))
    assert found is None
    assert "but these weights give member" in reasons[0]
