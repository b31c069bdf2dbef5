"""The compiled pass makes the fields that the NumPy definition has, for any rows and options."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import DataError
from gristmill.runtime.compiled_fields import compiled_fields
from gristmill.runtime.fields import FieldOptions, make_fields

EOD = 1


@st.composite
def options_of(draw: st.DrawFn) -> FieldOptions:
    return FieldOptions(
        reset_attention_mask=draw(st.booleans()),
        reset_position_ids=draw(st.booleans()),
        eod_mask_loss=draw(st.booleans()),
        max_segments_per_sample=draw(st.integers(0, 6)),
        boundaries=draw(st.sampled_from(["eod", "index"])),
        segment_limit=draw(st.integers(0, 5)),
        over_limit=draw(st.sampled_from(["error", "merge"])),
        cu_seqlens=draw(st.booleans()),
    )


def outcome(make: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Fields, or the message that refuses the rows."""
    try:
        return make(), ""
    except DataError as error:
        return {}, str(error)


@settings(deadline=None)  # the first call compiles
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(0, 5), st.integers(1, 20)),
    dtype=st.sampled_from([np.uint16, np.int32]),
    options=options_of(),
    padded=st.booleans(),
)
def test_fields_are_those_of_the_definition(
    seed: int, shape: tuple[int, int], dtype: Any, options: FieldOptions, padded: bool
) -> None:
    random = np.random.default_rng(seed)
    rows, length = shape
    tokens = random.integers(0, 5, (rows, length + 1)).astype(dtype)
    starts = random.random(tokens.shape) < 0.3
    starts[:, 0] = False
    valid = random.integers(0, length + 1, rows) if padded else None
    how: dict[str, Any] = {
        "vocabulary": 5,
        "valid_length": valid,
        "rows": np.arange(100, 100 + rows),
        "starts": starts if options.boundaries == "index" else None,
    }
    expected, refusal = outcome(lambda: make_fields(tokens, EOD, options, **how))
    found, same_refusal = outcome(lambda: compiled_fields(tokens, EOD, options, **how))
    assert same_refusal == refusal
    assert list(found) == list(expected)
    for name, field in found.items():
        assert field.dtype == expected[name].dtype, name
        np.testing.assert_array_equal(field, expected[name], err_msg=name)
    assert not any(np.shares_memory(one, other) for one, other in combinations(found.values(), 2))


def test_ids_beyond_the_vocabulary_are_refused_as_by_the_definition() -> None:
    tokens = np.array([[2, 3, 9]], np.uint16)
    how: dict[str, Any] = {"valid_length": None, "rows": np.array([7]), "starts": None}
    with pytest.raises(DataError, match="row 7: token 2 is 9"):
        compiled_fields(tokens, EOD, FieldOptions(), vocabulary=9, **how)
