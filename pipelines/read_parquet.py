"""Reads a string column of a Parquet file, row group by row group.

Only the wanted columns are decoded, a few hundred rows at a time, so memory follows the column chunks of one row group
and not the file. Strings, large strings, dictionaries of strings and binary columns holding UTF-8 are read.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import SourceSettings
from gristmill.formats.storage import open_read
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.records import Batch, Place, RecordAccount

__all__ = ["read_parquet"]

_ROWS = 256
_SHOWN_COLUMNS = 20


def read_parquet(extent: Extent, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """The texts of some row groups.

    Raises:
        InputError: a column is missing or of another type, a row is bad and the policy is "fail", or the file is
            damaged.
    """
    names = [source.text_field] if source.extra_text_field is None else [source.text_field, source.extra_text_field]
    hasher = _ColumnHasher()
    with open_read(extent.path) as raw:
        try:
            file = pq.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)
            _check_columns(file.schema_arrow, names, extent)
            row = sum(file.metadata.row_group(group).num_rows for group in range(extent.start))
            groups = list(range(extent.start, extent.end))
            for rows in file.iter_batches(_ROWS, row_groups=groups, columns=names, use_threads=False):
                columns = [_as_binary(rows.column(name)) for name in names]
                for column in columns:
                    hasher.update(column)
                batch = _batch(columns, row, extent, source, account)
                row += rows.num_rows
                if batch.texts:
                    yield batch
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{extent.path}: damaged Parquet data: {error}; fetch it again") from error
    account.inputs.append((extent.file, hasher.hexdigest(), account.records))


def _check_columns(schema: pa.Schema, names: list[str], extent: Extent) -> None:
    for name in names:
        found = schema.names.count(name)
        if not found:
            seen = ", ".join(schema.names[:_SHOWN_COLUMNS]) or "none"
            raise InputError(f"{extent.path}: no column {name!r}; columns seen: {seen}; set text_field to one of them")
        if found > 1:
            raise InputError(f"{extent.path}: {found} columns are called {name!r}; rename all but one")
        kind = schema.field(name).type
        if not _holds_text(kind):
            raise InputError(
                f"{extent.path}: column {name!r} holds {kind}, not strings; set text_field to a text column"
            )


def _holds_text(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(
        is_kind(inner)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_null,
        )
    )


def _as_binary(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.large_binary())


class _ColumnHasher:
    """Digest of the values of columns, the same however they were cut into batches."""

    def __init__(self) -> None:
        self._lengths = xxhash.xxh3_128()
        self._data = xxhash.xxh3_128()

    def update(self, column: pa.Array) -> None:
        """Takes a large_binary array; a null counts as length -1."""
        if not len(column):
            return
        _, offsets_buffer, data_buffer = column.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
        lengths = np.diff(offsets)
        if column.null_count:
            lengths = np.where(column.is_null().to_numpy(zero_copy_only=False), -1, lengths)
        self._lengths.update(lengths.astype("<i8").tobytes())
        if data_buffer is not None:
            self._data.update(memoryview(data_buffer)[int(offsets[0]) : int(offsets[-1])])

    def hexdigest(self) -> str:
        both = xxhash.xxh3_128(self._lengths.digest())
        both.update(self._data.digest())
        return both.hexdigest()


def _batch(
    columns: list[pa.Array], first_row: int, extent: Extent, source: SourceSettings, account: RecordAccount
) -> Batch:
    first = account.records
    rows = len(columns[0])
    try:
        texts = columns[0].cast(pa.large_string()).to_pylist()
        if len(columns) == 2:
            extras = columns[1].cast(pa.large_string()).to_pylist()
            texts = [text + source.separator + extra for text, extra in zip(texts, extras, strict=True)]
        if all(texts):
            account.records += rows
            return Batch(texts, range(first, first + rows))
    except (pa.ArrowInvalid, TypeError, UnicodeDecodeError):
        pass  # a null or invalid UTF-8 somewhere: the rows are gone through one by one
    batch = Batch([], records := [])
    for row, values in enumerate(zip(*(column.to_pylist() for column in columns), strict=True)):
        text = _text(values, _place(extent, first_row + row), source, account)
        if text:
            batch.texts.append(text)
            records.append(account.records)
        account.records += 1
    return batch


def _place(extent: Extent, row: int) -> Callable[[], Place]:
    return lambda: Place(extent.path, extent.relative, f": row {row}, counted from 0")


def _text(
    values: tuple[bytes | None, ...], where: Callable[[], Place], source: SourceSettings, account: RecordAccount
) -> str | None:
    parts = []
    for value in values:
        if value is None:
            account.reject("null_text", where, "the value is null", "leave the record out")
            return None
        try:
            parts.append(value.decode("utf-8"))
        except UnicodeDecodeError as error:
            if source.invalid_text != "replace":
                account.reject("invalid_utf8", where, str(error), "mend the value")
                return None
            account.counted["repaired_text"] += 1
            parts.append(value.decode("utf-8", "replace"))
    text = source.separator.join(parts)
    if not text:
        account.drop("empty", where, "")
    return text
