"""Indices of a member in a folder: served for what they were built from, and for nothing else."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gristmill.formats.errors import FormatError
from gristmill.formats.fingerprint import digest
from gristmill.formats.index_member import build_member, member_epochs
from gristmill.formats.index_plan import (
    IndexSettings,
    MemberPlan,
    MemberSource,
    ShardIdentity,
    SplitRequest,
    plan_members,
)
from gristmill.formats.indices import EpochPlan, MemberIndices
from gristmill.formats.member_store import INDICES, build_stored, load_member, member_facts

LENGTHS = np.array([3, 9, 0, 7, 5, 12, 4, 4], np.int32)
SOURCE = MemberSource("web", None, None, (ShardIdentity("a", "1", 5), ShardIdentity("b", "2", 3)))
Case = tuple[MemberPlan, EpochPlan, MemberIndices]


@pytest.fixture
def case() -> Case:
    settings = IndexSettings(sequence_length=4, seed=7, splits="1", train=SplitRequest(samples=30))
    (plan,) = plan_members(settings, [SOURCE])
    epochs = member_epochs(plan, int(LENGTHS.sum()))
    return plan, epochs, build_member(plan, LENGTHS)


def save(folder: str, case: Case) -> str:
    plan, epochs, _ = case
    built, error = build_stored(folder, plan, epochs, SOURCE, lambda: LENGTHS)
    assert error is None
    assert all(isinstance(getattr(built, index), np.memmap) for index in INDICES)
    return digest(member_facts(plan, epochs, SOURCE))


def test_what_is_kept_is_found(case: Case, tmp_path: Path) -> None:
    plan, epochs, indices = case
    assert load_member(str(tmp_path), plan, epochs, SOURCE) is None
    key = save(str(tmp_path / "new" / "folder"), case)
    found = load_member(str(tmp_path / "new" / "folder"), plan, epochs, SOURCE)
    assert found is not None
    for index in INDICES:
        assert getattr(found, index).dtype == getattr(indices, index).dtype
        np.testing.assert_array_equal(getattr(found, index), getattr(indices, index))
    names = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert names == sorted([*(f"{key[:32]}-{index}.npy" for index in INDICES), f"{key[:32]}-index.json"])


def test_nothing_else_is_served_for_it(case: Case, tmp_path: Path) -> None:
    plan, epochs, _ = case
    save(str(tmp_path), case)
    moved = replace(SOURCE, id="other", shards=tuple(replace(shard, path="moved") for shard in SOURCE.shards))
    assert load_member(str(tmp_path), plan, epochs, moved) is not None
    assert load_member(str(tmp_path), replace(plan, samples=31), epochs, SOURCE) is not None
    first, second = SOURCE.shards
    others = [
        (replace(plan, seed=8), epochs, SOURCE),
        (replace(plan, start=1), epochs, SOURCE),
        (replace(plan, end=7), epochs, SOURCE),
        (plan, replace(epochs, sequence_length=5), SOURCE),
        (plan, replace(epochs, epochs=epochs.epochs + 1), SOURCE),
        (plan, replace(epochs, separate=not epochs.separate), SOURCE),
        (plan, replace(epochs, add_extra_token=False), SOURCE),
        (plan, epochs, replace(SOURCE, shards=(second, first))),
        (plan, epochs, replace(SOURCE, shards=(replace(first, identity="9"), second))),
    ]
    assert [load_member(str(tmp_path), *other) for other in others] == [None] * len(others)


def test_arrays_without_their_record_are_unfinished(case: Case, tmp_path: Path) -> None:
    plan, epochs, _ = case
    key = save(str(tmp_path), case)
    (tmp_path / f"{key[:32]}-index.json").unlink()
    assert load_member(str(tmp_path), plan, epochs, SOURCE) is None


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        ("document_index", lambda path: path.unlink(), "document_index.npy: missing"),
        ("sample_index", lambda path: path.write_bytes(path.read_bytes()[:-9]), r"sample_index\.npy: \d+ bytes where"),
        ("shuffle_index", lambda path: np.save(path, np.zeros(2)), "shuffle_index.npy: .*build the indices again"),
        ("index", lambda path: path.write_text("{"), "index.json: damaged record of indices"),
        ("index", lambda path: path.write_text("{}"), "index.json: damaged record of indices"),
        ("index", lambda path: path.write_text('{"key": "00"}'), "index.json: the record of other indices"),
        ("index", lambda path: path.write_text("[]"), "index.json: the record of other indices"),
    ],
)
def test_damage_is_named(
    case: Case, tmp_path: Path, index: str, change: Callable[[Path], object], message: str
) -> None:
    plan, epochs, _ = case
    key = save(str(tmp_path), case)
    change(tmp_path / f"{key[:32]}-{index}{'.json' if index == 'index' else '.npy'}")
    with pytest.raises(FormatError, match=message):
        load_member(str(tmp_path), plan, epochs, SOURCE)


@pytest.mark.parametrize(
    ("index", "row", "value", "message"),
    [
        ("document_index", 0, 8, "row 0 holds sequence 8, outside 0 to 7: damaged"),
        ("shuffle_index", -1, 99, r"row \d+ holds sample 99, outside 0 to"),
        ("sample_index", 0, -1, "row 0 holds place -1, outside 0 to"),
    ],
)
def test_ends_that_cannot_be_right_are_named(
    case: Case, tmp_path: Path, index: str, row: int, value: int, message: str
) -> None:
    plan, epochs, _ = case
    key = save(str(tmp_path), case)
    path = tmp_path / f"{key[:32]}-{index}.npy"
    array = np.load(path)
    array[row] = value
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - array.nbytes)
        file.write(array.tobytes())
    with pytest.raises(FormatError, match=message):
        load_member(str(tmp_path), plan, epochs, SOURCE)


def test_the_record_says_what_the_arrays_are_of(case: Case, tmp_path: Path) -> None:
    _, epochs, indices = case
    key = save(str(tmp_path), case)
    record = json.loads((tmp_path / f"{key[:32]}-index.json").read_text())
    assert record["key"] == key
    assert record["facts"]["samples"] == epochs.samples == len(indices.shuffle_index)
    assert record["facts"]["shards"] == [{"identity": "1", "sequences": 5}, {"identity": "2", "sequences": 3}]
    for name, facts in record["files"].items():
        assert (tmp_path / name).stat().st_size == facts["size"]
