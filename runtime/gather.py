"""The compiled gather: walks the indices of each row and copies its token ranges, for a whole batch in one call.

Index arrays and shards come in as tables of addresses, so one call serves any number of sources and files. A row that
meets a closed shard stops there and is taken up again by the next call, which is cheaper than first finding out, for
every batch, what happens to be open. `RowReader.pieces` is the same walk in NumPy and the definition; whatever this one
finds contradictory is handed back to it for the message.
"""

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.compiled import compiled, copy_bytes, load8, load16, load32, load64, store32
from gristmill.runtime.shards import CODE, LENGTHS, POINTERS, SEQUENCES, TOKEN_COUNT, TOKENS, UINT32_CODE

__all__ = [
    "DOCUMENT_COUNT",
    "DOCUMENTS",
    "FINISHED",
    "FIRST_SHARD",
    "gather",
    "MEMBER_COLUMNS",
    "NEW",
    "PLACE_COUNT",
    "SAMPLE_BYTES",
    "SAMPLE_COUNT",
    "SAMPLE_ROWS",
    "SHARD_COUNT",
    "SHUFFLE",
    "SHUFFLE_BYTES",
]

DOCUMENTS, DOCUMENT_COUNT, SAMPLE_ROWS, SAMPLE_BYTES, SHUFFLE, SHUFFLE_BYTES, SAMPLE_COUNT, FIRST_SHARD, SHARD_COUNT = (
    range(9)
)
"""Columns of a member table: address and length of the document index (int32), address and item size of the sample
index, address and item size of the shuffle index, number of samples, first shard and number of shards."""

PLACE_COUNT = 9
"""Last column of a member table: the values of the shuffle index are smaller; above the number of samples where the
sample index has several blocks, between whose rows lies no sample."""

MEMBER_COLUMNS = 10
"""Number of columns of a member table."""

NEW, FINISHED = -1, -2
"""Values of a row's `progress`: not begun, and complete. Others are the place in the document index to go on from."""

_LARGEST = np.int64(2**31 - 1)


@compiled
def _copy(source: np.int64, code: np.int64, target: np.int64, target_bytes: np.int64, count: np.int64) -> bool:
    """Copies tokens of a dtype code to uint16 or int32; False when one does not fit."""
    if target_bytes == 2 and code != 8:
        return False
    if (code == 8 and target_bytes == 2) or (code == 4 and target_bytes == 4):
        copy_bytes(target, source, count * target_bytes)
    elif code == 8:
        for place in range(count):
            store32(target + 4 * place, np.int32(load16(source + 2 * place)))
    elif code == 3:
        for place in range(count):
            store32(target + 4 * place, np.int32(np.int16(load16(source + 2 * place))))
    elif code == 1:
        for place in range(count):
            store32(target + 4 * place, np.int32(load8(source + place)))
    elif code == 2:
        for place in range(count):
            store32(target + 4 * place, np.int32(np.int8(load8(source + place))))
    elif code == UINT32_CODE:
        for place in range(count):
            token = np.int32(load32(source + 4 * place))
            if token < 0:
                return False
            store32(target + 4 * place, token)
    else:
        for place in range(count):
            value = load64(source + 8 * place)
            if value > _LARGEST or value < -_LARGEST:
                return False
            store32(target + 4 * place, np.int32(value))
    return True


@compiled
def _item(address: np.int64, item_bytes: np.int64, place: np.int64) -> np.int64:
    """Entry of an index array of int32 (or uint32, below 2**31) or int64."""
    if item_bytes == 4:
        return np.int64(load32(address + 4 * place)) & np.int64(0xFFFFFFFF)
    return np.int64(load64(address + 8 * place))


