"""Many small ranges of pinned objects in few requests, and arrays on a store of which only some entries are read.

A request costs latency and a fifth of a millisecond of this host's processor, as much as some tens of kilobytes cost
to bring; so ranges that lie closer than that are asked for together. Whatever is asked for in one call is under way at
the same time, over all objects.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.formats.errors import CorpusError, FormatError
from gristmill.runtime.ranged import FileArray
from gristmill.runtime.remote import RemoteObject, RemoteStore

__all__ = ["fetch_many", "GAP_BYTES", "open_ends", "open_remote_npy", "RemoteArray", "RemoteFile"]

GAP_BYTES = 32 << 10
"""Ranges with at most so many bytes between them are asked for together."""

_MOST_BYTES = 4 << 20  # of one request
_END_BYTES = 4096  # of both ends of an array's file, kept: its header, and the entries that are checked at opening


@compiled
def _group(
    owner: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    group_of: NDArray[np.int64],
    groups: NDArray[np.int64],
) -> int:
    """Puts ranges, ascending by owner and first byte, into groups that become one request; returns their number."""
    count = 0
    for place in range(len(first)):
        joined = False
        if count > 0 and groups[count - 1, 0] == owner[place]:
            begin, end = groups[count - 1, 1], groups[count - 1, 2]
            stop = max(end, last[place])
            joined = first[place] - end <= GAP_BYTES and stop - begin <= _MOST_BYTES
            if joined:
                groups[count - 1, 2] = stop
        if not joined:
            groups[count, 0], groups[count, 1], groups[count, 2] = owner[place], first[place], last[place]
            count += 1
        group_of[place] = count - 1
    return count


def fetch_many(
    store: RemoteStore,
    objects: Sequence[RemoteObject],
    which: NDArray[np.int64],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Bytes of ranges in any order, overlapping or not.

    Args:
        store: what fetches them.
        objects: the objects.
        which: int64 [P], the object of each range.
        begins: int64 [P], its first byte.
        lengths: int64 [P], its bytes, at least 1.

    Returns:
        uint8 [B], what came, read-only; and int64 [P], where in it each range begins.

    Raises:
        CorpusError: a range lies beyond its object, or an object was replaced.
        StorageError: a range does not come.
    """
    if not len(which):
        return np.empty(0, np.uint8), np.empty(0, np.int64)
    sizes = np.array([one.size for one in objects], np.int64)[which]
    beyond = (begins < 0) | (lengths < 1) | (begins + lengths > sizes)
    if beyond.any():
        bad = int(np.argmax(beyond))
        first = int(begins[bad])
        raise CorpusError(
            f"{objects[int(which[bad])].url}: bytes {first} to {first + int(lengths[bad])} are wanted, but there are "
            f"{sizes[bad]}: its index belongs to other data, or it was cut short"
        )
    order = np.lexsort((begins, which))
    group_of, groups = np.empty(len(order), np.int64), np.empty((len(order), 3), np.int64)
    count = _group(which[order], begins[order], (begins + lengths)[order], group_of, groups)
    owner, first, last = groups[:count].T.tolist()
    found = store.fetch([objects[number] for number in owner], first, last)
    starts = np.cumsum([0, *map(len, found)])[:-1]
    places = np.empty(len(order), np.int64)
    places[order] = starts[group_of] + begins[order] - groups[group_of, 1]
    return np.frombuffer(found[0] if count == 1 else b"".join(found), np.uint8), places


