"""How a run is executed, what is refused before it, and how a worker's error comes back."""

import importlib
import io
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.errors import CorpusError, DataError, InputError, SettingsError, StorageError
from gristmill.pipelines.beam_quiet import quiet
from gristmill.pipelines.beam_runners import check_flags, run_pipeline, worker_error
from gristmill.pipelines.decompress import DamagedError
from gristmill.pipelines.job_server import require_job_server
from gristmill.pipelines.run_lock import working_on
from gristmill.pipelines.run_tally import number_text
from gristmill.pipelines.runners import LOOP_BYTES, check_runner, choose_runner

CORES = len(os.sched_getaffinity(0))


class TestChoice:
    @pytest.mark.parametrize(
        ("name", "flags", "input_bytes", "splits", "expected"),
        [
            ("loop", (), 1 << 40, 100, "loop"),
            ("auto", (), 0, 0, "loop"),
            ("auto", (), 1 << 40, 100, "loop"),
            ("auto", ("--direct_num_workers=1",), 0, 1, "FnApiRunner"),
            ("FnApiRunner", (), 0, 1, "FnApiRunner"),
            ("DirectRunner", (), 0, 1, "DirectRunner"),
            ("DataflowRunner", ("--region=x",), 0, 1, "DataflowRunner"),
        ],
    )
    def test_of_the_runner(
        self, name: str, flags: tuple[str, ...], input_bytes: int, splits: int, expected: str
    ) -> None:
        choice = choose_runner(name, flags, input_bytes, splits)
        assert choice.runner == expected
        assert choice.flags == flags

    @pytest.mark.parametrize(
        ("name", "input_bytes", "splits", "most", "expected"),
        [
            ("auto", LOOP_BYTES - 1, 1000, None, 1),
            ("auto", LOOP_BYTES, 1000, None, CORES),
            ("auto", LOOP_BYTES, 1, None, 1),
            ("auto", LOOP_BYTES, 0, None, 1),
            ("auto", 0, 1000, 7, 7),
            ("auto", LOOP_BYTES, 3, 7, 3),
            ("loop", LOOP_BYTES, 1000, None, 1),
            ("loop", LOOP_BYTES, 1000, 5, 5),
        ],
    )
    def test_of_the_processes(self, name: str, input_bytes: int, splits: int, most: int | None, expected: int) -> None:
        choice = choose_runner(name, (), input_bytes, splits, max_workers=most)
        assert choice.workers == expected
        assert choice.engine_threads == (CORES if expected == 1 else 1)
        assert choice.says == (f"{expected} processes" if expected > 1 else f"this process, {CORES} engine threads")

    @pytest.mark.parametrize(
        "flags",
        [
            ("--direct_num_workers=3",),
            ("--direct_num_workers", "3"),
            ("--direct_running_mode=multi_threading", "--direct_num_workers=3"),
        ],
    )
    def test_leaves_workers_to_the_user(self, flags: tuple[str, ...]) -> None:
        for name in ("auto", "FnApiRunner"):
            choice = choose_runner(name, flags, LOOP_BYTES, 100)
            assert choice.flags == flags
            assert choice.engine_threads == 1
            assert "3 workers" in choice.says

    def test_no_processes(self) -> None:
        with pytest.raises(SettingsError, match="--max-workers 0: at least 1 is needed"):
            choose_runner("auto", (), LOOP_BYTES, 100, max_workers=0)

    def test_of_a_dask_cluster(self) -> None:
        own = choose_runner("DaskRunner", (), 0, 100, max_workers=2)
        assert (own.runner, own.workers, own.engine_threads) == ("DaskRunner", 2, 1)
        assert own.says == "a Dask cluster of 2 processes on this machine"
        assert choose_runner("DaskRunner", (), 0, 1).workers == 1
        flags = ("--dask_client_address=tcp://host:8786",)
        named = choose_runner("apache_beam.runners.dask.dask_runner.DaskRunner", flags, 0, 100)
        assert (named.runner, named.flags) == ("DaskRunner", flags)
        assert named.says == "the Dask cluster of tcp://host:8786"
        with pytest.raises(
            SettingsError, match=r"--max-workers 2: is for a Dask cluster on this machine, but tcp://host"
        ):
            choose_runner("DaskRunner", flags, 0, 100, max_workers=2)
        for other in ("auto", "FnApiRunner", "DirectRunner"):
            with pytest.raises(SettingsError, match=f"--dask_client_address: is an option of .* the runner is {other}"):
                choose_runner(other, flags, 0, 100)

    def test_processes_are_not_for_beam(self) -> None:
        with pytest.raises(SettingsError, match=r"--max-workers 2: is for the processes of --runner auto"):
            choose_runner("FnApiRunner", (), LOOP_BYTES, 100, max_workers=2)

    @pytest.mark.parametrize("workers", ["many", "-1", "1.5"])
    def test_a_number_of_workers_that_is_none(self, workers: str) -> None:
        with pytest.raises(SettingsError, match=r"--direct_num_workers=.*: it must be a number of workers"):
            choose_runner("FnApiRunner", (f"--direct_num_workers={workers}",), 0, 1)


