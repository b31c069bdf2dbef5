"""What can be checked before a job costs anything: places, region, buckets and the image of the workers.

The first half needs no network and finds what would fail on every worker alike. The second asks the store about the
buckets with the user's own credentials; what those may not see is said and not guessed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from gristmill.formats.clean_settings import PinnedFile
from gristmill.formats.errors import MissingExtraError
from gristmill.formats.recipe import Recipe
from gristmill.formats.storage import is_local

__all__ = ["bucket_findings", "Finding", "option_problems", "recipe_problems", "REGION"]

REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
"""The form of a region's name."""

_PATIENCE_SECONDS = 15
_WANTED = ("storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list")
_CODE = ("sdk_container_image", "worker_harness_container_image", "extra_packages", "setup_file", "requirements_file")
_CONTINENTS = {"US": ("us-",), "EU": ("europe-",), "ASIA": ("asia-",)}


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about a place.

    Attributes:
        level: "fine", "note" where it could not be seen, "warning", or "problem".
        message: the finding, as a sentence.
    """

    level: str
    message: str


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
    return problems


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


def bucket_findings(urls: Sequence[str], *, project: str, region: str) -> list[Finding]:
    """Asks the store about the buckets of a run: whether they are there, where they lie, and what is allowed there.

    Args:
        urls: places on gs://; each bucket is asked about once.
        project: the project that pays for asking.
        region: where the workers run.

    Raises:
        MissingExtraError: the library that asks is not installed.
    """
    try:
        from google.api_core.exceptions import GoogleAPICallError, NotFound
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import storage
    except ImportError as error:
        raise MissingExtraError("google-cloud-storage", "dataflow", "gristmill launch") from error
    names = list(dict.fromkeys(url.removeprefix("gs://").split("/", 1)[0] for url in urls if url.startswith("gs://")))
    try:
        client = storage.Client(project=project)
    except (GoogleAuthError, OSError) as error:
        return [Finding("note", f"buckets were not looked at, for want of credentials: {_first_line(error)}")]
    found = []
    for name in names:
        try:
            bucket = client.get_bucket(name, timeout=_PATIENCE_SECONDS, retry=None)
        except NotFound:
            found.append(Finding("problem", f"gs://{name}: there is no such bucket; make it, or mend its name"))
            continue
        except (GoogleAPICallError, GoogleAuthError, OSError) as error:
            found.append(Finding("note", f"gs://{name}: cannot be looked at from here: {_first_line(error)}"))
            continue
        found.append(_place(name, str(bucket.location or ""), region))
        try:
            allowed = bucket.test_iam_permissions(list(_WANTED), timeout=_PATIENCE_SECONDS)
        except (GoogleAPICallError, GoogleAuthError, OSError):
            continue  # the store does not say
        lacking = sorted(set(_WANTED) - set(allowed))
        if lacking:
            found.append(Finding("warning", f"gs://{name}: you lack {', '.join(lacking)}, which a launch uses"))
    return found


def _place(name: str, location: str, region: str) -> Finding:
    """Whether a bucket lies where the workers run; bytes that cross regions cost money and time."""
    here = location.upper()
    near = here == region.upper() or region.startswith(_CONTINENTS.get(here, ("-",)))
    if near:
        return Finding("fine", f"gs://{name}: lies in {here}, near the workers in {region}")
    return Finding(
        "warning",
        f"gs://{name}: lies in {here or '?'}, the workers in {region}; traffic between regions is paid for",
    )


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


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
