"""Chooses what a run is executed by, and how much of the machine it uses.

`auto` means the machine at hand: the plain loop, with its items spread over one process per core where there is enough
to do. Beam takes seconds to import, once more in each of its worker processes, and its threads share the lock that
parsing holds; so Beam is for runs that name one of its runners or give it an option. A worker uses one core, engine
included; only a loop in one process lets the engine use them all. Whatever is chosen, the corpus is the same.
"""

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gristmill.formats.errors import GristmillError, MissingExtraError, SettingsError
from gristmill.pipelines.item_pool import ItemPool, usable_cores
from gristmill.pipelines.job import Job
from gristmill.pipelines.job_server import ANSWER_SECONDS, EMBEDDED, require_docker, require_job_server
from gristmill.pipelines.lock_record import update_holder

__all__ = [
    "AUTO",
    "check_runner",
    "check_servers",
    "choose_runner",
    "DASK",
    "DASK_FLAG",
    "Executor",
    "flag_value",
    "is_dask",
    "is_dataflow",
    "LOOP",
    "LOOP_BYTES",
    "RunnerChoice",
    "WORKER_BYTES",
]

LOOP = "loop"
"""Name of the plain loop among the runners."""

AUTO = "auto"
"""Name that leaves the choice to `choose_runner`."""

DASK = "DaskRunner"
"""Name of Beam's runner for a Dask cluster."""

DASK_FLAG = "--dask_"
"""How the options of that runner begin."""

LOOP_BYTES = 4 << 20
"""Below so much input, starting processes costs more than the work: `auto` does it all in its own."""

WORKER_BYTES = 1 << 30
"""Memory that a process may need; `auto` starts no more than the machine has room for."""

_PRELOAD = ("gristmill.pipelines.scan", "gristmill.pipelines.encode", "gristmill.tokenize.engine")
"""What the first items need, imported by the processes while the launcher reads the tokenizer."""

_OF_THIS_PROCESS = (LOOP, "FnApiRunner", "DirectRunner", "BundleBasedDirectRunner", "PrismRunner")
"""Runners whose workers end with the launching process; others where an option names a cluster."""

_SERVED = ("PortableRunner", "FlinkRunner", "SparkRunner", "PrismRunner")
"""Runners that hand a job to a server, which an option may name."""

_DOCKER = ("DOCKER", "beam:env:docker:v1")

_HANDING_OVER = ("DataflowRunner", "FlinkRunner", "SparkRunner", "PortableRunner", DASK)
"""Runners of jobs elsewhere that come back when the job is taken; another one's job may be at work before it does."""

_DASK_ELSEWHERE = ("dask_client_address", "dask_scheduler_file")

_USUAL = (AUTO, LOOP, "FnApiRunner", "DirectRunner")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerChoice:
    """How a run is executed.

    Attributes:
        runner: "loop", or the name of a Beam runner.
        flags: Beam's pipeline options.
        engine_threads: threads of the tokenizing engine in each process.
        workers: processes of the plain loop, or of a Dask cluster that is started for the run.
        says: the choice in words.
    """

    runner: str
    flags: tuple[str, ...]
    engine_threads: int
    workers: int = 1
    says: str


def check_runner(name: str, flags: Sequence[str], say: Callable[[str], object] = lambda _: None) -> None:
    """Refuses a runner or an option that Beam does not know, and a server or Docker that a job would miss.

    Beam is imported only where there is something to ask it.

    Args:
        name: "auto", "loop", or the name of a Beam runner.
        flags: Beam options given by the user.
        say: is told of a server that is waited for.

    Raises:
        SettingsError: there is no such runner or option, an option's value is wrong, no job server answers at the
            endpoint, or workers are to be in Docker and there is none.
        MissingExtraError: Beam is not installed.
    """
    if name == LOOP and flags:
        raise SettingsError(f"--runner loop takes no Beam options, but got {' '.join(flags)}")
    if not flags and name in _USUAL:
        return
    if importlib.util.find_spec("apache_beam") is None:
        raise MissingExtraError("apache-beam", "prepare", f"--runner {name}")
    from gristmill.pipelines.beam_runners import check_flags, check_name

    check_flags(flags)
    if name not in _USUAL:
        check_name(name, flags)
        check_servers(name, flags, say)


