"""Who works on a corpus: one run at a time, on a disk and in a store; the next takes the place of one that is gone."""

import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.errors import CorpusError, SettingsError, StorageError
from gristmill.formats.exclusive import create_bytes
from gristmill.formats.recipe import parse_recipe
from gristmill.formats.storage import exists, list_files, read_bytes, relative_to, write_bytes
from gristmill.pipelines import lock_renewal
from gristmill.pipelines.beam_runners import run_beam
from gristmill.pipelines.finish import finish
from gristmill.pipelines.job import Job, make_job
from gristmill.pipelines.lock_options import stale_after
from gristmill.pipelines.lock_record import (
    Holder,
    as_bytes,
    beat_path,
    claim_path,
    holder_path,
    new_holder,
    read_holder,
    update_holder,
)
from gristmill.pipelines.lock_renewal import renewing, require_held, while_held
from gristmill.pipelines.plan import plan_run, write_plan
from gristmill.pipelines.run_lock import release, working_on
from gristmill.pipelines.stages import sweep, valid_stage, write_stage

PLACES = ["local", "memory", "gs"]


@pytest.fixture(params=PLACES)
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "gs":
        yield f"{request.getfixturevalue('bucket')}/{tmp_path.name}"
    else:
        yield str(tmp_path / "out") if request.param == "local" else f"memory://{tmp_path.name}"


def lock_files(corpus: str) -> list[str]:
    """Files of the lock that a run left, but for the empty one that the operating system's lock is on."""
    names = (relative_to(path, f"{corpus}/_stages") for path in list_files(f"{corpus}/_stages", recursive=True))
    return [name for name in names if name != "lock"]


def left_by(corpus: str, **changes: Any) -> Holder:
    """A record as a run of another machine left it."""
    elsewhere: dict[str, Any] = {"machine": "another kernel", "host": "far-away", "process": 4711, **changes}
    holder = replace(new_holder("2 processes"), **elsewhere)
    assert create_bytes(holder_path(corpus), as_bytes(holder))
    return holder


def taken(corpus: str, **options: Any) -> list[str]:
    """Takes the place on a corpus and says what was told."""
    said: list[str] = []
    with working_on(corpus, say=said.append, **options) as run:
        holder = read_holder(corpus)
        assert holder is not None
        assert holder.run == run
    return said


def test_the_second_is_told_who_the_first_is(corpus: str) -> None:
    with working_on(corpus, runner="2 processes") as run:
        with pytest.raises(CorpusError, match="is working on this corpus; wait for it or stop it") as refused:
            taken(corpus)
        assert f"by process {os.getpid()} of {new_holder('').host} (2 processes); " in str(refused.value)
        assert " UTC by process " in str(refused.value)
        assert read_holder(corpus) is not None
        assert exists(holder_path(corpus)), f"the refused run has not touched the record of {run}"
    assert lock_files(corpus) == []
    assert taken(corpus) == []


def test_a_run_that_ends_with_an_error_lets_go(corpus: str) -> None:
    for error in (ValueError, KeyboardInterrupt, StorageError):
        with pytest.raises(error), working_on(corpus):
            raise error("mine")
        assert lock_files(corpus) == []


GONE = """
import os, sys
from gristmill.formats.exclusive import create_bytes
from gristmill.pipelines.lock_record import as_bytes, holder_path, new_holder
holder = new_holder("this process")
assert create_bytes(holder_path(sys.argv[1]), as_bytes(holder))
print(holder.run)
"""


def test_a_process_of_this_machine_that_is_gone_is_not_waited_for(bucket: str, store: Any, tmp_path: Path) -> None:
    for corpus in (f"{bucket}/{tmp_path.name}", str(tmp_path / "out")):
        subprocess.run([sys.executable, "-c", GONE, corpus], check=True, env={**os.environ, **store.environment})
        (said,) = taken(corpus)
        assert said.startswith(f"{corpus}: a run before this one is gone (started ")
        assert said.endswith("): its process has ended; this run goes on in its place")


