"""Decompresses Zstandard frames a few blocks at a time, so that what comes out at once is bounded.

A block of four bytes may stand for 128 KiB, so bounding what goes in bounds nothing, and the library has no call that
stops in the middle of its output. But the headers of frames and blocks say where each ends; walking them costs one
step of Python per block.

References:
    RFC 8878, "Zstandard Compression and the 'application/zstd' Media Type", 2021, sections 3.1.1 and 3.1.2.
    https://www.rfc-editor.org/rfc/rfc8878
"""

import zstandard

__all__ = ["BoundedZstd"]

_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"
_BLOCKS = 8
_LONGEST_WINDOW = 2**31
_RLE = 1
_DICTIONARY_BYTES = (0, 1, 2, 4)
_SIZE_BYTES = (0, 2, 4, 8)


class BoundedZstd:
    """One frame; gives at most 8 blocks of up to 128 KiB each at a time."""

    def __init__(self) -> None:
        self._codec = zstandard.ZstdDecompressor(max_window_size=_LONGEST_WINDOW).decompressobj()
        self._waiting = b""
        self._skip = 0
        self._stuck = False
        self._place = "frame"
        self._checksum_bytes = 0

    @property
    def eof(self) -> bool:
        """Whether the frame has ended."""
        return bool(self._codec.eof)

    @property
    def pending(self) -> bool:
        """Whether `step` would give more without new data."""
        return bool(self._waiting) and not self._stuck and not self.eof

    @property
    def unused_data(self) -> bytes:
        """What came behind the frame's end."""
        return bytes(self._codec.unused_data) + self._waiting

    def step(self, data: bytes) -> bytes:
        """Takes more of the frame and gives the next of its content.

        Raises:
            zstandard.ZstdError: the data are no valid frame.
        """
        waiting = self._waiting + data
        at = headers = 0
        while True:
            passed = min(self._skip, len(waiting) - at)
            at += passed
            self._skip -= passed
            if self._skip or self._place == "end" or headers == _BLOCKS:
                self._stuck = bool(self._skip)
                break
            length = self._header(waiting[at : at + 8])
            if length is None:
                self._stuck = True
                break
            self._skip = length
            headers += 1
        self._waiting = waiting[at:]
        return bytes(self._codec.decompress(waiting[:at])) if at else b""

    def _header(self, data: bytes) -> int | None:
        """Bytes from here to the next header or the frame's end; None when that cannot be said yet."""
        if self._place == "block":
            return self._block_header(data)
        if len(data) < 5:
            return None
        if data[1:4] == _SKIPPABLE and data[0] >> 4 == 5:
            if len(data) < 8:
                return None
            self._place = "end"
            return 8 + int.from_bytes(data[4:8], "little")
        if not data.startswith(_MAGIC):
            self._place = "end"
            return len(data)  # for the library to refuse
        self._place = "block"
        descriptor = data[4]
        single = descriptor >> 5 & 1
        self._checksum_bytes = 4 if descriptor >> 2 & 1 else 0
        size_bytes = _SIZE_BYTES[descriptor >> 6] or single
        return 5 + (1 - single) + _DICTIONARY_BYTES[descriptor & 3] + size_bytes

    def _block_header(self, data: bytes) -> int | None:
        if len(data) < 3:
            return None
        header = int.from_bytes(data[:3], "little")
        length = 3 + (1 if header >> 1 & 3 == _RLE else header >> 3)
        if header & 1:
            self._place = "end"
            length += self._checksum_bytes
        return length
