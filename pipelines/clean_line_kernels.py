"""The loops of the rules on lines, compiled by Numba: C4's, which take lines out, and FineWeb's.

See `clean_kernels` for how they are compiled and compared with their definitions.
"""

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.pipelines.clean_classes import DIGIT, SPACE, TERMINAL
from gristmill.pipelines.clean_kernels import count_words, hash_codes, key_of, next_line

__all__ = ["fineweb", "select_lines", "sentences"]

_NONE = np.uint64(0)
_ONE = np.uint64(1)
_FEED, _DOT, _BRACE, _OPEN, _CLOSE, _KELVIN = 10, 46, 0x7B, 0x5B, 0x5D, 0x212A
_EDIT = np.array([ord(letter) for letter in "edit]"], np.uint32)
_NEEDED = np.array([ord(letter) for letter in "citation needed]"], np.uint32)
_LOREM, _SCRIPT, _POLICY, _CURLY = 1, 2, 4, 8


@compiled
def _lower(code: int) -> int:
    """Lower case of what becomes an ASCII letter; all else as it is."""
    if 65 <= code <= 90:
        return code + 32
    return 107 if code == _KELVIN else code


@compiled
def _begins(codes: NDArray[np.uint32], place: int, last: int, pattern: NDArray[np.uint32]) -> bool:
    if place + len(pattern) > last:
        return False
    for offset in range(len(pattern)):  # noqa: SIM110 - compiled, where a generator is no faster
        if _lower(codes[place + offset]) != pattern[offset]:
            return False
    return True


@compiled
def _exactly(codes: NDArray[np.uint32], place: int, last: int, pattern: NDArray[np.uint32]) -> bool:
    if place + len(pattern) > last:
        return False
    for offset in range(len(pattern)):  # noqa: SIM110 - compiled, where a generator is no faster
        if codes[place + offset] != pattern[offset]:
            return False
    return True


@compiled
def _citation_end(codes: NDArray[np.uint32], place: int, last: int, table: NDArray[np.uint16]) -> int:
    """End of the citation that begins with the bracket at `place`, or -1."""
    inside = place + 1
    while inside < last and table[codes[inside]] & DIGIT:
        inside += 1
    if inside < last and codes[inside] == _CLOSE:
        return inside + 1
    if _exactly(codes, place + 1, last, _EDIT):
        return place + 1 + len(_EDIT)
    if _exactly(codes, place + 1, last, _NEEDED):
        return place + 1 + len(_NEEDED)
    return -1


@compiled
def sentences(codes: NDArray[np.uint32], first: int, last: int, table: NDArray[np.uint16]) -> int:
    """Number of sentences from `first` up to `last`.

    A sentence ends behind its terminals and the quotes and brackets that close there, where white space or the text's
    end follows. What comes behind the last end is one more when it is not blank.
    """
    count = 0
    open_text = False
    place = first
    while place < last:
        flags = table[codes[place]]
        if flags & TERMINAL:
            open_text = True
            place += 1
            while place < last:
                code = codes[place]
                closes = code == 0x22 or code == 0x27 or code == 0x29 or code == _CLOSE or code == 0x2019
                if not (table[code] & TERMINAL or closes or code == 0x201D):
                    break
                place += 1
            if place == last or table[codes[place]] & SPACE:
                count += 1
                open_text = False
        else:
            open_text = open_text or not flags & SPACE
            place += 1
    return count + open_text


@compiled
def _found(
    codes: NDArray[np.uint32],
    first: int,
    last: int,
    initials: NDArray[np.bool_],
    patterns: NDArray[np.uint32],
    bounds: NDArray[np.int64],
    meanings: NDArray[np.int64],
) -> int:
    """What the patterns and braces between `first` and `last` mean, all bits together."""
    found = 0
    for place in range(first, last):
        code = codes[place]
        if code == _BRACE:
            found |= _CURLY
        low = _lower(code)
        if low < 128 and initials[low]:
            for number in range(len(meanings)):
                if _begins(codes, place, last, patterns[bounds[number] : bounds[number + 1]]):
                    found |= meanings[number]
    return found


@compiled
def _line_passes(
    codes: NDArray[np.uint32], begin: int, end: int, table: NDArray[np.uint16], fewest: int, longest: int
) -> tuple[bool, bool]:
    """Whether no word between white space is too long, and whether there are enough of them."""
    words = 0
    place = begin
    while place < end:
        if table[codes[place]] & SPACE:
            place += 1
            continue
        word = place
        while place < end and not table[codes[place]] & SPACE:
            place += 1
        words += 1
        if longest and place - word > longest:
            return False, False
    return True, words >= fewest


@compiled
def _is_closing(code: int) -> bool:
    return code == _DOT or code == 0x3F or code == 0x21 or code == 0x22 or code == 0x27


