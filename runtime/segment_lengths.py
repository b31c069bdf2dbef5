"""Cumulative segment lengths straight from tokens or starts, compiled: what goes to devices that make the fields.

The same result as `gristmill.runtime.boundaries.keep_starts` and `cumulative_lengths` one after the other, which are
the definition and give the message when a row is refused. Rows hold few boundaries for their length, so these are
listed first, in two passes that the processor does many tokens at a time, and only the list is walked.
"""

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.runtime.boundaries import keep_starts, segment_bound
from gristmill.runtime.fields import FieldOptions

__all__ = ["listed_starts", "segment_lengths"]


def listed_starts(tokens: NDArray[np.integer], eod_id: int, starts: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """Where documents begin in rows, as a list.

    Args:
        tokens: integer [R, L + 1].
        eod_id: id that closes a document; looked at where `starts` is None.
        starts: bool [R, L + 1], where documents begin; or None.

    Returns:
        int64 [P], ascending: ``row * (L + 1) + column``. Column 0 is not in it; L, where no input is, may be.
    """
    width = tokens.shape[1]
    found: NDArray[np.int64]
    if starts is None:
        found = np.flatnonzero(tokens == eod_id) + 1
    else:
        found = np.flatnonzero(starts)
    inside: NDArray[np.int64] = found[found % width != 0]
    return inside


def segment_lengths(
    listed: NDArray[np.int64],
    rows: NDArray[np.integer],
    length: int,
    valid_length: NDArray[np.integer] | None,
    options: FieldOptions,
) -> NDArray[np.int32]:
    """Where each segment of a row begins and ends, as `gristmill.runtime.boundaries.cumulative_lengths` has it.

    Args:
        listed: from `listed_starts`.
        rows: integer [R], numbers of the rows in their stream, for error messages.
        length: L.
        valid_length: integer [R], valid positions of each row; None: all L.
        options: which starts are kept.

    Returns:
        int32 [R, K + 1] with K ``options.segments(L)``.

    Raises:
        DataError: a row has more segments than the options allow; the message names it.
    """
    most, limit = options.max_segments_per_sample, options.segment_limit
    valid = np.full(len(rows), length, np.int64) if valid_length is None else valid_length.astype(np.int64)
    lengths = np.empty((len(rows), options.segments(length) + 1), np.int32)
    least = length // most if most else 0
    refuses = options.over_limit == "error" and 0 < limit < segment_bound(length, most)
    if not _fill(listed, length + 1, valid, least if least > 1 else 0, refuses, lengths):
        starts = np.zeros((len(rows), length + 1), bool)
        starts.ravel()[listed] = True
        starts[:, :-1] &= np.arange(length) < valid[:, None]
        keep_starts(starts[:, :-1], most, limit, options.over_limit, rows)
    return lengths


@compiled
def _fill(
    listed: NDArray[np.int64],
    width: int,
    valid: NDArray[np.int64],
    least: int,
    refuses: bool,
    lengths: NDArray[np.int32],
) -> bool:
    """Fills `lengths`; False when a row has more segments than fit and is to be refused."""
    slots = lengths.shape[1] - 1
    place = 0
    for row in range(len(valid)):
        lengths[row, 0] = 0
        count = 1
        last = np.int64(0)
        while place < len(listed) and listed[place] < (row + 1) * width:
            column = listed[place] - row * width
            place += 1
            if column >= valid[row] or column - last <= least:
                continue
            if count < slots:
                lengths[row, count] = column
                last = column
                count += 1
            elif refuses:
                return False
        for slot in range(count, slots + 1):
            lengths[row, slot] = valid[row]
    return True
