"""Batches of NumPy arrays: what all processes get together is the stream, in its order, however many there are."""

import gc
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import SettingsError
from gristmill.runtime import MegatronStream, make_fields, make_megatron_fields, open_corpus
from gristmill.runtime.fields import FieldOptions
from gristmill.runtime.host_batches import HostBatches, host_rows
from gristmill.runtime.presets import PRESETS


@pytest.fixture(scope="module")
def stream(blended_corpus: str) -> MegatronStream:
    """200 rows of 16 tokens."""
    return open_corpus(blended_corpus).stream()


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([8, 16, 64]), st.integers(0, 2), st.sampled_from(["drop", "pad"]))
def test_all_processes_together_get_the_stream(
    stream: MegatronStream, processes: int, batch: int, prefetch: int, last: str
) -> None:
    parts = [
        HostBatches(stream, batch, rows=host_rows(batch, number, processes), prefetch=prefetch, last_batch=last)  # type: ignore[arg-type]  # one of the two
        for number in range(processes)
    ]
    count = 200 // batch + (last == "pad" and 200 % batch > 0)
    assert [len(part) for part in parts] == [count] * processes
    seen = 0
    for batches in zip(*parts, strict=True):
        inputs = np.concatenate([one["inputs"] for one in batches])
        rows = min(batch, 200 - seen)
        np.testing.assert_array_equal(inputs[:rows], stream.read(np.arange(seen, seen + rows))[:, :-1])
        assert not inputs[rows:].any()
        seen += rows
    assert seen == (200 if last == "pad" else 200 // batch * batch)


def test_a_state_crosses_process_counts(stream: MegatronStream) -> None:
    two = iter(HostBatches(stream, 8, rows=host_rows(8, 1, 2)))
    next(two), next(two)
    one = iter(HostBatches(stream, 20, rows=host_rows(20, 0, 1)))
    one.set_state(two.get_state())
    expected = make_fields(stream.read(np.arange(16, 36)), stream.eod_id)
    for name, array in next(one).items():
        np.testing.assert_array_equal(array, expected[name])
    assert one.get_state()["next_sample"] == 36
    counts = one.metrics()
    assert counts["samples"] == 20
    two.close()
    one.close()


def test_megatrons_names(stream: MegatronStream) -> None:
    options = PRESETS["megatron"]
    batches = HostBatches(stream, 4, rows=host_rows(4, 0, 1), options=options, naming="megatron", prefetch=0)
    made = next(iter(batches))
    expected = make_megatron_fields(stream.read(np.arange(4)), stream.eod_id, options)
    assert made.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(made[name], array)


def test_an_iterator_that_is_dropped_leaves_no_thread(stream: MegatronStream) -> None:
    """As MaxText drops one for another before each round of validation."""
    before = threading.active_count()
    batches = HostBatches(stream, 8, rows=host_rows(8, 0, 1), prefetch=2)
    for _ in range(3):
        iterator = iter(batches)
        first = next(iterator)["inputs"]
        np.testing.assert_array_equal(first, stream.read(np.arange(8))[:, :-1])
    del iterator
    gc.collect()
    assert threading.active_count() == before


def test_what_is_wrong_is_told_when_it_is_made(stream: MegatronStream) -> None:
    rows = host_rows(8, 0, 1)
    with pytest.raises(SettingsError, match="global_batch 201 is more than the 200 rows of the stream"):
        HostBatches(stream, 201, rows=host_rows(201, 0, 1))
    with pytest.raises(SettingsError, match="prefetch must be a whole number of batches of at least 0, not -1"):
        HostBatches(stream, 8, rows=rows, prefetch=-1)
    with pytest.raises(SettingsError, match="naming must be 'maxtext' or 'megatron', not 'ours'"):
        HostBatches(stream, 8, rows=rows, naming="ours")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(SettingsError, match="last_batch must be 'drop' or 'pad', not 'keep'"):
        HostBatches(stream, 8, rows=rows, last_batch="keep")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(SettingsError, match="global_batch must be a whole number of rows of at least 1, not 0"):
        host_rows(0, 0, 1)
    for wrong, message in (
        ([6, 7, 8], "row 8 is not in a batch of 8, whose rows are numbered from 0"),
        ([-1], "row -1 is not in a batch of 8"),
        ([3, 3], r"rows \[3, 3\] name one twice"),
        ([0.0], r"rows are float64 of shape \(1,\); the rule is a list of integers"),
    ):
        with pytest.raises(SettingsError, match=message):
            HostBatches(stream, 8, rows=wrong)
    assert HostBatches(stream, 8, rows=rows, options=FieldOptions(eod_mask_loss=True)).options.eod_mask_loss
