"""Finished stages that are to be done again: everything is withdrawn first, and comes back to the last byte."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.errors import DataError
from gristmill.formats.verify import verify_corpus
from gristmill.pipelines import loop, shards, workflow

TOP: dict[str, Any] = {
    "shards": {"target_tokens": 300},
    "index": {"sequence_length": 16, "samples": 30, "splits": "80,10,10"},
}
REDONE = {
    "download": {"raw", "clean", "tokens", "indices", "manifest.json"},
    "clean": {"clean", "tokens", "indices", "manifest.json"},
    "tokenize": {"tokens", "indices", "manifest.json"},
    "index": {"indices", "manifest.json"},
    "blend": {"indices", "manifest.json"},
}


def fill(workshop: Any) -> list[dict[str, Any]]:
    texts = [f"{number % 40} the quick brown fox" for number in range(60)]
    return [
        {"files": [workshop.jsonl("a.jsonl", texts)], "weight": 0.5},
        {"files": [workshop.jsonl("b.jsonl", texts[:30])], "materialize": True, "weight": 0.5, "clean": False},
    ]


@pytest.fixture(scope="module")
def made(new_workshop: Callable[[], Any]) -> Any:
    """A workshop with a finished corpus at `out`."""
    workshop = new_workshop()
    workshop.prepare(*fill(workshop), **TOP)
    return workshop


def inodes(corpus: Path) -> dict[str, tuple[int, int]]:
    """What a file that is written again changes, by its path; a number alone may be given to the next file again."""
    facts = {path.relative_to(corpus).as_posix(): path.stat() for path in corpus.rglob("*") if path.is_file()}
    return {name: (found.st_ino, found.st_mtime_ns) for name, found in facts.items()}


@pytest.mark.parametrize("first", REDONE)
def test_a_stage_and_those_behind_it_are_done_again(made: Any, first: str) -> None:
    corpus, tree = made.folder / "out", made.tree()
    before = inodes(corpus)
    done = made.prepare(*fill(made), options={"first": first, "force": True}, **TOP)
    assert done.finished
    assert done.stages[0] == first
    assert made.tree() == tree
    after = inodes(corpus)
    changed = {name for name, inode in before.items() if after.get(name) != inode and not name.startswith("_stages/")}
    assert {name.split("/")[0] for name in changed} - {"report", "tokenizer", "rejected"} == REDONE[first]
    arrays = [name for name in changed if name.endswith("/document_index.npy")]
    assert bool(arrays) is (first != "blend"), "the arrays of members belong to the stage before"
    assert verify_corpus(str(corpus)) == []
    assert made.prepare(*fill(made), **TOP).stages == ()


def test_what_was_finished_is_withdrawn_before_anything_is_done(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, tree = made.folder / "out", made.tree()

    def failing(*_: object) -> None:
        raise DataError("as wanted")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "close_clean", failing)
        with pytest.raises(DataError, match="as wanted"):
            made.prepare(*fill(made), options={"force": True}, **TOP)
    assert not (corpus / "manifest.json").exists()
    assert sorted(path.name for path in (corpus / "_stages").glob("*.json")) == ["download.json", "plan.json"]
    made.prepare(*fill(made), **TOP)
    assert made.tree() == tree


def test_one_source_of_several(made: Any) -> None:
    corpus, tree = made.folder / "out", made.tree()
    before = inodes(corpus)
    made.prepare(*fill(made), options={"force": True, "first": "tokenize", "source": "s1"}, **TOP)
    assert not (corpus / "manifest.json").exists()
    after = inodes(corpus)
    assert {name for name in before if name.startswith("tokens/") and after[name] != before[name]} == {
        name for name in before if name.startswith("tokens/s1/")
    }
    made.prepare(*fill(made), **TOP)
    assert made.tree() == tree


@pytest.mark.parametrize("runner", ["loop", pytest.param("FnApiRunner", marks=pytest.mark.slow)])
def test_the_stages_of_one_source_are_finished_again(made: Any, runner: str) -> None:
    """What lies behind them can be done next, and no other source is read again for it."""
    corpus, tree = made.folder / "out", made.tree()
    one = {"force": True, "first": "clean", "last": "tokenize", "source": "s0", "runner": runner}
    made.prepare(*fill(made), options=one, **TOP)
    assert not (corpus / "manifest.json").exists()
    assert sorted(path.stem for path in (corpus / "_stages").glob("*.json")) == [
        "clean",
        "download",
        "plan",
        "tokenize",
    ]
    spilled = {path.name for path in (corpus / "spill").iterdir()}
    done = made.prepare(*fill(made), options={"force": True, "first": "index"}, **TOP)
    assert done.stages == ("index", "blend")
    assert spilled == {"s0"}
    assert made.tree() == tree
    assert verify_corpus(str(corpus)) == []


def test_one_source_that_comes_out_otherwise_closes_nothing(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, tree = made.folder / "out", made.tree()
    receipt = next((corpus / "_stages" / "items" / "assemble" / "s1").rglob("*.json"))
    kept = shards.assemble_shard

    def otherwise(*words: Any) -> Any:
        result = kept(*words)
        receipt.write_text(re.sub(r'"sha256": "[0-9a-f]{8}', '"sha256": "01234567', receipt.read_text()))
        return result

    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(loop, "assemble_shard", otherwise)
        patch.setattr(workflow, "_say", lambda text, *_, **__: said.append(text))
        one = {"force": True, "first": "tokenize", "source": "s1", "quiet": False}
        made.prepare(*fill(made), options=one, **TOP)
    assert not (corpus / "_stages" / "tokenize.json").exists()
    (told,) = [text for text in said if text.startswith("stage tokenize is open: tokens/s1/")]
    assert told.endswith("is not what it was; `gristmill prepare` without --source closes it")
    made.prepare(*fill(made), options={"first": "tokenize", "force": True}, **TOP)
    assert made.tree() == tree


def test_on_the_command_line(made: Any) -> None:
    recipe, tree = made.recipe(*fill(made), **TOP), made.tree()
    done = made.cli("prepare", recipe, "--force", "--from", "index", "--runner", "loop")
    assert done.returncode == 0
    assert "stage index was finished before, but it is to be done again" in done.stderr
    assert "stages index, blend on this process" in done.stderr
    assert made.tree() == tree
