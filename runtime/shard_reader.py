"""What readers of rows have in common: the open shards of a stream, what was read from them, and what is being read."""

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.errors import FormatError
from gristmill.formats.indexed import IndexedDataset
from gristmill.formats.storage import is_local
from gristmill.runtime.backends import Backend, backend_of, check_backend
from gristmill.runtime.copies import spread_tokens
from gristmill.runtime.gather import LOOKING, OPENING
from gristmill.runtime.look_ahead import LookAhead, ShardsOf
from gristmill.runtime.metrics import ReadCounts
from gristmill.runtime.ranged import RangedDataset
from gristmill.runtime.remote_access import RemoteAccess
from gristmill.runtime.rows_ahead import ReadRows, RowsAhead
from gristmill.runtime.shards import CODE, Shard, ShardPool

__all__ = ["require_fit", "ShardReader"]

_AT_FIRST = np.array([LOOKING, 0, 0])


class ShardReader(ABC):
    """Reads tokens of shards; safe to use from many threads.

    Attributes:
        shards: the shards.
        dtype: of what is read: uint16 when every shard holds uint16, else int32.
        counts: what has been read so far.
    """

    _ahead: LookAhead | None = None
    _rows_ahead: RowsAhead | None = None

    def __init__(
        self,
        shards: Sequence[Shard],
        max_open_shards: int | None,
        backend: Backend,
        access: RemoteAccess | None = None,
    ) -> None:
        """Opens nothing.

        Args:
            shards: the shards.
            max_open_shards: how many are kept open; None takes `gristmill.runtime.shards.default_open_limit`.
            backend: how local files are read: ``mmap`` through maps, ``pread`` by ranged reads alone, ``auto`` as the
                file system of each asks for; see `gristmill.runtime.backends`.
            access: how files on an object store are read; None where there are none.

        Raises:
            SettingsError: `max_open_shards` is below 1, or `backend` is none of the three.
        """
        self._max_open_shards = max_open_shards
        self._backend = check_backend(backend)
        self._access = access
        self.shards = tuple(shards if access is None else access.shards(shards))
        self.dtype: np.dtype[np.uint16 | np.int32] = np.dtype(np.int32)
        if all(shard.dtype == "uint16" for shard in self.shards):
            self.dtype = np.dtype(np.uint16)
        limit = max_open_shards if access is None else access.open_limit(max_open_shards)
        self._pool = ShardPool(self.shards, limit, self._backend)
        self._most_wanted = min(len(self.shards), self._pool.limit)
        self._mapped = all(
            is_local(shard.parts[0]) and backend_of(shard.parts[0], self._backend) == "mmap" for shard in self.shards
        )
        self._reading: dict[int, tuple[NDArray[np.int64], float]] = {}  # by thread: what it is at, since when
        self.counts = ReadCounts()

    @property
    def open_shards(self) -> int:
        """Number of shards that are open now."""
        return self._pool.open_count

    def _follow(
        self,
        shards_of: ShardsOf,
        read: ReadRows,
        rows: int,
        width: int,
    ) -> None:
        """Brings or reads ahead what the reads show to come next, where files are on an object store.

        Args:
            shards_of: see `ShardsOf`.
            read: reads rows by ranges. Neither may refer to this object, so that one that is dropped ends its threads.
            rows: number of rows of the stream.
            width: tokens of a row.
        """
        if self._access is None:
            return
        self._ahead = self._access.look_ahead(self.shards, shards_of, rows)
        if self._access.ranges is not None:
            self._rows_ahead = self._access.rows_ahead(read, rows, width * (self.dtype.itemsize + 1))
        for ahead in (self._ahead, self._rows_ahead):
            if ahead is not None:
                weakref.finalize(self, ahead.stop)

    @contextmanager
    def _read_noted(self, rows: ArrayLike) -> Iterator[NDArray[np.int64]]:
        """Notes what a read is at, in the array given (see `gather` for its entries), and counts what it read."""
        if self._ahead is not None:
            self._ahead.seen(rows)
        at = _AT_FIRST.copy()
        thread = threading.get_ident()
        self._reading[thread] = (at, time.monotonic())
        try:
            yield at
        finally:
            del self._reading[thread]
            _, shard_hits, bytes_read = at.tolist()
            self.counts.add(bytes_read=bytes_read, shard_hits=shard_hits)

    def _copy_ranges(
        self,
        dataset: RangedDataset,
        number: int,
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        places: NDArray[np.int64],
        out: NDArray[np.uint16 | np.int32],
    ) -> None:
        """Copies ranges of one shard, in as few reads as their places allow.

        Args:
            dataset: the shard.
            number: its number.
            starts: int64 [P], first token of each range in the shard.
            counts: int64 [P], tokens of each.
            places: int64 [P], entry of `out`, taken flat, at which each begins.
            out: C-contiguous; filled there.
        """
        flat = out.reshape(-1)
        if dataset.dtype == out.dtype:
            bytes_read = dataset.read_into(starts, counts, places, flat)
        else:
            tokens = np.empty(int(counts.sum()), dataset.dtype)
            bytes_read = dataset.read_into(starts, counts, np.cumsum(counts) - counts, tokens)
            require_fit(dataset, tokens, out.dtype)
            spread_tokens(tokens, int(self._pool.table[number, CODE]), counts, places, flat)
        self.counts.add(bytes_read=bytes_read)

    def _datasets(self, numbers: NDArray[np.int64], *, counted: bool = False) -> Iterator[tuple[int, IndexedDataset]]:
        """Each of the shards, open while it is being looked at."""
        at, _ = self._reading.get(threading.get_ident(), (np.zeros(3, np.int64), 0.0))
        lease = self._pool.enter()
        try:
            for number in numbers.tolist():
                dataset = self._pool.dataset(number)
                at[1] += counted and dataset is not None
                while dataset is None:
                    at[0] = OPENING
                    lease = self._pool.open(lease, [number])
                    dataset = self._pool.dataset(number)
                at[0] = number
                yield number, dataset
        finally:
            self._pool.leave(lease)

    def read_counts(self) -> dict[str, int]:
        """What has been read so far; see `gristmill.runtime.metrics.MeasuredStream`."""
        found = {
            "bytes_read": self.counts.bytes_read,
            "shard_hits": self.counts.shard_hits,
            "shards_opened": self._pool.opened,
        }
        return found if self._access is None else found | self._access.counts()

    def waiting_on(self) -> list[tuple[str, float]]:
        """What the reads that are under way are at, in words that name the file, and for how many seconds each goes on.

        For messages about a read that does not come back; cheap, and safe to call from any thread.
        """
        found = []
        for at, since in list(self._reading.values()):
            place, opening = int(at[0]), self._pool.opening
            if place == OPENING and opening is not None:
                what = f"opening {self.shards[opening].prefix}"
            elif place >= 0:
                what = f"reading {self.shards[place].parts[0]}"
            elif self._rows_ahead is not None:
                what = f"reading ranges of {len(self.shards)} shards like {self.shards[0].parts[0]}"
            else:
                what = self._looking(place)
            found.append((what, time.monotonic() - since))
        return found

    @abstractmethod
    def _looking(self, place: int) -> str:
        """What a read is at that is in no shard yet, by the value of `at`."""

    def close(self) -> None:
        """Closes the shards; may be called twice. A later read opens them again."""
        if self._access is not None:
            self._access.pause()
        for ahead in (self._ahead, self._rows_ahead):
            if ahead is not None:
                ahead.close()
        self._pool.close()
        if self._access is not None:
            self._access.go_on()


def require_fit(dataset: IndexedDataset, tokens: NDArray[np.integer], dtype: np.dtype[np.uint16 | np.int32]) -> None:
    """Refuses tokens of a shard that the dtype of the stream does not hold.

    Raises:
        FormatError: one does not fit.
    """
    if np.can_cast(tokens.dtype, dtype) or not tokens.size:
        return
    most = max(int(tokens.max()), -int(tokens.min()))
    if most > np.iinfo(np.int32).max:
        raise FormatError(f"{dataset.prefix}: a token of {most} (or its negative) does not fit the stream's int32")
