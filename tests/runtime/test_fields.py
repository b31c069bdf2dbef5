"""The six fields: worked tables, and a plain walk over each row as the oracle for every combination of options."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import DataError, SettingsError
from gristmill.runtime.fields import FIELD_NAMES, FieldOptions, make_fields, segment_starts

EOD = 99
TOGETHER = {"reset_attention_mask": False, "reset_position_ids": False}


def fields_of(row: Sequence[int], **options: object) -> dict[str, list[int]]:
    made = make_fields(np.array([row], np.int32), EOD, FieldOptions(**options))  # type: ignore[arg-type]  # by the tables
    return {name: made[name][0].tolist() for name in FIELD_NAMES}


WORKED = {
    "reset": ([10, 11, 99, 20, 21], {}, [1, 1, 1, 2], [0, 1, 2, 0], [1, 1, 1, 1]),
    "reset, mask": ([10, 11, 99, 20, 21], {"eod_mask_loss": True}, [1, 1, 1, 2], [0, 1, 2, 0], [1, 1, 0, 1]),
    "nothing": ([10, 11, 99, 20, 21], TOGETHER, [1, 1, 1, 1], [0, 1, 2, 3], [1, 1, 1, 1]),
    "mask": ([10, 11, 99, 20, 21], {**TOGETHER, "eod_mask_loss": True}, [1, 1, 1, 1], [0, 1, 2, 3], [1, 1, 0, 1]),
    "segments alone": ([10, 99, 20, 21], {"reset_position_ids": False}, [1, 1, 2], [0, 1, 2], [1, 1, 1]),
    "positions alone": ([10, 99, 20, 21], {"reset_attention_mask": False}, [1, 1, 1], [0, 1, 0], [1, 1, 1]),
    "EOD first": ([99, 10, 11, 12, 13], {"eod_mask_loss": True}, [1, 2, 2, 2], [0, 0, 1, 2], [0, 1, 1, 1]),
    "EOD last input": ([10, 11, 12, 99, 20], {"eod_mask_loss": True}, [1, 1, 1, 1], [0, 1, 2, 3], [1, 1, 1, 0]),
    "EOD last target": ([10, 11, 12, 13, 99], {"eod_mask_loss": True}, [1, 1, 1, 1], [0, 1, 2, 3], [1, 1, 1, 1]),
    "runs": ([10, 99, 99, 99, 20, 21], {"eod_mask_loss": True}, [1, 1, 2, 3, 4], [0, 1, 0, 0, 0], [1, 0, 0, 0, 1]),
    "only EOD": ([99] * 5, {"eod_mask_loss": True}, [1, 2, 3, 4], [0, 0, 0, 0], [0, 0, 0, 0]),
}


@pytest.mark.parametrize(("row", "options", "segments", "positions", "loss"), WORKED.values(), ids=WORKED)
def test_worked_rows(
    row: list[int], options: dict[str, object], segments: list[int], positions: list[int], loss: list[int]
) -> None:
    assert fields_of(row, **options) == {
        "inputs": row[:-1],
        "targets": row[1:],
        "inputs_segmentation": segments,
        "targets_segmentation": loss,
        "inputs_position": positions,
        "targets_position": positions,
    }


MERGED = {
    12: [1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 4],
    6: [1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
    4: [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2],
    3: [1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2],
    1: [1] * 12,
}


@pytest.mark.parametrize("most", MERGED)
def test_worked_merges(most: int) -> None:
    row = [10, 99, 20, 99, 30, 31, 99, 40, 41, 42, 43, 99, 50]
    fields = fields_of(row, max_segments_per_sample=most)
    assert fields["inputs_segmentation"] == MERGED[most]
    starts = [MERGED[most].index(segment) for segment in MERGED[most]]
    assert fields["inputs_position"] == [place - start for place, start in enumerate(starts)]


def test_the_documents_of_a_small_corpus() -> None:
    stream = [5, 6, 0, 7, 0, 8, 9, 10, 11, 12, 13, 0, 14, 15, 16, 17, 18]
    tokens = np.array([stream[0:9], stream[8:17]], np.uint16)
    fields = make_fields(tokens, 0)
    assert fields["inputs_segmentation"].tolist() == [[1, 1, 1, 2, 2, 3, 3, 3], [1, 1, 1, 1, 2, 2, 2, 2]]
    assert fields["inputs_position"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2], [0, 1, 2, 3, 0, 1, 2, 3]]
    assert (fields["targets_segmentation"] == 1).all(), "a real EOD keeps its loss unless asked"


def oracle(
    row: Sequence[int], options: FieldOptions, valid: int, begins: Sequence[bool]
) -> dict[str, list[int]] | None:
    """The fields of one row by walking over it; None where it must be refused."""
    length = len(row) - 1
    most = options.max_segments_per_sample
    least = length // most if most else 0
    out: dict[str, list[int]] = {name: [] for name in FIELD_NAMES}
    segment, start = 1, 0
    lengths = [0]
    for place in range(length):
        boundary = place > 0 and (begins[place] if options.boundaries == "index" else row[place - 1] == EOD)
        if place < valid and boundary and (least <= 1 or place - start > least):
            if options.segment_limit == 0 or segment < options.segment_limit:
                segment, start = segment + 1, place
                lengths.append(place)
            elif options.over_limit == "error":
                return None
        used = int(place < valid)
        out["inputs"].append(row[place] * used)
        out["targets"].append(row[place + 1] * used)
        out["inputs_segmentation"].append((segment if options.reset_attention_mask else 1) * used)
        out["targets_segmentation"].append(int(not (options.eod_mask_loss and row[place] == EOD)) * used)
        out["inputs_position"].append((place - start if options.reset_position_ids else place) * used)
    out["targets_position"] = out["inputs_position"]
    if options.cu_seqlens:
        out["cu_seqlens"] = lengths + [valid] * (options.segments(length) + 1 - len(lengths))
    return out


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Tokens [R, L + 1], valid lengths or none, and where documents begin [R, L + 1]."""
    rows, width = draw(st.integers(0, 4)), draw(st.integers(2, 24))
    token = st.sampled_from([EOD, EOD, 0, 7, 8])
    tokens = draw(st.lists(st.lists(token, min_size=width, max_size=width), min_size=rows, max_size=rows))
    starts = draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows, max_size=rows))
    valid = draw(st.none() | st.lists(st.integers(0, width - 1), min_size=rows, max_size=rows))
    dtype = draw(st.sampled_from([np.uint16, np.int32]))
    return (
        np.array(tokens, dtype).reshape(rows, width),
        None if valid is None else np.array(valid, np.int64),
        np.array(starts, bool).reshape(rows, width),
    )


