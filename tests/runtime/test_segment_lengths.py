"""Segment lengths, compiled: equal to the NumPy definition whatever the rows and the options."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import DataError
from gristmill.runtime.boundaries import cumulative_lengths
from gristmill.runtime.fields import FieldOptions, padding_of, segment_starts
from gristmill.runtime.segment_lengths import listed_starts, segment_lengths

EOD = 3


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 5),
    st.integers(1, 40),
    st.sampled_from([0, 0.05, 0.3, 0.8, 1]),
    st.integers(0, 2**32),
    st.booleans(),
    st.builds(
        FieldOptions,
        max_segments_per_sample=st.integers(0, 20),
        boundaries=st.sampled_from(["eod", "index"]),
        segment_limit=st.sampled_from([0, 1, 2, 4, 50]),
        over_limit=st.sampled_from(["error", "merge"]),
    ),
)
def test_equals_the_definition(
    rows: int, length: int, share: float, seed: int, padded: bool, options: FieldOptions
) -> None:
    random = np.random.default_rng(seed)
    shape = (rows, length + 1)
    tokens = np.where(random.random(shape) < share, EOD, random.integers(4, 9, shape)).astype(np.uint16)
    starts = random.random(shape) < share
    valid = random.integers(0, length + 1, rows) if padded else None
    padding = None if valid is None else padding_of(valid, (rows, length))
    listed = listed_starts(tokens, EOD, starts if options.boundaries == "index" else None)
    numbers = 100 + np.arange(rows)
    try:
        kept = segment_starts(tokens[:, :-1], EOD, options, starts=starts, padding=padding, rows=numbers)
    except DataError as error:
        with pytest.raises(DataError, match=re.escape(str(error))):
            segment_lengths(listed, numbers, length, valid, options)
        return
    expected = cumulative_lengths(kept, valid, options.segments(length))
    found = segment_lengths(listed, numbers, length, valid, options)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_an_end_behind_the_last_target_begins_no_segment_of_the_next_row() -> None:
    tokens = np.array([[1, EOD, 1, EOD], [1, 1, 1, 1]])
    assert listed_starts(tokens, EOD, None).tolist() == [2]
