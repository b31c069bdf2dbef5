"""Finds the input files of a source and pins what identifies them.

Patterns become an ordered list of files, each once, before any work starts; a pattern that names nothing is an error.
A path that exists is meant literally, whatever signs of patterns are in it. Whether a file is compressed is asked of
its first bytes, not of its name. Local files are hashed whole (xxh3, faster than the disk), others are identified by
their store's own checksum, so planning reads no remote data.
"""

import fnmatch
import glob
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NoReturn

from gristmill.formats.errors import InputError, SettingsError, StorageError
from gristmill.formats.recipe import FORMATS, STREAM, SourceSettings
from gristmill.formats.resuming import is_web
from gristmill.formats.storage import (
    base_name,
    file_size,
    is_local,
    local_path,
    read_range,
    relative_to,
)
from gristmill.pipelines.hub import HubEntry
from gristmill.pipelines.hub_inputs import resolve_hub
from gristmill.pipelines.input_checksums import hash_of, stored_checksum
from gristmill.pipelines.input_formats import (
    ENDINGS,
    HEAD_BYTES,
    NEVER_PACKED,
    compression_of,
    format_of,
    says_compressed,
)
from gristmill.pipelines.input_identity import identities
from gristmill.pipelines.input_lists import expand_lists
from gristmill.pipelines.input_stores import open_store, web_facts, web_name, web_path

__all__ = ["find_inputs", "InputFile"]

_MARKERS = {"__pycache__", "_temporary", "_delta_log"}
_MAGIC = re.compile(r"[*?\[]")
_COPY = re.compile(r"[0-9a-f]{64}\.(parquet|json)")
_THREADS = 16
_AT_ONCE = 16
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input file.

    Attributes:
        path: path or URL.
        relative: its path relative to the pattern that named it, with so many folders in front that no other file of
            the source is called the same; what the manifest calls it.
        size: bytes as stored.
        checksum: what identifies its content, "xxh3:..." or the store's own.
        format: one of `formats.recipe.FORMATS`, but not "auto".
        compression: "gzip", "bzip2", "xz", "zstd", "zlib", or None.
    """

    path: str
    relative: str
    size: int
    checksum: str
    format: str
    compression: str | None


def find_inputs(
    source: SourceSettings, key: str, *, output: str | None = None, checksums: bool = True
) -> tuple[InputFile, ...]:
    """The input files of a source, each once: patterns in the recipe's order, files of one by relative path.

    Args:
        source: the source.
        key: path of its table in the recipe, for messages.
        output: folder or URL whose files are left out: what a run writes is no input of the next, nor are the copies
            that it keeps elsewhere.
        checksums: whether to identify the content, which reads local files; without, `checksum` is empty.

    Raises:
        SettingsError: a pattern matches nothing, a file's format cannot be told from its name, or `expect_damaged`
            names a file that is not there.
        InputError: a compressed file has no bytes.
        StorageError: a file cannot be examined.
    """
    if source.hub is not None:
        return _hub_inputs(source, key)
    found: list[tuple[str, str]] = []
    seen: set[str] = set()
    identity_of = identities()
    own = None if output is None else identity_of(output).rstrip("/") + "/"
    kept = None if source.copies is None else identity_of(source.copies).rstrip("/")
    for pattern in expand_lists(source.files, f"{key}.files"):
        matches = _match(pattern, source.format)
        if own is not None:
            matches = [match for match in matches if not identity_of(match[0]).startswith(own)]
        if kept is not None:
            matches = [match for match in matches if not _is_copy(identity_of(match[0]), kept)]
        if not matches:
            raise SettingsError(
                f'{key}.files: nothing to read at "{pattern}": no such file, and no file matches it as a pattern or '
                "lies below it as a folder with a known extension"
            )
        for path, relative in matches:
            identity = identity_of(path)
            if identity not in seen:
                seen.add(identity)
                found.append((path, relative))
    found = _told_apart(found)
    _check_damaged(source, {relative for _, relative in found}, key)
    step = max(1, min(_AT_ONCE, len(found) // (_AT_ONCE * _THREADS)))
    some = [found[start : start + step] for start in range(0, len(found), step)]

    def examine(entries: list[tuple[str, str]]) -> list[InputFile]:
        return [_examine(path, relative, source.format, key, checksums) for path, relative in entries]

    with ThreadPoolExecutor(_THREADS) as pool:
        return tuple(file for files in pool.map(examine, some) for file in files)


def _is_copy(identity: str, folder: str) -> bool:
    """Whether a file is a copy of a source, or the receipt of one, in the folder where they are kept."""
    base, _, name = identity.rpartition("/")
    return base == folder and _COPY.fullmatch(name) is not None


def _check_damaged(source: SourceSettings, names: set[str], key: str) -> None:
    for name in source.expect_damaged:
        if name not in names:
            called = ", ".join(sorted(names)[:_SHOWN])
            raise SettingsError(f'{key}.expect_damaged: no input file is called "{name}"; they are called {called}')


def _hub_inputs(source: SourceSettings, key: str) -> tuple[InputFile, ...]:
    """The files of a dataset of the hub, or the shards it is streamed by, as the hub lists them."""
    if source.hub is None:
        return ()

    def wanted(path: str, explicit: bool) -> bool:
        script = path.endswith(".py") and source.format != "python" and not explicit
        return _wanted(path, source.format, explicit=explicit) and not script

    found, streamed = resolve_hub(source.hub, key, wanted)
    _check_damaged(source, {entry.path for _, entry in found}, key)

    def examine(listed: tuple[str, HubEntry]) -> InputFile:
        url, entry = listed
        kind = STREAM if streamed else _kind_of(url, source.format, f"{key}.dataset")
        return _input_file(url, entry.path, entry.size, entry.checksum, kind)

    with ThreadPoolExecutor(_THREADS) as pool:
        return tuple(pool.map(examine, found))


def _told_apart(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The files with names that differ: where two have the same, folders are put in front until they do not."""
    names = [relative for _, relative in found]
    while True:
        counts = Counter(names)
        longer = [
            "/".join((web_path(path) if is_web(path) else path).split("/")[-2 - name.count("/") :])
            if counts[name] > 1
            else name
            for (path, _), name in zip(found, names, strict=True)
        ]
        if longer == names:
            return [(path, name) for (path, _), name in zip(found, names, strict=True)]
        names = longer


