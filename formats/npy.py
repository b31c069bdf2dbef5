"""NumPy's `.npy` files, written so that equal arrays give equal bytes and read without trust.

NumPy's own writer leaves room for growth in the header, by an amount that has changed between its versions; this one
writes the smallest version-1 header, aligned to 64 bytes, and streams the data. Any NumPy reads the result. Only
one- and two-dimensional arrays of integers are needed, so no more is offered.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gristmill.formats.errors import FormatError
from gristmill.formats.storage import FileFacts, exists, file_size, is_local, local_path, publish, read_bytes

__all__ = ["npy_header", "npy_size", "open_npy", "open_remote", "remote_arrays", "write_npy"]

_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT = 64
_CHUNK_BYTES = 4 << 20
_opener: ContextVar[Callable[[str], NDArray[Any]] | None] = ContextVar("opener", default=None)


@contextmanager
def remote_arrays(opener: Callable[[str], NDArray[Any]]) -> Iterator[None]:
    """Within the block, arrays at URLs are opened by `opener`, which takes a URL, not read into memory.

    A training job has other ways to a store than whoever prepares or checks data, and is the only one to need them.
    """
    token = _opener.set(opener)
    try:
        yield
    finally:
        _opener.reset(token)


def open_remote(path: str) -> NDArray[Any] | None:
    """The array at a URL, as a `remote_arrays` block around the caller opens it; None outside of one, or for a path."""
    opener = _opener.get()
    return None if opener is None or is_local(path) else opener(path)


def _little_endian(dtype: DTypeLike) -> np.dtype[Any]:
    return np.dtype(dtype).newbyteorder("<")


def npy_header(dtype: DTypeLike, shape: tuple[int, ...]) -> bytes:
    """Everything before the data of a C-ordered, little-endian `.npy` file; its length is a multiple of 64."""
    text = f"{{'descr': '{_little_endian(dtype).str}', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    unpadded = len(_MAGIC) + 2 + len(text) + 1
    text += " " * (-unpadded % _ALIGNMENT) + "\n"
    return _MAGIC + len(text).to_bytes(2, "little") + text.encode("ascii")


def npy_size(dtype: DTypeLike, shape: tuple[int, ...]) -> int:
    """Bytes of the file that `write_npy` makes of such an array."""
    count = 1
    for extent in shape:
        count *= extent
    return len(npy_header(dtype, shape)) + count * np.dtype(dtype).itemsize


def write_npy(path: str, *parts: NDArray[Any]) -> FileFacts:
    """Publishes an array whole, in pieces of 4 MiB.

    Args:
        path: path or URL of the file.
        parts: the C-contiguous array of integers, or several of one dtype that are written end to end as one.

    Raises:
        StorageError: the file cannot be written.
    """
    dtype, rest = _little_endian(parts[0].dtype), parts[0].shape[1:]
    if any(_little_endian(part.dtype) != dtype or part.shape[1:] != rest for part in parts):
        raise FormatError(f"{path}: arrays of {[(part.dtype.name, part.shape) for part in parts]} are no parts of one")
    with publish(path) as publication:
        publication.write(npy_header(dtype, (sum(map(len, parts)), *rest)))
        for part in parts:
            raw = np.ascontiguousarray(part, dtype=dtype).reshape(-1).view(np.uint8)
            for start in range(0, len(raw), _CHUNK_BYTES):
                publication.write(raw[start : start + _CHUNK_BYTES])
        return publication.facts()


def open_npy(path: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array that `write_npy` wrote: memory-mapped from a local file, read into memory from elsewhere.

    Args:
        path: path or URL of the file.
        dtype: what its elements must be.
        shape: what its shape must be; it must not be empty.

    Returns:
        The array, read-only.

    Raises:
        FormatError: the file is missing, cut short, or holds another kind of array.
        StorageError: the file cannot be read.
    """
    header = npy_header(dtype, shape)
    expected = npy_size(dtype, shape)
    remedy = "build the indices again"
    array = open_remote(path)
    if array is not None:
        return _checked(path, array, dtype, shape)
    if not exists(path):
        raise FormatError(f"{path}: missing; {remedy}")
    size = file_size(path)
    if size != expected:
        raise FormatError(
            f"{path}: {size} bytes where an array of shape {shape} and dtype {np.dtype(dtype).name} has {expected}: "
            f"half-written or of another build; {remedy}"
        )
    if is_local(path):
        try:
            mapped: NDArray[Any] = np.load(local_path(path), mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise FormatError(f"{path}: no readable .npy file ({error}); {remedy}") from error
        return _checked(path, mapped, dtype, shape)
    data = read_bytes(path)
    if len(data) != expected or not data.startswith(header):
        raise FormatError(
            f"{path}: no array of shape {shape} and dtype {np.dtype(dtype).name} in {len(data)} bytes; {remedy}"
        )
    return np.frombuffer(data, dtype=_little_endian(dtype), offset=len(header)).reshape(shape)


def _checked(path: str, array: NDArray[Any], dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    turned = isinstance(array, np.ndarray) and np.isfortran(array)
    if array.dtype != _little_endian(dtype) or array.shape != shape or turned:
        raise FormatError(
            f"{path}: an array of shape {array.shape} and dtype {array.dtype.name} where shape {shape} and dtype "
            f"{np.dtype(dtype).name} were recorded; build the indices again"
        )
    return array
