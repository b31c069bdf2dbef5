"""What decides the rows of a window stream: for each source a range of tokens, cut into windows, and how to shuffle.

Windows are numbered, not stored: window *w* of a source is its L + 1 tokens from token ``start + w * L`` on, so the
last token of one is the first of the next, and each token is a target once. A row's window follows from a few numbers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.periodic_blend import PeriodicBlend
from gristmill.runtime.copies import first_outside
from gristmill.runtime.permutation import shuffle
from gristmill.runtime.remote_access import RemoteAccess
from gristmill.runtime.shards import Shard

__all__ = ["count_windows", "runs", "WindowIndex", "WindowMember", "WindowWalk"]


def count_windows(tokens: int, sequence_length: int, *, partial: bool = False) -> int:
    """How many windows some tokens are cut into: ``(tokens - 1) // L``, as many as Megatron's samples of one epoch.

    Args:
        tokens: how many there are.
        sequence_length: L.
        partial: whether the tokens behind the last whole window are one more, which holds fewer.
    """
    targets = max(0, tokens - 1)
    return -(-targets // sequence_length) if partial else targets // sequence_length


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMember:
    """One source of a window stream.

    Attributes:
        source: its name.
        shards: its shards, whose tokens are numbered through in this order.
        start: first token of the split.
        tokens: tokens of the split.
    """

    source: str
    shards: tuple[Shard, ...]
    start: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowIndex:
    """Everything that decides which tokens a row holds.

    Attributes:
        members: the sources.
        rows: number of rows, N.
        sequence_length: L.
        keys: what the shuffles follow from: one for each member of a blend, else one for all; empty: not shuffled.
        blend: which member gives each row; None: the windows of all members are shuffled as one.
        partial: whether the tokens behind the last whole window of a member are one more window.
        access: how files on an object store are read; None where they are local.
    """

    members: tuple[WindowMember, ...]
    rows: int
    sequence_length: int
    keys: tuple[int, ...]
    blend: PeriodicBlend | None = None
    partial: bool = False
    access: RemoteAccess | None = None

    @property
    def windows(self) -> tuple[int, ...]:
        """Windows of each member."""
        return tuple(
            count_windows(member.tokens, self.sequence_length, partial=self.partial) for member in self.members
        )


class WindowWalk:
    """Looks up which tokens rows hold. Safe to use from many threads.

    Attributes:
        index: what decides the rows.
        shard_starts: int64 [shards + 1], the first token of each shard of all members, numbered through, and the end.
    """

    def __init__(self, index: WindowIndex) -> None:
        """Opens nothing."""
        self.index = index
        tokens = [shard.tokens for member in index.members for shard in member.shards]
        self.shard_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(tokens, dtype=np.int64)])
        first_shards = np.cumsum([0, *(len(member.shards) for member in index.members)])[:-1]
        self._starts = self.shard_starts[first_shards] + np.array([member.start for member in index.members])
        self._ends = self._starts + np.array([member.tokens for member in index.members])
        windows = np.array(index.windows, np.int64)
        self._first_windows = np.cumsum(windows) - windows
        self._sizes = windows if index.blend is not None else windows.sum(keepdims=True)
        self._keys = np.array(index.keys, np.uint64)

    def locate(self, rows: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Member and window of each row.

        Args:
            rows: integers [R].

        Returns:
            members: int64 [R].
            windows: int64 [R], the number of the window in its member.

        Raises:
            IndexError: a row does not exist.
        """
        numbers = np.asarray(rows)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise IndexError(f"rows are {numbers.dtype} of shape {numbers.shape}; the rule is a list of integers")
        numbers = numbers.astype(np.int64)
        bad = first_outside(numbers, self.index.rows)
        if bad >= 0:
            raise IndexError(
                f"row {numbers[bad]} does not exist; the stream has {self.index.rows} rows, 0 to {self.index.rows - 1}"
            )
        groups, samples = np.zeros_like(numbers), numbers
        if self.index.blend is not None:
            groups, samples = self.index.blend.locate(numbers)
        if len(self._keys):
            windows = shuffle(samples, groups, self._sizes, self._keys)
        else:
            windows = samples % self._sizes[groups]
        if self.index.blend is not None or len(self._first_windows) == 1:
            return groups, windows
        members = np.searchsorted(self._first_windows, windows, side="right") - 1  # each has a window
        return members, windows - self._first_windows[members]

    def ranges(
        self, members: NDArray[np.int64], windows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the tokens of windows begin, numbered through all shards, and how many each holds: int64 [R] twice."""
        starts = self._starts[members] + windows * self.index.sequence_length
        counts = np.minimum(self._ends[members] - starts, self.index.sequence_length + 1)
        return starts, counts

    def shards(self, rows: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The shards that rows need, in the order of their first use; see `gristmill.runtime.walk.RowWalk.shards`."""
        row, _, shard, *_ = self.pieces(*self.ranges(*self.locate(rows)))
        _, first = np.unique(shard, return_index=True)
        return shard[np.sort(first)], row[np.sort(first)]

    def pieces(self, starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Token ranges cut where shards end.

        Args:
            starts: int64 [R], from `ranges`.
            counts: int64 [R], likewise.

        Returns:
            int64 [5, P], see `gristmill.runtime.window_reader.WindowReader.pieces`.
        """
        edges = self.shard_starts
        first = np.searchsorted(edges, starts, side="right") - 1
        last = np.searchsorted(edges, starts + counts, side="left") - 1
        row, shard = runs(first, last + 1)
        begin = np.maximum(starts[row], edges[shard])
        count = np.minimum(starts[row] + counts[row], edges[shard + 1]) - begin
        return np.stack([row, begin - starts[row], shard, begin - edges[shard], count])[:, count > 0]


def runs(first: NDArray[np.int64], stop: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of ranges, one range after the other: which range, and which number; int64 [P] both."""
    counts = np.maximum(stop - first, 0)
    which = np.repeat(np.arange(len(first)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts - first, counts)
