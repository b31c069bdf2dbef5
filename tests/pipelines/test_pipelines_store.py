"""Inputs and corpora on an object store, against a local server that speaks Google Cloud Storage's protocol."""

import gzip
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

TOP: dict[str, Any] = {
    "shards": {"target_tokens": 3000},
    "index": {"sequence_length": 32, "samples": 50, "splits": "80,10,10"},
}
LOOP = ("--runner", "loop", "--quiet")


def files(workshop: Any) -> dict[str, bytes]:
    """Input files by name: two sources of three formats."""
    rng = random.Random(5)
    words = ["the", "quick", "fox", "né", "\n", "世界"]
    texts = [" ".join(rng.choices(words, k=rng.randint(1, 40))) + str(number % 90) for number in range(120)]
    lines = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
    return {
        "web/a.jsonl": lines,
        "web/b.jsonl.gz": gzip.compress(lines[: len(lines) // 2].rsplit(b"\n", 1)[0] + b"\n", mtime=0),
        "code/x.py": b"x = 1\n",
        "code/y.py": b"y = 2\n",
    }


def sources(folder: str) -> list[dict[str, Any]]:
    return [
        {"id": "web", "files": [f"{folder}/web/*"], "weight": 0.9},
        {"id": "code", "files": [f"{folder}/code"], "weight": 0.1},
    ]


@pytest.fixture(scope="module")
def by_disk(store: Any, new_workshop: Callable[[], Any]) -> tuple[Any, dict[str, str]]:
    """A workshop whose inputs lie on the disk and in the store alike, and the corpus that the disk gives."""
    workshop = new_workshop()
    for name, content in files(workshop).items():
        workshop.write(f"in/{name}", content)
        store.put(f"in/{name}", content)
    workshop.prepare(*sources(str(workshop.folder / "in")), **TOP)
    out = workshop.folder / "out"
    tree = {name: hashlib.md5((out / name).read_bytes()).hexdigest() for name in workshop.tree()}
    return workshop, tree


@pytest.mark.slow
@pytest.mark.parametrize("from_store", [False, True], ids=["from disk", "from store"])
def test_a_corpus_in_a_store_is_the_same(store: Any, by_disk: Any, from_store: bool) -> None:
    workshop, expected = by_disk
    name = f"out-{from_store}"
    folder = f"{store.url}/in" if from_store else str(workshop.folder / "in")
    recipe = workshop.recipe(*sources(folder), output=f"{store.url}/{name}", **TOP)
    done = workshop.cli("prepare", recipe, *LOOP, **store.environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert store.tree(name) == expected
    again = workshop.cli("prepare", recipe, "--runner", "loop", **store.environment)
    assert "nothing to do: " in again.stderr
    checked = workshop.cli("verify", f"{store.url}/{name}", **store.environment)
    assert (checked.returncode, checked.stdout) == (0, f"{store.url}/{name}: sound\n")


@pytest.mark.slow
def test_a_corpus_on_the_disk_from_a_store(store: Any, by_disk: Any) -> None:
    workshop, expected = by_disk
    recipe = workshop.recipe(*sources(f"{store.url}/in"), output=str(workshop.folder / "from-store"), **TOP)
    done = workshop.cli("prepare", recipe, *LOOP, **store.environment)
    assert (done.returncode, done.stderr) == (0, "")
    out = workshop.folder / "from-store"
    assert {name: hashlib.md5((out / name).read_bytes()).hexdigest() for name in workshop.tree(out)} == expected


@pytest.mark.slow
def test_a_changed_object_is_noticed(store: Any, workshop: Any) -> None:
    name = "changing/a.jsonl"
    recipe = workshop.recipe({"files": [store.put(name, b'{"text": "one"}\n')]}, output=f"{store.url}/changed")
    for content, words in (
        (b'{"text": "one"}\n', "nothing to do"),
        (b'{"text": "two"}\n', "stage download was finished"),
    ):
        first = workshop.cli("prepare", recipe, "--runner", "loop", **store.environment)
        assert first.returncode == 0
        store.put(name, content)
        again = workshop.cli("prepare", recipe, "--runner", "loop", **store.environment)
        assert words in again.stderr
        assert again.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("objects", [4, 12])
def test_a_killed_run_is_completed(store: Any, by_disk: Any, objects: int) -> None:
    workshop, expected = by_disk
    name = f"killed-{objects}"
    recipe = workshop.recipe(*sources(f"{store.url}/in"), output=f"{store.url}/{name}", **TOP)
    words = [sys.executable, "-m", "gristmill", "prepare", recipe, *LOOP]
    process = subprocess.Popen(words, cwd=workshop.folder, env={**os.environ, **store.environment})
    while process.poll() is None and len(store.names(f"{name}/")) < objects:
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert "manifest.json" not in store.names(f"{name}/")
    done = workshop.cli("prepare", recipe, *LOOP, **store.environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert store.tree(name) == expected


@pytest.mark.slow
def test_what_is_refused_leaves_nothing(store: Any, workshop: Any) -> None:
    url = store.put("bad/a.jsonl", b'{"text": "a"}\noops\n')
    cases = {
        f"{store.url}/bad/*.parquet": (2, f'sources[0].files: nothing to read at "{store.url}/bad/*.parquet"'),
        "gs://no-such-bucket/a.jsonl": (2, 'nothing to read at "gs://no-such-bucket/a.jsonl"'),
        url: (1, f"{url}:2: malformed json: "),
    }
    for pattern, (code, says) in cases.items():
        recipe = workshop.recipe({"files": [pattern]}, output=f"{store.url}/refused")
        done = workshop.cli("prepare", recipe, *LOOP, **store.environment)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
        assert done.stderr.startswith("gristmill: ")
        assert says in done.stderr
    assert not [name for name in store.names("refused/") if name.endswith((".bin", ".idx", "manifest.json"))]


@pytest.mark.slow
def test_an_output_in_a_bucket_that_is_not_there(store: Any, workshop: Any) -> None:
    recipe = workshop.recipe({"files": [workshop.jsonl("a.jsonl", ["a"])]}, output="gs://no-such-bucket/out")
    done = workshop.cli("prepare", recipe, *LOOP, **store.environment)
    assert done.returncode == 2
    assert done.stderr.startswith("gristmill: output gs://no-such-bucket/out")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_object_that_the_store_unpacks_on_the_way(store: Any, workshop: Any) -> None:
    lines = b"".join(b'{"text": "line %d"}\n' % number for number in range(10_000))
    url = store.put("packed/a.jsonl", gzip.compress(lines), contentEncoding="gzip")
    recipe = workshop.recipe({"files": [url]}, output=f"{store.url}/unpacked")
    done = workshop.cli("prepare", recipe, *LOOP, **store.environment)
    assert done.returncode == 1
    assert done.stderr.startswith(f"gristmill: {url}: is stored with Content-Encoding: gzip, so that the store unpacks")
    assert done.stderr.count("\n") == 1
    plain = store.put("packed/a.jsonl", gzip.compress(lines))
    again = workshop.cli("prepare", recipe, *LOOP, **store.environment)
    assert (again.returncode, again.stderr, plain) == (0, "", url)
