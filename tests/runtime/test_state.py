"""The data state: what it holds, and every way in which a saved one is refused."""

import json
import warnings
from typing import Any

import numpy as np
import pytest

from gristmill.formats.errors import CorpusError, FormatError
from gristmill.formats.index_order import OrderChange
from gristmill.runtime.state import StreamState, check_state

STATE = StreamState(next_sample=640, fingerprint="a" * 64, fields="f" * 12)


def test_it_is_one_small_json() -> None:
    value = STATE.to_json()
    assert value == {"version": 1, "next_sample": 640, "fingerprint": "a" * 64, "fields": "f" * 12}
    assert StreamState.from_json(json.loads(json.dumps(value))) == STATE
    assert len(json.dumps(value)) < 200


@pytest.mark.parametrize(
    ("value", "next_sample"),
    [
        ({"version": 1, "next_sample": 3, "fingerprint": "b"}, 3),
        ({"version": 1, "next_sample": np.int64(3), "fingerprint": "b", "more": True}, 3),
    ],
)
def test_what_may_be_missing_or_more(value: dict[str, Any], next_sample: int) -> None:
    state = StreamState.from_json(value)
    assert (state.next_sample, type(state.next_sample), state.fields) == (next_sample, int, None)
    assert state.to_json().keys() == {"version", "next_sample", "fingerprint"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "the data state is None, not a JSON object"),
        ({}, "the data state is {}, not a JSON object"),
        ([1, 2], r"the data state is \[1, 2\], not a JSON object"),
        ({"next_index": 12}, "version None; this software reads version 1: damaged"),
        ({"version": 2, "next_sample": 0}, "version 2; this software reads version 1: written by a newer Gristmill"),
        ({"version": True, "next_sample": 0, "fingerprint": "b"}, "version True"),
        ({"version": "1", "next_sample": 0, "fingerprint": "b"}, "version '1'"),
        ({"version": 1, "next_sample": 0}, "fingerprint None and fields None: damaged"),
        ({"version": 1, "next_sample": 0, "fingerprint": ""}, "fingerprint '' and fields None: damaged"),
        ({"version": 1, "next_sample": 0, "fingerprint": "b", "fields": 5}, "fingerprint 'b' and fields 5: damaged"),
        ({"version": 1, "next_sample": -1, "fingerprint": "b"}, "next_sample -1; the rule is a count of rows"),
        ({"version": 1, "next_sample": 1.5, "fingerprint": "b"}, "next_sample 1.5"),
        ({"version": 1, "next_sample": True, "fingerprint": "b"}, "next_sample True"),
        ({"version": 1, "fingerprint": "b"}, "next_sample None"),
    ],
)
def test_a_damaged_state_is_refused(value: object, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        StreamState.from_json(value)


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (
            {"fingerprint": "b" * 64},
            "at row 640 of the stream aaaaaaaaaaaa, but this stream is bbbbbbbbbbbb.* pass allow_stream_change=True",
        ),
        ({"rows": 639}, "saved at row 640, but the stream ends at row 639"),
    ],
)
def test_a_state_of_something_else_is_refused(now: dict[str, Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        check_state(STATE, **{"fingerprint": "a" * 64, "rows": 640, "fields": "f" * 12, **now})


def test_the_override_takes_another_stream_but_no_row_beyond_it() -> None:
    check_state(STATE, fingerprint="b" * 64, rows=640, fields="f" * 12, allow_stream_change=True)
    with pytest.raises(CorpusError, match="but the stream ends at row 100"):
        check_state(STATE, fingerprint="b" * 64, rows=100, fields="f" * 12, allow_stream_change=True)


FIRST = OrderChange(700, {"weights": []}, "a" * 64)
SECOND = OrderChange(600, {"blocks": []}, FIRST.fingerprint)
THIRD = OrderChange(900, {"blocks": []}, SECOND.fingerprint)


@pytest.mark.parametrize(
    ("history", "fingerprint", "shared"),
    [
        ([FIRST], "a" * 64, 700),
        ([FIRST, SECOND], "a" * 64, 600),
        ([FIRST, SECOND], FIRST.fingerprint, 600),
        ([FIRST, SECOND, THIRD], "a" * 64, 600),
        ([FIRST, SECOND, THIRD], SECOND.fingerprint, 900),
        ([FIRST, SECOND, THIRD], THIRD.fingerprint, 1000),
    ],
)
def test_a_state_of_an_earlier_stream_is_taken_up_while_its_rows_are_shared(
    history: list[OrderChange], fingerprint: str, shared: int
) -> None:
    now: dict[str, Any] = {
        "fingerprint": history[-1].fingerprint,
        "rows": 1000,
        "fields": None,
        "history": tuple(history),
    }
    for row in (0, shared - 1, shared):
        check_state(StreamState(next_sample=row, fingerprint=fingerprint), **now)
    state = StreamState(next_sample=shared + 1, fingerprint=fingerprint)
    left = f"at row {shared + 1} of the stream {fingerprint[:12]}, which this stream, {history[-1].fingerprint[:12]}, "
    message = f"{left}left at row {shared}: .* Go back to a state of row {shared} or before"
    if shared == 1000:
        message = "saved at row 1001, but the stream ends at row 1000"
    with pytest.raises(CorpusError, match=message):
        check_state(state, **now)
    if shared < 1000:
        check_state(state, **now, allow_stream_change=True)


def test_a_stream_that_is_in_no_history_stays_another_one() -> None:
    now: dict[str, Any] = {"rows": 1000, "fields": None, "history": (FIRST, SECOND)}
    with pytest.raises(
        CorpusError, match=r"this stream is [0-9a-f]{12}: shards, sequence length, seed, split or blend"
    ):
        check_state(StreamState(next_sample=0, fingerprint="c" * 64), fingerprint=SECOND.fingerprint, **now)
    with pytest.raises(CorpusError, match="this stream is aaaaaaaaaaaa"):
        check_state(
            StreamState(next_sample=0, fingerprint=FIRST.fingerprint), fingerprint="a" * 64, rows=1000, fields=None
        )


def test_other_field_options_warn() -> None:
    with pytest.warns(UserWarning, match="made with the options ffffffffffff before .* with gggggggggggg from here on"):
        check_state(STATE, fingerprint="a" * 64, rows=640, fields="g" * 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_state(STATE, fingerprint="a" * 64, rows=640, fields="f" * 12)
        check_state(StreamState(next_sample=1, fingerprint="a"), fingerprint="a", rows=640, fields="g")
