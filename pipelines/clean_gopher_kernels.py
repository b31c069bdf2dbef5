"""The loops of Gopher's rules on repetition and quality, compiled by Numba.

Strings are compared by 64-bit polynomial hashes, of which those of n-grams follow from prefix sums in two operations
each. See `clean_kernels` for how they are compiled and compared with their definitions.
"""

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.pipelines.clean_classes import SPACE
from gristmill.pipelines.clean_kernels import BASE, HAS_ALPHA, HAS_OTHER, INVERSE, MIX, key_of, next_line

__all__ = ["duplicate_ngrams", "duplicate_pieces", "quality", "repetition"]

_ONE = np.uint64(1)
_NONE = np.uint64(0)
_HASH_SIGN, _DOT, _ELLIPSIS, _DASH, _BULLET, _FEED = 35, 46, 0x2026, 45, 0x2022, 10


@compiled
def _slots_for(items: int) -> int:
    slots = 16
    while slots < 2 * items:
        slots *= 2
    return slots


@compiled
def duplicate_pieces(
    codes: NDArray[np.uint32], first: int, last: int, feeds: int, slots: NDArray[np.uint64]
) -> tuple[int, int, int]:
    """Counts the pieces between runs of at least `feeds` line feeds, those that are copies, and the copies' characters.

    Args:
        codes: code points.
        first: where the text begins.
        last: where it ends.
        feeds: line feeds that part two pieces; shorter runs belong to a piece.
        slots: room for the hashes seen, all 0, a power of two above twice the pieces; used up.
    """
    pieces = copies = chars = 0
    mask = np.uint64(len(slots) - 1)
    begin = place = first
    value = _NONE
    while True:
        run = 0
        while place + run < last and codes[place + run] == _FEED:
            run += 1
        if place == last or run >= feeds:
            length = place - begin
            key = key_of(value + np.uint64(length) * MIX)
            slot = key & mask
            while slots[slot] != _NONE and slots[slot] != key:
                slot = (slot + _ONE) & mask
            pieces += 1
            if slots[slot] == key:
                copies += 1
                chars += length
            else:
                slots[slot] = key
            if place == last:
                return pieces, copies, chars
            place += run
            begin = place
            value = _NONE
        else:
            for _ in range(max(run, 1)):
                value = value * BASE + np.uint64(codes[place]) + _ONE
                place += 1


@compiled
def _count_runs(codes: NDArray[np.uint32], first: int, last: int) -> int:
    """Line feeds from `first` up to `last`, an upper bound for the pieces between them less one."""
    count = 0
    for place in range(first, last):
        count += codes[place] == _FEED
    return count


@compiled
def _most_frequent(
    sums: NDArray[np.uint64],
    inverse: NDArray[np.uint64],
    chars: NDArray[np.int64],
    words: int,
    n: int,
    slots: NDArray[np.uint64],
    counts: NDArray[np.int32],
    firsts: NDArray[np.int64],
) -> int:
    """Characters, with a space between words, that the most frequent n-gram holds; of equals the first one counts."""
    mask = np.uint64(len(slots) - 1)
    slots[:] = 0
    best, best_first = 0, 0
    for place in range(words - n + 1):
        key = key_of((sums[place + n] - sums[place]) * inverse[place])
        slot = key & mask
        while slots[slot] != _NONE and slots[slot] != key:
            slot = (slot + _ONE) & mask
        if slots[slot] == _NONE:
            slots[slot] = key
            counts[slot] = 0
            firsts[slot] = place
        counts[slot] += 1
        if counts[slot] > best or (counts[slot] == best and firsts[slot] < best_first):
            best, best_first = counts[slot], firsts[slot]
    held: int = best * (chars[best_first + n] - chars[best_first] + n - 1)
    return held


@compiled
def duplicate_ngrams(
    prefix: NDArray[np.uint64],
    powers: NDArray[np.uint64],
    chars: NDArray[np.int64],
    words: int,
    n: int,
    slots: NDArray[np.uint64],
) -> int:
    """Characters in n-grams of words that occurred before, walked so that none counts twice.

    N-grams are compared as their words written without spaces.
    """
    mask = np.uint64(len(slots) - 1)
    slots[:] = 0
    found = 0
    place = 0
    while place < words - n + 1:
        key = key_of((prefix[place + n] - prefix[place]) * powers[place + n])
        slot = key & mask
        while slots[slot] != _NONE and slots[slot] != key:
            slot = (slot + _ONE) & mask
        if slots[slot] == key:
            found += chars[place + n] - chars[place]
            place += n
        else:
            slots[slot] = key
            place += 1
    return found


