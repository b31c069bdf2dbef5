"""Anyone's `.bin/.idx` pairs, found, checked and identified without reading their tokens.

A pair that no manifest vouches for is identified by the size of its tokens, 16 blocks of them at fixed places, and a
digest of its whole index. So a changed index is always noticed, changed tokens when a block meets them; reading every
token at each start would find the rest, and `gristmill verify` does that when asked. Megatron's, datatrove's and
NeMo's pairs are the same format.
"""

import hashlib
import os.path
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gristmill.formats.documents import Unit, dataset_of_unit
from gristmill.formats.errors import CorpusError, InputError, SettingsError
from gristmill.formats.fingerprint import digest
from gristmill.formats.index_plan import ShardIdentity
from gristmill.formats.indexed import IndexedDataset, PairFiles, bin_path, idx_path
from gristmill.formats.indices import Lengths
from gristmill.formats.storage import (
    base_name,
    exists,
    file_facts,
    file_size,
    is_local,
    list_files,
    local_path,
    open_read,
    read_bytes,
    read_range,
)

__all__ = [
    "BLOCK_BYTES",
    "BLOCKS",
    "examine_pair",
    "find_prefixes",
    "in_threads",
    "joined_lengths",
    "sampled_digest",
    "shard_lengths",
    "tokens_in_range",
    "TokenShard",
]

BLOCKS = 16
"""Blocks of a token file that its identity covers; a file of no more than that is covered whole."""

BLOCK_BYTES = 4096
"""Size of such a block."""

_THREADS = 8
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShard:
    """One file of tokens and its index, as they were found.

    Attributes:
        prefix: path or URL without the extension; names the shard.
        dtype: name of the token dtype.
        tokens: number of tokens.
        sequences: number of sequences, or of documents where these are the unit.
        identity: digest of what it holds, see the module; covers the unit.
        unit: what its sequences are.
        files: where its parts lie if not at `prefix`.
    """

    prefix: str
    dtype: str
    tokens: int
    sequences: int
    identity: str
    unit: Unit = "sequence"
    files: PairFiles | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        return base_name(self.prefix)

    @property
    def shard_identity(self) -> ShardIdentity:
        """The shard as plans and keys see it."""
        return ShardIdentity(path=self.prefix, identity=self.identity, sequences=self.sequences)

    def open(self) -> IndexedDataset:
        """Opens the files and compares their counts with those recorded here; costs the same for any size.

        Raises:
            CorpusError: the files hold something else than when they were examined.
            FormatError: a file is missing, cut short or damaged.
            StorageError: a file cannot be read.
        """
        dataset = dataset_of_unit(self.prefix, self.unit, check="ends", files=self.files)
        found = (dataset.num_tokens, len(dataset), dataset.dtype.name)
        if found != (self.tokens, self.sequences, self.dtype):
            dataset.close()
            raise CorpusError(
                f"{self.prefix}: holds {found[0]} tokens in {found[1]} {self.unit}s of {found[2]}, but held "
                f"{self.tokens} in {self.sequences} of {self.dtype} a moment ago: replaced; start again"
            )
        return dataset


def find_prefixes(paths: Sequence[str]) -> list[str]:
    """The pairs that paths name, each once, in the order of their whole paths by code point (as MaxText's reader).

    Args:
        paths: each the prefix of a pair, one of its two files, or a folder, which stands for every pair directly in it.

    Raises:
        InputError: a path leads to no pair.
        SettingsError: a pair is named twice.
    """
    found: dict[str, tuple[str, str]] = {}
    for path in paths:
        for prefix in _prefixes_at(path):
            place = os.path.abspath(local_path(prefix)) if is_local(prefix) else prefix
            if place in found:
                raise SettingsError(
                    f"{prefix}: named twice (by {found[place][1]} and by {path}), so its tokens would count twice; "
                    "name it once"
                )
            found[place] = (prefix, path)
    return sorted(prefix for prefix, _ in found.values())


def _prefixes_at(path: str) -> list[str]:
    if exists(idx_path(path)) or exists(bin_path(path)):
        return [path]
    if path.endswith((".bin", ".idx")):
        return [path[:-4]]
    inside = [name[:-4] for name in list_files(path) if name.endswith(".idx")]
    if not inside:
        found = "no .idx file directly inside" if exists(path) else f"neither this folder nor {idx_path(path)} exists"
        raise InputError(
            f"{path}: {found}; name the prefix of a .bin/.idx pair, a folder of pairs, or the JSON manifest of raw "
            "token shards"
        )
    return inside