def check_servers(name: str, flags: Sequence[str], say: Callable[[str], object] = lambda _: None) -> None:
    """Refuses a run through a job server that does not answer, or with workers in Docker where there is none.

    Args:
        name: "auto", "loop", or the name of a Beam runner.
        flags: Beam options given by the user.
        say: is told of a server that is waited for.

    Raises:
        SettingsError: the server or Docker is missing.
    """
    runner, endpoint = name.rsplit(".", 1)[-1], flag_value(flags, "job_endpoint")
    if runner not in _SERVED or not endpoint:
        return
    if endpoint != EMBEDDED:
        patience = flag_value(flags, "job_server_timeout") or ""
        seconds = float(patience) if patience.isdecimal() else ANSWER_SECONDS
        require_job_server(runner, endpoint, seconds=min(seconds, ANSWER_SECONDS), say=say)
    elif (flag_value(flags, "environment_type") or _DOCKER[0]) in _DOCKER:
        require_docker(runner)


def choose_runner(
    name: str, flags: Sequence[str], input_bytes: int, splits: int, *, max_workers: int | None = None
) -> RunnerChoice:
    """Works out how to execute a run.

    Args:
        name: "auto", "loop", or the name of a Beam runner.
        flags: Beam options given by the user; with `auto` they choose FnApiRunner.
        input_bytes: bytes of all inputs.
        splits: number of splits; more workers than splits have nothing to do.
        max_workers: most processes of the plain loop or of a Dask cluster on this machine; None is one per core for
            `auto` and Dask, and 1 for `loop`.

    Raises:
        SettingsError: the number of workers is none, or is given to a runner that has no use for it, or options of
            Dask's are given to another runner.
    """
    if max_workers is not None and max_workers < 1:
        raise SettingsError(f"--max-workers {max_workers}: at least 1 is needed")
    if is_dask(name):
        return _dask(flags, splits, max_workers)
    stray = next((flag for flag in flags if flag.startswith(DASK_FLAG)), None)
    if stray is not None:
        raise SettingsError(f"{stray.split('=', 1)[0]}: is an option of --runner {DASK}, but the runner is {name}")
    if name == LOOP or (name == AUTO and not flags):
        return _loop(name, input_bytes, splits, max_workers)
    if max_workers is not None:
        raise SettingsError(
            f"--max-workers {max_workers}: is for the processes of --runner auto, loop or {DASK}; Beam's other runners "
            "have options of their own, such as --direct_num_workers or --max_num_workers"
        )
    if name not in {AUTO, "FnApiRunner"}:
        return RunnerChoice(runner=name, flags=tuple(flags), engine_threads=1, says=f"Beam's {name}")
    given = flag_value(flags, "direct_num_workers") or "1"
    if not given.isdecimal():
        raise SettingsError(f"--direct_num_workers={given}: it must be a number of workers, 0 for one per core")
    count = int(given) or usable_cores()
    mode = flag_value(flags, "direct_running_mode") or "in_memory"
    says = f"Beam's FnApiRunner, {count} worker{'s' if count > 1 else ''} ({mode})"
    return RunnerChoice(runner="FnApiRunner", flags=tuple(flags), engine_threads=1, says=says)


def _loop(name: str, input_bytes: int, splits: int, max_workers: int | None) -> RunnerChoice:
    cores = usable_cores()
    if max_workers is None:
        max_workers = _room() if name == AUTO and input_bytes >= LOOP_BYTES else 1
    workers = max(1, min(max_workers, splits))
    if workers == 1:
        return RunnerChoice(runner=LOOP, flags=(), engine_threads=cores, says=f"this process, {cores} engine threads")
    return RunnerChoice(runner=LOOP, flags=(), engine_threads=1, workers=workers, says=f"{workers} processes")


def _room() -> int:
    """How many processes the machine has cores and memory for."""
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // WORKER_BYTES
    return min(usable_cores(), max(1, room))


def is_dask(name: str) -> bool:
    """Whether a runner's name, short or full, is that of Beam's for Dask."""
    return name.rsplit(".", 1)[-1] == DASK


def is_dataflow(name: str) -> bool:
    """Whether a runner's name, in whatever form Beam takes it, is that of Beam's for Google Cloud Dataflow."""
    return name.rsplit(".", 1)[-1].lower() in {"dataflow", "dataflowrunner"}


