"""Reads one table of settings, collecting every mistake instead of stopping at the first.

Each `take` names a key, its type and its rule; a value that breaks the rule is noted under its dotted path and the
default stands in, so that reading goes on. `finish` notes the keys nobody took, with the nearest known name. That
trades a schema library's generality for messages in the recipe's own words.
"""

import difflib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gristmill.formats.errors import Problem

__all__ = ["SettingsTable"]

_T = TypeVar("_T")
_TYPE_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


class SettingsTable:
    """One table of a settings file.

    Attributes:
        path: dotted path of the table, empty for the top.
        problems: where mistakes go; shared by all tables of a file.
    """

    def __init__(self, values: dict[str, Any], path: str, problems: list[Problem]) -> None:
        self.path = path
        self.problems = problems
        self._values = values
        self._taken: set[str] = set()
        self._asked: set[str] = set()

    def key(self, name: str) -> str:
        """Dotted path of a key of this table."""
        return f"{self.path}.{name}" if self.path else name

    def note(self, name: str, message: str) -> None:
        """Notes a mistake of a key."""
        self.problems.append(Problem(self.key(name), message))

    def has(self, name: str) -> bool:
        """Whether the table has the key; it must still be taken."""
        self._asked.add(name)
        return name in self._values

    def peek(self, name: str) -> Any:
        """The value of a key as it stands, None when absent; it must still be taken."""
        return self._values.get(name)

    def take(
        self,
        name: str,
        kind: type[_T],
        default: _T | None = None,
        *,
        required: bool = False,
        rule: Callable[[_T], bool] | None = None,
        says: str = "",
    ) -> _T | None:
        """Takes a value.

        Args:
            name: the key.
            kind: its type; float also takes an integer, and refuses NaN and infinities.
            default: what an absent or wrong value is replaced by.
            required: whether absence is a mistake.
            rule: what the value must satisfy.
            says: the rule in words, for the message.
        """
        self._taken.add(name)
        if name not in self._values:
            if required:
                self.note(name, f"is missing; it must be {says or _TYPE_NAMES[kind]}")
            return default
        value = self._values[name]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.note(name, f"is {_show(value)}; it must be {says or _TYPE_NAMES[kind]}")
            return default
        if isinstance(value, float) and not math.isfinite(value):
            self.note(name, f"is {value}; it must be {says or 'a finite number'}")
            return default
        if rule is not None and not rule(value):
            self.note(name, f"is {_show(value)}; it must be {says}")
            return default
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """Takes one of several words."""
        says = "one of " + ", ".join(f'"{choice}"' for choice in choices)
        value = self.take(name, str, default, says=says)
        if value not in choices:
            self.note(name, f"is {_show(value)}; it must be {says}{_nearest(str(value), choices)}")
            return default
        return str(value)

    def strings(self, name: str, *, required: bool = False) -> tuple[str, ...]:
        """Takes a list of strings, or one string as a list of one."""
        self._taken.add(name)
        value = self._values.get(name)
        if value is None:
            if required:
                self.note(name, "is missing; it must be a list of strings")
            return ()
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(entry, str) and entry for entry in values):
            self.note(name, f"is {_show(value)}; it must be a list of non-empty strings")
            return ()
        if required and not values:
            self.note(name, "is empty; it must name at least one")
        return tuple(values)

    def table(self, name: str, *, required: bool = False) -> "SettingsTable":
        """Takes a table; an absent or wrong one reads as empty."""
        value = self.take(name, dict, None, required=required)
        return SettingsTable(value or {}, self.key(name), self.problems)

    def tables(self, name: str) -> "list[SettingsTable]":
        """Takes a list of tables; at least one must be there."""
        value = self.take(name, list, None, required=True, says=f"one or more tables [[{self.key(name)}]]")
        if value is not None and not value:
            self.note(name, f"is empty; at least one [[{self.key(name)}]] is needed")
        found = []
        for number, entry in enumerate(value or []):
            if isinstance(entry, dict):
                found.append(SettingsTable(entry, f"{self.key(name)}[{number}]", self.problems))
            else:
                self.note(f"{name}[{number}]", f"is {_show(entry)}; it must be a table")
        return found

    def finish(self) -> None:
        """Notes every key that nobody took."""
        for name in self._values:
            if name not in self._taken:
                known = sorted(self._taken | self._asked)
                nearest = _nearest(name, known) or ";"
                self.note(name, f"is not a known key{nearest} known here: {', '.join(known)}")


def _show(value: Any) -> str:
    """A value on one line, as TOML writes it where that differs from Python."""
    if isinstance(value, bool | str):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
