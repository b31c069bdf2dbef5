"""The data state: what it holds, and every way in which a saved one is refused."""

import json
import warnings
from typing import Any

import numpy as np
import pytest

from gristmill.formats.errors import CorpusError, FormatError
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


def test_other_field_options_warn() -> None:
    with pytest.warns(UserWarning, match="made with the options ffffffffffff before .* with gggggggggggg from here on"):
        check_state(STATE, fingerprint="a" * 64, rows=640, fields="g" * 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_state(STATE, fingerprint="a" * 64, rows=640, fields="f" * 12)
        check_state(StreamState(next_sample=1, fingerprint="a"), fingerprint="a", rows=640, fields="g")
