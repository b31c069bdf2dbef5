"""The compiled gather: walks the indices of each row and copies its token ranges, for a whole batch in one call.

Index arrays and shards come in as tables of addresses, so one call serves any number of sources and files. A batch
touches thousands of places that no cache holds. So rows go through the walk side by side, in stages: each stage asks
for the memory that the next will need, of all rows, before it waits for any, which costs a few words for each token
range and saves most of the waiting. A row that meets a closed shard stops there and is taken up again by the next
call, which is cheaper than first finding out, for every batch, what happens to be open. `RowReader.pieces` is the same
walk in NumPy and the definition; whatever this one finds contradictory is handed back to it for the message.
"""

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.runtime.copies import copy_pair, copy_tokens, item_bytes
from gristmill.runtime.raw_memory import file_bytes, load32, load64, prefetch
from gristmill.runtime.shards import (
    CODE,
    INDEX_BYTES,
    INDEX_FILE,
    LENGTHS,
    POINTERS,
    SEQUENCES,
    TOKEN_COUNT,
    TOKENS,
    TOKENS_FILE,
)

__all__ = [
    "copy_ranges",
    "DOCUMENT_COUNT",
    "DOCUMENTS",
    "FINISHED",
    "FIRST_MEMBER",
    "FIRST_SHARD",
    "gather",
    "is_whole",
    "LOOKING",
    "MEMBER_COLUMNS",
    "NEW",
    "OPENING",
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

NEW, FINISHED = 0, -1
"""Values of a row's `progress`: not begun, and complete. Others are the place in the document index to go on from,
which is never before its first one, so that 0 serves for a row that has not begun."""

OPENING, LOOKING, FIRST_MEMBER = -1, -2, -3
"""Values of `at` below those that name a shard: the caller opens one, or looks up rows; the first member, from which
those of the others count down."""

_BLOCK_ROWS = 128  # walked side by side: enough to hide the waiting, few enough for the stages to stay in the cache
_LINE_BYTES = 64
_PAGE_BYTES = 4096
_AHEAD_RANGES, _AHEAD_BYTES, _AHEAD_PAGE_BYTES = 2, 512, 128  # asked for early; the processor goes on to the page's end
_PLACE, _BEGIN, _BEGIN_OFFSET, _END, _END_OFFSET = range(5)  # of a row, in the sample index
_SHARD, _TOKENS_AT, _LENGTH_AT, _POINTER_AT = range(4)  # of an entry: its shard, and addresses or 0
_SOURCE, _COUNT, _PLACE_OF, _SHARD_OF = range(4)  # of a range: address, tokens, place among those of rows, and shard


@compiled
def _item(address: np.int64, entry_bytes: np.int64, place: np.int64) -> np.int64:
    """Entry of an index array of int32 (or uint32, below 2**31) or int64."""
    if entry_bytes == 4:
        return np.int64(load32(address + 4 * place)) & np.int64(0xFFFFFFFF)
    return np.int64(load64(address + 8 * place))


@compiled
def _spans(
    members: NDArray[np.int64],
    samples: NDArray[np.int64],
    member_table: NDArray[np.int64],
    progress: NDArray[np.int64],
    spans: NDArray[np.int64],
    at: NDArray[np.int64],
) -> int:
    """Looks up where the samples of a block begin and end; the number of entries they touch, or ``-1 - row``."""
    for row in range(len(members)):
        table = member_table[members[row]]
        if samples[row] < 0 or samples[row] >= table[SAMPLE_COUNT]:
            return -1 - row
        prefetch(np.int64(table[SHUFFLE] + table[SHUFFLE_BYTES] * samples[row]))
    for row in range(len(members)):
        table = member_table[members[row]]
        at[0] = FIRST_MEMBER - members[row]
        place = _item(table[SHUFFLE], table[SHUFFLE_BYTES], samples[row])
        if place >= table[PLACE_COUNT] or place < 0:
            return -1 - row
        spans[row, _PLACE] = place
        first = np.int64(table[SAMPLE_ROWS] + 2 * table[SAMPLE_BYTES] * place)
        prefetch(first)
        prefetch(np.int64(first + 3 * table[SAMPLE_BYTES]))
    entries = 0
    for row in range(len(members)):
        table = member_table[members[row]]
        done = int(progress[row, 0])
        for column in range(4):
            spans[row, _BEGIN + column] = _item(
                table[SAMPLE_ROWS], table[SAMPLE_BYTES], 2 * spans[row, _PLACE] + column
            )
        begin, end = int(spans[row, _BEGIN]), int(spans[row, _END])
        if begin < 0 or end < begin or end >= table[DOCUMENT_COUNT]:
            return -1 - row
        if done != FINISHED:
            entries += end - max(begin, done) + 1
            for entry in range(begin, end + 1, 16):
                prefetch(np.int64(table[DOCUMENTS] + 4 * entry))
            prefetch(np.int64(table[DOCUMENTS] + 4 * end))
    return entries


@compiled
def _entries(
    members: NDArray[np.int64],
    member_table: NDArray[np.int64],
    shard_starts: NDArray[np.int64],
    shard_table: NDArray[np.int64],
    stamps: NDArray[np.int64],
    lease: int,
    progress: NDArray[np.int64],
    spans: NDArray[np.int64],
    entries: NDArray[np.int64],
    at: NDArray[np.int64],
) -> int:
    """Finds shard and addresses of each entry of a block; 0, or ``-1 - row``."""
    entry = 0
    for row in range(len(members)):
        if progress[row, 0] == FINISHED:
            continue
        table = member_table[members[row]]
        starts = shard_starts[table[FIRST_SHARD] + members[row] :]
        for place in range(max(spans[row, _BEGIN], progress[row, 0]), spans[row, _END] + 1):
            sequence = np.int64(load32(np.int64(table[DOCUMENTS] + 4 * place)))
            low = np.int64(0)
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
            local = sequence - starts[low]
            if local >= shard_table[shard, SEQUENCES]:
                return -1 - row
            tokens = shard_table[shard, TOKENS]
            lengths = shard_table[shard, LENGTHS]
            pointers = shard_table[shard, POINTERS]
            tokens_file = shard_table[shard, TOKENS_FILE]
            index_file = shard_table[shard, INDEX_FILE]
            entries[entry, _SHARD] = shard
            entries[entry, _TOKENS_AT] = 0
            if tokens != 0 and lengths != 0 and pointers != 0 and tokens_file != 0 and index_file != 0:
                at[0] = shard
                if stamps[shard] != lease:
                    stamps[shard] = lease
                    at[1] += 1
                    if not is_whole(shard_table[shard], tokens_file, index_file):
                        return -1 - row
                entries[entry, _TOKENS_AT] = tokens
                entries[entry, _LENGTH_AT] = lengths + 4 * local
                entries[entry, _POINTER_AT] = pointers + 8 * local
                prefetch(np.int64(lengths + 4 * local))
                prefetch(np.int64(pointers + 8 * local))
            entry += 1
    return 0


@compiled
def is_whole(shard: NDArray[np.int64], tokens_file: np.int64, index_file: np.int64) -> bool:
    """Whether the mapped files of a shard are still as long as its maps; a shorter one may not be touched."""
    if tokens_file > 0 and file_bytes(np.int64(tokens_file - 1)) < shard[TOKEN_COUNT] * item_bytes(shard[CODE]):
        return False
    return bool(index_file < 0 or file_bytes(np.int64(index_file - 1)) >= shard[INDEX_BYTES])


@compiled
def _ranges(
    spans: NDArray[np.int64],
    entries: NDArray[np.int64],
    shard_table: NDArray[np.int64],
    extra: int,
    held: NDArray[np.int64],
    width: int,
    first_row: int,
    starts_out: NDArray[np.bool_],
    progress: NDArray[np.int64],
    ranges: NDArray[np.int64],
    wanted: NDArray[np.int64],
    asked: NDArray[np.bool_],
) -> tuple[int, int]:
    """Says for each row of a block what to copy from where, up to its first closed shard.

    Returns:
        The number of ranges, or ``-1 - row``; and the number of shards added to `wanted`.
    """
    entry = 0
    found = 0
    closed = 0
    for row in range(len(spans)):
        if progress[row, 0] == FINISHED:
            continue
        begin, end = spans[row, _BEGIN], spans[row, _END]
        filled = progress[row, 1]
        blocked = False
        for place in range(max(begin, progress[row, 0]), end + 1):
            shard = entries[entry, _SHARD]
            tokens = entries[entry, _TOKENS_AT]
            if tokens == 0:
                if not blocked:
                    blocked = True
                    progress[row, 0] = place
                    progress[row, 1] = filled
                if not asked[shard] and closed < len(wanted):
                    asked[shard] = True
                    wanted[closed] = shard
                    closed += 1
            elif not blocked:
                length = np.int64(load32(entries[entry, _LENGTH_AT]))
                first = spans[row, _BEGIN_OFFSET] if place == begin else np.int64(0)
                last = spans[row, _END_OFFSET] + extra if place == end else length
                count = last - first
                if first < 0 or count < 0 or last > length or filled + count > width:
                    return -1 - row, closed
                code = shard_table[shard, CODE]
                token_bytes = item_bytes(code)
                start = load64(entries[entry, _POINTER_AT]) + first * token_bytes
                if start < 0 or start + count * token_bytes > shard_table[shard, TOKEN_COUNT] * token_bytes:
                    return -1 - row, closed
                if count > 0:
                    prefetch(np.int64(tokens + start))  # where the page lies, above all
                    ranges[found, _SOURCE] = tokens + start
                    ranges[found, _COUNT] = count
                    ranges[found, _PLACE_OF] = (first_row + row) * width + filled
                    ranges[found, _SHARD_OF] = shard
                    found += 1
                    if len(starts_out) and filled > 0:
                        starts_out[row, filled] = True
                filled += count
            entry += 1
        if not blocked:
            if filled != (held[row] if len(held) else width):
                return -1 - row, closed
            progress[row, 0] = FINISHED
    return found, closed


@compiled
def copy_ranges(
    ranges: NDArray[np.int64],
    shard_table: NDArray[np.int64],
    out: NDArray[np.uint16 | np.int32],
    targets: NDArray[np.uint16 | np.int32],
    at: NDArray[np.int64],
) -> int:
    """Copies ranges of tokens in order.

    Args:
        ranges: int64 [n, 4], the address at which each begins, its tokens, the place of the first among those of all
            rows, ``row * W + column``, and its shard; none crosses the end of a row.
        shard_table: int64 [shards, SHARD_COLUMNS].
        out: uint16 or int32, C-contiguous; filled there: [R, W], or the inputs [R, W - 1] where there are targets.
        targets: as `out`, [R, W - 1], filled with what follows each input; or of no rows, to leave that out.
        at: int64 [3], as `gather` has it; updated.

    Returns:
        -1, or the number of the range that holds a token that does not fit.
    """
    target_bytes = np.int64(out.itemsize)
    first = np.int64(out.ctypes.data)
    second = np.int64(targets.ctypes.data)
    length = np.int64(out.shape[1])
    paired = len(targets) > 0
    for number in range(len(ranges)):
        if number + _AHEAD_RANGES < len(ranges):
            later = ranges[number + _AHEAD_RANGES]
            begin = later[_SOURCE]
            stop = begin + later[_COUNT] * item_bytes(shard_table[later[_SHARD_OF], CODE])
            for line in range(begin, min(stop, begin + _AHEAD_BYTES), _LINE_BYTES):
                prefetch(np.int64(line))
            for page in range((begin // _PAGE_BYTES + 1) * _PAGE_BYTES, stop, _PAGE_BYTES):
                for line in range(page, page + _AHEAD_PAGE_BYTES, _LINE_BYTES):
                    prefetch(np.int64(line))
        source, count, place, shard = ranges[number]
        code = shard_table[shard, CODE]
        at[0] = shard
        if not paired:
            fits = copy_tokens(source, code, first + place * target_bytes, target_bytes, count)
        else:
            row = place // (length + 1)
            column = place - row * (length + 1)
            start = row * length * target_bytes
            fits = copy_pair(source, code, column, length, first + start, second + start, target_bytes, count)
        if not fits:
            return number
        at[2] += count * item_bytes(code)
    return -1


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
    held: NDArray[np.int64],
    out: NDArray[np.uint16 | np.int32],
    targets: NDArray[np.uint16 | np.int32],
    starts_out: NDArray[np.bool_],
    progress: NDArray[np.int64],
    wanted: NDArray[np.int64],
    at: NDArray[np.int64],
) -> int:
    """Fills rows of tokens as far as the open shards allow.

    Args:
        members: int64 [R], the member of each row.
        samples: int64 [R], its sample there.
        member_table: int64 [members, MEMBER_COLUMNS].
        shard_starts: int64 [shards + members]; from ``first_shard + member`` on, the first sequence of each shard of a
            member and, last, its number of sequences.
        shard_table: int64 [shards, SHARD_COLUMNS], see `gristmill.runtime.shards`.
        stamps: int64 [shards]; set to `lease` for each shard used.
        lease: the caller's lease.
        extra: 1 when a sample has one token more than its length, else 0.
        held: int64 [R], tokens that each row must get, from the left; or of no rows, for W.
        out: uint16 or int32 [R, W], C-contiguous; filled. With targets it is the inputs, [R, W - 1].
        targets: as `out`, [R, W - 1], filled with what follows each input; or of no rows, to leave that out.
        starts_out: bool [R, W], set to True where a row goes on with another entry; or of no rows, to leave that out.
        progress: int64 [R, 2]: NEW, FINISHED or a place in the document index, and the tokens filled; updated.
        wanted: int64 [n], filled with closed shards that are needed, those needed first in front; each once.
        at: int64 [3]: what is being read, for other threads to see: a shard, or ``FIRST_MEMBER`` and below for the
            indices of a member; and, added up, how many open shards were used, and the bytes copied.

    Returns:
        The number of shards in `wanted`; 0 when every row is complete; ``-1 - row`` when a row's indices contradict
        each other or the shards, or a file is no longer as long as its map.
    """
    width = out.shape[1] + (len(targets) > 0)
    asked = np.zeros(len(shard_table), np.bool_)
    closed = 0
    spans = np.empty((min(len(members), _BLOCK_ROWS), 5), np.int64)
    for first in range(0, len(members), _BLOCK_ROWS):
        block = slice(first, min(first + _BLOCK_ROWS, len(members)))
        rows = block.stop - first
        done = progress[block]
        count = _spans(members[block], samples[block], member_table, done, spans[:rows], at)
        if count < 0:
            return count - first
        entries = np.empty((count, 4), np.int64)
        failed = _entries(
            members[block], member_table, shard_starts, shard_table, stamps, lease, done, spans[:rows], entries, at
        )
        if failed < 0:
            return failed - first
        ranges = np.empty((count, 4), np.int64)
        starts = starts_out[block] if len(starts_out) else starts_out
        short = held[block] if len(held) else held
        count, more = _ranges(
            spans[:rows], entries, shard_table, extra, short, width, first, starts, done, ranges, wanted[closed:], asked
        )
        if count < 0:
            return count - first
        closed += more
        number = copy_ranges(ranges[:count], shard_table, out, targets, at)
        if number >= 0:
            return int(-1 - ranges[number, _PLACE_OF] // width)
    return closed