every_option = st.builds(
    FieldOptions,
    reset_attention_mask=st.booleans(),
    reset_position_ids=st.booleans(),
    eod_mask_loss=st.booleans(),
    max_segments_per_sample=st.integers(0, 12),
    boundaries=st.sampled_from(["eod", "index"]),
    segment_limit=st.sampled_from([0, 0, 1, 2, 3, 5, 30]),
    over_limit=st.sampled_from(["error", "merge"]),
    cu_seqlens=st.booleans(),
)


@settings(max_examples=400, deadline=None)
@given(batches(), every_option)
def test_equals_a_walk_over_each_row(
    batch: tuple[np.ndarray, np.ndarray | None, np.ndarray], options: FieldOptions
) -> None:
    tokens, valid, starts = batch
    before = tokens.copy(), starts.copy()
    lengths = [tokens.shape[1] - 1] * len(tokens) if valid is None else valid.tolist()
    expected = [
        oracle(row, options, length, begins)
        for row, length, begins in zip(tokens.tolist(), lengths, starts.tolist(), strict=True)
    ]
    looked_at = options.reset_attention_mask or options.reset_position_ids or options.cu_seqlens
    if looked_at and None in expected:
        with pytest.raises(DataError, match=f"row {expected.index(None)}: has .* but segment_limit is"):
            make_fields(tokens, EOD, options, valid_length=valid, starts=starts)
        return
    if not looked_at:
        expected = [
            oracle(row, dataclasses.replace(options, segment_limit=0), length, begins)
            for row, length, begins in zip(tokens.tolist(), lengths, starts.tolist(), strict=True)
        ]
    fields = make_fields(tokens, EOD, options, valid_length=valid, starts=starts)
    assert tuple(fields) == options.names
    for name, field in fields.items():
        assert field.dtype == np.int32
        width = options.segments(tokens.shape[1] - 1) + 1 if name == "cu_seqlens" else tokens.shape[1] - 1
        assert field.shape == (tokens.shape[0], width)
        assert field.tolist() == [row[name] for row in expected if row is not None], name
        assert not np.shares_memory(field, tokens)
    np.testing.assert_array_equal(tokens, before[0])
    np.testing.assert_array_equal(starts, before[1])


