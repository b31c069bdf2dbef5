"""Options of a launch as the environment of a Flex Template's run: one table from Beam's names to Google's fields.

A template is run by a request, not by a command line, and the request has its own names for what Beam calls
`--max_num_workers` and its like. Only what the service takes beside a template's parameters is here; other words are
refused with the nearest that are known, since nobody would notice them otherwise.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.dataflow.rules import LABEL, LABEL_RULE
from gristmill.formats.errors import SettingsError

__all__ = ["ENVIRONMENT_FLAGS", "EnvironmentFlag", "read_words", "run_environment"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentFlag:
    """One option.

    Attributes:
        name: Beam's name, with its two dashes.
        field: name in Google's `FlexTemplateRuntimeEnvironment`.
        kind: "text", "number", "switch", "list" or "labels".
        value: what a switch stands for.
        prefix: what Google puts before Beam's word.
    """

    name: str
    field: str
    kind: str = "text"
    value: str = ""
    prefix: str = ""


ENVIRONMENT_FLAGS = (
    EnvironmentFlag(name="--temp_location", field="tempLocation"),
    EnvironmentFlag(name="--staging_location", field="stagingLocation"),
    EnvironmentFlag(name="--service_account_email", field="serviceAccountEmail"),
    EnvironmentFlag(name="--network", field="network"),
    EnvironmentFlag(name="--subnetwork", field="subnetwork"),
    EnvironmentFlag(name="--no_use_public_ips", field="ipConfiguration", kind="switch", value="WORKER_IP_PRIVATE"),
    EnvironmentFlag(name="--dataflow_kms_key", field="kmsKeyName"),
    EnvironmentFlag(name="--flexrs_goal", field="flexrsGoal", prefix="FLEXRS_"),
    EnvironmentFlag(name="--worker_region", field="workerRegion"),
    EnvironmentFlag(name="--worker_zone", field="workerZone"),
    EnvironmentFlag(name="--machine_type", field="machineType"),
    EnvironmentFlag(name="--worker_machine_type", field="machineType"),
    EnvironmentFlag(name="--launcher_machine_type", field="launcherMachineType"),
    EnvironmentFlag(name="--num_workers", field="numWorkers", kind="number"),
    EnvironmentFlag(name="--max_num_workers", field="maxWorkers", kind="number"),
    EnvironmentFlag(name="--disk_size_gb", field="diskSizeGb", kind="number"),
    EnvironmentFlag(name="--experiments", field="additionalExperiments", kind="list"),
    EnvironmentFlag(name="--dataflow_service_options", field="additionalExperiments", kind="list"),
    EnvironmentFlag(name="--labels", field="additionalUserLabels", kind="labels"),
)
"""The options, with Beam's names."""

_BY_NAME = {flag.name: flag for flag in ENVIRONMENT_FLAGS}
_JINJA = re.compile(r"\{[{%#]")


def read_words(words: Sequence[str], own: Sequence[str]) -> list[tuple[str, str]]:
    """Options and values out of words of a command line, as ``--name=value`` or as two words.

    Args:
        words: the words.
        own: further options that the command has, each with a value.

    Raises:
        SettingsError: an option is not known, or lacks its value.
    """
    found: list[tuple[str, str]] = []
    left = list(words)
    while left:
        name, equals, value = left.pop(0).partition("=")
        if name not in _BY_NAME and name not in own:
            close = difflib.get_close_matches(name, [*own, *_BY_NAME], n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SettingsError(f"{name}: is no option of the run of a Flex Template{hint}")
        if not equals and (name in own or _BY_NAME[name].kind != "switch"):
            if not left or left[0].startswith("--"):
                raise SettingsError(f"{name}: lacks its value")
            value = left.pop(0)
        found.append((name, value))
    return found


def run_environment(given: Sequence[tuple[str, str]], labels: dict[str, str]) -> dict[str, Any]:
    """The environment of a template's run, as the service's JSON has it.

    Args:
        given: Beam's options with their values.
        labels: labels beside the user's own, which go first.

    Raises:
        SettingsError: a value breaks a rule of the service, or is a template of Airflow's.
    """
    environment: dict[str, Any] = {}
    own: dict[str, str] = {}
    read: dict[str, Callable[[EnvironmentFlag, str], Any]] = {
        "text": lambda flag, value: flag.prefix + value,
        "number": _number,
        "switch": lambda flag, _: flag.value,
    }
    for name, value in given:
        flag = _BY_NAME[name]
        if _JINJA.search(value):
            raise SettingsError(f"{name} {value}: Airflow would read this as a template")
        if flag.kind == "list":
            environment.setdefault(flag.field, []).append(value)
        elif flag.kind == "labels":
            match = LABEL.fullmatch(value)
            if match is None:
                raise SettingsError(f"{name} {value}: {LABEL_RULE}")
            own[match[1]] = match[2]
        else:
            environment[flag.field] = read[flag.kind](flag, value)
    environment["additionalUserLabels"] = {**labels, **own}
    return dict(sorted(environment.items()))


def _number(flag: EnvironmentFlag, value: str) -> int:
    if not value.isdecimal():
        raise SettingsError(f"{flag.name} {value}: is no number")
    return int(value)
