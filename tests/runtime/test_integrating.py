"""The page on integrating a trainer: its snippets run, one after the other, and its tables are those of the code."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gristmill.runtime import TrainingForm, make_fields, open_corpus, to_training
from gristmill.runtime.maxtext_settings import FILE_TYPES, read_maxtext_settings
from gristmill.runtime.setup_check import check_training_setup
from gristmill.runtime.training_form import TRAINERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "integrating.md"
TEXT = PAGE.read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    """Cells of the tables below a heading."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0].replace(r"\|", "/")
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.fixture(scope="module")
def prepared(new_workshop: Callable[[], Any]) -> Any:
    """A corpus prepared from text: 80 rows of 16 tokens to train on."""
    workshop = new_workshop()
    workshop.jsonl("web.jsonl", [f"text {number} jumps over the lazy dog" for number in range(120)])
    source = {"id": "web", "files": [f"{workshop.folder}/web.jsonl"]}
    workshop.prepare(source, index={"sequence_length": 16, "samples": 80, "splits": "8,2"})
    return workshop


def test_every_snippet_runs(prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    corpus = f"{prepared.folder}/out"
    tokenizer = open_corpus(corpus).manifest.tokenizer
    config = SimpleNamespace(
        corpus=corpus,
        sequence_length=16,
        vocab_size=384,
        eod_id=tokenizer.eod_id,
        tokenizer_fingerprint=tokenizer.fingerprint[:12],
        global_batch=8,
        sharding=NamedSharding(mesh, P(("data", "fsdp"))),
        steps=6,
        save_every=2,
        maxtext={
            "grain_file_type": "gristmill",
            "grain_train_files": corpus,
            "max_target_length": 16,
            "global_batch_size_to_load": 8,
            "steps": 6,
            "packing_max_segments_per_sample": 0,
        },
    )
    embedding = jax.random.normal(jax.random.key(0), (config.vocab_size, 32)) * 0.1
    names: dict[str, Any] = {"config": config, "mesh": mesh, "model": {"embedding": embedding}}
    snippets = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert len(snippets) == 8
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), names)  # noqa: S102 - the page's own code
    stream, valid = names["stream"], names["valid"]
    first = to_training(make_fields(stream.read(range(8)), stream.eod_id), names["form"])
    assert float(names["loss"]) < float(names["loss_of"]({"embedding": embedding}, first))
    assert json.loads(names["saved"])["next_sample"] == config.steps * config.global_batch
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "4", "6"]
    assert names["count"] == 16 * len(valid)
    assert jnp.isfinite(names["total"])
    np.testing.assert_array_equal(names["local"]["inputs"], stream.read(range(8))[:, :-1])
    shown = [f"{piece.source} {piece.document} {piece.origin} {piece.text}" for piece in stream.describe(0, text=True)]
    assert capsys.readouterr().out.splitlines() == shown
    names["batches"].close()
    names["iterator"].close()


def test_the_table_of_trainers_is_that_of_the_code() -> None:
    table = {row[0].strip("`"): row[1:] for row in rows("Batches, and the trainer's shape") if row[0].startswith("`")}
    assert set(TRAINERS) <= set(table)
    for trainer, form in TRAINERS.items():
        names, labels = table[trainer]
        assert set(re.findall(r"`(\w+)`", names)) == {name for name in form.names.values() if name is not None}
        assert form.shifted == labels.startswith("already shifted")
        assert form.shifted or labels.startswith("not shifted")
        assert (form.ignore_id == -100) == ("−100" in labels)  # noqa: RUF001 - a minus sign, as people write it
    described = {name for name in table if name not in TRAINERS}
    assert described == set(TrainingForm().names)


def test_the_table_of_what_is_compared_is_that_of_the_code() -> None:
    listed = {name for row in rows("What is compared at the start") for name in re.findall(r"`(\w+)`", row[0])}
    arguments = check_training_setup.__code__.co_varnames[: check_training_setup.__code__.co_argcount]
    arguments += check_training_setup.__code__.co_varnames[
        len(arguments) : len(arguments) + check_training_setup.__code__.co_kwonlyargcount
    ]
    assert listed - {"argument"} == set(arguments) - {"stream"}


def test_the_table_of_maxtexts_settings_is_that_of_the_code() -> None:
    listed = {name for row in rows("MaxText") for name in re.findall(r"`(\w+)(?:=\w+)?`", row[0])}
    read = set(re.findall(r"``(\w+)``", (read_maxtext_settings.__doc__ or "").partition("Args:")[0]))
    assert read - listed == set()
    assert all(f"`{name}`" in TEXT for name in FILE_TYPES)
