"""The error tree: exit codes, messages, and that every error survives a trip to another process."""

import ast
import pickle
import re
from pathlib import Path

import pytest

from gristmill.formats import errors
from gristmill.formats.errors import (
    CorpusError,
    DataError,
    FormatError,
    GristmillError,
    InputError,
    MissingExtraError,
    Problem,
    RecipeError,
    SettingsError,
    SetupError,
    StorageError,
    TokenizerError,
)

FORMATS = Path(__file__).resolve().parents[2] / "formats"
TREE = {
    GristmillError: (Exception, 1),
    SettingsError: (GristmillError, 2),
    RecipeError: (SettingsError, 2),
    SetupError: (SettingsError, 2),
    TokenizerError: (SettingsError, 2),
    MissingExtraError: (SettingsError, 2),
    DataError: (GristmillError, 1),
    InputError: (DataError, 1),
    FormatError: (DataError, 1),
    CorpusError: (DataError, 1),
    StorageError: (GristmillError, 1),
}
EXAMPLES = [
    *(kind("x: what is wrong") for kind in TREE if kind not in {RecipeError, SetupError, MissingExtraError}),
    MissingExtraError("jax", "train", "delivery"),
    RecipeError("recipe.toml", [Problem("seed", "is -1"), Problem("", "is empty")]),
    SetupError("the stream", [Problem("steps", "are too many")]),
]


@pytest.mark.parametrize(("kind", "place"), TREE.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_the_tree_is_as_drawn(kind: type[GristmillError], place: tuple[type[Exception], int]) -> None:
    parent, exit_code = place
    assert kind.__bases__ == (parent,)
    assert kind.exit_code == exit_code
    drawn = [line for line in (errors.__doc__ or "").splitlines() if re.search(rf"\b{kind.__name__}\b", line)]
    assert len(drawn) == 1
    shown = re.search(r"exit code (\d)", drawn[0])
    assert (shown is not None) == (parent is GristmillError)
    assert shown is None or int(shown[1]) == exit_code


def test_the_tree_is_complete() -> None:
    kinds = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert kinds == set(TREE)
    assert {kind.__name__ for kind in kinds} | {"Problem"} == set(errors.__all__)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: GristmillError) -> None:
    error.add_note("met in bundle 3")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert copy.exit_code == error.exit_code


def test_a_missing_library_names_the_extra_and_the_command() -> None:
    error = MissingExtraError("apache-beam", "prepare", "--runner FnApiRunner")
    assert str(error) == (
        "--runner FnApiRunner needs `apache-beam`, which is not installed: pip install 'gristmill[prepare]'"
    )


def test_a_recipe_error_lists_every_mistake() -> None:
    problems = [Problem("seed", "is -1"), Problem("sources[0].id", "is missing"), Problem("", "is empty")]
    error = RecipeError("r.toml", problems)
    assert str(error) == (
        "r.toml: 3 mistakes in the recipe\n  - seed: is -1\n  - sources[0].id: is missing\n  - is empty"
    )
    assert error.problems == tuple(problems)
    assert str(RecipeError("r.toml", problems[:1])) == "r.toml: 1 mistake in the recipe\n  - seed: is -1"


def test_a_setup_error_lists_all_that_does_not_fit() -> None:
    problems = [Problem("eod_id", "is 1, not 0"), Problem("steps", "are too many")]
    error = SetupError("the stream", problems)
    assert str(error) == "the stream: 2 settings do not fit\n  - eod_id: is 1, not 0\n  - steps: are too many"
    assert error.problems == tuple(problems)
    assert str(SetupError("x", problems[:1])) == "x: 1 setting does not fit\n  - eod_id: is 1, not 0"


@pytest.mark.parametrize("path", sorted(FORMATS.glob("*.py")), ids=lambda path: path.name)
def test_no_message_lost_its_f(path: Path) -> None:
    """A name in braces in a string without an `f` would be shown to the user as it stands."""
    tree = ast.parse(path.read_text("utf-8"))
    inside = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    prose = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    plain = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside and node not in prose
    ]
    assert [node.lineno for node in plain if re.search(r"\{[a-z_][\w.\[\]()]*(:[^}]*)?\}", str(node.value))] == []
