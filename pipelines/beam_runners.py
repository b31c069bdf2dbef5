"""Starts a pipeline on a Beam runner and turns what comes back into our own errors.

Beam is imported here and in the shell, nowhere else. Its log says what only Beam's developers need, so it is kept to
errors unless asked for; options that no part of Beam knows are refused, where Beam itself would pass over them.
"""

import argparse
import contextlib
import difflib
import importlib.util
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gristmill.formats import errors
from gristmill.formats.errors import DataError, GristmillError, MissingExtraError, SettingsError
from gristmill.formats.log import event
from gristmill.pipelines.beam_quiet import quiet
from gristmill.pipelines.beam_watch import WorkerGoneError, watched_workers
from gristmill.pipelines.item_pool import usable_cores
from gristmill.pipelines.job import Job
from gristmill.pipelines.runners import DASK_FLAG, check_servers, is_dask

__all__ = ["check_flags", "check_name", "OWN_OPTIONS", "run_beam", "run_pipeline", "worker_error"]

OWN_OPTIONS = (
    *("--from", "--to", "--source", "--output", "--runner", "--max-workers"),
    *("--force", "--stale-after", "--verbose", "--quiet", "--debug", "--log-format", "--help"),
)
"""Options of `gristmill prepare` itself, to suggest for a word that neither it nor Beam knows."""

_RAISED = re.compile(r"^\s*gristmill\.[\w.]*\.(\w+Error): ", re.MULTILINE)
_OWN_CODE = re.compile(r'^\s*File ".*[/\\]gristmill[/\\]', re.MULTILINE)  # in a traceback
_REMOTE = ("DataflowRunner", "FlinkRunner", "SparkRunner")  # their log is how a user follows the job
_SERVED = {  # by runner that works through a server, what to do where there is none
    "FlinkRunner": "give --job_endpoint of a Flink job server that runs, or its jar by --flink_job_server_jar",
    "SparkRunner": "give --job_endpoint of a Spark job server that runs, or its jar by --spark_job_server_jar",
    "PrismRunner": "give Prism's program by --prism_location, or a running one by --job_endpoint",
    "PortableRunner": "--job_endpoint must name a job server that runs",
}
_NEAR = 0.7  # share of letters that two options have in common for one to be suggested
_CLOSED = "Channel closed prematurely"  # all that Beam says of a worker process that ended
_DRY = "--dry_run"  # which Beam has for its own tests, and no runner but Dataflow's heeds
_WORKER = "gristmill.pipelines.beam_worker"


def run_beam(
    job: Job,
    stages: Sequence[str],
    runner: Any,
    flags: Sequence[str],
    *,
    write_manifest: bool,
    verbose: bool = False,
    workers: int | None = None,
    submitted: Callable[[], None] = lambda: None,
) -> None:
    """Runs stages on a Beam runner and waits for the end.

    Args:
        job: the run.
        stages: names out of `STAGES`, in order.
        runner: a Beam runner or the name of one.
        flags: Beam's pipeline options as on a command line.
        write_manifest: whether to finish the corpus behind them.
        verbose: whether Beam's own log is shown.
        workers: processes of a Dask cluster that is started for the run; None is one per core.
        submitted: called when the runner has taken the job, before its end is waited for.

    Raises:
        SettingsError: Beam knows no such runner or option.
        GristmillError: what a worker raised.
        KeyboardInterrupt: the user stopped the run, wherever in Beam that was noticed.
    """
    with quiet(verbose=verbose or runner in _REMOTE):
        from gristmill.pipelines.beam_shell import build_pipeline

    def build(pipeline: Any) -> None:
        build_pipeline(pipeline, job, stages, write_manifest=write_manifest)

    run_pipeline(build, runner, flags, verbose=verbose, workers=workers, submitted=submitted)


