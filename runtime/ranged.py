"""Pairs and index arrays read by ranges, without a map: slower, and safe where the file may go away underneath.

Many small reads are made in one call of compiled code that holds no lock, so that a thread that trains is not asked
for the GIL once for each. Ranges that lie close together become one read. Whatever comes back short or not at all is
asked for once more from Python, which waits out interruptions and names the file in its error.
"""

import os
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.documents import DocumentDataset, Unit
from gristmill.formats.errors import FormatError, StorageError
from gristmill.formats.indexed import IndexedDataset, PairFiles
from gristmill.formats.storage import is_local, local_path
from gristmill.runtime.arrays import file_of
from gristmill.runtime.ranges import read_items, read_ranges

__all__ = ["FileArray", "open_ranged", "ranged_array", "RangedDataset", "RangedFile"]


class RangedFile:
    """A local file open for reading at any place. Safe to use from many threads.

    Attributes:
        path: its path.
        descriptor: of the open file, or -1 once it is closed.
    """

    def __init__(self, path: str) -> None:
        """Opens the file.

        Raises:
            StorageError: it cannot be opened.
        """
        self.path = path
        self.descriptor = -1
        try:
            self.descriptor = os.open(local_path(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"{path}: cannot be opened: {error.strerror}") from error

    def __len__(self) -> int:
        return os.fstat(self.descriptor).st_size

    def __getitem__(self, where: slice) -> bytes:
        start, stop, _ = where.indices(len(self))
        return self.read(start, stop - start)

    def read(self, start: int, count: int) -> bytes:
        """`count` bytes from byte `start`.

        Raises:
            FormatError: the file ends before.
            StorageError: the file cannot be read.
        """
        buffer = bytearray(count)
        self.read_into(start, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fills a buffer of bytes from byte `start` on; raises as `read`."""
        done = 0
        while done < len(buffer):
            try:
                got = os.preadv(self.descriptor, [buffer[done:]], start + done)
            except OSError as error:
                raise StorageError(f"{self.path}: cannot be read: {error.strerror}") from error
            if got == 0:
                raise FormatError(
                    f"{self.path}: ends at byte {len(self)}, but bytes {start} to {start + len(buffer)} are needed: "
                    "cut short while it was in use; put the file back, whole, and open the stream again"
                )
            done += got

    def close(self) -> None:
        """Closes the file; may be called twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class FileArray:
    """A read-only array in a file, of which only the entries asked for are read. Safe to use from many threads.

    Attributes:
        file: where it lies.
        dtype: of its entries: integers of 4 or 8 bytes.
        shape: of the array, in C order.
    """

    def __init__(self, file: RangedFile, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> None:
        """Reads nothing.

        Args:
            file: where it lies.
            dtype: of its entries.
            shape: of the array, of one or two dimensions.
            offset: byte of the file at which it begins.
        """
        self.file, self.dtype, self.shape = file, dtype, shape
        self._offset = offset
        self._row = int(np.prod(shape[1:], dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, places: Any) -> Any:
        """Entries (rows of two dimensions) at an integer or an array of integers, fresh.

        Raises:
            IndexError: one does not exist.
            FormatError: the file is shorter than the array.
            StorageError: the file cannot be read.
        """
        wanted = np.asarray(places, np.int64)
        flat = np.where(wanted < 0, wanted + len(self), wanted).reshape(-1)
        if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) < len(self):
            raise IndexError(f"{self.file.path}: entries {flat.min()} to {flat.max()} of {len(self)} asked for")
        out = np.empty((len(flat), self._row), self.dtype)
        item = self._row * self.dtype.itemsize
        begins = self._offset + item * flat
        failed = read_items(self.file.descriptor, begins, item, out)
        while failed >= 0:
            self.file.read_into(int(begins[failed]), memoryview(out[failed]).cast("B"))
            rest = read_items(self.file.descriptor, begins[failed + 1 :], item, out[failed + 1 :])
            failed = -1 if rest < 0 else failed + 1 + rest
        found = out.reshape(wanted.shape + self.shape[1:])
        return found[()] if wanted.ndim == 0 and len(self.shape) == 1 else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All entries, in memory."""
        count = len(self) * self._row
        data = np.frombuffer(self.file.read(self._offset, count * self.dtype.itemsize), self.dtype)
        return data.reshape(self.shape).astype(self.dtype if dtype is None else dtype, copy=bool(copy))

    def searchsorted(self, values: NDArray[np.int64], side: Literal["left", "right"] = "left") -> NDArray[np.int64]:
        """`numpy.searchsorted` for an ascending array, reading a few entries for each value."""
        low = np.zeros(len(values), np.int64)
        high = np.full(len(values), len(self))
        while (low < high).any():
            open_ = np.flatnonzero(low < high)
            middle = (low[open_] + high[open_]) // 2
            found = self[middle]
            below = found <= values[open_] if side == "right" else found < values[open_]
            low[open_[below]] = middle[below] + 1
            high[open_[~below]] = middle[~below]
        return low


def ranged_array(array: NDArray[Any]) -> "NDArray[Any] | FileArray":
    """A mapped array as one that is read by ranges; an array in memory as it is.

    Raises:
        StorageError: its file cannot be opened.
    """
    found = file_of(array)
    if found is None:
        return array
    return FileArray(RangedFile(found.path), array.dtype, array.shape, found.offset)


class _RangedTokens:
    """Tokens of a local `.bin`, each slice read when it is asked for."""

    def __init__(self, path: str, dtype: np.dtype[np.integer]) -> None:
        self.file = RangedFile(path)
        self._dtype = dtype

    def read(self, start: int, count: int) -> NDArray[Any]:
        size = self._dtype.itemsize
        return np.frombuffer(self.file.read(start * size, count * size), self._dtype).copy()

    def close(self) -> None:
        self.file.close()


class RangedDataset(IndexedDataset):
    """A local pair that is read by ranges; `lengths`, `pointers` and `document_indices` are `FileArray`s."""

    _index_file: RangedFile | None = None

    def _open_index(self, index: str | bytes) -> Any:
        if isinstance(index, bytes) or not is_local(index):
            return super()._open_index(index)
        self._index_file = RangedFile(index)
        return self._index_file

    def _entries(self, data: Any, dtype: str, count: int, offset: int) -> Any:
        if isinstance(data, RangedFile):
            return FileArray(data, np.dtype(dtype), (count,), offset)
        return super()._entries(data, dtype, count, offset)

    def _open_tokens(self, path: str) -> Any:
        return _RangedTokens(path, self.dtype)

    def read_into(
        self, starts: NDArray[np.int64], counts: NDArray[np.int64], places: NDArray[np.int64], out: NDArray[Any]
    ) -> int:
        """Reads many token ranges at once.

        Args:
            starts: int64 [P], first token of each range, counted through the file.
            counts: int64 [P], tokens of each.
            places: int64 [P], where each goes in `out`.
            out: 1-D of `dtype`, C-contiguous; filled there.

        Returns:
            The bytes that were read, those between neighbouring ranges included.

        Raises:
            FormatError: a range reaches beyond the file, or the file has become shorter.
            StorageError: the file cannot be read.
        """
        outside = (starts < 0) | (starts + counts > self.num_tokens)
        if outside.any():
            start, count = int(starts[outside][0]), int(counts[outside][0])
            raise FormatError(
                f"{self._files.tokens}: tokens {start} to {start + count} are wanted, but there are {self.num_tokens}: "
                "the index of the pair is damaged"
            )
        file = self._tokens.file  # type: ignore[attr-defined]  # `_open_tokens` made it
        size = self.dtype.itemsize
        order = np.argsort(starts, kind="stable")
        begins, lengths, places = starts[order] * size, counts[order] * size, places[order] * size
        done = bytes_read = 0
        target = out.view(np.uint8).data
        while done < len(begins):
            failed, got = read_ranges(file.descriptor, begins[done:], lengths[done:], places[done:], out)
            bytes_read += got
            if failed < 0:
                break
            done += failed  # the first range that did not come, whole or at all
            place, length = int(places[done]), int(lengths[done])
            file.read_into(int(begins[done]), target[place : place + length])
            bytes_read += length
            done += 1
        return bytes_read

    def close(self) -> None:
        """Closes both files; may be called twice."""
        super().close()
        if self._index_file is not None:
            self._index_file.close()


class _RangedDocuments(DocumentDataset, RangedDataset):
    """Documents of a pair that is read by ranges; lengths and pointers are in memory."""


def open_ranged(
    prefix: str, unit: Unit, *, check: Literal["full", "ends"] = "ends", files: PairFiles | None = None
) -> RangedDataset:
    """Opens a local pair for ranged reads; see `IndexedDataset`."""
    return (_RangedDocuments if unit == "document" else RangedDataset)(prefix, check=check, files=files)
