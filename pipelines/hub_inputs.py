"""Resolves a dataset of the hub, once, into files, or shards of a stream, pinned by commit, size and digest."""

import posixpath
import re
from collections.abc import Callable, Sequence

from gristmill.formats.errors import SettingsError
from gristmill.formats.hub_table import HubDataset
from gristmill.pipelines.hub import HubEntry, hub_commit
from gristmill.pipelines.hub_layout import files_by_split, matching_files
from gristmill.pipelines.hub_repository import HubRepository
from gristmill.pipelines.hub_stream import may_be_streamed, open_stream, streamed_shards

__all__ = ["resolve_hub"]

_MAGIC_TAIL = re.compile(r"[^/]*[*?\[].*")
_SHOWN = 5
_PLAIN_COPY = 'set revision = "refs/convert/parquet" to read the Parquet copy that the hub keeps of most datasets'


def resolve_hub(
    hub: HubDataset, key: str, wanted: Callable[[str, bool], bool]
) -> tuple[list[tuple[str, HubEntry]], bool]:
    """URL and facts of each file or shard that a source reads, in the order of its patterns, files of one by path.

    Args:
        hub: the dataset.
        key: path of the source in the recipe, for messages.
        wanted: whether a file of that path is text for us, and whether a pattern named it.

    Returns:
        The list, and whether it is one of shards that the library `datasets` streams.

    Raises:
        MissingExtraError: the dataset must be streamed, and the library is not installed.
        SettingsError: no such dataset, revision, configuration, split or file; what there is is named.
        StorageError: the hub does not answer.
    """
    repository = HubRepository(hub.dataset, hub_commit(hub.dataset, hub.revision))
    found = None if hub.streaming else _plain_files(hub, repository, key, wanted)
    if found is None:
        return streamed_shards(open_stream(hub, repository, key), repository), True
    return [(repository.url(entry.path), entry) for entry in found], False


def _plain_files(
    hub: HubDataset, repository: HubRepository, key: str, wanted: Callable[[str, bool], bool]
) -> list[HubEntry] | None:
    """The files; None where no reader of ours knows one, and the library may."""
    patterns = repository.patterns(hub, key)
    if patterns.globs is None:
        return _by_names(hub, repository.below(patterns.folder), patterns.folder, key, wanted)
    matched = matching_files(patterns.globs, repository.below)
    known = any(wanted(entry.path, False) for entry, _ in matched)
    if not known and hub.streaming is None and any(may_be_streamed(entry.path) for entry, _ in matched):
        return None
    found = [entry for entry, explicit in matched if wanted(entry.path, explicit)]
    if not found:
        base = _MAGIC_TAIL.sub("", patterns.globs[0])
        listed = repository.below(base.strip("/")) or repository.below("")
        where = "data_files" if hub.data_files else "split"
        raise SettingsError(
            f"{key}.{where}: {hub.dataset} has no file to read at {', '.join(patterns.globs)}; {_seen(listed)}"
        )
    return found


def _by_names(
    hub: HubDataset, listed: Sequence[HubEntry], folder: str, key: str, wanted: Callable[[str, bool], bool]
) -> list[HubEntry] | None:
    entries = {posixpath.relpath(entry.path, folder or "."): entry for entry in listed if wanted(entry.path, False)}
    if not entries:
        scripts = [entry.path for entry in listed if "/" not in entry.path and entry.path.endswith(".py")]
        if not scripts and hub.streaming is None and any(may_be_streamed(entry.path) for entry in listed):
            return None
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
