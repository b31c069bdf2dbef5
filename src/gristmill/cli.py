"""The `gristmill` command: one word chooses the work, and only the room that does it is imported.

Errors made on purpose end as one sentence and an exit code, 2 for settings and 1 for data; everything else, and
everything under --debug, shows its traceback. This is where the log is set up, in the form that --log-format names.
"""

import argparse
import atexit
import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from gristmill import __version__
from gristmill.formats.errors import GristmillError, MissingExtraError, SettingsError
from gristmill.formats.log import LOG_FORMATS, LOG_VARIABLE, event, logging_as, logs_json, settle_log, tell_error

__all__ = ["entry", "main"]

_INTERRUPTED = 130  # what shells give a program that SIGINT ended


class _Parser(argparse.ArgumentParser):
    """Reports usage errors as settings errors, in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Raises where argparse would print the usage and exit."""
        raise SettingsError(f"{message}; see `{self.prog} --help`")


def _prepare(parser: _Parser, words: list[str]) -> int:
    from gristmill.pipelines import command

    command.add_arguments(parser)
    arguments, beam_flags = parser.parse_known_args(words)
    gc.freeze()  # the modules stay: looking through them again and again costs more than the garbage of a run
    return command.run(arguments, beam_flags, _ask_dataflow(beam_flags), _on_dataflow)


def _on_dataflow(arguments: argparse.Namespace, beam_flags: Sequence[str]) -> Any:
    """Checks a run for Dataflow, and gives what executes it; the room that does is loaded for such a run."""
    try:
        from gristmill.dataflow.prepare import checked_executor
    except ImportError as error:
        if error.name is None or error.name.startswith("gristmill"):
            raise
        raise MissingExtraError(error.name, "dataflow", "--runner DataflowRunner") from error
    return checked_executor(arguments, beam_flags)


def _ask_dataflow(beam_flags: list[str]) -> Any:
    """What asks Dataflow of another run's job; the room that can is loaded when there is one to ask about."""

    def ask(holder: Any) -> Any:
        try:
            from gristmill.dataflow.job_state import asks_dataflow
        except ImportError:
            return None
        return asks_dataflow(beam_flags)(holder)

    return ask


def _launch(parser: _Parser, words: list[str]) -> int:
    try:
        from gristmill.dataflow import flags, launch
    except ImportError as error:
        if error.name is None or error.name.startswith("gristmill"):
            raise
        raise MissingExtraError(error.name, "dataflow", "gristmill launch") from error
    launch.add_arguments(parser)
    arguments, beam_flags = parser.parse_known_args(flags.plain_words(words))
    return launch.run(arguments, beam_flags)


def _plan(parser: _Parser, words: list[str]) -> int:
    from gristmill.pipelines import outlook

    outlook.add_arguments(parser)
    return outlook.run(parser.parse_args(words))


def _stages(parser: _Parser, words: list[str]) -> int:
    from gristmill.pipelines import stages_command

    stages_command.add_arguments(parser)
    arguments, more = parser.parse_known_args(words)
    if arguments.airflow:
        from gristmill.dataflow import airflow_command

        return airflow_command.run(arguments, more)
    if more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    return stages_command.run(arguments)


def _clean_up(parser: _Parser, words: list[str]) -> int:
    from gristmill.pipelines import clean_up_command

    clean_up_command.add_arguments(parser)
    return clean_up_command.run(parser.parse_args(words), _ask_dataflow([]))


def _verify(parser: _Parser, words: list[str]) -> int:
    from gristmill.formats import verify_command

    verify_command.add_arguments(parser)
    return verify_command.run(parser.parse_args(words))


def _index(parser: _Parser, words: list[str]) -> int:
    from gristmill.formats import index_command
    from gristmill.pipelines.run_lock import working_on

    index_command.add_arguments(parser)
    return index_command.run(parser.parse_args(words), working_on)


def _blend(parser: _Parser, words: list[str]) -> int:
    from gristmill.pipelines import blend_command

    blend_command.add_arguments(parser)
    arguments, beam_flags = parser.parse_known_args(words)
    return blend_command.run(arguments, beam_flags)


def _merge(parser: _Parser, words: list[str]) -> int:
    from gristmill.formats import merge

    merge.add_arguments(parser)
    return merge.run(parser.parse_args(words))


def _export(parser: _Parser, words: list[str]) -> int:
    from gristmill.formats import export

    export.add_arguments(parser)
    return export.run(parser.parse_args(words))


def _inspect(parser: _Parser, words: list[str]) -> int:
    from gristmill.runtime import inspect

    inspect.add_arguments(parser)
    return inspect.run(parser.parse_args(words))


def _trace(parser: _Parser, words: list[str]) -> int:
    from gristmill.runtime import trace

    trace.add_arguments(parser)
    return trace.run(parser.parse_args(words))