def test_silence_decides_over_a_run_of_another_machine(bucket: str, tmp_path: Path) -> None:
    corpus = f"{bucket}/{tmp_path.name}"
    holder = left_by(corpus, outlives=True)
    with pytest.raises(CorpusError, match=r"by process 4711 of far-away \(2 processes\); last sign of life \d+ s ago"):
        taken(corpus)
    time.sleep(1.1)
    write_bytes(beat_path(corpus, holder.run), b"")
    with pytest.raises(CorpusError, match=r"last sign of life \d s ago"):
        taken(corpus, stale_after=1.0)
    time.sleep(1.1)
    (said,) = taken(corpus, stale_after=1.0)
    assert "): nothing was heard of it for " in said
    assert lock_files(corpus) == []


def test_a_disk_knows_at_once_that_a_launcher_is_gone_but_not_its_workers(tmp_path: Path) -> None:
    corpus = str(tmp_path / "out")
    left_by(corpus)
    assert len(taken(corpus)) == 1
    left_by(corpus, outlives=True)
    with pytest.raises(CorpusError, match="of far-away"):
        taken(corpus)
    long_ago = time.time() - 2000
    os.utime(holder_path(corpus), (long_ago, long_ago))
    assert len(taken(corpus)) == 1


@pytest.mark.parametrize("running", [True, False, None])
def test_a_service_is_asked_before_silence_counts(corpus: str, running: bool | None) -> None:
    left_by(corpus, outlives=True, job="2026-11-30_job", page="https://console.example/job", project="p", region="r")
    asked: list[str] = []

    def ask(holder: Holder) -> bool | None:
        asked.append(holder.job)
        return running

    if running is False:
        (said,) = taken(corpus, ask=ask)
        assert "): its job 2026-11-30_job has ended; this run goes on" in said
    else:
        with pytest.raises(CorpusError, match=r"job 2026-11-30_job https://console\.example/job; ") as refused:
            taken(corpus, ask=ask, stale_after=-1.0 if running else 60.0)
        assert ("the service says that its job goes on" in str(refused.value)) is (running is True)
    assert asked == ["2026-11-30_job"]


def test_one_of_many_takers_gets_the_place(bucket: str, tmp_path: Path) -> None:
    corpus = f"{bucket}/{tmp_path.name}"
    left_by(corpus, outlives=True)
    start, leave = threading.Barrier(6), threading.Event()
    holds: list[str] = []
    refused: list[CorpusError] = []

    def take() -> None:
        start.wait()
        try:
            with working_on(corpus, stale_after=-60.0, ask=lambda holder: holder.host != "far-away") as run:
                holds.append(run)
                leave.wait(60)
        except CorpusError as error:
            refused.append(error)
        if len(refused) == 5:
            leave.set()

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(holds) == 1, refused
    assert len(refused) == 5
    assert lock_files(corpus) == []


def test_a_claimant_who_died_is_not_waited_for_either(corpus: str) -> None:
    holder = left_by(corpus, outlives=True, job="j")
    assert create_bytes(claim_path(corpus, holder.run, 1), b"somebody")
    ended = {"ask": lambda _: False}
    with pytest.raises(CorpusError, match=r"another run takes the place of one that is gone .* at this moment"):
        taken(corpus, **ended)
    assert read_holder(corpus) == holder
    time.sleep(1.1)
    assert len(taken(corpus, stale_after=1.0, **ended)) == 1
    assert lock_files(corpus) == []


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "out" / "_stages" / "holder"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{}")
    with pytest.raises(
        CorpusError, match=r"_stages/holder: damaged .*; when none does, remove that file and run again"
    ):
        taken(str(tmp_path / "out"))


def stopped(corpus: str, error: type[BaseException]) -> None:
    """Takes the place for a run that outlives its launcher, which is stopped by an error."""
    with working_on(corpus, ask=lambda _: False) as run:
        update_holder(corpus, run, outlives=True, job="k")
        raise error


