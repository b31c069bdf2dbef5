"""The rules of layout and of source text that no linter knows.

Modules and files are found by walking the folders, so a new one is covered the day it appears.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("dataflow", "formats", "pipelines", "runtime", "tokenize")
MODULES = sorted(path for folder in (*ROOMS, "src/gristmill") for path in (ROOT / folder).rglob("*.py"))
SCRIPTS = sorted(path for folder in ("examples", "benchmarks") for path in (ROOT / folder).rglob("*.py"))

MOST_LINES = 400
LONGER: dict[str, str] = {}
"""Modules that may exceed MOST_LINES: path -> the reason why one noun needs so much room."""


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


EVERY_MODULE = pytest.mark.parametrize("path", MODULES, ids=named)


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Name and content of each text file that is under version control or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("this is not a git checkout, so there is no list of the files under version control")
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if b"\0" not in data:
                yield name, data.decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------------------ folders


def test_the_rooms_are_relative_links_in_one_package() -> None:
    links = {path.name: path for path in (ROOT / "src" / "gristmill").iterdir() if path.is_symlink()}
    assert sorted(links) == sorted(ROOMS)
    for name, link in links.items():
        assert link.readlink() == Path("..", "..", name), f"{link} must be a relative link to the top-level folder"
        assert link.resolve() == ROOT / name


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "gristmill" / "py.typed").read_bytes() == b""


def test_each_room_but_tokenize_is_a_regular_package() -> None:
    assert [room for room in ROOMS if not (ROOT / room / "__init__.py").is_file()] == ["tokenize"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "import tokenize; tokenize.open; tokenize.generate_tokens"],
        ["-c", "import inspect, json; assert 'def dumps' in inspect.getsource(json)"],
        ["-m", "pytest", "--version"],
        ["-m", "doctest", "-h"],
    ],
    ids=lambda arguments: arguments[1].split(";")[0],
)
def test_python_finds_its_own_tokenize_from_the_root(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_version_is_the_same_everywhere() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert f'__version__ = "{declared}"' in (ROOT / "src" / "gristmill" / "__init__.py").read_text("utf-8")


# ------------------------------------------------------------------------------------------------------ modules


@EVERY_MODULE
def test_a_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(tree(path)), f"{named(path)} has no docstring"


@EVERY_MODULE
def test_a_module_is_one_noun_of_limited_length(path: Path) -> None:
    lines = len(path.read_text("utf-8").splitlines())
    if named(path) in LONGER:
        assert lines > MOST_LINES, f"{named(path)} is short enough now: take it off the list"
        assert LONGER[named(path)].strip(), "an exception needs a reason"
    else:
        assert lines <= MOST_LINES, f"{named(path)} has {lines} lines; split it, or list it with the reason"


@EVERY_MODULE
def test_library_code_does_not_assert(path: Path) -> None:
    lines = [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Assert)]
    assert not lines, f"{named(path)}: python -O drops these; raise an error of gristmill.formats.errors"


@EVERY_MODULE
def test_library_code_is_finished(path: Path) -> None:
    text = path.read_text("utf-8")
    notes = [f"line {n}" for n, line in enumerate(text.splitlines(), 1) if re.search("TO" + "DO|FIX" + "ME", line)]
    assert not notes, named(path)
    raised = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Raise) and node.exc is not None]
    stubs = [f"line {node.lineno}" for node in raised if "NotImplementedError" in ast.unparse(node)]
    assert not stubs, named(path)


def plain_strings(node: ast.expr) -> Iterator[ast.Constant]:
    """The string literals of an expression that are not part of an f-string and not formatted by a method."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node
    elif isinstance(node, ast.BinOp):
        yield from plain_strings(node.left)
        yield from plain_strings(node.right)
    elif isinstance(node, ast.JoinedStr):
        return
    elif isinstance(node, ast.Call) and not (isinstance(node.func, ast.Attribute) and node.func.attr == "format"):
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from plain_strings(argument)


@EVERY_MODULE
def test_no_error_message_lost_its_f(path: Path) -> None:
    raised = [node.exc for node in ast.walk(tree(path)) if isinstance(node, ast.Raise) and node.exc is not None]
    texts = [text for exc in raised for text in plain_strings(exc)]
    wrong = [f"line {text.lineno}" for text in texts if re.search(r"\{[a-z_][\w.\[\]()!:]*\}", str(text.value))]
    assert not wrong, f"{named(path)}: the placeholder would be shown as it is"


@EVERY_MODULE
def test_numpy_never_unpickles(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"np.load", "numpy.load"}:
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert given.get("allow_pickle") == "False", f"{named(path)}, line {node.lineno}: allow_pickle=False"


_BEAM_BASES = re.compile(r"(^|\.)(\w*DoFn|CombineFn|PTransform)$")


def beam_classes(path: Path) -> list[ast.ClassDef]:
    classes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]
    return [node for node in classes if any(_BEAM_BASES.search(ast.unparse(base)) for base in node.bases)]


@EVERY_MODULE
def test_beam_classes_pickle_by_reference(path: Path) -> None:
    found = beam_classes(path)
    top = [node for node in tree(path).body if isinstance(node, ast.ClassDef)]
    assert {node.name for node in found} <= {node.name for node in top}, f"{named(path)}: one is inside a function"
    if found:
        guards = [node for node in tree(path).body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
        assert not guards, f"{named(path)}: run with -m, its classes would belong to __main__, which no worker has"
        assert path.stem != "__main__"


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_scripts_define_no_beam_classes(path: Path) -> None:
    assert not beam_classes(path), f"{named(path)}: a worker cannot import a script; move them into a room"


# ------------------------------------------------------------------------------------------------- all the files


def test_no_file_names_a_path_of_one_machine() -> None:
    own = re.compile(
        r"(?<![\w.~])/(?:" + "|".join(("ro" + "ot", "wo" + "rk", "ho" + "me", "Us" + "ers", "tmp/" + "w")) + r")/\w"
    )
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in tracked_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if own.search(line)
    ]
    assert not found


def links_of_page(text: str) -> list[tuple[str, str]]:
    """Path and anchor of each relative link of a Markdown page; either may be empty."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", prose)
    parts = [target.partition("#") for target in targets if not re.match(r"[a-z]+:", target)]
    return [(path, anchor) for path, _, anchor in parts]


def anchors_of_page(text: str) -> set[str]:
    """What its headings are called in links: lower case, without punctuation, dashes for spaces."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere() -> None:
    pages = {(ROOT / name).resolve(): text for name, text in tracked_texts() if name.endswith(".md")}
    lost = []
    for page, text in pages.items():
        for path, anchor in links_of_page(text):
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor not in anchors_of_page(pages[target])):
                lost.append(f"{named(page)}: {path}#{anchor}")
    assert not lost