@compiled
def select_lines(
    codes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    alive: NDArray[np.bool_],
    table: NDArray[np.uint16],
    numbers: NDArray[np.int64],
    citations: bool,
    terminal: bool,
    initials: NDArray[np.bool_],
    patterns: NDArray[np.uint32],
    bounds: NDArray[np.int64],
    meanings: NDArray[np.int64],
    curly: bool,
    written: NDArray[np.uint32],
    new_starts: NDArray[np.int64],
    broken: NDArray[np.int32],
    values: NDArray[np.float64],
) -> int:
    """C4's rules on lines.

    Args:
        codes: [characters] code points of the batch.
        starts: [documents + 1] where each document starts.
        alive: [documents] which to look at; the others become empty.
        table: classes of the code points.
        numbers: fewest sentences, fewest words of a line, longest word; 0 for no limit.
        citations: whether to take out citations.
        terminal: whether lines must end a sentence.
        initials: [128] whether a pattern begins with the letter.
        patterns: all patterns, lower case, end to end.
        bounds: [patterns + 1] where each begins.
        meanings: [patterns] 1 for what drops a document, 2 and 4 for what drops a line.
        curly: whether "{" drops a document.
        written: [characters] filled with the new texts.
        new_starts: [documents + 1] filled with where each starts.
        broken: [documents] filled with 0 for lorem ipsum, 1 for a brace, 2 for too few sentences, or -1.
        values: [documents] filled with the sentences left.

    Returns:
        Lines left out of the documents that stay.
    """
    out = 0
    removed = 0
    for document in range(len(starts) - 1):
        new_starts[document] = out
        broken[document] = -1
        if not alive[document]:
            continue
        own = out
        kept = count = gone = 0
        place, last = starts[document], starts[document + 1]
        while place < last:
            end, following = next_line(codes, place, last, table)
            begin, stop = place, end
            place = following
            while begin < stop and table[codes[begin]] & SPACE:
                begin += 1
            while begin < stop and table[codes[stop - 1]] & SPACE:
                stop -= 1
            gone += 1
            short_enough, enough = _line_passes(codes, begin, stop, table, numbers[1], numbers[2])
            if not short_enough:
                continue
            line = out
            if kept:
                written[line] = _FEED
                line += 1
            to = line
            while begin < stop:
                if citations and codes[begin] == _OPEN:
                    after = _citation_end(codes, begin, stop, table)
                    if after >= 0:
                        begin = after
                        continue
                written[to] = codes[begin]
                to += 1
                begin += 1
            if terminal:
                if to == line or not _is_closing(written[to - 1]):
                    continue
                if to - line >= 3 and written[to - 1] == written[to - 2] == written[to - 3] == _DOT:
                    continue
            if not enough:
                continue
            found = _found(written, line, to, initials, patterns, bounds, meanings)
            if found & _LOREM:
                broken[document] = 0
                break
            if found & _SCRIPT:
                continue
            if curly and found & _CURLY:
                broken[document] = 1
                break
            if found & _POLICY:
                continue
            if numbers[0]:
                count += sentences(written, line, to, table)
            kept += 1
            gone -= 1
            out = to
        if broken[document] < 0 and count < numbers[0]:
            broken[document] = 2
            values[document] = count
        if broken[document] >= 0:
            out = own
            continue
        removed += gone
        while out > own and table[written[out - 1]] & SPACE:
            out -= 1
        begin = own
        while begin < out and table[written[begin]] & SPACE:
            begin += 1
        if begin > own:
            for offset in range(out - begin):
                written[own + offset] = written[begin + offset]
            out -= begin - own
    new_starts[len(starts) - 1] = out
    return removed


@compiled
def fineweb(
    codes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    alive: NDArray[np.bool_],
    table: NDArray[np.uint16],
    by_space: bool,
    limits: NDArray[np.float64],
    accept_none: bool,
    short: int,
    broken: NDArray[np.int32],
    values: NDArray[np.float64],
) -> None:
    """FineWeb's rules.

    Args:
        codes: [characters] code points of the batch.
        starts: [documents + 1] where each document starts.
        alive: [documents] which to look at.
        table: classes of the code points.
        by_space: whether words end at white space alone.
        limits: [4] terminal lines, short lines, characters in copied lines, line feeds per word.
        accept_none: whether a document without terminal lines passes the first.
        short: code points of the longest line that counts as short.
        broken: [documents] filled with the number of the rule broken, 4 for a text without lines, or -1.
        values: [documents] filled with the value that breaks it.
    """
    for document in range(len(starts) - 1):
        broken[document] = -1
        if not alive[document]:
            continue
        first, last = starts[document], starts[document + 1]
        feeds = 0
        for place in range(first, last):
            feeds += codes[place] == _FEED
        room = 16
        while room < 2 * (feeds + 1):
            room *= 2
        slots = np.zeros(room, np.uint64)
        mask = np.uint64(room - 1)
        lines = ends = shorts = copied = 0
        begin = first
        while begin <= last:
            end = begin
            blank = True
            while end < last and codes[end] != _FEED:
                blank = blank and table[codes[end]] & SPACE != 0
                end += 1
            if not blank:
                lines += 1
                ends += table[codes[end - 1]] & TERMINAL != 0
                shorts += end - begin <= short
                key = key_of(hash_codes(codes, begin, end) + np.uint64(end - begin))
                slot = key & mask
                while slots[slot] != _NONE and slots[slot] != key:
                    slot = (slot + _ONE) & mask
                if slots[slot] == key:
                    copied += end - begin
                slots[slot] = key
            begin = end + 1
        if not lines:
            broken[document] = 4
            continue
        terminal = ends / lines
        if terminal < limits[0] and not (ends == 0 and accept_none):
            broken[document], values[document] = 0, terminal
        elif shorts / lines > limits[1]:
            broken[document], values[document] = 1, shorts / lines
        elif copied / (last - first - feeds) > limits[2]:
            broken[document], values[document] = 2, copied / (last - first - feeds)
        elif feeds:
            words = count_words(codes, first, last, table, by_space)
            if feeds / words > limits[3]:
                broken[document], values[document] = 3, feeds / words
