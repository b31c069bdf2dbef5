"""Runs that end in the middle: killed, out of disk, refused by the disk or failing in a step; and the run after.

`test_kills.py` kills runs in every stage.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import psutil
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from gristmill.formats.errors import CorpusError, DataError, SettingsError
from gristmill.formats.manifest import read_manifest
from gristmill.formats.verify import verify_corpus

SOURCES = 5
TOP: dict[str, Any] = {
    "shards": {"target_tokens": 4000},
    "index": {"sequence_length": 32, "samples": 300, "splits": "80,15,5"},
}
LOOP = ("--runner", "loop")
POOL = ("--runner", "loop", "--max-workers", "2")
THREADS = ("--runner", "FnApiRunner", "--direct_num_workers=2")
PROCESSES = (*THREADS, "--direct_running_mode=multi_processing")


def fill(workshop: Any, documents: int = 150) -> list[dict[str, Any]]:
    rng = random.Random(11)
    words = ["the", "quick", "fox", "né", "\n", "x = 1", "世界"]
    shared = [" ".join(rng.choices(words, k=20)) + str(number) for number in range(30)]
    sources = []
    for number in range(SOURCES):
        texts = [" ".join(rng.choices(words, k=rng.randint(1, 60))) + str(rng.random()) for _ in range(documents)]
        path = workshop.jsonl(f"{number}.jsonl", texts + shared)
        sources.append({"files": [path], "weight": 1.0 + number})
    return sources


def files_below(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def killed(workshop: Any, recipe: str, output: Path, after: int, runner: tuple[str, ...]) -> bool:
    """Starts a run, kills it without warning once so many files lie in the output, and says whether it was killed."""
    words = [sys.executable, "-m", "gristmill", "prepare", recipe, "--output", str(output), "--quiet", *runner]
    process = subprocess.Popen(words, cwd=workshop.folder, stderr=subprocess.PIPE)
    try:
        while process.poll() is None and files_below(output) < after:
            time.sleep(0.001)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    return process.returncode == -signal.SIGKILL


def left_over(output: Path) -> list[str]:
    """Files that only a run in progress may have."""
    names = (path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file())
    return [name for name in names if name.endswith(".tmp") or name.startswith("spill/") or "probe" in name]


@pytest.fixture(scope="module")
def undisturbed(new_workshop: Callable[[], Any]) -> tuple[Any, str, dict[str, str], int]:
    """A filled workshop, its recipe, what an undisturbed run makes of it, and of how many files."""
    workshop = new_workshop()
    recipe = workshop.recipe(*fill(workshop), **TOP)
    done = workshop.cli("prepare", recipe, "--quiet", *LOOP)
    assert (done.returncode, done.stderr) == (0, "")
    return workshop, recipe, workshop.tree(), files_below(workshop.folder / "out")


class TestKilled:
    """Moments are chosen by how many files the run has written, so that a slow machine dies at the same places."""

    def check(self, undisturbed: Any, percent: int, runner: tuple[str, ...]) -> None:
        workshop, recipe, expected, files = undisturbed
        output = workshop.folder / f"killed-{percent}"
        shutil.rmtree(output, ignore_errors=True)
        assert killed(workshop, recipe, output, files * percent // 100, runner)
        if not (output / "manifest.json").exists():
            with pytest.raises(CorpusError, match=r"no manifest|not finished|unfinished"):
                read_manifest(str(output))
        done = workshop.cli("prepare", recipe, "--output", str(output), "--quiet", *runner)
        assert (done.returncode, done.stderr) == (0, "")
        assert workshop.tree(output) == expected
        assert left_over(output) == []
        assert verify_corpus(str(output)) == []

    @pytest.mark.slow
    def test_on_threads_of_beam(self, undisturbed: Any) -> None:
        self.check(undisturbed, 70, THREADS)

    @pytest.mark.slow
    def test_on_processes_of_beam(self, undisturbed: Any) -> None:
        self.check(undisturbed, 40, PROCESSES)

    @pytest.mark.slow
    def test_again_and_again(self, undisturbed: Any) -> None:
        workshop, recipe, expected, files = undisturbed
        output = workshop.folder / "killed-often"
        for percent in (5, 20, 35, 50, 65, 80):
            killed(workshop, recipe, output, files * percent // 100, LOOP)
        done = workshop.cli("prepare", recipe, "--output", str(output), "--quiet", *LOOP)
        assert (done.returncode, done.stderr) == (0, "")
        assert workshop.tree(output) == expected
        assert left_over(output) == []

    @pytest.mark.slow
    def test_in_the_middle_of_a_change(self, undisturbed: Any, tmp_path: Path) -> None:
        workshop, recipe, expected, _ = undisturbed
        output = tmp_path / "out"
        shutil.copytree(workshop.folder / "out", output)
        text = Path(recipe).read_text("utf-8")
        changed = tmp_path / "changed.toml"
        changed.write_text(text.replace("4000", "1500"), "utf-8")
        words = [sys.executable, "-m", "gristmill", "prepare", str(changed), "--output", str(output), "--quiet", *LOOP]
        process = subprocess.Popen(words, cwd=workshop.folder)
        before = set(output.glob("tokens/*/*.bin"))
        while process.poll() is None and len(set(output.glob("tokens/*/*.bin")) - before) < 7:
            time.sleep(0.001)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert not (output / "manifest.json").exists()
        done = workshop.cli("prepare", recipe, "--output", str(output), "--quiet", *LOOP)
        assert (done.returncode, done.stderr) == (0, "")
        assert workshop.tree(output) == expected


def worker_processes(pid: int) -> list[psutil.Process]:
    """The worker processes of a run."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if re.search(r"gristmill\.pipelines\.(beam|item)_worker", " ".join(child.cmdline())):
                    found.append(child)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("when", ["at its start", "at work"])
