"""Reads a string column of an Arrow IPC file or stream, as `datasets` and others keep their tables.

A file lists its record batches, so a large one is cut between them; a stream does not and is read from end to end. The
wanted columns are picked out of each batch, a few hundred rows at a time; the others are skipped where the form allows.
"""

import functools
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pyarrow as pa

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import SourceSettings
from gristmill.formats.storage import open_read
from gristmill.pipelines.arrow_file import FILE_MAGIC
from gristmill.pipelines.columns import ColumnHasher, as_binary, check_columns, column_batch, wanted_columns
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.records import Batch, RecordAccount

__all__ = ["read_arrow"]


_ROWS = 256


def read_arrow(extent: Extent, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """The texts of some record batches, or of a whole stream.

    Raises:
        InputError: a column is missing or of another type, a row is bad and the policy is "fail", or the file is
            damaged.
    """
    names = source.form.names
    hasher = ColumnHasher()
    with open_read(extent.path) as raw:
        try:
            for batch_rows, rows in _record_batches(raw, extent, source):
                for start in range(0, rows.num_rows, _ROWS):
                    part = rows.slice(start, _ROWS)
                    columns = [as_binary(part, name) for name in names]
                    for column in columns:
                        hasher.update(column)
                    batch = column_batch(
                        part, columns, functools.partial(_row, batch_rows, start), extent, source, account
                    )
                    if batch.texts:
                        yield batch
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{extent.path}: damaged Arrow data: {error}; fetch it again") from error
    account.inputs.append((extent.file, hasher.hexdigest(), account.records))


def _row(rows_before: Callable[[], int], row: int) -> int:
    return rows_before() + row


def _record_batches(
    raw: BinaryIO, extent: Extent, source: SourceSettings
) -> Iterator[tuple[Callable[[], int], pa.RecordBatch]]:
    """The record batches of an extent, each with what counts the rows of the file before it.

    Only reading tells how many rows a record batch has, so those before the extent are read when a message needs it.
    """
    if raw.read(len(FILE_MAGIC)) != FILE_MAGIC:
        raw.seek(0)
        row = 0
        with pa.ipc.open_stream(raw) as stream:
            check_columns(stream.schema, source, extent)
            for rows in stream:
                yield functools.partial(int, row), rows
                row += rows.num_rows
        return
    raw.seek(0)
    schema = pa.ipc.open_file(raw).schema
    check_columns(schema, source, extent)
    raw.seek(0)
    wanted = pa.ipc.IpcReadOptions(included_fields=sorted({_place(schema, name) for name in wanted_columns(source)}))
    file = pa.ipc.open_file(raw, options=wanted)

    @functools.cache
    def rows_before(number: int) -> int:
        return sum(file.get_batch(earlier).num_rows for earlier in range(number))

    for number in range(extent.start, extent.end):
        yield functools.partial(rows_before, number), file.get_batch(number)


def _place(schema: pa.Schema, name: str) -> int:
    """Place of the column that a name, or its part before a dot, means."""
    return int(schema.get_field_index(name if name in schema.names else name.split(".")[0]))
