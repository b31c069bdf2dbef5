"""Rows left out and rows taken: which row is which, whose state is taken up, and what stays as it was."""

import pickle
import re
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import SingleDeviceSharding
from numpy.typing import NDArray

from gristmill.formats.errors import CorpusError, SettingsError
from gristmill.formats.index_order import OrderChange
from gristmill.formats.schedule import Phase
from gristmill.runtime import TokenBatches, open_corpus
from gristmill.runtime.metrics import MeasuredStream
from gristmill.runtime.raw_rows import PaddedStream
from gristmill.runtime.row_map import Skips, rows_before
from gristmill.runtime.state import StreamState, check_state
from gristmill.runtime.streams import DocumentStream
from gristmill.runtime.windows import WindowOptions

ROWS = 200


@pytest.fixture(scope="module", params=["megatron", "window"])
def stream(request: pytest.FixtureRequest, blended_corpus: str) -> Any:
    corpus = open_corpus(blended_corpus)
    return corpus.stream() if request.param == "megatron" else corpus.windows()


def skipped(stream: Any, ranges: list[tuple[int, int]]) -> Any:
    for first, last in ranges:
        stream = stream.skip_range(first, last)
    return stream


@st.composite
def ranges(draw: st.DrawFn, rows: int = ROWS, most: int = 4) -> list[tuple[int, int]]:
    """Ranges to skip one after the other, each in the rows that are left."""
    found = []
    for _ in range(draw(st.integers(1, most))):
        first = draw(st.integers(0, rows - 2))
        last = draw(st.integers(first + 1, min(rows - (first == 0), first + 30)))
        found.append((first, last))
        rows -= last - first
    return found


@settings(deadline=None, max_examples=200)
@given(ranges())
def test_rows_left_are_those_of_a_list_that_loses_the_same(some: list[tuple[int, int]]) -> None:
    left, skips = list(range(ROWS)), Skips()
    for first, last in some:
        skips = skips.without(first, last)
        del left[first:last]
    assert skips.base_rows(np.arange(len(left))).tolist() == left
    gone = {row for first, last in skips.ranges for row in range(first, last)}
    assert gone == set(range(ROWS)) - set(left)
    assert all(before[1] < after[0] for before, after in zip(skips.ranges, skips.ranges[1:], strict=False))


@settings(deadline=None, max_examples=100)
@given(some=ranges(), other=ranges(), base_changes=st.lists(st.integers(0, ROWS), max_size=3).map(sorted))
def test_a_state_is_taken_up_exactly_while_the_rows_are_the_same(
    some: list[tuple[int, int]], other: list[tuple[int, int]], base_changes: list[int]
) -> None:
    """Two streams that may have another past and other gaps: what they share is what `ancestors` says, or nothing."""
    history: list[OrderChange] = []
    lists: dict[str, list[tuple[Any, int]]] = {"base": [("base", row) for row in range(ROWS)]}
    fingerprint = "base"
    for number, start in enumerate(base_changes):
        history.append(OrderChange(start, {"number": number}, fingerprint))
        rows = lists[fingerprint][:start] + [(number, row) for row in range(start, ROWS)]
        fingerprint = history[-1].fingerprint
        lists[fingerprint] = rows
    now = Skips()
    served = {}
    kept = list(lists[fingerprint])
    steps: list[tuple[Any, Skips]] = [((), now)]
    for first, last in some:
        now = now.without(first, last)
        del kept[first:last]
        steps.append((now.ranges, now))
    for base, rows in lists.items():
        for _, step in steps:
            numbers = step.base_rows(np.arange(ROWS - sum(b - a for a, b in step.ranges)))
            served[step.fingerprint(base)] = [rows[number] for number in numbers.tolist()]
    ancestors = now.ancestors(fingerprint, rows_before(history))
    own = now.fingerprint(fingerprint)
    assert own not in ancestors
    assert set(ancestors) == set(served) - {own}
    for name, shared in ancestors.items():
        assert served[name][:shared] == kept[:shared]
        assert shared <= len(served[name])
        if shared < min(len(served[name]), len(kept)):
            assert served[name][shared] != kept[shared]
    stranger = Skips()
    for first, last in other:
        stranger = stranger.without(first, last)
    assert (stranger.fingerprint(fingerprint) == own) == (stranger.ranges == now.ranges)


