"""Field cases of shards, interrupted output and retries (O21, O22, O23): each as people met it, and what is right."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.cli import main
from gristmill.formats.errors import CorpusError, DataError
from gristmill.formats.manifest import read_manifest
from gristmill.formats.verify import verify_corpus

SMALL: dict[str, Any] = {
    "shards": {"target_tokens": 500},
    "index": {"sequence_length": 16, "samples": 30, "splits": "80,10,10"},
}


def tokens(count: int, letter: str) -> str:
    """A text that, with its EOD, has so many tokens: of capital letters the tiny tokenizer knows no pair."""
    return letter * (count - 1)


class TestShardLimit:
    """O21: a document longer than a shard once opened empty shards without end."""

    LENGTHS = (10, 999, 1000, 1001, 5000)

    @pytest.mark.parametrize("order", [LENGTHS, LENGTHS[::-1], (5000, 10, 10_001, 10)])
    def test_each_document_is_whole_and_no_shard_is_empty(self, workshop: Any, order: tuple[int, ...]) -> None:
        texts = [tokens(length, letter) for length, letter in zip(order, "ABCDE", strict=False)]
        workshop.prepare({"files": [workshop.jsonl("a.jsonl", texts)]}, shards={"target_tokens": 1000})
        assert [len(document) for document in workshop.documents("s0")] == list(order)
        assert workshop.texts("s0") == texts
        shards = workshop.manifest()["sources"][0]["shards"]
        assert all(shard["documents"] > 0 for shard in shards)
        assert len(shards) <= len(order)
        assert verify_corpus(str(workshop.folder / "out")) == []


@pytest.fixture(scope="module")
def made(new_workshop: Callable[[], Any]) -> Any:
    """A workshop with a finished corpus of several shards; each test leaves it as it was."""
    workshop = new_workshop()
    texts = [f"{number} the quick brown fox jumps over" for number in range(150)]
    workshop.prepare({"files": [workshop.jsonl("a.jsonl", texts)]}, **SMALL)
    return workshop


class TestInterrupted:
    """O22: half-built output that was taken for whole."""

    def readers(self, corpus: Path, says: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Every reader refuses the corpus with a sentence that says so much."""
        from gristmill.runtime import open_corpus

        for words in (["index", str(corpus), "--seq-length", "8"], ["verify", str(corpus)], ["inspect", str(corpus)]):
            assert main(words) == 1, words
            told = capsys.readouterr()
            assert says in told.out + told.err, words
            assert "Traceback" not in told.err
        with pytest.raises((DataError, CorpusError), match=says):
            open_corpus(str(corpus)).stream("train").read([0])

    @pytest.mark.parametrize("kind", ["bin", "idx"])
    def test_one_of_several_shards_is_gone(
        self, made: Any, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        expected = made.tree()
        shards = sorted((made.folder / "out" / "tokens" / "s0").glob(f"*.{kind}"))
        assert len(shards) >= 3
        shards[1].unlink()
        self.readers(made.folder / "out", shards[1].name, capsys)
        made.prepare({"files": [str(made.folder / "a.jsonl")]}, **SMALL)
        assert made.tree() == expected

    @pytest.mark.parametrize("content", ['{"finished": false}', '{"format": "gristmill-corpus", "ver', "", "[]"])
    def test_a_manifest_that_is_none(self, made: Any, content: str, capsys: pytest.CaptureFixture[str]) -> None:
        path = made.folder / "out" / "manifest.json"
        whole = path.read_bytes()
        path.write_text(content, "utf-8")
        try:
            self.readers(made.folder / "out", "manifest.json", capsys)
            made.prepare({"files": [str(made.folder / "a.jsonl")]}, **SMALL)
            assert path.read_bytes() == whole
        finally:
            path.write_bytes(whole)

    def test_a_filter_that_drops_everything(self, workshop: Any) -> None:
        recipe = workshop.recipe({"files": [workshop.jsonl("a.jsonl", ["a", "b"])], "clean": {"min_chars": 50}})
        done = workshop.cli("prepare", recipe, "--quiet", "--runner", "loop")
        assert done.returncode == 1
        assert "no document is left of 2 records read; dropped: 2 min_chars. Relax its rules" in done.stderr
        assert not (workshop.folder / "out" / "manifest.json").exists()
        with pytest.raises(CorpusError):
            read_manifest(str(workshop.folder / "out"))


class TestRetries:
    """O23: output that was doubled, or left in a temporary folder."""

    def test_many_sources_in_one_run(self, workshop: Any) -> None:
        texts = {f"s{source}": [f"{source} {number}" for number in range(20)] for source in range(150)}
        sources = [{"files": [workshop.jsonl(f"{name}.jsonl", own)]} for name, own in texts.items()]
        workshop.prepare(*sources, options={"runner": "FnApiRunner"})
        manifest = workshop.manifest()
        assert [entry["id"] for entry in manifest["sources"]] == list(texts)
        assert all((entry["documents_in"], entry["documents_kept"]) == (20, 20) for entry in manifest["sources"])
        for name in ("s0", "s74", "s149"):
            assert workshop.texts(name) == texts[name]
        files = [path.name for path in (workshop.folder / "out" / "tokens").rglob("*") if path.is_file()]
        assert len(files) == 150 * 3

    @pytest.mark.parametrize("place", ["disk", "store"])
    def test_two_runs_into_one_output(self, request: pytest.FixtureRequest, workshop: Any, place: str) -> None:
        environment: dict[str, str] = {}
        output = str(workshop.folder / "out")
        if place == "store":
            store = request.getfixturevalue("store")
            environment, output = store.environment, f"{store.url}/two-at-once"
        texts = [f"{number} of many texts" for number in range(8000)]
        recipe = workshop.recipe({"files": [workshop.jsonl("a.jsonl", texts)]}, output=output)
        words = [sys.executable, "-m", "gristmill", "prepare", recipe, "--quiet", "--runner", "loop"]
        both = [
            subprocess.Popen(
                words, cwd=workshop.folder, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        told = [process.communicate(timeout=240)[1] for process in both]
        codes = [process.returncode for process in both]
        if sorted(codes) == [0, 1]:
            refused = told[codes.index(1)]
            first = both[codes.index(0)].pid
            assert "another run is working on this corpus; wait for it or stop it: started " in refused
            assert f" by process {first} of " in refused
        else:
            assert codes == [0, 0], told  # the second began when the first was done, and found nothing to do
        assert workshop.cli("verify", output, **environment).returncode == 0
