"""Which row of a stream each row of a view is: pure arithmetic, with the digest that says so.

Rows left out are kept as ranges of the stream itself, sorted and joined. So however a run came to leave them out, at
once or bit by bit, the same rows have one fingerprint; the steps are kept beside it, to know whose rows are shared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.fingerprint import digest
from gristmill.formats.index_order import OrderChange

__all__ = ["Ranges", "Round", "RowMap", "rows_before", "Skips"]

Ranges = tuple[tuple[int, int], ...]
"""Ranges of rows, each from its first to one past its last: sorted, none empty, none touching another."""


class RowMap(Protocol):
    """Which row of a stream each row of a view is. Pickles; safe to use from many threads."""

    @property
    def facts(self) -> dict[str, Any]:
        """What it does, as JSON values for messages."""
        ...

    def base_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of the stream that rows of the view are: int64 [R]."""
        ...

    def fingerprint(self, base: str) -> str:
        """Fingerprint of the view of a stream with the fingerprint `base`."""
        ...

    def changes(self, base: str) -> tuple[OrderChange, ...]:
        """The steps from the stream to the view, oldest first."""
        ...

    def ancestors(self, base: str, earlier: Mapping[str, int]) -> dict[str, int]:
        """The streams whose first rows are those of the view, by fingerprint, with how many they share.

        Args:
            base: fingerprint of the stream.
            earlier: the streams that it goes on from, likewise.
        """
        ...


def rows_before(history: Sequence[OrderChange]) -> dict[str, int]:
    """How many rows a stream shares with each that it goes on from, by fingerprint.

    Args:
        history: the changes that led to it, oldest first.
    """
    found: dict[str, int] = {}
    shared: int | None = None
    for change in reversed(history):
        shared = change.from_sample if shared is None else min(shared, change.from_sample)
        found.setdefault(change.parent, shared)
    return found


@dataclass(frozen=True, slots=True)
class Skips:
    """Rows left out.

    Attributes:
        steps: what was left out after each step, oldest first; ranges of rows of the stream.
    """

    steps: tuple[Ranges, ...] = ()

    @property
    def ranges(self) -> Ranges:
        """What is left out."""
        return self.steps[-1] if self.steps else ()

    @property
    def facts(self) -> dict[str, Any]:
        """The ranges, where there are any."""
        return {"skipped": [list(one) for one in self.ranges]} if self.ranges else {}

    def __repr__(self) -> str:
        return "without rows " + ", ".join(f"{a} to {b}" for a, b in self.ranges) if self.ranges else "first rows"

    def without(self, first: int, last: int) -> "Skips":
        """With one step more: rows `first` to `last` of the view left out as well."""
        begin, end = self.base_rows(np.array([first, last - 1], np.int64)).tolist()
        return Skips((*self.steps, _joined([*self.ranges, (begin, end + 1)])))

    def base_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `RowMap.base_rows`."""
        if not self.ranges:
            return rows
        bounds = np.array(self.ranges, np.int64)
        gone = np.cumsum(bounds[:, 1] - bounds[:, 0])
        place = np.searchsorted(bounds[:, 0] - (gone - (bounds[:, 1] - bounds[:, 0])), rows, side="right")
        found: NDArray[np.int64] = rows + np.append(0, gone)[place]
        return found

    def fingerprint(self, base: str) -> str:
        """See `RowMap.fingerprint`."""
        return _fingerprint(self.ranges, base)

    def changes(self, base: str) -> tuple[OrderChange, ...]:
        """See `RowMap.changes`."""
        before = ((), *self.steps)
        return tuple(
            OrderChange(
                _shared(old, new) or 0,
                {"skipped": [list(one) for one in new if one not in old]},
                _fingerprint(old, base),
            )
            for old, new in zip(before, self.steps, strict=False)
        )

    def ancestors(self, base: str, earlier: Mapping[str, int]) -> dict[str, int]:
        """See `RowMap.ancestors`."""
        found: dict[str, int] = {}
        for step in ((), *self.steps):
            shared = _shared(step, self.ranges)
            if shared is not None:
                found[_fingerprint(step, base)] = shared
            for fingerprint, rows in earlier.items():
                left = _rows_left(step, rows)
                found[_fingerprint(step, fingerprint)] = left if shared is None else min(left, shared)
        return found


def _fingerprint(ranges: Ranges, base: str) -> str:
    if not ranges:
        return base
    return OrderChange(ranges[0][0], {"skipped": [list(one) for one in ranges]}, base).fingerprint


def _joined(ranges: Sequence[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def _rows_left(ranges: Ranges, rows: int) -> int:
    """How many of the first rows of a stream are not left out."""
    return rows - sum(max(0, min(last, rows) - first) for first, last in ranges)


def _shared(old: Ranges, new: Ranges) -> int | None:
    """How many rows two views share before the first row of the stream that only the later one leaves out.

    None where there is no such row: they are the same.
    """
    for first, last in new:
        row = first
        for begin, end in old:
            if begin <= row < end:
                row = end
        if row < last:
            return _rows_left(old, row)
    return None


@dataclass(frozen=True, slots=True)
class Round:
    """A run of rows of a stream, which begins again behind its end.

    Attributes:
        first: row of the stream that comes first.
        length: number of rows of the stream.
    """

    first: int
    length: int

    @property
    def facts(self) -> dict[str, Any]:
        """The first row."""
        return {"first_row": self.first}

    def __repr__(self) -> str:
        return f"from row {self.first}"

    def base_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `RowMap.base_rows`."""
        return (rows + self.first) % self.length

    def fingerprint(self, base: str) -> str:
        """See `RowMap.fingerprint`; covers the length, behind which the rows begin again."""
        return digest({"kind": "round", "parent": base, "first": self.first, "length": self.length})

    def changes(self, base: str) -> tuple[OrderChange, ...]:  # noqa: ARG002 - goes on from nothing
        """None: a round is a stream of its own."""
        return ()

    def ancestors(self, base: str, earlier: Mapping[str, int]) -> dict[str, int]:  # noqa: ARG002 - likewise
        """None."""
        return {}
