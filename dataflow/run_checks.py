"""Refuses a run that Dataflow could not do, whichever command asks for it: all reasons at once, before a cost.

First what options and recipe say by themselves, looking nowhere; then credentials and buckets, each asked for no longer
than some seconds, so that a machine without a network is told so and does not wait for every library's own patience.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.dataflow.buckets import bucket_findings
from gristmill.dataflow.checks import option_problems, places_read, recipe_problems
from gristmill.dataflow.job_state import asks_dataflow
from gristmill.dataflow.permissions import credentials_finding, find_credentials, permission_findings
from gristmill.dataflow.submit import beam_problems, pipeline_options
from gristmill.formats.errors import GristmillError, SettingsError
from gristmill.formats.log import event
from gristmill.formats.recipe import Recipe, read_recipe
from gristmill.formats.storage import is_local
from gristmill.pipelines.beam_quiet import quiet
from gristmill.pipelines.beam_runners import check_flags
from gristmill.pipelines.lock_options import STALE_SECONDS, stale_after
from gristmill.pipelines.runners import flag_value
from gristmill.pipelines.workflow import PrepareOptions, check_options

__all__ = ["check_run", "CheckedRun", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRun:
    """A run that nothing speaks against so far.

    Attributes:
        recipe: the recipe.
        options: what narrows the run.
        given: all of Beam's options by name.
    """

    recipe: Recipe
    options: PrepareOptions
    given: dict[str, Any]


def check_run(
    path: str, arguments: argparse.Namespace, flags: Sequence[str], *, command: str, own: Sequence[str], submits: bool
) -> CheckedRun:
    """Checks a run, and tells what was found out about its buckets and permissions.

    Args:
        path: path or URL of the recipe.
        arguments: the command's own options, as parsed.
        flags: Beam's options.
        command: name of the command.
        own: names of its own options, to suggest them.
        submits: whether a job is to follow, for which there must be credentials.

    Raises:
        SettingsError: options, recipe, credentials or buckets cannot be followed; nothing was written.
        MissingExtraError: a library of Google's is not installed.
    """
    check_flags(flags, command=command, own=own)
    beam_options = pipeline_options(flags)
    given = beam_options.get_all_options()
    problems = option_problems({**given, "runner": flag_value(flags, "runner")})
    seconds = STALE_SECONDS
    try:
        seconds = stale_after(arguments.stale_after)
    except SettingsError as error:
        problems.append(str(error))
    if getattr(arguments, "max_workers", None) is not None:
        problems.append(f"--max-workers {arguments.max_workers}: is for processes here; Dataflow has --max_num_workers")
    options = PrepareOptions(
        first=arguments.first,
        last=arguments.last,
        source=arguments.source,
        runner="DataflowRunner",
        flags=tuple(flags),
        quiet=getattr(arguments, "quiet", False),
        verbose=arguments.verbose,
        force=arguments.force,
        stale_after=seconds,
        ask=asks_dataflow(flags),
    )
    if not is_local(path):
        refuse(problems)
        _look_around([], [path], given, submits=submits, tells=False)  # as reading it would wait longer for a store
    try:
        recipe = read_recipe(path, output=arguments.output)
        problems += recipe_problems(recipe)
        check_options(recipe, options)
    except GristmillError as error:
        if not problems:
            raise
        problems.append(str(error))
    refuse(problems)
    refuse(beam_problems(beam_options))
    places = [recipe.output, given["temp_location"], given["staging_location"] or given["temp_location"]]
    _look_around(places, places_read(recipe), given, submits=submits)
    return CheckedRun(recipe=recipe, options=options, given=given)


def _look_around(
    writes: Sequence[str], reads: Sequence[str], given: dict[str, Any], *, submits: bool, tells: bool = True
) -> None:
    """Asks Google about credentials, buckets and permissions, and tells what it says."""
    project, region, account = (given[name] for name in ("project", "region", "service_account_email"))
    with quiet():
        credentials, lacks = find_credentials()
        found = [credentials_finding(lacks, submits=submits)] if lacks else []
        if credentials is not None or not submits:
            found += bucket_findings(writes, reads, credentials=credentials, project=project, region=region)
        problems = [finding.message for finding in found if finding.level == "problem"]
        if credentials is not None and tells and not problems:
            found += permission_findings(credentials, project=project, service_account=account)
    for finding in found:
        if tells and finding.level != "problem":
            event("finding", f"{finding.level}: {finding.message}")
    refuse(problems)


def refuse(problems: Sequence[str]) -> None:
    """Stops the launch where there is a reason to, with all of the reasons.

    Raises:
        SettingsError: there is one.
    """
    if len(problems) == 1 and "\n" not in problems[0]:
        raise SettingsError(f"not launched: {problems[0]}")
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise SettingsError(f"not launched, for {len(problems)} reasons\n{lines}")
