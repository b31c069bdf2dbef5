"""Reads Megatron's indexed dataset, a pair of `<prefix>.bin` (tokens) and `<prefix>.idx` (where each sequence lies).

Local pairs are memory-mapped; others have their `.idx` read at once and their tokens by range. Opening checks all that
can be known without reading a token, which costs one pass over the `.idx`; a caller that holds the sizes from a
manifest asks for `check="ends"` and pays the same for any size. `README.md` beside this file shows the bytes.
"""

import contextlib
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from gristmill.formats.errors import FormatError, StorageError
from gristmill.formats.storage import exists, file_size, is_local, local_path, read_bytes, read_range

__all__ = [
    "bin_path",
    "DTYPE_CODES",
    "HEADER",
    "HEADER_BYTES",
    "idx_path",
    "IndexedDataset",
    "MAGIC",
    "pack_header",
    "PairFiles",
    "VERSION",
]

MAGIC = b"MMIDIDX\x00\x00"
"""The nine bytes that open an .idx file."""

VERSION = 1
"""The one version of the format, an unsigned 64-bit integer after the magic."""

HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, dtype code, number of sequences, number of document entries; little-endian, packed."""

HEADER_BYTES = 34
"""Size of the header in bytes."""

DTYPE_CODES: dict[int, np.dtype[np.integer]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
"""The dtype that each code of the header stands for."""

_FLOAT_CODES = {6: "float64", 7: "float32"}
_CHECK_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFiles:
    """The parts of a pair that are not `<prefix>.bin` and `<prefix>.idx`.

    Attributes:
        tokens: path or URL of the tokens.
        index: path or URL of the index, or its content.
        dtype: how to read the tokens where the format has no code for it; as wide as the one that the index names.
    """

    tokens: str
    index: str | bytes
    dtype: np.dtype[np.integer] | None = None


def bin_path(prefix: str) -> str:
    """Path of the token file of a pair."""
    return prefix + ".bin"


def idx_path(prefix: str) -> str:
    """Path of the index file of a pair."""
    return prefix + ".idx"


def pack_header(dtype: np.dtype[np.integer], sequences: int, documents: int) -> bytes:
    """The first 34 bytes of an `.idx`.

    Args:
        dtype: token dtype, one of `DTYPE_CODES`.
        sequences: number of sequences S.
        documents: number of documents; the field holds one more, the length of the document index.

    Raises:
        FormatError: the format has no code for `dtype`.
    """
    for code, known in DTYPE_CODES.items():
        if known == dtype:
            return HEADER.pack(MAGIC, VERSION, code, sequences, documents + 1)
    names = ", ".join(known.name for known in DTYPE_CODES.values())
    raise FormatError(f"token dtype {dtype} has no code in the indexed dataset format; it knows {names}")


def _map_file(path: str) -> mmap.mmap | None:
    """A read-only map of a local file; None for an empty one, which cannot be mapped."""
    try:
        with local_path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return None
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise StorageError(f"{path}: cannot be opened: {error.strerror}") from error


class _Tokens(Protocol):
    def read(self, start: int, count: int) -> np.ndarray: ...

    def close(self) -> None: ...


class _MappedTokens:
    """Tokens of a local `.bin`: slices are copied out of a map of the whole file."""

    def __init__(self, path: str, dtype: np.dtype[np.integer]) -> None:
        self._map = _map_file(path)
        self.array = np.empty(0, dtype) if self._map is None else np.frombuffer(self._map, dtype)

    def read(self, start: int, count: int) -> np.ndarray:
        return self.array[start : start + count].copy()

    def close(self) -> None:
        self.array = np.empty(0, self.array.dtype)
        if self._map is not None:
            with contextlib.suppress(BufferError):  # a caller still holds a view: the map goes when the view does
                self._map.close()
            self._map = None


class _RangedTokens:
    """Tokens of a `.bin` on an object store: each slice is one ranged read."""

    def __init__(self, path: str, dtype: np.dtype[np.integer]) -> None:
        self._path = path
        self._dtype = dtype

    def read(self, start: int, count: int) -> np.ndarray:
        size = self._dtype.itemsize
        return np.frombuffer(read_range(self._path, start * size, count * size), self._dtype).copy()

    def close(self) -> None:
        """Nothing is held between reads."""


class IndexedDataset:
    """One `.bin/.idx` pair, open for reading.

    Instances pickle as their prefix and open again where they are loaded. Arrays returned by `get` and `read` are
    copies; `lengths`, `pointers` and `document_indices` are read-only views of the index file, whose int64 parts are
    not aligned (the header has 34 bytes).

    Attributes:
        prefix: path or URL without the extension.
        dtype: token dtype in the file.
        lengths: int32 [S], tokens of each sequence.
        pointers: int64 [S], byte offset of each sequence in the `.bin`.
        document_indices: int64 [D + 1], first sequence of each document, closed by S.
        num_tokens: tokens in the `.bin`.
    """

    def __init__(self, prefix: str, *, check: Literal["full", "ends"] = "full", files: PairFiles | None = None) -> None:
        """Opens a pair and checks it.

        Args:
            prefix: path or URL without the extension.
            check: "full" compares every length, pointer and document boundary; "ends" only header, file sizes and
                the last entries, for pairs whose sizes and digests a manifest vouches for.
            files: where the parts lie if not at `prefix`, which then only names the pair.

        Raises:
            FormatError: a file is missing, cut short, of another kind, or contradicts the other.
            StorageError: a file cannot be read.
        """
        self.prefix = prefix
        self._check = check
        self._files = PairFiles(tokens=bin_path(prefix), index=idx_path(prefix)) if files is None else files
        tokens = self._files.tokens
        index = f"{prefix}: index" if isinstance(self._files.index, bytes) else self._files.index
        for path, what in ((self._files.index, "index"), (tokens, "token")):
            if isinstance(path, str) and not exists(path):
                rule = f"a prefix names both {prefix}.bin and {prefix}.idx" if files is None else "it was there before"
                raise FormatError(f"{path}: {what} file not found; {rule}")
        self._map: mmap.mmap | None = None
        data = self._open_index(self._files.index)
        self.dtype, sequences, documents = _parse_header(index, data)
        if self._files.dtype is not None:
            if self._files.dtype.itemsize != self.dtype.itemsize:
                raise FormatError(f"{index}: is for {self.dtype} tokens, so it does not fit {self._files.dtype} ones")
            self.dtype = self._files.dtype
        self.lengths = self._entries(data, "<i4", sequences, HEADER_BYTES)
        self.pointers = self._entries(data, "<i8", sequences, HEADER_BYTES + 4 * sequences)
        self.document_indices = self._entries(data, "<i8", documents + 1, HEADER_BYTES + 12 * sequences)
        size = file_size(tokens)
        self.num_tokens = size // self.dtype.itemsize
        self._check_ends(index, tokens, size)
        if check == "full":
            self._check_all(index)
        self._tokens = self._open_tokens(tokens)

    def _open_tokens(self, path: str) -> _Tokens:
        """What reads the tokens; another way of reading files puts its own here, and in the next two."""
        return _MappedTokens(path, self.dtype) if is_local(path) else _RangedTokens(path, self.dtype)

    def _entries(self, data: Any, dtype: str, count: int, offset: int) -> Any:
        return np.frombuffer(data, dtype, count, offset)

    def _open_index(self, index: str | bytes) -> Any:
        if isinstance(index, bytes):
            return index
        if not is_local(index):
            return read_bytes(index)
        self._map = _map_file(index)
        return b"" if self._map is None else self._map

    @property
    def num_sequences(self) -> int:
        """S, the number of sequences; a sequence is one entry of the index."""
        return len(self.lengths)

    @property
    def num_documents(self) -> int:
        """D, the number of documents; a document is a run of zero or more sequences."""
        return len(self.document_indices) - 1

    @property
    def mapped_tokens(self) -> np.ndarray | None:
        """Read-only view, 1-D of `dtype`, of all tokens of a local pair; None where tokens are read by range.

        For compiled gathers that take many ranges in one call. Slices keep the map open beyond `close`.
        """
        return self._tokens.array if isinstance(self._tokens, _MappedTokens) else None

    def __len__(self) -> int:
        return self.num_sequences

    def __repr__(self) -> str:
        return f"IndexedDataset({self.prefix!r}, {self.dtype}, sequences={len(self)}, tokens={self.num_tokens})"

    def __reduce__(self) -> tuple[object, ...]:
        return (_reopen, (type(self), self.prefix, self._check, self._files))

    def get(self, sequence: int, offset: int = 0, length: int | None = None) -> np.ndarray:
        """Tokens of one sequence, or a part of it, as a fresh 1-D array of `dtype`.

        Args:
            sequence: number of the sequence, 0 to S - 1.
            offset: first token wanted, counted from the start of the sequence.
            length: how many tokens; None takes the rest of the sequence.

        Raises:
            IndexError: the sequence or the part of it does not exist.
        """
        if not 0 <= sequence < len(self):
            raise IndexError(f"{self.prefix}: sequence {sequence} does not exist; there are {len(self)}")
        size = int(self.lengths[sequence])
        if length is None:
            length = size - offset
        if offset < 0 or length < 0 or offset + length > size:
            raise IndexError(
                f"{self.prefix}: sequence {sequence} has {size} tokens, none at {offset} to {offset + length}"
            )
        return self.read(int(self.pointers[sequence]) // self.dtype.itemsize + offset, length)

    def read(self, start: int, count: int) -> np.ndarray:
        """`count` tokens from token `start` of the whole file, across sequences, as a fresh 1-D array of `dtype`.

        Raises:
            IndexError: the range reaches beyond the file.
        """
        if start < 0 or count < 0 or start + count > self.num_tokens:
            raise IndexError(
                f"{self.prefix}: tokens {start} to {start + count} do not exist; there are {self.num_tokens}"
            )
        return self._tokens.read(start, count)

    def close(self) -> None:
        """Lets go of both files; may be called twice. Arrays returned before stay valid; nothing more can be read."""
        self._tokens.close()
        self.num_tokens = 0
        empty = np.empty(0, np.int64)
        self.lengths, self.pointers, self.document_indices = np.empty(0, np.int32), empty, np.zeros(1, np.int64)
        if self._map is not None:
            with contextlib.suppress(BufferError):  # a caller still holds a view: the map goes when the view does
                self._map.close()
            self._map = None

    def _check_ends(self, index: str, tokens: str, size: int) -> None:
        if size % self.dtype.itemsize:
            raise FormatError(f"{tokens}: {size} bytes are no whole number of {self.dtype} tokens: cut short?")
        expected = 0
        if len(self):
            expected = int(self.pointers[-1]) + int(self.lengths[-1]) * self.dtype.itemsize
        if size != expected:
            raise FormatError(
                f"{tokens}: has {size} bytes, but {index} ends at byte {expected}; the two do not belong together or "
                "one was cut short"
            )
        if int(self.document_indices[0]) != 0 or int(self.document_indices[-1]) != len(self):
            raise FormatError(
                f"{index}: document index runs from {int(self.document_indices[0])} to {int(self.document_indices[-1])}"
                f"; the rule is 0 to the number of sequences, {len(self)}"
            )

    def _check_all(self, index: str) -> None:
        size = self.dtype.itemsize
        position = 0
        for first in range(0, len(self), _CHECK_ROWS):
            lengths = self.lengths[first : first + _CHECK_ROWS].astype(np.int64)
            _raise_at(index, lengths < 0, first, "sequence", "has a negative length", lengths)
            ends = np.cumsum(lengths * size)
            starts = ends - lengths * size + position
            pointers = self.pointers[first : first + _CHECK_ROWS]
            rule = "has a pointer that is not the sum of the lengths before it"
            _raise_at(index, pointers != starts, first, "sequence", rule, pointers)
            position += int(ends[-1])
        for first in range(0, self.num_documents, _CHECK_ROWS):
            bounds = self.document_indices[first : first + _CHECK_ROWS + 1]
            _raise_at(index, np.diff(bounds) < 0, first, "document", "ends before it starts", bounds[1:])


def _reopen(
    kind: type[IndexedDataset], prefix: str, check: Literal["full", "ends"], files: PairFiles
) -> IndexedDataset:
    return kind(prefix, check=check, files=files)


def _raise_at(index: str, bad: np.ndarray, first: int, noun: str, rule: str, values: np.ndarray) -> None:
    if bad.any():
        at = int(np.argmax(bad))
        raise FormatError(f"{index}: {noun} {first + at} {rule} (value {int(values[at])}); the file is damaged")


def _parse_header(path: str, data: mmap.mmap | bytes) -> tuple[np.dtype[np.integer], int, int]:
    """Token dtype, sequences and documents, after checking the header against the file's size."""
    size = len(data)
    if size < HEADER_BYTES:
        raise FormatError(
            f"{path}: {size} bytes are fewer than the header's {HEADER_BYTES}: cut short or another format"
        )
    magic, version, code, sequences, entries = HEADER.unpack(data[:HEADER_BYTES])
    if magic != MAGIC:
        raise FormatError(f"{path}: starts with {magic!r}, not {MAGIC!r}: no indexed dataset")
    if version != VERSION:
        raise FormatError(f"{path}: version {version} of the indexed dataset format; only {VERSION} can be read")
    if code in _FLOAT_CODES:
        raise FormatError(f"{path}: holds {_FLOAT_CODES[code]} values (code {code}); tokens must be integers")
    if code not in DTYPE_CODES:
        raise FormatError(f"{path}: unknown dtype code {code}; known are {sorted(DTYPE_CODES)}")
    expected = HEADER_BYTES + 12 * sequences + 8 * entries
    modes = (expected + sequences, expected + 8 + sequences)
    if size == expected + 8 and (size not in modes or _last_entry(data) == sequences):
        return DTYPE_CODES[code], sequences, entries  # some writers store the number of documents, not one more
    if size in modes and sequences:
        raise FormatError(f"{path}: carries a mode per sequence, so it is multimodal data; only text can be read")
    if entries == 0:
        raise FormatError(f"{path}: the document index has no entry; even an empty file has one, 0")
    if size < expected:
        raise FormatError(
            f"{path}: {size} bytes, but {sequences} sequences and {entries - 1} documents need {expected}: cut short"
        )
    if size > expected:
        raise FormatError(
            f"{path}: {size - expected} bytes follow the document index; the rule is none: damaged or another format"
        )
    return DTYPE_CODES[code], sequences, entries - 1


def _last_entry(data: mmap.mmap | bytes) -> int:
    """The last eight bytes as an integer: the end of the document index, unless a mode per sequence follows it."""
    return int.from_bytes(data[-8:], "little")