def _visible(relative: str) -> bool:
    """Whether no part of a path is hidden, a marker of another tool, or an unfinished file."""
    return not any(part.startswith(".") or part in _MARKERS for part in relative.split("/"))


def _wanted(relative: str, given_format: str, *, explicit: bool) -> bool:
    """Whether a file found below a folder (or, `explicit`, by a glob) is text for us."""
    name = base_name(relative)
    if not _visible(relative) or (name.startswith("_") and format_of(name) is None):
        return False
    return explicit or given_format != "auto" or format_of(name) is not None


def _match(pattern: str, given_format: str) -> list[tuple[str, str]]:
    """(path, relative path) of what a pattern names, sorted by relative path."""
    if is_local(pattern):
        return _match_local(str(local_path(pattern)), given_format)
    return _match_remote(pattern, given_format)


def _match_local(pattern: str, given_format: str) -> list[tuple[str, str]]:
    if os.path.isfile(pattern):
        return [(pattern, base_name(pattern))]
    if os.path.isdir(pattern):
        return _sorted(_walk(pattern), pattern, given_format, explicit=False)
    if not _MAGIC.search(pattern):
        return []
    base, rest = _split_pattern(pattern, os.path.isdir)
    folder = base or "."
    if not os.path.isdir(folder):
        return []
    if "**" in rest:
        found = [path for path in _walk(folder) if _matches(relative_to(path, folder).split("/"), rest)]
    else:
        found = list(_expand(folder, rest))
    if not base:
        found = [relative_to(path, folder) for path in found]
    return _sorted(found, base, given_format, explicit=True)


def _sorted(paths: Iterable[str], base: str, given_format: str, *, explicit: bool) -> list[tuple[str, str]]:
    """(path, relative path) of the wanted files, sorted by relative path."""
    below = ((path, relative_to(path, base) if base else path) for path in paths)
    kept = ((path, name) for path, name in below if _wanted(name, given_format, explicit=explicit))
    return sorted(kept, key=lambda entry: entry[1])


def _walk(folder: str) -> Iterator[str]:
    """The files below a folder; hidden folders are not entered.

    A link to a folder is followed once, and not at all when it leads to where the walk comes by itself, so that links
    which lead in circles end nothing.
    """
    top = os.path.realpath(folder)
    followed: set[str] = set()
    for here, folders, names in os.walk(folder, followlinks=True, onerror=_unlisted):
        entered = []
        for name in sorted(filter(_visible, folders)):
            path = os.path.join(here, name)
            if os.path.islink(path):
                real = os.path.realpath(path)
                if real in followed or real == top or real.startswith(top.rstrip("/") + "/"):
                    continue
                followed.add(real)
            entered.append(name)
        folders[:] = entered
        for name in names:
            yield os.path.join(here, name)


