"""Cuts the bytes of a file, or of a byte range of it, into blocks of whole lines.

A line belongs to the range that holds its first byte, so ranges that meet cover every line once. Only ``\\n`` ends a
line: JSON text may hold every other character that Unicode calls a line end. Blocks are about 1 MiB, larger only
where one line is; whatever is handed out is hashed, which is what the manifest calls the input by.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from gristmill.formats.errors import InputError
from gristmill.formats.storage import open_read
from gristmill.pipelines.decompress import DamagedError, DecompressedStream
from gristmill.pipelines.plan import Extent

__all__ = [
    "BLOCK_BYTES",
    "foreign_mark",
    "Hasher",
    "line_blocks",
    "line_number",
    "LineBlock",
    "open_bytes",
    "strip_mark",
    "UTF8_MARK",
]

BLOCK_BYTES = 1 << 20
"""How much of a file is read at once."""

UTF8_MARK = b"\xef\xbb\xbf"
"""The byte-order mark of UTF-8."""

_OTHER_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_MARK_STARTS = frozenset(mark[:1] for mark in _OTHER_MARKS)


class _Readable(Protocol):
    def read(self, size: int = -1) -> bytes: ...


class Hasher(Protocol):
    """What `line_blocks` feeds; an xxhash object is one."""

    def update(self, data: bytes) -> object:
        """Takes the next bytes."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines.

    Attributes:
        data: the bytes, without a byte-order mark; ends with a line end except at the end of the file.
        offset: where the block starts in the (decompressed) file.
    """

    data: bytes
    offset: int

    def lines(self) -> list[bytes]:
        r"""The lines without their ``\n``; a final empty piece is no line."""
        pieces = self.data.split(b"\n")
        if not pieces[-1]:
            pieces.pop()
        return pieces


def open_bytes(raw: BinaryIO, extent: Extent) -> _Readable:
    """The decompressed bytes of an open file."""
    return DecompressedStream(raw, extent.compression, extent.path) if extent.compression else raw


def foreign_mark(data: bytes) -> str | None:
    """The other encoding whose byte-order mark data start with: "UTF-16", "UTF-32" or None."""
    if data[:1] not in _MARK_STARTS:
        return None
    return next((name for mark, name in _OTHER_MARKS.items() if data.startswith(mark)), None)


def strip_mark(data: bytes, path: str) -> bytes:
    """Removes a UTF-8 byte-order mark from the first bytes of a file.

    Raises:
        InputError: the mark is of another encoding.
    """
    name = foreign_mark(data)
    if name is not None:
        raise InputError(f"{path}: is {name} text (it starts with that byte-order mark); convert it to UTF-8")
    return data.removeprefix(UTF8_MARK)


def line_blocks(extent: Extent, hasher: Hasher, *, tolerate_damage: bool = False) -> Iterator[LineBlock]:
    """The lines of an extent.

    Args:
        extent: which file and which part of it.
        hasher: takes every byte that belongs to the extent.
        tolerate_damage: a compressed file that was cut short ends at its last whole line instead of failing.

    Raises:
        InputError: the file is damaged, cut short, or in another encoding.
        StorageError: it cannot be read.
    """
    with open_read(extent.path) as raw:
        position = extent.start
        if extent.start:
            raw.seek(extent.start - 1)
            position = extent.start - 1 + _first_line_start(raw)
            raw.seek(position)
        stream = open_bytes(raw, extent)
        end = None if extent.whole else extent.end
        step = BLOCK_BYTES if extent.compression else min(BLOCK_BYTES, extent.end - position + 1)
        for block in _whole_lines(stream, position, end, step, tolerate_damage=tolerate_damage):
            hasher.update(block.data)
            if block.offset == 0:
                data = strip_mark(block.data, extent.path)
                block = LineBlock(data, len(block.data) - len(data))
            yield block


def _first_line_start(raw: BinaryIO) -> int:
    """How many bytes there are up to and with the first line end, or up to the end of the file."""
    passed = 0
    while block := raw.read(BLOCK_BYTES):
        at = block.find(b"\n")
        if at >= 0:
            return passed + at + 1
        passed += len(block)
    return passed


def _whole_lines(
    stream: _Readable, position: int, end: int | None, step: int, *, tolerate_damage: bool
) -> Iterator[LineBlock]:
    """The lines from a position on, read by steps; the first is as large as a small file and one byte."""
    carried: list[bytes] = []
    fills = isinstance(stream, io.BufferedReader)  # it gives fewer bytes than asked for only where the file ends
    ended = False
    while end is None or position < end:
        try:
            block = b"" if ended else stream.read(step)
        except DamagedError:
            if tolerate_damage:
                return
            raise
        ended = fills and len(block) < step
        step = BLOCK_BYTES
        cut = block.rfind(b"\n") + 1
        if block and not cut:
            carried.append(block)
            continue
        whole = b"".join([*carried, block[:cut]])
        carried = [block[cut:]] if len(block) > cut else []
        if not whole:
            return
        if end is not None and position + len(whole) > end:
            last = whole.find(b"\n", end - 1 - position)
            whole = whole if last < 0 else whole[: last + 1]
            yield LineBlock(whole, position)
            return
        yield LineBlock(whole, position)
        position += len(whole)
        if not block:
            return


def line_number(path: str, extent: Extent, offset: int) -> int:
    """Number of the line, from 1, that starts at a byte of the decompressed file; reads all before it."""
    count = 1
    left = offset
    with open_read(path) as raw:
        stream = open_bytes(raw, extent)
        while left > 0 and (block := stream.read(min(left, BLOCK_BYTES))):
            count += block[:left].count(b"\n")
            left -= len(block)
    return count
