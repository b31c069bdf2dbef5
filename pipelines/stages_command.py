"""The `gristmill stages` command: how far the stages of a recipe are, and schedules of them for other programs.

A look reads listings, receipts and as much of the inputs as tells whether they changed, and writes nothing; the output
may be read-only. A schedule is text that follows from the recipe and the options alone.
"""

import argparse
import json

from gristmill.formats.errors import MissingExtraError, SettingsError
from gristmill.formats.recipe import read_recipe
from gristmill.pipelines.stage_graph import stage_jobs
from gristmill.pipelines.stage_scripts import makefile, shell_script

__all__ = ["add_arguments", "run"]

_UNFINISHED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("recipe", help="path or URL of the recipe")
    parser.add_argument("--output", metavar="FOLDER", help="look there instead of in the recipe's output")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print the same for machines")
    forms.add_argument("--makefile", action="store_true", help="print a Makefile with a target for each stage")
    forms.add_argument("--shell", action="store_true", help="print a shell script that runs stage after stage")
    forms.add_argument("--airflow", action="store_true", help="print an Airflow DAG of Dataflow Flex Template jobs")
    parser.add_argument(
        "--by-group",
        action="store_true",
        help="with a schedule: one job for shards, one for indices, not one per stage",
    )
    parser.add_argument(
        "--exit-code", action="store_true", help=f"exit with {_UNFINISHED} when a run would do something"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the stages, or a schedule of them; returns the exit code.

    Raises:
        SettingsError: recipe or options cannot be followed, or a run would refuse the output.
        DataError: the sample of an input cannot be read.
        StorageError: a file cannot be read.
        MissingExtraError: a library that the extra `prepare` brings is not installed.
    """
    recipe = read_recipe(arguments.recipe, output=arguments.output)
    schedule = arguments.makefile or arguments.shell
    if arguments.by_group and not schedule:
        raise SettingsError("--by-group: is for --makefile, --shell and --airflow")
    if schedule:
        if arguments.exit_code:
            raise SettingsError("--exit-code: a schedule does not look at what is done")
        jobs = stage_jobs(every_source=recipe.index is not None, grouped=arguments.by_group)
        write = makefile if arguments.makefile else shell_script
        print(write(arguments.recipe, jobs, output=arguments.output), end="")
        return 0
    try:
        from gristmill.pipelines.stage_report import state_lines, state_value
        from gristmill.pipelines.stage_state import run_state
        from gristmill.pipelines.workflow import PrepareOptions, draft_run
    except ImportError as error:
        if error.name is None or error.name.startswith("gristmill"):
            raise
        raise MissingExtraError(error.name, "prepare", "gristmill stages") from error
    state = run_state(draft_run(recipe, PrepareOptions(quiet=True), writes=False))
    if arguments.json:
        print(json.dumps(state_value(recipe, state), indent=2))
    else:
        print("\n".join(state_lines(recipe, state)))
    return _UNFINISHED if arguments.exit_code and not state.finished else 0
