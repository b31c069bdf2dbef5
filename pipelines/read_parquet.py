"""Reads a string column of a Parquet file, row group by row group.

Only the wanted columns are decoded, a few hundred rows at a time, so memory follows the column chunks of one row group
and not the file.
"""

import functools
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import SourceSettings
from gristmill.formats.storage import open_read
from gristmill.pipelines.columns import ColumnHasher, as_binary, check_columns, column_batch, wanted_columns
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.records import Batch, RecordAccount

__all__ = ["read_parquet"]

_ROWS = 256


def read_parquet(extent: Extent, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """The texts of some row groups.

    Raises:
        InputError: a column is missing or of another type, a row is bad and the policy is "fail", or the file is
            damaged.
    """
    names = source.form.names
    hasher = ColumnHasher()
    with open_read(extent.path) as raw:
        try:
            file = pq.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)
            check_columns(file.schema_arrow, source, extent)
            row = sum(file.metadata.row_group(group).num_rows for group in range(extent.start))
            groups = list(range(extent.start, extent.end))
            wanted = wanted_columns(source)
            for rows in file.iter_batches(_ROWS, row_groups=groups, columns=wanted, use_threads=False):
                columns = [as_binary(rows, name) for name in names]
                for column in columns:
                    hasher.update(column)
                batch = column_batch(rows, columns, functools.partial(int, row), extent, source, account)
                row += rows.num_rows
                if batch.texts:
                    yield batch
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{extent.path}: damaged Parquet data: {error}; fetch it again") from error
    account.inputs.append((extent.file, hasher.hexdigest(), account.records))
