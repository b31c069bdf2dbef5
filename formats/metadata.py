"""What was carried along with the documents of a shard: `.meta.jsonl` and `.meta.offsets`, beside a `.bin/.idx` pair.

The first holds a JSON object for each document, a line each, in the order of the shard, for any tool to read; the
second where each line begins, for whoever asks for one. Plain lines cost more room than columns packed together would,
and can be read wherever a shard is trained on, with nothing but what reads the shard.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gristmill.formats.errors import FormatError
from gristmill.formats.storage import FileFacts, Publication, file_size, open_read, publish, read_range

__all__ = ["metadata_faults", "METADATA_KINDS", "MetadataFile", "MetadataWriter", "write_metadata"]

METADATA_KINDS = ("meta.jsonl", "meta.offsets")
"""Endings of the two files, without the dot."""

_OFFSET_BYTES = 8
_READ_DOCUMENTS = 1 << 16
_SHOWN_BYTES = 80


def _paths(prefix: str) -> tuple[str, str]:
    return (f"{prefix}.{METADATA_KINDS[0]}", f"{prefix}.{METADATA_KINDS[1]}")


class MetadataWriter:
    """Collects the lines of a shard, in the order of its documents.

    Attributes:
        documents: lines so far.
    """

    def __init__(self, lines: Publication, offsets: Publication) -> None:
        """Writes to publications; `write_metadata` makes both."""
        self.documents = 0
        self._lines, self._offsets = lines, offsets

    def add(self, lines: Sequence[bytes]) -> None:
        """Appends documents: the bytes of a JSON object each, without line end."""
        ends = self._lines.size + np.cumsum([0, *(len(line) + 1 for line in lines)])
        self._offsets.write(ends[:-1].astype("<u8"))
        self._lines.write(b"".join(line + b"\n" for line in lines))
        self.documents += len(lines)

    def finish(self) -> None:
        """Writes the end of the last line; called by `write_metadata`."""
        self._offsets.write(np.array([self._lines.size], "<u8"))

    def facts(self) -> tuple[FileFacts, FileFacts]:
        """Sizes and digests of the lines and of the offsets, once the block has ended."""
        return self._lines.facts(), self._offsets.facts()


@contextlib.contextmanager
def write_metadata(prefix: str) -> Iterator[MetadataWriter]:
    """Writes the two files of a shard, which appear when the block ends.

    Raises:
        StorageError: they cannot be written.
    """
    lines, offsets = _paths(prefix)
    with publish(lines) as lines_file, publish(offsets) as offsets_file:
        writer = MetadataWriter(lines_file, offsets_file)
        yield writer
        writer.finish()


class MetadataFile:
    """The metadata of a shard, of which only what is asked for is read."""

    def __init__(self, prefix: str) -> None:
        """Reads nothing.

        Args:
            prefix: path or URL of the shard, without an ending.
        """
        self.path, self._offsets = _paths(prefix)

    def values(self, document: int) -> dict[str, Any]:
        """What was carried along with a document.

        Args:
            document: its number in the shard.

        Raises:
            FormatError: the files are damaged, or hold no such document.
            StorageError: they cannot be read.
        """
        documents = file_size(self._offsets) // _OFFSET_BYTES - 1
        if not 0 <= document < documents:
            raise FormatError(f"{self.path}: document {document} of {documents}: not the file of this shard")
        data = read_range(self._offsets, _OFFSET_BYTES * document, 2 * _OFFSET_BYTES)
        start, end = np.frombuffer(data, "<u8").tolist()
        if not start < end <= file_size(self.path):
            raise FormatError(f"{self.path}: document {document} is said to lie from byte {start} to {end}; damaged")
        return _parsed(read_range(self.path, start, end - start), f"{self.path}: document {document}")


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise FormatError(f"{where}: no JSON: {error}; prepare the corpus again") from error
    if not isinstance(values, dict) or not line.endswith(b"\n") or line.count(b"\n") > 1:
        raise FormatError(f"{where}: {line[:_SHOWN_BYTES]!r} is no line with a JSON object; prepare the corpus again")
    return values


def metadata_faults(prefix: str, documents: int) -> Iterator[str]:
    """What is wrong with the metadata of a shard, as sentences; every line is read.

    Args:
        prefix: path or URL of the shard.
        documents: how many it has.

    Raises:
        StorageError: a file cannot be read.
    """
    path, offsets_path = _paths(prefix)
    size, found = file_size(path), file_size(offsets_path)
    if found != _OFFSET_BYTES * (documents + 1):
        yield f"{offsets_path}: {found} bytes are not {documents + 1} offsets of {_OFFSET_BYTES}"
        return
    end = 0
    with open_read(path) as lines:
        for first in range(0, documents + 1, _READ_DOCUMENTS):
            count = min(_READ_DOCUMENTS, documents + 1 - first)
            offsets = np.frombuffer(read_range(offsets_path, _OFFSET_BYTES * first, _OFFSET_BYTES * count), "<u8")
            for number, offset in enumerate(offsets.tolist(), first):
                if offset != end:
                    yield f"{offsets_path}: document {number} begins at byte {offset}, but the one before ends at {end}"
                    return
                line = lines.readline() if number < documents else b""
                end += len(line)
                try:
                    _ = _parsed(line, f"{path}: document {number}") if number < documents else None
                except FormatError as error:
                    yield str(error)
                    return
    if end != size:
        yield f"{path}: {size} bytes, but its documents end at byte {end}"
