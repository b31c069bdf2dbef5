"""Which format and which compression an input file has: by its name, and by the bytes that it begins with.

The name tells the format, since most formats have no mark of their own; whether a file is packed is asked of its first
bytes, since names lie about that. One format needs more care: a TFRecord begins with the length of its first record,
which may look like the mark of a compression, and has a checksum that tells.
"""

import posixpath
import re

from gristmill.pipelines import decompress, tfrecord_file

__all__ = ["compression_of", "ENDINGS", "format_of", "HEAD_BYTES", "NEVER_PACKED", "says_compressed"]

HEAD_BYTES = max(decompress.HEAD_BYTES, tfrecord_file.HEADER_BYTES)
"""How much of a file `compression_of` needs to see."""

NEVER_PACKED = frozenset({"parquet", "arrow", "array_record", "stream"})
"""Formats that pack inside, and are read at places; nothing is packed around them."""

_COMPRESSED = (".gz", ".gzip", ".bz2", ".xz", ".zst", ".zstd")
_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
    ".warc": "warc",
    ".wet": "warc",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".array_record": "array_record",
    ".arrayrecord": "array_record",
    ".txt": "text",
    ".text": "text",
    ".py": "python",
}
ENDINGS = ", ".join(sorted(_FORMATS))
"""The endings that tell a format, for messages."""

_OF_MANY = re.compile(r"(\.(?:tfrecords?|array_?record))-\d+-of-\d+$")


def format_of(name: str) -> str | None:
    """The format that a file's name tells, packed or not; None where it tells none."""
    stem = name.lower()
    told = _FORMATS.get(posixpath.splitext(stem)[1])
    if told is not None:
        return told
    for suffix in _COMPRESSED:
        if stem.endswith(suffix):
            stem = stem[: -len(suffix)]
            break
    return _FORMATS.get(posixpath.splitext(_OF_MANY.sub(r"\1", stem))[1])


def says_compressed(path: str) -> bool:
    """Whether a file's name says that it is compressed."""
    return path.lower().endswith(_COMPRESSED)


def compression_of(head: bytes, kind: str) -> str | None:
    """The compression of a file: "gzip", "bzip2", "xz", "zstd", "zlib", or None.

    Args:
        head: its first `HEAD_BYTES` bytes.
        kind: its format.

    Raises:
        MissingExtraError: it may be a TFRecord, and the library of their checksums is not installed.
    """
    if kind in NEVER_PACKED:
        return None
    if kind == "tfrecord":
        return tfrecord_file.packed_frames(head)
    return decompress.detect_compression(head[: decompress.HEAD_BYTES])
