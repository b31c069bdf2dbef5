"""Streams made of the rows of another: a bad stretch left out, the first rows alone, or one round of validation.

A view changes which row of the other stream each of its own is, by arithmetic and without reading anything, so it costs
nothing and keeps what the other can do. What was left out is part of the fingerprint; how many rows there are is not.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.errors import SettingsError
from gristmill.formats.fingerprint import short
from gristmill.formats.index_order import OrderChange
from gristmill.formats.index_plan import LeftOut
from gristmill.runtime.pairs import TokenPairs
from gristmill.runtime.row_map import RowMap, Skips, rows_before

if TYPE_CHECKING:
    from gristmill.runtime.streams import ReaderStream, RowPiece

__all__ = ["PaddedView", "Selectable", "StreamView", "view_of"]


class Selectable:
    """Gives a stream `skip_range` and `take`."""

    __slots__ = ()

    def skip_range(self, first: int, last: int) -> "StreamView":
        """The stream without the rows from `first` up to, but not including, `last`: for a stretch of bad data.

        Rows before `first` are the same; the others move up, and the stream gets shorter by as many. This goes into the
        history: a state of this stream is taken up by the new one as long as it stands at row `first` or before, so a
        run that goes back to such a state goes on without the stretch. Ranges may be skipped one after the other, each
        counted in the rows of the stream that it is skipped in.

        Args:
            first: first row to leave out.
            last: one past the last; above `first`, and at most ``len(self)``.

        Raises:
            SettingsError: there are no such rows, or no row would remain.
        """
        stream, rows = _parts(self)
        count = len(cast("ReaderStream", self))
        for value in (first, last):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise SettingsError(f"rows to skip are whole numbers, not {value!r}")
        if not 0 <= first < last <= count:
            raise SettingsError(
                f"rows {first} to {last} cannot be skipped: the rule is 0 <= first < last <= {count}, the rows in all"
            )
        if last - first == count:
            raise SettingsError(f"skipping rows {first} to {last} would leave none of {count}")
        skips = rows if isinstance(rows, Skips) else None
        if rows is not None and skips is None:
            raise SettingsError(f"{self!r} is a round of validation, of which nothing can be skipped")
        found = (Skips() if skips is None else skips).without(int(first), int(last))
        return view_of(stream, found, count - int(last - first))

    def take(self, rows: int) -> "StreamView":
        """The first rows of the stream. They are the same, so fingerprint and history are too.

        Args:
            rows: how many, 1 to ``len(self)``.

        Raises:
            SettingsError: there are not as many.
        """
        stream, mapping = _parts(self)
        count = len(cast("ReaderStream", self))
        if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or not 1 <= rows <= count:
            raise SettingsError(f"{rows!r} rows cannot be taken: the rule is 1 to {count}, the rows there are")
        return view_of(stream, Skips() if mapping is None else mapping, int(rows))


def _parts(stream: Selectable) -> "tuple[ReaderStream | StreamView, RowMap | None]":
    """The stream that a view is of, and which of its rows; a stream itself has no view."""
    if isinstance(stream, StreamView):
        return stream.stream, stream.rows
    return cast("ReaderStream", stream), None


@dataclass(frozen=True, slots=True, repr=False)
class StreamView(Selectable):
    """A `DocumentStream` of some rows of another.

    Attributes:
        stream: the other stream.
        rows: which of its rows each row is.
        count: number of rows.
    """

    stream: "ReaderStream | StreamView"
    rows: RowMap
    count: int

    @property
    def name(self) -> str:
        """Of the corpus, or of the data."""
        return self.stream.name

    @property
    def split(self) -> str:
        """``train``, ``valid`` or ``test``."""
        return self.stream.split

    @property
    def fingerprint(self) -> str:
        """Digest of what decides the rows: that of the other stream, where no row was left out or moved."""
        return self.rows.fingerprint(self.stream.fingerprint)

    @property
    def history(self) -> tuple[OrderChange, ...]:
        """The changes that led to these rows, oldest first: those of the other stream, then the rows left out."""
        return (*self.stream.history, *self.rows.changes(self.stream.fingerprint))

    @property
    def ancestors(self) -> dict[str, int]:
        """The streams that this one goes on from, by fingerprint, each with how many rows they share.

        Those of its history; and where the other stream goes on from an earlier one, that one without the same rows:
        a range may have been left out before the stream was extended, or after.
        """
        return self.rows.ancestors(self.stream.fingerprint, rows_before(self.stream.history))

    @property
    def facts(self) -> Mapping[str, Any]:
        """What decides the rows, as a few JSON values for messages."""
        return {**self.stream.facts, **self.rows.facts}

    @property
    def sequence_length(self) -> int:
        """L: inputs of a row. A row holds L + 1 tokens."""
        return self.stream.sequence_length

    @property
    def dtype(self) -> np.dtype[np.uint16 | np.int32]:
        """Of what `read` returns."""
        return self.stream.dtype

    @property
    def eod_id(self) -> int:
        """Id that closes every document."""
        return self.stream.eod_id

    @property
    def vocabulary(self) -> int | None:
        """Bound of the ids; None where it is not known."""
        return self.stream.vocabulary

    @property
    def tokenizer_fingerprint(self) -> str | None:
        """Of the tokenizer that made the ids; None where it is not known."""
        return self.stream.tokenizer_fingerprint

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources that take part in the other stream."""
        return self.stream.sources

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The sources that take no part in the split, with the reason."""
        return self.stream.left_out

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stream!r}, {self.rows!r}, fingerprint={short(self.fingerprint)})"

    def base_rows(self, rows: ArrayLike) -> NDArray[np.int64]:
        """Which rows of the other stream rows are.

        Args:
            rows: integers [R], 0 to ``len(self) - 1``.

        Returns:
            int64 [R].

        Raises:
            IndexError: a row does not exist.
        """
        numbers = np.asarray(rows)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise IndexError(f"rows are {numbers.dtype} of shape {numbers.shape}; the rule is a list of integers")
        numbers = numbers.astype(np.int64)
        bad = (numbers < 0) | (numbers >= self.count)
        if bad.any():
            raise IndexError(
                f"row {numbers[bad][0]} does not exist; the stream has {self.count} rows, 0 to {self.count - 1}"
            )
        return self.rows.base_rows(numbers)

    def read(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        """Tokens of rows; see `Stream.read`."""
        return self.stream.read(self.base_rows(rows))

    def read_pairs(self, rows: ArrayLike) -> TokenPairs:
        """Inputs and targets of rows, apart; see `gristmill.runtime.pairs.PairStream.read_pairs`."""
        return self.stream.read_pairs(self.base_rows(rows))

    def read_documents(self, rows: ArrayLike) -> tuple[NDArray[np.uint16 | np.int32], NDArray[np.bool_]]:
        """Tokens of rows, and where another document begins; see `DocumentStream.read_documents`."""
        return self.stream.read_documents(self.base_rows(rows))

    def describe(
        self, row: int, *, text: bool = False, tokenizer: str | os.PathLike[str] | None = None
    ) -> "tuple[RowPiece, ...]":
        """Where the tokens of a row came from; see `ReaderStream.describe`."""
        return self.stream.describe(int(self.base_rows([row])[0]), text=text, tokenizer=tokenizer)

    def read_counts(self) -> dict[str, int]:
        """What the other stream has read so far; see `gristmill.runtime.metrics.MeasuredStream`."""
        return self.stream.read_counts()

    def rows_by_source(self, rows: ArrayLike) -> dict[str, int]:
        """How many of some rows come from each source; see `gristmill.runtime.metrics.MeasuredStream`."""
        return self.stream.rows_by_source(self.base_rows(rows))

    def waiting_on(self) -> list[tuple[str, float]]:
        """What the reads that are under way are at; see `gristmill.runtime.metrics.MeasuredStream`."""
        return self.stream.waiting_on()

    def close(self) -> None:
        """Closes the files of the other stream; may be called twice. A later read opens them again."""
        self.stream.close()


@dataclass(frozen=True, slots=True, repr=False)
class PaddedView(StreamView):
    """A `StreamView` of a stream some of whose rows end in padding."""

    def valid_length(self, rows: ArrayLike) -> NDArray[np.int64]:
        """How much of each row holds data; see `PaddedStream.valid_length`."""
        return cast("Any", self.stream).valid_length(self.base_rows(rows))  # type: ignore[no-any-return]  # `view_of` saw it


def view_of(stream: "ReaderStream | StreamView", rows: RowMap, count: int) -> StreamView:
    """A stream of some rows of another, which knows what the other knows."""
    kind = PaddedView if hasattr(stream, "valid_length") else StreamView
    return kind(stream, rows, count)
