"""Global batches: the rows of the stream in order, resumed exactly, ended alike, and no thread left behind."""

import gc
import itertools
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grain
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.errors import CorpusError, DataError, FormatError, SettingsError
from gristmill.formats.schedule import Phase
from gristmill.runtime import FieldOptions, MegatronStream, RowPiece, TokenBatches, make_fields, open_corpus

G = 8


def sharding_of(*axes: str | None, shape: tuple[int, ...] = (8,), names: tuple[str, ...] = ("data",)) -> Sharding:
    spec = PartitionSpec(*axes)
    return NamedSharding(jax.make_mesh(shape, names), spec)


@pytest.fixture(scope="module")
def data() -> Sharding:
    """Batch over eight devices."""
    return sharding_of("data")


@pytest.fixture(scope="module")
def stream(blended_corpus: str) -> MegatronStream:
    """200 rows of 16 tokens."""
    return open_corpus(blended_corpus).stream()


@pytest.fixture(scope="module")
def reference(stream: MegatronStream) -> dict[str, NDArray[np.int32]]:
    """The fields of all rows."""
    return make_fields(stream.read(np.arange(len(stream))), stream.eod_id)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    assert set(threading.enumerate()) <= before


def first_rows(batches: TokenBatches, count: int) -> list[list[int]]:
    """The inputs of the next batches, row by row."""
    taken = [np.asarray(batch["inputs"]) for batch in itertools.islice(batches, count)]
    return np.concatenate([batch.reshape(-1, batch.shape[-1]) for batch in taken]).tolist() if taken else []


LAYOUTS: dict[str, Callable[[], Sharding]] = {
    "batch": lambda: sharding_of("data"),
    "batch and sequence": lambda: sharding_of("data", "context", shape=(4, 2), names=("data", "context")),
    "replicas": lambda: sharding_of("data", shape=(2, 4), names=("tensor", "data")),
}


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_batches_are_the_rows_in_order(
    stream: MegatronStream, reference: dict[str, NDArray[np.int32]], layout: Callable[[], Sharding], prefetch: int
) -> None:
    with TokenBatches(stream, G, layout(), prefetch=prefetch) as batches:
        for number, batch in enumerate(batches):
            rows = slice(number * G, (number + 1) * G)
            assert batch.keys() == batches.element_spec.keys() == reference.keys()
            for name, array in batch.items():
                spec = batches.element_spec[name]
                assert (array.shape, array.dtype, array.sharding) == (spec.shape, spec.dtype, spec.sharding)
                np.testing.assert_array_equal(np.asarray(array), reference[name][rows])
        assert number == 24


@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("groups", [None, 1, 2, 4])
def test_microbatches_and_zigzag_hold_the_same_rows(
    stream: MegatronStream, reference: dict[str, NDArray[np.int32]], groups: int | None, zigzag: bool
) -> None:
    sharding = sharding_of("data", "context", shape=(2, 4), names=("data", "context"))
    chunks = np.arange(16).reshape(8, 2)
    columns = chunks[[0, 7, 1, 6, 2, 5, 3, 4]].ravel() if zigzag else np.arange(16)
    with TokenBatches(stream, G, sharding, microbatches=groups, zigzag=zigzag) as batches:
        assert batches.plan.columns is None or batches.plan.columns.tolist() == columns.tolist()
        for number in range(3):
            rows = slice(number * G, (number + 1) * G)
            for name, array in next(batches).items():
                spec = batches.element_spec[name]
                assert (array.shape, array.dtype, array.sharding) == (spec.shape, spec.dtype, spec.sharding)
                assert array.shape == ((G, 16) if groups is None else (groups, G // groups, 16))
                expected = reference[name][rows][:, columns].reshape(array.shape)
                np.testing.assert_array_equal(np.asarray(array), expected)
                for shard in array.addressable_shards:
                    np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])
        assert batches.next_sample == 3 * G


