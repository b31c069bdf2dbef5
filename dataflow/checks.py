"""What can be checked of options and recipe before a job costs anything, and with no network.

It finds what the service would refuse after minutes, or what would fail on every worker alike: places that no worker
reaches, and what lies in another region than the workers though the service wants it there.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from gristmill.dataflow.rules import IMAGE, JOB_NAME, LABEL, LABEL_RULE, PROJECT, REGION
from gristmill.formats.clean_settings import PinnedFile
from gristmill.formats.recipe import Recipe
from gristmill.formats.storage import is_local

__all__ = ["option_problems", "places_read", "recipe_problems"]

_ACCOUNT = re.compile(r"[a-z0-9-]+@[a-z0-9.-]+\.gserviceaccount\.com")
_SUBNETWORK = re.compile(
    r"(?:https://www\.googleapis\.com/compute/v1/)?(?:projects/[^/]+/)?regions/([^/]+)/subnetworks/[^/]+"
)
_KEY = re.compile(r"projects/[^/]+/locations/([^/]+)/keyRings/[^/]+/cryptoKeys/[^/]+")
_IMAGES = ("sdk_container_image", "worker_harness_container_image")
_CODE = (*_IMAGES, "extra_packages", "setup_file", "requirements_file")
_COUNTS = {"num_workers": 1, "max_num_workers": 1, "disk_size_gb": 0, "number_of_worker_harness_threads": 0}
"""Options and the least that they may say; 0 leaves a choice to the service."""
_FORMS = (
    ("project", PROJECT, "is no project's id, such as my-project; its number or title will not do"),
    ("region", REGION, "is no region's name, such as us-central1; a zone is no region"),
    ("job_name", JOB_NAME, "is no job's name: lower case letters, digits and -, a letter first and no - last"),
    *((name, IMAGE, "is no image's address with its tag or digest, HOST/PATH:TAG") for name in _IMAGES),
    ("service_account_email", _ACCOUNT, "is no service account, NAME@PROJECT.iam.gserviceaccount.com"),
)
"""Option, form of its value, and the rule in words."""


def places_read(recipe: Recipe) -> list[str]:
    """Paths and URLs of what workers read for a recipe: inputs, word lists and the like."""
    lists = (file.path for source in recipe.sources for file in _pinned_files(source.clean))
    return [*(path for source in recipe.sources for path in source.files), *lists]


def option_problems(options: dict[str, Any]) -> list[str]:
    """What is wrong with Beam's options for a job; looks nowhere.

    Args:
        options: all of Beam's options by name.
    """
    problems = []
    if options.get("runner") not in {None, "DataflowRunner"}:
        problems.append(
            f"--runner {options['runner']}: `gristmill launch` submits to Dataflow; use `gristmill prepare`"
        )
    problems += [
        f"--{name} is needed: {why}"
        for name, why in (
            ("project", "the Google Cloud project that pays"),
            ("region", "where the workers run, for example us-central1"),
            ("temp_location", "a folder for the job's own files, gs://BUCKET/FOLDER"),
        )
        if not options.get(name)
    ]
    problems += [
        f"--{name} {value}: {rule}"
        for name, form, rule in _FORMS
        for value in (options.get(name),)
        if value and not form.fullmatch(value)
    ]
    problems += _counts(options)
    problems += [f"--labels {label}: {LABEL_RULE}" for label in _labels(options) if not LABEL.fullmatch(label)]
    for name in ("temp_location", "staging_location"):
        value = options.get(name)
        if value and not value.startswith("gs://"):
            problems.append(f"--{name} {value}: the service needs a folder on gs://")
    if not any(options.get(name) for name in _CODE):
        problems.append(
            "--sdk_container_image is needed: the image with Gristmill that workers start from, "
            "see docs/guide/dataflow.md"
        )
    region = options.get("region")
    if region and REGION.fullmatch(region):
        problems += _elsewhere(options, region)
    return problems


def _counts(options: dict[str, Any]) -> Iterator[str]:
    """What is wrong with numbers of workers and the like."""
    for name, least in _COUNTS.items():
        value = options.get(name)
        if value is not None and value < least:
            yield f"--{name} {value}: at least {least} is needed; leave it out to have it chosen"
    first, most = options.get("num_workers"), options.get("max_num_workers")
    if first and most and 1 <= most < first:
        yield f"--num_workers {first}: more than --max_num_workers {most} lets be started"


def _labels(options: dict[str, Any]) -> Iterator[str]:
    """Labels as KEY=VALUE, those too that a template's launcher is given as one dictionary."""
    for label in options.get("labels") or ():
        try:
            table = ast.literal_eval(label) if "{" in label else None
            yield from [label] if table is None else [f"{key}={value}" for key, value in table.items()]
        except (AttributeError, SyntaxError, ValueError):
            yield label


def _elsewhere(options: dict[str, Any], region: str) -> Iterator[str]:
    """What must lie in the workers' region and does not, or is not named in the form that the service reads."""
    for name, form, says in (
        ("subnetwork", _SUBNETWORK, "regions/REGION/subnetworks/NAME"),
        ("dataflow_kms_key", _KEY, "projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY"),
    ):
        value = options.get(name)
        if not value:
            continue
        match = form.fullmatch(value)
        if match is None:
            yield f"--{name} {value}: must be written {says}"
        elif match[1] != region:
            yield f"--{name} {value}: lies in {match[1]}, but the workers in {region}, where the service needs it"
    zone = options.get("worker_zone")
    if zone and not zone.startswith(f"{region}-"):
        yield f"--worker_zone {zone}: lies outside --region {region}"


def recipe_problems(recipe: Recipe) -> list[str]:
    """What workers could not reach of what a recipe names; looks nowhere."""
    problems = []
    if not recipe.output.startswith("gs://"):
        problems.append(f"output {recipe.output}: workers need a folder on gs://; give one with --output")
    for number, source in enumerate(recipe.sources):
        problems += [
            f"sources[{number}].files {path}: lies on this machine, where no worker can read it; copy it to gs://"
            for path in source.files
            if is_local(path)
        ]
        problems += [
            f"sources[{number}].clean {file.path}: lies on this machine, where no worker can read it; copy it to gs://"
            for file in _pinned_files(source.clean)
            if is_local(file.path)
        ]
    return problems


def _pinned_files(value: Any) -> Iterator[PinnedFile]:
    """The files that settings name, however deep."""
    if isinstance(value, PinnedFile):
        yield value
    elif is_dataclass(value):
        for entry in fields(value):
            yield from _pinned_files(getattr(value, entry.name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _pinned_files(item)
