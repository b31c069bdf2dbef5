"""The walk from row numbers to entries of the document index, in vectorised NumPy: the definition of what a row holds.

The blend names member and sample of a row, the shuffle index the place of the sample, the sample index its first and
last place in the document index. Arrays are only ever looked into where the rows asked for need it.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.errors import FormatError
from gristmill.runtime.arrays import IndexWatch, address_of, file_of
from gristmill.runtime.backends import Backend, backend_of
from gristmill.runtime.copies import first_outside
from gristmill.runtime.ranged import FileArray, ranged_array
from gristmill.runtime.row_index import RowIndex

__all__ = ["RowWalk"]


class RowWalk:
    """Looks rows up in the arrays of an index. Safe to use from many threads.

    Attributes:
        index: what decides the rows.
        mapped: whether every array is in memory or in a map, so that its address may be followed.
        table: int64 [members, MEMBER_COLUMNS], see `gristmill.runtime.gather`; of use where `mapped`.
        shard_starts: int64 [shards + members], the first sequence of each shard of a member and, behind them, its
            number of sequences; member after member.
    """

    def __init__(self, index: RowIndex, backend: Backend) -> None:
        """Looks into no array.

        Args:
            index: what decides the rows.
            backend: how the files of its arrays are read.

        Raises:
            FormatError: an array is none of int32 or int64.
            StorageError: a file cannot be opened.
        """
        self.index = index
        self._blended = index.dataset_index is not None and index.dataset_sample_index is not None
        self._arrays = [_array(array, backend) for array in index.arrays]
        self.mapped = not any(isinstance(array, FileArray) for array in self._arrays)
        self._watch = IndexWatch(self._arrays)
        self._first_shard = np.zeros(len(index.members), np.int64)
        self._make_tables()

    def require_whole(self) -> None:
        """Checks, once a second, that no mapped file of an index was cut short; see `IndexWatch.require_whole`."""
        self._watch.require_whole()

    def _make_tables(self) -> None:
        rows: list[tuple[int, ...]] = []
        starts: list[NDArray[np.int64]] = []
        first = 0
        for number, member in enumerate(self.index.members):
            indices = member.indices
            arrays = (indices.document_index, indices.sample_index, indices.shuffle_index)
            for array in arrays:
                plain = _by_ranges(array) or array.flags.c_contiguous
                if not plain or array.dtype.itemsize not in {4, 8}:
                    raise FormatError(f"source {member.source!r}: an index is no plain array of int32 or int64")
            self._first_shard[number] = first
            rows.append(
                (
                    _address(indices.document_index),
                    len(indices.document_index),
                    _address(indices.sample_index),
                    indices.sample_index.dtype.itemsize,
                    _address(indices.shuffle_index),
                    indices.shuffle_index.dtype.itemsize,
                    len(indices.shuffle_index),
                    first,
                    len(member.shards),
                    len(indices.sample_index) - 1,
                )
            )
            counts = [shard.sequences for shard in member.shards]
            starts.append(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)]))
            first += len(member.shards)
        self.table = np.array(rows, np.int64)
        self._starts = starts
        self.shard_starts = np.concatenate(starts)

    def locate(self, rows: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Member and sample of each row."""
        numbers = np.asarray(rows)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise IndexError(f"rows are {numbers.dtype} of shape {numbers.shape}; the rule is a list of integers")
        numbers = numbers.astype(np.int64)
        bad = first_outside(numbers, self.index.rows)
        if bad >= 0:
            raise IndexError(
                f"row {numbers[bad]} does not exist; the stream has {self.index.rows} rows, 0 to {self.index.rows - 1}"
            )
        if not self._blended:
            return np.zeros(len(numbers), np.int64), numbers
        more = self.index.more
        dataset_index, dataset_sample_index = self._arrays[-2:]
        members = _taken(dataset_index, None if more is None else more[0], numbers)
        bad = first_outside(members, len(self.index.members))
        if bad >= 0:
            raise FormatError(
                f"the blend names member {members[bad]}, but there are {len(self.index.members)}: damaged; build "
                "the indices again"
            )
        return members, _taken(dataset_sample_index, None if more is None else more[1], numbers)

    def held(self, members: NDArray[np.int64], samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of each row, int64 [R]: those of a sample behind the last whole one are what the stream has left.

        Megatron's count of samples with the partial one can be too large; each one too many holds the extra token.
        """
        width = self.index.sequence_length + self.index.extra
        found = np.full(len(members), width)
        for number in np.unique(members).tolist():
            here = np.flatnonzero(members == number)
            shuffle_index, plan = self._arrays[3 * number + 2], self.index.members[number].indices.plan
            sample = np.clip(samples[here], 0, len(shuffle_index) - 1)  # others are told by the walk
            left = plan.epochs * plan.tokens - shuffle_index[sample].astype(np.int64) * self.index.sequence_length
            found[here] = np.clip(left, self.index.extra, width)
        return found

    def shards(self, rows: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The shards that rows need, in the order of their first use.

        Returns:
            int64 [shards] both: their numbers, and for each the place among `rows` of the first that needs it.
        """
        members, samples = self.locate(rows)
        walked = [self.entries(int(one), np.flatnonzero(members == one), samples) for one in np.unique(members)]
        table = np.concatenate([np.empty((6, 0), np.int64), *walked], axis=1)
        table = table[:, np.argsort(table[0], kind="stable")]
        _, first = np.unique(table[2], return_index=True)
        row, shard = table[0, np.sort(first)], table[2, np.sort(first)]
        return shard, row

    def entries(self, number: int, rows: NDArray[np.int64], samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The entries of the document index that rows of one member touch.

        Returns:
            int64 [6, E]: row, member, shard, sequence in the shard, first token, and one past the last token or -1
            where the piece runs to the end of its sequence.
        """
        document_index, sample_index, shuffle_index = self._arrays[3 * number : 3 * number + 3]
        wrong = FormatError(
            f"source {self.index.members[number].source!r}: the indices contradict each other: damaged; build the "
            "indices again"
        )
        sample = samples[rows]
        count = len(shuffle_index)
        if int(sample.max(initial=0)) >= count or int(sample.min(initial=0)) < 0:
            raise wrong
        place = shuffle_index[sample].astype(np.int64)
        if int(place.max(initial=0)) >= len(sample_index) - 1 or int(place.min(initial=0)) < 0:
            raise wrong
        begin = sample_index[place].astype(np.int64)
        end = sample_index[place + 1].astype(np.int64)
        entries = end[:, 0] - begin[:, 0] + 1
        if (entries < 1).any() or (begin[:, 0] < 0).any() or (end[:, 0] >= len(document_index)).any():
            raise wrong
        stops = np.cumsum(entries)
        which = np.repeat(np.arange(len(rows)), entries)
        within = np.arange(len(which)) - (stops - entries)[which]
        sequence = document_index[begin[which, 0] + within].astype(np.int64)
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


def _address(array: NDArray[Any]) -> int:
    """Address of an array; 0 for one that is read from a store."""
    return 0 if _by_ranges(array) else address_of(array)


def _by_ranges(array: Any) -> bool:
    """Whether an array comes as one of which only entries are read."""
    return isinstance(array, FileArray)


def _array(array: NDArray[Any], backend: Backend) -> "NDArray[Any] | FileArray":
    """An index array as the back-end reads it."""
    if _by_ranges(array):
        return array
    found = file_of(array)
    if found is None or backend_of(found.path, backend) == "mmap":
        return array
    return ranged_array(array)


def _taken(stored: "NDArray[Any] | FileArray", more: NDArray[Any] | None, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Entries of an array, or of what goes on behind it, as int64."""
    if more is None:
        return stored[rows].astype(np.int64)
    behind = rows >= len(stored)
    found = np.empty(len(rows), np.int64)
    found[~behind], found[behind] = stored[rows[~behind]], more[rows[behind] - len(stored)]
    return found
