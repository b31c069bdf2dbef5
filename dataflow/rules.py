"""The form that Google's services want of names and values, once for the launcher, the template and the Airflow DAG.

A service refuses a wrong value after minutes, each in words of its own; a pattern says it at once. A pattern knows the
form alone: whether there is such a project or image, only the service can tell.
"""

import re

__all__ = ["IMAGE", "JOB_NAME", "LABEL", "LABEL_RULE", "PROJECT", "REGION"]

REGION = re.compile(
    "(?:africa|asia|australia|europe|me|northamerica|southamerica|us)-(?:north|south)?(?:east|west|north|south|central)[0-9]+"
)
"""A region's name: a part of the world, a direction and a number."""

PROJECT = re.compile(r"[a-z][a-z0-9:.-]+[a-z0-9]")
"""A project's id, before it the domain that some have; neither its number nor its title."""

JOB_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,1022}[a-z0-9])?")
"""A job's name."""

IMAGE = re.compile(r"[a-z0-9.-]+(:[0-9]+)?/[A-Za-z0-9._/-]+(:[\w.-]+|@sha256:[0-9a-f]{64})")
"""The address of an image, with its tag or digest."""

LABEL = re.compile(r"([a-z][a-z0-9_-]{0,62})=([a-z0-9_-]{0,63})")
"""A label's key and value."""

LABEL_RULE = "is no KEY=VALUE of lower case letters, digits, _ and -"
"""The same in words."""
