"""Decompresses gzip, bzip2, xz and Zstandard streams, and notices when one was cut short.

All members or frames of a file are read, as `cat a.gz b.gz` makes them. The usual readers of these formats differ in
what they do at an unfinished end, some simply stop; here each codec's own end mark is asked for. Memory is bounded by
a block whatever the ratio; the price is one Python call per block of a quarter megabyte.
"""

import bz2
import lzma
import zlib
from typing import BinaryIO

import zstandard

from gristmill.formats.errors import InputError

__all__ = ["DecompressedStream", "detect_compression", "TruncatedError"]

_MAGIC = {
    "gzip": b"\x1f\x8b",
    "bzip2": b"BZh",
    "xz": b"\xfd7zXZ\x00",
    "zstd": b"\x28\xb5\x2f\xfd",
}
_FEED_BYTES = {"gzip": 1 << 18, "bzip2": 1 << 18, "xz": 1 << 18, "zstd": 1 << 14}
_OUTPUT_BYTES = 1 << 20
_CODEC_ERRORS = (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError, ValueError)


class TruncatedError(InputError):
    """A compressed file ends before its end mark."""


def detect_compression(head: bytes) -> str | None:
    """The compression that a file's first bytes announce: "gzip", "bzip2", "xz", "zstd", or None."""
    for name, magic in _MAGIC.items():
        if head.startswith(magic):
            return name
    if len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F:
        return "zstd"  # a skippable frame in front
    return None


class _Gzip:
    def __init__(self) -> None:
        self._codec = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._codec.eof

    @property
    def unused_data(self) -> bytes:
        return self._codec.unused_data

    def step(self, data: bytes) -> bytes:
        return self._codec.decompress(data)


class _Bounded:
    """bzip2 and xz, whose decompressors hand out at most so many bytes at a time."""

    def __init__(self, codec: "bz2.BZ2Decompressor | lzma.LZMADecompressor") -> None:
        self._codec = codec

    @property
    def eof(self) -> bool:
        return self._codec.eof

    @property
    def unused_data(self) -> bytes:
        return self._codec.unused_data

    @property
    def pending(self) -> bool:
        return not self._codec.eof and not self._codec.needs_input

    def step(self, data: bytes) -> bytes:
        return self._codec.decompress(data, _OUTPUT_BYTES)


class _Zstd:
    def __init__(self) -> None:
        self._codec = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()

    @property
    def eof(self) -> bool:
        return bool(self._codec.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._codec.unused_data)

    def step(self, data: bytes) -> bytes:
        return bytes(self._codec.decompress(data))


def _codec(compression: str) -> "_Gzip | _Bounded | _Zstd":
    if compression == "gzip":
        return _Gzip()
    if compression == "bzip2":
        return _Bounded(bz2.BZ2Decompressor())
    if compression == "xz":
        return _Bounded(lzma.LZMADecompressor(format=lzma.FORMAT_XZ))
    return _Zstd()


class DecompressedStream:
    """The decompressed bytes of a file, in blocks.

    Args:
        raw: the compressed file, at its start.
        compression: as `detect_compression` names it.
        path: what messages call the file.
    """

    def __init__(self, raw: BinaryIO, compression: str, path: str) -> None:
        self._raw = raw
        self._compression = compression
        self._path = path
        self._codec = _codec(compression)
        self._started = False
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """The next block; empty only at the end.

        Args:
            size: about how many bytes are wanted; the block may be shorter or longer.

        Raises:
            TruncatedError: the file ends inside a member.
            InputError: the bytes are no valid stream of this compression.
        """
        blocks: list[bytes] = []
        length = 0
        while length == 0 or length < size:
            block = self._next()
            if block is None:
                break
            blocks.append(block)
            length += len(block)
        return b"".join(blocks)

    def _next(self) -> bytes | None:
        """Output of one step, None at the end of the file."""
        if self._codec.eof:
            self._rest = self._codec.unused_data + self._rest
            self._rest = self._rest.lstrip(b"\x00") if self._compression in {"gzip", "xz"} else self._rest
            self._codec, self._started = _codec(self._compression), False
        if isinstance(self._codec, _Bounded) and self._codec.pending:
            return self._step(b"")
        if not self._rest:
            self._rest = self._raw.read(_FEED_BYTES[self._compression])
            if not self._started and self._compression in {"gzip", "xz"}:
                self._rest = self._rest.lstrip(b"\x00") if self._rest.strip(b"\x00") else b""
        if not self._rest:
            if self._started:
                raise TruncatedError(
                    f"{self._path}: the {self._compression} data end before their end mark; the file was cut short. "
                    "Fetch it again, or list it under expect_damaged to take what is there"
                )
            return None
        data, self._rest = self._rest, b""
        self._started = True
        return self._step(data)

    def _step(self, data: bytes) -> bytes:
        try:
            return self._codec.step(data)
        except _CODEC_ERRORS as error:
            raise InputError(f"{self._path}: damaged {self._compression} data: {error}") from error
