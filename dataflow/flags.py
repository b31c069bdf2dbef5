"""The options of `gristmill launch` that are its own, once, for the command line and for the Flex Template.

Everything else on its command line is an option of Beam's, refused when Beam does not know it. One table for both means
that a template cannot offer what the launcher would refuse, and that its metadata is written, not kept by hand.
"""

import argparse
from dataclasses import dataclass

from gristmill.pipelines.lock_options import STALE_SECONDS
from gristmill.pipelines.stage_names import STAGES

__all__ = ["add_flags", "FLAGS", "LaunchFlag", "OWN_FLAGS", "template_metadata"]

_STAGE = f"^({'|'.join(STAGES)})$"
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
        pattern: regular expression of a template's value; empty where the option makes no sense in a template.
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
    LaunchFlag(name="--force", dest="force", says="do the stages again although they are finished"),
    LaunchFlag(
        name="--stale-after",
        dest="stale_after",
        metavar="SECONDS",
        says=f"silence after which another run on the output counts as gone (default: {STALE_SECONDS:g})",
    ),
    LaunchFlag(name="--dry-run", dest="dry_run", says="check, price and translate, but submit and write nothing"),
    LaunchFlag(name="--wait", dest="wait", says="stay until the job has ended; the exit code says how"),
    LaunchFlag(name="--verbose", dest="verbose", says="show Beam's own log too"),
)
"""The options, in the order of the help."""

OWN_FLAGS = (*(flag.name for flag in FLAGS), "--debug", "--log-format", "--help")
"""Their names, to suggest for a word that neither the launcher nor Beam knows."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the options; what the parser does not know goes to Beam."""
    for flag in FLAGS:
        if flag.metavar:
            default = {"first": STAGES[0], "stale_after": STALE_SECONDS}.get(flag.dest)
            parser.add_argument(flag.name, dest=flag.dest, metavar=flag.metavar, default=default, help=flag.says)
        else:
            parser.add_argument(flag.name, dest=flag.dest, action="store_true", help=flag.says)


def template_metadata() -> dict[str, object]:
    """The metadata of the Flex Template, as Google's `TemplateMetadata` has it."""
    parameters = [
        {
            "name": flag.name.removeprefix("--"),
            "label": flag.label,
            "helpText": f"{flag.says[0].upper()}{flag.says[1:]}.",
            "paramType": flag.kind,
            "isOptional": flag.optional,
            "regexes": [flag.pattern],
        }
        for flag in FLAGS
        if flag.pattern
    ]
    image = {
        "name": "sdk_container_image",
        "label": "Image of the workers",
        "helpText": "The image that the template itself was built from.",
        "paramType": "TEXT",
        "isOptional": False,
        "regexes": [r"^[a-z0-9.-]+(:[0-9]+)?/[A-Za-z0-9._/-]+(:[\w.-]+|@sha256:[0-9a-f]{64})$"],
    }
    return {
        "name": "Gristmill",
        "description": "Turns raw text into Megatron token shards, index arrays and a manifest, by a recipe.",
        "parameters": [*parameters, image],
    }
