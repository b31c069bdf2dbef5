"""Megatron's naming: equal to what Megatron made, and to a walk over each row where Megatron has no such option."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.formats.errors import DataError, SettingsError
from gristmill.runtime.fields import FieldOptions, make_fields
from gristmill.runtime.naming import MEGATRON_NAMES, check_naming, make_megatron_fields
from gristmill.runtime.presets import PRESETS

GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "golden" / "megatron_fields.json").read_text())
EOD = 99
FLAGS = ("reset_attention_mask", "reset_position_ids", "eod_mask_loss")


def case_id(case: dict[str, Any]) -> str:
    flags = [name for name in FLAGS if case[name]]
    return "-".join([*flags, f"pad={case['pad_id']}", "partial" if case["keep_partial"] else "full"])


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=case_id)
def test_equals_megatron(case: dict[str, Any]) -> None:
    made = make_megatron_fields(
        np.array(case["rows"], np.int32),
        GOLDEN["eod_id"],
        FieldOptions(**{name: case[name] for name in FLAGS}),
        pad_id=case["pad_id"],
        attention_mask=True,
        valid_length=np.array(case["valid_length"]),
    )
    assert {name: array.dtype.name for name, array in made.items()} == case["dtypes"]
    for name in MEGATRON_NAMES:
        assert made[name].tolist() == case[name], name
    packed = [np.packbits(mask).tobytes().hex() for mask in made["attention_mask"]]
    assert packed == case["attention_mask"]


def test_the_golden_file_covers_what_it_should() -> None:
    """Every combination of the flags, padded rows, EOD in every kind of place, and ids that pad inside rows."""
    cases = GOLDEN["cases"]
    assert len({case_id(case) for case in cases}) == len(cases) == 32
    padded = [case for case in cases if min(case["valid_length"]) < case["sequence_length"]]
    assert len(padded) >= 10
    assert any(
        0 in weights for case in cases if case["pad_id"] and not case["eod_mask_loss"] for weights in case["loss_mask"]
    )
    ends = [row[length] for case in padded for row, length in zip(case["rows"], case["valid_length"], strict=True)]
    assert GOLDEN["eod_id"] in ends, "a row whose last real token is EOD"


def oracle(
    row: Sequence[int], options: FieldOptions, valid: int, begins: Sequence[bool], pad: int | None
) -> dict[str, Any]:
    """One row by walking over it, for options without merging and limits."""
    length = len(row) - 1
    last = valid  # place of the last token that is there
    segment, start = 0, 0
    segments, lengths = [], [0]
    out: dict[str, Any] = {name: [] for name in MEGATRON_NAMES}
    for place in range(length):
        if options.boundaries == "index":
            boundary = begins[place] and place < valid
        else:
            boundary = row[place - 1] == EOD and place - 1 <= last
        if place > 0 and boundary:
            segment, start = segment + 1, place
            lengths.append(place)
        segments.append(segment)
        token = row[place] if place <= last else 0
        label = row[place + 1] if place < valid else 0
        has_loss = place < valid and row[place + 1] != pad and not (options.eod_mask_loss and row[place] == EOD)
        out["tokens"].append(0 if token == pad else token)
        out["labels"].append(0 if label == pad else label)
        out["loss_mask"].append(float(has_loss))
        out["position_ids"].append(place - start if options.reset_position_ids else place)
    out["attention_mask"] = [
        [
            [
                key > query or (options.reset_attention_mask and segments[key] != segments[query])
                for key in range(length)
            ]
            for query in range(length)
        ]
    ]
    if options.cu_seqlens:
        out["cu_seqlens"] = lengths + [length] * (length + 1 - len(lengths))
        out["max_seqlen"] = max(b - a for a, b in zip(lengths, [*lengths[1:], length]))
    return out


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, width = draw(st.integers(0, 3)), draw(st.integers(2, 14))
    token = st.sampled_from([EOD, EOD, 0, 7, 8])
    tokens = draw(st.lists(st.lists(token, min_size=width, max_size=width), min_size=rows, max_size=rows))
    starts = draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows, max_size=rows))
    valid = draw(st.lists(st.integers(0, width - 1), min_size=rows, max_size=rows))
    dtype = draw(st.sampled_from([np.uint16, np.int32]))
    shape = (rows, width)
    return np.array(tokens, dtype).reshape(shape), np.array(valid, int), np.array(starts, bool).reshape(shape)


@given(
    batches(),
    st.builds(
        FieldOptions,
        reset_attention_mask=st.booleans(),
        reset_position_ids=st.booleans(),
        eod_mask_loss=st.booleans(),
        boundaries=st.sampled_from(["eod", "index"]),
        cu_seqlens=st.booleans(),
    ),
    st.sampled_from([None, 8]),
)
def test_equals_a_walk_over_each_row(
    batch: tuple[np.ndarray, np.ndarray, np.ndarray], options: FieldOptions, pad: int | None
) -> None:
    tokens, valid, starts = batch
    before = tokens.copy()
    made = make_megatron_fields(
        tokens, EOD, options, pad_id=pad, attention_mask=True, valid_length=valid, starts=starts
    )
    for number, (row, length, begins) in enumerate(zip(tokens.tolist(), valid.tolist(), starts.tolist(), strict=True)):
        expected = oracle(row, options, length, begins, pad)
        assert made.keys() == expected.keys()
        for name, values in expected.items():
            assert made[name][number].tolist() == values, name
    np.testing.assert_array_equal(tokens, before)


@given(batches(), st.integers(0, 6), st.integers(0, 4))
def test_full_rows_are_the_six_fields_under_other_names(
    batch: tuple[np.ndarray, np.ndarray, np.ndarray], most: int, limit: int
) -> None:
    tokens, _, _ = batch
    options = FieldOptions(
        max_segments_per_sample=most, segment_limit=limit, over_limit="merge", eod_mask_loss=True, cu_seqlens=True
    )
    six, made = make_fields(tokens, EOD, options), make_megatron_fields(tokens, EOD, options)
    pairs = {
        "tokens": "inputs",
        "labels": "targets",
        "loss_mask": "targets_segmentation",
        "position_ids": "inputs_position",
    }
    for ours, theirs in pairs.items():
        np.testing.assert_array_equal(made[ours], six[theirs])
    length = tokens.shape[1] - 1
    padded = np.pad(six["cu_seqlens"], ((0, 0), (0, length + 1 - six["cu_seqlens"].shape[1])), constant_values=length)
    np.testing.assert_array_equal(made["cu_seqlens"], padded)


def test_nothing_is_reset_unless_asked() -> None:
    made = make_megatron_fields(np.array([[5, EOD, 6, 7]]), EOD)
    assert made["position_ids"].tolist() == [[0, 1, 2]]
    assert made["loss_mask"].tolist() == [[1, 1, 1]]
    assert dataclasses.asdict(PRESETS["megatron"]) == dataclasses.asdict(
        FieldOptions(reset_attention_mask=False, reset_position_ids=False)
    )


def test_what_cannot_be_named_is_refused() -> None:
    with pytest.raises(SettingsError, match="naming must be 'maxtext' or 'megatron', not 'nemo'"):
        check_naming("nemo")
    with pytest.raises(SettingsError, match=r"tokens have the shape \(3,\)"):
        make_megatron_fields(np.zeros(3, int), EOD)
    with pytest.raises(DataError, match="row 0: token 1 is 12, but ids run from 0 to 9"):
        make_megatron_fields(np.array([[1, 12, 3]]), EOD, vocabulary=10)
    with pytest.raises(DataError, match="row 0: token 0 is 12, but ids run from 0 to 9"):
        make_megatron_fields(np.array([[12, 70, 70]]), EOD, vocabulary=10, valid_length=np.array([0]))