def test_a_stretch_is_left_out(stream: Any) -> None:
    view = stream.skip_range(50, 60)
    assert len(view) == ROWS - 10
    assert view.base_rows([0, 49, 50, 189]).tolist() == [0, 49, 60, 199]
    rows = np.arange(len(view))
    every = np.delete(np.arange(ROWS), np.arange(50, 60))
    assert np.array_equal(view.read(rows), stream.read(every))
    tokens, starts = view.read_documents(rows)
    expected = stream.read_documents(every)
    assert np.array_equal(tokens, expected[0])
    assert np.array_equal(starts, expected[1])
    assert view.describe(50) == stream.describe(60)
    assert view.rows_by_source(rows) == stream.rows_by_source(every)
    for row in (190, -1):
        with pytest.raises(IndexError, match=f"row {row} does not exist; the stream has 190 rows, 0 to 189"):
            view.read([row])
    with pytest.raises(IndexError, match="rows are float64 of shape"):
        view.read([0.5])


def test_a_view_is_all_that_the_stream_is(stream: Any) -> None:
    view: Any = stream.skip_range(5, 9).take(100)
    kinds = [isinstance(view, kind) for kind in (DocumentStream, MeasuredStream, PaddedStream)]
    assert kinds == [True, True, False]
    for name in ("name", "split", "sequence_length", "dtype", "eod_id", "vocabulary", "sources", "left_out"):
        assert getattr(view, name) == getattr(stream, name), name
    assert (view.read_counts().keys(), view.waiting_on()) == (stream.read_counts().keys(), [])
    again = pickle.loads(pickle.dumps(view))
    assert again.fingerprint == view.fingerprint
    assert np.array_equal(again.read([0, 50, 99]), view.read([0, 50, 99]))
    assert re.fullmatch(r"StreamView\(.*, without rows 5 to 9, fingerprint=[0-9a-f]{12}\)", repr(view))
    view.close()
    assert np.array_equal(view.read([7]), stream.read([11]))


def test_what_is_padded_stays_padded(blended_corpus: str) -> None:
    options = WindowOptions(drop_last_partial=False, shuffle=False)
    stream: Any = open_corpus(blended_corpus).windows("valid", options=options)
    view = stream.skip_range(0, 3)
    assert isinstance(view, PaddedStream)
    rows = np.arange(len(view))
    assert np.array_equal(view.valid_length(rows), stream.valid_length(rows + 3))
    assert view.valid_length(rows).min() < 16


def test_rows_taken_are_the_same_stream(stream: Any) -> None:
    view = stream.take(70)
    assert (len(view), view.fingerprint, view.history) == (70, stream.fingerprint, stream.history)
    assert np.array_equal(view.read(np.arange(70)), stream.read(np.arange(70)))
    assert len(view.take(3).skip_range(1, 2)) == 2
    assert stream.skip_range(10, 20).take(50).fingerprint == stream.skip_range(10, 20).fingerprint


