"""The hub's files under fsspec's interface, so that every reader opens them as it opens any other.

A URL is ``hub://OWNER/NAME@COMMIT/PATH``: what lies behind it never changes, so sizes are asked for once and nothing is
listed. Importing this module makes fsspec know the protocol.
"""

import functools
from typing import IO, Any

import fsspec
from fsspec.spec import AbstractFileSystem

from gristmill.formats.resuming import open_ranges
from gristmill.pipelines.hub import hub_range, hub_size

__all__ = ["hub_url", "HubFileSystem"]


def hub_url(dataset: str, commit: str, path: str) -> str:
    """URL of a file of a dataset at a commit, as this file system reads it."""
    return f"hub://{dataset}@{commit}/{path}"


class HubFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Reads files of datasets of the hub at pinned commits."""

    protocol = "hub"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sizes: dict[str, int] = {}

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
        return open_ranges(functools.partial(hub_range, path), self.info(path)["size"])


fsspec.register_implementation("hub", HubFileSystem, clobber=True)