@given(batches(), st.integers(1, 12), st.integers(0, 6))
def test_segments_are_as_many_as_the_bound_allows(
    batch: tuple[np.ndarray, np.ndarray | None, np.ndarray], most: int, limit: int
) -> None:
    tokens, _, _ = batch
    options = FieldOptions(max_segments_per_sample=most, segment_limit=limit, over_limit="merge")
    length = tokens.shape[1] - 1
    starts = segment_starts(tokens[:, :-1], EOD, options)
    assert (starts.sum(axis=1) < options.segments(length)).all()
    assert not starts[:, :1].any()
    full = segment_starts(np.full((1, length), EOD), EOD, options)
    assert int(full.sum()) + 1 == options.segments(length), "a row of nothing but EOD reaches the bound"


WORKED_LENGTHS = {
    "eod": ({}, [[0, 2, 4, 6, 6, 6, 6], [0, 6, 6, 6, 6, 6, 6]]),
    "index": ({"boundaries": "index"}, [[0, 1, 5, 6, 6, 6, 6], [0, 3, 6, 6, 6, 6, 6]]),
    "limit": ({"segment_limit": 2, "over_limit": "merge"}, [[0, 2, 6], [0, 6, 6]]),
    "merged": ({"max_segments_per_sample": 2}, [[0, 4, 6], [0, 6, 6]]),
}


@pytest.mark.parametrize(("options", "expected"), WORKED_LENGTHS.values(), ids=WORKED_LENGTHS)
def test_worked_cumulative_lengths(options: dict[str, Any], expected: list[list[int]]) -> None:
    tokens = np.array([[5, EOD, 6, EOD, 7, EOD, 8], [1, 2, 3, 4, 5, 6, EOD]])
    starts = np.zeros(tokens.shape, bool)
    starts[0, [0, 1, 5, 6]] = starts[1, 3] = True
    made = make_fields(tokens, EOD, FieldOptions(cu_seqlens=True, **options), starts=starts)
    assert made["cu_seqlens"].tolist() == expected


