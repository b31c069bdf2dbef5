"""The open files of a stream: pairs are opened when first needed, shared by all threads, and closed again beyond a cap.

Compiled gathers reach the files through a table of memory addresses, so an address must stay mapped as long as any
thread may use it. Every read therefore holds a lease; a pair that is evicted leaves the table at once but is closed
only when all leases that may have seen it have ended: some bookkeeping, for gathers that never wait for a lock.
"""

import resource
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.documents import Unit, dataset_of_unit
from gristmill.formats.errors import CorpusError, SettingsError
from gristmill.formats.indexed import DTYPE_CODES, IndexedDataset, PairFiles

__all__ = [
    "address_of",
    "CODE",
    "default_open_limit",
    "LENGTHS",
    "POINTERS",
    "SEQUENCES",
    "Shard",
    "ShardPool",
    "TOKEN_COUNT",
    "TOKENS",
    "UINT32_CODE",
]

TOKENS, LENGTHS, POINTERS, TOKEN_COUNT, SEQUENCES, CODE = range(6)
"""Columns of `ShardPool.table`: three addresses, all 0 while the pair is closed, two counts, and the dtype's code."""

UINT32_CODE = 32
"""Stands for uint32, which the format has no code for: raw token shards hold it."""

_CODES = {dtype: code for code, dtype in DTYPE_CODES.items()} | {np.dtype("<u4"): UINT32_CODE}
_FILES_PER_SHARD = 2
_FEWEST, _MOST = 16, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One `.bin/.idx` pair and what it must hold.

    Attributes:
        prefix: path or URL without the extension.
        name: what people call it: its path inside the corpus.
        dtype: name of the token dtype.
        sequences: number of sequences.
        tokens: number of tokens.
        files: where its parts lie if not at `prefix`.
        unit: whether its sequences are those of the index, or whole documents.
    """

    prefix: str
    name: str
    dtype: str
    sequences: int
    tokens: int
    files: PairFiles | None = None
    unit: Unit = "sequence"

    def open(self) -> IndexedDataset:
        """Opens the pair and compares it with what it must hold; costs the same for any size.

        Raises:
            CorpusError: the files hold something else.
            FormatError: a file is missing, cut short or damaged.
            StorageError: a file cannot be read.
        """
        dataset = dataset_of_unit(self.prefix, self.unit, check="ends", files=self.files)
        found = (dataset.num_tokens, dataset.num_sequences, dataset.dtype.name)
        expected = (self.tokens, self.sequences, self.dtype)
        if found != expected:
            dataset.close()
            raise CorpusError(
                f"{self.prefix}: holds {found[0]} tokens in {found[1]} {self.unit}s of {found[2]}, but {expected[0]} "
                f"in {expected[1]} of {expected[2]} are recorded: cut short or replaced; `gristmill verify` lists "
                "every such file"
            )
        return dataset


def address_of(array: NDArray[Any]) -> int:
    """Memory address of an array's first element; the caller keeps the array alive."""
    return int(array.__array_interface__["data"][0])


