"""The JSON manifest of raw token shards: files of nothing but uint16 or uint32 ids, documents closed by an EOS.

The form is GPT-OSS-Lite's. Its own loader reads five of the fields and checks none; here every claim that can be
compared with another claim, or with the files' presence and size, is compared, and all contradictions are named at
once. What needs a pass over the tokens (counts, digests, ids) is checked by whoever makes that pass.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.formats.errors import FormatError, InputError
from gristmill.formats.storage import base_name, exists, file_size, join, read_bytes

__all__ = ["find_raw_manifest", "RAW_MANIFEST_NAME", "RawManifest", "RawShard", "read_raw_manifest"]

RAW_MANIFEST_NAME = "manifest.json"
"""File name of the manifest in a folder that is named in its place."""

_DTYPES: dict[str, np.dtype[np.integer]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_LARGEST_ID = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RawShard:
    """One file of raw tokens, as its manifest tells.

    Attributes:
        path: path or URL of the file.
        tokens: number of tokens.
        eods: how many of them are the EOS; None where the manifest does not say.
        sha256: digest of the file; empty where the manifest has none.
    """

    path: str
    tokens: int
    eods: int | None
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RawManifest:
    """A manifest without contradictions.

    Attributes:
        path: path or URL of the manifest.
        dtype: of the tokens, ``<u2`` or ``<u4``.
        eod_id: the id that closes a document.
        vocabulary: bound of the ids; None where nobody names one.
        shards: the files in order.
    """

    path: str
    dtype: np.dtype[np.integer]
    eod_id: int
    vocabulary: int | None
    shards: tuple[RawShard, ...]


def find_raw_manifest(path: str) -> str | None:
    """The manifest of raw shards that a path names, itself or as a folder with a `manifest.json`; else None.

    Raises:
        InputError: the file is no JSON, or the folder holds a prepared corpus.
        StorageError: it cannot be read.
    """
    place = path if path.endswith(".json") else join(path, RAW_MANIFEST_NAME)
    if not exists(place):
        return None
    value = _read(place)
    if isinstance(value, Mapping) and isinstance(value.get("format"), str):
        raise InputError(
            f"{path}: a corpus that `gristmill prepare` made ({value['format']!r}): open it with open_corpus, or name "
            "one source's folder inside its tokens/"
        )
    if isinstance(value, Mapping) and "shards" in value:
        return place
    if place == path:
        raise InputError(f"{path}: no manifest of raw token shards: it has no list of shards")
    return None


def _read(path: str) -> Any:
    try:
        return json.loads(read_bytes(path))
    except ValueError as error:
        raise InputError(f"{path}: no readable JSON: {error}") from error


def read_raw_manifest(path: str, *, eod_id: int | None = None, vocabulary: int | None = None) -> RawManifest:
    """Reads a manifest and compares everything in it with the rest and with the files.

    Args:
        path: path or URL of the manifest.
        eod_id: the EOD that the caller counts on; None takes the manifest's `eos_token_id`.
        vocabulary: bound of the ids, in place of the manifest's `vocab_size`.

    Raises:
        InputError: the file is no JSON.
        FormatError: the manifest contradicts itself, its files or the caller; every contradiction is listed.
        StorageError: a file cannot be examined.
    """
    value = _read(path)
    problems: list[str] = []
    if not isinstance(value, Mapping):
        raise FormatError(f"{path}: no manifest of raw token shards: a JSON object is expected")
    eos = _count(value, "eos_token_id", problems)
    bound = _count(value, "vocab_size", problems, required=False) if vocabulary is None else vocabulary
    pad = _count(value, "pad_token_id", problems, required=False)
    dtype = _DTYPES.get(str(value.get("dtype")))
    if dtype is None:
        problems.append(f"dtype is {value.get('dtype')!r}; raw shards hold {' or '.join(_DTYPES)}")
    if eod_id is not None and eos is not None and eod_id != eos:
        problems.append(f"eos_token_id is {eos}, but eod_id={eod_id} is asked for; documents are cut at the manifest's")
    for what, found in (("eos_token_id", eos), ("pad_token_id", pad)):
        if found is not None and bound is not None and found >= bound:
            problems.append(
                f"{what} {found} lies outside the vocabulary of {bound} ids; where the vocabulary is larger than "
                "vocab_size says, give vocabulary"
            )
    if dtype is not None and bound is not None and bound - 1 > min(int(np.iinfo(dtype).max), _LARGEST_ID):
        problems.append(f"a vocabulary of {bound} ids does not fit {dtype.name} tokens read as int32")
    shards = _shards(path, value, dtype, problems)
    if problems or dtype is None or eos is None:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise FormatError(f"{path}: the manifest of raw token shards cannot be followed:\n{lines}")
    return RawManifest(path=path, dtype=dtype, eod_id=eos, vocabulary=bound, shards=shards)


def _count(
    value: Mapping[str, Any], name: str, problems: list[str], *, where: str = "", required: bool = True
) -> int | None:
    """A field that must be a count; None, and a problem noted, where it is not."""
    found = value.get(name)
    if found is None:
        if required:
            problems.append(f"{where}{name} is missing")
        return None
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        problems.append(f"{where}{name} is {found!r}; the rule is an integer of at least 0")
        return None
    return found


def _shards(
    path: str, value: Mapping[str, Any], dtype: np.dtype[np.integer] | None, problems: list[str]
) -> tuple[RawShard, ...]:
    entries = value.get("shards")
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        problems.append(f"shards is {type(entries).__name__}; the rule is a list of objects with path and n_tokens")
        return ()
    bases = _bases(path, value.get("shards_dir"))
    shards = [_shard(entry, number, bases, dtype, problems) for number, entry in enumerate(entries)]
    found = [shard for shard in shards if shard is not None]
    for again, times in Counter(shard.path for shard in found).items():
        if times > 1:
            problems.append(f"{again} is listed {times} times")
    for name, total in (("shard_count", len(entries)), ("total_tokens", sum(shard.tokens for shard in found))):
        told = _count(value, name, problems, required=False)
        if told is not None and told != total and len(found) == len(entries):
            problems.append(f"{name} is {told}, but the shards listed make {total}")
    if not entries:
        problems.append("shards lists none")
    return tuple(found)


def _bases(path: str, shards_dir: object) -> list[str]:
    """Folders that the shards' paths may be relative to, those beside the manifest first."""
    own = path[: -len(base_name(path))]
    if not isinstance(shards_dir, str) or not shards_dir:
        return [own]
    return [join(own, shards_dir), join(own, base_name(shards_dir)), own, shards_dir]


