"""The `[index]` table: phases of weights are read, and every mistake in them is told at once with its key path."""

from typing import Any

import pytest

from gristmill.formats.errors import RecipeError
from gristmill.formats.index_plan import SplitRequest
from gristmill.formats.recipe import Recipe, parse_recipe
from gristmill.formats.schedule import Phase

BOTH = {"web": 0.5, "math": 0.5}


def recipe(schedule: Any, weights: tuple[float | None, ...] = (0.9, 0.1), **index: Any) -> dict[str, Any]:
    names = ["web", "math", "code"][: len(weights)]
    sources = [
        {"id": name, "files": "x"} | ({} if weight is None else {"weight": weight})
        for name, weight in zip(names, weights, strict=True)
    ]
    size = {} if {"samples", "tokens", "epochs"} & index.keys() else {"samples": 1000}
    return {
        "name": "tiny",
        "output": "out",
        "tokenizer": {"path": "tokenizer.json"},
        "sources": sources,
        "index": {"sequence_length": 16, "schedule": schedule, **size, **index},
    }


def mistakes(values: dict[str, Any]) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(values, "recipe.toml")
    return [str(problem) for problem in caught.value.problems]


def schedule_of(values: dict[str, Any]) -> tuple[Phase, ...]:
    parsed: Recipe = parse_recipe(values)
    assert parsed.index is not None
    return parsed.index.schedule


@pytest.mark.parametrize(
    ("start", "sample"),
    [
        ({"from_sample": 1}, 1),
        ({"from_sample": 999}, 999),
        ({"from_tokens": 16}, 1),
        ({"from_tokens": 1}, 1),
        ({"from_tokens": 17}, 2),
        ({"from_tokens": 1600}, 100),
    ],
)
def test_a_phase_begins_at_a_sample_or_behind_some_tokens(start: dict[str, int], sample: int) -> None:
    assert schedule_of(recipe([start | {"weights": BOTH}])) == (Phase(sample, (0.5, 0.5)),)


def test_weights_stand_in_the_order_of_the_sources_whatever_their_order_in_the_table() -> None:
    phases = [
        {"from_sample": 10, "weights": {"code": 3, "web": 1, "math": 0}},
        {"from_tokens": 320, "weights": {"math": 0.25, "code": 0, "web": 0}},
    ]
    expected = (Phase(10, (1.0, 0.0, 3.0)), Phase(20, (0.0, 0.25, 0.0)))
    assert schedule_of(recipe(phases, (0.9, 0.1, 0))) == expected


def test_without_a_schedule_there_are_no_phases() -> None:
    values = recipe([])
    del values["index"]["schedule"]
    assert schedule_of(values) == ()


def test_a_schedule_decides_the_digest_and_its_absence_does_not() -> None:
    plain = recipe([])
    del plain["index"]["schedule"]
    digests = {
        parse_recipe(values).digest()
        for values in (
            plain,
            recipe([{"from_sample": 5, "weights": BOTH}]),
            recipe([{"from_sample": 6, "weights": BOTH}]),
            recipe([{"from_sample": 5, "weights": BOTH | {"web": 0.4}}]),
        )
    }
    assert len(digests) == 4


