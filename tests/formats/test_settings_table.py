"""Reading one table of settings: mistakes are noted, never raised, and reading goes on with the default."""

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.formats.errors import Problem
from gristmill.formats.settings_table import SettingsTable


def table(values: dict[str, Any], path: str = "") -> tuple[SettingsTable, list[Problem]]:
    problems: list[Problem] = []
    return SettingsTable(values, path, problems), problems


@pytest.mark.parametrize(
    ("kind", "value"),
    [(str, "x"), (str, ""), (int, 0), (int, -5), (float, 0.5), (bool, False), (list, []), (dict, {"a": 1})],
    ids=repr,
)
def test_good_values_are_taken(kind: type, value: Any) -> None:
    settings, problems = table({"key": value})
    assert settings.take("key", kind, None) == value
    settings.finish()
    assert problems == []


def test_an_integer_serves_as_a_number() -> None:
    settings, problems = table({"key": 3})
    taken = settings.take("key", float)
    assert isinstance(taken, float)
    assert (taken, problems) == (3.0, [])


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (str, 5, "is 5; it must be a string"),
        (str, ["x"], "is ['x']; it must be a string"),
        (int, "5", 'is "5"; it must be an integer'),
        (int, 5.0, "is 5.0; it must be an integer"),
        (int, True, "is true; it must be an integer"),
        (float, "x", 'is "x"; it must be a number'),
        (float, False, "is false; it must be a number"),
        (float, float("nan"), "is nan; it must be a finite number"),
        (float, float("-inf"), "is -inf; it must be a finite number"),
        (bool, 1, "is 1; it must be true or false"),
        (list, {}, "is {}; it must be a list"),
        (dict, "x", 'is "x"; it must be a table'),
        (str, datetime.date(2024, 1, 2), "is datetime.date(2024, 1, 2); it must be a string"),
        (int, "a\nb", 'is "a\\nb"; it must be an integer'),
        (int, "y" * 100, f'is "{"y" * 76}...; it must be an integer'),
    ],
    ids=repr,
)
def test_wrong_types_are_noted_and_the_default_stands_in(kind: type, value: Any, message: str) -> None:
    settings, problems = table({"key": value}, "top[2].inner")
    assert settings.take("key", kind, "default") == "default"
    assert problems == [Problem("top[2].inner.key", message)]


def test_rules_are_noted_in_their_own_words() -> None:
    settings, problems = table({"size": -1, "share": float("inf")})
    assert settings.take("size", int, 7, rule=lambda value: value > 0, says="a positive number") == 7
    assert settings.take("share", float, 0.5, says="a fraction") == 0.5
    assert list(map(str, problems)) == [
        "size: is -1; it must be a positive number",
        "share: is inf; it must be a fraction",
    ]


def test_absence_is_a_mistake_only_where_it_is_said() -> None:
    settings, problems = table({})
    assert settings.take("a", int, 3) == 3
    assert settings.take("b", int, required=True) is None
    assert settings.take("c", str, "", required=True, says="a name") == ""
    assert settings.strings("d") == ()
    assert settings.strings("e", required=True) == ()
    assert settings.tables("f") == []
    assert settings.table("g").path == "g"
    assert settings.table("h", required=True).take("inner", int, 1) == 1
    assert not settings.has("a")
    assert settings.peek("a") is None
    assert list(map(str, problems)) == [
        "b: is missing; it must be an integer",
        "c: is missing; it must be a name",
        "e: is missing; it must be a list of strings",
        "f: is missing; it must be one or more tables [[f]]",
        "h: is missing; it must be a table",
    ]


@pytest.mark.parametrize(
    ("value", "taken", "message"),
    [
        ("fast", "fast", None),
        ("fsat", "slow", 'is "fsat"; it must be one of "slow", "fast"; did you mean "fast"?'),
        ("", "slow", 'is ""; it must be one of "slow", "fast"'),
        (3, "slow", 'is 3; it must be one of "slow", "fast"'),
    ],
)
def test_choices(value: Any, taken: str, message: str | None) -> None:
    settings, problems = table({"pace": value})
    assert settings.choice("pace", ("slow", "fast"), "slow") == taken
    assert [problem.message for problem in problems] == ([] if message is None else [message])


@pytest.mark.parametrize(
    ("value", "taken", "message"),
    [
        ("a", ("a",), None),
        (["a", "b"], ("a", "b"), None),
        ([], (), "is empty; it must name at least one"),
        ("", (), 'is ""; it must be a list of non-empty strings'),
        (["a", 1], (), "is ['a', 1]; it must be a list of non-empty strings"),
        ([""], (), "is ['']; it must be a list of non-empty strings"),
        (5, (), "is 5; it must be a list of non-empty strings"),
        ({"a": 1}, (), "is {'a': 1}; it must be a list of non-empty strings"),
    ],
    ids=repr,
)
def test_lists_of_strings(value: Any, taken: tuple[str, ...], message: str | None) -> None:
    settings, problems = table({"files": value})
    assert settings.strings("files", required=True) == taken
    assert [problem.message for problem in problems] == ([] if message is None else [message])


def test_lists_of_tables() -> None:
    settings, problems = table({"sources": [{"id": "a"}, 5, {"id": "b"}], "none": [], "one": {}})
    found = settings.tables("sources")
    assert [(each.path, each.take("id", str)) for each in found] == [("sources[0]", "a"), ("sources[2]", "b")]
    assert settings.tables("none") == []
    assert settings.tables("one") == []
    assert list(map(str, problems)) == [
        "sources[1]: is 5; it must be a table",
        "none: is empty; at least one [[none]] is needed",
        "one: is {}; it must be one or more tables [[one]]",
    ]


def test_keys_that_nobody_took_are_noted_with_the_nearest() -> None:
    settings, problems = table({"sed": 1, "zzz": 2, "name": "x"})
    settings.take("seed", int)
    settings.take("name", str)
    assert not settings.has("index")
    settings.finish()
    assert list(map(str, problems)) == [
        'sed: is not a known key; did you mean "seed"? known here: index, name, seed',
        "zzz: is not a known key; known here: index, name, seed",
    ]


@given(
    values=st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.lists(st.integers())
        | st.just({"x": 1}),
    )
)
def test_no_value_breaks_reading(values: dict[str, Any]) -> None:
    settings, problems = table(values)
    taken = settings.take("a", int, 1), settings.take("b", float, 1.0), settings.choice("c", ("x", "y"), "x")
    settings.finish()
    assert isinstance(taken[0], int)
    assert isinstance(taken[1], float)
    assert taken[2] in {"x", "y"}
    assert all("\n" not in str(problem) for problem in problems)
