"""Datasets of the hub that are no plain files, as the library `datasets` streams them: which files, by which builder.

A dataset is resolved as any other, by the card and the names of its files, at one commit. What follows from that,
builder, settings and files, is the same in every process, so a worker needs the commit and the recipe alone. The
library opens the files through our own file system: it makes no request itself, keeps no cache, and runs no code of the
dataset. Builders that go other ways, or do not give the same records in the same order, are left out.
"""

import dataclasses
import functools
import importlib
import json
import os
import tempfile
import threading
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.formats.errors import GristmillError, InputError, MissingExtraError, SettingsError
from gristmill.formats.fingerprint import digest
from gristmill.formats.hub_table import HubDataset
from gristmill.formats.storage import base_name, open_read
from gristmill.pipelines.hub import HubEntry
from gristmill.pipelines.hub_file_system import HubFileSystem
from gristmill.pipelines.hub_layout import files_by_split, matching_files
from gristmill.pipelines.hub_repository import HubRepository

__all__ = ["may_be_streamed", "open_stream", "Stream", "streamed_shards"]

_CLASSES = {
    "arrow": "Arrow",
    "audiofolder": "AudioFolder",
    "csv": "Csv",
    "imagefolder": "ImageFolder",
    "json": "Json",
    "parquet": "Parquet",
    "pdffolder": "PdfFolder",
    "text": "Text",
    "videofolder": "VideoFolder",
    "webdataset": "WebDataset",
}
_FOLDERS = ("audiofolder", "imagefolder", "pdffolder", "videofolder")
_SUFFIXES: dict[str, tuple[str, dict[str, Any]]] = {
    ".parquet": ("parquet", {}),
    ".arrow": ("arrow", {}),
    ".jsonl": ("json", {}),
    ".json": ("json", {}),
    ".csv": ("csv", {}),
    ".ndjson": ("json", {}),
    ".tar": ("webdataset", {}),
    ".tsv": ("csv", {"sep": "\t"}),
    ".txt": ("text", {}),
}
_LEFT_OUT = frozenset({".conll", ".conllu", ".eval", ".h5", ".hdf5", ".lance", ".tsfile", ".vortex", ".xml"})
_FAVOURITES = (".csv", ".json", ".jsonl", ".arrow", ".parquet")  # the later, the sooner, of suffixes as frequent
_METADATA = frozenset({"metadata.csv", "metadata.jsonl", "metadata.parquet"})
_ARCHIVE = ".zip"
_LOOKED_INTO = 10
_OWN_SETTINGS = frozenset({"data_dir", "data_files", "description", "features", "name", "token", "version"})
_SHOWN = 5

_streams: dict[tuple[HubDataset, str, str], "Stream"] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A part of a dataset, as the library streams it.

    Attributes:
        builder: name of the builder that makes records of the files.
        settings: the builder's own, by name.
        files: the files, in the builder's order.
        split: name of the split.
        version: of the library.
        data: the library's `IterableDataset`, which reads nothing until it is iterated.
    """

    builder: str
    settings: Mapping[str, Any]
    files: tuple[HubEntry, ...]
    split: str
    version: str
    data: Any

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return int(self.data.num_shards)


def may_be_streamed(path: str) -> bool:
    """Whether a file's name lets the library make records of it."""
    return any(suffix in _SUFFIXES or suffix == _ARCHIVE for suffix in _suffixes(path))


def streamed_shards(stream: Stream, repository: HubRepository) -> list[tuple[str, HubEntry]]:
    """URL and facts of each shard, in order.

    A shard that is a file has its name and size; of others the size is an even share. The checksum covers all that the
    records follow from, the library's version among it. A URL ends with which shard of how many it is, and
    that version.
    """
    count = stream.shards
    by_file = stream.builder not in _FOLDERS and count == len(stream.files)
    size = sum(file.size for file in stream.files)
    found = []
    for number in range(count):
        files = (stream.files[0], stream.files[number]) if by_file else stream.files
        facts = {
            "datasets": stream.version,
            "builder": stream.builder,
            "settings": json.dumps(stream.settings, sort_keys=True, default=str),
            "files": [[file.path, file.checksum] for file in files],
            "shard": None if by_file else [number, count],
        }
        entry = HubEntry(
            path=files[-1].path if by_file else f"{stream.split}-{number:05d}-of-{count:05d}",
            size=files[-1].size if by_file else size * (number + 1) // count - size * number // count,
            checksum=f"stream:{digest(facts)}",
        )
        url = repository.url(entry.path if by_file else "")
        found.append((f"{url}#{number}-of-{count}-by-datasets-{stream.version}", entry))
    return found