@pytest.mark.parametrize("runner", [PROCESSES, POOL], ids=["of Beam", "of the loop"])
def test_a_worker_process_that_is_killed(workshop: Any, runner: tuple[str, ...], when: str) -> None:
    lines = b"".join(json.dumps({"text": f"{number} " * 200}).encode() + b"\n" for number in range(70_000))
    recipe = workshop.recipe({"files": [workshop.write("a.jsonl", lines)]})
    words = [sys.executable, "-m", "gristmill", "prepare", recipe, "--quiet", *runner]
    process = subprocess.Popen(words, cwd=workshop.folder, stderr=subprocess.PIPE, text=True)
    begun = workshop.folder / "out" / "_stages" / "items"
    while process.poll() is None and not (worker_processes(process.pid) and (when == "at its start" or begun.exists())):
        time.sleep(0.005)
    worker_processes(process.pid)[0].kill()
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert re.match(r"gristmill: a worker process (of Beam )?ended without a word.*; if the system killed it for", said)
    assert said.count("\n") == 1
    done = workshop.cli("prepare", recipe, "--quiet", *LOOP)
    assert (done.returncode, done.stderr) == (0, "")
    assert verify_corpus(str(workshop.folder / "out")) == []


def test_what_dead_runs_left_is_cleared_away(workshop: Any) -> None:
    source = {"files": [workshop.jsonl("a.jsonl", ["a", "b"])]}
    workshop.prepare(source)
    before = workshop.tree()
    out = workshop.folder / "out"
    for name in ("tokens/s0", "spill/s0", "_stages/items/encode/s0", "clean/s0", "."):
        (out / name).mkdir(parents=True, exist_ok=True)
        (out / name / f".x.bin.{'0123456789abcdef' * 2}.tmp").write_bytes(b"half")
    kept = workshop.write("out/.notes.tmp", b"of somebody else")
    workshop.prepare(source)
    assert left_over(out) == [".notes.tmp"]
    Path(kept).unlink()
    assert workshop.tree() == before


def limited(workshop: Any, recipe: str, output: Path, blocks: int) -> subprocess.CompletedProcess[str]:
    """Runs the command where no file may grow beyond so many blocks of 512 bytes, which a full disk looks like."""
    words = [sys.executable, "-m", "gristmill", "prepare", recipe, "--output", str(output), "--quiet", *LOOP]
    limit = ["sh", "-c", f'ulimit -f {blocks} && exec "$@"', "sh"]
    return subprocess.run([*limit, *words], cwd=workshop.folder, capture_output=True, text=True, check=False)