def run_pipeline(
    build: Callable[[Any], None],
    runner: Any,
    flags: Sequence[str],
    *,
    verbose: bool = False,
    workers: int | None = None,
    submitted: Callable[[], None] = lambda: None,
) -> None:
    """Runs a pipeline on a Beam runner and waits for the end.

    Args:
        build: adds its steps to the pipeline that it is given.
        runner: a Beam runner or the name of one.
        flags: Beam's pipeline options as on a command line.
        verbose: whether Beam's own log is shown.
        workers: processes of a Dask cluster that is started for the run; None is one per core.
        submitted: called when the runner has taken the job, before its end is waited for.

    Raises:
        SettingsError: Beam knows no such runner or option.
        GristmillError: what a worker raised.
        KeyboardInterrupt: the user stopped the run, wherever in Beam that was noticed.
    """
    with quiet(verbose=verbose or runner in _REMOTE):
        import apache_beam as beam

        check_flags(flags)
        if isinstance(runner, str):
            check_servers(runner, flags, lambda text: event("note", text))
        options = _options(flags)
        chosen = _runner(runner, options, verbose=verbose, workers=workers) if isinstance(runner, str) else runner
        pipeline = beam.Pipeline(runner=chosen, options=options)
        build(pipeline)
        try:
            with watched_workers():
                result = _start(pipeline, runner)
                submitted()
                result.wait_until_finish()
        except Exception as error:  # whatever class a runner wraps a worker's error in
            if _interrupted(error):
                raise KeyboardInterrupt from error
            own = worker_error(error) or _dask_error(error)
            if own is None and _CLOSED in str(error):
                own = WorkerGoneError()
            if own is None and _short(runner) in _SERVED:
                own = _served_error(runner, error)
            if own is None:
                raise
            raise own from error


def _start(pipeline: Any, runner: Any) -> Any:
    """Starts a pipeline; where a runner finds no server to work through, Beam tells of its own insides.

    Raises:
        SettingsError: the server cannot be started or does not answer.
    """
    try:
        return pipeline.run()
    except Exception as error:  # whatever class it is of
        if _short(runner) not in _SERVED or _interrupted(error) or worker_error(error) is not None:
            raise
        said = " ".join(str(error).split()).rstrip(".")
        raise SettingsError(
            f"--runner {runner}: the job could not start: {said or type(error).__name__}; {_SERVED[_short(runner)]}"
        ) from error


def _short(runner: Any) -> str:
    """A runner's name without its module; empty for one that is given as an object."""
    return runner.rsplit(".", 1)[-1] if isinstance(runner, str) else ""


def _served_error(runner: str, error: BaseException) -> GristmillError | None:
    """What a job server says of a job that failed outside of our own code; None for what our code raised."""
    details = getattr(error, "details", None)  # of an error of gRPC
    text = str(details() if callable(details) else error)
    if isinstance(error, GristmillError) or _OWN_CODE.search(text):
        return None
    said = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), type(error).__name__)
    return DataError(
        f"--runner {runner}: the job failed: {said.rstrip('.')}; the logs of the job server and of its workers say "
        "more, --debug shows where. What is finished stays"
    )


def _dask_error(error: BaseException) -> GristmillError | None:
    """Dask's own errors in our words; None for those of others."""
    if not type(error).__module__.startswith("distributed."):
        return None
    from gristmill.pipelines.beam_dask import dask_error

    return dask_error(error)


def check_flags(flags: Sequence[str], *, command: str = "prepare", own: Sequence[str] = OWN_OPTIONS) -> None:
    """Refuses options that no option class of Beam declares, and words that belong to no option.

    Args:
        flags: what is left of a command line.
        command: whose command line it is.
        own: that command's own options, to suggest them.

    Raises:
        SettingsError: names the option and the nearest known one, or the value that an option cannot have.
    """
    with quiet():
        from apache_beam.options.pipeline_options import PipelineOptions

        if any(flag.startswith(DASK_FLAG) for flag in flags) and importlib.util.find_spec("distributed") is not None:
            import apache_beam.runners.dask.dask_runner  # noqa: F401 - declares its options

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    waiting = [PipelineOptions]
    while waiting:
        declaring = waiting.pop()
        waiting += declaring.__subclasses__()
        if "_add_argparse_args" in vars(declaring):
            declaring._add_argparse_args(parser)  # noqa: SLF001 - Beam offers no other list of its options
    known = sorted({name for action in parser._actions for name in action.option_strings} - {_DRY})  # noqa: SLF001 - as above
    for flag in flags:
        name = flag.split("=", 1)[0]
        if name.replace("-", "_") == _DRY.replace("-", "_"):
            raise SettingsError(f"{name}: only a launch can be tried dry; use `gristmill launch RECIPE … --dry-run`")
        if name.startswith("-") and name not in known:
            close = difflib.get_close_matches(name.lstrip("-"), _bare([*own, *known]), n=1, cutoff=_NEAR)
            hint = f"; did you mean --{close[0]}?" if close else ""
            raise SettingsError(f"{name}: neither gristmill {command} nor Beam knows this option{hint}")
    stray = _parsed(flags, lambda: parser.parse_known_args(list(flags))[1])
    if stray:
        raise SettingsError(f"{stray[0]}: belongs to no option; `gristmill {command}` takes one recipe")