@compiled
def _power(base: np.uint64, exponent: int) -> np.uint64:
    value = _ONE
    while exponent:
        if exponent & 1:
            value *= base
        base *= base
        exponent >>= 1
    return value


@compiled
def repetition(
    codes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    alive: NDArray[np.bool_],
    table: NDArray[np.uint16],
    word_starts: NDArray[np.int64],
    lengths: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    limits: NDArray[np.float64],
    top: NDArray[np.float64],
    duplicate: NDArray[np.float64],
    broken: NDArray[np.int32],
    values: NDArray[np.float64],
) -> None:
    """Gopher's rules on repetition.

    Args:
        codes: see `split_words`, as up to `hashes`.
        starts: likewise.
        alive: likewise.
        table: likewise.
        word_starts: likewise.
        lengths: likewise.
        hashes: likewise.
        limits: [4] shares of copied paragraphs, their characters, copied lines, theirs; 0 for no limit.
        top: [rules, 2] n and its limit.
        duplicate: [rules, 2] the same.
        broken: [documents] filled with the number of the first rule broken, in this order, or -1.
        values: [documents] filled with the value that breaks it.
    """
    most_words = 0
    for document in range(len(starts) - 1):
        most_words = max(most_words, word_starts[document + 1] - word_starts[document])
    prefix = np.empty(most_words + 1, np.uint64)
    powers = np.empty(most_words + 1, np.uint64)
    sums = np.empty(most_words + 1, np.uint64)
    chars = np.empty(most_words + 1, np.int64)
    inverse = np.empty(most_words + 1, np.uint64)
    forward = np.empty(most_words + 1, np.uint64)
    inverse[0] = forward[0] = _ONE
    for place in range(most_words):
        inverse[place + 1] = inverse[place] * INVERSE
        forward[place + 1] = forward[place] * BASE
    small_powers = np.empty(64, np.uint64)
    small_inverse = np.empty(64, np.uint64)
    for exponent in range(64):
        small_powers[exponent] = _power(BASE, exponent)
        small_inverse[exponent] = _power(INVERSE, exponent)
    room = _slots_for(most_words)
    all_slots = np.empty(room, np.uint64)
    all_counts = np.empty(room, np.int32)
    all_firsts = np.empty(room, np.int64)
    for document in range(len(starts) - 1):
        broken[document] = -1
        if not alive[document]:
            continue
        first, last = starts[document], starts[document + 1]
        size = float(last - first)
        begin, end = first, last
        while begin < end and table[codes[begin]] & SPACE:
            begin += 1
        while begin < end and table[codes[end - 1]] & SPACE:
            end -= 1
        rule = -1
        value = 0.0
        piece_slots = np.zeros(_slots_for(_count_runs(codes, first, last) + 1), np.uint64)
        pieces, copies, copied = duplicate_pieces(codes, begin, end, 2, piece_slots)
        if limits[0] > 0.0 and copies / pieces > limits[0]:
            rule, value = 0, copies / pieces
        elif limits[1] > 0.0 and copied / size > limits[1]:
            rule, value = 1, copied / size
        else:
            piece_slots[:] = 0
            pieces, copies, copied = duplicate_pieces(codes, first, last, 1, piece_slots)
            if limits[2] > 0.0 and copies / pieces > limits[2]:
                rule, value = 2, copies / pieces
            elif limits[3] > 0.0 and copied / size > limits[3]:
                rule, value = 3, copied / size
        words = word_starts[document + 1] - word_starts[document]
        if rule < 0 and words:
            prefix[0] = sums[0] = _NONE
            powers[0] = _ONE
            chars[0] = 0
            before = _ONE
            for word in range(words):
                own = word_starts[document] + word
                length = lengths[own]
                power = small_powers[length] if length < 64 else _power(BASE, length)
                before *= small_inverse[length] if length < 64 else _power(INVERSE, length)
                powers[word + 1] = powers[word] * power
                prefix[word + 1] = prefix[word] + hashes[own] * before
                sums[word + 1] = sums[word] + key_of(hashes[own]) * forward[word]
                chars[word + 1] = chars[word] + length
            slots = all_slots[: _slots_for(words)]
            for row in range(len(top)):
                n = int(top[row, 0])
                if rule < 0 and n <= words:
                    held = _most_frequent(sums, inverse, chars, words, n, slots, all_counts, all_firsts)
                    if held / size > top[row, 1]:
                        rule, value = 4 + row, held / size
            for row in range(len(duplicate)):
                n = int(duplicate[row, 0])
                if rule < 0 and n <= words:
                    held = duplicate_ngrams(prefix, powers, chars, words, n, slots)
                    if held / size > duplicate[row, 1]:
                        rule, value = 4 + len(top) + row, held / size
        broken[document] = rule
        values[document] = value


