"""Every error that Gristmill raises on purpose, as one tree.

    GristmillError
    ├── SettingsError            a setting cannot be followed; nothing was read or written     exit code 2
    │   ├── RecipeError          the recipe has mistakes, all of them listed
    │   ├── SetupError           a training job and its data do not fit, all of it listed
    │   ├── TokenizerError       the tokenizer or its EOD cannot be used
    │   └── MissingExtraError    a library is absent; the message names the extra
    ├── DataError                the data are not what they must be                            exit code 1
    │   ├── InputError           an input file or record of the user's
    │   ├── FormatError          a .bin/.idx pair, an index or another file of ours is damaged
    │   └── CorpusError          a corpus is unfinished, stale, or differs from what was asked
    └── StorageError             a file could not be read or written                           exit code 1

Each message says what is wrong, where (file and line, row or key), the value found, the rule, and the remedy.
One tree trades finer `except` clauses for a command line that needs a single handler.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

__all__ = [
    "CorpusError",
    "DataError",
    "FormatError",
    "GristmillError",
    "InputError",
    "MissingExtraError",
    "Problem",
    "RecipeError",
    "SettingsError",
    "SetupError",
    "StorageError",
    "TokenizerError",
]


class GristmillError(Exception):
    """Root of all errors raised on purpose. Every one can be pickled, as runners with worker processes do.

    Attributes:
        exit_code: what the command line exits with when this error reaches it.
        facts: what the message says, by name, for a log that machines read; empty where nobody has said it.
    """

    exit_code = 1
    facts: Mapping[str, Any] = MappingProxyType({})

    def about(self, **facts: Any) -> Self:
        """The error with facts beside its message: file, line, row, key, value, rule, remedy; JSON values."""
        self.facts = {**self.facts, **facts}
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(kind: type[GristmillError], args: tuple[object, ...], state: dict[str, object]) -> GristmillError:
    """An error as it was, without its constructor, which may take more than the message."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class SettingsError(GristmillError):
    """A setting (recipe, option, argument) cannot be followed. Raised before any work."""

    exit_code = 2


class DataError(GristmillError):
    """The data are not what they must be."""


class InputError(DataError):
    """An input file or record breaks a rule; the message names the file and the line or row."""


class FormatError(DataError):
    """A file in one of Gristmill's or Megatron's formats is damaged or of another kind."""


class CorpusError(DataError):
    """A corpus is unfinished, stale, or not the one that was asked for."""


class StorageError(GristmillError):
    """A file or object could not be listed, read, written or published."""


class TokenizerError(SettingsError):
    """The tokenizer cannot be loaded, or its EOD cannot be used."""


class MissingExtraError(SettingsError):
    """A library that an extra brings is not installed."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs `{library}`, which is not installed: pip install 'gristmill[{extra}]'")


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a recipe, or in the settings of a training job.

    Attributes:
        key: the setting; in a recipe its dotted path, for example ``sources[1].weight``.
        message: what is wrong, the value, the rule and a suggestion.
    """

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


class RecipeError(SettingsError):
    """A recipe has mistakes; all of them are listed at once.

    Attributes:
        problems: the mistakes, in the order of the recipe's keys.
    """

    def __init__(self, where: str, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in problems)
        count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        super().__init__(f"{where}: {count} in the recipe\n{lines}")


class SetupError(SettingsError):
    """The settings of a training job do not fit each other or its data; all that does not is listed at once.

    Attributes:
        problems: what does not fit, in the order in which it is compared.
    """

    def __init__(self, where: str, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in problems)
        count = "1 setting does" if len(problems) == 1 else f"{len(problems)} settings do"
        super().__init__(f"{where}: {count} not fit\n{lines}")
