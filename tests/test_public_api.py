"""What each module offers: `__all__` is sorted, equals what is really defined, and every name is documented.

Modules are found by walking the rooms' folders and read as source, so a new one is covered the day it appears.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("dataflow", "formats", "pipelines", "runtime", "tokenize")
MODULES = sorted(path for folder in (*ROOMS, "src/gristmill") for path in (ROOT / folder).rglob("*.py"))
EVERY_MODULE = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())

FACADES = {
    "formats/index_set.py": "building an index set takes steps from four modules; callers see them as one thing",
}
"""Modules that, like a package's `__init__`, may hand on names of Gristmill's other modules: path -> the reason."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[2:] if parts[0] == "src" else parts
    return ".".join(("gristmill", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def body(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text("utf-8"), str(path)).body


def assigned(node: ast.stmt) -> list[str]:
    """The plain names that a statement at the top level of a module binds by assignment."""
    if isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets: list[ast.expr] = [node.target]
    elif isinstance(node, ast.Assign):
        targets = [
            part for target in node.targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
    else:
        return []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def public(names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith("_")]


def defined(statements: list[ast.stmt]) -> list[str]:
    """Public functions, classes and constants that a module itself defines, those in `if` and `try` blocks too."""
    names: list[str] = []
    for node in statements:
        if isinstance(node, Definition):
            names.append(node.name)
        names += assigned(node)
        for block in ("body", "orelse", "finalbody") if isinstance(node, ast.If | ast.Try | ast.With) else ():
            names += defined(getattr(node, block, []))
        if isinstance(node, ast.Try):
            names += [name for handler in node.handlers for name in defined(handler.body)]
    return sorted(set(public(names)))


def exported(statements: list[ast.stmt]) -> list[str] | None:
    for node in statements:
        if "__all__" in assigned(node) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            names = ast.literal_eval(node.value)
            return [str(name) for name in names]
    return None


def handed_on(statements: list[ast.stmt]) -> set[str]:
    """Names that a module imports from Gristmill's other modules."""
    names = set()
    for node in statements:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gristmill":
            names |= {alias.asname or alias.name for alias in node.names}
    return names


@EVERY_MODULE
def test_all_is_sorted_without_regard_to_case(path: Path) -> None:
    names = exported(body(path)) or []
    assert names == sorted(names, key=lambda name: (name.casefold(), name))
    assert len(names) == len(set(names))


@EVERY_MODULE
def test_all_is_what_the_module_defines(path: Path) -> None:
    statements = body(path)
    names, real = exported(statements), defined(statements)
    if names is None:
        assert not real, f"{module_name(path)} defines public names and needs an __all__"
        return
    offered = set(public(names))
    if path.name == "__init__.py" or path.relative_to(ROOT).as_posix() in FACADES:
        lazy = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in statements)
        assert set(real) <= offered
        assert lazy or offered - set(real) <= handed_on(statements)
    else:
        assert sorted(offered) == real


RESOLVE = """
import importlib, json, sys
for name, offered in json.loads(sys.argv[1]).items():
    module = importlib.import_module(name)
    for attribute in offered:
        if not hasattr(module, attribute):
            print(f"{name}.{attribute}")
"""


def test_every_offered_name_is_there_when_it_is_imported() -> None:
    offered = {module_name(path): exported(body(path)) or [] for path in MODULES if path.stem != "__main__"}
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE, json.dumps(offered)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout


def comment_above(lines: list[str], node: ast.stmt) -> bool:
    return node.lineno >= 2 and lines[node.lineno - 2].lstrip().startswith("#")


def undocumented(path: Path) -> list[str]:
    """Public names of a module that say nothing about themselves.

    A function or class needs a docstring; a constant a string literal below it, or a comment above or beside it.
    """
    statements, lines = body(path), path.read_text("utf-8").splitlines()
    missing = []
    for node, following in zip(statements, [*statements[1:], None], strict=True):
        if isinstance(node, Definition) and public([node.name]) and not ast.get_docstring(node):
            missing.append(node.name)
        if public(assigned(node)):
            below = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            end = lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :]
            if not (below or comment_above(lines, node) or end.lstrip().startswith("#")):
                missing += public(assigned(node))
    return missing


@EVERY_MODULE
def test_every_public_name_is_documented(path: Path) -> None:
    assert not undocumented(path)


@EVERY_MODULE
def test_everything_is_annotated(path: Path) -> None:
    missing = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            bare = [item.arg for item in arguments if item.annotation is None and item.arg not in {"self", "cls"}]
            missing += [f"{node.name}({name})" for name in bare] + ([node.name] if node.returns is None else [])
    assert not missing