class RemoteFile:
    """A pinned object, read by slices like bytes; both ends are kept once they have come.

    Attributes:
        object: what it is.
        path: its URL.
        store: what reads it.
    """

    def __init__(self, store: RemoteStore, one: RemoteObject, ends: tuple[bytes, bytes] = (b"", b"")) -> None:
        """Reads nothing.

        Args:
            store: what reads it.
            one: the object.
            ends: some of its first and of its last bytes, where they are at hand.
        """
        self.store, self.object, self.path = store, one, one.url
        self._ends = ends

    def __len__(self) -> int:
        return self.object.size

    def __getitem__(self, where: slice) -> bytes:
        start, stop, _ = where.indices(len(self))
        return self.read(start, stop - start)

    def read(self, start: int, count: int) -> bytes:
        """`count` bytes from byte `start`; raises as `fetch_many`."""
        head, tail = self._ends
        if start + count <= len(head):
            return head[start : start + count]
        if start >= len(self) - len(tail) and start + count <= len(self):
            place = start - (len(self) - len(tail))
            return tail[place : place + count]
        begins = np.arange(start, start + count, _MOST_BYTES)
        lengths = np.minimum(_MOST_BYTES, start + count - begins)
        data, _ = fetch_many(self.store, [self.object], np.zeros(len(begins), np.int64), begins, lengths)
        return data.tobytes()

    def close(self) -> None:
        """Nothing is held between reads."""


def open_ends(store: RemoteStore, objects: Sequence[RemoteObject]) -> list[RemoteFile]:
    """Objects as files whose ends are at hand, all fetched at once."""
    some = [one for one in objects if one.size]
    heads = [(0, min(one.size, _END_BYTES)) for one in some]
    tails = [(max(0, one.size - _END_BYTES), one.size) for one in some]
    spans = [*heads, *tails]
    got = store.fetch([*some, *some], [begin for begin, _ in spans], [end for _, end in spans])
    ends = {one.url: (got[place], got[len(some) + place]) for place, one in enumerate(some)}
    return [RemoteFile(store, one, ends.get(one.url, (b"", b""))) for one in objects]


class RemoteArray(FileArray):
    """A read-only array in an object, of which only the entries asked for are read. Safe to use from many threads."""

    file: RemoteFile  # type: ignore[assignment]  # has what is used of a local file

    def __getitem__(self, places: Any) -> Any:
        """Entries (rows of two dimensions) at an integer or an array of integers, or a column as ``[:, number]``.

        Raises:
            IndexError: one does not exist.
            CorpusError, StorageError: see `fetch_many`.
        """
        if isinstance(places, tuple):
            return _Column(self, places[1])
        wanted = np.asarray(places, np.int64)
        flat = np.where(wanted < 0, wanted + len(self), wanted).reshape(-1)
        if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) < len(self):
            raise IndexError(f"{self.file.path}: entries {flat.min()} to {flat.max()} of {len(self)} asked for")
        item = self._row * self.dtype.itemsize
        begins = self._offset + item * flat
        if flat.size == 1:
            data, starts = np.frombuffer(self.file.read(int(begins[0]), item), np.uint8), np.zeros(1, np.int64)
        else:
            data, starts = fetch_many(
                self.file.store, [self.file.object], np.zeros(len(flat), np.int64), begins, np.full(len(flat), item)
            )
        found = data[starts[:, None] + np.arange(item)].view(self.dtype).reshape(wanted.shape + self.shape[1:])
        return found[()] if wanted.ndim == 0 and len(self.shape) == 1 else found


class _Column:
    """A column of an array of two dimensions."""

    def __init__(self, array: RemoteArray, number: int) -> None:
        self._array, self._number = array, number

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, place: int) -> Any:
        return self._array[place][self._number]


def open_remote_npy(file: RemoteFile) -> RemoteArray:
    """The array of a `.npy` file, of which the header alone is read.

    Raises:
        FormatError: it is no such file, or is cut short.
    """
    path = file.path
    head = io.BytesIO(file.read(0, min(len(file), _END_BYTES)))
    try:
        version = np.lib.format.read_magic(head)
        read_header = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(head)
    except ValueError as error:
        raise FormatError(f"{path}: no readable .npy file ({error}): half-written?") from error
    size = head.tell() + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if fortran or dtype.kind not in "iu" or not dtype.isnative or len(shape) not in {1, 2}:
        raise FormatError(f"{path}: an array of {dtype} of shape {shape}; only rows of integers can be read by ranges")
    if len(file) != size:
        raise FormatError(f"{path}: {len(file)} bytes where an array of {dtype} of shape {shape} has {size}")
    return RemoteArray(file, dtype, shape, head.tell())  # type: ignore[arg-type]  # as above
