"""Inputs and targets apart: the definition, the memory they lie in, and that all that wraps a stream hands them on."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.runtime import open_corpus
from gristmill.runtime.fields import FieldOptions
from gristmill.runtime.pairs import PairStream, aligned_arrays, pairs_of
from gristmill.runtime.raw_rows import PairedRows, RawReader, RawRows


@given(
    count=st.integers(1, 6),
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(["uint8", "uint16", "int32", "int64"]),
)
def test_aligned_arrays_lie_apart_at_multiples_of_64(count: int, shape: tuple[int, ...], dtype: str) -> None:
    arrays = aligned_arrays(count, shape, np.dtype(dtype), zeros=True)
    assert len(arrays) == count
    for number, array in enumerate(arrays):
        assert array.shape == shape
        assert array.dtype == dtype
        assert array.ctypes.data % 64 == 0
        assert not array.any()
        array.fill(number + 1)
    for number, array in enumerate(arrays):
        assert (array == number + 1).all(), "none was written through another"


def test_pairs_are_fresh() -> None:
    tokens = np.arange(12, dtype=np.uint16).reshape(3, 4)
    inputs, targets = pairs_of(tokens)
    assert inputs.tolist() == [[0, 1, 2], [4, 5, 6], [8, 9, 10]]
    assert targets.tolist() == [[1, 2, 3], [5, 6, 7], [9, 10, 11]]
    assert not np.shares_memory(inputs, tokens)
    assert not np.shares_memory(targets, tokens)


@pytest.fixture
def stream(make_corpus: Any) -> Any:
    folder = make_corpus(documents={"web": 60})
    make_corpus.index(folder)
    return open_corpus(folder).stream("train")


def test_views_read_the_pairs_of_their_rows(stream: Any) -> None:
    view: Any = stream.skip_range(2, 5)
    for one in (stream, view):
        assert isinstance(one, PairStream)
    rows = np.arange(len(view))
    tokens = view.read(rows)
    inputs, targets = view.read_pairs(rows)
    assert np.array_equal(inputs, tokens[:, :-1])
    assert np.array_equal(targets, tokens[:, 1:])


def test_rows_are_read_apart_where_that_is_enough(stream: Any) -> None:
    rows = np.arange(4)
    reader = RawReader(stream, FieldOptions(), pad=True)
    apart, whole = reader.read_paired(rows), reader.read(rows)
    assert isinstance(apart, PairedRows)
    assert isinstance(whole, RawRows)
    assert np.array_equal(apart.tokens, whole.tokens)
    assert np.array_equal(apart.inputs, whole.inputs)
    assert np.array_equal(apart.rows, whole.rows)
    assert isinstance(reader.read_paired(len(stream) - 2 + rows), RawRows), "padding is added to whole rows"
    by_index = RawReader(stream, FieldOptions(boundaries="index"))
    assert isinstance(by_index.read_paired(rows), RawRows), "which alone say where documents begin"
