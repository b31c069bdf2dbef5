"""Shards on a store that are read by ranges: all that a batch needs of all of them, in two rounds of requests.

The first round asks for lengths and places of the sequences, the second for the tokens. Where a round takes latency
and not much else, this is what makes ranged reads bearable; `IndexedDataset` would ask shard after shard.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.formats.documents import DocumentDataset
from gristmill.formats.errors import CorpusError, FormatError
from gristmill.formats.indexed import DTYPE_CODES, HEADER, HEADER_BYTES, MAGIC, VERSION, IndexedDataset
from gristmill.formats.storage import is_local
from gristmill.runtime.backends import Backend
from gristmill.runtime.copies import copy_tokens
from gristmill.runtime.ranged import RangedDataset
from gristmill.runtime.remote import RemoteObject, RemoteStore
from gristmill.runtime.remote_ranges import RemoteArray, RemoteFile, fetch_many
from gristmill.runtime.shards import UINT32_CODE, Shard

__all__ = ["remote_shard", "RemoteShard", "RemoteShards"]

_CODES = {dtype: code for code, dtype in DTYPE_CODES.items()} | {np.dtype("<u4"): UINT32_CODE}


class _RemoteTokens:
    """Tokens of a pinned object, each slice read when it is asked for."""

    def __init__(self, file: RemoteFile, dtype: np.dtype[np.integer]) -> None:
        self.file = file
        self._dtype = dtype

    def read(self, start: int, count: int) -> NDArray[Any]:
        size = self._dtype.itemsize
        return np.frombuffer(self.file.read(start * size, count * size), self._dtype).copy()

    def close(self) -> None:
        """Nothing is held between reads."""


class _RemoteDataset(RangedDataset):
    """A pair on a store; `lengths`, `pointers` and `document_indices` are `RemoteArray`s."""

    shard: "RemoteShard"  # set before anything is opened

    def _open_index(self, index: str | bytes) -> Any:
        return super()._open_index(index) if isinstance(index, bytes) or is_local(index) else self.shard.file(index)

    def _entries(self, data: Any, dtype: str, count: int, offset: int) -> Any:
        if isinstance(data, RemoteFile):
            return RemoteArray(data, np.dtype(dtype), (count,), offset)  # type: ignore[arg-type]  # like a local one
        return super()._entries(data, dtype, count, offset)

    def _open_tokens(self, path: str) -> Any:
        return _RemoteTokens(self.shard.file(path), self.dtype)

    def read_into(
        self, starts: NDArray[np.int64], counts: NDArray[np.int64], places: NDArray[np.int64], out: NDArray[Any]
    ) -> int:
        """Reads many token ranges at once; see `RangedDataset.read_into`."""
        size = self.dtype.itemsize
        file: RemoteFile = self._tokens.file  # type: ignore[attr-defined]  # `_open_tokens` made it
        which = np.zeros(len(starts), np.int64)
        data, found = fetch_many(file.store, [file.object], which, starts * size, counts * size)
        _spread(data, found, np.full(len(starts), _CODES[self.dtype]), counts, places, out)
        return len(data)


class _RemoteDocuments(DocumentDataset, _RemoteDataset):
    """Documents of a pair on a store; lengths and pointers are in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteShard(Shard):
    """A shard on a store that is read by ranges.

    Attributes:
        store: what reads it.
        pins: the versions of its files, by URL.
    """

    store: RemoteStore
    pins: Mapping[str, RemoteObject]

    def file(self, url: str) -> RemoteFile:
        """One of its files."""
        return RemoteFile(self.store, self.pins[url])

    def open(self, backend: Backend = "mmap") -> IndexedDataset:  # noqa: ARG002 - a store has one way
        """Opens the pair for ranged reads of the versions that were pinned; see `Shard.open`."""
        kind = _RemoteDocuments if self.unit == "document" else _RemoteDataset
        dataset = kind.__new__(kind)
        dataset.shard = self
        kind.__init__(dataset, self.prefix, check="ends", files=self.files)
        found = (dataset.num_tokens, dataset.num_sequences, dataset.dtype.name)
        if found != (self.tokens, self.sequences, self.dtype):
            raise _other(self, f"{found[0]} tokens in {found[1]} {self.unit}s of {found[2]}")
        return dataset


def remote_shard(shard: Shard, store: RemoteStore, pins: Mapping[str, RemoteObject]) -> RemoteShard:
    """A shard that is read by ranges.

    Raises:
        CorpusError: its tokens have another size than is recorded.
    """
    made = RemoteShard(
        prefix=shard.prefix,
        name=shard.name,
        dtype=shard.dtype,
        sequences=shard.sequences,
        tokens=shard.tokens,
        files=shard.files,
        unit=shard.unit,
        store=store,
        pins=pins,
    )
    one = pins[made.parts[0]]
    if one.size != shard.tokens * np.dtype(shard.dtype).itemsize:
        raise _other(made, f"{one.size} bytes")
    return made


def _other(shard: Shard, found: str) -> CorpusError:
    return CorpusError(
        f"{shard.prefix}: holds {found}, but {shard.tokens} tokens in {shard.sequences} {shard.unit}s of {shard.dtype} "
        "are recorded: cut short or replaced; `gristmill verify` lists every such file"
    )