def test_a_file_that_may_not_grow(workshop: Any) -> None:
    recipe = workshop.recipe({"files": [workshop.jsonl("a.jsonl", [f"text {n}" * 20 for n in range(500)])]})
    output = workshop.folder / "out"
    done = limited(workshop, recipe, output, 100)
    assert done.returncode == 1
    spill = re.escape(f"{output}/spill/s0/00000-") + "[0-9a-f]{12}[.]tok"
    says = f"gristmill: {spill}: cannot be written: File too large; raise the limit .*; what is finished stays\n"
    assert re.fullmatch(says, done.stderr)
    assert not (output / "manifest.json").exists()
    assert [name for name in left_over(output) if name.endswith(".tmp")] == []
    assert workshop.cli("prepare", recipe, "--quiet").returncode == 0
    assert verify_corpus(str(output)) == []
    assert workshop.cli("prepare", recipe, "--quiet", "--output", "fresh").returncode == 0
    assert workshop.tree(output) == workshop.tree(workshop.folder / "fresh")


def on_small_disk(workshop: Any, options: str, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell script with a small disk of its own at `disk`; skips where disks may not be mounted."""
    (workshop.folder / "disk").mkdir()
    mount = f"mount -t tmpfs -o {options} none disk || exit 77\n"
    for unshare in (["unshare", "-m"], ["unshare", "-rm"]):
        words = [*unshare, "sh", "-c", mount + script]
        done = subprocess.run(words, cwd=workshop.folder, capture_output=True, text=True, check=False)
        if done.returncode not in {1, 77} or "unshare: " not in done.stderr + "mount: ":
            break
        if done.returncode == 1 and "unshare" not in done.stderr:
            break
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("this machine does not let the test mount a disk")
    return done


def test_a_full_disk_and_a_larger_one(workshop: Any) -> None:
    recipe = workshop.recipe({"files": [workshop.jsonl("a.jsonl", [f"{n} text" * 40 for n in range(8000)])]})
    command = f"{sys.executable} -m gristmill prepare {recipe} --quiet --runner loop --output"
    again = "mount -o remount,size=64m none disk"
    script = f"{command} disk/out; code=$?; find disk -type f; {again} && {command} disk/out && cp -r disk/out saved"
    done = on_small_disk(workshop, "size=1m", f"{script}; exit $code")
    assert done.returncode == 1
    file, free = r"disk/out/spill/s0/00000-\w+\.tok", r"0\.\d MB are free; free some space, or write to a larger disk, "
    assert re.match(rf"gristmill: {file}: cannot be written: No space left on device, {free}", done.stderr)
    assert done.stderr.count("\n") == 1
    assert "manifest.json" not in done.stdout
    assert ".tmp" not in done.stdout
    assert workshop.cli("prepare", recipe, "--quiet").returncode == 0
    assert workshop.tree(workshop.folder / "saved") == workshop.tree()


def test_a_disk_that_may_only_be_read(workshop: Any) -> None:
    recipe = workshop.recipe({"files": [workshop.jsonl("a.jsonl", ["a"])]})
    command = f"{sys.executable} -m gristmill prepare {recipe} --output disk/out --quiet"
    done = on_small_disk(workshop, "size=1m,ro", command)
    assert done.returncode == 2
    assert done.stderr.startswith("gristmill: output disk/out: ")
    assert done.stderr.endswith("disk may not be written to\n")


def test_a_file_system_that_cannot_rename(workshop: Any) -> None:
    class Renamable(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
        protocol = "renamable"
        store: ClassVar[dict[str, Any]] = {}
        pseudo_dirs: ClassVar[list[str]] = [""]
        may = False

        def cp_file(self, path1: str, path2: str, **options: Any) -> None:
            if not Renamable.may:
                raise NotImplementedError
            super().cp_file(path1, path2, **options)

    fsspec.register_implementation("renamable", Renamable, clobber=True)
    source = {"files": [workshop.jsonl("a.jsonl", ["a", "b"])]}
    with pytest.raises(SettingsError, match=r"output .*: its file system can neither rename nor copy a file, so"):
        workshop.prepare(source, output="renamable://bucket/out")
    assert not Renamable.store, "nothing is left of the attempt"
    Renamable.may = True
    workshop.prepare(source, output="renamable://bucket/out")
    workshop.prepare(source)
    made = {name.split("/out/", 1)[1]: file.getvalue() for name, file in Renamable.store.items()}
    written = {name: (workshop.folder / "out" / name).read_bytes() for name in workshop.tree()}
    assert {name: made[name] for name in written} == written


@pytest.mark.slow
def test_an_object_store_is_asked_for_no_rename(proxy: Any, workshop: Any) -> None:
    workshop.prepare({"files": [workshop.jsonl("a.jsonl", ["a", "b"])]}, output="gs://test-bucket/renames", **TOP)
    asked = [target for target, _ in proxy.targets]
    assert any("renames/manifest.json" in target for target in asked)
    assert not [target for target in asked if re.search("/(moveTo|copyTo|rewriteTo|compose)", target)]


class TestFailingOnce:
    """Steps whose first attempt fails, before or after what they write is written."""

    @pytest.mark.slow
    def test_a_rerun_completes(self, workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        from gristmill.pipelines import beam_shell

        sources = fill(workshop, 40)
        workshop.prepare(*sources, output=str(workshop.folder / "by-loop"), **TOP)
        expected = workshop.tree(workshop.folder / "by-loop")
        tried: set[str] = set()
        work = beam_shell._Work.process

        def failing_once(self: Any, item: Any) -> Any:
            name = f"{self._name} {item}"
            due = self._name not in {step.split(" ", 1)[0] for step in tried}
            late = self._name in {"encode", "build"}
            if due and not late:
                tried.add(name)
                raise DataError(f"{self._name} fails once, before its work")
            yield from work(self, item)
            if due:
                tried.add(name)
                raise DataError(f"{self._name} fails once, after its work")

        monkeypatch.setattr(beam_shell._Work, "process", failing_once)
        for step, place in (("scan", "before"), ("encode", "after"), ("assemble", "before"), ("build", "after")):
            with pytest.raises(DataError, match=f"^{step} fails once, {place} its work$"):
                workshop.prepare(*sources, options={"runner": "FnApiRunner"}, **TOP)
            assert not (workshop.folder / "out" / "manifest.json").exists()
        workshop.prepare(*sources, options={"runner": "FnApiRunner"}, **TOP)
        assert workshop.tree() == expected

    def test_an_input_that_comes_back(self, workshop: Any) -> None:
        sources = fill(workshop, 20)
        broken = Path(sources[3]["files"][0])
        content = broken.read_bytes()
        broken.write_bytes(content + b"oops\n")
        with pytest.raises(DataError, match=r"3\.jsonl:51: malformed json"):
            workshop.prepare(*sources, **TOP)
        done_before = sorted((workshop.folder / "out" / "clean").rglob("*.keys"))
        assert [path.parent.name for path in done_before] == ["s0", "s1", "s2"]
        times = [path.stat().st_mtime_ns for path in done_before]
        broken.write_bytes(content)
        workshop.prepare(*sources, **TOP)
        assert [path.stat().st_mtime_ns for path in done_before] == times
        workshop.prepare(*sources, output=str(workshop.folder / "fresh"), **TOP)
        assert workshop.tree() == workshop.tree(workshop.folder / "fresh")


def test_the_report_is_of_the_last_run(workshop: Any) -> None:
    source = {"files": [workshop.jsonl("a.jsonl", ["a"])]}
    workshop.prepare(source)
    report = json.loads((workshop.folder / "out" / "report" / "run.json").read_bytes())
    assert report["stages"] == ["download", "clean", "tokenize"]
    assert report["inputs"][0]["path"] == str(workshop.folder / "a.jsonl")
