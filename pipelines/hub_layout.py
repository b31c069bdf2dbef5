"""Which files of a dataset's repository belong to a configuration and a split.

The rule is that of the `datasets` library, in this order: what `configs:` in the head of the README says; else files
named ``SPLIT-00000-of-00010.parquet`` in the root or in ``data``; else files below folders that are named by a split;
else files whose own names hold one; else all files are ``train``. Without `configs:`, a configuration is the folder of
its name, as in the hub's own Parquet copies.
"""

import fnmatch
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from gristmill.formats.errors import SettingsError
from gristmill.formats.hub_table import HubDataset
from gristmill.pipelines.hub import HubEntry

__all__ = ["card_head", "chosen_patterns", "files_by_split", "matching_files", "Patterns"]

_HEAD = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_SHARD = re.compile(r"(?:data/)?(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*")
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_PLACES = frozenset({"config_name", "data_dir", "data_files", "default"})
_MAGIC = re.compile(r"[*?\[]")
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Patterns:
    """Where a split's files are.

    Attributes:
        globs: paths, folders or globs inside the repository; None where names decide.
        folder: below which folder names decide; empty for the root.
        config: name of the configuration, where the README has one.
        settings: what else the README says of it, for the library's own readers.
    """

    globs: tuple[str, ...] | None
    folder: str = ""
    config: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def card_head(readme: str) -> dict[str, Any]:
    """What the head of a README holds; one that cannot be read holds nothing."""
    match = _HEAD.match(readme)
    if match is None:
        return {}
    try:
        head = yaml.safe_load(match[1])
    except yaml.YAMLError:
        return {}
    return head if isinstance(head, dict) else {}


def chosen_patterns(hub: HubDataset, head: Mapping[str, Any], key: str) -> Patterns:
    """What the README says of a dataset's files, or that it says nothing.

    Args:
        hub: the dataset; its `data_files` come before all else.
        head: head of its README, empty for none.
        key: path of the source in the recipe, for messages.

    Raises:
        SettingsError: there is no such configuration or split; those that there are are named.
    """
    if hub.data_files:
        return Patterns(hub.data_files)
    configs = _configs(head)
    if not configs:
        return Patterns(None, hub.config or "")
    name = hub.config or _default(configs, hub, key)
    if name not in configs:
        raise SettingsError(f'{key}.config: {hub.dataset} has no configuration "{name}"; it has {_listed(configs)}')
    entry = configs[name]
    folder = str(entry.get("data_dir") or "").strip("/")
    settings = {option: value for option, value in entry.items() if option not in _PLACES}
    given = entry.get("data_files")
    if given is None:
        return Patterns(None, folder, name, settings)
    splits = _splits(given)
    if hub.split not in splits:
        raise SettingsError(
            f'{key}.split: {hub.dataset}, configuration "{name}", has no split "{hub.split}"; it has {_listed(splits)}'
        )
    globs = tuple(posixpath.normpath(posixpath.join(folder, pattern)) for pattern in splits[hub.split])
    return Patterns(globs, folder, name, settings)


def _listed(names: Any) -> str:
    every = sorted(map(str, names))
    return ", ".join(every[:_SHOWN]) + (f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else "")


def _configs(head: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of `configs:` by name."""
    entries = head.get("configs")
    if not isinstance(entries, list):
        return {}
    return {str(entry.get("config_name", "default")): entry for entry in entries if isinstance(entry, dict)}


def _default(configs: dict[str, dict[str, Any]], hub: HubDataset, key: str) -> str:
    flagged = [name for name, entry in configs.items() if entry.get("default") is True]
    if flagged:
        return flagged[0]
    if "default" in configs:
        return "default"
    if len(configs) == 1:
        return next(iter(configs))
    raise SettingsError(
        f"{key}.config: is missing; {hub.dataset} has {len(configs)} configurations and none is the default: "
        f"{_listed(configs)}"
    )


def _splits(given: Any) -> dict[str, list[str]]:
    """Patterns by split, from any of the forms of `data_files`."""
    if isinstance(given, dict):
        return {str(split): _strings(patterns) for split, patterns in given.items()}
    if isinstance(given, list) and any(isinstance(entry, dict) for entry in given):
        found: dict[str, list[str]] = {}
        for entry in given:
            if isinstance(entry, dict):
                found.setdefault(str(entry.get("split", "train")), []).extend(_strings(entry.get("path")))
        return found
    return {"train": _strings(given)}


def _strings(value: Any) -> list[str]:
    return [str(entry) for entry in (value if isinstance(value, list) else [value]) if entry]


def files_by_split(paths: Sequence[str]) -> dict[str, list[str]]:
    """Paths, relative to the folder that is looked at, by the split that their names tell; see the module."""
    found: dict[str, list[str]] = {}
    for path in paths:
        match = _SHARD.fullmatch(path)
        if match is not None:
            found.setdefault(match[1], []).append(path)
    if found:
        return found
    for part_of in (posixpath.dirname, posixpath.basename):
        for path in paths:
            split = _split_named(part_of(path))
            if split is not None:
                found.setdefault(split, []).append(path)
        if found:
            return found
    return {"train": list(paths)} if paths else {}


def _split_named(text: str) -> str | None:
    """The split whose word is a whole part of a path or name."""
    words = set(re.split(r"[/ ._\-\d]+", text.lower()))
    return next((split for split, names in _WORDS.items() if words.intersection(names)), None)


def matching_files(
    patterns: Sequence[str], list_below: Callable[[str], Sequence[HubEntry]]
) -> list[tuple[HubEntry, bool]]:
    """The files that paths, folders or globs name, in the order of the patterns, and whether a pattern named the file
    and not a folder above it.

    Args:
        patterns: ``*`` and ``?`` stand for parts of one name, ``**`` for any number of folders.
        list_below: gives the files below a folder of the repository.
    """
    found: dict[str, tuple[HubEntry, bool]] = {}
    for pattern in patterns:
        parts = pattern.strip("/").split("/")
        fixed = next((number for number, part in enumerate(parts) if _MAGIC.search(part)), len(parts) - 1)
        for entry in list_below("/".join(parts[:fixed])):
            own = entry.path.split("/")
            if _matches(own, parts):
                found.setdefault(entry.path, (entry, True))
            elif not _MAGIC.search(pattern) and own[: len(parts)] == parts:
                found.setdefault(entry.path, (entry, False))
    return list(found.values())


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path match those of a pattern."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