class RemoteShards:
    """The shards of a stream, read together. Safe to use from many threads."""

    def __init__(self, store: RemoteStore, shards: Sequence[RemoteShard]) -> None:
        """Reads nothing."""
        self._store = store
        self._shards = tuple(shards)
        self._tokens = [shard.pins[shard.parts[0]] for shard in self._shards]
        self._indices = [shard.pins.get(str(shard.parts[1])) for shard in self._shards]
        self._codes = np.array([_CODES[np.dtype(shard.dtype)] for shard in self._shards], np.int64)
        self._sizes = np.array([np.dtype(shard.dtype).itemsize for shard in self._shards], np.int64)
        self._sequences = np.array([shard.sequences for shard in self._shards], np.int64)
        self._checked = np.zeros(len(self._shards), bool)
        self._in_memory: dict[int, IndexedDataset] = {}

    def spans(
        self, shard: NDArray[np.int64], sequence: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where sequences lie.

        Args:
            shard: int64 [E], number of the shard of each.
            sequence: int64 [E], its number there.

        Returns:
            int64 [E] both: tokens of each, and its first token, counted through the shard.

        Raises:
            CorpusError: an index is not that of its shard, or was replaced.
            FormatError: an index is damaged.
            StorageError: an index cannot be read.
        """
        lengths, starts = np.empty(len(shard), np.int64), np.empty(len(shard), np.int64)
        for number in np.unique(shard).tolist():
            one = self._shards[number]
            if one.unit != "sequence" or self._indices[number] is None:
                if number not in self._in_memory:
                    self._in_memory[number] = one.open()
                pair, here = self._in_memory[number], shard == number
                lengths[here] = pair.lengths[sequence[here]]
                starts[here] = pair.pointers[sequence[here]] // pair.dtype.itemsize
        asked = np.flatnonzero([number not in self._in_memory for number in shard.tolist()])
        if not len(asked):
            return lengths, starts
        which, entry = shard[asked], sequence[asked]
        new = np.unique(which[~self._checked[which]])
        pointers = HEADER_BYTES + 4 * self._sequences[which] + 8 * entry
        begins = np.concatenate([np.zeros(len(new), np.int64), HEADER_BYTES + 4 * entry, pointers])
        sizes = np.repeat([HEADER_BYTES, 4, 8], [len(new), len(entry), len(entry)])
        objects = [one for one in self._indices if one is not None]
        place_of = np.cumsum([one is not None for one in self._indices]) - 1
        data, places = fetch_many(self._store, objects, place_of[np.concatenate([new, which, which])], begins, sizes)
        for number, place in zip(new.tolist(), places.tolist()):
            self._check_header(number, data[place : place + HEADER_BYTES].tobytes())
        self._checked[new] = True
        at = places[len(new) :]
        lengths[asked] = _items(data, at[: len(entry)], "<i4")
        starts[asked] = _items(data, at[len(entry) :], "<i8") // self._sizes[which]
        return lengths, starts

    def _check_header(self, number: int, header: bytes) -> None:
        shard, one = self._shards[number], self._indices[number]
        url = "" if one is None else one.url
        magic, version, code, sequences, _ = HEADER.unpack(header)
        if magic != MAGIC or version != VERSION or code not in DTYPE_CODES:
            raise FormatError(f"{url}: begins with {header[:18]!r}: no index of a .bin/.idx pair that can be read")
        itemsize = np.dtype(shard.dtype).itemsize
        if sequences != shard.sequences or DTYPE_CODES[code].itemsize != itemsize:
            raise _other(shard, f"{sequences} sequences of {DTYPE_CODES[code].name}")

    def read_into(
        self,
        shard: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        places: NDArray[np.int64],
        out: NDArray[np.uint16 | np.int32],
    ) -> int:
        """Reads token ranges of any shards.

        Args:
            shard: int64 [P], number of the shard of each range.
            starts: int64 [P], its first token there.
            counts: int64 [P], its tokens, at least 1.
            places: int64 [P], entry of `out` at which each begins.
            out: 1-D, C-contiguous; filled there.

        Returns:
            The bytes that came.

        Raises:
            CorpusError: a range lies beyond its shard, or a shard was replaced.
            FormatError: a token does not fit `out`.
            StorageError: a shard cannot be read.
        """
        sizes = self._sizes[shard]
        data, found = fetch_many(self._store, self._tokens, shard, starts * sizes, counts * sizes)
        failed = _spread(data, found, self._codes[shard], counts, places, out)
        if failed >= 0:
            raise FormatError(
                f"{self._shards[int(shard[failed])].prefix}: a token of the {counts[failed]} from {starts[failed]} on "
                f"does not fit the stream's {out.dtype.name}"
            )
        return len(data)


def _items(data: NDArray[np.uint8], places: NDArray[np.int64], dtype: str) -> NDArray[np.int64]:
    """Integers that lie anywhere in some bytes, as int64."""
    kind = np.dtype(dtype)
    found: NDArray[np.int64] = data[places[:, None] + np.arange(kind.itemsize)].view(kind)[:, 0].astype(np.int64)
    return found


@compiled
def _spread(
    data: NDArray[np.uint8],
    found: NDArray[np.int64],
    codes: NDArray[np.int64],
    counts: NDArray[np.int64],
    places: NDArray[np.int64],
    out: NDArray[Any],
) -> int:
    """Copies token ranges that lie anywhere in some bytes; -1, or the number of one that does not fit."""
    target_bytes = np.int64(out.itemsize)
    for number in range(len(found)):
        source = np.int64(data.ctypes.data + found[number])
        target = np.int64(out.ctypes.data + places[number] * target_bytes)
        if not copy_tokens(source, codes[number], target, target_bytes, counts[number]):
            return number
    return -1
