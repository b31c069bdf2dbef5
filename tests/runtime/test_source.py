"""Rows one by one: what Grain needs of a data source, its own pipelines included."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import absl.flags
import grain
import numpy as np
import pytest

from gristmill.runtime import FieldOptions, StreamSource, make_fields, open_corpus


@pytest.fixture(scope="module")
def source(blended_corpus: str) -> StreamSource:
    """The training rows of the blended corpus."""
    return StreamSource(open_corpus(blended_corpus).stream(), FieldOptions(eod_mask_loss=True))


@pytest.fixture(scope="module")
def expected(source: StreamSource) -> dict[str, np.ndarray]:
    """The fields of all rows, made at once."""
    return make_fields(source.stream.read(np.arange(len(source))), source.stream.eod_id, source.options)


def test_a_row_has_six_fields(source: StreamSource, expected: dict[str, np.ndarray]) -> None:
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert len(source) == 200
    for row in (0, 7, 199, -1, np.int64(3)):
        fields = source[row]
        assert fields.keys() == expected.keys()
        for name, field in fields.items():
            assert (field.dtype, field.shape) == (np.int32, (16,))
            np.testing.assert_array_equal(field, expected[name][row])
    with pytest.raises(IndexError, match="row 200 does not exist"):
        source[200]
    with pytest.raises(IndexError, match="row -1 does not exist"):
        source[-201]


def test_it_travels_small_and_keeps_its_name(source: StreamSource) -> None:
    data = pickle.dumps(source)
    assert len(data) < 5_000
    again = pickle.loads(data)
    assert repr(again) == repr(source)
    assert "eod_mask_loss=True" in repr(source)
    np.testing.assert_array_equal(again[5]["inputs"], source[5]["inputs"])


def test_many_threads_may_read(source: StreamSource, expected: dict[str, np.ndarray]) -> None:
    rows = np.random.default_rng(0).integers(0, len(source), 300)
    with ThreadPoolExecutor(6) as pool:
        for row, fields in zip(rows, pool.map(source.__getitem__, rows), strict=True):
            np.testing.assert_array_equal(fields["inputs"], expected["inputs"][row])


def batches(source: StreamSource) -> Any:
    return grain.MapDataset.source(source).batch(16, drop_remainder=True)


@pytest.mark.parametrize("threads", [0, 4])
def test_grain_batches_it(source: StreamSource, expected: dict[str, np.ndarray], threads: int) -> None:
    dataset = batches(source).to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=8))
    found = list(dataset)
    assert len(found) == 12
    for name in expected:
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in found]), expected[name][:192])


@pytest.mark.slow
def test_grain_workers_read_it(source: StreamSource, expected: dict[str, np.ndarray]) -> None:
    absl.flags.FLAGS.mark_as_parsed()
    dataset = batches(source).to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
    iterator = iter(dataset)
    found = [next(iterator)["targets"] for _ in range(3)]
    iterator.close()
    np.testing.assert_array_equal(np.concatenate(found), expected["targets"][:48])