MISTAKES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no list": (recipe(5), ["index.schedule: is 5; it must be one or more tables [[index.schedule]]"]),
    "an empty list": (recipe([]), ["index.schedule: is empty; at least one [[index.schedule]] is needed"]),
    "no table": (recipe([3]), ["index.schedule[0]: is 3; it must be a table"]),
    "nothing in it": (
        recipe([{}]),
        [
            "index.schedule[0].from_sample: is missing; give from_sample or from_tokens, where the phase begins",
            "index.schedule[0].weights: is missing; it must be a table",
        ],
    ),
    "two beginnings": (
        recipe([{"from_sample": 5, "from_tokens": 80, "weights": BOTH}]),
        ["index.schedule[0].from_tokens: and from_sample both say where the phase begins; give one of them"],
    ),
    "at the first sample": (
        recipe([{"from_sample": 0, "weights": BOTH}]),
        ["index.schedule[0].from_sample: is 0; it must be a positive integer"],
    ),
    "no number": (
        recipe([{"from_tokens": "5", "weights": BOTH}]),
        ['index.schedule[0].from_tokens: is "5"; it must be a positive integer'],
    ),
    "at the end": (
        recipe([{"from_sample": 1000, "weights": BOTH}]),
        ["index.schedule[0].from_sample: is sample 1000, but the training split ends before sample 1000"],
    ),
    "behind the end, in tokens": (
        recipe([{"from_tokens": 15_985, "weights": BOTH}], tokens=16_000),
        ["index.schedule[0].from_tokens: is sample 1000, but the training split ends before sample 1000"],
    ),
    "not ascending": (
        recipe([{"from_sample": 50, "weights": BOTH}, {"from_tokens": 800, "weights": BOTH}]),
        ["index.schedule[1].from_tokens: is sample 50; it must be above sample 50, from which the phase before holds"],
    ),
    "a source without a weight": (
        recipe([{"from_sample": 5, "weights": {"web": 1}}]),
        ["index.schedule[0].weights.math: is missing; it must be a finite number, 0 or more (0 leaves the source out"],
    ),
    "a misspelt source": (
        recipe([{"from_sample": 5, "weights": {"web": 1, "maths": 1}}]),
        [
            "index.schedule[0].weights.math: is missing",
            'index.schedule[0].weights.maths: is not a known key; did you mean "math"? known here: math, web',
        ],
    ),
    "negative, infinite, no number": (
        recipe([{"from_sample": 5, "weights": {"web": -1, "math": float("inf"), "code": "1"}}], (1, 1, 1)),
        [
            "index.schedule[0].weights.web: is -1.0; it must be a finite number, 0 or more",
            "index.schedule[0].weights.math: is inf; it must be a finite number, 0 or more",
            'index.schedule[0].weights.code: is "1"; it must be a finite number, 0 or more',
        ],
    ),
    "not a number": (
        recipe([{"from_sample": 5, "weights": {"web": float("nan"), "math": 1}}]),
        ["index.schedule[0].weights.web: is nan; it must be a finite number, 0 or more"],
    ),
    "all zero": (
        recipe([{"from_sample": 5, "weights": {"web": 0, "math": 0}}]),
        ["index.schedule[0].weights: are all 0; at least one must be above 0"],
    ),
    "a list of weights": (
        recipe([{"from_sample": 5, "weights": [1, 1]}]),
        ["index.schedule[0].weights: is [1, 1]; it must be a table"],
    ),
    "an unknown key": (
        recipe([{"from_samples": 5, "weights": BOTH}]),
        [
            "index.schedule[0].from_sample: is missing",
            'index.schedule[0].from_samples: is not a known key; did you mean "from_sample"?',
        ],
    ),
    "every phase wrong": (
        recipe([{"from_sample": 5}, {"weights": BOTH}, {"from_sample": 7, "weights": {"web": 1, "math": True}}]),
        [
            "index.schedule[0].weights: is missing",
            "index.schedule[1].from_sample: is missing",
            "index.schedule[2].weights.math: is true; it must be a finite number, 0 or more",
        ],
    ),
    "no weights to change": (
        recipe([{"from_sample": 5, "weights": BOTH}], (None, None)),
        ["index.schedule: changes weights, but no source has one; give every source a weight"],
    ),
    "a single source": (
        recipe([{"from_sample": 5, "weights": {"web": 1}}], (None,)),
        ["index.schedule: changes weights, and a single source needs none; leave it out"],
    ),
    "no size": (
        recipe([{"from_sample": 5, "weights": BOTH}], (None, None), epochs=2),
        [
            "index.schedule: needs a size of the training split to be a part of; give samples or tokens",
            "index.schedule: changes weights, but no source has one",
        ],
    ),
    "of a held-out split": (
        recipe([{"from_sample": 5, "weights": BOTH}], valid={"schedule": []}),
        ["index.valid.schedule: is not a known key"],
    ),
}


@pytest.mark.parametrize(("values", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_each_mistake_is_told_with_its_path(values: dict[str, Any], expected: list[str]) -> None:
    found = mistakes(values)
    assert len(found) == len(expected), found
    for told, beginning in zip(found, expected, strict=True):
        assert told.startswith(beginning), told


def test_the_partial_last_sample_of_validation_and_test_can_be_kept() -> None:
    values = recipe([], valid={"drop_last_partial": False}, test={"samples": 20, "drop_last_partial": False})
    del values["index"]["schedule"]
    index = parse_recipe(values).index
    assert index is not None
    assert index.train.drop_last_partial
    assert index.valid == SplitRequest(drop_last_partial=False)
    assert index.test == SplitRequest(samples=20, drop_last_partial=False)
    values["index"]["drop_last_partial"] = False
    values["index"]["valid"] = {"drop_last_partial": 0}
    unknown, wrong = sorted(mistakes(values))
    assert unknown.startswith("index.drop_last_partial: is not a known key; known here: ")
    assert wrong == "index.valid.drop_last_partial: is 0; it must be true or false"
