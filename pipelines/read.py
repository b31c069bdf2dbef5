"""Reads the records of a split as batches of texts, whatever the format of its files.

Each format hands out batches of about 1 MiB and numbers every record; what all of them share, the policy for bad
records and the account, lies in `records`. Reading a split twice gives the same batches, which is what lets the
cleaning step hand on record numbers instead of text.
"""

from collections.abc import Iterator

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import SourceSettings
from gristmill.pipelines.plan import Extent, Split
from gristmill.pipelines.read_array_record import read_array_record
from gristmill.pipelines.read_arrow import read_arrow
from gristmill.pipelines.read_csv import read_csv
from gristmill.pipelines.read_jsonl import read_jsonl
from gristmill.pipelines.read_parquet import read_parquet
from gristmill.pipelines.read_stream import read_stream
from gristmill.pipelines.read_text import read_text_files, read_text_lines
from gristmill.pipelines.read_tfrecord import read_tfrecord
from gristmill.pipelines.read_warc import read_warc
from gristmill.pipelines.records import Batch, RecordAccount

__all__ = ["read_split"]


def read_split(split: Split, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """The good, non-empty texts of a split, in order.

    Args:
        split: what to read.
        source: how to read it.
        account: takes counts, samples and digests of what was read; complete when the iterator ends.

    Raises:
        InputError: a record is bad and the policy is "fail", or a file is damaged.
        StorageError: a file cannot be read.
    """
    group: list[Extent] = []
    for extent in split.extents:
        if _kind(extent, source) == "files":
            group.append(extent)
            continue
        if group:
            yield from read_text_files(group, source, account)
            group = []
        yield from _read_one(extent, source, account)
    if group:
        yield from read_text_files(group, source, account)


def _kind(extent: Extent, source: SourceSettings) -> str:
    if extent.format == "python" or (extent.format == "text" and source.document == "file"):
        return "files"
    return extent.format


def _read_one(extent: Extent, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    if extent.format == "jsonl":
        yield from read_jsonl(extent, source, account)
    elif extent.format == "parquet":
        yield from read_parquet(extent, source, account)
    elif extent.format == "arrow":
        yield from read_arrow(extent, source, account)
    elif extent.format == "csv":
        yield from read_csv(extent, source, account)
    elif extent.format == "warc":
        yield from read_warc(extent, source, account)
    elif extent.format == "tfrecord":
        yield from read_tfrecord(extent, source, account)
    elif extent.format == "array_record":
        yield from read_array_record(extent, source, account)
    elif extent.format == "stream":
        yield from read_stream(extent, source, account)
    elif extent.format == "text":
        yield from read_text_lines(extent, source, account)
    else:
        raise InputError(f"{extent.path}: no reader for format {extent.format!r}")
