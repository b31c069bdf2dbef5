"""Schedules for one machine, run by the real `make` and the real shell."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gristmill.cli import main
from gristmill.formats.errors import SettingsError
from gristmill.pipelines.stage_graph import stage_jobs
from gristmill.pipelines.stage_scripts import makefile, shell_script

INDEX = {"sequence_length": 16, "epochs": 1}
ODD = 'it\'s a $(touch no) `touch no` ${HOME} #1; "x" é & %.toml'
JOBS = stage_jobs(every_source=True, grouped=False)


def recipe(workshop: Any, name: str) -> str:
    given = {"files": [workshop.jsonl("a.jsonl", [f"text {number} of a" for number in range(40)])]}
    path = Path(workshop.recipe(given, index=INDEX, output="out"))
    path.rename(path.with_name(name))
    return name


def schedule(workshop: Any, capsys: pytest.CaptureFixture[str], name: str, *words: str) -> str:
    folder = Path.cwd()
    os.chdir(workshop.folder)
    try:
        assert main(["stages", name, *words]) == 0
    finally:
        os.chdir(folder)
    return capsys.readouterr().out


def run(workshop: Any, *words: str) -> "subprocess.CompletedProcess[str]":
    program = f"{shlex.quote(sys.executable)} -m gristmill"
    return subprocess.run(
        words,
        cwd=workshop.folder,
        env={**os.environ, "GRISTMILL": program, "OPTIONS": "--runner=loop"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def times(folder: Path) -> dict[str, int]:
    """When each file was written, but for what the lock of a run touches."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file() and "lock" not in path.name
    }


@pytest.mark.parametrize(
    ("words", "options", "jobs"),
    [(("make", "-f"), ("--makefile", "--by-group"), 2), (("sh",), ("--shell",), 5)],
    ids=["make", "shell"],
)
def test_a_schedule_gives_the_corpus_of_a_plain_run_and_then_does_nothing(
    workshop: Any, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], options: tuple[str, ...], jobs: int
) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    name = recipe(workshop, ODD)
    workshop.write("schedule", schedule(workshop, capsys, name, *options).encode())
    done = run(workshop, *words, "schedule")
    assert done.returncode == 0, done.stderr
    assert not (workshop.folder / "no").exists(), "a name was run as a command"
    first, written = workshop.tree(), times(workshop.folder / "out")
    assert "manifest.json" in first
    again = run(workshop, *words, "schedule")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("nothing to do: ") == jobs
    assert times(workshop.folder / "out") == written
    assert main(["prepare", str(workshop.folder / name), "--quiet", f"--output={workshop.folder / 'plain'}"]) == 0
    assert workshop.tree(workshop.folder / "plain") == first


def test_one_stage_can_be_asked_for_and_waits_for_those_before(
    workshop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    name = recipe(workshop, "-recipe.toml")
    workshop.write("run.sh", shell_script(name, JOBS).encode())
    refused = run(workshop, "sh", "run.sh", "clean")
    assert refused.returncode == 1
    assert "stage 'download' is not finished" in refused.stderr
    unknown = run(workshop, "sh", "run.sh", "cleam")
    assert (unknown.returncode, unknown.stderr) == (
        2,
        "cleam: no such stage; there are download clean tokenize index blend, and status\n",
    )
    done = run(workshop, "sh", "run.sh", "download", "status")
    assert done.returncode == 0, done.stderr
    assert "a run would do clean, tokenize, index, blend, and write the manifest" in done.stdout


def test_the_makefile_has_a_target_for_each_stage_behind_those_it_waits_for() -> None:
    text = makefile("r.toml", JOBS, output="gs://b/o")
    rules = [line for line in text.splitlines() if line and not line.startswith(("#", "\t")) and ":" in line]
    assert rules[-7:] == [
        "all: blend",
        "status:",
        "download:",
        "clean: download",
        "tokenize: clean",
        "index: tokenize",
        "blend: index",
    ]
    line = "\t$(GRISTMILL) $(COMMAND) r.toml --output=gs://b/o --from clean --to clean $(OPTIONS)"
    assert line in text.splitlines()
    assert makefile("r.toml", JOBS, output="gs://b/o") == text


@pytest.mark.parametrize("name", ["two\nlines.toml", "a\ttab.toml", "no\udcff-utf8.toml"])
@pytest.mark.parametrize("write", [makefile, shell_script])
def test_a_name_that_no_line_can_hold_is_refused(name: str, write: Any) -> None:
    with pytest.raises(SettingsError, match="no line of a script can hold this name"):
        write(name, JOBS)


def test_options_that_do_not_go_together_are_refused(workshop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(workshop.folder / recipe(workshop, "r.toml"))
    assert main(["stages", name, "--by-group"]) == 2
    assert main(["stages", name, "--shell", "--exit-code"]) == 2
    assert main(["stages", name, "--shell", "--json"]) == 2
    assert main(["stages", name, "--jsn"]) == 2
    assert capsys.readouterr().err.count("gristmill: ") == 4
