"""`gristmill stages RECIPE --airflow`: reads the options of a DAG, checks them as the template would, prints the DAG.

The service checks a template's parameters when a task runs, which may be at night; here the same patterns are asked
first, and everything that is wrong is told at once.
"""

import argparse
import re
from collections.abc import Sequence
from typing import Any

from gristmill.dataflow.airflow_dag import DagPlan, airflow_dag
from gristmill.dataflow.flags import template_metadata
from gristmill.dataflow.rules import REGION
from gristmill.dataflow.template_environment import read_words, run_environment
from gristmill.dataflow.workers import label_value
from gristmill.formats.errors import SettingsError
from gristmill.formats.recipe import read_recipe
from gristmill.pipelines.stage_graph import stage_jobs
from gristmill.pipelines.stage_scripts import check_word

__all__ = ["run"]

_NEEDED = {
    "--project": "the Google Cloud project that pays",
    "--region": "where the workers run, for example us-central1",
    "--temp_location": "a folder for the jobs' own files, gs://BUCKET/FOLDER",
    "--template": "the Flex Template, gs://BUCKET/FOLDER/gristmill.json",
    "--sdk_container_image": "the image that the template was built from",
}
_OWN = ("--project", "--region", "--template", "--sdk_container_image", "--recipe_url")


def run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Prints the DAG; returns the exit code.

    Raises:
        SettingsError: recipe or options cannot be followed.
    """
    if arguments.exit_code:
        raise SettingsError("--exit-code: a schedule does not look at what is done")
    recipe = read_recipe(arguments.recipe, output=arguments.output)
    given = read_words(words, _OWN)
    last = dict(given)
    parameters = {
        "recipe": last.get("--recipe_url", arguments.recipe),
        "sdk_container_image": last.get("--sdk_container_image", ""),
        "force": "false",
    }
    if arguments.output is not None:
        parameters["output"] = arguments.output
    _refuse(_problems(last, parameters))
    labels = {"gristmill-corpus": label_value(recipe.name)}
    plan = DagPlan(
        corpus=recipe.name,
        jobs=stage_jobs(every_source=recipe.index is not None, grouped=arguments.by_group),
        project=last["--project"],
        region=last["--region"],
        template=last["--template"],
        parameters=parameters,
        environment=run_environment([entry for entry in given if entry[0] not in _OWN], labels),
    )
    print(airflow_dag(plan), end="")
    return 0


def _problems(given: dict[str, str], parameters: dict[str, str]) -> list[str]:
    """What is wrong with the options."""
    problems = [f"{name} is needed: {why}" for name, why in _NEEDED.items() if not given.get(name)]
    region, template = given.get("--region"), given.get("--template")
    if region and not REGION.fullmatch(region):
        problems.append(f"--region {region}: is no region's name, such as us-central1; a zone is no region")
    if template and not re.fullmatch(r"gs://.+\.json", template):
        problems.append(f"--template {template}: is no template's file, gs://BUCKET/FOLDER/NAME.json")
    problems += [
        f"{name} {given[name]}: the service needs a folder on gs://"
        for name in ("--temp_location", "--staging_location")
        if given.get(name) and not given[name].startswith("gs://")
    ]
    hints = {"recipe": "; copy the recipe to gs:// and name it with --recipe_url"}
    metadata: Any = template_metadata()
    for entry in metadata["parameters"]:
        name, value = entry["name"], parameters.get(entry["name"], "")
        if value and not all(re.fullmatch(pattern, value) for pattern in entry["regexes"]):
            rule = " ".join(entry["regexes"])
            problems.append(f"{name} {value}: the template takes only {rule}{hints.get(name, '')}")
    for name, value in (*given.items(), *parameters.items()):
        check_word(name, value)
    return problems


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise SettingsError(f"no DAG was written\n{lines}")
