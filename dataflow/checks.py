"""What can be checked of options and recipe before a job costs anything, and with no network.

It finds what the service would refuse after minutes, or what would fail on every worker alike: places that no worker
reaches, and what lies in another region than the workers though the service wants it there.
"""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from gristmill.formats.clean_settings import PinnedFile
from gristmill.formats.recipe import Recipe
from gristmill.formats.storage import is_local

__all__ = ["option_problems", "places_read", "recipe_problems", "REGION"]

REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
"""The form of a region's name."""

_ACCOUNT = re.compile(r"[a-z0-9-]+@[a-z0-9.-]+\.gserviceaccount\.com")
_SUBNETWORK = re.compile(
    r"(?:https://www\.googleapis\.com/compute/v1/)?(?:projects/[^/]+/)?regions/([^/]+)/subnetworks/[^/]+"
)
_KEY = re.compile(r"projects/[^/]+/locations/([^/]+)/keyRings/[^/]+/cryptoKeys/[^/]+")
_CODE = ("sdk_container_image", "worker_harness_container_image", "extra_packages", "setup_file", "requirements_file")


def places_read(recipe: Recipe) -> list[str]:
    """Paths and URLs of what workers read for a recipe: inputs, word lists and the like."""
    lists = (file.path for source in recipe.sources for file in _pinned_files(source.clean))
    return [*(path for source in recipe.sources for path in source.files), *lists]


def option_problems(options: dict[str, Any]) -> list[str]:
    """What is wrong with Beam's options for a launch; looks nowhere.

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
    region = options.get("region")
    if region and not REGION.fullmatch(region):
        problems.append(f"--region {region}: is no region's name, such as us-central1; a zone is no region")
    for name in ("temp_location", "staging_location"):
        value = options.get(name)
        if value and not value.startswith("gs://"):
            problems.append(f"--{name} {value}: the service needs a folder on gs://")
    if not any(options.get(name) for name in _CODE):
        problems.append(
            "--sdk_container_image is needed: the image with Gristmill that workers start from, "
            "see docs/guide/dataflow.md"
        )
    if region and REGION.fullmatch(region):
        problems += _elsewhere(options, region)
    account = options.get("service_account_email")
    if account and not _ACCOUNT.fullmatch(account):
        problems.append(
            f"--service_account_email {account}: is no service account, NAME@PROJECT.iam.gserviceaccount.com"
        )
    return problems


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
