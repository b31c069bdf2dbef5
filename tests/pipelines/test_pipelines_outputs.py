"""What a run leaves behind, and what it refuses to overwrite."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from gristmill.formats.errors import SettingsError
from gristmill.formats.verify import verify_corpus

INDEX = {"index": {"sequence_length": 16, "splits": "80,20,0"}}


def texts(word: str) -> list[str]:
    return [f"{word} {number} " * 20 for number in range(40)]


def test_a_finished_corpus_of_another_name_is_not_overwritten(workshop: Any) -> None:
    workshop.prepare({"files": [workshop.jsonl("a.jsonl", texts("one"))]})
    before = workshop.tree()
    other = {"files": [workshop.jsonl("b.jsonl", texts("two"))]}
    with pytest.raises(SettingsError, match="holds the finished corpus 'test', of other inputs than this"):
        workshop.prepare(other, name="new")
    assert workshop.tree() == before
    workshop.prepare({"files": [str(workshop.folder / "a.jsonl")]}, name="new")
    assert workshop.manifest()["name"] == "new", "a new name for the same inputs is no other corpus"


def test_index_sets_of_old_shards_leave_with_the_receipts_of_their_items(workshop: Any) -> None:
    source = {"files": [workshop.jsonl("a.jsonl", texts("one"))]}
    workshop.prepare(source, **INDEX)
    assert workshop.cli("index", "out", "--seq-length", "32").returncode == 0
    workshop.jsonl("a.jsonl", texts("two"))
    workshop.prepare(source, **INDEX)
    sets = {path.name for path in (workshop.folder / "out" / "indices").iterdir()}
    items = {
        path.name for path in (workshop.folder / "out" / "_stages" / "items" / "index").iterdir() if any(path.iterdir())
    }
    assert sets == items == {workshop.manifest()["index_set"]}


def test_what_changed_is_told_without_what_did_not(workshop: Any) -> None:
    source = {"files": [workshop.jsonl("a.jsonl", texts("one"))]}
    workshop.prepare(source)
    recipe = workshop.recipe(source | {"clean": {"min_chars": 3}})
    told = workshop.cli("prepare", recipe, "--runner", "loop").stderr
    line = next(line for line in told.splitlines() if line.startswith("stage clean"))
    assert "sources.s0.clean.min_chars was 0, now 3" in line
    assert "expect_damaged" not in line


def test_a_damaged_shard_is_made_again_as_verify_says(workshop: Any) -> None:
    source = {"files": [workshop.jsonl("a.jsonl", texts("one"))]}
    workshop.prepare(source, **INDEX)
    before = workshop.tree()
    shard = workshop.folder / "out" / "tokens" / "s0" / "s0-00000-of-00001.bin"
    data = shard.read_bytes()
    shard.write_bytes(data[:-3] + b"\xff" + data[-2:])
    told = workshop.cli("verify", "out")
    assert told.returncode == 1
    assert told.stdout.endswith("run `gristmill prepare` on the recipe: it makes them again.\n")
    shard.unlink()
    workshop.prepare(source, **INDEX)
    assert workshop.tree() == before
    assert verify_corpus(str(workshop.folder / "out")) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", ["beam", "item"])
def test_workers_end_when_their_launcher_is_killed(workshop: Any, way: str) -> None:
    recipe = workshop.recipe({"files": [workshop.jsonl(f"{name}.jsonl", texts("one") * 20_000) for name in "abc"]})
    beam = ("--runner", "FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing")
    words = ["prepare", recipe, *(beam if way == "beam" else ("--max-workers", "2"))]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "gristmill", *words], cwd=workshop.folder, stderr=subprocess.PIPE
    )
    try:
        workers = _wait_for_workers(launcher.pid, f"{way}_worker")
    finally:
        launcher.kill()
        launcher.communicate()
    _, alive = psutil.wait_procs(workers, timeout=20)
    for worker in alive:
        worker.kill()
    assert not alive


def _wait_for_workers(pid: int, name: str) -> list[psutil.Process]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        below = psutil.Process(pid).children(recursive=True)
        workers = [process for process in below if name in " ".join(process.cmdline())]
        if len(workers) >= 2 and all(process.num_threads() > 1 for process in workers):
            return workers
        time.sleep(0.05)
    raise TimeoutError(f"no worker of {pid} appeared: {os.listdir(Path.cwd())}")