def test_the_same_gaps_are_the_same_stream_however_they_came_about(stream: Any) -> None:
    at_once = stream.skip_range(50, 80)
    assert stream.skip_range(50, 60).skip_range(50, 70).fingerprint == at_once.fingerprint
    assert stream.skip_range(70, 80).skip_range(50, 70).fingerprint == at_once.fingerprint
    assert at_once.fingerprint != stream.fingerprint != stream.skip_range(50, 81).fingerprint
    assert at_once.facts == {**stream.facts, "skipped": [[50, 80]]}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda one: one.skip_range(5, 5), "rows 5 to 5 cannot be skipped: the rule is 0 <= first < last <= 200"),
        (lambda one: one.skip_range(-1, 5), "rows -1 to 5 cannot be skipped"),
        (lambda one: one.skip_range(5, 201), "rows 5 to 201 cannot be skipped"),
        (lambda one: one.skip_range(0, 200), "skipping rows 0 to 200 would leave none of 200"),
        (lambda one: one.skip_range(0, 2.5), "rows to skip are whole numbers, not 2.5"),
        (lambda one: one.skip_range(True, 5), "rows to skip are whole numbers, not True"),
        (lambda one: one.take(0), "0 rows cannot be taken: the rule is 1 to 200"),
        (lambda one: one.take(201), "201 rows cannot be taken"),
        (lambda one: one.skip_range(0, 10).take(191), "191 rows cannot be taken: the rule is 1 to 190"),
    ],
)
def test_rows_that_are_not_there_are_named(stream: Any, call: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        call(stream)


# -------------------------------------------------------------------------------------------------------------- states


def take_up(state: tuple[Any, int], now: Any) -> None:
    """Takes up, in one stream, a state that another saved at a row."""
    stream, row = state
    check_state(
        StreamState(next_sample=row, fingerprint=stream.fingerprint, facts=stream.facts),
        fingerprint=now.fingerprint,
        rows=len(now),
        fields=None,
        facts=now.facts,
        history=now.history,
        ancestors=getattr(now, "ancestors", None),
    )


def refused(state: tuple[Any, int], now: Any, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        take_up(state, now)


def test_a_run_goes_back_before_the_stretch_and_leaves_it_out(stream: Any) -> None:
    view = stream.skip_range(100, 120)
    for row in (0, 99, 100):
        take_up((stream, row), view)
    refused((stream, 101), view, "which this stream, .*, left at row 100: .* Go back to a state of row 100 or before")
    later = view.skip_range(150, 155)
    take_up((view, 150), later)
    refused((view, 151), later, "left at row 150")
    take_up((stream, 100), later)
    refused((stream, 101), later, "left at row 100")
    refused((later, 10), view, "skipped was .* and is")  # what was left out cannot be put back
    refused((view, 10), stream, r"skipped was \[\[100, 120\]\] and is not there")
    take_up((later, len(later)), later)
    assert [change.from_sample for change in later.history[len(stream.history) :]] == [100, 150]
    assert later.history[-1].parent == view.fingerprint


def test_gaps_go_with_a_schedule_that_comes_later(make_corpus: Any) -> None:
    folder = make_corpus(weights={"web": 0.7, "code": 0.3})
    plain = make_corpus.index(folder, samples=200)
    scheduled = make_corpus.index(folder, samples=200, schedule=(Phase(120, (0.69, 0.31)),))
    corpus = open_corpus(folder)
    old, new = corpus.stream(index_set=plain), corpus.stream(index_set=scheduled)
    assert new.history[0].parent == old.fingerprint  # both need the same epochs
    before = old.skip_range(40, 50)  # a run that had left something out before the schedule was written
    after = new.skip_range(40, 50)
    take_up((before, 110), after)
    refused((before, 111), after, "left at row 110")
    take_up((old, 40), after)
    take_up((new, 40), after)
    refused((new, 41), after, "left at row 40")
    assert np.array_equal(before.read(np.arange(110)), after.read(np.arange(110)))
    ahead = new.skip_range(150, 160)
    take_up((old.skip_range(150, 160), 120), ahead)
    refused((old, 121), ahead, "left at row 120")


def test_gaps_go_with_a_longer_horizon(stream: Any, blended_corpus: str) -> None:
    corpus = open_corpus(blended_corpus)
    longer = corpus.windows(samples=230) if stream.facts["kind"] == "window" else corpus.stream(samples=205)
    take_up((stream.skip_range(40, 50), 190), longer.skip_range(40, 50))
    assert longer.skip_range(40, 50).fingerprint == stream.skip_range(40, 50).fingerprint


def test_a_training_loop_goes_back_and_goes_on_without_the_stretch(stream: Any) -> None:
    sharding = SingleDeviceSharding(jax.devices()[0])

    def rows_of(batches: TokenBatches) -> NDArray[np.int32]:
        return np.concatenate([np.asarray(batch["inputs"]) for batch in batches])

    with TokenBatches(stream, 16, sharding) as batches:
        for _ in range(6):
            next(batches)
        state = batches.get_state()  # at row 96
        next(batches)
        late = batches.get_state()
    view = stream.skip_range(100, 120)
    every = np.delete(np.arange(ROWS), np.arange(100, 120))
    with TokenBatches(view, 8, sharding) as batches:
        with pytest.raises(CorpusError, match=r"left at row 100: .* Go back to a state of row 100 or before"):
            batches.set_state(late)
        batches.set_state(state)
        assert np.array_equal(rows_of(batches), stream.read(every[96:176])[:, :-1])
        assert batches.leftover_rows == 4
        saved = batches.get_state()
        assert (saved["next_sample"], saved["fingerprint"]) == (176, view.fingerprint)
        assert saved["stream"]["skipped"] == [[100, 120]]
    with TokenBatches(view.skip_range(177, 178), 3, sharding) as batches:
        batches.set_state(saved)
        assert np.array_equal(rows_of(batches), stream.read(every[[176, 178, 179]])[:, :-1])