def test_a_run_that_outlives_its_launcher_lets_go_by_itself(corpus: str) -> None:
    with working_on(corpus) as run:
        update_holder(corpus, run, outlives=True, job="j", page="https://page")
    with pytest.raises(CorpusError, match="job j https://page; "):
        taken(corpus)
    with pytest.raises(KeyboardInterrupt):
        stopped(corpus, KeyboardInterrupt)
    run = getattr(read_holder(corpus), "run", "")
    with pytest.raises(CorpusError, match="job k;"):
        taken(corpus)
    release(corpus, "of-nobody")
    assert read_holder(corpus) is not None
    release(corpus, run)
    release(corpus, run)
    assert lock_files(corpus) == []


BROKEN = """
from apache_beam.runners.runner import PipelineResult, PipelineRunner

class Broken(PipelineRunner):
    \"\"\"Fails before or after it has taken a job, as its variable says.\"\"\"
    when, error = "before", OSError

    def run_pipeline(self, pipeline, options):
        if self.when == "before":
            raise self.error("nobody answers")
        return Result("RUNNING")

class Result(PipelineResult):
    def wait_until_finish(self, duration=None):
        raise Broken.error("stopped")
"""


@pytest.mark.parametrize(
    ("when", "error", "held"),
    [
        ("before", ConnectionError, False),
        ("before", KeyboardInterrupt, True),  # of a runner that nobody knows: it may be at work
        ("after", StorageError, False),
        ("after", ConnectionError, True),
        ("after", KeyboardInterrupt, True),
    ],
)
def test_a_job_elsewhere_holds_its_output_once_it_is_taken(
    workshop: Any, monkeypatch: pytest.MonkeyPatch, when: str, error: type[BaseException], held: bool
) -> None:
    workshop.write("broken_runner.py", BROKEN.encode())
    monkeypatch.syspath_prepend(workshop.folder)
    broken = importlib.import_module("broken_runner")
    monkeypatch.setattr(broken.Broken, "when", when)
    monkeypatch.setattr(broken.Broken, "error", error)
    with pytest.raises(error):
        workshop.prepare({"files": [workshop.jsonl("a.jsonl", ["x"])]}, options={"runner": "broken_runner.Broken"})
    monkeypatch.delitem(sys.modules, "broken_runner")
    holder = read_holder(str(workshop.folder / "out"))
    assert (holder is not None and holder.outlives) is held


