"""The open files of a stream: pairs are opened when first needed, shared by all threads, and closed again beyond a cap.

Compiled gathers reach the files through a table of memory addresses, so an address must stay mapped as long as any
thread may use it. Every read therefore holds a lease; a pair that is evicted leaves the table at once but is closed
only when all leases that may have seen it have ended: some bookkeeping, for gathers that never wait for a lock. Beside
each map the file stays open, so that a gather can ask whether the file is still as long as the map: two descriptors
more for each pair, for an error in place of the signal that ends a process which touches a map beyond its file.
"""

import os
import resource
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gristmill.formats.documents import Unit, dataset_of_unit
from gristmill.formats.errors import CorpusError, FormatError, SettingsError, StorageError
from gristmill.formats.indexed import DTYPE_CODES, IndexedDataset, PairFiles, bin_path, idx_path
from gristmill.formats.storage import is_local, local_path
from gristmill.runtime.arrays import address_of
from gristmill.runtime.backends import Backend, backend_of
from gristmill.runtime.ranged import open_ranged
from gristmill.runtime.whole_number import whole_number

__all__ = [
    "CODE",
    "default_open_limit",
    "INDEX_BYTES",
    "INDEX_FILE",
    "LENGTHS",
    "POINTERS",
    "SEQUENCES",
    "Shard",
    "SHARD_COLUMNS",
    "ShardPool",
    "TOKEN_COUNT",
    "TOKENS",
    "TOKENS_FILE",
    "UINT32_CODE",
]

TOKENS, LENGTHS, POINTERS, TOKENS_FILE, INDEX_FILE, TOKEN_COUNT, SEQUENCES, CODE, INDEX_BYTES = range(9)
"""Columns of `ShardPool.table`. Three addresses, and one more than the descriptors of the two files, or -1 where there
is no file; all 0 while the pair is closed. Two counts, the dtype's code, and the bytes of the index file."""

SHARD_COLUMNS = 9
"""Number of columns of `ShardPool.table`."""

UINT32_CODE = 32
"""Stands for uint32, which the format has no code for: raw token shards hold it."""

_CODES = {dtype: code for code, dtype in DTYPE_CODES.items()} | {np.dtype("<u4"): UINT32_CODE}
_FILES_PER_SHARD = 4  # each file once for its map and once for its size
_FEWEST, _MOST = 16, 256
_NO_FILE = -1


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

    @property
    def parts(self) -> tuple[str, str | bytes]:
        """Path or URL of the tokens, and that of the index or its content."""
        if self.files is None:
            return bin_path(self.prefix), idx_path(self.prefix)
        return self.files.tokens, self.files.index

    def open(self, backend: Backend = "mmap") -> IndexedDataset:
        """Opens the pair and compares it with what it must hold; costs the same for any size.

        Args:
            backend: how local files are read: ``mmap`` or ``pread``, or ``auto`` to go by the file system.

        Raises:
            CorpusError: the files hold something else.
            FormatError: a file is missing, cut short or damaged.
            StorageError: a file cannot be read.
        """
        ranged = is_local(self.parts[0]) and backend_of(self.parts[0], backend) == "pread"
        open_pair = open_ranged if ranged else dataset_of_unit
        dataset = open_pair(self.prefix, self.unit, check="ends", files=self.files)
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

    def let_go(self) -> None:
        """Called once when what `open` gave is closed; a shard that holds something for it lets go."""