def test_options_reach_the_fields(stream: MegatronStream, data: Sharding) -> None:
    options = FieldOptions(eod_mask_loss=True, reset_position_ids=False, max_segments_per_sample=2)
    expected = make_fields(stream.read(np.arange(G)), stream.eod_id, options)
    with TokenBatches(stream, G, data, options=options) as batches:
        batch = next(batches)
    for name in expected:
        np.testing.assert_array_equal(np.asarray(batch[name]), expected[name])


def test_a_step_can_be_compiled_before_any_row_is_read(stream: MegatronStream, data: Sharding) -> None:
    with TokenBatches(stream, G, data) as batches:
        step = jax.jit(lambda batch: batch["inputs"].sum(), donate_argnums=0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            compiled = step.lower(batches.element_spec).compile()
        assert int(compiled(next(batches))) == int(stream.read(np.arange(G))[:, :-1].sum())


def test_batches_stay_what_they_are_while_others_are_made(
    stream: MegatronStream, reference: dict[str, NDArray[np.int32]], data: Sharding
) -> None:
    with TokenBatches(stream, G, data, prefetch=3) as batches:
        kept = list(batches)
    for number, batch in enumerate(kept):
        for name, array in batch.items():
            np.testing.assert_array_equal(np.asarray(array), reference[name][number * G : (number + 1) * G])


@pytest.mark.parametrize("fields", ["host", "device"])
def test_no_two_batches_share_memory(stream: MegatronStream, data: Sharding, fields: Any) -> None:
    with TokenBatches(stream, G, data, prefetch=3, fields=fields) as batches:
        kept = [next(batches) for _ in range(6)]  # alive together: what is freed may be used again
    spans: dict[int, set[tuple[int, int]]] = {}
    for number, batch in enumerate(kept):
        parts = [shard.data for array in batch.values() for shard in array.addressable_shards]
        spans[number] = {(part.unsafe_buffer_pointer(), part.nbytes) for part in parts}  # positions may be one array
    ordered = sorted(set().union(*spans.values()))
    assert all(start + size <= following for (start, size), (following, _) in itertools.pairwise(ordered))
    assert sum(map(len, spans.values())) == len(ordered), "no span belongs to two batches"


@pytest.mark.parametrize("fields", ["host", "device"])
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")  # those of the tokens, which are narrower
def test_a_step_may_take_a_batch_for_its_own(
    stream: MegatronStream, reference: dict[str, NDArray[np.int32]], data: Sharding, fields: Any
) -> None:
    with TokenBatches(stream, G, data, prefetch=3, fields=fields) as batches:

        @partial(jax.jit, donate_argnums=0)
        def step(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            return {name: array * 2 + 1 for name, array in batches.expand(batch).items()}

        kept = [step(batch) for batch in batches]
    for number, batch in enumerate(kept):
        for name, array in batch.items():
            np.testing.assert_array_equal(np.asarray(array), reference[name][number * G : (number + 1) * G] * 2 + 1)


def test_it_is_a_grain_iterator(stream: MegatronStream, data: Sharding) -> None:
    with TokenBatches(stream, G, data) as batches:
        assert isinstance(batches, grain.DatasetIterator)
        assert iter(batches) is batches
        first_rows(batches, 3)
        assert grain.experimental.get_next_index(batches) == 3
        grain.experimental.set_next_index(batches, 1)
        assert batches.next_sample == G
        batches.set_state({**batches.get_state(), "next_sample": 3})
        with pytest.raises(ValueError, match="row 3 is no start of a batch of 8"):
            grain.experimental.get_next_index(batches)


# --------------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(("global_batch", "steps", "leftover"), [(8, 25, 0), (24, 8, 8), (200, 1, 0), (128, 1, 72)])
def test_it_ends_once_too_few_rows_remain(
    stream: MegatronStream, global_batch: int, steps: int, leftover: int, prefetch: int
) -> None:
    with TokenBatches(stream, global_batch, sharding_of("data"), prefetch=prefetch) as batches:
        assert batches.leftover_rows == leftover
        assert sum(1 for _ in batches) == steps
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(batches)
        assert batches.next_sample == steps * global_batch
        assert batches.leftover_rows == len(stream) - batches.next_sample == leftover
        state = batches.get_state()
        batches.set_state(state)
        assert batches.get_state() == state
        with pytest.raises(StopIteration):
            next(batches)


def test_what_is_left_over_can_be_had_in_smaller_batches(stream: MegatronStream) -> None:
    with TokenBatches(stream, 128, sharding_of("data")) as large:
        list(large)
        with TokenBatches(stream, 8, sharding_of("data")) as small:
            small.set_state(large.get_state())
            assert sum(1 for _ in small) == 9


# --------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("cut", [0, 1, 7, 24, 25])
def test_resuming_gives_what_would_have_come(stream: MegatronStream, data: Sharding, cut: int, prefetch: int) -> None:
    with TokenBatches(stream, G, data) as whole:
        expected = first_rows(whole, 25)
    with TokenBatches(stream, G, data, prefetch=prefetch) as before:
        found = first_rows(before, cut)
        state = json.loads(json.dumps(before.get_state()))
    with TokenBatches(stream, G, data, prefetch=2) as after:
        after.set_state(state)
        assert after.get_state() == state, "a state taken right after restoring is the one restored"
        found += first_rows(after, 25)
    assert found == expected


def test_a_state_counts_what_was_delivered_not_what_was_read(stream: MegatronStream, data: Sharding) -> None:
    with TokenBatches(stream, G, data, prefetch=4) as batches:
        next(batches)
        prefetcher = batches._prefetcher
        assert prefetcher is not None
        deadline = time.monotonic() + 5
        while prefetcher._ready.qsize() < 4:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert batches.get_state()["next_sample"] == G


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([8, 16, 24]),
            st.sampled_from([None, 1, 2]),
            st.sampled_from([*LAYOUTS]),
            st.integers(0, 3),
            st.integers(0, 3),
        ),
        max_size=5,
    )
)
def test_any_chain_of_resumes_is_one_run(
    stream: MegatronStream,
    reference: dict[str, NDArray[np.int32]],
    parts: list[tuple[int, int | None, str, int, int]],
) -> None:
    state = None
    found: list[list[int]] = []
    for global_batch, groups, layout, prefetch, steps in parts:
        sharding = LAYOUTS[
            "replicas" if groups == 2 and layout == "batch" else layout
        ]()  # 4 rows are not for 8 devices
        with TokenBatches(stream, global_batch, sharding, microbatches=groups, prefetch=prefetch) as batches:
            if state is not None:
                batches.set_state(state)
            found += first_rows(batches, steps)
            state = json.loads(json.dumps(batches.get_state()))
            assert state["next_sample"] == len(found)
    assert found == reference["inputs"][: len(found)].tolist()


