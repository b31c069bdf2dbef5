"""The `gristmill prepare` command: options to a run; what does the work is loaded when the options are in order."""

import argparse
from typing import TYPE_CHECKING

from gristmill.formats.errors import MissingExtraError
from gristmill.pipelines.lock_options import add_lock_arguments, stale_after
from gristmill.pipelines.stage_names import STAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gristmill.formats.recipe import Recipe
    from gristmill.pipelines.lock_record import AskService
    from gristmill.pipelines.runners import Executor, RunnerChoice

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options; what it does not know goes to Beam."""
    parser.add_argument("recipe", help="path or URL of the recipe")
    parser.add_argument("--from", dest="first", metavar="STAGE", default=STAGES[0], help=f"one of {', '.join(STAGES)}")
    parser.add_argument("--to", dest="last", metavar="STAGE", help="last stage to run")
    parser.add_argument("--source", metavar="ID", help="work on one source only, up to its shards")
    parser.add_argument("--output", metavar="FOLDER", help="write there instead of the recipe's output")
    parser.add_argument(
        "--runner", default="auto", metavar="NAME", help="auto, loop, FnApiRunner, DirectRunner, or any other of Beam's"
    )
    parser.add_argument(
        "--max-workers",
        type=int,
        metavar="N",
        help="most processes of the runners auto (default: one per core) and loop (default: 1)",
    )
    parser.add_argument("--force", action="store_true", help="do the stages again although they are finished")
    add_lock_arguments(parser)
    parser.add_argument("--verbose", action="store_true", help="show Beam's own log too")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(
    arguments: argparse.Namespace,
    beam_flags: list[str],
    ask: "AskService | None" = None,
    on_dataflow: "Callable[..., tuple[Recipe, Callable[[RunnerChoice], Executor]]] | None" = None,
) -> int:
    """Prepares the corpus; returns the exit code.

    Args:
        arguments: as parsed.
        beam_flags: what goes to Beam.
        ask: asks the service of another run's job whether it goes on.
        on_dataflow: checks a run on Dataflow; gives its recipe and what makes its executor.

    Raises:
        MissingExtraError: a library that the extra `prepare` brings is not installed.
        GristmillError: whatever stops the run.
    """
    try:
        from gristmill.formats.recipe import read_recipe
        from gristmill.pipelines.runners import Executor, is_dataflow
        from gristmill.pipelines.workflow import PrepareOptions, prepare
    except ImportError as error:
        if error.name is None or error.name.startswith("gristmill"):
            raise
        raise MissingExtraError(error.name, "prepare", "gristmill prepare") from error
    if on_dataflow is not None and is_dataflow(arguments.runner):
        recipe, executor = on_dataflow(arguments, beam_flags)
    else:
        recipe, executor = read_recipe(arguments.recipe, output=arguments.output), Executor
    options = PrepareOptions(
        first=arguments.first,
        last=arguments.last,
        source=arguments.source,
        runner=arguments.runner,
        flags=tuple(beam_flags),
        max_workers=arguments.max_workers,
        quiet=arguments.quiet,
        verbose=arguments.verbose,
        force=arguments.force,
        stale_after=stale_after(arguments.stale_after),
        ask=ask,
        executor=executor,
    )
    prepare(recipe, options)
    return 0
