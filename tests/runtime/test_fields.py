"""The six fields: worked tables, and a plain walk over each row as the oracle for every combination of options."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
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


def oracle(row: Sequence[int], options: FieldOptions, valid: int) -> dict[str, list[int]]:
    """The fields of one row by walking over it."""
    length = len(row) - 1
    most = options.max_segments_per_sample
    least = length // most if most else 0
    out: dict[str, list[int]] = {name: [] for name in FIELD_NAMES}
    segment, start = 1, 0
    for place in range(length):
        boundary = place > 0 and row[place - 1] == EOD
        if boundary and (least <= 1 or place - start > least):
            segment, start = segment + 1, place
        used = int(place < valid)
        out["inputs"].append(row[place] * used)
        out["targets"].append(row[place + 1] * used)
        out["inputs_segmentation"].append((segment if options.reset_attention_mask else 1) * used)
        out["targets_segmentation"].append(int(not (options.eod_mask_loss and row[place] == EOD)) * used)
        out["inputs_position"].append((place - start if options.reset_position_ids else place) * used)
    out["targets_position"] = out["inputs_position"]
    return out


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray | None]:
    rows, width = draw(st.integers(0, 4)), draw(st.integers(2, 24))
    token = st.sampled_from([EOD, EOD, 0, 7, 8])
    tokens = draw(st.lists(st.lists(token, min_size=width, max_size=width), min_size=rows, max_size=rows))
    valid = draw(st.none() | st.lists(st.integers(0, width - 1), min_size=rows, max_size=rows))
    dtype = draw(st.sampled_from([np.uint16, np.int32]))
    return np.array(tokens, dtype).reshape(rows, width), None if valid is None else np.array(valid, np.int64)


every_option = st.builds(
    FieldOptions,
    reset_attention_mask=st.booleans(),
    reset_position_ids=st.booleans(),
    eod_mask_loss=st.booleans(),
    max_segments_per_sample=st.integers(0, 12),
)


@given(batches(), every_option)
def test_equals_a_walk_over_each_row(batch: tuple[np.ndarray, np.ndarray | None], options: FieldOptions) -> None:
    tokens, valid = batch
    before = tokens.copy()
    fields = make_fields(tokens, EOD, options, valid_length=valid)
    lengths = [tokens.shape[1] - 1] * len(tokens) if valid is None else valid.tolist()
    expected = [oracle(row, options, length) for row, length in zip(tokens.tolist(), lengths, strict=True)]
    for name in FIELD_NAMES:
        assert fields[name].dtype == np.int32
        assert fields[name].shape == (tokens.shape[0], tokens.shape[1] - 1)
        assert fields[name].tolist() == [row[name] for row in expected], name
        assert not np.shares_memory(fields[name], tokens)
    np.testing.assert_array_equal(tokens, before)


@given(batches(), st.integers(1, 12))
def test_merging_bounds_the_segments(batch: tuple[np.ndarray, np.ndarray | None], most: int) -> None:
    tokens, _ = batch
    length = tokens.shape[1] - 1
    starts = segment_starts(tokens[:, :-1], EOD, most)
    if length // most > 1:
        assert (starts.sum(axis=1) <= length // (length // most + 1)).all()
    assert not starts[:, :1].any()


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
    ],
)
def test_wrong_shapes_are_refused(shape: tuple[int, ...], valid: list[int] | None, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_fields(np.zeros(shape, np.int32), EOD, valid_length=None if valid is None else np.array(valid))


def test_options_have_a_digest_of_their_own() -> None:
    assert FieldOptions().digest == FieldOptions(reset_position_ids=True).digest
    assert len({FieldOptions(max_segments_per_sample=most).digest for most in range(4)}) == 4
    with pytest.raises(SettingsError, match="max_segments_per_sample must be at least 0, not -1"):
        FieldOptions(max_segments_per_sample=-1)