def examine_pair(
    prefix: str, unit: Unit = "sequence", files: PairFiles | None = None, known: str = "", *, identify: bool = True
) -> TokenShard:
    """Checks a pair as far as its index allows and works out what identifies it. Reads 64 KiB of its tokens.

    Args:
        prefix: path or URL without the extension.
        unit: what its sequences are.
        files: where its parts lie if not at `prefix`.
        known: digest of its tokens, where a manifest has one.
        identify: without, only the ends are checked and the identity stays empty: for what was examined before.

    Raises:
        FormatError: a file is missing, cut short, of another kind, or contradicts the other.
        StorageError: a file cannot be read.
    """
    places = PairFiles(tokens=bin_path(prefix), index=idx_path(prefix)) if files is None else files
    opened = files
    if isinstance(places.index, str) and not is_local(places.index) and exists(places.index):
        opened = PairFiles(tokens=places.tokens, index=read_bytes(places.index), dtype=places.dtype)
    dataset = dataset_of_unit(prefix, unit, check="full" if identify else "ends", files=opened)
    try:
        return TokenShard(
            prefix=prefix,
            dtype=dataset.dtype.name,
            tokens=dataset.num_tokens,
            sequences=len(dataset),
            identity=_identity(places, opened, dataset, unit, known) if identify else "",
            unit=unit,
            files=files,
        )
    finally:
        dataset.close()


def _identity(places: PairFiles, opened: PairFiles | None, dataset: IndexedDataset, unit: Unit, known: str) -> str:
    content = (opened or places).index
    index = hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else file_facts(content).sha256
    identity: dict[str, object] = {
        "index": index,
        "tokens": {"bytes": dataset.num_tokens * dataset.dtype.itemsize, "blocks": sampled_digest(places.tokens)},
    }
    if known:
        identity["sha256"] = known
    if unit != "sequence":
        identity["unit"] = unit
    return digest(identity)


def sampled_digest(path: str) -> str:
    """SHA-256 over `BLOCKS` blocks of a file: the first, the last, and others at equal distances between them.

    Raises:
        StorageError: the file cannot be read.
    """
    size = file_size(path)
    if size <= BLOCKS * BLOCK_BYTES:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    starts = [place * (size - BLOCK_BYTES) // (BLOCKS - 1) for place in range(BLOCKS)]
    state = hashlib.sha256()
    if not is_local(path):
        for block in in_threads(lambda start: read_range(path, start, BLOCK_BYTES), starts):
            state.update(block)
        return state.hexdigest()
    with open_read(path) as file:
        for start in starts:
            file.seek(start)
            state.update(file.read(BLOCK_BYTES))
    return state.hexdigest()


def in_threads(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Results of `work` for each item, in order; some items are worked on at the same time."""
    rest = list(items)
    if len(rest) < 2:
        return [work(item) for item in rest]
    with ThreadPoolExecutor(min(_THREADS, len(rest)), thread_name_prefix="gristmill-shards") as pool:
        return list(pool.map(work, rest))


def shard_lengths(shards: Sequence[TokenShard]) -> Lengths:
    """Tokens of every sequence of shards, one after the other, [S]: uint16 if all fit, else int32.

    Raises:
        CorpusError: a shard is not what it was when it was examined.
        FormatError: a shard is damaged.
        StorageError: a file cannot be read.
    """
    return joined_lengths(sum(shard.sequences for shard in shards), (shard.open() for shard in shards))


def joined_lengths(sequences: int, pairs: Iterable[IndexedDataset]) -> Lengths:
    """Tokens of every sequence of pairs, one after the other, [sequences]: uint16 if all fit, else int32.

    Args:
        sequences: number of sequences of all pairs.
        pairs: each is closed when its lengths are known, before the next is asked for.
    """
    lengths: Lengths = np.empty(sequences, np.uint16)
    position = 0
    for pair in pairs:
        if lengths.dtype == np.uint16 and int(pair.lengths.max(initial=0)) > np.iinfo(np.uint16).max:
            wider = np.empty(sequences, np.int32)
            wider[:position] = lengths[:position]
            lengths = wider
        lengths[position : position + len(pair)] = pair.lengths
        position += len(pair)
        pair.close()
    return lengths


def tokens_in_range(shards: Sequence[TokenShard], start: int, end: int) -> int:
    """Tokens of the sequences `start` to `end` of shards, counted through; opens only shards that are cut.

    Raises:
        CorpusError: a shard is not what it was when it was examined.
        FormatError: a shard is damaged.
        StorageError: a file cannot be read.
    """
    total = first = 0
    for shard in shards:
        low, high = max(start - first, 0), min(end - first, shard.sequences)
        first += shard.sequences
        if low >= high:
            continue
        if high - low == shard.sequences:
            total += shard.tokens
            continue
        dataset = shard.open()
        total += int(dataset.lengths[low:high].sum(dtype=np.int64))
        dataset.close()
    return total
