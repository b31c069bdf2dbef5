"""What `gristmill prepare --runner DataflowRunner` does beyond other runners: a launch that chooses no workers.

It is checked as a launch is, and waits for the end of its job as `prepare` does everywhere.
"""

import argparse
from collections.abc import Callable, Sequence

from gristmill.dataflow.run_checks import check_run
from gristmill.dataflow.submit import DataflowExecutor
from gristmill.formats.recipe import Recipe
from gristmill.pipelines.beam_runners import OWN_OPTIONS
from gristmill.pipelines.runners import Executor, RunnerChoice

__all__ = ["checked_executor"]


def checked_executor(
    arguments: argparse.Namespace, flags: Sequence[str]
) -> tuple[Recipe, Callable[[RunnerChoice], Executor]]:
    """Checks a run, and gives its recipe and what makes its executor.

    Args:
        arguments: of the command, as parsed.
        flags: Beam's options.

    Raises:
        SettingsError: options, recipe, credentials or buckets cannot be followed; nothing was written.
    """
    checked = check_run(arguments.recipe, arguments, flags, command="prepare", own=OWN_OPTIONS, submits=True)
    return checked.recipe, lambda choice: DataflowExecutor(choice.flags, {}, wait=True, answers=False)
