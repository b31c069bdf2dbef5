"""Decompresses gzip, zlib, bzip2, xz and Zstandard streams, and notices when one was cut short.

All members or frames of a file are read, as `cat a.gz b.gz` makes them. The usual readers of these formats differ in
what they do at an unfinished end, some simply stop; here each codec's own end mark is asked for. Memory is bounded by
a block of about a megabyte whatever the ratio; the price is a few Python calls per block.
"""

import bz2
import lzma
import zlib
from typing import BinaryIO, Protocol

import zstandard

from gristmill.formats.errors import InputError
from gristmill.pipelines.zstd_blocks import BoundedZstd

__all__ = ["DamagedError", "DecompressedStream", "detect_compression", "HEAD_BYTES"]

HEAD_BYTES = 10
"""How much of a file `detect_compression` needs to see."""

_MAGIC = {
    "gzip": b"\x1f\x8b",
    "xz": b"\xfd7zXZ\x00",
    "zstd": b"\x28\xb5\x2f\xfd",
}
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")  # what follows "BZh1" to "BZh9": a block, or the end of an empty stream
_PADDED = {"gzip", "xz"}
_FEED_BYTES = 1 << 18
_OUTPUT_BYTES = 1 << 20
_CODEC_ERRORS = (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError, ValueError)


class DamagedError(InputError):
    """A compressed file ends before its end mark, or its bytes are not valid."""


def detect_compression(head: bytes) -> str | None:
    """The compression that a file's first bytes announce: "gzip", "bzip2", "xz", "zstd", or None.

    Args:
        head: the first `HEAD_BYTES` bytes, fewer only where the file has fewer.
    """
    for name, magic in _MAGIC.items():
        if head.startswith(magic):
            return name
    if head[:3] == b"BZh" and head[3:4] in b"123456789" and any(mark.startswith(head[4:10]) for mark in _BZIP2_BLOCKS):
        return "bzip2" if len(head) > 4 else None
    if len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F:
        return "zstd"  # a skippable frame in front
    return None


class _Codec(Protocol):
    """Decompresses one member; hands out about `_OUTPUT_BYTES` at most at a time."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def pending(self) -> bool: ...

    def step(self, data: bytes) -> bytes: ...


class _Gzip:
    def __init__(self, wbits: int = 31) -> None:
        self._codec = zlib.decompressobj(wbits=wbits)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._codec.eof

    @property
    def unused_data(self) -> bytes:
        return self._codec.unused_data

    @property
    def pending(self) -> bool:
        return not self._codec.eof and self._full

    def step(self, data: bytes) -> bytes:
        block = self._codec.decompress(self._codec.unconsumed_tail + data, _OUTPUT_BYTES)
        self._full = len(block) == _OUTPUT_BYTES
        return block


class _Bounded:
    """bzip2 and xz, whose decompressors keep what they were not asked for."""

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


def _codec(compression: str) -> _Codec:
    if compression == "gzip":
        return _Gzip()
    if compression == "zlib":
        return _Gzip(zlib.MAX_WBITS)
    if compression == "bzip2":
        return _Bounded(bz2.BZ2Decompressor())
    if compression == "xz":
        return _Bounded(lzma.LZMADecompressor(format=lzma.FORMAT_XZ))
    return BoundedZstd()


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
        self._damage: DamagedError | None = None

    def read(self, size: int = -1) -> bytes:
        """The next block; empty only at the end. Everything before a damage is given before it is reported.

        Args:
            size: about how many bytes are wanted; the block may be shorter or longer.

        Raises:
            DamagedError: the file ends inside a member, or the bytes are no valid stream of this compression.
        """
        blocks: list[bytes] = []
        length = 0
        while self._damage is None and (length == 0 or length < size):
            try:
                block = self._next()
            except DamagedError as error:
                self._damage = error
                break
            if block is None:
                break
            blocks.append(block)
            length += len(block)
        if self._damage is not None and not length:
            raise self._damage
        return b"".join(blocks)

    def _next(self) -> bytes | None:
        """Output of one step, None at the end of the file."""
        if self._codec.eof:
            self._rest = self._codec.unused_data + self._rest
            self._codec, self._started = _codec(self._compression), False
        if self._codec.pending:
            return self._step(b"")
        data = self._fed()
        if data:
            self._started = True
            return self._step(data)
        if self._started:
            raise DamagedError(
                f"{self._path}: the {self._compression} data end before their end mark; the file was cut short. "
                "Fetch it again, or list it under expect_damaged to take what is there"
            )
        return None

    def _fed(self) -> bytes:
        """The next bytes of the file, without the zeros that may stand between members; empty only at its end."""
        while True:
            data, self._rest = self._rest or self._raw.read(_FEED_BYTES), b""
            if not data or self._started or self._compression not in _PADDED:
                return data
            if data := data.lstrip(b"\x00"):
                return data

    def _step(self, data: bytes) -> bytes:
        try:
            return self._codec.step(data)
        except _CODEC_ERRORS as error:
            raise DamagedError(
                f"{self._path}: damaged {self._compression} data: {error}. Fetch it again, or list it under "
                "expect_damaged to take what comes before"
            ) from error
