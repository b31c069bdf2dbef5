"""The index of raw token shards: one pass over the ids finds where documents end, and no token is copied.

What is written is a plain `.idx` (int32 for uint32 ids, which are as wide and below 2**31), beside the tokens or in a
folder for caches, so a raw file with an index beside it is a pair that Megatron reads too. A small record says which
tokens it was made of: an index of other tokens, another EOS or other bytes is made anew.
"""

import hashlib
import json
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.formats.errors import FormatError, StorageError
from gristmill.formats.fingerprint import digest, pretty_json, short
from gristmill.formats.indexed import PairFiles, pack_header
from gristmill.formats.raw_manifest import RawManifest, RawShard
from gristmill.formats.storage import base_name, exists, file_facts, join, open_read, read_bytes, write_bytes
from gristmill.formats.token_shards import in_threads, sampled_digest

__all__ = ["index_raw_shards", "RawFacts", "scan_raw_shard"]

_FORMAT = "gristmill-raw-index"
_VERSION = 1
_READ_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFacts:
    """What a pass over a raw shard found.

    Attributes:
        index: content of the `.idx`.
        sha256: digest of the tokens.
        eods: how many tokens are the EOS.
        largest: the largest id, -1 in an empty file.
    """

    index: bytes
    sha256: str
    eods: int
    largest: int


def scan_raw_shard(path: str, dtype: np.dtype[np.integer], eod_id: int) -> RawFacts:
    """Reads a raw shard once. Tokens behind the last EOS are a document too.

    Args:
        path: path or URL of the tokens.
        dtype: ``<u2`` or ``<u4``.
        eod_id: the id that closes a document.

    Raises:
        FormatError: the file is no whole number of tokens, or a document is longer than an index can say.
        StorageError: it cannot be read.
    """
    state = hashlib.sha256()
    ends: list[np.ndarray] = []
    position, largest, rest = 0, -1, b""
    with open_read(path) as file:
        while block := file.read(_READ_BYTES):
            state.update(block)
            data = rest + block
            whole = len(data) // dtype.itemsize
            tokens = np.frombuffer(data, dtype, whole)
            rest = data[whole * dtype.itemsize :]
            ends.append(np.flatnonzero(tokens == eod_id) + position + 1)
            largest = max(largest, int(tokens.max(initial=0)) if whole else -1)
            position += whole
    if rest:
        raise FormatError(f"{path}: ends in the middle of a {dtype.name} token: cut short?")
    bounds = np.concatenate([np.zeros(1, np.int64), *ends])
    eods = len(bounds) - 1
    if bounds[-1] != position:
        bounds = np.append(bounds, position)
    lengths = np.diff(bounds)
    if int(lengths.max(initial=0)) > np.iinfo(np.int32).max:
        raise FormatError(f"{path}: a document holds {int(lengths.max())} tokens; an index says at most {2**31 - 1}")
    stored = np.dtype("<u2") if dtype.itemsize == 2 else np.dtype("<i4")
    parts = (
        lengths.astype("<i4"),
        bounds[:-1] * dtype.itemsize,
        np.arange(len(lengths) + 1, dtype="<i8"),
    )
    index = pack_header(stored, len(lengths), len(lengths)) + b"".join(part.tobytes() for part in parts)
    return RawFacts(index=index, sha256=state.hexdigest(), eods=eods, largest=largest)


def index_raw_shards(
    manifest: RawManifest, folder: str | None = None, *, write: bool = True
) -> list[tuple[str, PairFiles]]:
    """Indices of all shards of a manifest: those that are there and fit, else new ones.

    Args:
        manifest: of the shards.
        folder: where indices are kept, as path or URL; None keeps each beside its tokens.
        write: whether to write what is new; without, it is kept in memory alone.

    Returns:
        For each shard in order the digest of its tokens and its files.

    Raises:
        FormatError: a shard contradicts the manifest: another digest, number of EOS, or an id outside the vocabulary.
        StorageError: a shard cannot be read.

    Warns:
        UserWarning: an index cannot be written; it is kept in memory.
    """
    return in_threads(lambda shard: _index_shard(manifest, shard, folder, write=write), manifest.shards)


def _index_shard(manifest: RawManifest, shard: RawShard, folder: str | None, *, write: bool) -> tuple[str, PairFiles]:
    blocks = sampled_digest(shard.path)
    asked = {
        "format": _FORMAT,
        "version": _VERSION,
        "blocks": blocks,
        "tokens": shard.tokens,
        "dtype": manifest.dtype.name,
        "eod_id": manifest.eod_id,
    }
    stem = shard.path.removesuffix(".bin")
    place = f"{stem}.idx" if folder is None else join(folder, f"{short(digest(asked))}-{base_name(stem)}.idx")
    found = _recorded(place, asked)
    if found is not None:
        _compare(manifest, shard, str(found["sha256"]), int(found["eods"]), int(found["largest"]))
        return str(found["sha256"]), PairFiles(tokens=shard.path, index=place, dtype=manifest.dtype)
    facts = scan_raw_shard(shard.path, manifest.dtype, manifest.eod_id)
    _compare(manifest, shard, facts.sha256, facts.eods, facts.largest)
    index: str | bytes = facts.index
    strange = exists(place) and not exists(f"{place}.json")
    if strange and read_bytes(place) != facts.index:
        raise FormatError(
            f"{place}: an index that is not that of {shard.path} and was not made here: move it away, or name another "
            "folder with cache_dir"
        )
    if write:
        record = asked | {"sha256": facts.sha256, "eods": facts.eods, "largest": facts.largest}
        try:
            stored = write_bytes(place, facts.index)
            write_bytes(f"{place}.json", pretty_json(record | {"index_sha256": stored.sha256}))
            index = place
        except StorageError as error:
            warnings.warn(
                f"{error}; the index is kept in memory and made anew at every start: name a folder that can be written "
                "to with cache_dir",
                stacklevel=2,
            )
    return facts.sha256, PairFiles(tokens=shard.path, index=index, dtype=manifest.dtype)


def _recorded(place: str, asked: dict[str, Any]) -> dict[str, Any] | None:
    """The record of an index that was made of these tokens and is unchanged; else None."""
    if not exists(f"{place}.json") or not exists(place):
        return None
    try:
        record = dict(json.loads(read_bytes(f"{place}.json")))
        if any(record[name] != value for name, value in asked.items()):
            return None
        if record["index_sha256"] != file_facts(place).sha256 or not isinstance(record["sha256"], str):
            return None
        return record | {"eods": int(record["eods"]), "largest": int(record["largest"])}
    except (ValueError, KeyError, TypeError):  # not our record: the index is made anew
        return None


def _compare(manifest: RawManifest, shard: RawShard, sha256: str, eods: int, largest: int) -> None:
    where = f"{shard.path}: "
    if shard.sha256 and sha256 != shard.sha256:
        raise FormatError(f"{where}sha256 is {sha256}, but {manifest.path} says {shard.sha256}: changed or damaged")
    if shard.eods is not None and eods != shard.eods:
        raise FormatError(f"{where}holds the EOS {manifest.eod_id} {eods} times, but {manifest.path} says {shard.eods}")
    bound = 2**31 if manifest.vocabulary is None else manifest.vocabulary
    if largest >= bound:
        raise FormatError(f"{where}holds the id {largest}, but ids must be below {bound}; another vocabulary or dtype?")
