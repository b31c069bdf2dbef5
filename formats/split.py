"""Splits: which sequences of a source are for training, validation and test.

A split string names proportions; every source is cut by itself, in file order and before any shuffle, so a part stays
what it is when seeds or other sources change. The arithmetic is Megatron's to the last bit (float64 normalisation by
NumPy's sum, running sums from zero, rounding half to even); the grammar is stricter than Megatron's, which picks
numbers out of any text and so reads "-1,1,0" as halves.
"""

import math
import re

import numpy as np

from gristmill.formats.errors import SettingsError

__all__ = ["canonical_split", "parse_split", "split_bounds", "split_fractions", "SPLITS"]

SPLITS = ("train", "valid", "test")
"""The three parts, in the order in which a split string names them."""

_NUMBER = re.compile(r"[+]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_REMEDY = 'write up to three proportions for train, valid and test, for example "98,1,1"'


def parse_split(text: str) -> tuple[float, float, float]:
    """The three proportions that a split string names; proportions not written are zero.

    Args:
        text: one to three non-negative decimal numbers, separated by commas; spaces around them are allowed. They need
            not sum to anything in particular, but not all may be zero.

    Raises:
        SettingsError: the text breaks a rule; the message names the part, the rule and the remedy.
    """
    if not isinstance(text, str):
        raise SettingsError(f"split {text!r}: no text; {_REMEDY}")
    if not text.strip():
        raise SettingsError(f"split {text!r}: empty; {_REMEDY}")
    parts = [part.strip(" ") for part in text.split(",")]
    if len(parts) > len(SPLITS):
        raise SettingsError(f"split {text!r}: {len(parts)} proportions where at most 3 are allowed; {_REMEDY}")
    values = [0.0, 0.0, 0.0]
    for position, part in enumerate(parts):
        values[position] = _proportion(text, SPLITS[position], part)
    with np.errstate(over="ignore"):
        total = float(np.sum(np.array(values, dtype=np.float64)))
    if not math.isfinite(total):
        raise SettingsError(f"split {text!r}: the sum of the proportions is too large for a number; {_REMEDY}")
    if total <= 0.0:
        raise SettingsError(f"split {text!r}: all proportions are zero, so no part would hold anything; {_REMEDY}")
    return values[0], values[1], values[2]


def _proportion(text: str, split: str, part: str) -> float:
    where = f"split {text!r}: the proportion of {split}, {part!r},"
    if part.startswith("-"):
        raise SettingsError(f"{where} must not be negative; {_REMEDY}")
    if _NUMBER.fullmatch(part) is None:
        raise SettingsError(f"{where} is not a number; {_REMEDY}")
    value = float(part)
    if not math.isfinite(value):
        raise SettingsError(f"{where} is not finite; {_REMEDY}")
    return value


def canonical_split(text: str) -> str:
    """The one spelling of a split: three proportions, no spaces, no needless digits; it parses to the same numbers.

    Raises:
        SettingsError: see `parse_split`.

    Examples:
        >>> canonical_split(" 98.0, 2")
        '98,2,0'
    """
    return ",".join(repr(proportion).removesuffix(".0") for proportion in parse_split(text))


def split_fractions(text: str) -> tuple[float, float, float, float]:
    """The four boundaries of the parts as fractions of a source: 0, end of train, end of valid, end of test.

    Float64 as Megatron computes them: each proportion over NumPy's sum, then a running sum of Python floats.

    Raises:
        SettingsError: see `parse_split`.
    """
    proportions = np.array(parse_split(text), dtype=np.float64)
    first, second, third = (proportions / np.sum(proportions)).tolist()
    return 0.0, first, first + second, first + second + third


def split_bounds(text: str, sequences: int) -> dict[str, tuple[int, int]]:
    """Which sequences of a source belong to each part.

    Args:
        text: the split string.
        sequences: number of sequences of the source, at least 0.

    Returns:
        For ``train``, ``valid`` and ``test`` the half-open range of sequence numbers. The ranges follow each other,
        do not overlap and together hold every sequence; a range can be empty.

    Raises:
        SettingsError: see `parse_split`; or `sequences` is negative.

    Examples:
        >>> split_bounds("969,30,1", 1000)
        {'train': (0, 969), 'valid': (969, 999), 'test': (999, 1000)}
        >>> split_bounds("1,1", 5)  # 2.5 rounds to the even neighbour
        {'train': (0, 2), 'valid': (2, 5), 'test': (5, 5)}
    """
    if sequences < 0:
        raise SettingsError(f"{sequences} sequences cannot be split: the count must be at least 0")
    edges = [round(fraction * sequences) for fraction in split_fractions(text)]
    return {split: (edges[place], edges[place + 1]) for place, split in enumerate(SPLITS)}
