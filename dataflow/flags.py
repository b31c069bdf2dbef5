"""The options of `gristmill launch` that are its own, once, for the command line and for the Flex Template.

Everything else on its command line is an option of Beam's, refused when Beam does not know it. One table for both means
that a template cannot offer what the launcher would refuse, and that its metadata is written, not kept by hand.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.dataflow.rules import IMAGE
from gristmill.formats.errors import SettingsError
from gristmill.pipelines.lock_options import STALE_SECONDS
from gristmill.pipelines.stage_names import STAGES

__all__ = ["add_flags", "FLAGS", "LaunchFlag", "OWN_FLAGS", "plain_words", "template_metadata", "template_name"]

_STAGE = f"^({'|'.join(STAGES)})$"
_LEAST = "1[2-9][0-9]|[2-9][0-9]{2}"  # from 120, which is `LEAST_STALE_SECONDS`, to 999
_GCS = r"^gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/.+)?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFlag:
    """One option.

    Attributes:
        name: with its two dashes.
        dest: attribute of the parsed arguments.
        metavar: what help calls its value; empty for a switch.
        label: what the console calls it.
        says: what it is for.
        pattern: regular expression of a template's value; every option has one, but those with `launcher_only`.
        launcher_only: why a template does not offer it.
        kind: Google's type of the parameter.
        optional: whether a template may be run without it.
    """

    name: str
    dest: str
    metavar: str = ""
    label: str = ""
    says: str
    pattern: str = ""
    kind: str = "TEXT"
    optional: bool = True
    launcher_only: str = ""


FLAGS = (
    LaunchFlag(
        name="--recipe",
        dest="recipe_option",
        metavar="PATH",
        label="Recipe",
        says="path or URL of the recipe, instead of the first word",
        pattern=r"^gs://.+\.toml$",
        kind="GCS_READ_FILE",
        optional=False,
    ),
    LaunchFlag(
        name="--output",
        dest="output",
        metavar="URL",
        label="Output folder",
        says="write there instead of the recipe's output",
        pattern=_GCS,
        kind="GCS_WRITE_FOLDER",
    ),
    LaunchFlag(
        name="--from",
        dest="first",
        metavar="STAGE",
        label="First stage",
        says=f"first stage to run, one of {', '.join(STAGES)}; the ones before must be done",
        pattern=_STAGE,
    ),
    LaunchFlag(
        name="--to",
        dest="last",
        metavar="STAGE",
        label="Last stage",
        says="last stage to run",
        pattern=_STAGE,
    ),
    LaunchFlag(
        name="--source",
        dest="source",
        metavar="ID",
        label="Source",
        says="work on one source only, up to its shards",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
    ),
    LaunchFlag(
        name="--force",
        dest="force",
        label="Force",
        says="do the stages again although they are finished",
        pattern="^(true|false)$",
    ),
    LaunchFlag(
        name="--stale-after",
        dest="stale_after",
        metavar="SECONDS",
        label="Stale after",
        says=f"silence after which another run on the output counts as gone (default: {STALE_SECONDS:g})",
        pattern=f"^({_LEAST}|[1-9][0-9]{{3,8}})$",
    ),
    LaunchFlag(
        name="--dry-run",
        dest="dry_run",
        says="check, price and translate, but submit and write nothing",
        launcher_only="a template is launched for a job, and without one the service calls it failed",
    ),
    LaunchFlag(
        name="--wait",
        dest="wait",
        says="stay until the job has ended; the exit code says how",
        launcher_only="the job begins when the template's launcher has ended",
    ),
    LaunchFlag(
        name="--verbose",
        dest="verbose",
        says="show Beam's own log too",
        launcher_only="nobody watches a template's launcher; its log is kept by the service",
    ),
)
"""The options, in the order of the help."""

OWN_FLAGS = (*(flag.name for flag in FLAGS), "--debug", "--log-format", "--help")
"""Their names, to suggest for a word that neither the launcher nor Beam knows."""


_NAMES = frozenset(flag.name for flag in FLAGS)
_SWITCHES = frozenset(flag.name for flag in FLAGS if not flag.metavar)
_VALUES = {"true": True, "false": False}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the options; what the parser does not know goes to Beam."""
    for flag in FLAGS:
        if flag.metavar:
            default = {"first": STAGES[0], "stale_after": STALE_SECONDS}.get(flag.dest)
            parser.add_argument(flag.name, dest=flag.dest, metavar=flag.metavar, default=default, help=flag.says)
        else:
            parser.add_argument(flag.name, dest=flag.dest, action="store_true", help=flag.says)


def plain_words(words: Sequence[str]) -> list[str]:
    """The words of a command line with every switch as the parser has it.

    A template gives a switch a value, ``--force=true``, and has no dashes within names; Beam calls ``--dry_run=True``
    what is `--dry-run` here.

    Raises:
        SettingsError: a switch has another value than true or false.
    """
    found: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        switch = name.replace("_", "-")
        if switch not in _SWITCHES:
            found.append(switch + equals + value if switch in _NAMES else word)
            continue
        if not equals and left and left[0].lower() in _VALUES:
            value = left.pop(0)
        on = _VALUES.get(value.lower(), None if equals else True)
        if on is None:
            raise SettingsError(f"{word}: {switch} is true or false; give it without a value, or leave it out")
        found += [switch] if on else []
    return found


def template_name(flag: LaunchFlag) -> str:
    """Name of the template's parameter for an option: that of the option as `plain_words` takes it, for Jinja too."""
    return flag.name.removeprefix("--").replace("-", "_")


def template_metadata() -> dict[str, object]:
    """The metadata of the Flex Template, as Google's `TemplateMetadata` has it."""
    parameters = [
        {
            "name": template_name(flag),
            "label": flag.label,
            "helpText": f"{flag.says[0].upper()}{flag.says[1:]}.",
            "paramType": flag.kind,
            "isOptional": flag.optional,
            "regexes": [flag.pattern],
        }
        for flag in FLAGS
        if not flag.launcher_only
    ]
    image = {
        "name": "sdk_container_image",
        "label": "Image of the workers",
        "helpText": "The image that the template itself was built from.",
        "paramType": "TEXT",
        "isOptional": False,
        "regexes": [f"^{IMAGE.pattern}$"],
    }
    return {
        "name": "Gristmill",
        "description": "Turns raw text into Megatron token shards, index arrays and a manifest, by a recipe.",
        "parameters": [*parameters, image],
    }