class TestRefusals:
    @pytest.mark.parametrize("name", ["auto", "loop", "FnApiRunner", "DirectRunner"])
    def test_a_usual_name_needs_no_beam(self, name: str) -> None:
        check_runner(name, ())

    def test_a_name_that_beam_knows(self) -> None:
        check_runner("BundleBasedDirectRunner", ())
        check_runner("PortableRunner", ("--job_endpoint=embed", "--environment_type=LOOPBACK"))

    @pytest.mark.parametrize("name", ["Nope", "os.path", "os.getcwd", "apache_beam.runners.Nope"])
    def test_a_name_that_nobody_knows(self, name: str) -> None:
        with pytest.raises(SettingsError, match=f"--runner {name}: Beam cannot make this runner: "):
            check_runner(name, ())

    @pytest.mark.parametrize(
        "flags",
        [
            ("--direct_num_workers=2", "--direct_running_mode", "in_memory"),
            ("--experiments=a", "--experiments", "b", "--no_save_main_session"),
            ("--region=europe-west1", "--max_num_workers=3", "--machine_type=n2-standard-8"),
            ("--job_endpoint=embed", "--environment_type=LOOPBACK"),
            ("--job_endpoint=host:8099", "--artifact_endpoint=host:8098", "--job_server_timeout=300"),
            ("--environment_type=DOCKER", "--environment_config=image", "--sdk_worker_parallelism=4"),
            ("--environment_type=EXTERNAL", "--environment_config=localhost:50000"),
            ("--flink_master=host:8081", "--flink_version=2.0", "--flink_submit_uber_jar", "--parallelism=8"),
            ("--flink_job_server_jar=/jars/flink.jar", "--max_parallelism=128"),
            ("--spark_master_url=spark://host:7077", "--spark_job_server_jar=/jars/spark.jar"),
            ("--spark_submit_uber_jar", "--spark_rest_url=http://host:6066", "--output_executable_path=/tmp/job.jar"),
            ("--prism_location=/bin/prism", "--prism_log_level=warn"),
            ("--dask_client_address=tcp://host:8786", "--dask_connection_timeout=5", "--dask_npartitions=16"),
        ],
    )
    def test_options_of_beam(self, flags: tuple[str, ...]) -> None:
        check_flags(flags)

    @pytest.mark.parametrize(
        ("flags", "says"),
        [
            (
                ("--machine_typ=n2",),
                r"--machine_typ: neither gristmill prepare nor Beam knows this option; did you mean --m",
            ),
            (("--zzzzzzzz",), r"--zzzzzzzz: neither gristmill prepare nor Beam knows this option$"),
            (("--bogus",), r"--bogus: neither gristmill prepare nor Beam knows this option$"),
            (("--forced",), r"knows this option; did you mean --force\?$"),
            (("--sources", "a"), "did you mean --source?"),
            (("word",), "word: belongs to no option"),
            (("--region", "a", "b"), "b: belongs to no option"),
            (
                ("--max_num_workers=x",),
                "Beam's options --max_num_workers=x: argument --max_num_workers: invalid int value",
            ),
        ],
    )
    def test_options_of_nobody(self, flags: tuple[str, ...], says: str, capfd: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SettingsError, match=says):
            check_flags(flags)
        assert capfd.readouterr() == ("", "")


