"""Reads rows of a Megatron-ordered stream: from row numbers to tokens, a whole batch at once, ranged reads only.

A row is looked up in four steps: the blend names member and sample, the shuffle index the place of the sample, the
sample index its first and last place in the document index, and the shards the tokens. `RowReader.pieces` does this in
vectorised NumPy and is the definition; `RowReader.read` does it in compiled code where all shards are local files. An
index of any size costs nothing to open: only the entries of the rows asked for are ever touched.
"""

import os.path
import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.errors import FormatError
from gristmill.runtime.arrays import file_of
from gristmill.runtime.backends import Backend, check_backend
from gristmill.runtime.gather import FIRST_MEMBER, OPENING, gather
from gristmill.runtime.pairs import TokenPairs, aligned_arrays, pairs_of
from gristmill.runtime.pieces import Pieces, piece_starts
from gristmill.runtime.ranged import RangedDataset
from gristmill.runtime.row_index import RowIndex
from gristmill.runtime.rows_ahead import TokensAndStarts
from gristmill.runtime.shard_reader import ShardReader, require_fit
from gristmill.runtime.walk import RowWalk

__all__ = ["RowReader"]

_NO_STARTS = np.zeros((0, 0), np.bool_)
_ALL_WHOLE = np.zeros(0, np.int64)