@compiled
def gather(
    members: NDArray[np.int64],
    samples: NDArray[np.int64],
    member_table: NDArray[np.int64],
    shard_starts: NDArray[np.int64],
    shard_table: NDArray[np.int64],
    stamps: NDArray[np.int64],
    lease: int,
    extra: int,
    out: NDArray[np.uint16 | np.int32],
    progress: NDArray[np.int64],
    wanted: NDArray[np.int64],
) -> int:
    """Fills rows of tokens as far as the open shards allow.

    Args:
        members: int64 [R], the member of each row.
        samples: int64 [R], its sample there.
        member_table: int64 [members, MEMBER_COLUMNS].
        shard_starts: int64 [shards + members]; from ``first_shard + member`` on, the first sequence of each shard of a
            member and, last, its number of sequences.
        shard_table: int64 [shards, 6], see `gristmill.runtime.shards`.
        stamps: int64 [shards]; set to `lease` for each shard used.
        lease: the caller's lease.
        extra: 1 when a sample has one token more than its length, else 0.
        out: uint16 or int32 [R, W], C-contiguous; filled.
        progress: int64 [R, 2]: NEW, FINISHED or a place in the document index, and the tokens filled; updated.
        wanted: int64 [n], filled with closed shards that are needed, those needed first in front; each once.

    Returns:
        The number of shards in `wanted`; 0 when every row is complete; ``-1 - row`` when a row's indices contradict
        each other or the shards.
    """
    width = out.shape[1]
    target_bytes = np.int64(out.itemsize)
    target = np.int64(out.ctypes.data)
    asked = np.zeros(0, np.bool_)
    wanted_count = 0
    for row in range(members.shape[0]):
        if progress[row, 0] == FINISHED:
            continue
        table = member_table[members[row]]
        if samples[row] >= table[SAMPLE_COUNT]:
            return -1 - row
        shuffled = _item(table[SHUFFLE], table[SHUFFLE_BYTES], samples[row])
        if shuffled >= table[PLACE_COUNT] or shuffled < 0:
            return -1 - row
        size = table[SAMPLE_BYTES]
        begin = _item(table[SAMPLE_ROWS], size, 2 * shuffled)
        begin_offset = _item(table[SAMPLE_ROWS], size, 2 * shuffled + 1)
        end = _item(table[SAMPLE_ROWS], size, 2 * shuffled + 2)
        end_offset = _item(table[SAMPLE_ROWS], size, 2 * shuffled + 3)
        if begin < 0 or end < begin or end >= table[DOCUMENT_COUNT]:
            return -1 - row
        place = begin if progress[row, 0] == NEW else progress[row, 0]
        filled = progress[row, 1]
        starts = shard_starts[table[FIRST_SHARD] + members[row] :]
        blocked = False
        while place <= end:
            sequence = np.int64(load32(table[DOCUMENTS] + 4 * place))
            low = 0
            high = table[SHARD_COUNT]
            if sequence < 0 or sequence >= starts[high]:
                return -1 - row
            while high - low > 1:
                middle = (low + high) // 2
                if starts[middle] <= sequence:
                    low = middle
                else:
                    high = middle
            shard = table[FIRST_SHARD] + low
            tokens = shard_table[shard, TOKENS]
            lengths = shard_table[shard, LENGTHS]
            pointers = shard_table[shard, POINTERS]
            if tokens == 0 or lengths == 0 or pointers == 0:
                if not blocked:
                    blocked = True
                    progress[row, 0] = place
                    progress[row, 1] = filled
                if wanted_count < wanted.shape[0]:
                    if asked.shape[0] == 0:
                        asked = np.zeros(shard_table.shape[0], np.bool_)
                    if not asked[shard]:
                        asked[shard] = True
                        wanted[wanted_count] = shard
                        wanted_count += 1
            elif not blocked:
                local = sequence - starts[low]
                if local >= shard_table[shard, SEQUENCES]:
                    return -1 - row
                length = np.int64(load32(lengths + 4 * local))
                first = begin_offset if place == begin else np.int64(0)
                last = end_offset + extra if place == end else length
                count = last - first
                if first < 0 or count < 0 or last > length or filled + count > width:
                    return -1 - row
                code = shard_table[shard, CODE]
                item_bytes = 8 if code == 5 else 4 if code == 4 or code == UINT32_CODE else 1 if code <= 2 else 2
                start = load64(pointers + 8 * local) + first * item_bytes
                if start < 0 or start + count * item_bytes > shard_table[shard, TOKEN_COUNT] * item_bytes:
                    return -1 - row
                into = np.int64(target + (row * width + filled) * target_bytes)
                if not _copy(tokens + start, code, into, target_bytes, count):
                    return -1 - row
                stamps[shard] = lease
                filled += count
            place += 1
        if not blocked:
            if filled != width:
                return -1 - row
            progress[row, 0] = FINISHED
    return wanted_count