def default_open_limit() -> int:
    """How many pairs are kept open: what half of the process's file descriptors allows, at most 256.

    A pair takes four descriptors, so under the usual limit of 1,024 that is 128 pairs. Opening one anew costs about a
    tenth of a millisecond, which is why more are not kept where more would be allowed.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST
    return max(_FEWEST, min(_MOST, soft // (2 * _FILES_PER_SHARD)))


class ShardPool:
    """Opens shards by number and keeps the most recently used ones open. Safe to use from many threads.

    A reader calls `enter`, uses `table` (or `dataset`) while the lease lasts, asks `open` for what is missing, and
    calls `leave`. The cap may be exceeded by what leases that run at the same time hold.

    Attributes:
        shards: the shards; a shard's place here is its number.
        limit: how many are kept open.
        backend: how local files are read.
        table: int64 [shards, SHARD_COLUMNS], see `TOKENS` and its neighbours; a row is valid for a lease taken before
            it was read.
        stamps: int64 [shards], the last lease that used each; readers write their own lease there.
        opened: how many pairs have been opened so far, each as often as it was.
        opening: the shard that is being opened, for other threads to see, or None.
    """

    def __init__(self, shards: Sequence[Shard], limit: int | None = None, backend: Backend = "mmap") -> None:
        """Prepares the pool; opens nothing.

        Args:
            shards: the shards.
            limit: how many to keep open, at least 1; None takes `default_open_limit`.
            backend: see `Shard.open`.

        Raises:
            SettingsError: `limit` is below 1.
        """
        self.limit = default_open_limit() if limit is None else whole_number("max_open_shards", limit)
        if self.limit < 1:
            raise SettingsError(f"max_open_shards must be at least 1, not {limit}")
        self.shards = tuple(shards)
        self.backend: Backend = backend
        self.opened = 0
        self.opening: int | None = None
        self.table = np.zeros((len(self.shards), SHARD_COLUMNS), np.int64)
        for number, shard in enumerate(self.shards):  # addresses stay 0 until a pair is open
            self.table[number, TOKEN_COUNT:INDEX_BYTES] = shard.tokens, shard.sequences, _CODES[np.dtype(shard.dtype)]
        self.stamps = np.zeros(len(self.shards), np.int64)
        self._lock = threading.Lock()
        self._lease = 0
        self._active: set[int] = set()
        self._open: dict[int, _OpenPair] = {}
        self._evicted: list[tuple[int, _OpenPair]] = []  # with the last lease that may have seen it

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
            chosen = [int(number) for number, _ in zip(numbers, range(self.limit))]
            self.stamps[chosen] = self._lease + 1
            self._evict(sum(number not in self._open for number in chosen))
            self._bury()  # first, so that no more files are open meanwhile than afterwards
            lease = self._enter()
            try:
                for number in chosen:
                    if number in self._open:
                        self._open[number].require_whole()
                    else:
                        self._open_one(number)
            except BaseException:
                self._leave(lease)
                raise
            return lease

    def dataset(self, number: int) -> IndexedDataset | None:
        """The open pair of a shard, or None; valid while the caller's lease lasts.

        Raises:
            FormatError: a file has become shorter than it was when it was opened.
        """
        with self._lock:
            pair = self._open.get(number)
            if pair is None:
                return None
            pair.require_whole()
            return pair.dataset

    def require_whole(self) -> None:
        """Checks that no open file has become shorter than it was when it was opened.

        Raises:
            FormatError: one has; the message names it.
        """
        with self._lock:
            for pair in self._open.values():
                pair.require_whole()

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
        self.opening = number
        try:
            pair = _OpenPair(self.shards[number], self.backend)
        finally:
            self.opening = None
        self.opened += 1
        self._open[number] = pair
        dataset = pair.dataset
        if dataset.mapped_tokens is not None:
            arrays = (dataset.mapped_tokens, dataset.lengths, dataset.pointers)
            self.table[number, INDEX_BYTES] = pair.files[1].size
            self.table[number, [TOKENS_FILE, INDEX_FILE]] = [file.descriptor + 1 or _NO_FILE for file in pair.files]
            self.table[number, :TOKENS_FILE] = [address_of(array) for array in arrays]  # last: they say that it is open

    def _evict(self, coming: int = 0) -> None:
        surplus = len(self._open) + coming - self.limit
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
            for last_seen, pair in self._evicted:
                if last_seen < oldest:
                    pair.close()
            self._evicted = [entry for entry in self._evicted if entry[0] >= oldest]


class _File:
    """An open file beside its map; none where the part is in memory or may go without.

    Attributes:
        path: its path.
        descriptor: of the open file, or -1.
        size: its bytes when it was opened.
    """

    def __init__(self, path: str | None) -> None:
        self.path, self.descriptor, self.size = path, -1, 0
        if path is not None:
            try:
                self.descriptor = os.open(local_path(path), os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise StorageError(f"{path}: cannot be opened: {error.strerror}") from error
            self.size = os.fstat(self.descriptor).st_size

    def require_whole(self) -> None:
        if self.descriptor >= 0 and (size := os.fstat(self.descriptor).st_size) < self.size:
            raise FormatError(
                f"{self.path}: has {size} bytes now, but had {self.size} when it was opened: cut short while it was in "
                "use; put the file back, whole, and open the stream again"
            )

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # then files are closed anyway, and modules may be gone
            self.close()  # a stream that is dropped without `close` leaves no file open either


class _OpenPair:
    """A pair and, where it is mapped, its files.

    Attributes:
        dataset: the pair.
        files: those of the tokens and of the index.
    """

    def __init__(self, shard: Shard, backend: Backend) -> None:
        self.dataset = shard.open(backend)
        self._shard = shard
        self.files = (_File(None), _File(None))
        if self.dataset.mapped_tokens is None:
            return
        tokens, index = shard.parts
        try:
            self.files = (_File(tokens), self.files[1])
            if isinstance(index, str) and is_local(index) and shard.unit == "sequence":  # documents are in memory
                self.files = (self.files[0], _File(index))
            self.require_whole()
        except BaseException:
            self.close()
            raise

    def require_whole(self) -> None:
        for file in self.files:
            file.require_whole()

    def close(self) -> None:
        self.dataset.close()
        for file in self.files:
            file.close()
        self._shard.let_go()