def test_a_known_service_without_a_job_holds_nothing(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever kills the launcher before the service has its job, the next run need not wait."""
    seen: list[Holder | None] = []

    def run_beam(job: Job, *_: object, **__: object) -> None:
        seen.append(read_holder(job.corpus))
        raise KeyboardInterrupt

    monkeypatch.setattr("gristmill.pipelines.beam_runners.run_beam", run_beam)
    with pytest.raises(KeyboardInterrupt):
        workshop.prepare({"files": [workshop.jsonl("a.jsonl", ["x"])]}, options={"runner": "FlinkRunner"})
    (holder,) = seen
    assert holder is not None
    assert not holder.outlives, "its process alone vouches for it"
    assert read_holder(str(workshop.folder / "out")) is None


def test_a_job_elsewhere_that_is_done_has_left_a_manifest(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.pipelines.beam_runners.run_beam", lambda *_, **__: None)
    files = [workshop.jsonl("a.jsonl", ["x"])]
    with pytest.raises(CorpusError, match=r"out: Beam's FlinkRunner says that the job is done, but there is no manif"):
        workshop.prepare({"files": files}, options={"runner": "FlinkRunner"})
    with pytest.raises(CorpusError, match=r"is done, but there is no receipt of stage clean; its workers must write"):
        workshop.prepare({"files": files}, options={"runner": "FlinkRunner", "last": "clean"})
    assert read_holder(str(workshop.folder / "out")) is None


def test_signs_of_life_come_while_work_goes_on(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_renewal, "RENEW_SECONDS", 0.01)
    path = beat_path(corpus, "run")
    assert create_bytes(holder_path(corpus), as_bytes(replace(new_holder("this process"), run="run")))
    with renewing(corpus, "run"), renewing(corpus, "run"):
        patience = time.monotonic() + 60
        while not exists(path):
            assert time.monotonic() < patience
            time.sleep(0.01)
        os.remove(path) if corpus.startswith("/") else None
        while not exists(path):
            assert time.monotonic() < patience
            time.sleep(0.01)
    assert read_bytes(path) == b""


def test_no_sign_of_life_comes_behind_the_release(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step of a Beam pipeline releases its run while the launcher still takes its workers down."""
    monkeypatch.setattr(lock_renewal, "RENEW_SECONDS", 0.01)
    with working_on(corpus) as run:
        release(corpus, run)
        time.sleep(0.3)
    assert lock_files(corpus) == []


def test_a_sign_that_was_on_its_way_is_taken_back(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def late(path: str, data: bytes) -> None:
        release(corpus, run)
        write_bytes(path, data)
        written.append(path)

    with working_on(corpus) as run:
        monkeypatch.setattr(lock_renewal, "write_bytes", late)
        lock_renewal._Renewal(corpus, run)._renew()
    assert written == [beat_path(corpus, run)]
    assert lock_files(corpus) == []


@pytest.fixture
def job(workshop: Any) -> Job:
    """A job that holds its corpus, of which nothing is done."""
    recipe = parse_recipe(workshop.values({"files": [workshop.jsonl("a.jsonl", ["a"])]}))
    plan = plan_run(recipe)
    return replace(make_job(recipe, plan, tokenizer=None, engine=None), run="mine")


def _done(_: Job, item: str) -> str:
    return f"{item} is done"


def test_a_late_worker_of_a_run_that_lost_its_place_does_no_damage(job: Job) -> None:
    create_bytes(holder_path(job.corpus), as_bytes(replace(new_holder("mine"), run="mine")))
    assert while_held(_done, job, "an item") == "an item is done"
    write_bytes(job.path("tokens", "s0", "a.bin"), b"of the other")
    write_bytes(holder_path(job.corpus), as_bytes(new_holder("this process")))
    for late in (
        lambda: while_held(_done, job, "an item"),
        lambda: require_held(job),
        lambda: write_stage(job, "clean", {}, {}),
        lambda: sweep(job, "tokens", ()),
        lambda: finish(job),
    ):
        with pytest.raises(CorpusError, match="run mine was taken for dead, and another took its place: started "):
            late()
    release(job.corpus, "mine")
    assert read_holder(job.corpus) is not None
    release(job.corpus, read_holder(job.corpus).run)  # type: ignore[union-attr]
    with pytest.raises(CorpusError, match="run mine has ended or was given up; its late workers write nothing more"):
        finish(job)
    assert read_bytes(job.path("tokens", "s0", "a.bin")) == b"of the other"
    assert not exists(job.path("manifest.json"))
    assert not exists(job.path("_stages", "clean.json"))
    assert while_held(_done, replace(job, run=""), "an item") == "an item is done", "no run, nothing to lose"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (119.0, r"119\.0: .* at least 120 seconds are needed"),
        ("-1", "-1: .* at least 120 seconds are needed"),
        (float("nan"), "nan: is no number of seconds; give one of 120 or more"),
        ("abc", "abc: is no number of seconds; give one of 120 or more"),
    ],
)
def test_a_silence_that_is_no_sign_of_death_is_refused(given: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=f"--stale-after {says}"):
        stale_after(given)
    assert stale_after("120") == 120.0


def test_a_run_on_beam_lets_go_in_its_last_step(job: Job) -> None:
    with working_on(job.corpus) as run:
        update_holder(job.corpus, run, outlives=True)
        write_plan(job.corpus, plan_run(job.recipe))
        run_beam(replace(job, run=run), ["download", "clean"], "FnApiRunner", (), write_manifest=False)
        assert read_holder(job.corpus) is None
    assert valid_stage(job, "clean") is not None
