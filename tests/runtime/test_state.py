"""The data state: what it holds, and every way in which a saved one is refused."""

import json
import re
import warnings
from typing import Any

import numpy as np
import pytest

from gristmill.formats.errors import CorpusError, FormatError
from gristmill.formats.index_order import OrderChange
from gristmill.formats.schedule import Phase
from gristmill.runtime import open_corpus, open_megatron
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
        ({"version": 1, "next_sample": np.int64(3), "fingerprint": "b", "more": True, "stream": 7}, 3),
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
            "at row 640 of the stream a{12}, but this stream is b{12}.*=True to TokenBatches or its set_state to",
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


# ------------------------------------------------------------------------------------------------- what differs, told


def told(saved: Any, now: Any) -> str:
    """What a refused state says of two sets of facts."""
    state = StreamState.from_json(json.loads(json.dumps({**STATE.to_json(), "stream": saved})))
    with pytest.raises(CorpusError) as caught:
        check_state(state, fingerprint="b" * 64, rows=640, fields=None, facts=now)
    found = re.fullmatch(r".* this stream is b{12}: (.*)\. So its first 640 rows are not .*", str(caught.value))
    assert found is not None, str(caught.value)
    return found[1]


@pytest.mark.parametrize(
    ("saved", "now", "message"),
    [
        ({"seed": 1}, {"seed": 2}, "seed was 1 and is 2"),
        (
            {"seed": 1, "split": "train"},
            {"seed": 2, "split": "valid"},
            'seed was 1 and is 2; split was "train" and is "valid"',
        ),
        ({"seed": 1}, {"seed": 1, "more": True}, "more was not there and is true"),
        ({"seed": 1, "gone": [3]}, {"seed": 1}, "gone was [3] and is not there"),
        ({"a": {"b": {"c": 1}}, "d": [1, 2]}, {"a": {"b": {"c": 2}}, "d": (1, 2)}, "a.b.c was 1 and is 2"),
        (
            {"seed": 1},
            {"seed": 1},
            "shards, sequence length, seed, split or blend differ; the state does not say which",
        ),
        (None, {"seed": 1}, "shards, sequence length, seed, split or blend differ; the state does not say which"),
        ("damaged", {"seed": 1}, "shards, sequence length, seed, split or blend differ; the state does not say which"),
        ({}, {"seed": 1}, "shards, sequence length, seed, split or blend differ; the state does not say which"),
        ({"seed": 1}, None, "shards, sequence length, seed, split or blend differ; the state does not say which"),
        (
            {f"k{n}": n for n in range(11)},
            {f"k{n}": -n for n in range(11)},
            "; ".join(f"k{n} was {n} and is {-n}" for n in range(1, 9)) + "; and 2 more differences",
        ),
    ],
)
def test_what_differs_is_told(saved: Any, now: Any, message: str) -> None:
    assert told(saved, now) == message


def test_facts_decide_nothing() -> None:
    check_state(
        StreamState(next_sample=1, fingerprint="a", facts={"seed": 1}), fingerprint="a", rows=1, fields=None, facts={}
    )


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "length": ({}, {"sequence_length": 8}, "^sequence_length was 16 and is 8"),
    "seed": ({}, {"seed": 5}, "^seed was 1234 and is 5$"),
    "proportions": ({}, {"splits": "80,20,0"}, 'splits was "90,10,0" and is "80,20,0"'),
    "text": (
        {"seed": 1},
        {},
        'sources.web.content was "[0-9a-f]{12}" and is "[0-9a-f]{12}"; .*sources.code.content was',
    ),
    "a shard more": ({"shards": 4}, {}, "sources.web.shards was 3 and is 4; sources.web.content was"),
    "a source more": (
        {"documents": {"web": 60, "code": 30, "math": 9}, "weights": {"web": 0.7, "code": 0.2, "math": 0.1}},
        {},
        "sources.code.weight was 0.3 and is 0.2; sources.math.shards was not there and is 3",
    ),
    "a weight": ({"weights": {"web": 0.6, "code": 0.4}}, {}, "^sources.web.weight was 0.7 and is 0.6;"),
    "a schedule": ({}, {"schedule": (Phase(64, (0.1, 0.9)),)}, r"changed_from_row was not there and is \[64\]"),
    "a longer run": ({}, {"samples": 2000}, r"sources.web.epochs was \[2, 1\] and is"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_streams_say_what_they_are_made_of(make_corpus: Any, blended_corpus: str, change: Any) -> None:
    corpus, settings, message = change
    folder = make_corpus(**{"weights": {"web": 0.7, "code": 0.3}, **corpus})
    name = make_corpus.index(folder, **{"samples": 200, **settings})
    old, new = open_corpus(blended_corpus).stream().facts, open_corpus(folder).stream(index_set=name).facts
    assert re.search(message, told(old, new)), told(old, new)
    assert len(json.dumps(new)) < 600


def test_other_splits_and_data_of_others_say_so_too(blended_corpus: str) -> None:
    corpus = open_corpus(blended_corpus)
    train = corpus.stream()
    assert told(train.facts, corpus.stream("valid").facts).startswith('split was "train" and is "valid"; sources.web.')
    prefix = f"{blended_corpus}/{corpus.manifest.sources[0].shards[0].path}"
    pair = open_megatron(prefix, sequence_length=16, eod_id=1)
    assert pair.facts["sources"].keys() == {pair.sources[0]}
    again = open_megatron(prefix, sequence_length=16, eod_id=1, seed=9)
    assert told(pair.facts, again.facts) == "seed was 1234 and is 9"


def test_the_state_of_very_many_sources_stays_small(make_corpus: Any) -> None:
    names = [f"source-with-a-long-name-{number:03d}" for number in range(40)]
    folder = make_corpus(documents=dict.fromkeys(names, 12), weights=dict.fromkeys(names, 1 / 40), shards=1)
    make_corpus.index(folder, samples=80)
    facts = open_corpus(folder).stream().facts
    assert facts["sources"]["count"] == 40
    assert len(json.dumps(facts)) < 300


def test_other_field_options_warn() -> None:
    now: dict[str, Any] = {"fingerprint": "a" * 64, "rows": 640, "fields": "g" * 12}
    with pytest.warns(UserWarning, match="the options ffffffffffff before .* with gggggggggggg from here on: masks, "):
        check_state(STATE, **now, options={"eod_mask_loss": True})
    state = StreamState.from_json({**STATE.to_json(), "options": {"eod_mask_loss": False, "rest": 1}})
    with pytest.warns(UserWarning, match=r"from here on \(eod_mask_loss was false and is true\): masks, positions or"):
        check_state(state, **now, options={"eod_mask_loss": True, "rest": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_state(STATE, fingerprint="a" * 64, rows=640, fields="f" * 12)
        check_state(StreamState(next_sample=1, fingerprint="a"), fingerprint="a", rows=640, fields="g")