def _dask(flags: Sequence[str], splits: int, max_workers: int | None) -> RunnerChoice:
    where = flag_value(flags, "dask_client_address") or flag_value(flags, "dask_scheduler_file")
    if where is not None:
        if max_workers is not None:
            raise SettingsError(
                f"--max-workers {max_workers}: is for a Dask cluster on this machine, but {where} names another; that "
                "has the workers that it was started with"
            )
        return RunnerChoice(runner=DASK, flags=tuple(flags), engine_threads=1, says=f"the Dask cluster of {where}")
    workers = max(1, min(max_workers or _room(), splits))
    says = f"a Dask cluster of {workers} process{'es' if workers > 1 else ''} on this machine"
    return RunnerChoice(runner=DASK, flags=tuple(flags), engine_threads=1, workers=workers, says=says)


def flag_value(flags: Sequence[str], option: str) -> str | None:
    """Value of a Beam option, written as one word or two; None when it is not given."""
    for place, flag in enumerate(flags):
        if flag.startswith(f"--{option}="):
            return flag.split("=", 1)[1]
        if flag == f"--{option}" and place + 1 < len(flags):
            return flags[place + 1]
    return None


class Executor:
    """What executes a run's stages; a context manager.

    The processes of a local run start when the block is entered, so that they import what they need while the launcher
    reads the tokenizer.
    """

    def __init__(self, choice: RunnerChoice) -> None:
        """Starts nothing yet."""
        self._choice = choice
        pooled = choice.runner == LOOP and choice.workers > 1
        self._pool = ItemPool(choice.workers, preload=_PRELOAD) if pooled else None

    def __enter__(self) -> Self:
        if self._pool is not None:
            self._pool.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.close()

    @property
    def says(self) -> str:
        """The choice in words."""
        return self._choice.says

    @property
    def waits(self) -> bool:
        """Whether the stages are done when `execute` returns."""
        return True

    @property
    def outlives(self) -> bool:
        """Whether the work goes on when the launching process ends."""
        runner, flags = self._choice.runner.rsplit(".", 1)[-1], self._choice.flags
        embedded = runner == "PortableRunner" and flag_value(flags, "job_endpoint") == EMBEDDED
        own = runner == "DaskRunner" and not any(flag_value(flags, name) for name in _DASK_ELSEWHERE)
        return runner not in _OF_THIS_PROCESS and not embedded and not own

    @property
    def tells(self) -> bool:
        """Whether `execute` tells by itself how far it is."""
        return False

    def execute(self, job: Job, stages: Sequence[str], *, write_manifest: bool, verbose: bool = False) -> None:
        """Executes stages as chosen; imports Beam only where it is needed.

        Args:
            job: the run.
            stages: names out of `STAGES`, in order.
            write_manifest: whether to finish the corpus behind them.
            verbose: whether Beam's own log is shown.

        Raises:
            MissingExtraError: Beam is needed and not installed.
            GristmillError: what an item raised.
        """
        choice = self._choice
        if choice.runner == LOOP:
            from gristmill.pipelines.loop import run_loop

            run_loop(job, stages, write_manifest=write_manifest, pool=self._pool)
            return
        if importlib.util.find_spec("apache_beam") is None:
            raise MissingExtraError("apache-beam", "prepare", f"--runner {choice.runner}")
        from gristmill.pipelines.beam_runners import run_beam

        taken = []

        def submitted() -> None:
            taken.append(True)
            self._note(job, outlives=self.outlives)

        if choice.runner.rsplit(".", 1)[-1] not in _HANDING_OVER:
            self._note(job, outlives=self.outlives)
        try:
            run_beam(
                job,
                stages,
                choice.runner,
                choice.flags,
                write_manifest=write_manifest,
                verbose=verbose,
                workers=choice.workers,
                submitted=submitted,
            )
        except Exception as error:
            if isinstance(error, GristmillError) or not taken:  # a worker's error, or the job was not taken
                self._note(job, outlives=False)
            raise
        self._note(job, outlives=False)

    def _note(self, job: Job, *, outlives: bool) -> None:
        """Has the record of the run say whether its workers would go on without this process."""
        if self.outlives:
            update_holder(job.corpus, job.run, outlives=outlives)
