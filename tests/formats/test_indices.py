"""Document, sample and shuffle index: Megatron's rules one by one, and compiled code against its definition."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.formats.errors import DataError, SettingsError
from gristmill.formats.indices import (
    EpochPlan,
    build_document_index,
    build_indices,
    build_sample_index,
    build_shuffle_index,
    plan_epochs,
    sample_index_compiled,
    sample_index_dtype,
    sample_index_numpy,
    shuffle_index_dtype,
)

lengths_lists = st.lists(st.one_of(st.just(0), st.integers(0, 9), st.integers(0, 200)), min_size=1, max_size=60).filter(
    any
)


def int32(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def epoch_plan(epochs: int, separate: bool) -> EpochPlan:
    tokens, length = 9, 4
    return EpochPlan(
        tokens=tokens,
        sequence_length=length,
        add_extra_token=True,
        epochs=epochs,
        separate=separate,
        samples=(epochs * tokens - 1) // length,
    )


@pytest.mark.parametrize(
    ("plan", "documents", "samples", "order"),
    [
        (epoch_plan(1, False), [0, 1, 2], [[0, 0], [1, 1], [2, 3]], [1, 0]),
        (
            epoch_plan(2, False),
            [2, 1, 2, 0, 1, 0],
            [[0, 0], [1, 0], [2, 2], [3, 2], [5, 1]],
            [0, 2, 1, 3],
        ),
        (
            epoch_plan(3, True),
            [2, 1, 2, 0, 1, 0, 0, 2, 1],
            [[0, 0], [1, 0], [2, 2], [3, 2], [5, 1], [6, 2], [7, 3]],
            [3, 0, 2, 1, 4, 5],
        ),
    ],
    ids=["one epoch", "two epochs shuffled together", "three epochs, the last apart"],
)
def test_known_indices_of_three_sequences(
    plan: EpochPlan, documents: list[int], samples: list[list[int]], order: list[int]
) -> None:
    indices = build_indices([3, 2, 4], 0, 3, plan, seed=1234)
    assert indices.document_index.tolist() == documents
    assert indices.sample_index.tolist() == samples
    assert indices.shuffle_index.tolist() == order
    assert [array.dtype for array in (indices.document_index, indices.sample_index, indices.shuffle_index)] == [
        np.int32,
        np.int32,
        np.uint32,
    ]
    assert indices.samples == plan.samples
    assert indices.plan == plan


@pytest.mark.parametrize(
    ("lengths", "extra", "drop_last", "rows"),
    [
        ([0, 0, 5, 5], True, True, [[0, 0], [2, 4], [3, 3]]),
        ([5, 5], True, True, [[0, 0], [0, 4], [1, 3]]),
        ([4, 4, 4], False, True, [[0, 0], [0, 4], [1, 4], [2, 4]]),
        ([5, 5], True, False, [[0, 0], [0, 4], [1, 3], [1, 4]]),
        ([3], True, True, [[0, 0]]),
        ([5, 5, 0, 0], True, False, [[0, 0], [0, 4], [1, 3], [1, 4]]),
        ([5, 5, 0, 0], False, False, [[0, 0], [0, 4], [1, 3], [3, 0]]),
    ],
    ids=[
        "leading empties",
        "a boundary on the last token of a sequence",
        "no extra token: a boundary is written as the end of its sequence",
        "kept partial sample ends at the last token",
        "too short for a sample",
        "kept partial sample steps back over empty sequences at the end",
        "kept partial sample without extra token ends at the very last sequence",
    ],
)
def test_known_sample_indices(lengths: list[int], extra: bool, drop_last: bool, rows: list[list[int]]) -> None:
    plan = plan_epochs(tokens=sum(lengths), sequence_length=4, add_extra_token=extra, drop_last_partial=drop_last)
    order = np.arange(len(lengths), dtype=np.int32)
    assert sample_index_numpy(int32(lengths), order, plan).tolist() == rows
    assert sample_index_compiled(int32(lengths), order, plan).tolist() == rows
    assert build_sample_index(int32(lengths), order, plan).tolist() == rows


def test_more_samples_than_the_tokens_give_add_epochs() -> None:
    plan = plan_epochs(tokens=3, sequence_length=4, samples=3)
    assert plan.epochs == 5
    assert build_indices([3], 0, 1, plan, seed=1).sample_index.tolist() == [[0, 0], [1, 1], [2, 2], [4, 0]]


@pytest.mark.parametrize(
    ("samples", "epochs", "separate", "total"),
    [
        (0, 1, False, 111),
        (1, 1, False, 111),
        (111, 1, False, 111),
        (112, 2, True, 222),
        (198, 2, True, 222),
        (199, 2, False, 222),
        (222, 2, False, 222),
        (223, 3, True, 333),
        (309, 3, True, 333),
        (310, 3, False, 333),
        (333, 3, False, 333),
        (334, 4, True, 444),
    ],
)
def test_epochs_and_separation_over_a_thousand_tokens(samples: int, epochs: int, separate: bool, total: int) -> None:
    plan = plan_epochs(tokens=1000, sequence_length=9, samples=samples)
    assert (plan.epochs, plan.separate, plan.samples) == (epochs, separate, total)


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(1, 70), st.integers(0, 3000), st.booleans())
def test_epochs_are_those_of_adding_until_there_is_enough(tokens: int, length: int, samples: int, extra: bool) -> None:
    needed, epochs, there = samples * length + int(extra), 1, tokens
    while there < needed:
        epochs, there = epochs + 1, there + tokens
    plan = plan_epochs(tokens=tokens, sequence_length=length, samples=samples, add_extra_token=extra)
    assert plan.epochs == epochs
    assert samples <= plan.samples == (epochs * tokens - int(extra)) // length


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(1, 70), st.integers(1, 40), st.booleans())
def test_whole_epochs_are_never_separated(tokens: int, length: int, epochs: int, extra: bool) -> None:
    plan = plan_epochs(tokens=tokens, sequence_length=length, epochs=epochs, add_extra_token=extra)
    assert (plan.epochs, plan.separate) == (epochs, False)
    by_samples = plan_epochs(tokens=tokens, sequence_length=length, samples=plan.samples, add_extra_token=extra)
    assert by_samples.epochs < epochs or not by_samples.separate


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tokens": 0}, DataError, "there are no tokens to index"),
        ({"tokens": 0, "samples": 5}, DataError, "there are no tokens to index"),
        ({"tokens": 9, "samples": 5, "epochs": 1}, SettingsError, r"samples \(5\) and epochs \(1\) exclude each other"),
        ({"tokens": 9, "samples": -1}, SettingsError, "samples must not be negative, but -1"),
        ({"tokens": 9, "epochs": 0}, SettingsError, "epochs must be at least 1, not 0"),
        ({"tokens": 9, "sequence_length": 0}, SettingsError, "sequence_length must be at least 1, not 0"),
    ],
)
def test_impossible_plans_are_refused(arguments: dict[str, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan_epochs(**{"sequence_length": 4, **arguments})  # type: ignore[arg-type]  # one dict for several keywords


@settings(max_examples=300, deadline=None)
@given(
    lengths_lists,
    st.integers(1, 65),
    st.integers(0, 400),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.data(),
)
def test_compiled_rows_equal_their_definition(
    lengths: list[int], length: int, samples: int, extra: bool, drop_last: bool, seed: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(lengths) - 1))
    end = data.draw(st.integers(start + 1, len(lengths)))
    tokens = sum(lengths[start:end])
    if tokens == 0:
        return
    plan = plan_epochs(
        tokens=tokens, sequence_length=length, samples=samples, add_extra_token=extra, drop_last_partial=drop_last
    )
    order = build_document_index(start, end, plan, np.random.RandomState(seed))
    expected = sample_index_numpy(int32(lengths), order, plan)
    found = sample_index_compiled(int32(lengths), order, plan)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


@settings(deadline=None)
@given(lengths_lists, st.integers(1, 65), st.integers(0, 400), st.booleans(), st.integers(0, 2**32 - 1))
def test_rows_cut_the_stream_into_windows(
    lengths: list[int], length: int, samples: int, extra: bool, seed: int
) -> None:
    """Reading from row k to row k + 1 gives the tokens ``k * length`` to ``(k + 1) * length + e`` of the stream."""
    plan = plan_epochs(tokens=sum(lengths), sequence_length=length, samples=samples, add_extra_token=extra)
    indices = build_indices(lengths, 0, len(lengths), plan, seed)
    order = indices.document_index
    sizes = int32(lengths)[order].astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    positions = starts[indices.sample_index[:, 0]] + indices.sample_index[:, 1]
    assert np.array_equal(positions, np.arange(plan.samples + 1) * length)
    assert int(positions[-1]) + int(extra) <= plan.epochs * plan.tokens


@settings(deadline=None)
@given(lengths_lists, st.integers(1, 20), st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_each_epoch_holds_each_sequence_and_each_sample_is_served_once(
    lengths: list[int], length: int, samples: int, seed: int
) -> None:
    plan = plan_epochs(tokens=sum(lengths), sequence_length=length, samples=samples)
    indices = build_indices(lengths, 0, len(lengths), plan, seed)
    assert np.array_equal(
        np.bincount(indices.document_index, minlength=len(lengths)), np.full(len(lengths), plan.epochs)
    )
    assert np.array_equal(np.sort(indices.shuffle_index), np.arange(plan.samples))
    if plan.separate:
        assert np.array_equal(np.sort(indices.document_index[-len(lengths) :]), np.arange(len(lengths)))
        first = indices.shuffle_index[: plan.samples_before_final]
        assert np.array_equal(np.sort(first), np.arange(plan.samples_before_final))


def test_the_draws_are_one_generators_in_megatrons_order() -> None:
    plan = plan_epochs(tokens=1000, sequence_length=9, samples=112)
    assert plan.separate
    random = np.random.RandomState(99)
    first = np.tile(np.arange(10, 60), plan.epochs - 1)
    random.shuffle(first)
    last = np.arange(10, 60)
    random.shuffle(last)
    head = np.arange(plan.samples_before_final)
    random.shuffle(head)
    tail = np.arange(plan.samples_before_final, plan.samples)
    random.shuffle(tail)
    drawn = np.random.RandomState(99)
    assert np.array_equal(build_document_index(10, 60, plan, drawn), np.concatenate([first, last]))
    assert np.array_equal(build_shuffle_index(plan, drawn), np.concatenate([head, tail]))


def test_asking_for_more_keeps_the_order_until_the_epochs_change() -> None:
    lengths = [100] * 10
    built = {
        samples: build_indices(
            lengths, 0, 10, plan_epochs(tokens=1000, sequence_length=9, samples=samples), seed=5
        ).shuffle_index
        for samples in (112, 150, 198, 199)
    }
    assert np.array_equal(built[112], built[150])
    assert np.array_equal(built[112], built[198])
    assert not np.array_equal(built[112], built[199])


def test_sequences_beyond_int32_are_refused() -> None:
    plan = plan_epochs(tokens=10, sequence_length=4)
    with pytest.raises(SettingsError, match=r"sequences 0 to 2147483648: a document index numbers 0 to 2147483647"):
        build_document_index(0, 2**31, plan, np.random.RandomState(0))


def test_dtypes_switch_where_megatrons_do() -> None:
    assert sample_index_dtype(2**31 - 1, 5) is np.int32
    assert sample_index_dtype(2**31, 5) is np.int64
    assert sample_index_dtype(5, 2**31) is np.int64
    assert shuffle_index_dtype(2**32 - 3) is np.uint32
    assert shuffle_index_dtype(2**32 - 2) is np.int64


def test_wide_rows_are_compiled_too() -> None:
    from gristmill.formats import kernels

    lengths, order = int32([5, 0, 5]), np.arange(3, dtype=np.int32)
    rows = np.empty((3, 2), dtype=np.int64)
    kernels.sample_rows(lengths, order, 4, 1, rows)
    assert rows.tolist() == [[0, 0], [0, 4], [2, 3]]


@pytest.mark.parametrize(
    ("tokens", "length", "samples"),
    [(100_000_007, 7, 14_285_715), (17_041_591, 4999, 3410), (2**24 - 1, 3, (2**24 - 1) // 3)],
    ids=["one less than there are", "one more than there are", "exact below 2**24"],
)
def test_the_kept_partial_sample_is_counted_in_single_precision(tokens: int, length: int, samples: int) -> None:
    plan = plan_epochs(tokens=tokens, sequence_length=length, add_extra_token=False, drop_last_partial=False)
    assert plan.samples == samples
    assert abs(plan.samples - math.ceil(tokens / length)) == (0 if tokens < 2**24 else 1)


@pytest.mark.parametrize("length", [16, 1000, 100_000])
def test_large_indices_are_compiled_and_equal_their_definition(length: int) -> None:
    lengths = np.random.default_rng(0).integers(0, 40, 150_000).astype(np.int32)
    plan = plan_epochs(tokens=int(lengths.sum()), sequence_length=length, epochs=2)
    indices = build_indices(lengths, 0, len(lengths), plan, seed=1)
    assert np.array_equal(indices.sample_index, sample_index_numpy(lengths, indices.document_index, plan))


def test_lengths_may_be_mapped_read_only_and_unaligned() -> None:
    raw = bytes(2) + int32([5, 0, 5]).tobytes()
    unaligned = np.frombuffer(raw, dtype=np.int32, offset=2)
    assert not unaligned.flags.aligned
    assert not unaligned.flags.writeable
    plan = plan_epochs(tokens=10, sequence_length=4)
    order = np.arange(3, dtype=np.int32)
    assert np.array_equal(
        sample_index_compiled(unaligned, order, plan), sample_index_numpy(unaligned.copy(), order, plan)
    )


def test_numba_is_loaded_only_when_something_large_is_built() -> None:
    code = """