class TestNoServer:
    """Runners that work through a server which is not there."""

    @pytest.mark.parametrize(
        ("runner", "flags", "says"),
        [
            (
                "FlinkRunner",
                ("--flink_job_server_jar=no-such.jar",),
                'the job could not start: .*"no-such.jar".*; give --job_endpoint of a Flink job server that runs, or',
            ),
            (
                "SparkRunner",
                ("--spark_submit_uber_jar",),
                "the job could not start: .*; give --job_endpoint of a Spark",
            ),
            ("PrismRunner", ("--prism_location=/no/such/prism",), "the job could not start: .*; give Prism's"),
            (
                "PortableRunner",
                (),
                "the job could not start: .*; --job_endpoint must name a job server that runs$",
            ),
            (
                "PortableRunner",
                ("--job_endpoint=localhost:1", "--job_server_timeout=1"),
                r"no job server answers at --job_endpoint=localhost:1 within 1 s \(Connection refused\); .* that runs$",
            ),
            (
                "FlinkRunner",
                ("--job_endpoint", "localhost:1", "--job_server_timeout=1"),
                r"no job server answers at --job_endpoint=localhost:1 .* or leave it out to have Beam start one$",
            ),
            (
                "DaskRunner",
                ("--dask_client_address=tcp://localhost:1", "--dask_connection_timeout=1"),
                r"no Dask scheduler answers at tcp://localhost:1 \(.*\); start one with `dask scheduler`",
            ),
            ("DaskRunner", ("--dask_client_address=nonsense://x",), "no Dask scheduler answers at nonsense://x"),
        ],
    )
    def test_is_told_of_in_a_sentence(self, runner: str, flags: tuple[str, ...], says: str) -> None:
        with pytest.raises(SettingsError, match=f"^--runner {runner}: {says}") as error:
            run_pipeline(lambda pipeline: pipeline | beam_create(), runner, flags)
        assert "\n" not in str(error.value)

    def test_whatever_name_the_runner_goes_by(self) -> None:
        name = "apache_beam.runners.portability.spark_runner.SparkRunner"
        with pytest.raises(
            SettingsError, match=f"^--runner {name}: the job could not start: .*; give --job_endpoint of a"
        ):
            run_pipeline(lambda pipeline: pipeline | beam_create(), name, ("--spark_submit_uber_jar",))

    def test_nor_is_one_waited_for_that_speaks_something_else(self) -> None:
        with socket.create_server(("localhost", 0)) as server:
            endpoint = f"localhost:{server.getsockname()[1]}"
            with pytest.raises(
                SettingsError, match=rf"at --job_endpoint={endpoint} .*\(what is there does not speak gRPC\)"
            ):
                check_runner("SparkRunner", (f"--job_endpoint={endpoint}", "--job_server_timeout=1"))

    def test_one_that_is_about_to_start_is_waited_for(self) -> None:
        with socket.create_server(("localhost", 0)) as taken:
            endpoint = f"localhost:{taken.getsockname()[1]}"
        server = importlib.import_module("grpc").server(ThreadPoolExecutor(1))
        told: list[str] = []

        def say(text: str) -> None:
            told.append(text)
            server.add_insecure_port(endpoint)
            server.start()

        require_job_server("PortableRunner", endpoint, say=say)
        server.stop(None)
        assert told == [f"waiting up to 30 s for a job server at {endpoint}"]


class TestDocker:
    """Workers in Docker, where there is none or it fails."""

    EMBEDDED = ("--job_endpoint=embed",)

    def docker(self, folder: Path, patch: pytest.MonkeyPatch, script: str) -> None:
        """Makes a shell script the only program on PATH; an empty one is none."""
        patch.setenv("PATH", str(folder))
        if script:
            (folder / "docker").write_text(f"#!/bin/sh\n{script}\n", "ascii")
            (folder / "docker").chmod(0o755)

    @pytest.mark.parametrize(
        ("script", "says"),
        [
            ("", "but there is no program `docker` on PATH"),
            ("echo no daemon here >&2; exit 1", r"but .*/docker does not answer \(no daemon here\)"),
        ],
    )
    def test_is_asked_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str) -> None:
        self.docker(tmp_path, monkeypatch, script)
        for flags in (self.EMBEDDED, (*self.EMBEDDED, "--environment_type", "DOCKER")):
            with pytest.raises(
                SettingsError, match=f"^--runner PortableRunner: .* in Docker, {says}; install or start it, or "
            ):
                check_runner("PortableRunner", flags)
        check_runner("PortableRunner", (*self.EMBEDDED, "--environment_type=LOOPBACK"))

    @pytest.mark.slow
    def test_a_worker_that_does_not_start_is_told_of_in_a_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.docker(tmp_path, monkeypatch, '[ "$1" = version ]')
        says = r"^--runner PortableRunner: the job failed: .*'docker', 'run'.* exit status 1; the logs of .* stays$"
        with pytest.raises(DataError, match=says) as error:
            run_pipeline(lambda pipeline: pipeline | beam_create(), "PortableRunner", self.EMBEDDED)
        assert "\n" not in str(error.value)

    @pytest.mark.slow
    def test_what_our_own_code_did_not_expect_keeps_its_traceback(self) -> None:
        flags = (*self.EMBEDDED, "--environment_type=LOOPBACK")
        with pytest.raises(RuntimeError, match="TypeError"):
            run_pipeline(lambda pipeline: pipeline | beam_create("a") | beam_map(shown), "PortableRunner", flags)


