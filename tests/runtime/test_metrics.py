"""The numbers of a run: equal to what was delivered, whoever asks and whenever."""

import threading
from collections import Counter
from dataclasses import fields

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import ArrayLike

from gristmill.formats.errors import StorageError
from gristmill.runtime.batches import TokenBatches
from gristmill.runtime.corpus import open_corpus
from gristmill.runtime.fields import FieldOptions, make_fields
from gristmill.runtime.metrics import BatchMetrics, MeasuredStream, ReadCounts, count_loss_tokens
from gristmill.runtime.streams import MegatronStream


@pytest.fixture(scope="module")
def stream(blended_corpus: str) -> MegatronStream:
    return open_corpus(blended_corpus).stream("train")


def sharding() -> NamedSharding:
    return NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("eod_mask_loss", [False, True])
def test_the_numbers_are_those_of_the_batches_delivered(
    stream: MegatronStream, prefetch: int, eod_mask_loss: bool
) -> None:
    options = FieldOptions(eod_mask_loss=eod_mask_loss)
    before = stream.read_counts()
    with TokenBatches(stream, 8, sharding(), options=options, prefetch=prefetch) as batches:
        batches.next_sample = 16
        loss = sum(int((next(batches)["targets_segmentation"] != 0).sum()) for _ in range(5))
        found = batches.metrics()
    expected = Counter(piece.source for row in range(16, 56) for piece in stream.describe(row)[:1])
    assert found["batches"] == 5
    assert found["samples"] == 40
    assert found["tokens"] == 40 * stream.sequence_length
    assert found["loss_tokens"] == loss
    assert {name.removeprefix("samples/"): rows for name, rows in found.items() if "/" in name} == expected
    assert found["bytes_read"] - before["bytes_read"] >= 40 * (stream.sequence_length + 1) * stream.dtype.itemsize
    assert 0 <= found["last_wait_seconds"] <= found["longest_wait_seconds"] <= found["wait_seconds"]


def test_they_are_plain_numbers_and_a_pytree(stream: MegatronStream) -> None:
    with TokenBatches(stream, 8, sharding()) as batches:
        assert batches.metrics()["batches"] == 0
        next(batches)
        found = batches.metrics()
    assert {type(value) for value in found.values()} <= {int, float}
    assert len(jax.tree.leaves(found)) == len(found)
    doubled = jax.tree.map(lambda value: 2 * value, found)
    assert doubled["tokens"] == 2 * 8 * stream.sequence_length


def test_sources_are_counted_however_many_batches_there_were(stream: MegatronStream) -> None:
    rows = np.array([0, 3, 4])
    metrics = BatchMetrics(stream, rows, stream.sequence_length)
    firsts = [first % 190 for first in range(1000)]
    for first in firsts:
        metrics.add(first, 1, 0.5)
    found = metrics.snapshot()
    expected = stream.rows_by_source(np.add.outer(firsts, rows).ravel())
    assert {name.removeprefix("samples/"): count for name, count in found.items() if "/" in name} == expected
    assert (found["wait_seconds"], found["loss_tokens"]) == (500.0, 1000)


def test_a_stream_that_tells_nothing_is_measured_too() -> None:
    metrics = BatchMetrics(range(10**6), np.arange(4), 10)
    metrics.add(0, 40, 0.25)
    assert metrics.snapshot() == {
        "batches": 1,
        "samples": 4,
        "tokens": 40,
        "loss_tokens": 40,
        "wait_seconds": 0.25,
        "last_wait_seconds": 0.25,
        "longest_wait_seconds": 0.25,
    }


def test_streams_of_a_corpus_are_measured(stream: MegatronStream) -> None:
    assert isinstance(stream, MeasuredStream)
    assert stream.waiting_on() == []
    assert sum(stream.rows_by_source(np.arange(len(stream))).values()) == len(stream)


class StumblingStream(MegatronStream):
    """Stumbles when rows are counted, once for each error in `errors`."""

    errors: list[BaseException] = []  # noqa: RUF012 - emptied by the test

    def rows_by_source(self, rows: ArrayLike) -> dict[str, int]:
        if self.errors:
            raise self.errors.pop()
        return super().rows_by_source(rows)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageError("the index cannot be read")])
def test_no_batch_is_lost_where_counting_is_interrupted(
    stream: MegatronStream, prefetch: int, error: BaseException
) -> None:
    """Ctrl-C, or a store that fails, while `next` counts: the state stays, and the next call gives the same batch."""
    stumbling = StumblingStream(**{one.name: getattr(stream, one.name) for one in fields(stream)})
    StumblingStream.errors.append(error)
    with TokenBatches(stumbling, 8, sharding(), prefetch=prefetch) as batches:
        for number in range(300):
            if batches.next_sample + 8 > 200:
                batches.next_sample = 0
                batches.set_state(batches.get_state())
            first = batches.next_sample
            if number == 256:
                with pytest.raises(type(error)):
                    next(batches)
                assert batches.next_sample == first
            np.testing.assert_array_equal(next(batches)["inputs"], stream.read(np.arange(first, first + 8))[:, :-1])
        found = batches.metrics()
    assert not StumblingStream.errors
    assert (found["batches"], found["samples"]) == (300, 2400)
    assert sum(rows for name, rows in found.items() if "/" in name) == 2400


def test_many_threads_lose_no_count(stream: MegatronStream) -> None:
    counts, metrics = ReadCounts(), BatchMetrics(stream, np.arange(2), 16)
    seen: list[int | float] = []

    def work() -> None:
        for first in range(500):
            counts.add(bytes_read=3, shard_hits=1)
            metrics.add(first % 150, 5, 0.0)
            if first % 100 == 0:
                seen.append(metrics.snapshot()["batches"])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = metrics.snapshot()
    assert (counts.bytes_read, counts.shard_hits) == (6000, 2000)
    assert (found["batches"], found["loss_tokens"]) == (2000, 10_000)
    assert sum(count for name, count in found.items() if "/" in name) == 4000
    assert max(seen) <= 2000


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_loss_tokens_are_those_of_the_fields(data: st.DataObject) -> None:
    rows, length = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 9))
    tokens = np.array(
        data.draw(st.lists(st.integers(0, 3), min_size=rows * (length + 1), max_size=rows * (length + 1))), np.uint16
    ).reshape(rows, length + 1)
    valid = data.draw(st.none() | st.lists(st.integers(0, length), min_size=rows, max_size=rows).map(np.array))
    valid = None if valid is None else valid.astype(np.int64)
    mask = data.draw(st.booleans())
    fields = make_fields(tokens, 1, FieldOptions(eod_mask_loss=mask), valid_length=valid)
    expected = np.count_nonzero(fields["targets_segmentation"])
    assert count_loss_tokens(tokens[:, :-1], 1, eod_mask_loss=mask, valid_length=valid) == expected