def _bare(options: Sequence[str]) -> list[str]:
    """Options without the dashes, which all have and so say nothing of likeness."""
    return [option.removeprefix("--") for option in options if option.startswith("--")]


def check_name(name: str, flags: Sequence[str]) -> None:
    """Refuses the name of a runner that Beam cannot make.

    Raises:
        SettingsError: names the runner.
    """
    with quiet():
        _runner(name, _options(flags), verbose=False)


def _options(flags: Sequence[str]) -> Any:
    from apache_beam.options.pipeline_options import PipelineOptions

    options = PipelineOptions(list(flags))
    _parsed(flags, options.get_all_options)
    return options


def _parsed(flags: Sequence[str], parse: Callable[[], Any]) -> Any:
    """What `parse` gives; a parser of Python's would print its usage and end the process on a wrong value."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parse()
    except SystemExit as error:
        complaint = said.getvalue().strip().rsplit("error: ", 1)[-1]
        raise SettingsError(f"Beam's options {' '.join(flags)}: {complaint}") from error


def _runner(name: str, options: Any, *, verbose: bool, workers: int | None = None) -> Any:
    from apache_beam.options.pipeline_options import DirectOptions
    from apache_beam.runners import PipelineRunner, create_runner
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    if name == "DataflowRunner" and importlib.util.find_spec("apitools") is None:
        raise MissingExtraError("apache-beam[gcp]", "dataflow", f"--runner {name}")
    if is_dask(name):
        if importlib.util.find_spec("distributed") is None:
            raise MissingExtraError("dask[distributed]", "dask", f"--runner {name}")
        from gristmill.pipelines.beam_dask import GristmillDaskRunner

        return GristmillDaskRunner(workers or usable_cores(), verbose=verbose)
    direct = options.view_as(DirectOptions)
    if name == "FnApiRunner" and direct.direct_running_mode == "multi_processing" and not verbose:
        # The same worker that Beam would start, with its log kept to errors; it ends when this process does, and has no
        # word to say of a Ctrl-C, which a terminal sends to it too.
        direct.direct_running_mode = "in_memory"
        command = f"trap '' INT; exec {shlex.quote(sys.executable)} -m {_WORKER} {os.getpid()}"
        return FnApiRunner(default_environment=SubprocessSDKEnvironment.from_command_string(command))
    try:
        runner = create_runner(name)
    except (ValueError, ImportError, AttributeError, TypeError) as error:
        raise SettingsError(
            f"--runner {name}: Beam cannot make this runner: {str(error).rstrip('.')}; auto, loop, FnApiRunner, "
            "DirectRunner, PortableRunner, DaskRunner, FlinkRunner, SparkRunner and DataflowRunner are usual"
        ) from error
    if not isinstance(runner, PipelineRunner):
        raise SettingsError(f"--runner {name}: Beam cannot make this runner: it is a {type(runner).__name__} and none")
    return runner


def _interrupted(error: BaseException | None) -> bool:
    """Whether an error is what Beam makes of a KeyboardInterrupt that reached it inside a step."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def worker_error(error: BaseException) -> GristmillError | None:
    """The error of ours that a worker raised, out of what a runner made of it; None when it was none of ours.

    Runners hand on an exception of the same class with a note on the step, or the text of a traceback.
    """
    text = str(error)
    facts: Mapping[str, Any] = {}
    if isinstance(error, GristmillError):
        kind, message, facts = type(error), text, error.facts
    else:
        raised = list(_RAISED.finditer(text))
        if not raised:
            return None
        found = getattr(errors, raised[-1].group(1), DataError)
        kind = found if issubclass(found, GristmillError) else DataError
        message = text[raised[-1].end() :]
    own = kind.__new__(kind)
    Exception.__init__(own, message.split(" [while running", 1)[0].strip())
    return own.about(**facts)
