"""Reads rows of a Megatron-ordered stream: from row numbers to tokens, a whole batch at once, ranged reads only.

A row is looked up in four steps: the blend names member and sample, the shuffle index the place of the sample, the
sample index its first and last place in the document index, and the shards the tokens. `RowReader.pieces` does this in
vectorised NumPy and is the definition; `RowReader.read` does it in compiled code where all shards are local files. An
index of any size costs nothing to open: only the entries of the rows asked for are ever touched.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.blend import Blend
from gristmill.formats.errors import FormatError
from gristmill.formats.indexed import IndexedDataset
from gristmill.formats.indices import MemberIndices
from gristmill.formats.storage import is_local
from gristmill.runtime.gather import NEW, gather
from gristmill.runtime.shards import Shard, ShardPool, address_of

__all__ = ["Member", "Pieces", "RowIndex", "RowReader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One source of a stream.

    Attributes:
        source: its name.
        shards: its shards; their sequences are numbered through in this order.
        indices: document, sample and shuffle index over those numbers.
    """

    source: str
    shards: tuple[Shard, ...]
    indices: MemberIndices


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIndex:
    """Everything that decides which tokens a row holds.

    Attributes:
        members: the sources, as the blend numbers them.
        dataset_index: int16 [>= rows], the member of each row; None for a single member.
        dataset_sample_index: int64 [>= rows], the sample of each row there; None for a single member.
        rows: number of rows, N.
        sequence_length: L.
        extra: 1 when a row holds L + 1 tokens, 0 when it holds L.
        more: the two arrays of a blend go on in these, where more rows are wanted than are stored; or None.
    """

    members: tuple[Member, ...]
    dataset_index: NDArray[np.int16] | None
    dataset_sample_index: NDArray[np.int64] | None
    rows: int
    sequence_length: int
    extra: int
    more: Blend | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The token ranges that rows are made of, in the order of the rows and from left to right; none is empty.

    Attributes:
        row: int64 [P], place of the row among those asked for.
        column: int64 [P], first token of the row that the piece fills.
        member: int64 [P], number of the member.
        shard: int64 [P], number of the shard in the reader's `shards`.
        sequence: int64 [P], number of the sequence in its shard.
        offset: int64 [P], first token of the sequence that is taken.
        count: int64 [P], tokens taken.
    """

    row: NDArray[np.int64]
    column: NDArray[np.int64]
    member: NDArray[np.int64]
    shard: NDArray[np.int64]
    sequence: NDArray[np.int64]
    offset: NDArray[np.int64]
    count: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row)


class RowReader:
    """Reads rows of one index; safe to use from many threads, pickles as the way to open it again.

    Attributes:
        index: what decides the rows.
        shards: the shards of all members, member after member.
        dtype: of the rows read: uint16 when every shard holds uint16, else int32.
    """

    def __init__(
        self,
        open_index: Callable[[], RowIndex],
        *,
        index: RowIndex | None = None,
        max_open_shards: int | None = None,
    ) -> None:
        """Opens the index; shards are opened when a row first needs them.

        Args:
            open_index: opens the index; pickled in place of everything else, so it should hold paths and keys only.
            index: what `open_index` gives, where it is at hand already.
            max_open_shards: how many shards are kept open; None takes `gristmill.runtime.shards.default_open_limit`.

        Raises:
            GristmillError: whatever `open_index` finds wrong.
            SettingsError: `max_open_shards` is below 1.
        """
        self._open_index = open_index
        self._max_open_shards = max_open_shards
        self.index = open_index() if index is None else index
        self.shards = tuple(shard for member in self.index.members for shard in member.shards)
        self.dtype: np.dtype[np.uint16 | np.int32] = np.dtype(np.int32)
        if all(shard.dtype == "uint16" for shard in self.shards):
            self.dtype = np.dtype(np.uint16)
        self._pool = ShardPool(self.shards, max_open_shards)
        self._compiled = all(is_local(shard.prefix) for shard in self.shards)
        self._first_shard = np.zeros(len(self.index.members), np.int64)
        self._make_tables()

    def _make_tables(self) -> None:
        rows: list[tuple[int, ...]] = []
        starts: list[NDArray[np.int64]] = []
        first = 0
        for number, member in enumerate(self.index.members):
            indices = member.indices
            for array in (indices.document_index, indices.sample_index, indices.shuffle_index):
                if not array.flags.c_contiguous or array.itemsize not in {4, 8}:
                    raise FormatError(f"source {member.source!r}: an index is no plain array of int32 or int64")
            self._first_shard[number] = first
            rows.append(
                (
                    address_of(indices.document_index),
                    len(indices.document_index),
                    address_of(indices.sample_index),
                    indices.sample_index.itemsize,
                    address_of(indices.shuffle_index),
                    indices.shuffle_index.itemsize,
                    len(indices.shuffle_index),
                    first,
                    len(member.shards),
                    len(indices.sample_index) - 1,
                )
            )
            counts = [shard.sequences for shard in member.shards]
            starts.append(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)]))
            first += len(member.shards)
        self._member_table = np.array(rows, np.int64)
        self._starts = starts
        self._all_starts = np.concatenate(starts)

    @property
    def width(self) -> int:
        """Tokens of a row."""
        return self.index.sequence_length + self.index.extra

    @property
    def open_shards(self) -> int:
        """Number of shards that are open now."""
        return self._pool.open_count

    def __len__(self) -> int:
        return self.index.rows

    def __reduce__(self) -> tuple[object, ...]:
        return (_reopen, (self._open_index, self._max_open_shards))

    def read(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        """Tokens of rows, in the order given.

        Args:
            rows: integers [R], 0 to N - 1, in any order, repeated or not.

        Returns:
            [R, width] of `dtype`, always fresh.

        Raises:
            IndexError: a row does not exist.
            FormatError: an index or a shard is damaged.
            CorpusError: a shard is not the one that the index was made for.
            StorageError: a file cannot be read.
        """
        if not self._compiled:
            return self.read_numpy(rows)
        members, samples = self._locate(rows)
        out = np.empty((len(members), self.width), self.dtype)
        progress = np.zeros((len(members), 2), np.int64)
        progress[:, 0] = NEW
        wanted = np.empty(min(len(self.shards), self._pool.limit), np.int64)
        lease = self._pool.enter()
        try:
            while True:
                missing = gather(
                    members,
                    samples,
                    self._member_table,
                    self._all_starts,
                    self._pool.table,
                    self._pool.stamps,
                    lease,
                    self.index.extra,
                    out,
                    progress,
                    wanted,
                )
                if missing == 0:
                    return out
                if missing < 0:
                    break
                lease = self._pool.open(lease, wanted[:missing])
        finally:
            self._pool.leave(lease)
        row = int(np.asarray(rows)[-1 - missing])
        self.read_numpy([row])
        raise FormatError(f"row {row}: the indices or shards changed while they were read")

    def read_numpy(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        """`read` in NumPy, one copy per piece: the definition, and the way for shards on an object store."""
        pieces = self.pieces(rows)
        out = np.empty((np.size(rows), self.width), self.dtype)
        for number, dataset in self._datasets(np.unique(pieces.shard)):
            for piece in np.flatnonzero(pieces.shard == number):
                row, column, count = pieces.row[piece], pieces.column[piece], int(pieces.count[piece])
                tokens = dataset.get(int(pieces.sequence[piece]), int(pieces.offset[piece]), count)
                if not np.can_cast(tokens.dtype, self.dtype):
                    _check_fits(dataset.prefix, tokens)
                out[row, column : column + count] = tokens
        return out

    def pieces(self, rows: ArrayLike) -> Pieces:
        """Where the tokens of rows lie.

        Args:
            rows: integers [R], 0 to N - 1, in any order, repeated or not.

        Raises:
            IndexError: a row does not exist.
            FormatError: the indices contradict each other or the shards.
            CorpusError: a shard is not the one that the index was made for.
            StorageError: a file cannot be read.
        """
        members, samples = self._locate(rows)
        walked = [self._walk(int(number), np.flatnonzero(members == number), samples) for number in np.unique(members)]
        empty = np.empty((6, 0), np.int64)
        table = np.concatenate([empty, *walked], axis=1)
        table = table[:, np.argsort(table[0], kind="stable")]
        row, member, shard, sequence, first, last = table
        for number, dataset in self._datasets(np.unique(shard)):
            here = shard == number
            length = dataset.lengths[sequence[here]].astype(np.int64)
            last[here] = np.where(last[here] < 0, length, last[here])
            if ((first[here] < 0) | (first[here] > last[here]) | (last[here] > length)).any():
                raise FormatError(
                    f"{dataset.prefix}: a sample reaches beyond a sequence: these shards are not the ones that the "
                    "indices were built from; build the indices again"
                )
        filled = np.bincount(row, last - first, len(members)).astype(np.int64)
        if (filled != self.width).any():
            bad = int(np.argmax(filled != self.width))
            raise FormatError(
                f"row {np.ravel(rows)[bad]}: its pieces hold {filled[bad]} tokens, not {self.width}: these shards are "
                "not the ones that the indices were built from; build the indices again"
            )
        ends = np.cumsum(last - first)
        column = ends - (last - first) - row * self.width
        used = last > first
        return Pieces(
            row=row[used],
            column=column[used],
            member=member[used],
            shard=shard[used],
            sequence=sequence[used],
            offset=first[used],
            count=(last - first)[used],
        )

    def documents(self, pieces: Pieces) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which documents pieces belong to.

        Args:
            pieces: from `pieces`.

        Returns:
            document: int64 [P], number of the document in its shard.
            start: int64 [P], first token taken, counted from the start of the document.
        """
        document = np.zeros(len(pieces), np.int64)
        start = pieces.offset.copy()
        for number, dataset in self._datasets(np.unique(pieces.shard)):
            here = pieces.shard == number
            sequence = pieces.sequence[here]
            bounds = dataset.document_indices
            document[here] = np.searchsorted(bounds, sequence, side="right") - 1
            opening = bounds[document[here]]  # first sequence of the document
            start[here] += (dataset.pointers[sequence] - dataset.pointers[opening]) // dataset.dtype.itemsize
        return document, start

    def _locate(self, rows: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Member and sample of each row."""
        numbers = np.asarray(rows)
        if numbers.ndim != 1 or (numbers.size and not np.issubdtype(numbers.dtype, np.integer)):
            raise IndexError(f"rows are {numbers.dtype} of shape {numbers.shape}; the rule is a list of integers")
        numbers = numbers.astype(np.int64)
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            bad = int(numbers[np.argmax((numbers < 0) | (numbers >= len(self)))])
            raise IndexError(f"row {bad} does not exist; the stream has {len(self)} rows, 0 to {len(self) - 1}")
        if self.index.dataset_index is None or self.index.dataset_sample_index is None:
            return np.zeros(len(numbers), np.int64), numbers
        more = self.index.more
        members = _taken(self.index.dataset_index, None if more is None else more[0], numbers)
        if members.size and not 0 <= int(members.min()) <= int(members.max()) < len(self.index.members):
            raise FormatError(
                f"the blend names member {int(members.max())}, but there are {len(self.index.members)}: damaged; build "
                "the indices again"
            )
        return members, _taken(self.index.dataset_sample_index, None if more is None else more[1], numbers)

    def _walk(self, number: int, rows: NDArray[np.int64], samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The entries of the document index that rows of one member touch.

        Returns:
            int64 [6, E]: row, member, shard, sequence in the shard, first token, and one past the last token or -1
            where the piece runs to the end of its sequence.
        """
        member = self.index.members[number]
        indices = member.indices
        wrong = FormatError(
            f"source {member.source!r}: the indices contradict each other: damaged; build the indices again"
        )
        sample = samples[rows]
        count = len(indices.shuffle_index)
        if int(sample.max(initial=0)) >= count or int(sample.min(initial=0)) < 0:
            raise wrong
        place = indices.shuffle_index[sample].astype(np.int64)
        if int(place.max(initial=0)) >= len(indices.sample_index) - 1 or int(place.min(initial=0)) < 0:
            raise wrong
        begin = indices.sample_index[place].astype(np.int64)
        end = indices.sample_index[place + 1].astype(np.int64)
        entries = end[:, 0] - begin[:, 0] + 1
        if (entries < 1).any() or (begin[:, 0] < 0).any() or (end[:, 0] >= len(indices.document_index)).any():
            raise wrong
        stops = np.cumsum(entries)
        which = np.repeat(np.arange(len(rows)), entries)
        within = np.arange(len(which)) - (stops - entries)[which]
        sequence = indices.document_index[begin[which, 0] + within].astype(np.int64)
        starts = self._starts[number]
        if int(sequence.min(initial=0)) < 0 or int(sequence.max(initial=0)) >= starts[-1]:
            raise wrong
        shard = np.searchsorted(starts, sequence, side="right") - 1
        first = np.where(within == 0, begin[which, 1], 0)
        last = np.where(within == entries[which] - 1, end[which, 1] + self.index.extra, -1)
        member_numbers = np.full(len(which), number)
        return np.stack(
            [rows[which], member_numbers, self._first_shard[number] + shard, sequence - starts[shard], first, last]
        )

    def _datasets(self, numbers: NDArray[np.int64]) -> Iterator[tuple[int, IndexedDataset]]:
        """Each of the shards, open while it is being looked at."""
        lease = self._pool.enter()
        try:
            for number in numbers.tolist():
                while (dataset := self._pool.dataset(number)) is None:
                    lease = self._pool.open(lease, [number])
                yield number, dataset
        finally:
            self._pool.leave(lease)

    def close(self) -> None:
        """Closes the shards; may be called twice. A later read opens them again."""
        self._pool.close()


def _taken(stored: NDArray[Any], more: NDArray[Any] | None, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Entries of an array, or of what goes on behind it, as int64."""
    if more is None:
        return stored[rows].astype(np.int64)
    behind = rows >= len(stored)
    found = np.empty(len(rows), np.int64)
    found[~behind], found[behind] = stored[rows[~behind]], more[rows[behind] - len(stored)]
    return found


def _check_fits(prefix: str, tokens: NDArray[np.integer]) -> None:
    most = max(int(tokens.max()), -int(tokens.min()))
    if most > np.iinfo(np.int32).max:
        raise FormatError(f"{prefix}: a token of {most} (or its negative) does not fit the stream's int32")


def _reopen(open_index: Callable[[], RowIndex], max_open_shards: int | None) -> RowReader:
    return RowReader(open_index, max_open_shards=max_open_shards)
