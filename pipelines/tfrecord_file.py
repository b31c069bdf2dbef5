"""TFRecord files: records one behind the other, each with its length and with checksums of both, and no index.

Both checksums of every record are compared (CRC-32C, masked as TensorFlow masks it), so that damage is found where it
is and not by what it does to a text. A file says nowhere how many records there are: only reading it tells, and one
that was cut off exactly between two records looks whole.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

from gristmill.formats.errors import MissingExtraError
from gristmill.pipelines.decompress import HEAD_BYTES, DamagedError, detect_compression

__all__ = ["frames", "HEADER_BYTES", "packed_frames", "whole_frames"]

HEADER_BYTES = 12
"""Bytes before the data of a record: their length, and the checksum of that."""

_TRAILER_BYTES = 4
_READ_BYTES = 1 << 20
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MASK = 0xA282EAD8


class _Readable(Protocol):
    def read(self, size: int = -1) -> bytes: ...


def _checksum() -> Callable[[bytes], int]:
    """The function that computes CRC-32C."""
    try:
        import google_crc32c
    except ImportError as error:
        raise MissingExtraError("google-crc32c", "records", 'sources of the format "tfrecord"') from error
    return cast("Callable[[bytes], int]", google_crc32c.value)


def _masked(checksum: int) -> int:
    return (((checksum >> 15) | (checksum << 17)) + _MASK) & 0xFFFFFFFF


def packed_frames(head: bytes) -> str | None:
    """The compression of a TFRecord file: "zlib" or one that `detect_compression` knows; None for none.

    A length of 35,615 bytes begins as gzip does, one of 40,056 as zlib does; so the checksum of the length is asked
    first.

    Args:
        head: the first `HEADER_BYTES` bytes, fewer only where the file has fewer.

    Raises:
        MissingExtraError: the library of the checksums is not installed.
    """
    checksum = _checksum()
    if len(head) < HEADER_BYTES or _HEADER.unpack(head[:HEADER_BYTES])[1] != _masked(checksum(head[:8])):
        if len(head) > 1 and head[0] & 0x8F == 8 and int.from_bytes(head[:2], "big") % 31 == 0:
            return "zlib"
        return detect_compression(head[:HEAD_BYTES])
    return None


def whole_frames(data: bytes) -> int:
    """How many bytes of the beginning of a file are whole records, by their lengths alone."""
    at = 0
    while at + HEADER_BYTES <= len(data):
        end = at + HEADER_BYTES + _HEADER.unpack_from(data, at)[0] + _TRAILER_BYTES
        if end > len(data):
            break
        at = end
    return at


def frames(stream: _Readable, path: str) -> Iterator[tuple[int, bytes]]:
    """The records of a file.

    Args:
        stream: the bytes of the file, decompressed, from its start.
        path: what messages call it.

    Yields:
        Byte at which the record begins, and its data.

    Raises:
        DamagedError: the file is cut short or a checksum is wrong; all records before are given first.
        MissingExtraError: the library of the checksums is not installed.
    """
    checksum = _checksum()
    buffer = _Buffer(stream)
    number = 0
    while True:
        offset = buffer.offset
        header = buffer.take(HEADER_BYTES)
        if not header:
            return
        where = f"{path}: record {number}, counted from 0, at byte {offset}"
        if len(header) < HEADER_BYTES:
            raise DamagedError(f"{where}: {len(header)} bytes where its length should be; {_CUT_SHORT}")
        length, expected = _HEADER.unpack(header)
        if _masked(checksum(header[:8])) != expected:
            what = "no TFRecord file, or one whose" if not number else "the"
            raise DamagedError(f"{where}: {what} length has the wrong checksum; {_DAMAGED}")
        data = buffer.take(length)
        trailer = buffer.take(_TRAILER_BYTES)
        if len(trailer) < _TRAILER_BYTES:
            found = len(data) + len(trailer)
            raise DamagedError(f"{where}: {found} of its {length + _TRAILER_BYTES} bytes are there; {_CUT_SHORT}")
        if _masked(checksum(data)) != _CHECKSUM.unpack(trailer)[0]:
            raise DamagedError(f"{where}: the {length} bytes of its data have the wrong checksum; {_DAMAGED}")
        yield offset, data
        number += 1


_CUT_SHORT = "the file was cut short. Fetch it again, or list it under expect_damaged to take what is there"
_DAMAGED = "the file is damaged. Fetch it again, or list it under expect_damaged to take what comes before"


class _Buffer:
    """Takes bytes from a stream that gives them in blocks of its own size.

    Attributes:
        offset: how many were taken.
    """

    def __init__(self, stream: Any) -> None:
        self.offset = 0
        self._stream = stream
        self._block = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next bytes, fewer than `count` only at the end."""
        end = self._at + count
        if end <= len(self._block):
            taken = self._block[self._at : end]
            self._at = end
        else:
            taken = self._gather(count)
        self.offset += len(taken)
        return taken

    def _gather(self, count: int) -> bytes:
        parts = [self._block[self._at :]]
        missing = count - len(parts[0])
        self._block, self._at = b"", 0
        while missing > 0:
            block = self._stream.read(_READ_BYTES)
            if not block:
                break
            if len(block) > missing:
                self._block, self._at = block, missing
                block = block[:missing]
            parts.append(block)
            missing -= len(block)
        return b"".join(parts)