@compiled
def quality(
    codes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    alive: NDArray[np.bool_],
    table: NDArray[np.uint16],
    word_starts: NDArray[np.int64],
    lengths: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    kinds: NDArray[np.uint8],
    limits: NDArray[np.float64],
    stop_words: NDArray[np.uint64],
    broken: NDArray[np.int32],
    values: NDArray[np.float64],
) -> None:
    """Gopher's rules on quality.

    Args:
        codes: see `split_words`, as up to `kinds`.
        starts: likewise.
        alive: likewise.
        table: likewise.
        word_starts: likewise.
        lengths: likewise.
        hashes: likewise.
        kinds: likewise.
        limits: [10] in the order of `GopherQualitySettings`; 0 for no limit.
        stop_words: [at most 64] their hashes.
        broken: [documents] filled with the number of the first rule broken, or -1.
        values: [documents] filled with the value that breaks it.
    """
    for document in range(len(starts) - 1):
        broken[document] = -1
        if not alive[document]:
            continue
        words = word_starts[document + 1] - word_starts[document]
        real = real_chars = alpha = 0
        stops = _NONE
        for word in range(word_starts[document], word_starts[document + 1]):
            kind = kinds[word]
            if kind & HAS_OTHER:
                real += 1
                real_chars += lengths[word]
            if kind & HAS_ALPHA:
                alpha += 1
            for number in range(len(stop_words)):
                if stop_words[number] == hashes[word]:
                    stops |= _ONE << np.uint64(number)
        if limits[0] > 0 and real < limits[0]:
            broken[document], values[document] = 0, real
            continue
        if limits[1] > 0 and real > limits[1]:
            broken[document], values[document] = 1, real
            continue
        if real:
            mean = real_chars / real
            if limits[2] > 0 and mean < limits[2]:
                broken[document], values[document] = 2, mean
                continue
            if limits[3] > 0 and mean > limits[3]:
                broken[document], values[document] = 3, mean
                continue
        signs = ellipses = lines = bullets = ends = 0
        place, last = starts[document], starts[document + 1]
        while place < last:
            end, following = next_line(codes, place, last, table)
            lines += 1
            begin, stop = place, end
            while begin < stop and table[codes[begin]] & SPACE:
                begin += 1
            while begin < stop and table[codes[stop - 1]] & SPACE:
                stop -= 1
            if begin < stop:
                if codes[begin] == _BULLET or codes[begin] == _DASH:
                    bullets += 1
                three = stop - begin >= 3 and codes[stop - 1] == codes[stop - 2] == codes[stop - 3] == _DOT
                if codes[stop - 1] == _ELLIPSIS or three:
                    ends += 1
            inside = begin
            while inside < stop:
                code = codes[inside]
                if code == _HASH_SIGN:
                    signs += 1
                elif code == _ELLIPSIS:
                    ellipses += 1
                elif code == _DOT and inside + 2 < stop and codes[inside + 1] == _DOT and codes[inside + 2] == _DOT:
                    ellipses += 1
                    inside += 2
                inside += 1
            place = following
        if not words:
            continue
        if limits[4] > 0 and signs / words > limits[4]:
            broken[document], values[document] = 4, signs / words
        elif limits[5] > 0 and ellipses / words > limits[5]:
            broken[document], values[document] = 5, ellipses / words
        elif limits[6] > 0 and bullets / lines > limits[6]:
            broken[document], values[document] = 6, bullets / lines
        elif limits[7] > 0 and ends / lines > limits[7]:
            broken[document], values[document] = 7, ends / lines
        elif limits[8] > 0 and alpha / words < limits[8]:
            broken[document], values[document] = 8, alpha / words
        elif limits[9] > 0:
            count = 0
            while stops:
                stops &= stops - _ONE
                count += 1
            if count < limits[9]:
                broken[document], values[document] = 9, count
