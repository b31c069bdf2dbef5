"""The recipes that ship: valid, and prepared from end to end with small stand-ins of the same schema on a loopback hub.

What a stand-in has of its original is what a recipe can get wrong: ids, configurations, paths, formats, fields, and
whether a token is needed.
"""

import io
import json
import random
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from gristmill.formats.recipe import parse_recipe, read_recipe
from gristmill.formats.verify import verify_corpus
from gristmill.pipelines.workflow import PrepareOptions, prepare

RECIPES = sorted((Path(__file__).resolve().parents[1] / "recipes").glob("*.toml"))
MIX = next(path for path in RECIPES if path.stem == "web-code-math-8b")
WORDS = ["the", "quick", "fox", "jumps", "over", "a", "lazy", "dog", "and", "ends", "here", "document", "brown"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_that_ships_is_valid_and_called_like_its_file(path: Path) -> None:
    assert read_recipe(str(path)).name == path.stem


def test_the_mix_is_what_it_is_known_for() -> None:
    recipe = read_recipe(str(MIX))
    weights = {source.id: source.weight for source in recipe.sources}
    assert weights == {"fineweb-edu": 0.5, "fineweb": 0.2, "python": 0.15, "openmath": 0.1, "arxiv": 0.05}
    assert recipe.budget.tokens == 8_000_000_000
    assert recipe.target_tokens == 50_000_000


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, row_group_size=100)
    return sink.getvalue()


def fill(hub: Any) -> dict[str, list[str]]:
    """Adds stand-ins to the hub; gives the documents of each source as they should come out, in order."""
    draw = random.Random(11)

    def texts(count: int, name: str) -> list[str]:
        return [f"{name} {number}: " + " ".join(draw.choices(WORDS, k=40)) for number in range(count)]

    def web(name: str, count: int) -> tuple[dict[str, bytes], list[str]]:
        configs = (
            "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/*/*\n"
            "- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n---\n"
        )
        files, expected = {"README.md": configs.encode(), "data/CC-MAIN-2013-20/000_00000.parquet": b"not read"}, []
        for part in range(2):
            some = texts(count, f"{name} {part}")
            expected += some
            files[f"sample/10BT/{part:03}_00000.parquet"] = parquet(
                text=some,
                id=[f"<urn:uuid:{number}>" for number in range(count)],
                dump=["CC-MAIN-2013-20"] * count,
                url=[f"http://example.org/{number}" for number in range(count)],
                language_score=[0.9] * count,
                token_count=[40] * count,
            )
        return files, expected

    found = {}
    files, found["fineweb-edu"] = web("edu", 400)
    hub.add("HuggingFaceFW/fineweb-edu", files, large=[name for name in files if name.endswith("parquet")])
    files, found["fineweb"] = web("web", 200)
    hub.add("HuggingFaceFW/fineweb", files, large=[name for name in files if name.endswith("parquet")])
    found["python"] = [f"# {text}\ndef f():\n\treturn {number}\n" for number, text in enumerate(texts(300, "code"))]
    code = parquet(hexsha=["0" * 40] * 300, size=[1] * 300, lang=["Python"] * 300, content=found["python"])
    files = {"README.md": b"---\ndata_dir: data\n---\n", "data/python/data-00000-of-00001.parquet": code}
    hub.add("bigcode/the-stack-dedup", files | {"data/c/data-00000-of-00001.parquet": b"not read"}, gated=True)
    problems, solutions = texts(200, "problem"), texts(200, "solution")
    found["openmath"] = [f"{one}\n\n### Solution\n\n{two}" for one, two in zip(problems, solutions, strict=True)]
    pairs = parquet(problem=problems, generated_solution=solutions, expected_answer=["1"] * 200)
    configs = (
        b"---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n"
        b"  - split: train_1M\n    path: data/train_1M-*\n---\n"
    )
    files = {
        "README.md": configs,
        "data/train-00000-of-00001.parquet": pairs,
        "data/train_1M-00000-of-00001.parquet": b"",
    }
    hub.add("nvidia/OpenMathInstruct-2", files)
    found["arxiv"] = texts(100, "paper")
    lines = b"".join(json.dumps({"text": text, "meta": {"yymm": "1801"}}).encode() + b"\n" for text in found["arxiv"])
    hub.add(
        "EleutherAI/proof-pile-2",
        {"arxiv/train/arXiv_000.jsonl.zst": zstandard.compress(lines), "arxiv/test/arXiv_000.jsonl.zst": b"not read"},
        large=["arxiv/train/arXiv_000.jsonl.zst"],
    )
    return found


def test_the_mix_from_end_to_end(hub: Any, workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fill(hub)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    values = tomllib.loads(MIX.read_text("utf-8"))
    values["output"] = str(workshop.folder / "out")
    values["tokenizer"]["path"] = str(workshop.tokenizer)
    values["budget"]["tokens"] = 40_000
    values["shards"]["target_tokens"] = 5_000
    values["index"] |= {"sequence_length": 64, "tokens": 38_000}
    prepare(parse_recipe(values), PrepareOptions(runner="loop", quiet=True))
    for source in values["sources"]:
        texts = workshop.texts(source["id"])
        assert texts == expected[source["id"]][: len(texts)]
        tokens = sum(map(len, workshop.documents(source["id"])))
        share = 40_000 * source["weight"]
        assert share - 1000 < tokens <= share + 1000
    assert verify_corpus(values["output"]) == []
    inputs = {entry["path"] for source in workshop.manifest()["sources"] for entry in source["inputs"]}
    assert "sample/10BT/000_00000.parquet" in inputs
    assert "arxiv/train/arXiv_000.jsonl.zst" in inputs
    assert not [name for name in inputs if "CC-MAIN" in name or "test" in name or "/c/" in name]
