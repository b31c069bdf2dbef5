"""What the pages say about recipes, commands and code, compared with the code."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.errors import RecipeError
from gristmill.formats.recipe import parse_recipe
from gristmill.pipelines.stage_names import STAGES

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted(path for room in ("formats", "docs") for path in (ROOT / room).rglob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    """Page and text of every fenced block of one language."""
    fence = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    texts = ((page, page.read_text("utf-8")) for page in PAGES)
    return [(page.relative_to(ROOT).as_posix(), block) for page, text in texts for block in fence.findall(text)]


@pytest.mark.parametrize(("page", "text"), blocks("toml"), ids=lambda value: value.partition("\n")[0][:40])
def test_every_recipe_shown_is_valid(page: str, text: str) -> None:
    recipe = parse_recipe(tomllib.loads(text), page)
    assert recipe.sources


@pytest.mark.parametrize(("page", "text"), blocks("python"), ids=lambda value: value.partition("\n")[0][:40])
def test_every_python_example_is_python(page: str, text: str) -> None:
    ast.parse(text, page)


def known_keys() -> dict[str, set[str]]:
    """The keys that the parser knows, by table: it names them when it meets one that it does not know."""
    odd: dict[str, Any] = {"no-such-key": 1}
    values = {
        "tokenizer": odd,
        "defaults": {"clean": odd, **odd},
        "sources": [{"clean": odd, **odd}],
        "shards": odd,
        "near_dedup": odd,
        "paragraph_dedup": odd,
        "budget": odd,
        "index": {"valid": odd, "test": odd, "schedule": [odd], **odd},
        **odd,
    }
    with pytest.raises(RecipeError) as caught:
        parse_recipe(values)
    found = {}
    for problem in caught.value.problems:
        if problem.key.endswith("no-such-key"):
            table = problem.key.removesuffix("no-such-key").rstrip(".").replace("[0]", "")
            found[table] = set(problem.message.split("known here: ")[1].split(", ")) - {"no-such-key"}
    return found


HEADINGS = {
    "": "## Top level",
    "tokenizer": "## `[tokenizer]`",
    "defaults": "## `[defaults]`",
    "defaults.clean": "## `[defaults.clean]` and `clean` of a source",
    "sources.clean": "## `[defaults.clean]` and `clean` of a source",
    "sources": "## `[[sources]]`",
    "shards": "## `[shards]`",
    "budget": "## `[budget]`",
    "near_dedup": "## `[near_dedup]`",
    "paragraph_dedup": "## `[paragraph_dedup]`",
    "index": "## `[index]`",
    "index.schedule": "## `[[index.schedule]]`",
}


def test_the_recipe_page_lists_every_key_and_no_other() -> None:
    page = (ROOT / "docs" / "guide" / "recipe.md").read_text("utf-8")
    sections = {f"## {part.splitlines()[0]}": part for part in page.split("\n## ")[1:]}
    known = known_keys()
    assert set(known) - {"index.valid", "index.test"} == set(HEADINGS)
    for table, heading in HEADINGS.items():
        listed = set(re.findall(r"^\| `(\w+)` \|", sections[heading], re.MULTILINE))
        assert listed == known[table], heading
    assert known["index.valid"] == known["index.test"] == {"samples", "tokens", "epochs", "drop_last_partial"}


def help_of(*words: str) -> str:
    command = [sys.executable, "-m", "gristmill", *words, "--help"]
    return subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, check=True).stdout


EVERYWHERE = ("--debug", "--log-format")
"""Options that every command has, told once."""


def test_the_command_line_page_lists_every_command_and_option_and_no_other() -> None:
    page = (ROOT / "docs" / "guide" / "command-line.md").read_text("utf-8")
    sections = {part.splitlines()[0]: part for part in page.split("\n## ")[1:]}
    commands = re.findall(r"^  ([a-z-]+) ", help_of().split("commands:")[1], re.MULTILINE)
    assert list(sections) == commands
    assert all(f"`{option}" in page.split("\n## ")[0] for option in EVERYWHERE)
    assert re.findall(r"^gristmill ([a-z-]+) ", page, re.MULTILINE) == commands
    for name in commands:
        known = set(re.findall(r"--[a-z-]+", help_of(name))) - {"--help", *EVERYWHERE}
        assert set(re.findall(r"^\| `(--[a-z-]+)", sections[name], re.MULTILINE)) == known, name
    assert ", ".join(f"`{stage}`" for stage in STAGES) in page