def _expand(folder: str, pattern: Sequence[str]) -> Iterator[str]:
    """The files below a folder whose path matches the parts of a pattern without ``**``."""
    head, deeper = pattern[0], pattern[1:]
    if deeper and not _MAGIC.search(head):
        path = posixpath.join(folder, head)
        if os.path.isdir(path):
            yield from _expand(path, deeper)
        return
    try:
        with os.scandir(folder) as entries:
            matching = sorted(entry.name for entry in entries if fnmatch.fnmatchcase(entry.name, head))
    except OSError as error:
        _unlisted(error)
    for name in matching:
        path = posixpath.join(folder, name)
        if not deeper and os.path.isfile(path):
            yield path
        elif deeper and os.path.isdir(path) and _visible(name):
            yield from _expand(path, deeper)


def _unlisted(error: OSError) -> NoReturn:
    """Refuses to go on without the files of a folder that cannot be listed."""
    raise StorageError(f"{error.filename}: cannot be listed: {error.strerror}") from error


def _split_pattern(pattern: str, is_folder: Callable[[str], bool]) -> tuple[str, list[str]]:
    """The folders in front of a pattern's first wildcard, and the parts from there on; a folder that exists is none."""
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        if _MAGIC.search(part) and not is_folder("/".join(parts[: number + 1])):
            break
    base = "/".join(parts[:number])
    return base or ("/" if pattern.startswith("/") else ""), parts[number:]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path match those of a pattern; ``**`` stands for any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _match_remote(pattern: str, given_format: str) -> list[tuple[str, str]]:
    if is_web(pattern):
        return [(pattern, web_name(pattern))]
    file_system, inner = open_store(pattern)
    try:
        file_system.invalidate_cache()
        if file_system.isfile(inner):
            return [(str(file_system.unstrip_protocol(inner)), base_name(pattern))]
        if file_system.isdir(inner):
            base, explicit, names = inner.rstrip("/"), False, file_system.find(inner)
        elif _MAGIC.search(inner):
            base, rest = _split_pattern(inner, file_system.isdir)
            explicit, names = True, file_system.glob(posixpath.join(glob.escape(base), *rest))
            names = [name for name in names if not name.endswith("/")]
        else:
            return []
    except (OSError, ValueError) as error:
        raise StorageError(f"{pattern}: cannot be listed: {error}") from error
    below = ((str(file_system.unstrip_protocol(name)), relative_to(name, base)) for name in names)
    kept = ((path, name) for path, name in below if _wanted(name, given_format, explicit=explicit))
    return sorted(kept, key=lambda entry: entry[1])


def _examine(path: str, relative: str, given_format: str, key: str, checksums: bool) -> InputFile:
    kind = _kind_of(path, given_format, f"{key}.files")
    if is_web(path):
        size, checksum = web_facts(path)
        return _input_file(path, relative, size, checksum, kind)
    if checksums and is_local(path):
        size, checksum, head = hash_of(path)
        return _input_file(path, relative, size, checksum, kind, head)
    size = file_size(path)
    return _input_file(path, relative, size, stored_checksum(path, size) if checksums else "", kind)


def _kind_of(path: str, given_format: str, key: str) -> str:
    """The format of a file.

    Raises:
        SettingsError: it is not given, and cannot be told from the name.
    """
    kind = given_format if given_format != "auto" else format_of(web_name(path) if is_web(path) else base_name(path))
    if kind is None:
        raise SettingsError(
            f'{key}: the format of "{path}" cannot be told from its name (known extensions: {ENDINGS}, also '
            f"compressed); set format to one of {', '.join(FORMATS[1:])}"
        )
    return kind


def _input_file(path: str, relative: str, size: int, checksum: str, kind: str, head: bytes | None = None) -> InputFile:
    """An input file, after a look whether it is compressed; at its `head` where that is known."""
    if size == 0 and says_compressed(path):
        raise InputError(f"{path}: has 0 bytes, which is no complete compressed file; fetch it again or leave it out")
    compression = None
    if kind not in NEVER_PACKED and size:
        compression = compression_of(read_range(path, 0, min(HEAD_BYTES, size)) if head is None else head, kind)
    return InputFile(
        path=path,
        relative=relative,
        size=size,
        checksum=checksum,
        format=kind,
        compression=compression,
    )
