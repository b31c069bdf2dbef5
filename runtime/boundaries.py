"""Where the segments of a row begin: found, thinned out by rule, and counted off as cumulative lengths.

Starts are a boolean per token, whoever found them: an end-of-document id in the tokens, or the index that knows its
documents. Everything behind is the same for both. A boolean costs a byte per token while a batch is made, and keeps
each step one pass over whole batches; only `cu_seqlens`, whose size is fixed whatever the tokens, leaves the host.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.errors import DataError

__all__ = ["cumulative_lengths", "eod_starts", "keep_starts", "OverLimit", "segment_bound"]

OverLimit = Literal["error", "merge"]
"""What happens to a row with more segments than are allowed: it is refused, or the last ones become one."""

_Starts = NDArray[np.bool_]


def eod_starts(inputs: NDArray[np.integer], eod_id: int) -> _Starts:
    """Where the token before closes a document.

    Args:
        inputs: integer [R, L].
        eod_id: id that closes a document; it belongs to the document that it closes.

    Returns:
        bool [R, L]; column 0 is always False, since the first segment needs no boundary.
    """
    starts = np.zeros(inputs.shape, bool)
    np.equal(inputs[:, :-1], eod_id, out=starts[:, 1:])
    return starts


def segment_bound(length: int, most: int = 0, limit: int = 0) -> int:
    """Most segments that a row can have once `keep_starts` has seen it, at least 1.

    Args:
        length: L.
        most: `FieldOptions.max_segments_per_sample`, d. With ``m = L // d`` of 2 or more, starts lie at least ``m + 1``
            apart, so there are at most ``1 + (L - 1) // (m + 1)`` segments; otherwise L, one for each token.
        limit: `FieldOptions.segment_limit`; 0 is none.
    """
    least = length // most if most else 0
    bound = 1 + (length - 1) // (least + 1) if least > 1 else length
    return min(bound, limit) if limit else bound


def keep_starts(
    starts: _Starts,
    most: int = 0,
    limit: int = 0,
    over_limit: OverLimit = "error",
    rows: NDArray[np.integer] | None = None,
) -> _Starts:
    """Thins out starts: first those too close to the one before, then those beyond the limit.

    Args:
        starts: bool [R, L], column 0 False.
        most: `FieldOptions.max_segments_per_sample`, d, or 0. With ``m = L // d`` of 2 or more, a start is kept, from
            left to right, only when more than m tokens lie between it and the last one kept.
        limit: most segments of a row, or 0 for any number. ``merge`` keeps the first ``limit - 1`` starts.
        over_limit: what happens to a row with more.
        rows: integer [R], numbers of the rows in their stream, for the message; None numbers them from 0.

    Returns:
        bool [R, L], a subset of `starts`; `starts` itself where nothing is left out.

    Raises:
        DataError: a row has more segments than `limit`, and `over_limit` is ``error``; the message names the row.
    """
    length = starts.shape[1]
    least = length // most if most else 0
    if least > 1:
        starts = _apart(starts, least)
    if not limit or segment_bound(length, most) <= limit:
        return starts
    counts = np.count_nonzero(starts, axis=1)
    if not (counts >= limit).any():
        return starts
    if over_limit == "error":
        row = int(np.argmax(counts >= limit))
        raise DataError(
            f"row {row if rows is None else int(rows[row])}: has {int(counts[row]) + 1} segments, but segment_limit is "
            f'{limit}: raise the limit, merge short segments with max_segments_per_sample, or pass over_limit="merge" '
            "to join the last ones"
        )
    kept: _Starts = starts & (np.cumsum(starts, axis=1, dtype=np.int32) < limit)
    return kept


def _apart(starts: _Starts, least: int) -> _Starts:
    """Keeps, from left to right, the starts that lie more than `least` tokens after the last one kept."""
    rows, length = starts.shape
    columns = np.where(starts, np.arange(length), length)
    following = np.full((rows, length + 1), length)  # first start at or after each column, `length` where none is
    following[:, :length] = np.minimum.accumulate(columns[:, ::-1], axis=1)[:, ::-1]
    kept = np.zeros((rows, length + 1), bool)
    here = np.zeros(rows, np.int64)
    every = np.arange(rows)
    while (here < length).any():  # at most length / least rounds, each for all rows
        here = following[every, np.minimum(here + least + 1, length)]
        kept[every, here] = True
    return kept[:, :length]


def cumulative_lengths(starts: _Starts, valid_length: NDArray[np.integer] | None, slots: int) -> NDArray[np.int32]:
    """Where each segment of a row begins and ends, in an array of fixed size.

    Segment *j* of a row, from 0, holds columns ``[c[j], c[j + 1])``. Behind the last segment every entry is the number
    of valid positions, so the segments there are empty; columns from the last entry on are padding.

    Args:
        starts: bool [R, L], column 0 False, none at or behind the padding; at most ``slots - 1`` in a row.
        valid_length: integer [R], valid positions of each row; None: all L.
        slots: K, at least the number of segments of any row; see `segment_bound`.

    Returns:
        int32 [R, K + 1]; ``[:, 0]`` is 0.

    Examples:
        >>> cumulative_lengths(np.array([[False, False, True, False]]), None, 3).tolist()
        [[0, 2, 4, 4]]
    """
    count, length = starts.shape
    lengths = np.empty((count, slots + 1), np.int32)
    lengths[:] = length if valid_length is None else np.asarray(valid_length)[:, None]
    lengths[:, 0] = 0
    row, column = np.nonzero(starts)
    before = np.searchsorted(row, np.arange(count))  # starts in earlier rows
    lengths[row, np.arange(len(row)) - before[row] + 1] = column
    return lengths