def _shard(
    entry: Mapping[str, Any],
    number: int,
    bases: list[str],
    dtype: np.dtype[np.integer] | None,
    problems: list[str],
) -> RawShard | None:
    where = f"shard {number}: "
    name = entry.get("path")
    if not isinstance(name, str) or not name:
        problems.append(f"{where}path is {name!r}; the rule is the name of a file")
        return None
    where = f"shard {number}, {name}: "
    before = len(problems)
    tokens = _count(entry, "n_tokens", problems, where=where)
    eods = _count(entry, "n_eos", problems, where=where, required=False)
    index = _count(entry, "index", problems, where=where, required=False)
    sha256 = entry.get("sha256") or ""
    if index is not None and index != number:
        problems.append(f"{where}index is {index}; the shards must be listed in order, from 0")
    if not isinstance(sha256, str) or (sha256 and not _is_sha256(sha256)):
        problems.append(f"{where}sha256 is {sha256!r}; the rule is 64 hexadecimal digits")
    if tokens is not None and eods is not None and eods > tokens:
        problems.append(f"{where}n_eos {eods} exceeds n_tokens {tokens}")
    place = next((join(base, name) for base in bases if exists(join(base, name))), None)
    if place is None:
        problems.append(f"{where}missing; looked in {', '.join(dict.fromkeys(base or '.' for base in bases))}")
    elif tokens is not None and dtype is not None and file_size(place) != tokens * dtype.itemsize:
        problems.append(
            f"{where}has {file_size(place)} bytes, but {tokens} {dtype.name} tokens take {tokens * dtype.itemsize}"
        )
    if tokens is None or place is None or len(problems) > before:
        return None
    return RawShard(path=place, tokens=tokens, eods=eods, sha256=str(sha256).lower())


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and all(digit in "0123456789abcdefABCDEF" for digit in text)