def default_open_limit() -> int:
    """How many pairs are kept open: what a quarter of the process's file descriptors allows, at most 256.

    A pair takes two descriptors, so under the usual limit of 1,024 that is 128 pairs. Opening one anew costs about a
    tenth of a millisecond, which is why more are not kept where more would be allowed.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST
    return max(_FEWEST, min(_MOST, soft // (4 * _FILES_PER_SHARD)))


class ShardPool:
    """Opens shards by number and keeps the most recently used ones open. Safe to use from many threads.

    A reader calls `enter`, uses `table` (or `dataset`) while the lease lasts, asks `open` for what is missing, and
    calls `leave`. The cap may be exceeded by what leases that run at the same time hold.

    Attributes:
        shards: the shards; a shard's place here is its number.
        limit: how many are kept open.
        table: int64 [shards, 6], see `TOKENS` and its neighbours; a row is valid for a lease taken before it was read.
        stamps: int64 [shards], the last lease that used each; readers write their own lease there.
    """

    def __init__(self, shards: Sequence[Shard], limit: int | None = None) -> None:
        """Prepares the pool; opens nothing.

        Args:
            shards: the shards.
            limit: how many to keep open, at least 1; None takes `default_open_limit`.

        Raises:
            SettingsError: `limit` is below 1.
        """
        self.limit = default_open_limit() if limit is None else limit
        if self.limit < 1:
            raise SettingsError(f"max_open_shards must be at least 1, not {limit}")
        self.shards = tuple(shards)
        self.table = np.zeros((len(self.shards), 6), np.int64)
        for number, shard in enumerate(self.shards):  # addresses stay 0 until a pair is open
            self.table[number, TOKEN_COUNT:] = shard.tokens, shard.sequences, _CODES[np.dtype(shard.dtype)]
        self.stamps = np.zeros(len(self.shards), np.int64)
        self._lock = threading.Lock()
        self._lease = 0
        self._active: set[int] = set()
        self._open: dict[int, IndexedDataset] = {}
        self._evicted: list[tuple[int, IndexedDataset]] = []  # with the last lease that may have seen it

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def open_count(self) -> int:
        """Number of pairs that are open now, evicted ones in use included."""
        with self._lock:
            return len(self._open) + len(self._evicted)

    def enter(self) -> int:
        """Takes a lease: what the table shows from now on stays mapped until `leave`."""
        with self._lock:
            return self._enter()

    def leave(self, lease: int) -> None:
        """Ends a lease and closes what was evicted and is no longer seen by any."""
        with self._lock:
            self._leave(lease)

    def open(self, lease: int, numbers: Iterable[int]) -> int:
        """Makes sure that shards are open, evicting others that no running lease has used.

        The caller must hold no address from before: its lease is ended and a new one given, so that a reader that needs
        more shards than the cap can work through them in turns.

        Args:
            lease: the caller's lease.
            numbers: the shards; only the first `limit` of them are opened.

        Returns:
            The caller's new lease.

        Raises:
            CorpusError: a shard does not hold what it must.
            FormatError: a shard is missing, cut short or damaged.
            StorageError: a shard cannot be read.
        """
        with self._lock:
            self._leave(lease)
            lease = self._enter()
            try:
                for number, _ in zip(numbers, range(self.limit)):
                    self.stamps[number] = lease
                    if number not in self._open:
                        self._open_one(int(number))
                self._evict()
                self._bury()
            except BaseException:
                self._leave(lease)
                raise
            return lease

    def dataset(self, number: int) -> IndexedDataset | None:
        """The open pair of a shard, or None; valid while the caller's lease lasts."""
        with self._lock:
            return self._open.get(number)

    def close(self) -> None:
        """Closes every pair that no lease uses; may be called twice. A later read opens pairs again."""
        with self._lock:
            for number in list(self._open):
                self._retire(number)
            self._bury()

    def _enter(self) -> int:
        self._lease += 1
        self._active.add(self._lease)
        return self._lease

    def _leave(self, lease: int) -> None:
        self._active.discard(lease)
        self._evict()
        self._bury()

    def _open_one(self, number: int) -> None:
        dataset = self.shards[number].open()
        self._open[number] = dataset
        if dataset.mapped_tokens is not None:
            arrays = (dataset.mapped_tokens, dataset.lengths, dataset.pointers)
            self.table[number, :TOKEN_COUNT] = [address_of(array) for array in arrays]

    def _evict(self) -> None:
        surplus = len(self._open) - self.limit
        if surplus > 0:
            numbers = np.fromiter(self._open, np.int64, len(self._open))
            idle = numbers[self.stamps[numbers] < self._oldest()]
            for number in idle[np.argsort(self.stamps[idle], kind="stable")][:surplus]:
                self._retire(int(number))

    def _retire(self, number: int) -> None:
        self.table[number, :TOKEN_COUNT] = 0
        self._evicted.append((self._lease, self._open.pop(number)))

    def _oldest(self) -> int:
        """The oldest lease that runs, or the next one."""
        return min(self._active, default=self._lease + 1)

    def _bury(self) -> None:
        if self._evicted:
            oldest = self._oldest()
            for last_seen, dataset in self._evicted:
                if last_seen < oldest:
                    dataset.close()
            self._evicted = [entry for entry in self._evicted if entry[0] >= oldest]
