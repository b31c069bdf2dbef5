"""The `gristmill plan` command: what it says is what a run then gives, and what would stop the run is named."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.cli import main
from gristmill.formats.errors import SettingsError
from gristmill.formats.recipe import parse_recipe
from gristmill.formats.storage import exists
from gristmill.pipelines.outlook import Outlook, outlook_of

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog"]
INDEX: dict[str, Any] = {"sequence_length": 16, "samples": 400, "splits": "8,1,1"}


def texts(count: int, name: str) -> list[str]:
    return [f"{name} {number} " + " ".join(WORDS[: 1 + number % 8] * (1 + number % 5)) for number in range(count)]


@pytest.fixture
def recipe(workshop: Any) -> Callable[..., dict[str, Any]]:
    """A recipe of two sources, 0.75 to 0.25."""
    for name, count in (("web", 120), ("math", 60)):
        workshop.jsonl(f"{name}.jsonl", texts(count, name))

    def make(**changes: Any) -> dict[str, Any]:
        sources = changes.pop("sources", {})
        values: dict[str, Any] = workshop.values(
            {"id": "web", "files": str(workshop.folder / "web.jsonl"), "weight": 0.75} | sources.get("web", {}),
            {"id": "math", "files": str(workshop.folder / "math.jsonl"), "weight": 0.25} | sources.get("math", {}),
            shards={"target_tokens": 2000},
            **changes,
        )
        return values

    return make


Recipes = Callable[..., dict[str, Any]]


def outlook(values: dict[str, Any], **options: Any) -> Outlook:
    return outlook_of(parse_recipe(values), **options)


def table(lines: tuple[str, ...], heading: str) -> dict[str, list[str]]:
    """Rows of the table below a heading, by their first cell."""
    at = next(number for number, line in enumerate(lines) if line.startswith(heading))
    rows = {}
    for line in lines[at + (0 if heading == "source" else 1) :]:
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) < 4:
            break
        rows[cells[0]] = cells[1:]
    return rows


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_what_it_says_of_a_finished_corpus_is_what_is_in_it(workshop: Any, recipe: Recipes) -> None:
    values = recipe(index=INDEX | {"schedule": [{"from_sample": 300, "weights": {"web": 0.5, "math": 0.5}}]})
    workshop.prepare(*values["sources"], **{key: values[key] for key in ("shards", "index")})
    found = outlook(values)
    assert found.problems == ()
    manifest = workshop.manifest()
    sources = {source["id"]: source for source in manifest["sources"]}
    said = table(found.lines, "source")
    for name, source in sources.items():
        documents, tokens, shards, _ = said[name]
        assert [number(documents), number(shards)] == [source["documents_kept"], len(source["shards"])]
        assert number(tokens) == sum(shard["tokens"] for shard in source["shards"])
    stored = sum(path.stat().st_size for path in (workshop.folder / "out" / "tokens").rglob("*.*"))
    assert f"sizes: shards {stored / 1000:.1f} kB, " in found.lines[-1]
    arrays = sum(path.stat().st_size for path in (workshop.folder / "out").rglob("*.npy"))
    assert found.lines[-1].endswith(f"index arrays {arrays / 1000:.1f} kB")
    record = json.loads(next((workshop.folder / "out" / "indices").rglob("set.json")).read_text())
    for split in ("train", "valid", "test"):
        said = table(found.lines, f"{split}: ")
        members = {entry["source"]: entry for entry in record["members"] if entry["split"] == split}
        for name, member in members.items():
            _, samples, tokens, passes, epochs, _ = said[name]
            assert [number(tokens), number(epochs)] == [member["tokens"], member["epochs"]]
            assert number(passes) == pytest.approx(number(samples) * 16 / member["tokens"], abs=0.006)
    assert table(found.lines, "train: ")["web"][:2] == ["0.75", "275"]
    assert "train: 400 samples of 16 tokens, 6,400 tokens" in found.lines
    assert "  from sample 300: web 0.5, math 0.5" in found.lines
    assert any(line.startswith("  the arrays can serve about ") for line in found.lines)


def test_an_estimate_comes_near_and_writes_nothing(workshop: Any, recipe: Recipes) -> None:
    values = recipe(index=INDEX)
    before = sorted(workshop.folder.rglob("*"))
    found = outlook(values)
    assert sorted(workshop.folder.rglob("*")) == before
    assert not exists(values["output"])
    assert re.fullmatch(r"token counts estimated from 2 input files of [\d.]+ kB; .*", found.lines[1])
    workshop.prepare(*values["sources"], shards=values["shards"], index=INDEX)
    known = outlook(values)
    assert known.lines[1].startswith("token counts of the corpus that is there, ")
    assert table(found.lines, "source") == table(known.lines, "source"), "all of the input was in the sample"
    assert table(outlook(values, estimate=True).lines, "train: ") == table(found.lines, "train: ")
    assert found.warnings == known.warnings == ()


def test_what_would_stop_the_run_is_named_before_it(recipe: Recipes) -> None:
    limits = {"web": {"max_epochs": 0.5}, "math": {"max_epochs": 0.5}}
    found = outlook(recipe(index=INDEX, sources=limits))
    assert [type(problem).__name__ for problem in found.problems] == ["SettingsError"] * 2
    assert "train: source 'web' would be repeated too often" in str(found.problems[0])
    assert table(found.lines, "train: ").keys() == {"source", "web", "math"}
    (problem,) = outlook(recipe(index=INDEX | {"splits": "1,0,0", "valid": {"samples": 5}})).problems
    assert "valid: 5 samples asked for, but no source can give any" in str(problem)
    (problem,) = outlook(recipe(index=INDEX | {"sequence_length": 1_000_000, "splits": "1,1", "samples": 1})).problems
    assert "source 'math' would get none of the 1 samples" in str(problem)


def test_fields_that_no_file_has_are_refused_as_a_run_does(workshop: Any) -> None:
    source = {"files": workshop.write("a.txt", b"text"), "id_field": "n"}
    with pytest.raises(SettingsError, match=r"sources\[0\]\.id_field: .*a\.txt holds texts without fields"):
        outlook_of(parse_recipe(workshop.values(source)))


def test_what_is_worth_a_look_is_said(workshop: Any, recipe: Recipes) -> None:
    found = outlook(recipe(index=INDEX | {"splits": "1", "samples": 5000}))
    said = [warning.split(",")[0] for warning in found.warnings]
    assert re.fullmatch(r"train goes through source 'web' \d+\.\d times", said[0])
    assert re.fullmatch(r"train goes through source 'math' \d+\.\d times", said[1])
    assert said[2:] == ["valid is empty", "test is empty"]
    assert "  without 'web': splits '1' give it none of the source's 120 sequences" in found.lines
    few = outlook(recipe(index=INDEX, sources={"math": {"clean": {"min_chars": 150}}}))
    assert re.search(
        r"only \d+ documents of source 'math' were in the sample, so its counts are rough", str(few.warnings)
    )


def test_without_an_index_the_shards_alone_are_told(recipe: Recipes) -> None:
    found = outlook(recipe())
    assert found.warnings == ("the recipe has no [index], so no order of samples is built and no stream can be opened",)
    assert found.lines[-1].startswith("all ")


def test_a_corpus_of_another_recipe_is_told_apart(workshop: Any, recipe: Recipes) -> None:
    values = recipe(index=INDEX)
    workshop.prepare(*values["sources"], shards=values["shards"], index=INDEX)
    changed = outlook(recipe(index=INDEX | {"samples": 500}))
    assert "was made from another version of this recipe; its counts hold where only [index], weights" in str(
        changed.warnings
    )
    assert "train: 500 samples of 16 tokens, 8,000 tokens" in changed.lines
    renamed = outlook(recipe(index=INDEX, sources={"math": {"id": "maths"}}))
    assert "holds a corpus of other sources (web, math), so its counts are not used" in str(renamed.warnings)
    assert renamed.lines[1].startswith("token counts estimated")


def test_a_single_source_says_how_far_its_arrays_reach(workshop: Any) -> None:
    workshop.jsonl("a.jsonl", texts(100, "a"))
    values = workshop.values({"files": str(workshop.folder / "a.jsonl")}, index=INDEX | {"samples": 10})
    found = outlook(values)
    at = found.lines.index("train: 10 samples of 16 tokens, 160 tokens")
    assert re.fullmatch(r"  the arrays can serve \d+ samples", found.lines[at + 3])
    assert re.fullmatch(r"valid: \d+ samples? of 16 tokens, [\d,]+ tokens", found.lines[at + 5])


def test_the_command_prints_it(workshop: Any, recipe: Recipes, capsys: pytest.CaptureFixture[str]) -> None:
    values = recipe(index=INDEX | {"samples": 2000})
    path = workshop.recipe(*values["sources"], shards=values["shards"], index=values["index"])
    assert main(["plan", path]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"corpus 'test' -> {workshop.folder / 'out'}"
    assert [line.split(":")[0] for line in said if line.startswith(("warning", "problem"))] == ["warning"] * 2
    values["sources"][0]["max_epochs"] = 0.1
    path = workshop.recipe(*values["sources"], shards=values["shards"], index=values["index"])
    assert main(["plan", path, "--output", str(workshop.folder / "elsewhere"), "--estimate"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("elsewhere")
    assert said[-1].startswith("problem: train: source 'web' would be repeated too often")
    Path(path).write_text(Path(path).read_text().replace("web.jsonl", "no-such.jsonl"))
    assert main(["plan", path]) == 2
    assert "nothing to read at" in capsys.readouterr().err