class RowReader(ShardReader):
    """Reads rows of one index; safe to use from many threads, pickles as the way to open it again.

    Attributes:
        index: what decides the rows.
        shards: the shards of all members, member after member.
        dtype: of the rows read: uint16 when every shard holds uint16, else int32.
        counts: what has been read so far.
    """

    def __init__(
        self,
        open_index: Callable[[], RowIndex],
        *,
        index: RowIndex | None = None,
        max_open_shards: int | None = None,
        backend: Backend = "auto",
    ) -> None:
        """Opens the index; shards are opened when a row first needs them.

        Args:
            open_index: opens the index; pickled in place of everything else, so it should hold paths and keys only.
            index: what `open_index` gives, where it is at hand already.
            max_open_shards: how many shards are kept open; None takes `gristmill.runtime.shards.default_open_limit`.
            backend: how local files are read: ``mmap`` through maps, ``pread`` by ranged reads alone, ``auto`` as the
                file system of each asks for; see `gristmill.runtime.backends`.

        Raises:
            GristmillError: whatever `open_index` finds wrong.
            SettingsError: `max_open_shards` is below 1, or `backend` is none of the three.
        """
        self._open_index = open_index
        check_backend(backend)  # before anything is opened
        self.index = open_index() if index is None else index
        shards = [shard for member in self.index.members for shard in member.shards]
        super().__init__(shards, max_open_shards, backend, self.index.access)
        self._walk = RowWalk(self.index, self._backend)
        self._no_targets = np.empty((0, 0), self.dtype)
        self._compiled = self._walk.mapped and self._mapped
        self._follow(self._walk.shards, _reading_with(self), len(self), self.width)

    @property
    def width(self) -> int:
        """Tokens of a row."""
        return self.index.sequence_length + self.index.extra

    def __len__(self) -> int:
        return self.index.rows

    def __reduce__(self) -> tuple[object, ...]:
        return (_reopen, (self._open_index, self._max_open_shards, self._backend))

    def held(self, rows: ArrayLike) -> NDArray[np.int64]:
        """How many tokens rows hold, int64 [R]; `width`, but for the last samples of an index that keeps partial ones.

        Args:
            rows: as for `read`, which says what is raised.
        """
        members, samples = self._walk.locate(rows)
        return self._walk.held(members, samples) if self.index.partial else np.full(len(members), self.width)

    def read(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        """Tokens of rows, in the order given.

        Args:
            rows: integers [R], 0 to N - 1, in any order, repeated or not.

        Returns:
            [R, width] of `dtype`, always fresh; of local files aligned to 64 bytes.

        Raises:
            IndexError: a row does not exist.
            FormatError: an index or a shard is damaged.
            CorpusError: a shard is not the one that the index was made for.
            StorageError: a file cannot be read.
        """
        return self._read(rows, _NO_STARTS)

    def read_documents(self, rows: ArrayLike) -> tuple[NDArray[np.uint16 | np.int32], NDArray[np.bool_]]:
        """Tokens of rows, and where each goes on with another entry of the document index.

        Args:
            rows: as for `read`, which says what is raised.

        Returns:
            tokens: [R, width] of `dtype`, always fresh.
            starts: bool [R, width], see `gristmill.runtime.pieces.piece_starts`.
        """
        starts = np.zeros((np.size(rows), self.width), bool)
        return self._read(rows, starts), starts

    def read_pairs(self, rows: ArrayLike) -> TokenPairs:
        """Inputs and targets of rows, in the order given; see `gristmill.runtime.pairs.PairStream`.

        Args:
            rows: as for `read`, which says what is raised.

        Returns:
            [R, width - 1] of `dtype` each, always fresh, aligned to 64 bytes.
        """
        if not self._compiled:
            return pairs_of(self.read(rows))
        self._walk.require_whole()
        with self._read_noted(rows) as at:
            shape = np.size(rows), self.width - 1
            inputs, targets = aligned_arrays(2, shape, self.dtype, zeros=self.index.partial)
            self._gather(rows, _NO_STARTS, inputs, targets, at)
        return inputs, targets

    def _read(self, rows: ArrayLike, starts: NDArray[np.bool_]) -> NDArray[np.uint16 | np.int32]:
        """`read`; fills `starts` unless it has no rows."""
        self._walk.require_whole()
        with self._read_noted(rows) as at:
            if self._compiled:
                out = self._room(np.size(rows))
                self._gather(rows, starts, out, self._no_targets, at)
                return out
            read = self._read_pieces if self._rows_ahead is None else self._rows_ahead.read
            tokens, found = read(rows)
            if starts.size:
                starts[:] = found
            return tokens

    def _read_pieces(self, rows: ArrayLike) -> TokensAndStarts:
        """Tokens of rows, and where each goes on with another entry, by the definition."""
        pieces, firsts = self._pieces(rows)
        return self._copy(pieces, firsts, np.size(rows)), piece_starts(pieces, np.size(rows), self.width)

    def _gather(
        self,
        rows: ArrayLike,
        starts: NDArray[np.bool_],
        out: NDArray[np.uint16 | np.int32],
        targets: NDArray[np.uint16 | np.int32],
        at: NDArray[np.int64],
    ) -> None:
        """Fills `out`, and `targets` and `starts` unless they have no rows; see `gather` for what each gets."""
        members, samples = self._walk.locate(rows)
        held = self._walk.held(members, samples) if self.index.partial else _ALL_WHOLE
        progress = np.zeros((len(members), 2), np.int64)  # NEW
        wanted = np.empty(self._most_wanted, np.int64)
        lease = self._pool.enter()
        try:
            while True:
                missing = gather(
                    members,
                    samples,
                    self._walk.table,
                    self._walk.shard_starts,
                    self._pool.table,
                    self._pool.stamps,
                    lease,
                    self.index.extra,
                    held,
                    out,
                    targets,
                    starts,
                    progress,
                    wanted,
                    at,
                )
                if missing == 0:
                    return
                if missing < 0:
                    break
                at[0] = OPENING
                lease = self._pool.open(lease, wanted[:missing])
        finally:
            self._pool.leave(lease)
        row = int(np.asarray(rows)[-1 - missing])
        self._pool.require_whole()
        self.read_numpy([row])
        raise FormatError(f"row {row}: the indices or shards changed while they were read")

    def read_numpy(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        """`read` in NumPy, one copy per piece: the definition, and the way for shards on an object store."""
        return self._copy(*self._pieces(rows), np.size(rows))

    def _copy(self, pieces: Pieces, firsts: NDArray[np.int64], rows: int) -> NDArray[np.uint16 | np.int32]:
        """Tokens of pieces; `firsts` is int64 [P], the first token of each, counted through its shard."""
        out = self._room(rows)
        if self._access is not None and self._access.ranges is not None:
            places = pieces.row * self.width + pieces.column
            read = self._access.ranges.read_into(pieces.shard, firsts, pieces.count, places, out.reshape(-1))
            self.counts.add(bytes_read=read)
            return out
        for number, dataset in self._datasets(np.unique(pieces.shard)):
            here = np.flatnonzero(pieces.shard == number)
            if isinstance(dataset, RangedDataset):
                places = pieces.row[here] * self.width + pieces.column[here]
                self._copy_ranges(dataset, number, firsts[here], pieces.count[here], places, out)
                continue
            for piece in here:
                row, column, count = pieces.row[piece], pieces.column[piece], int(pieces.count[piece])
                try:
                    tokens = dataset.get(int(pieces.sequence[piece]), int(pieces.offset[piece]), count)
                except IndexError as error:  # the lengths were as they must be, so a pointer is not
                    raise FormatError(f"{error}: the index of the pair is damaged") from error
                require_fit(dataset, tokens, self.dtype)
                out[row, column : column + count] = tokens
                self.counts.add(bytes_read=tokens.nbytes)
        return out

    def _room(self, rows: int) -> NDArray[np.uint16 | np.int32]:
        """Where tokens of rows are copied to, aligned for devices that take it as it is; 0 where there may be none."""
        room: NDArray[np.uint16 | np.int32]
        (room,) = aligned_arrays(1, (rows, self.width), self.dtype, zeros=self.index.partial)
        return room

    def rows_by_source(self, rows: ArrayLike) -> dict[str, int]:
        """How many of some rows come from each source; see `gristmill.runtime.metrics.MeasuredStream`."""
        members, _ = self._walk.locate(rows)
        found = dict.fromkeys((member.source for member in self.index.members), 0)
        for member, count in zip(self.index.members, np.bincount(members, minlength=len(self.index.members))):
            found[member.source] += int(count)
        return found

    def _looking(self, place: int) -> str:
        if place > FIRST_MEMBER:
            return "looking up rows in the blend"
        member = self.index.members[FIRST_MEMBER - place]
        file = file_of(member.indices.document_index)
        where = "in memory" if file is None else f"in {os.path.dirname(file.path)}"
        return f"reading the indices of {member.source!r} {where}"

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
        return self._pieces(rows)[0]

    def _spans(self, shard: NDArray[np.int64], sequence: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Tokens of sequences, and the first token of each, counted through its shard; int64 [E] both."""
        if self._access is not None and self._access.ranges is not None:
            return self._access.ranges.spans(shard, sequence)
        lengths, firsts = np.empty(len(shard), np.int64), np.empty(len(shard), np.int64)
        for number, dataset in self._datasets(np.unique(shard), counted=True):
            here = shard == number
            lengths[here] = dataset.lengths[sequence[here]]
            firsts[here] = dataset.pointers[sequence[here]] // dataset.dtype.itemsize
        return lengths, firsts

    def _pieces(self, rows: ArrayLike) -> tuple[Pieces, NDArray[np.int64]]:
        """Where the tokens of rows lie, and the first token of each piece, counted through its shard; int64 [P]."""
        members, samples = self._walk.locate(rows)
        walked = [
            self._walk.entries(int(number), np.flatnonzero(members == number), samples) for number in np.unique(members)
        ]
        empty = np.empty((6, 0), np.int64)
        table = np.concatenate([empty, *walked], axis=1)
        table = table[:, np.argsort(table[0], kind="stable")]
        row, member, shard, sequence, first, last = table
        length, begin = self._spans(shard, sequence)
        last = np.where(last < 0, length, last)
        beyond = (first < 0) | (first > last) | (last > length)
        if beyond.any():
            prefix = self.shards[int(shard[np.argmax(beyond)])].prefix
            raise FormatError(
                f"{prefix}: a sample reaches beyond a sequence: these shards are not the ones that the indices were "
                "built from; build the indices again"
            )
        filled = np.bincount(row, last - first, len(members)).astype(np.int64)
        held = self._walk.held(members, samples) if self.index.partial else np.full(len(members), self.width)
        if (filled != held).any():
            bad = int(np.argmax(filled != held))
            raise FormatError(
                f"row {np.ravel(rows)[bad]}: its pieces hold {filled[bad]} tokens, not {held[bad]}: these shards are "
                "not the ones that the indices were built from; build the indices again"
            )
        ends = np.cumsum(last - first)
        column = ends - (last - first) - (np.cumsum(held) - held)[row]
        used = last > first
        pieces = Pieces(
            row=row[used],
            column=column[used],
            member=member[used],
            shard=shard[used],
            sequence=sequence[used],
            offset=first[used],
            count=(last - first)[used],
        )
        return pieces, (begin + first)[used]

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


def _reading_with(reader: RowReader) -> Callable[[ArrayLike], TokensAndStarts]:
    """Reads rows as a reader does, for as long as somebody else keeps it."""
    reference = weakref.ref(reader)

    def read(rows: ArrayLike) -> TokensAndStarts:
        found = reference()
        if found is None:
            raise ValueError("the stream is gone")
        return found._read_pieces(rows)  # noqa: SLF001 - a part of the class

    return read


def _reopen(open_index: Callable[[], RowIndex], max_open_shards: int | None, backend: Backend) -> RowReader:
    return RowReader(open_index, max_open_shards=max_open_shards, backend=backend)
