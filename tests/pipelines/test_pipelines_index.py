"""The index stage of a run: killed in the middle, the next run builds what is missing and touches nothing else."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SOURCES = 40
INDEX = {"sequence_length": 16, "samples": 2000, "splits": "90,10,0"}


def fill(workshop: Any) -> list[dict[str, Any]]:
    rng = random.Random(3)
    words = ["the", "quick", "fox", "jumps", "over", "a", "lazy", "dog"]
    sources = []
    for number in range(SOURCES):
        texts = [" ".join(rng.choices(words, k=rng.randint(10, 60))) for _ in range(20)]
        sources.append({"files": [workshop.jsonl(f"{number}.jsonl", texts)], "weight": 1.0 + number % 3})
    return sources


def receipts(corpus: Path) -> list[Path]:
    return list((corpus / "_stages" / "items" / "index").rglob("*.json"))


@pytest.mark.slow
def test_a_run_killed_while_it_indexes_builds_only_what_is_missing(workshop: Any) -> None:
    sources = fill(workshop)
    top: dict[str, Any] = {"defaults": {"clean": False}, "index": INDEX}
    recipe = workshop.recipe(*sources, **top)
    corpus, other = workshop.folder / "out", workshop.folder / "undisturbed"
    workshop.prepare(*sources, **top, output=str(other))
    expected = workshop.tree(other)
    workshop.prepare(*sources, **top, options={"last": "tokenize"})
    words = [sys.executable, "-m", "gristmill", "prepare", recipe, "--quiet", "--runner", "loop"]
    running = subprocess.Popen(words, cwd=workshop.folder)
    while running.poll() is None and len(receipts(corpus)) < 5:
        time.sleep(0.002)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL, "it was finished before it could be killed"
    finished = [json.loads(path.read_text())["files"] for path in receipts(corpus)]
    kept = {name: os.stat(corpus / name).st_ino for files in finished for name in files}
    assert 15 <= len(kept) < 6 * SOURCES
    assert not (corpus / "manifest.json").exists()
    workshop.prepare(*sources, **top)
    assert {name: os.stat(corpus / name).st_ino for name in kept} == kept, "built once, left alone"
    assert workshop.tree(corpus) == expected