def open_stream(hub: HubDataset, repository: HubRepository, key: str) -> Stream:
    """What a part of a dataset is as a stream; worked out once in a process.

    Args:
        hub: the dataset.
        repository: its repository at the commit.
        key: path of the source in the recipe, for messages.

    Raises:
        MissingExtraError: the library is not installed.
        SettingsError: there is no such split, or its files are of a kind that is not streamed.
        InputError: the library makes no records of the files.
        StorageError: the hub does not answer.
    """
    place = (hub, repository.commit, os.environ.get("HF_ENDPOINT", ""))
    with _lock:  # the library changes its own modules when it opens a dataset
        if place not in _streams:
            _streams[place] = _open(hub, repository, key)
        return _streams[place]


def _open(hub: HubDataset, repository: HubRepository, key: str) -> Stream:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "hub", f"{key}.dataset: to stream {hub.dataset}") from error
    patterns = repository.patterns(hub, key)
    if patterns.globs is None:
        files = _named(hub, repository.below(patterns.folder), patterns.folder, key)
    else:
        files = [entry for entry, _ in matching_files(patterns.globs, repository.below) if _visible(entry.path)]
    builder, settings = _builder_of(files, repository)
    if builder is None:
        raise SettingsError(
            f"{key}.dataset: {hub.dataset} cannot be streamed: its files are of no kind that `datasets` makes the same "
            f"records of each time, without code of others ({', '.join(sorted(_CLASSES))}); there are {_seen(files)}"
        )
    files = [file for file in files if _belongs(file.path, builder)]
    HubFileSystem.know({repository.url(file.path): file.size for file in files})
    kind = _class(builder)
    known = {entry.name for entry in dataclasses.fields(kind.BUILDER_CONFIG_CLASS)} - _OWN_SETTINGS
    settings |= {name: value for name, value in patterns.settings.items() if name in known}
    split = hub.split or "train"
    urls = [repository.url(file.path) for file in files]
    pinned = datasets.data_files.DataFilesList(urls, [(file.checksum,) for file in files])
    try:
        with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
            made = kind(
                cache_dir=folder,
                hash=repository.commit,
                data_files=datasets.data_files.DataFilesDict({split: pinned}),
                features=_features(repository, hub, patterns.config),
                token=False,
                **settings,
            )
            data = made.as_streaming_dataset(split=split)
        stream = Stream(
            builder=builder, settings=settings, files=tuple(files), split=split, version=datasets.__version__, data=data
        )
        shards = stream.shards
    except GristmillError:
        raise
    except Exception as error:  # whatever the builders of the library raise
        raise InputError(
            f"{repository.url('')}: `datasets` {datasets.__version__} makes no records of {_seen(files)} as {builder}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not shards:
        raise InputError(f"{repository.url('')}: no shards")
    return stream


def _named(hub: HubDataset, listed: Sequence[HubEntry], folder: str, key: str) -> list[HubEntry]:
    """The files of a split where names decide.

    Raises:
        SettingsError: there are none, or a script would have to make text of them.
    """
    script = f"{base_name(hub.dataset)}.py"
    if any(entry.path == script for entry in listed):
        raise SettingsError(
            f"{key}.dataset: {hub.dataset}: only the script {script}, which is not run, makes text of its files; name "
            "files with data_files"
        )
    kinds = {*_kinds(), *_LEFT_OUT, _ARCHIVE}
    suited = {
        entry.path[len(folder) :].lstrip("/"): entry
        for entry in listed
        if _visible(entry.path) and kinds.intersection(_suffixes(entry.path))
    }
    splits = files_by_split(sorted(suited))
    if hub.split not in splits:
        says = ", ".join(sorted(splits)) or "none"
        raise SettingsError(
            f'{key}.split: the names of the files of {hub.dataset} tell no split "{hub.split}", but {says}; name one '
            "of these, or files with data_files"
        )
    return [suited[path] for path in splits[hub.split]]


def _visible(path: str) -> bool:
    return not any(part.startswith((".", "__")) for part in path.split("/"))


def _suffixes(path: str) -> list[str]:
    return [f".{part.lower()}" for part in base_name(path).split(".")[1:]]


def _seen(files: Sequence[HubEntry]) -> str:
    names = [file.path for file in files]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN]) or 'none'}{more}"