import sys
from pathlib import Path
import gristmill.formats.index_set
from gristmill.formats import blend, indices
plan = indices.plan_epochs(tokens=10_000, sequence_length=4)
indices.build_indices([100] * 100, 0, 100, plan, 0)
blend.exhaustive_blend([100, 200])
sys.exit("numba" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_real_corpus_gives_its_known_number_of_samples(shared_data: Path) -> None:
    """The lengths lie after a header of 34 bytes: unaligned int32, as many as the u64 at byte 18 says."""
    raw = (shared_data / "openwebtext_text_document.idx").read_bytes()
    lengths = np.frombuffer(raw, dtype=np.int32, offset=34, count=int.from_bytes(raw[18:26], "little"))
    plan = plan_epochs(tokens=int(lengths.sum()), sequence_length=1024)
    assert plan.samples == 1329
    assert build_indices(lengths, 0, len(lengths), plan, seed=1234).sample_index.shape == (1330, 2)


@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_narrow_lengths_give_the_same_indices(extra: bool, drop_last: bool) -> None:
    random = np.random.default_rng(3)
    for count, longest in ((1, 9), (30, 2), (200, 65_536)):
        narrow = random.integers(0, longest, count).astype(np.uint16)
        narrow[-1:] = 0
        narrow[0] = 65_535
        wide = narrow.astype(np.int32)
        plan = plan_epochs(
            tokens=int(wide.sum()), sequence_length=7, add_extra_token=extra, drop_last_partial=drop_last
        )
        order = np.arange(count, dtype=np.int32)
        for build in (sample_index_numpy, sample_index_compiled):
            assert np.array_equal(build(narrow, order, plan), build(wide, order, plan))
            assert build(narrow, order, plan).dtype == build(wide, order, plan).dtype
        one, other = (build_indices(lengths, 0, count, plan, 1) for lengths in (narrow, wide))
        assert np.array_equal(one.sample_index, other.sample_index)
