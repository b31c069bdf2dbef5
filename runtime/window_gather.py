"""The compiled gather of windows: token ranges that may cross shards, for a whole batch in one call.

What `gristmill.runtime.gather` is for rows with an index: shards come in as a table of addresses, a row that meets a
closed shard stops there and is taken up again by the next call. A window lies in one place, so there is nothing to look
up but its shard. `WindowReader.pieces` is the definition.
"""

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.runtime.copies import item_bytes
from gristmill.runtime.gather import copy_ranges, is_whole
from gristmill.runtime.raw_memory import prefetch
from gristmill.runtime.shards import CODE, INDEX_FILE, TOKENS, TOKENS_FILE

__all__ = ["gather_windows"]


@compiled
def gather_windows(
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    shard_starts: NDArray[np.int64],
    shard_table: NDArray[np.int64],
    stamps: NDArray[np.int64],
    lease: int,
    out: NDArray[np.uint16 | np.int32],
    targets: NDArray[np.uint16 | np.int32],
    filled: NDArray[np.int64],
    wanted: NDArray[np.int64],
    at: NDArray[np.int64],
) -> int:
    """Fills rows of tokens as far as the open shards allow.

    Args:
        starts: int64 [R], the first token of each row, numbered through all shards.
        counts: int64 [R], its tokens, at most W.
        shard_starts: int64 [shards + 1], the first token of each shard and, last, the end.
        shard_table: int64 [shards, SHARD_COLUMNS], see `gristmill.runtime.shards`.
        stamps: int64 [shards]; set to `lease` for each shard used.
        lease: the caller's lease.
        out: uint16 or int32 [R, W], C-contiguous; filled from the left. With targets it is the inputs, [R, W - 1].
        targets: as `gristmill.runtime.gather.gather` has it.
        filled: int64 [R], the tokens of each row that are there; updated.
        wanted: int64 [n], filled with closed shards that are needed, those needed first in front; each once.
        at: int64 [3], as `gristmill.runtime.gather.gather` has it; updated.

    Returns:
        The number of shards in `wanted`; 0 when every row is complete; ``-1 - row`` when a row does not lie in the
        shards, holds a token that does not fit, or meets a file that is no longer as long as its map.
    """
    width = out.shape[1] + (len(targets) > 0)
    shards = len(shard_starts) - 1
    asked = np.zeros(shards, np.bool_)
    room = 0
    for row in range(len(starts)):
        if starts[row] < 0 or counts[row] < 0 or counts[row] > width or starts[row] + counts[row] > shard_starts[-1]:
            return -1 - row
        room += counts[row] > filled[row]
    ranges = np.empty((2 * room + 16, 4), np.int64)
    owner = np.empty(len(ranges), np.int64)
    found = closed = 0
    for row in range(len(starts)):
        if filled[row] == counts[row]:
            continue
        token = starts[row] + filled[row]
        low, high = 0, shards
        while high - low > 1:
            middle = (low + high) // 2
            if shard_starts[middle] <= token:
                low = middle
            else:
                high = middle
        shard = low
        while filled[row] < counts[row]:
            while shard_starts[shard + 1] <= token:
                shard += 1
            tokens, tokens_file = shard_table[shard, TOKENS], shard_table[shard, TOKENS_FILE]
            if tokens == 0 or tokens_file == 0 or shard_table[shard, INDEX_FILE] == 0:
                if not asked[shard] and closed < len(wanted):
                    asked[shard] = True
                    wanted[closed] = shard
                    closed += 1
                break
            if stamps[shard] != lease:
                at[0] = shard
                stamps[shard] = lease
                at[1] += 1
                if not is_whole(shard_table[shard], tokens_file, shard_table[shard, INDEX_FILE]):
                    return -1 - row
            if found == len(ranges):
                failed = copy_ranges(ranges, shard_table, out, targets, at)
                if failed >= 0:
                    return int(-1 - owner[failed])
                found = 0
            count = min(counts[row] - filled[row], shard_starts[shard + 1] - token)
            source = tokens + (token - shard_starts[shard]) * item_bytes(shard_table[shard, CODE])
            prefetch(np.int64(source))
            ranges[found, 0] = source
            ranges[found, 1] = count
            ranges[found, 2] = row * width + filled[row]
            ranges[found, 3] = shard
            owner[found] = row
            found += 1
            filled[row] += count
            token += count
    failed = copy_ranges(ranges[:found], shard_table, out, targets, at)
    if failed >= 0:
        return int(-1 - owner[failed])
    return int(closed)
