"""Whole numbers among settings: Python's and NumPy's are taken alike, and what only looks like one is refused by name.

`samples=1e6` and a number that came as text would otherwise end in a TypeError far from whoever wrote them; and a
NumPy number would go into a state, which JSON cannot hold.
"""

import operator

from gristmill.formats.errors import SettingsError

__all__ = ["whole_number", "whole_or_none"]


def whole_number(name: str, value: object, least: int | None = None, *, of: str = "", or_none: bool = False) -> int:
    """A setting as an `int`.

    Args:
        name: what the setting is called.
        value: what was given.
        least: the smallest allowed; None: any.
        of: what is counted, for the message.
        or_none: whether the message is to say that None would do as well.

    Raises:
        SettingsError: it is no whole number, or too small. A float is none, whatever its value, nor is a bool.

    Examples:
        >>> import numpy as np
        >>> whole_number("seed", np.int64(7))
        7
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # may be anything
    except TypeError:
        number = None
    if number is not None and (least is None or number >= least):
        return number
    rule = "a whole number" + (f" of {of}" if of else "") + ("" if least is None else f" of at least {least}")
    raise SettingsError(f"{name} must be {rule}{', or None' if or_none else ''}, not {value!r}")


def whole_or_none(name: str, value: object) -> int | None:
    """A setting that may be None; see `whole_number`."""
    return None if value is None else whole_number(name, value)