def _class(builder: str) -> Any:
    return getattr(importlib.import_module(f"datasets.packaged_modules.{builder}.{builder}"), _CLASSES[builder])


@functools.cache
def _kinds() -> dict[str, tuple[str, dict[str, Any]]]:
    """Builder and its settings by suffix."""
    found = dict(_SUFFIXES)
    for builder in _FOLDERS:
        for suffix in _class(builder).EXTENSIONS:
            found.setdefault(suffix, (builder, {}))
    return found


def _builder_of(files: Sequence[HubEntry], repository: HubRepository) -> tuple[str | None, dict[str, Any]]:
    """The builder of files and its settings, by the most frequent suffix, as the library chooses; None for none."""
    counted = Counter((suffix, base_name(file.path) in _METADATA) for file in files for suffix in _suffixes(file.path))
    for suffix in _by_frequency(counted):
        if suffix in _LEFT_OUT:
            break
        if suffix in _kinds():
            builder, settings = _kinds()[suffix]
            return builder, dict(settings)
        if suffix == _ARCHIVE:
            return _builder_inside(files, repository)
    return None, {}


def _builder_inside(files: Sequence[HubEntry], repository: HubRepository) -> tuple[str | None, dict[str, Any]]:
    """The same by what lies in the first archives.

    Raises:
        InputError: one is no ZIP archive.
    """
    counted: Counter[tuple[str, bool]] = Counter()
    HubFileSystem.know({repository.url(file.path): file.size for file in files})
    for file in [file for file in files if file.path.lower().endswith(_ARCHIVE)][:_LOOKED_INTO]:
        url = repository.url(file.path)
        with open_read(url) as raw:
            try:
                names = zipfile.ZipFile(raw).namelist()
            except (zipfile.BadZipFile, OSError) as error:
                raise InputError(f"{url}: is no ZIP archive: {error}; tell its owner") from error
        counted.update((suffix, False) for name in names for suffix in _suffixes(name))
    for suffix in _by_frequency(counted)[:1]:
        builder, settings = _kinds().get(suffix, (None, {}))
        return builder, dict(settings)
    return None, {}


def _by_frequency(counted: Counter[tuple[str, bool]]) -> list[str]:
    """Suffixes, the most frequent first; those of tables that describe other files last."""

    def rank(entry: tuple[tuple[str, bool], int]) -> tuple[bool, int, int, str]:
        (suffix, describes), count = entry
        return not describes, count, _FAVOURITES.index(suffix) if suffix in _FAVOURITES else -1, suffix

    return [suffix for (suffix, _), _ in sorted(counted.items(), key=rank, reverse=True)]


def _belongs(path: str, builder: str) -> bool:
    """Whether a file is one that a builder reads."""
    if builder in _FOLDERS and base_name(path) in _METADATA:
        return True
    return any(suffix == _ARCHIVE or _kinds().get(suffix, ("",))[0] == builder for suffix in _suffixes(path))


def _features(repository: HubRepository, hub: HubDataset, config: str | None) -> Any:
    """The types of columns that the card tells; None where it tells none."""
    if hub.data_files or not repository.head.get("dataset_info"):
        return None
    import datasets

    told = datasets.info.DatasetInfosDict.from_dataset_card_data({"dataset_info": repository.head["dataset_info"]})
    found = told.get(config or hub.config or "default") or (next(iter(told.values())) if len(told) == 1 else None)
    return None if found is None else found.features
