"""Resolves a dataset of the hub, once, into a list of files pinned by commit, size and digest."""

import functools
import posixpath
import re
from collections.abc import Callable, Sequence

from gristmill.formats.errors import SettingsError
from gristmill.formats.hub_table import HubDataset
from gristmill.formats.storage import read_bytes
from gristmill.pipelines.hub import HubEntry, hub_commit, list_hub
from gristmill.pipelines.hub_file_system import hub_url
from gristmill.pipelines.hub_layout import chosen_patterns, files_by_split, matching_files

__all__ = ["resolve_hub"]

_MAGIC_TAIL = re.compile(r"[^/]*[*?\[].*")
_SHOWN = 5
_PLAIN_COPY = 'set revision = "refs/convert/parquet" to read the Parquet copy that the hub keeps of most datasets'


def resolve_hub(hub: HubDataset, key: str, wanted: Callable[[str, bool], bool]) -> list[tuple[str, HubEntry]]:
    """URL and facts of each file that a source reads, in the order of its patterns, files of one by path.

    Args:
        hub: the dataset.
        key: path of the source in the recipe, for messages.
        wanted: whether a file of that path is text for us, and whether a pattern named it.

    Raises:
        SettingsError: no such dataset, revision, configuration, split or file; what there is is named.
        StorageError: the hub does not answer.
    """
    commit = hub_commit(hub.dataset, hub.revision)
    list_below = functools.cache(functools.partial(list_hub, hub.dataset, commit))
    readme = ""
    if not hub.data_files:
        root = list_hub(hub.dataset, commit, recursive=False)
        entry = next((entry for entry in root if entry.path == "README.md"), None)
        if entry is not None:
            readme = read_bytes(hub_url(hub.dataset, commit, entry.path)).decode("utf-8", "replace")
    patterns = chosen_patterns(hub, readme, key)
    if patterns.globs is None:
        listed = list_below(patterns.folder)
        found = _by_names(hub, listed, patterns.folder, key, wanted)
    else:
        matched = matching_files(patterns.globs, list_below)
        found = [entry for entry, explicit in matched if wanted(entry.path, explicit)]
        if not found:
            base = _MAGIC_TAIL.sub("", patterns.globs[0])
            listed = list_below(base.strip("/")) or list_below("")
            where = "data_files" if hub.data_files else "split"
            raise SettingsError(
                f"{key}.{where}: {hub.dataset} has no file to read at {', '.join(patterns.globs)}; {_seen(listed)}"
            )
    return [(hub_url(hub.dataset, commit, entry.path), entry) for entry in found]


def _by_names(
    hub: HubDataset, listed: Sequence[HubEntry], folder: str, key: str, wanted: Callable[[str, bool], bool]
) -> list[HubEntry]:
    entries = {posixpath.relpath(entry.path, folder or "."): entry for entry in listed if wanted(entry.path, False)}
    if not entries:
        scripts = [entry.path for entry in listed if "/" not in entry.path and entry.path.endswith(".py")]
        why = f"only the script {scripts[0]}, which is not run, makes text of its files; " if scripts else ""
        where = f'configuration "{hub.config}": ' if hub.config else ""
        raise SettingsError(
            f"{key}.dataset: {hub.dataset}: {where}no file of a format that is read; {why}{_seen(listed)}; "
            f"{_PLAIN_COPY}, or name files with data_files and format"
        )
    splits = files_by_split(sorted(entries))
    if hub.split not in splits:
        raise SettingsError(
            f'{key}.split: the names of the files of {hub.dataset} tell no split "{hub.split}", but '
            f"{', '.join(sorted(splits))}; name one of these, or files with data_files"
        )
    return [entries[path] for path in splits[hub.split]]


def _seen(listed: Sequence[HubEntry]) -> str:
    names = [entry.path for entry in listed]
    if not names:
        return "there are no files"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"there are {', '.join(names[:_SHOWN])}{more}"