def test_a_row_padded_at_a_document_end_has_no_empty_segment() -> None:
    tokens = np.array([[5, EOD, 6, EOD, 7, 8, 9]])
    fields = make_fields(tokens, EOD, FieldOptions(cu_seqlens=True, segment_limit=2), valid_length=np.array([4]))
    assert fields["cu_seqlens"].tolist() == [[0, 2, 4]]
    assert fields["inputs_segmentation"].tolist() == [[1, 1, 2, 2, 0, 0]]


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        ([[1, 2, 300]], {"vocabulary": 300}, r"row 0: token 2 is 300, but ids run from 0 to 299 \(vocabulary of 300\)"),
        (
            [[1, 2, 3], [4, -5, 6]],
            {"rows": np.array([7, 8])},
            "row 8: token 1 is -5, but ids run from 0 to 2147483647:",
        ),
        ([[1, 2, 3], [300, 5, 6]], {"vocabulary": 300}, "row 1: token 0 is 300"),
        ([[1, 300, 3]], {"vocabulary": 300, "valid_length": np.array([1])}, "row 0: token 1 is 300"),
    ],
)
def test_an_id_out_of_range_is_named(tokens: list[list[int]], options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_fields(np.array(tokens), EOD, **options)  # type: ignore[arg-type]  # by the table above


def test_what_lies_in_the_padding_is_never_looked_at() -> None:
    fields = make_fields(np.array([[5, 6, 70000]]), EOD, vocabulary=10, valid_length=np.array([1]))
    assert fields["inputs"].tolist() == [[5, 0]]
    assert fields["targets"].tolist() == [[6, 0]]
    assert fields["inputs_segmentation"].tolist() == fields["targets_segmentation"].tolist() == [[1, 0]]


@pytest.mark.parametrize(
    ("shape", "valid", "message"),
    [
        ((4,), None, r"tokens have the shape \(4,\); the rule is \[rows, L \+ 1\]"),
        ((2, 1), None, r"tokens have the shape \(2, 1\)"),
        ((2, 4), [3], r"valid_length is int64 of shape \(1,\); the rule is integers of shape \(2,\)"),
        ((2, 4), [3, 4], "valid_length runs from 3 to 4; the rule is 0 to 3"),
        ((2, 4), [1.0, 2.0], "valid_length is float64"),
        ((2, 4), [[3], [3]], r"valid_length is int64 of shape \(2, 1\)"),
    ],
)
def test_wrong_shapes_are_refused(shape: tuple[int, ...], valid: list[int] | None, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_fields(np.zeros(shape, np.int32), EOD, valid_length=None if valid is None else np.array(valid))


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        (None, 'boundaries="index" needs `starts`.* read_documents'),
        (np.zeros((2, 2), bool), r"starts are bool of shape \(2, 2\); the rule is bool of shape \(2, 3\) or \(2, 4\)"),
        (np.zeros((2, 3), np.int8), r"starts are int8 of shape \(2, 3\)"),
    ],
)
def test_starts_that_are_missing_or_misshapen(starts: np.ndarray | None, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_fields(np.zeros((2, 4), np.int32), EOD, FieldOptions(boundaries="index"), starts=starts)


def test_a_row_over_the_limit_is_named_with_the_remedies() -> None:
    tokens = np.array([[5, 6, 7, 8], [EOD, EOD, 7, 8]])
    with pytest.raises(DataError, match=r'row 31: has 3 segments, but segment_limit is 2: .*over_limit="merge"'):
        make_fields(tokens, EOD, FieldOptions(segment_limit=2), rows=np.array([30, 31]))


def test_options_have_a_digest_of_their_own() -> None:
    assert FieldOptions().digest == FieldOptions(reset_position_ids=True).digest
    assert FieldOptions().digest == "8b122f16f7b8", "states that older versions saved do not warn"
    assert FieldOptions(cu_seqlens=True).digest == FieldOptions().digest, "the fields are the same"
    different: list[dict[str, Any]] = [{"max_segments_per_sample": most} for most in range(4)] + [
        {"boundaries": "index"},
        {"segment_limit": 4},
        {"segment_limit": 4, "over_limit": "merge"},
    ]
    assert len({FieldOptions(**options).digest for options in different}) == len(different)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_segments_per_sample": -1}, "max_segments_per_sample must be at least 0, not -1"),
        ({"segment_limit": -1}, "segment_limit must be at least 0, not -1; 0 sets no limit"),
        ({"boundaries": "bos"}, "boundaries must be 'eod' or 'index', not 'bos'"),
        ({"over_limit": "drop"}, "over_limit must be 'error' or 'merge', not 'drop'"),
        ({"segment_limit": "8"}, "segment_limit must be a whole number, not '8'"),
        ({"eod_mask_loss": "false"}, "eod_mask_loss must be True or False, not 'false'"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        FieldOptions(**options)
