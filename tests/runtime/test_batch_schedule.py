"""Batch schedules: the rows of a step, against counting them one step after the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.formats.errors import SettingsError
from gristmill.runtime.batch_schedule import BatchSchedule

PHASES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=5)
"""How many steps after the one before a phase begins, and its batch."""


@given(PHASES)
def test_steps_follow_each_other(gaps: list[tuple[int, int]]) -> None:
    steps = [sum(gap for gap, _ in gaps[1 : place + 1]) for place in range(len(gaps))]
    schedule = BatchSchedule(tuple((step, batch) for step, (_, batch) in zip(steps, gaps)))
    assert BatchSchedule.parse(str(schedule).strip("'")) == schedule
    row = 0
    for step in range(steps[-1] + 5):
        batch = [size for start, size in schedule.phases if start <= step][-1]
        assert schedule.first_row(step) == row
        assert schedule.rows(step) == range(row, row + batch)
        row += batch
    assert schedule.span(0, steps[-1] + 5) == range(row)
    assert schedule.span(1, 2) == schedule.rows(1)


def test_one_size_for_all_steps() -> None:
    assert BatchSchedule.constant(64).rows(100) == range(6400, 6464)
    assert BatchSchedule.parse(" 0:256 , 10000:512 ").rows(10001) == range(2560512, 2561024)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("256", r"batch schedule '256': '256' cannot be read; the rule is STEP:BATCH, separated by commas"),
        ("0:256,,5:1", r"'' cannot be read"),
        ("0:256,-5:1", r"'-5:1' cannot be read"),
        ("0:x", r"'0:x' cannot be read"),
        ("5:256", r"batch schedule '5:256': begins at step 5, not 0"),
        ("0:256,10:512,10:1024", r"its steps must rise"),
        ("0:256,10:0", r"a batch has at least 1 row"),
    ],
)
def test_what_cannot_be_followed(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        BatchSchedule.parse(text)


def test_what_is_no_step() -> None:
    schedule = BatchSchedule.constant(4)
    with pytest.raises(SettingsError, match="begins at no step, not 0"):
        BatchSchedule(())
    with pytest.raises(SettingsError, match="a batch has at least 1 row"):
        BatchSchedule.constant(0)
    with pytest.raises(SettingsError, match="step -1: steps are counted from 0"):
        schedule.rows(-1)
    for first, stop in ((3, 3), (-1, 2), (4, 2)):
        with pytest.raises(SettingsError, match=rf"steps {first}:{stop}: hold none; the rule is FIRST:STOP"):
            schedule.span(first, stop)
