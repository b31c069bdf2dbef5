"""The keys of a source that name a dataset of the Hugging Face hub in place of files.

Only names are read here; which commit and which files they mean is asked of the hub when a run is planned.
"""

import re
from dataclasses import dataclass

from gristmill.formats.settings_table import SettingsTable

__all__ = ["HubDataset", "read_hub"]

_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
_KEYS = ("config", "split", "revision", "data_files", "streaming")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubDataset:
    """A dataset of the hub, or a part of it.

    Attributes:
        dataset: its id, "owner/name".
        config: name of one of its configurations; None takes the default one.
        split: name of the split; None where `data_files` says what is read.
        revision: branch, tag or commit; None takes the main branch.
        data_files: files, folders or globs inside the repository, in place of `config` and `split`.
        streaming: whether the library `datasets` reads it, shard by shard, in place of our own readers; None leaves it
            what has no file of a format that these read.
    """

    dataset: str
    config: str | None
    split: str | None
    revision: str | None
    data_files: tuple[str, ...]
    streaming: bool | None = None


def read_hub(table: SettingsTable) -> HubDataset | None:
    """Takes the keys of a dataset; None where the source names files, or nothing at all."""
    values: dict[str, str | None] = {
        name: table.take(name, str, None, rule=bool, says="a name") for name in ("config", "split", "revision")
    }
    data_files = table.strings("data_files")
    streaming = table.take("streaming", bool, None)
    dataset = table.take(
        "dataset",
        str,
        None,
        rule=lambda name: _ID.fullmatch(name) is not None,
        says='the id of a dataset, "owner/name"',
    )
    if dataset is None:
        for name in _KEYS:
            if table.has(name) and not table.has("dataset"):
                table.note(name, "says which part of a dataset is read, but there is no dataset")
        return None
    if table.has("files"):
        table.note("dataset", "names what is read, and so does files; give one of them")
    for name in ("config", "split"):
        if data_files and values[name] is not None:
            table.note(name, "says which files are read, and so does data_files; give one of them")
    if any(name.startswith("/") or ".." in name.split("/") for name in data_files):
        table.note("data_files", "must be paths inside the repository, without a leading slash or ..")
    if streaming and table.has("format"):
        table.note("format", "says how files are read, but with streaming = true `datasets` reads them; leave one out")
    split = None if data_files else values["split"] or "train"
    return HubDataset(
        dataset=dataset,
        config=values["config"],
        split=split,
        revision=values["revision"],
        data_files=data_files,
        streaming=streaming,
    )
