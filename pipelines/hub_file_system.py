"""The hub's files under fsspec's interface, so that every reader opens them as it opens any other.

A URL is ``hub://OWNER/NAME@COMMIT/PATH``: what lies behind it never changes, so sizes are asked for once, or known from
a listing that somebody else made, and nothing is listed. Importing this module makes fsspec know the protocol.
"""

import contextlib
import functools
import io
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import IO, Any, ClassVar

import fsspec
from fsspec.spec import AbstractFileSystem

from gristmill.formats.resuming import open_ranges
from gristmill.pipelines.hub import hub_range, hub_size

__all__ = ["hub_url", "HubFileSystem", "opened_files"]

_opened: ContextVar[list[io.BufferedReader] | None] = ContextVar("opened", default=None)


def hub_url(dataset: str, commit: str, path: str) -> str:
    """URL of a file of a dataset at a commit, as this file system reads it."""
    return f"hub://{dataset}@{commit}/{path}"


@contextlib.contextmanager
def opened_files() -> Iterator[list[io.BufferedReader]]:
    """Collects the files that are opened while the block lasts, whose positions tell how much of them was used."""
    files: list[io.BufferedReader] = []
    token = _opened.set(files)
    try:
        yield files
    finally:
        _opened.reset(token)


class HubFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Reads files of datasets of the hub at pinned commits."""

    protocol = "hub"
    _sizes: ClassVar[dict[str, int]] = {}  # of all instances: fsspec makes one for each thread

    @classmethod
    def clear_instance_cache(cls) -> None:
        """Forgets instances, and the sizes that they know."""
        super().clear_instance_cache()
        cls._sizes.clear()

    @classmethod
    def know(cls, sizes: Mapping[str, int]) -> None:
        """Takes sizes of files by URL, which so need not be asked for."""
        cls._sizes.update((cls._strip_protocol(url), size) for url, size in sizes.items())

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size and type of a file."""
        name = self._strip_protocol(path)
        if name not in self._sizes:
            self._sizes[name] = hub_size(name)
        return {"name": name, "size": self._sizes[name], "type": "file"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of a file, or some of them."""
        first = start or 0
        last = self.info(path)["size"] if end is None else end
        return hub_range(self._strip_protocol(path), first, last - first)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> IO[bytes]:
        if mode != "rb":
            raise OSError(f"{path}: files of the hub can only be read")
        file = open_ranges(functools.partial(hub_range, path), self.info(path)["size"])
        collected = _opened.get()
        if collected is not None:
            collected.append(file)
        return file


fsspec.register_implementation("hub", HubFileSystem, clobber=True)
