"""Splits: grammar, Megatron's arithmetic, and parts that cover everything once."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import SettingsError
from gristmill.formats.split import SPLITS, canonical_split, parse_split, split_bounds, split_fractions

proportions = st.lists(st.one_of(st.integers(0, 1000), st.floats(0, 1e6)), min_size=1, max_size=3).filter(
    lambda numbers: sum(numbers) > 0
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("98,1,1", (98.0, 1.0, 1.0)),
        (" 98 , 1,1 ", (98.0, 1.0, 1.0)),
        ("1,1", (1.0, 1.0, 0.0)),
        ("5", (5.0, 0.0, 0.0)),
        (".9,0.05,5e-2", (0.9, 0.05, 0.05)),
        ("100,0,0", (100.0, 0.0, 0.0)),
        ("+1.,2", (1.0, 2.0, 0.0)),
    ],
)
def test_numbers_are_read_and_missing_ones_are_zero(text: str, expected: tuple[float, float, float]) -> None:
    assert parse_split(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "split '': empty; write up to three proportions"),
        ("   ", "empty"),
        ("-1,1,0", "proportion of train, '-1', must not be negative"),
        ("90,abc5,5", "proportion of valid, 'abc5', is not a number"),
        ("90,5,", "proportion of test, '', is not a number"),
        ("90;5;5", "proportion of train, '90;5;5', is not a number"),
        ("1,2,3,4", "4 proportions where at most 3 are allowed"),
        ("0,0,0", "all proportions are zero"),
        ("1e400,1,1", "proportion of train, '1e400', is not finite"),
        ("nan,1", "proportion of train, 'nan', is not a number"),
        ("1,inf", "proportion of valid, 'inf', is not a number"),
        ("1_0,1", "is not a number"),
        ("1e308,1e308,1e308", "the sum of the proportions is too large"),
        ("9 0,10", "'9 0', is not a number"),
        ("٣,1", "is not a number"),
    ],
)
def test_anything_else_is_refused_with_the_part_named(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_split(text)
    with pytest.raises(SettingsError, match=message):
        split_bounds(text, 10)


@pytest.mark.parametrize(
    ("text", "sequences", "ends"),
    [
        ("1,1", 5, (2, 5, 5)),
        ("1,1", 7, (4, 7, 7)),
        ("1,1", 1, (0, 1, 1)),
        ("969,30,1", 10, (10, 10, 10)),
        ("969,30,1", 1000, (969, 999, 1000)),
        ("0.7,0.2,0.1", 15, (11, 14, 15)),  # a compensated sum would give 10
        ("100,0,0", 10, (10, 10, 10)),
        ("98,1,1", 0, (0, 0, 0)),
    ],
)
def test_ends_are_rounded_half_to_even(text: str, sequences: int, ends: tuple[int, int, int]) -> None:
    assert tuple(end for _, end in split_bounds(text, sequences).values()) == ends


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(SettingsError, match="-1 sequences cannot be split"):
        split_bounds("1", -1)


@settings(deadline=None)
@given(proportions, st.integers(0, 2**31 - 1))
def test_parts_follow_each_other_and_cover_everything(numbers: list[float], sequences: int) -> None:
    bounds = split_bounds(",".join(map(repr, numbers)), sequences)
    assert list(bounds) == list(SPLITS)
    edges = [0, *itertools.chain.from_iterable(bounds.values()), sequences]
    assert all(end == start for end, start in zip(edges[::2], edges[1::2], strict=True))
    assert all(start <= end for start, end in bounds.values())


@settings(deadline=None)
@given(proportions)
def test_fractions_are_numpys_quotients_summed_from_zero(numbers: list[float]) -> None:
    values = np.array([*numbers, 0, 0, 0][:3], dtype=np.float64)
    quotients = (values / values.sum()).tolist()
    expected = [0.0]
    for quotient in quotients:
        expected.append(expected[-1] + quotient)
    assert split_fractions(",".join(map(repr, numbers))) == tuple(expected)


@settings(deadline=None)
@given(proportions)
def test_the_canonical_spelling_means_the_same_and_is_its_own(numbers: list[float]) -> None:
    text = canonical_split(" , ".join(map(repr, numbers)))
    assert parse_split(text) == parse_split(",".join(map(repr, numbers)))
    assert canonical_split(text) == text


def test_the_canonical_spelling_of_a_plain_split_is_the_plain_split() -> None:
    assert canonical_split("98.0, 1,1") == "98,1,1"
