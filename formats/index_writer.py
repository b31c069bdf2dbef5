"""Writes the arrays of a member while they are built, so that memory never holds all of them.

Each index is published as soon as it is finished and mapped from there for the next, which reads it from front to
back. What a build holds at its height is then one array and the token counts, less than it writes, whatever the
lengths. On an object store nothing can be mapped, so there the arrays stay in memory beside what is written.
"""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from gristmill.formats.errors import StorageError
from gristmill.formats.npy import open_npy, write_npy
from gristmill.formats.storage import FileFacts, is_local

__all__ = ["IndexWriter"]


class IndexWriter:
    """Keeps the arrays of one member; called with each by name, gives back the array to go on with.

    Attributes:
        facts: size and digest of each array that was written, by its name.
        error: what kept an array from being written; None while all were.
    """

    def __init__(self, path_of: Callable[[str], str], *, required: bool = True) -> None:
        """Says where the arrays belong.

        Args:
            path_of: path or URL of an array, from its name.
            required: whether an array that cannot be written is an error; without, the rest stays in memory.
        """
        self._path_of = path_of
        self._required = required
        self.facts: dict[str, FileFacts] = {}
        self.error: StorageError | None = None

    def __call__(self, index: str, array: NDArray[Any]) -> NDArray[Any]:
        """Writes an array whole.

        Args:
            index: its name.
            array: what it holds; at least one element.

        Returns:
            The array as it was written, mapped from a local file; or `array` itself.

        Raises:
            StorageError: it cannot be written, and is required.
        """
        if self.error is not None:
            return array
        path = self._path_of(index)
        try:
            self.facts[index] = write_npy(path, array)
        except StorageError as error:
            if self._required:
                raise
            self.error = error
            return array
        return open_npy(path, array.dtype, array.shape) if is_local(path) else array
