"""Finds the input files of a source and pins what identifies them.

Patterns become an ordered list of files, each once, before any work starts; a pattern that names nothing is an error.
Whether a file is compressed is asked of its first bytes, not of its name. Local files are hashed whole (xxh3, faster
than the disk), others are identified by their store's own checksum, so planning reads no remote data.
"""

import glob
import os
import posixpath
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import fsspec
import xxhash

from gristmill.formats.errors import InputError, SettingsError, StorageError
from gristmill.formats.recipe import SourceSettings
from gristmill.formats.storage import base_name, file_size, is_local, local_path, open_read, read_range, relative_to
from gristmill.pipelines.decompress import detect_compression

__all__ = ["find_inputs", "InputFile"]

_COMPRESSED = (".gz", ".gzip", ".bz2", ".xz", ".zst", ".zstd")
_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "text",
    ".text": "text",
    ".py": "python",
}
_MARKERS = {"__pycache__", "_temporary", "_delta_log"}
_MAGIC = re.compile(r"[*?\[]")
_HASH_BYTES = 8 << 20
_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input file.

    Attributes:
        path: path or URL.
        relative: its path relative to the pattern that named it; what manifest and messages call it.
        size: bytes as stored.
        checksum: what identifies its content, "xxh3:..." or the store's own.
        format: "jsonl", "parquet", "text" or "python".
        compression: "gzip", "bzip2", "xz", "zstd", or None.
    """

    path: str
    relative: str
    size: int
    checksum: str
    format: str
    compression: str | None


def find_inputs(source: SourceSettings, key: str) -> tuple[InputFile, ...]:
    """The input files of a source, each once: patterns in the recipe's order, files of one by relative path.

    Args:
        source: the source.
        key: path of its table in the recipe, for messages.

    Raises:
        SettingsError: a pattern matches nothing, or a file's format cannot be told from its name.
        StorageError: a file cannot be examined.
    """
    found: list[tuple[str, str]] = []
    seen: set[str] = set()
    for pattern in source.files:
        matches = _match(pattern, source.format)
        if not matches:
            raise SettingsError(
                f'{key}.files: nothing to read at "{pattern}": no such file, and no file matches it as a pattern or '
                "lies below it as a folder with a known extension"
            )
        for path, relative in matches:
            identity = os.path.realpath(local_path(path)) if is_local(path) else path
            if identity not in seen:
                seen.add(identity)
                found.append((path, relative))
    with ThreadPoolExecutor(_THREADS) as pool:
        return tuple(pool.map(lambda entry: _examine(entry[0], entry[1], source.format, key), found))


def _format_of(name: str) -> str | None:
    stem = name.lower()
    for suffix in _COMPRESSED:
        if stem.endswith(suffix):
            stem = stem[: -len(suffix)]
            break
    return _FORMATS.get(posixpath.splitext(stem)[1])


def _visible(relative: str) -> bool:
    """Whether no part of a path is hidden, a marker of another tool, or an unfinished file."""
    return not any(part.startswith(".") or part in _MARKERS for part in relative.split("/"))


def _wanted(relative: str, given_format: str, *, explicit: bool) -> bool:
    """Whether a file found below a folder (or, `explicit`, by a glob) is text for us."""
    name = base_name(relative)
    if not _visible(relative) or (name.startswith("_") and _format_of(name) is None):
        return False
    return explicit or given_format != "auto" or _format_of(name) is not None


def _match(pattern: str, given_format: str) -> list[tuple[str, str]]:
    """(path, relative path) of what a pattern names, sorted by relative path."""
    if is_local(pattern):
        return _match_local(str(local_path(pattern)), given_format)
    return _match_remote(pattern, given_format)


def _match_local(pattern: str, given_format: str) -> list[tuple[str, str]]:
    if os.path.isfile(pattern):
        return [(pattern, base_name(pattern))]
    if os.path.isdir(pattern):
        base, explicit = pattern, False
        paths: Iterable[str] = (
            os.path.join(folder, name) for folder, _, names in os.walk(pattern, followlinks=True) for name in names
        )
    elif _MAGIC.search(pattern):
        base, explicit = _glob_base(pattern), True
        paths = (path for path in glob.iglob(pattern, recursive=True) if os.path.isfile(path))
    else:
        return []
    below = ((path, relative_to(path, base) if base else path) for path in paths)
    kept = ((path, name) for path, name in below if _wanted(name, given_format, explicit=explicit))
    return sorted(kept, key=lambda entry: entry[1])


def _glob_base(pattern: str) -> str:
    """The folders of a pattern in front of its first wildcard."""
    parts = pattern.split("/")
    plain = next(number for number, part in enumerate(parts) if _MAGIC.search(part))
    return "/".join(parts[:plain])


def _match_remote(pattern: str, given_format: str) -> list[tuple[str, str]]:
    try:
        file_system, inner = fsspec.core.url_to_fs(pattern)
        file_system.invalidate_cache()
        if file_system.isfile(inner):
            return [(pattern, base_name(pattern))]
        if file_system.isdir(inner):
            base, explicit, names = inner.rstrip("/"), False, file_system.find(inner)
        elif _MAGIC.search(inner):
            base, explicit, names = _glob_base(inner), True, file_system.glob(inner)
            names = [name for name in names if not name.endswith("/")]
        else:
            return []
    except (OSError, ValueError, ImportError) as error:
        raise StorageError(f"{pattern}: cannot be listed: {error}") from error
    below = ((str(file_system.unstrip_protocol(name)), relative_to(name, base)) for name in names)
    kept = ((path, name) for path, name in below if _wanted(name, given_format, explicit=explicit))
    return sorted(kept, key=lambda entry: entry[1])


def _examine(path: str, relative: str, given_format: str, key: str) -> InputFile:
    kind = given_format if given_format != "auto" else _format_of(base_name(path))
    if kind is None:
        known = ", ".join(sorted(_FORMATS))
        raise SettingsError(
            f'{key}.files: the format of "{path}" cannot be told from its name (known extensions: {known}, also '
            'compressed); set format = "jsonl", "parquet", "text" or "python"'
        )
    size = file_size(path)
    if size == 0 and path.lower().endswith(_COMPRESSED):
        raise InputError(f"{path}: has 0 bytes, which is no complete compressed file; fetch it again or leave it out")
    compression = None
    if kind != "parquet" and size:
        compression = detect_compression(read_range(path, 0, min(6, size)))
    return InputFile(
        path=path,
        relative=relative,
        size=size,
        checksum=_checksum(path),
        format=kind,
        compression=compression,
    )


def _checksum(path: str) -> str:
    if is_local(path):
        hasher = xxhash.xxh3_128()
        with open_read(path) as file:
            while block := file.read(_HASH_BYTES):
                hasher.update(block)
        return f"xxh3:{hasher.hexdigest()}"
    file_system, inner = fsspec.core.url_to_fs(path)
    try:
        facts: dict[str, Any] = file_system.info(inner)
        for name in ("crc32c", "md5Hash", "md5", "sha256", "ETag", "etag"):
            if facts.get(name):
                return f"{name}:{facts[name]}"
        return f"store:{file_system.checksum(inner)}"
    except (OSError, NotImplementedError) as error:
        raise StorageError(f"{path}: cannot be examined: {error}") from error
