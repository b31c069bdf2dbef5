"""Window streams: contiguous windows of tokens, shuffled by arithmetic, over data that have no index set.

Nothing is built or stored, so any sequence length, seed and size is there at once and a start costs the same for any
number of tokens. The price: the order is not Megatron's, and a document is cut wherever a window ends, always at the
same places.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.fingerprint import short
from gristmill.formats.index_order import OrderChange
from gristmill.formats.index_plan import LeftOut
from gristmill.runtime.streams import RowPiece
from gristmill.runtime.views import Selectable
from gristmill.runtime.window_reader import WindowReader

__all__ = ["PaddedWindowStream", "WindowStream"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WindowStream(Selectable):
    """A `DocumentStream` of contiguous windows of L + 1 tokens; neighbours share one token.

    In every pass each window is one row. Where documents begin is told by the index files of the shards.

    Attributes:
        name: of the corpus, or of the data.
        split: ``train``, ``valid`` or ``test``.
        fingerprint: digest of what decides the rows.
        eod_id: id that closes every document.
        vocabulary: bound of the ids.
        left_out: the sources that take no part in the split, with the reason.
        reader: what reads the rows.
        history: the changes that led to this order, oldest first: phases of weights.
        facts: what decides the rows, as a few JSON values for messages; a state carries them along.
    """

    name: str
    split: str
    fingerprint: str
    eod_id: int
    vocabulary: int | None
    left_out: tuple[LeftOut, ...]
    reader: WindowReader
    history: tuple[OrderChange, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sequence_length(self) -> int:
        """L: inputs of a row. A row holds L + 1 tokens."""
        return self.reader.index.sequence_length

    @property
    def dtype(self) -> np.dtype[np.uint16 | np.int32]:
        """uint16 when every shard of the stream holds uint16, else int32."""
        return self.reader.dtype

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources that take part."""
        return tuple(member.source for member in self.reader.index.members)

    @property
    def windows(self) -> dict[str, int]:
        """Windows of each source: how many rows it gives in one pass."""
        return dict(zip(self.sources, self.reader.index.windows, strict=True))

    def __len__(self) -> int:
        return len(self.reader)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}, split={self.split!r}, sequence_length={self.sequence_length}, "
            f"fingerprint={short(self.fingerprint)})"
        )

    def read(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        """Tokens of rows; see `Stream.read`."""
        return self.reader.read(rows)

    def read_documents(self, rows: ArrayLike) -> tuple[NDArray[np.uint16 | np.int32], NDArray[np.bool_]]:
        """Tokens of rows, and where another document begins; see `DocumentStream.read_documents`."""
        return self.reader.read_documents(rows)

    def describe(self, row: int) -> tuple[RowPiece, ...]:
        """Where the tokens of a row came from; see `Stream.describe`."""
        reader = self.reader
        pieces = reader.sequences([row])
        documents, starts = reader.documents(pieces)
        columns, shards, counts = pieces[1].tolist(), pieces[2].tolist(), pieces[4].tolist()
        return tuple(
            RowPiece(
                column=column,
                source=reader.source_of(shard),
                shard=reader.shards[shard].name,
                document=document,
                start=start,
                stop=start + count,
            )
            for column, shard, count, document, start in zip(
                columns, shards, counts, documents.tolist(), starts.tolist(), strict=True
            )
        )

    def read_counts(self) -> dict[str, int]:
        """What has been read so far; see `gristmill.runtime.metrics.MeasuredStream`."""
        return self.reader.read_counts()

    def rows_by_source(self, rows: ArrayLike) -> dict[str, int]:
        """How many of some rows come from each source; see `gristmill.runtime.metrics.MeasuredStream`."""
        return self.reader.rows_by_source(rows)

    def waiting_on(self) -> list[tuple[str, float]]:
        """What the reads that are under way are at; see `gristmill.runtime.metrics.MeasuredStream`."""
        return self.reader.waiting_on()

    def close(self) -> None:
        """Closes the files; may be called twice. A later read opens them again."""
        self.reader.close()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PaddedWindowStream(WindowStream):
    """A `WindowStream` whose last window of each source holds what is left and ends in padding, tokens of 0."""

    def valid_length(self, rows: ArrayLike) -> NDArray[np.int64]:
        """How much of each row holds data.

        Args:
            rows: integers [R], 0 to ``len(self) - 1``.

        Returns:
            int64 [R], 1 to L: positions of the row that hold an input with its target.

        Raises:
            IndexError: a row does not exist.
        """
        return self.reader.held(rows) - 1