def shown(text: Any) -> str:
    """Calls a function of ours with what it cannot take."""
    return number_text(text)


def beam_create(value: object = 1) -> Any:
    """A step for a pipeline to have."""
    import apache_beam as beam

    return beam.Create([value])


def beam_map(work: Callable[[Any], Any]) -> Any:
    """A step that calls a function."""
    import apache_beam as beam

    return beam.Map(work)


class TestWorkerError:
    def test_of_our_own_class_with_a_note(self) -> None:
        own = worker_error(InputError("a.jsonl:1: bad; mend it [while running 'Clean: scan']"))
        assert type(own) is InputError
        assert str(own) == "a.jsonl:1: bad; mend it"

    def test_of_a_class_that_is_not_in_the_tree(self) -> None:
        own = worker_error(DamagedError("a.gz: cut short [while running 'x']"))
        assert isinstance(own, InputError)
        assert str(own) == "a.gz: cut short"

    @pytest.mark.parametrize("kind", [InputError, CorpusError, StorageError])
    def test_in_the_text_of_a_traceback(self, kind: type[Exception]) -> None:
        text = (
            "Traceback (most recent call last):\n"
            '  File "x.py", line 1, in process\n'
            "    raise OSError(1)\n"
            "OSError: 1\n\nThe above exception was the direct cause of the following exception:\n\n"
            "Traceback (most recent call last):\n"
            f"gristmill.formats.errors.{kind.__name__}: a.jsonl: what is\nwrong [while running 'Clean: scan-p-4']\n"
        )
        own = worker_error(RuntimeError(text))
        assert type(own) is kind
        assert str(own) == "a.jsonl: what is\nwrong"

    def test_of_somebody_else(self) -> None:
        assert worker_error(RuntimeError("Traceback\nMemoryError: ")) is None
        assert worker_error(RuntimeError("gristmill.formats.errors is a module")) is None

    def test_of_a_class_that_is_gone(self) -> None:
        own = worker_error(RuntimeError("gristmill.formats.errors.NoSuchError: what [while running 'x']"))
        assert type(own) is DataError


class TestQuiet:
    def test_tracebacks_and_logs_are_kept_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import logging

        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        with quiet():
            print("a word", file=sys.stderr)
            print("Traceback (most recent call last):\n  ...\nOSError", file=sys.stderr)
            logging.getLogger("apache_beam").error("a log")
        print("after", file=sys.stderr)
        assert stream.getvalue() == "a word\nafter\n"

    def test_threads_that_end_in_an_error_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import threading

        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        with quiet():
            thread = threading.Thread(target=lambda: 1 // 0)
            thread.start()
            thread.join()
        assert stream.getvalue() == ""

    def test_unless_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        with quiet(verbose=True):
            print("Traceback (most recent call last):", file=sys.stderr)
        assert stream.getvalue() == "Traceback (most recent call last):\n"


class TestLock:
    def test_two_at_once(self, tmp_path: Path) -> None:
        corpus = str(tmp_path / "out")
        with (
            working_on(corpus),
            pytest.raises(CorpusError, match="another run is working on this corpus"),
            working_on(corpus),
        ):
            pass
        with working_on(corpus):
            pass

    def test_half_written_files_are_removed_and_others_not(self, tmp_path: Path) -> None:
        half = tmp_path / "out" / "tokens" / f".a.bin.{'0' * 32}.tmp"
        half.parent.mkdir(parents=True)
        others = [half.with_name(name) for name in ("a.tmp", ".a.bin.0123.tmp", "a.bin", f".a.bin.{'0' * 32}")]
        for path in (half, *others):
            path.write_bytes(b"x")
        with working_on(str(tmp_path / "out")):
            assert not half.exists()
            assert all(path.exists() for path in others)

    def test_an_error_inside_lets_go(self, tmp_path: Path) -> None:
        corpus = str(tmp_path / "out")
        with pytest.raises(ValueError, match="mine"), working_on(corpus):
            raise ValueError("mine")
        with working_on(corpus):
            pass

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "out").write_bytes(b"")
        with (
            pytest.raises(SettingsError, match=r"output .*/out/_stages: cannot be created"),
            working_on(str(tmp_path / "out")),
        ):
            pass

    def test_a_store(self) -> None:
        with working_on("memory://bucket/out"):
            pass