def test_going_back_while_batches_are_made_ahead(stream: MegatronStream, data: Sharding) -> None:
    with TokenBatches(stream, G, data, prefetch=3) as batches:
        expected = first_rows(batches, 2)
        early = batches.get_state()
        later = first_rows(batches, 4)
        for _ in range(3):
            batches.set_state(early)
            assert first_rows(batches, 4) == later
        batches.set_state({**early, "next_sample": 0})
        assert first_rows(batches, 2) == expected


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"fingerprint": "0" * 64}, CorpusError, "the data state was saved at row 8 of the stream 000000000000"),
        ({"next_sample": 201}, CorpusError, "saved at row 201, but the stream ends at row 200"),
        ({"version": 7}, FormatError, "version 7; this software reads version 1: written by a newer"),
        ({"next_sample": None}, FormatError, "next_sample None"),
    ],
)
def test_a_foreign_state_changes_nothing(
    stream: MegatronStream, data: Sharding, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with TokenBatches(stream, G, data) as batches:
        expected = first_rows(batches, 2)
        batches.set_state({**batches.get_state(), "next_sample": 8})
        with pytest.raises(error, match=message):
            batches.set_state({**batches.get_state(), **change})
        assert batches.next_sample == 8
        assert first_rows(batches, 1) == expected[G:]


def test_another_stream_is_taken_up_only_when_allowed(make_corpus: Any, stream: MegatronStream, data: Sharding) -> None:
    folder = make_corpus(seed=9)
    make_corpus.index(folder)
    with TokenBatches(stream, G, data) as batches:
        first_rows(batches, 2)
        state = batches.get_state()
    other = open_corpus(folder).stream()
    with TokenBatches(other, G, data) as batches:
        with pytest.raises(CorpusError, match="allow_stream_change=True"):
            batches.set_state(state)
        batches.set_state(state, allow_stream_change=True)
        assert batches.get_state() == {**state, "fingerprint": other.fingerprint, "stream": other.facts}
        assert first_rows(batches, 1) == other.read(np.arange(16, 24))[:, :-1].tolist()
    with TokenBatches(other, G, data, allow_stream_change=True) as batches:
        batches.set_state(state)
        assert batches.next_sample == 16


def test_a_run_goes_on_in_a_schedule_that_was_appended(make_corpus: Any, data: Sharding) -> None:
    folder = make_corpus(documents={"web": 400, "code": 400}, weights={"web": 0.9, "code": 0.1})
    plain = make_corpus.index(folder, samples=160)
    name = make_corpus.index(folder, samples=160, schedule=(Phase(64, (0.1, 0.9)),), own=False)
    old, new = (open_corpus(folder).stream(index_set=one) for one in (plain, name))
    states = {}
    with TokenBatches(old, G, data) as batches:
        for steps in range(64 // G + 1):
            states[G * (steps + 1)] = (first_rows(batches, 1), batches.get_state())[1]
    with TokenBatches(new, G, data) as batches:
        batches.set_state(states[64])
        assert batches.get_state() == {**states[64], "fingerprint": new.fingerprint, "stream": new.facts}
        assert first_rows(batches, 2) == new.read(np.arange(64, 64 + 2 * G))[:, :-1].tolist()
        with pytest.raises(CorpusError, match=f"at row {64 + G} of the stream .* left at row 64"):
            batches.set_state(states[64 + G])
        batches.set_state(batches.get_state())


def test_other_field_options_warn_on_resuming(stream: MegatronStream, data: Sharding) -> None:
    with TokenBatches(stream, G, data) as batches:
        state = batches.get_state()
    with TokenBatches(stream, G, data, options=FieldOptions(eod_mask_loss=True)) as batches:
        with pytest.warns(
            UserWarning, match=r"\(eod_mask_loss was false and is true\): masks, positions or segments change"
        ) as caught:
            batches.set_state(state)
        assert caught[0].filename == __file__


# --------------------------------------------------------------------------------------------- errors and the thread


class Faulty:
    """A stream that does what a test asks of it when rows are read."""

    def __init__(self, stream: MegatronStream, act: Callable[[NDArray[np.int64]], None], vocabulary: int = 500) -> None:
        self.fingerprint, self.sequence_length = stream.fingerprint, stream.sequence_length
        self.dtype, self.eod_id, self.vocabulary = stream.dtype, stream.eod_id, vocabulary
        self._stream, self._act = stream, act

    def __len__(self) -> int:
        return len(self._stream)

    def read(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        self._act(np.asarray(rows))
        return self._stream.read(rows)

    def describe(self, row: int) -> tuple[RowPiece, ...]:
        return self._stream.describe(row)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_an_error_comes_at_its_batch_and_can_be_tried_again(
    stream: MegatronStream, data: Sharding, prefetch: int
) -> None:
    broken = threading.Event()
    broken.set()

    def act(rows: NDArray[np.int64]) -> None:
        if rows[0] == 16 and broken.is_set():
            raise OSError("the disk does not answer")

    with TokenBatches(Faulty(stream, act), G, data, prefetch=prefetch) as batches:
        first_rows(batches, 2)
        for _ in range(2):
            with pytest.raises(OSError, match="the disk does not answer"):
                next(batches)
            assert batches.get_state()["next_sample"] == 16
        broken.clear()
        assert first_rows(batches, 1) == stream.read(np.arange(16, 24))[:, :-1].tolist()


def test_an_id_beyond_the_vocabulary_names_its_row(stream: MegatronStream, data: Sharding) -> None:
    tokens = stream.read(np.arange(G))
    most = int(tokens.max())
    row = int(np.argmax((tokens == most).any(axis=1)))
    message = f"row {row}: token .* is {most}, but ids run from 0 to {most - 1}"
    batches = TokenBatches(Faulty(stream, lambda rows: None, vocabulary=most), G, data)
    with batches, pytest.raises(DataError, match=message):
        next(batches)


def test_a_stuck_read_does_not_keep_close_waiting(stream: MegatronStream, data: Sharding) -> None:
    release = threading.Event()
    batches = TokenBatches(Faulty(stream, lambda rows: (release.wait(), None)[1]), G, data, close_seconds=0.1)
    batches.start_prefetch()
    thread = batches._prefetcher._thread if batches._prefetcher is not None else None
    assert thread is not None
    started = time.monotonic()
    with pytest.warns(RuntimeWarning, match="gristmill prefetch of .*: a read has not come back after 0.1 s"):
        batches.close()
    assert time.monotonic() - started < 2
    release.set()
    thread.join(5)


def test_close_is_final_and_may_be_repeated(stream: MegatronStream, data: Sharding) -> None:
    batches = TokenBatches(stream, G, data)
    next(batches)
    batches.close()
    batches.close()
    for act in (lambda: next(batches), batches.start_prefetch, lambda: batches.set_state(batches.get_state())):
        with pytest.raises(ValueError, match="closed iterator"):
            act()
    assert batches.get_state()["next_sample"] == G


def test_closing_from_another_thread_is_no_end_of_the_stream(stream: MegatronStream, data: Sharding) -> None:
    release = threading.Event()
    batches = TokenBatches(Faulty(stream, lambda rows: (release.wait(), None)[1]), G, data, close_seconds=10)
    batches.start_prefetch()
    helper = threading.Thread(target=batches.close)
    threading.Timer(0.1, helper.start).start()
    with pytest.raises(ValueError, match="was closed by another thread while it waited"):
        next(batches)
    release.set()
    helper.join(5)


def test_leaving_a_block_by_an_error_stops_the_thread(stream: MegatronStream, data: Sharding) -> None:
    def train() -> None:
        with TokenBatches(stream, G, data) as batches:
            next(batches)
            raise RuntimeError("from the training step")

    with pytest.raises(RuntimeError, match="from the training step"):
        train()


def test_an_iterator_that_is_dropped_stops_its_thread(stream: MegatronStream, data: Sharding) -> None:
    before = threading.active_count()
    batches = TokenBatches(stream, G, data, prefetch=4)
    next(batches)
    assert threading.active_count() == before + 1
    del batches
    gc.collect()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"global_batch": 12}, "global_batch 12 with sequence_length 16 does not fit the sharding"),
        ({"global_batch": 208}, "global_batch 208 is more than the 200 rows of the stream"),
        ({"global_batch": 0}, "global_batch must be a whole number of rows of at least 1, not 0"),
        ({"prefetch": -1}, "prefetch must be a whole number of batches of at least 0, not -1"),
        ({"prefetch": 1.5}, "prefetch must be a whole number of batches of at least 0, not 1.5"),
        ({"stall_seconds": "30"}, "stall_seconds must be above 0, not '30'"),
        ({"stream": "out/notes"}, "stream is a str, which has no fingerprint; give a stream, such as open_corpus"),
        ({"options": {"eod_mask_loss": True}}, r"options are \{'eod_mask_loss': True\}; give FieldOptions"),
    ],
)
def test_what_cannot_be_followed_is_refused_at_once(
    stream: MegatronStream, data: Sharding, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        TokenBatches(**{"stream": stream, "global_batch": G, "sharding": data, **arguments})
    with pytest.raises(TypeError, match="sharding"):
        TokenBatches(stream, G)  # type: ignore[call-arg]  # that is the mistake; nothing is left half-made
