"""Reads rows of a window stream: contiguous tokens, a whole batch at once.

`WindowReader.pieces` is the definition, in vectorised NumPy; `WindowReader.read` does the same in compiled code where
all shards are local files. The indices of shards are looked into only to tell where documents begin.
"""

import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.errors import FormatError
from gristmill.formats.indexed import IndexedDataset
from gristmill.runtime.backends import Backend, check_backend
from gristmill.runtime.gather import OPENING
from gristmill.runtime.pairs import TokenPairs, aligned_arrays, pairs_of
from gristmill.runtime.ranged import RangedDataset
from gristmill.runtime.rows_ahead import TokensAndStarts
from gristmill.runtime.shard_reader import ShardReader, require_fit
from gristmill.runtime.window_gather import gather_windows
from gristmill.runtime.window_index import WindowIndex, WindowWalk, runs

__all__ = ["WindowReader"]

_ROW, _COLUMN, _SHARD, _START, _COUNT, _SEQUENCE = range(6)


class WindowReader(ShardReader):
    """Reads rows of one window index; safe to use from many threads, pickles as the way to open it again.

    Attributes:
        index: what decides the rows.
        shards: the shards of all members, member after member.
        dtype: of the rows read: uint16 when every shard holds uint16, else int32.
        counts: what has been read so far.
    """

    def __init__(
        self,
        open_index: Callable[[], WindowIndex],
        *,
        index: WindowIndex | None = None,
        max_open_shards: int | None = None,
        backend: Backend = "auto",
    ) -> None:
        """Opens the index; shards are opened when a row first needs them. Arguments and errors as `RowReader`."""
        self._open_index = open_index
        check_backend(backend)  # before anything is opened
        self.index = open_index() if index is None else index
        shards = [shard for member in self.index.members for shard in member.shards]
        super().__init__(shards, max_open_shards, backend, self.index.access)
        self._walk = WindowWalk(self.index)
        self._follow(self._walk.shards, _reading_with(self), len(self), self.width)
        self._sources = np.repeat(np.arange(len(self.index.members)), [len(m.shards) for m in self.index.members])

    @property
    def width(self) -> int:
        """Tokens of a row."""
        return self.index.sequence_length + 1

    def __len__(self) -> int:
        return self.index.rows

    def __reduce__(self) -> tuple[object, ...]:
        return (_reopen, (self._open_index, self._max_open_shards, self._backend))

    def held(self, rows: ArrayLike) -> NDArray[np.int64]:
        """How many tokens rows hold, int64 [R]; `width`, but for the last window of a member where partial ones count.

        Args:
            rows: as for `read`, which says what is raised.
        """
        _, counts = self._walk.ranges(*self._walk.locate(rows))
        return counts

    def read(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        """Tokens of rows, in the order given.

        Args:
            rows: integers [R], 0 to N - 1, in any order, repeated or not.

        Returns:
            [R, width] of `dtype`, always fresh, of local files aligned to 64 bytes; 0 behind what a row holds.

        Raises:
            IndexError: a row does not exist.
            FormatError: a shard is damaged.
            CorpusError: a shard is not the one that the stream was opened on.
            StorageError: a file cannot be read.
        """
        with self._read_noted(rows) as at:
            starts, counts = self._walk.ranges(*self._walk.locate(rows))
            if self._mapped:
                out = self._room(len(starts))
                self._gather(rows, starts, counts, out, np.empty((0, 0), self.dtype), at)
                return out
            return self._copy(starts, counts) if self._rows_ahead is None else self._rows_ahead.read(rows)[0]

    def read_pairs(self, rows: ArrayLike) -> TokenPairs:
        """Inputs and targets of rows, in the order given; see `gristmill.runtime.pairs.PairStream`.

        Args:
            rows: as for `read`, which says what is raised.

        Returns:
            [R, width - 1] of `dtype` each, always fresh, aligned to 64 bytes; 0 behind what a row holds.
        """
        if not self._mapped:
            return pairs_of(self.read(rows))
        with self._read_noted(rows) as at:
            starts, counts = self._walk.ranges(*self._walk.locate(rows))
            shape = len(starts), self.width - 1
            inputs, targets = aligned_arrays(2, shape, self.dtype, zeros=self.index.partial)
            self._gather(rows, starts, counts, inputs, targets, at)
        return inputs, targets

    def read_numpy(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        """`read` in NumPy: the definition, and the way for shards on an object store."""
        return self._copy(*self._walk.ranges(*self._walk.locate(rows)))

    def read_documents(self, rows: ArrayLike) -> tuple[NDArray[np.uint16 | np.int32], NDArray[np.bool_]]:
        """Tokens of rows, and where another sequence of the shards begins.

        Args:
            rows: as for `read`, which says what is raised.

        Returns:
            tokens: [R, width] of `dtype`, always fresh.
            starts: bool [R, width], True where a sequence begins, but for column 0.
        """
        tokens = self.read(rows)
        pieces = self.sequences(rows)
        starts = np.zeros(tokens.shape, bool)
        starts[pieces[_ROW], pieces[_COLUMN]] = pieces[_COLUMN] > 0
        return tokens, starts

    def _gather(
        self,
        rows: ArrayLike,
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        out: NDArray[np.uint16 | np.int32],
        targets: NDArray[np.uint16 | np.int32],
        at: NDArray[np.int64],
    ) -> None:
        """Fills `out`, and `targets` unless it has no rows; see `gather_windows` for what each gets."""
        filled = np.zeros(len(starts), np.int64)
        wanted = np.empty(self._most_wanted, np.int64)
        pool, lease = self._pool, self._pool.enter()
        try:
            while True:
                missing = gather_windows(
                    starts,
                    counts,
                    self._walk.shard_starts,
                    pool.table,
                    pool.stamps,
                    lease,
                    out,
                    targets,
                    filled,
                    wanted,
                    at,
                )
                if missing == 0:
                    return
                if missing < 0:
                    break
                at[0] = OPENING
                lease = pool.open(lease, wanted[:missing])
        finally:
            pool.leave(lease)
        row = int(np.asarray(rows)[-1 - missing])
        pool.require_whole()
        self.read_numpy([row])
        raise FormatError(f"row {row}: the shards changed while they were read")

    def _room(self, rows: int) -> NDArray[np.uint16 | np.int32]:
        room: NDArray[np.uint16 | np.int32]
        (room,) = aligned_arrays(1, (rows, self.width), self.dtype, zeros=self.index.partial)
        return room

    def _copy(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.uint16 | np.int32]:
        out = self._room(len(starts))
        pieces = self._walk.pieces(starts, counts)
        if self._access is not None and self._access.ranges is not None:
            row, column, shard, first, count = pieces
            read = self._access.ranges.read_into(shard, first, count, row * self.width + column, out.reshape(-1))
            self.counts.add(bytes_read=read)
            return out
        for number, dataset in self._datasets(np.unique(pieces[_SHARD]), counted=True):
            row, column, _, first, count = pieces[:, pieces[_SHARD] == number]
            if isinstance(dataset, RangedDataset):
                self._copy_ranges(dataset, number, first, count, row * self.width + column, out)
                continue
            for piece in range(len(row)):
                tokens = dataset.read(int(first[piece]), int(count[piece]))
                require_fit(dataset, tokens, self.dtype)
                out[row[piece], column[piece] : column[piece] + count[piece]] = tokens
                self.counts.add(bytes_read=tokens.nbytes)
        return out

    def pieces(self, rows: ArrayLike) -> NDArray[np.int64]:
        """Where the tokens of rows lie.

        Args:
            rows: integers [R], 0 to N - 1, in any order, repeated or not.

        Returns:
            int64 [5, P], by row and from left to right: place of the row among those asked for, first column, shard,
            first token in the shard, and tokens; none is empty.

        Raises:
            IndexError: a row does not exist.
        """
        return self._walk.pieces(*self._walk.ranges(*self._walk.locate(rows)))

    def sequences(self, rows: ArrayLike) -> NDArray[np.int64]:
        """The sequences that rows are made of; opens the shards.

        Args:
            rows: as for `pieces`, which says what is raised; as does `read` of files.

        Returns:
            int64 [6, P], by row and from left to right: as `pieces` has them, and the number of the sequence.
        """
        pieces = self.pieces(rows)
        found = [np.empty((6, 0), np.int64)]
        for number, dataset in self._datasets(np.unique(pieces[_SHARD])):
            found.append(_cut(dataset, pieces[:, pieces[_SHARD] == number]))
        table = np.concatenate(found, axis=1)
        return table[:, np.lexsort((table[_COLUMN], table[_ROW]))]

    def documents(self, sequences: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which documents sequences belong to.

        Args:
            sequences: from `sequences`.

        Returns:
            document: int64 [P], number of the document in its shard.
            start: int64 [P], first token taken, counted from the start of the document.
        """
        document, start = np.zeros((2, sequences.shape[1]), np.int64)
        for number, dataset in self._datasets(np.unique(sequences[_SHARD])):
            here = sequences[_SHARD] == number
            document[here], opens = _documents(dataset, sequences[_SEQUENCE, here])
            start[here] = sequences[_START, here] - opens
        return document, start

    def source_of(self, shard: int) -> str:
        """Name of the source that a shard belongs to."""
        return self.index.members[int(self._sources[shard])].source

    def rows_by_source(self, rows: ArrayLike) -> dict[str, int]:
        """How many of some rows come from each source; see `gristmill.runtime.metrics.MeasuredStream`."""
        members, _ = self._walk.locate(rows)
        counts = np.bincount(members, minlength=len(self.index.members)).tolist()
        return {member.source: count for member, count in zip(self.index.members, counts, strict=True)}

    def _looking(self, place: int) -> str:  # noqa: ARG002 - there is only one thing to look up
        return "working out which windows the rows are"


def _cut(dataset: IndexedDataset, pieces: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pieces of one shard cut where its sequences begin: int64 [6, P], the last row the number of the sequence."""
    row, column, shard, start, count = pieces
    item = dataset.dtype.itemsize
    first = _entries_below(dataset.pointers, start * item + 1) - 1
    stop = _entries_below(dataset.pointers, (start + count) * item)
    piece, sequence = runs(first, stop)
    opens = dataset.pointers[sequence].astype(np.int64) // item
    begin = np.maximum(start[piece], opens)
    held = np.minimum(start[piece] + count[piece], opens + dataset.lengths[sequence]) - begin
    moved = column[piece] + begin - start[piece]
    return np.stack([row[piece], moved, shard[piece], begin, held, sequence])[:, held > 0]


def _documents(dataset: IndexedDataset, sequences: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The documents that sequences of a shard belong to, and the tokens at which these begin: int64 [P] both."""
    bounds = dataset.document_indices
    document = _entries_below(bounds, sequences + 1) - 1
    return document, dataset.pointers[bounds[document].astype(np.int64)].astype(np.int64) // dataset.dtype.itemsize


def _entries_below(entries: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many entries of an ascending array are smaller than each value; looks at few, where `searchsorted` copies."""
    low, high = np.zeros(len(values), np.int64), np.full(len(values), len(entries))
    while (low < high).any():
        middle = np.minimum((low + high) // 2, len(entries) - 1)
        smaller = (entries[middle] < values) & (low < high)
        low, high = np.where(smaller, middle + 1, low), np.where(smaller, high, np.minimum(high, middle))
    return low


def _reading_with(reader: WindowReader) -> Callable[[ArrayLike], TokensAndStarts]:
    """Reads rows as a reader does, for as long as somebody else keeps it; where sequences begin is left out."""
    reference = weakref.ref(reader)

    def read(rows: ArrayLike) -> TokensAndStarts:
        found = reference()
        if found is None:
            raise ValueError("the stream is gone")
        tokens = found.read_numpy(rows)
        return tokens, np.zeros((len(tokens), 0), np.bool_)

    return read


def _reopen(open_index: Callable[[], WindowIndex], max_open_shards: int | None, backend: Backend) -> WindowReader:
    return WindowReader(open_index, max_open_shards=max_open_shards, backend=backend)
