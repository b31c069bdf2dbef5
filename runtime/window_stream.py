"""Window streams: contiguous windows of tokens, shuffled by arithmetic, over data that have no index set.

Nothing is built or stored, so any sequence length, seed and size is there at once and a start costs the same for any
number of tokens. The price: the order is not Megatron's, and a document is cut wherever a window ends, always at the
same places.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.runtime.streams import ReaderStream, RowPiece
from gristmill.runtime.window_reader import WindowReader

__all__ = ["PaddedWindowStream", "WindowStream"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WindowStream(ReaderStream):
    """A `DocumentStream` of contiguous windows of L + 1 tokens; neighbours share one token.

    In every pass each window is one row. Where documents begin is told by the index files of the shards.

    Attributes:
        reader: what reads the rows.
    """

    reader: WindowReader

    @property
    def windows(self) -> dict[str, int]:
        """Windows of each source: how many rows it gives in one pass."""
        return dict(zip(self.sources, self.reader.index.windows, strict=True))

    def _pieces(self, row: int) -> list[RowPiece]:
        reader = self.reader
        pieces = reader.sequences([row])
        documents, starts = reader.documents(pieces)
        _, columns, shards, _, counts, _ = pieces.tolist()
        return [
            RowPiece(
                column=column,
                source=reader.source_of(shard),
                shard=reader.shards[shard].name,
                document=document,
                start=start,
                stop=start + count,
            )
            for column, shard, document, start, count in zip(
                columns, shards, documents.tolist(), starts.tolist(), counts, strict=True
            )
        ]


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
