"""The pieces that rows are made of, and where they begin: what a row is told by when tokens alone do not say it.

A row is a run of token ranges, each from one entry of the document index. Positions of pieces are all that is needed to
keep documents apart, so data without an end-of-document id, or with one inside a document, lose nothing; the price is
that only a stream that knows its pieces can give them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["piece_starts", "Pieces"]


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


def piece_starts(pieces: Pieces, rows: int, width: int) -> NDArray[np.bool_]:
    """Where a row goes on with another entry of the document index.

    Args:
        pieces: of the rows.
        rows: number of rows, R.
        width: tokens of a row, W.

    Returns:
        bool [R, W], True at the first token of every piece but the first of its row.
    """
    starts = np.zeros((rows, width), bool)
    starts[pieces.row, pieces.column] = pieces.column > 0
    return starts
