"""Chooses what a run is executed by, and how much of the machine it uses.

`auto` means the machine at hand: the plain loop where the input is so small that importing Beam would cost more than
the work, else Beam's FnApiRunner by name. Beam's own default may pick a runner that it fetches from the internet.
Encoders release the interpreter lock, so threads share the cores; processes pay their start-up of some seconds back
only on larger inputs. A Beam worker uses one core, engine included, and `auto` takes as many workers as there are
cores; only the plain loop, which has no workers, lets the engine use them all. Whatever is chosen, the corpus is the
same.
"""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.formats.errors import MissingExtraError, SettingsError
from gristmill.pipelines.job import Job

__all__ = [
    "AUTO",
    "check_runner",
    "choose_runner",
    "execute",
    "LOOP",
    "LOOP_BYTES",
    "PROCESS_BYTES",
    "RunnerChoice",
]

LOOP = "loop"
"""Name of the plain loop among the runners."""

AUTO = "auto"
"""Name that leaves the choice to `choose_runner`."""

LOOP_BYTES = 4 << 20
"""Below so much input, importing Beam costs more than the work: `auto` takes the loop."""

PROCESS_BYTES = 1 << 30
"""From so much input on, `auto` takes processes, whose start-up is then small beside the work."""


_USUAL = (AUTO, LOOP, "FnApiRunner", "DirectRunner")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerChoice:
    """How a run is executed.

    Attributes:
        runner: "loop", or the name of a Beam runner.
        flags: Beam's pipeline options.
        engine_threads: threads of the tokenizing engine in each process.
        says: the choice in words.
    """

    runner: str
    flags: tuple[str, ...]
    engine_threads: int
    says: str


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def check_runner(name: str, flags: Sequence[str]) -> None:
    """Refuses a runner or an option that Beam does not know; imports Beam only where there is something to ask it.

    Args:
        name: "auto", "loop", or the name of a Beam runner.
        flags: Beam options given by the user.

    Raises:
        SettingsError: there is no such runner or option, or an option's value is wrong.
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


def choose_runner(name: str, flags: Sequence[str], input_bytes: int, splits: int) -> RunnerChoice:
    """Works out how to execute a run.

    Args:
        name: "auto", "loop", or the name of a Beam runner.
        flags: Beam options given by the user; they win over what is chosen here.
        input_bytes: bytes of all inputs.
        splits: number of splits; more workers than splits have nothing to do.

    Raises:
        SettingsError: the number of workers is none.
    """
    cores = _cores()
    if name == LOOP or (name == AUTO and not flags and input_bytes < LOOP_BYTES):
        return RunnerChoice(runner=LOOP, flags=(), engine_threads=cores, says=f"plain loop, {cores} engine threads")
    if name not in {AUTO, "FnApiRunner"}:
        return RunnerChoice(runner=name, flags=tuple(flags), engine_threads=1, says=f"Beam's {name}")
    chosen = list(flags)
    workers = max(1, min(cores, splits))
    chooses = all(_value(flags, option) is None for option in ("direct_num_workers", "direct_running_mode"))
    if name == AUTO and chooses and workers > 1:
        mode = "multi_processing" if input_bytes >= PROCESS_BYTES else "in_memory"
        chosen += [f"--direct_num_workers={workers}", f"--direct_running_mode={mode}"]
    given = _value(chosen, "direct_num_workers") or "1"
    if not given.isdecimal():
        raise SettingsError(f"--direct_num_workers={given}: it must be a number of workers, 0 for one per core")
    count = int(given) or cores
    mode = _value(chosen, "direct_running_mode") or "in_memory"
    says = f"Beam's FnApiRunner, {count} worker{'s' if count > 1 else ''} ({mode})"
    return RunnerChoice(runner="FnApiRunner", flags=tuple(chosen), engine_threads=1, says=says)


def _value(flags: Sequence[str], option: str) -> str | None:
    """Value of a Beam option, written as one word or two; None when it is not given."""
    for place, flag in enumerate(flags):
        if flag.startswith(f"--{option}="):
            return flag.split("=", 1)[1]
        if flag == f"--{option}" and place + 1 < len(flags):
            return flags[place + 1]
    return None


def execute(
    job: Job, stages: Sequence[str], choice: RunnerChoice, *, write_manifest: bool, verbose: bool = False
) -> None:
    """Executes stages as chosen; imports Beam only where it is needed."""
    if choice.runner == LOOP:
        from gristmill.pipelines.loop import run_loop

        run_loop(job, stages, write_manifest=write_manifest)
        return
    if importlib.util.find_spec("apache_beam") is None:
        raise MissingExtraError("apache-beam", "prepare", f"--runner {choice.runner}")
    from gristmill.pipelines.beam_runners import run_beam

    run_beam(job, stages, choice.runner, choice.flags, write_manifest=write_manifest, verbose=verbose)