_COMMANDS: dict[str, tuple[str, Callable[[_Parser, list[str]], int]]] = {
    "prepare": ("prepare a corpus from a recipe", _prepare),
    "launch": ("check and price a recipe's run, and submit it to Google Cloud Dataflow", _launch),
    "plan": ("show what a recipe will give, before anything is built", _plan),
    "stages": ("show which stages of a recipe are done, stale or missing, or write a schedule of them", _stages),
    "index": ("build one more order for a corpus, or indices of anyone's data", _index),
    "blend": ("build the indices of a blend of anyone's data", _blend),
    "merge": ("join many .bin/.idx pairs to one", _merge),
    "export": ("write a corpus or anyone's data as one pair, or as raw shards with a manifest", _export),
    "clean-up": ("remove what a corpus does not need any more", _clean_up),
    "verify": ("check every byte of a corpus or of anyone's data and list what is wrong", _verify),
    "inspect": ("show what a corpus, a shard or a prefix holds", _inspect),
    "trace": ("show which documents and records a training step or sample is made of", _trace),
}


def _run(words: list[str], started: list[tuple[str, float]]) -> int:
    """Runs a command; one whose start is logged goes to `started`, with the time."""
    summary = "\n".join(f"  {name:10}{says}" for name, (says, _) in _COMMANDS.items())
    parser = _Parser(
        prog="gristmill",
        description="Turns raw text into training batches.",
        epilog=f"commands:\n{summary}\n\n`gristmill COMMAND --help` shows a command's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gristmill {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error, anywhere on the line")
    parser.add_argument(
        "--log-format", choices=LOG_FORMATS, help="form of what is said on standard error, anywhere on the line"
    )
    parser.add_argument("command", choices=sorted(_COMMANDS), metavar="COMMAND", help="what to do; see below")
    arguments = parser.parse_args(words[:1])
    says, work = _COMMANDS[arguments.command]
    everywhere = f"--debug and --log-format {'|'.join(LOG_FORMATS)} may stand anywhere on the line"
    own = _Parser(prog=f"gristmill {arguments.command}", description=says, epilog=everywhere, allow_abbrev=False)
    if logs_json():
        started.append((arguments.command, time.monotonic()))
        event("start", f"gristmill {arguments.command}", command=arguments.command, version=__version__)
    return work(own, words[1:])


def _tell_end(command: str, began: float, code: int) -> None:
    """Logs that a command ended, behind all that it printed."""
    seconds = round(time.monotonic() - began, 3)
    settle_log()
    says = f"gristmill {command} ended after {seconds} s"
    event("end", says, command=command, exit_code=code, seconds=seconds)


def _log_format(words: Sequence[str]) -> tuple[str, list[str]]:
    """The form of the log that the words ask for, else the environment, and the other words.

    Raises:
        SettingsError: there is no such form.
    """
    chosen, rest = os.environ.get(LOG_VARIABLE) or LOG_FORMATS[0], []
    waiting = iter(words)
    for word in waiting:
        name, equals, value = word.partition("=")
        if name != "--log-format":
            rest.append(word)
            continue
        chosen = value if equals else next(waiting, "")
    if chosen not in LOG_FORMATS:
        raise SettingsError(
            f"--log-format {chosen or '(none)'}: there is no such form; the forms are {', '.join(LOG_FORMATS)}"
        )
    return chosen, rest


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        words: the arguments; None takes those of the process.

    Returns:
        The exit code: 0 when all is well, 2 for bad settings, 1 for bad data.
    """
    with contextlib.ExitStack() as log:
        return _main(list(sys.argv[1:] if words is None else words), log)


def _main(given: list[str], log: contextlib.ExitStack) -> int:
    """Sets up the log for as long as `log` stays open, and runs the command line; what started is told to end."""
    started: list[tuple[str, float]] = []
    code = 1
    try:
        code = _answered(given, log, started)
    except SystemExit as end:  # help
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        for command, began in started:
            _tell_end(command, began, code)
    return code


def _answered(given: list[str], log: contextlib.ExitStack, started: list[tuple[str, float]]) -> int:
    """Runs the command line and turns what it raises into a sentence and an exit code."""
    debug = "--debug" in given
    try:
        form, words = _log_format([word for word in given if word != "--debug"])
        log.enter_context(logging_as(form, quiet="--quiet" in words, traces=debug))
        return _run(words, started)
    except GristmillError as error:
        if debug and not logs_json():
            raise
        tell_error(error, trace=debug)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output, `head` for one, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        says = "interrupted; what is finished stays, and a rerun goes on from there"
        if logs_json():
            event("interrupted", says)
        else:
            print(f"gristmill: {says}", file=sys.stderr)
        return _INTERRUPTED
    except Exception as error:
        if not logs_json():
            raise
        tell_error(error, trace=True)
        return 1


def entry() -> NoReturn:
    """Runs the command as a program: `main`, then the end of the process with its exit code."""
    codes: list[int] = []
    log = contextlib.ExitStack()
    atexit.register(_end, codes, log)  # the first to be registered is the last to be called
    try:
        codes.append(_main(sys.argv[1:], log))
    except Exception:
        codes.append(1)
        raise
    if codes == [_INTERRUPTED] and not logs_json():  # threads of the run may still fail, and the sentence said it all
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(codes[0])


def _end(codes: Sequence[int], log: contextlib.ExitStack) -> None:
    """Ends the process while threads of a run that was stopped are inside a library.

    Python ends such a thread when it next asks for the lock, and where that is in a library written in Rust, the end of
    the thread is the abort of the process. A log of JSON lines ends here too, so that nothing is printed behind it.
    """
    machines = logs_json()
    log.close()
    if codes and (machines or threading.active_count() > 1):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(codes[0])
