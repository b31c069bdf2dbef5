"""Indices that Megatron or MaxText left behind: used when they fit, told why not otherwise."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.formats.foreign_index import find_foreign_indices, use_foreign_index
from gristmill.formats.index_member import build_member
from gristmill.formats.index_plan import (
    IndexSettings,
    MemberPlan,
    MemberSource,
    ShardIdentity,
    SplitRequest,
    plan_members,
)
from gristmill.formats.indices import MemberIndices

LENGTHS = np.random.default_rng(0).integers(1, 30, 80).astype(np.int32)
NAMES = ["web_text_document"]


def plan_of(lengths: NDArray[np.int32] = LENGTHS, *, splits: str = "1", **options: Any) -> MemberPlan:
    source = MemberSource("web", None, None, (ShardIdentity("a", "1", len(lengths)),))
    samples = options.pop("samples", 300)
    settings = IndexSettings(
        **{"sequence_length": 8, "seed": 1234, **options}, splits=splits, train=SplitRequest(samples=samples)
    )
    return plan_members(settings, [source]).split("train")[0]


def leave_megatrons(
    folder: Path, plan: MemberPlan, indices: MemberIndices, *, name: str = NAMES[0], split: str = "train", **told: Any
) -> str:
    """Writes what Megatron writes."""
    folder.mkdir(exist_ok=True)
    value = {
        "class": "GPTDataset",
        "dataset_path": f"/some/where/{name}",
        "num_samples": plan.samples,
        "index_split": split,
        "random_seed": plan.seed,
        "sequence_length": plan.sequence_length,
        "split": "1",
        "split_matrix": [[0, 1.0], None, None],
        "tokenizer": {"class": "none"},
    } | told
    stem = folder / f"{abs(hash(json.dumps(value))):032x}-GPTDataset-{split}"
    Path(f"{stem}-description.txt").write_text(json.dumps(value, indent=4))
    for index in ("document_index", "sample_index", "shuffle_index"):
        np.save(f"{stem}-{index}.npy", getattr(indices, index))
    return str(stem)


def use(folder: Path, plan: MemberPlan, lengths: NDArray[np.int32] = LENGTHS) -> tuple[MemberIndices | None, list[str]]:
    tokens = int(lengths[plan.start : plan.end].sum())
    found, reasons = use_foreign_index(find_foreign_indices(str(folder), "train"), plan, tokens, NAMES, lambda: lengths)
    return None if found is None else found[1], reasons


def test_what_fits_is_used(tmp_path: Path) -> None:
    plan = plan_of()
    indices = build_member(plan, LENGTHS)
    leave_megatrons(tmp_path, plan, indices)
    found, reasons = use(tmp_path, plan)
    assert found is not None
    assert not reasons
    for index in ("document_index", "sample_index", "shuffle_index"):
        np.testing.assert_array_equal(getattr(found, index), getattr(indices, index))
    assert use(tmp_path, plan_of(samples=301))[0] is not None, "as many epochs, so the same order"


def test_moved_or_renamed_data_find_their_indices_too(tmp_path: Path) -> None:
    plan = plan_of()
    leave_megatrons(tmp_path, plan, build_member(plan, LENGTHS), name="another_name")
    assert use(tmp_path, plan)[0] is not None


@pytest.mark.parametrize("by", ["samples", "epochs"])
def test_maxtexts_are_used_too(tmp_path: Path, by: str) -> None:
    plan = plan_of() if by == "samples" else replace(plan_of(), samples=None, epochs=2)
    indices = build_member(plan, LENGTHS)
    value = {
        "hash": "ab12",
        "source": "convert",
        "input_paths": ["/some/where/web_text_document"],
        "seq_length": 8,
        "num_samples_requested": plan.samples,
        "num_epochs": indices.plan.epochs,
        "seed": 1234,
        "split": None,
        "add_extra_token": 1,
    }
    (tmp_path / "ab12-metadata.json").write_text(json.dumps(value))
    for index in ("document_index", "sample_index", "shuffle_index"):
        np.save(tmp_path / f"ab12-{index}.npy", getattr(indices, index))
    found, _ = use(tmp_path, plan)
    assert found is not None
    np.testing.assert_array_equal(found.shuffle_index, indices.shuffle_index)


def test_those_of_another_seed_length_or_split_are_not_meant(tmp_path: Path) -> None:
    plan = plan_of()
    indices = build_member(plan, LENGTHS)
    leave_megatrons(tmp_path, plan, indices, random_seed=1)
    leave_megatrons(tmp_path, plan, indices, sequence_length=9)
    leave_megatrons(tmp_path, plan, indices, split="valid")
    (tmp_path / "x-GPTDataset-train-description.txt").write_text("no JSON")
    (tmp_path / "y-GPTDataset-train-description.txt").write_text('{"random_seed": 1234}')
    (tmp_path / "z-metadata.json").write_text("[]")
    assert use(tmp_path, plan) == (None, [])
    assert use(tmp_path / "missing", plan) == (None, [])


def swapped(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """As many tokens in as many sequences, cut elsewhere."""
    return lengths.reshape(-1, 2)[:, ::-1].reshape(-1)


@pytest.mark.parametrize(
    ("options", "others", "message"),
    [
        ({}, swapped, "samples do not span 8 tokens of these data: made from others"),
        (
            {},
            lambda lengths: np.append(lengths, lengths[:8]),
            r"document_index\.npy: shape \(160,\) of int32, but these data need \(176,\)",
        ),
        ({}, lambda lengths: np.insert(lengths, 3, 0), r"document_index\.npy: shape \(160,\) of int32, but these data"),
        ({"samples": 3000}, np.copy, "built for 2 epochs, but 20 epochs, the last one shuffled apart are needed here"),
        ({"add_extra_token": False}, np.copy, "sample_index.npy: shape .* with another setting of the extra token"),
    ],
    ids=["other lengths", "more tokens", "more sequences", "more samples", "extra token"],
)
def test_what_does_not_fit_is_told(
    tmp_path: Path,
    options: dict[str, Any],
    others: Callable[[NDArray[np.int32]], NDArray[np.int32]],
    message: str,
) -> None:
    lengths = LENGTHS.copy()
    lengths[0] += -int(lengths.sum()) % 8  # so that the extra token costs a sample
    plan = plan_of(lengths)
    stem = leave_megatrons(tmp_path, plan, build_member(plan, lengths))
    found, reasons = use(tmp_path, plan_of(others(lengths), **options), others(lengths))
    assert found is None
    assert reasons[0].startswith(stem)
    assert re.search(message, reasons[0])


@pytest.mark.parametrize(
    ("index", "damage", "message"),
    [
        ("sample_index", lambda path: path.write_bytes(path.read_bytes()[:-8]), "no readable .npy file .*half-written"),
        ("sample_index", lambda path: path.unlink(), "sample_index.npy: missing"),
        ("document_index", lambda path: path.write_bytes(b""), "no readable .npy file"),
        (
            "shuffle_index",
            lambda path: np.save(path, np.load(path).astype(np.int32)),
            "shape .* of int32, but these dat",
        ),
        ("shuffle_index", lambda path: np.save(path, np.load(path) + 1000), "row 0 holds sample"),
        ("document_index", lambda path: np.save(path, np.roll(np.load(path), 5)), "samples do not span 8 tokens"),
    ],
)
def test_damage_is_told(tmp_path: Path, index: str, damage: Callable[[Path], object], message: str) -> None:
    plan = plan_of()
    stem = leave_megatrons(tmp_path, plan, build_member(plan, LENGTHS))
    damage(Path(f"{stem}-{index}.npy"))
    found, reasons = use(tmp_path, plan)
    assert found is None
    assert re.search(message, reasons[0])


def test_the_right_one_of_several_is_found(tmp_path: Path) -> None:
    """Megatron's directories collect the indices of every run."""
    wanted = plan_of()
    for samples in (None, 100, 300, 1000):
        plan = replace(wanted, samples=samples)
        leave_megatrons(tmp_path, plan, build_member(plan, LENGTHS))
    found, reasons = use(tmp_path, wanted)
    assert found is not None
    np.testing.assert_array_equal(found.document_index, build_member(wanted, LENGTHS).document_index)
    assert not [reason for reason in reasons if "built for" not in reason]
