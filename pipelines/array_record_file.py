"""ArrayRecord files: records in packed chunks, and an index behind them that says where each chunk begins.

The index is read here, from the end of the file, so that a plan can cut a file between chunks wherever it lies; the
chunks are left to the `array_record` library, which checks their hashes. That library reads files of a disk alone, so
of a file elsewhere the wanted chunks and the index are put at their places in a file with holes first.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from gristmill.formats.errors import InputError, MissingExtraError
from gristmill.formats.storage import is_local, local_path, open_read, read_range

__all__ = ["ArrayRecordIndex", "open_array_record", "read_array_index"]

_BLOCK = 64 << 10  # of a file, from its start; each begins with a header, wherever chunks begin and end
_BLOCK_HEADER = 24
_CHUNK_DTYPE = np.dtype([("hashes", "<u8"), ("size", "<u8"), ("data_hash", "<u8"), ("kind", "<u8"), ("decoded", "<u8")])
_SIMPLE = ord("r")
_MAGIC = 0x71930E704FDAE05E  # `magic` of the postscript, a record in the last block
_PLAIN, _ZSTD = 0, ord("z")
_COPY_BYTES = 1 << 20
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # one chunk in memory, and no thread pool


@dataclass(frozen=True, slots=True)
class ArrayRecordIndex:
    """Where the chunks of a file are.

    Attributes:
        bounds: int64 [C + 1], byte at which each chunk begins, and that behind the last.
        records: int64 [C + 1], number of the first record of each chunk, and the number of records.
    """

    bounds: np.ndarray
    records: np.ndarray


def read_array_index(path: str, size: int) -> ArrayRecordIndex | None:
    """The index of a file; None where it is packed in a way that only the library knows.

    Args:
        path: path or URL.
        size: bytes of the file.

    Raises:
        InputError: the file is cut short, damaged, or of another kind.
        StorageError: it cannot be read.
    """
    try:
        if size < _BLOCK or size % _BLOCK:
            raise ValueError(f"{size} bytes are no whole number of blocks of {_BLOCK}")
        footer = _footer_offset(_stripped(read_range(path, size - _BLOCK, _BLOCK), size - _BLOCK))
        if footer > size - _BLOCK:
            raise ValueError(f"its index begins at byte {footer} of {size}")
        data = _stripped(read_range(path, footer, size - _BLOCK - footer), footer)
        chunk, body = _chunk(data)
        unpacked = _simple_records(body) if chunk["kind"] & 0xFF == _SIMPLE else None
        return None if unpacked is None else _index(*unpacked, int(chunk["kind"]) >> 8, footer)
    except (ValueError, IndexError, zstandard.ZstdError) as error:
        raise InputError(f"{path}: cannot be read as ArrayRecord: {error}; {_REMEDY}") from error


_REMEDY = "it was cut short, is damaged or is none. Fetch it again or leave it out"


def _stripped(data: bytes, offset: int) -> bytes:
    """The bytes of a file from a place on, without the headers of blocks."""
    parts = []
    at = 0
    while at < len(data):
        within = (offset + at) % _BLOCK
        end = at + _BLOCK - within
        parts.append(data[at + max(0, _BLOCK_HEADER - within) : end])
        at = end
    return b"".join(parts)


def _chunk(data: bytes) -> tuple[Any, bytes]:
    """Header and body of the chunk that data begin with."""
    if len(data) < _CHUNK_DTYPE.itemsize:
        raise ValueError(f"{len(data)} bytes where its index should be")
    (chunk,) = np.frombuffer(data, _CHUNK_DTYPE, 1)
    body = data[_CHUNK_DTYPE.itemsize :][: int(chunk["size"])]
    if len(body) < chunk["size"]:
        raise ValueError(f"{len(body)} of {int(chunk['size'])} bytes of its index are there")
    return chunk, body


def _footer_offset(block: bytes) -> int:
    """Where the index begins, by the postscript in the last block."""
    chunk, body = _chunk(block)
    unpacked = _simple_records(body) if chunk["kind"] & 0xFF == _SIMPLE else None
    if unpacked is None or not len(unpacked[0]):
        raise ValueError("its last block holds no postscript")
    sizes, values = unpacked
    fields = _fields(values[: int(sizes[0])])
    if 1 not in fields or fields.get(2, np.zeros(1))[0] != _MAGIC:
        raise ValueError("its last block holds no postscript")
    return int(fields[1][0])


def _simple_records(body: bytes) -> tuple[np.ndarray, bytes] | None:
    """Lengths and bytes of the records of a chunk; None where they are packed otherwise than by zstd."""
    if not body or body[0] not in {_PLAIN, _ZSTD}:
        return None
    length, at = _varint(body, 1)
    sizes, values = body[at : at + length], body[at + length :]
    if body[0] == _ZSTD:
        sizes, values = _unpacked(sizes), _unpacked(values)
    return _varints(sizes), values


def _unpacked(data: bytes) -> bytes:
    if not data:
        return b""
    size, at = _varint(data, 0)
    return zstandard.ZstdDecompressor().decompress(data[at:], max_output_size=size) if size else b""


def _index(sizes: np.ndarray, values: bytes, records: int, footer: int) -> ArrayRecordIndex:
    """The index, from the records of its chunk: one that describes the file, then one for each of its chunks."""
    if records != len(sizes) or not records or int(sizes.sum()) != len(values):
        raise ValueError(f"its index holds {len(sizes)} records of {len(values)} bytes, but says {records}")
    fields = _fields(values[int(sizes[0]) :])
    none = np.empty(0, np.int64)
    offsets, counts = fields.get(1, none), fields.get(3, none)
    if len(offsets) != records - 1 or len(counts) != records - 1:
        raise ValueError(f"its index names {len(offsets)} of {records - 1} chunks")
    bounds = np.append(offsets, footer)
    if (np.diff(bounds) <= 0).any() or (counts <= 0).any():
        raise ValueError("its index names chunks out of order")
    return ArrayRecordIndex(bounds, np.concatenate([[0], np.cumsum(counts)]))


def _fields(data: bytes) -> dict[int, np.ndarray]:
    """Values of each field of messages that hold nothing but unsigned numbers, int64 in order."""
    numbers = _varints(data)
    tags, values = numbers[0::2], numbers[1::2]
    if len(tags) != len(values) or (tags & 7).any():
        raise ValueError("its index holds something else than numbers")
    return {int(tag) >> 3: values[tags == tag] for tag in np.unique(tags)}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of as many bytes as it needs, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _varints(data: bytes) -> np.ndarray:
    """All numbers of such bytes, int64."""
    digits = np.frombuffer(data, np.uint8)
    last = np.flatnonzero(digits < 0x80)
    if len(digits) and (not len(last) or last[-1] != len(digits) - 1):
        raise ValueError("a number of its index has no end")
    starts = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
    places = np.arange(len(digits)) - np.repeat(starts, last - starts + 1)
    if (places > 9).any():
        raise ValueError("a number of its index is too long")
    shifted = (digits & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    found: np.ndarray = np.add.reduceat(shifted, starts).astype(np.int64) if len(starts) else np.empty(0, np.int64)
    return found


@contextlib.contextmanager
def open_array_record(path: str, size: int, ranges: list[tuple[int, int]]) -> Iterator[Any]:
    """The library's reader of a file.

    Args:
        path: path or URL.
        size: bytes of the file.
        ranges: first byte of each part that will be read, and the byte behind it, of a file that lies elsewhere.

    Raises:
        InputError: it is no whole ArrayRecord file.
        MissingExtraError: the library is not installed.
        StorageError: the file cannot be read.
    """
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        raise MissingExtraError("array-record", "records", 'sources of the format "array_record"') from error
    with contextlib.ExitStack() as closing:
        place = str(local_path(path)) if is_local(path) else ""
        if not place:
            place = os.path.join(closing.enter_context(tempfile.TemporaryDirectory(prefix="gristmill-")), "copy")
            _copy(path, size, ranges, place)
        reader = ArrayRecordReader(place, _OPTIONS)
        closing.callback(_close, reader)
        if not reader.ok():
            raise InputError(f"{path}: cannot be read as ArrayRecord; {_REMEDY}")
        yield reader


def _close(reader: Any) -> None:
    """Closes a reader; one that failed raises what it failed of once more."""
    with contextlib.suppress(RuntimeError, ValueError):
        reader.close()


def _copy(path: str, size: int, ranges: list[tuple[int, int]], place: str) -> None:
    """Copies parts of a file to their places in a file with holes."""
    with open_read(path) as raw, open(place, "wb") as copy:
        copy.truncate(size)
        for start, end in ranges:
            raw.seek(start)
            copy.seek(start)
            while start < end and (block := raw.read(min(_COPY_BYTES, end - start))):
                copy.write(block)
                start += len(block)
