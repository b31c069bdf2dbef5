"""Who imports whom: by reading the source, and by looking at what a fresh interpreter really loads.

A training host must not need Beam, and a worker that prepares text must not need JAX. The rules are checked for every
module found in the rooms' folders, so a new file is covered the day it appears.
"""

import ast
import functools
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]

MAY_IMPORT = {
    "formats": set[str](),
    "tokenize": {"formats"},
    "pipelines": {"formats", "tokenize"},
    "runtime": {"formats"},
    "dataflow": {"formats", "tokenize", "pipelines"},
}
"""For each room, the other rooms that it may import."""

EXTRAS = {
    "formats": (),
    "tokenize": ("prepare",),
    "pipelines": ("prepare", "dask", "hub", "languages", "records", "web"),
    "runtime": ("train",),
    "dataflow": ("prepare", "dataflow"),
}
"""For each room, the extras whose libraries it may import, besides the package's own dependencies."""

_TRAINING = {"jax", "jaxlib", "grain", "orbax", "optax", "flax"}
_CONVERTERS = {"transformers", "datasets", "sentencepiece", "tiktoken", "torch", "tensorflow"}
_PREPARING = {"apache_beam", "pyarrow", "tokenizers", "fastokens"}

NEVER_LOADED = {
    "gristmill": _TRAINING | _CONVERTERS | _PREPARING | {"numpy", "numba"},
    "gristmill.cli": _TRAINING | _CONVERTERS | {"apache_beam"},
    "formats": _TRAINING | _CONVERTERS | _PREPARING,
    "tokenize": _TRAINING | _CONVERTERS | {"apache_beam"},
    "pipelines": _TRAINING | _CONVERTERS,
    "runtime": _CONVERTERS | {"apache_beam"},
    "dataflow": _TRAINING | _CONVERTERS,
}
"""What is not loaded by importing a module by name, or every module of a room: what workers import is among them."""


def modules_of(room: str) -> dict[str, Path]:
    """Each module of a room by its name under `gristmill`."""
    found = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(("gristmill", *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return found


ALL_MODULES = [(room, name, path) for room in MAY_IMPORT for name, path in modules_of(room).items()]
EVERY_MODULE = pytest.mark.parametrize(
    ("room", "name", "path"), ALL_MODULES, ids=[name.removeprefix("gristmill.") for _, name, _ in ALL_MODULES]
)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports, inside functions too; a relative import keeps its dots."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, "." * node.level + (f"{node.module}." if node.module else "") + alias.name


@EVERY_MODULE
def test_a_room_imports_only_the_rooms_below_it(room: str, name: str, path: Path) -> None:
    allowed = {"gristmill.__version__", *(f"gristmill.{other}" for other in {room, *MAY_IMPORT[room]})}
    wrong = [
        f"line {line}: {target}"
        for line, target in imports(path)
        if target.split(".")[0] == "gristmill" and ".".join(target.split(".")[:2]) not in allowed
    ]
    assert not wrong, f"{name} may import {sorted(allowed)} only"


def test_the_allowed_directions_have_no_cycle() -> None:
    for room, below in MAY_IMPORT.items():
        assert all(room not in MAY_IMPORT[other] for other in below)
        assert all(MAY_IMPORT[other] <= below for other in below), "directions must be transitive"


@pytest.mark.parametrize(
    "path",
    [
        path
        for folder in (*MAY_IMPORT, "src", "tests", "examples", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    ],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_no_import_is_relative_or_makes_a_second_copy(path: Path) -> None:
    bare = set(MAY_IMPORT) - {"tokenize"}  # `import tokenize` is Python's own module
    wrong = [f"line {line}: {to}" for line, to in imports(path) if to.startswith(".") or to.split(".")[0] in bare]
    assert not wrong, "import gristmill.<room> by its full name"


@functools.cache
def requirements(extra: str) -> frozenset[str]:
    """Distributions that gristmill itself declares: its own dependencies, and those of one extra when it is named."""
    declared = map(Requirement, importlib.metadata.requires("gristmill") or [])
    return frozenset(canonicalize_name(item.name) for item in declared if _applies(item.marker, extra))


def _applies(marker: Marker | None, extra: str) -> bool:
    return marker is None or marker.evaluate({"extra": extra})


def installed_with(room: str) -> frozenset[str]:
    """Every distribution that installing a room's extras brings, those that others depend on included."""
    waiting = [(name, "") for extra in ("", *EXTRAS[room]) for name in requirements(extra)]
    seen = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            declared = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for item in map(Requirement, declared):
            if _applies(item.marker, extra):
                waiting += [(canonicalize_name(item.name), wanted) for wanted in ("", *item.extras)]
    return frozenset(name for name, _ in seen)


@functools.cache
def distributions() -> dict[str, frozenset[str]]:
    """For each importable top-level name, the distributions that bring it."""
    found = importlib.metadata.packages_distributions()
    return {name: frozenset(map(canonicalize_name, owners)) for name, owners in found.items()}


@EVERY_MODULE
def test_a_room_imports_only_what_its_extras_declare(room: str, name: str, path: Path) -> None:
    allowed = frozenset().union(*(requirements(extra) for extra in ("", *EXTRAS[room])))
    wrong = []
    for line, target in imports(path):
        top = target.split(".")[0]
        if top == "gristmill" or top in sys.stdlib_module_names:
            continue
        if not distributions().get(top, frozenset({canonicalize_name(top)})) & allowed:
            wrong.append(f"line {line}: {top}")
    assert not wrong, f"{name}: neither the dependencies nor the extras {EXTRAS[room]} of pyproject.toml bring these"


def run_fresh(code: str, *arguments: str) -> str:
    """Runs code in a new interpreter outside the repository and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LOADED = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize("what", NEVER_LOADED)
def test_a_fresh_interpreter_loads_nothing_of_another_room(what: str) -> None:
    names = [what] if what.startswith("gristmill") else ["gristmill", *modules_of(what)]
    loaded = set(json.loads(run_fresh(LOADED, json.dumps(names)).splitlines()[-1]))
    assert "gristmill" in loaded
    assert not loaded & NEVER_LOADED[what], f"importing {names} loads them"


WITHOUT = """
import importlib, importlib.machinery, json, sys
hidden = set(json.loads(sys.argv[2]))

class Visible(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)

sys.meta_path[:] = [Visible if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
for name in list(sys.modules):
    if name.partition(".")[0] in hidden:
        del sys.modules[name]
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
"""


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_can_be_imported_with_its_own_extras_alone(room: str) -> None:
    present = installed_with(room) | {"gristmill"}
    hidden = sorted(name for name, owners in distributions().items() if not owners & present)
    assert {"pytest", "ruff", "mypy"} & set(hidden), "nothing was hidden, so nothing would be shown"
    run_fresh(WITHOUT, json.dumps(["gristmill.cli", *modules_of(room)]), json.dumps(hidden))
