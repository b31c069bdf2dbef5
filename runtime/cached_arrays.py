"""Index arrays mapped from copies in the cache of the host; a map keeps its copy there for as long as it lives."""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.errors import FormatError, StorageError
from gristmill.runtime.file_cache import CachedFile

__all__ = ["open_cached_npy"]


def open_cached_npy(copy: CachedFile, url: str) -> NDArray[Any]:
    """Maps the array of a `.npy` file.

    Args:
        copy: the file, held; closed here. The map holds it from then on, since a lock belongs to an opening of a file
            and the map's descriptor is a duplicate of this one.
        url: where it came from, for messages.

    Raises:
        FormatError: it is no `.npy` file of integers.
        StorageError: it cannot be mapped.
    """
    try:
        with open(copy.path, "rb", opener=lambda *_: os.dup(copy.descriptor)) as file:
            file.seek(0)
            version = np.lib.format.read_magic(file)
            read_header = (
                np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read_header(file)
            if fortran or dtype.kind not in "iu" or not dtype.isnative:
                raise ValueError(f"an array of {dtype}")
            array: NDArray[Any] = np.memmap(file, dtype=dtype, mode="r", offset=file.tell(), shape=shape)
    except (ValueError, EOFError) as error:
        raise FormatError(f"{url}: no readable .npy file of integers ({error}): half-written?") from error
    except OSError as error:
        raise StorageError(f"{url}: its copy {copy.path} cannot be mapped: {error.strerror}") from error
    finally:
        copy.close()
    return array
