"""Columns of text in Arrow batches, whatever file they were read from: their types, their digest, their documents.

Strings, large strings, string views, dictionaries of strings and binary columns holding UTF-8 are text. A batch without
a fault becomes a list in one call; one with a fault is gone through row by row, so that each gets its own reason.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import SourceSettings
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.records import Batch, Place, RecordAccount

__all__ = ["as_binary", "check_columns", "column_addresses", "column_batch", "ColumnHasher"]

_SHOWN_COLUMNS = 20


def check_columns(schema: pa.Schema, names: Sequence[str], extent: Extent) -> None:
    """Refuses columns that are missing, occur twice or hold no text.

    Raises:
        InputError: names the column, and the columns that there are.
    """
    for name in dict.fromkeys(names):
        found = schema.names.count(name)
        if not found and _nested_type(schema, name) is None:
            seen = ", ".join(schema.names[:_SHOWN_COLUMNS]) or "none"
            raise InputError(f"{extent.path}: no column {name!r}; columns seen: {seen}; set text_field to one of them")
        if found > 1:
            raise InputError(f"{extent.path}: {found} columns are called {name!r}; rename all but one")
        kind = schema.field(name).type if found else _nested_type(schema, name)
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


def _nested_type(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Type of a nested column that a name with dots leads to; None where there is none."""
    first, *rest = name.split(".")
    if not rest or schema.names.count(first) != 1:
        return None
    kind = schema.field(first).type
    for part in rest:
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            return None
        kind = kind.field(part).type
    return kind


def as_binary(rows: pa.RecordBatch, name: str) -> pa.Array:
    """A column of text as large_binary, dictionaries decoded; a name with dots leads into structures."""
    if name in rows.schema.names:
        column = rows.column(name)
    else:
        first, *rest = name.split(".")
        column = pc.struct_field(rows.column(first), rest)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.large_binary())


class ColumnHasher:
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
        """The digest so far."""
        both = xxhash.xxh3_128(self._lengths.digest())
        both.update(self._data.digest())
        return both.hexdigest()


def column_batch(
    columns: list[pa.Array], first_row: int, extent: Extent, source: SourceSettings, account: RecordAccount
) -> Batch:
    """The texts of some rows.

    Args:
        columns: the columns that make up the text, as `as_binary` gives them.
        first_row: number of their first row in the file, for messages.
        extent: what they were read from.
        source: how the columns are joined, and what becomes of a bad row.
        account: takes counts and samples.

    Raises:
        InputError: a row is bad and the policy is "fail".
    """
    first = account.records
    rows = len(columns[0])
    form = source.form
    try:
        texts = columns[0].cast(pa.large_string()).to_pylist()
        if len(columns) > 1 or any(form.literals):
            lists = [texts, *(column.cast(pa.large_string()).to_pylist() for column in columns[1:])]
            texts = [form.join(values) for values in zip(*lists, strict=True)]
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


def column_addresses(rows: pa.RecordBatch, name: str, batch: Batch, first: int) -> list[str | None]:
    """Where each text of a batch comes from, as a column says.

    Args:
        rows: the rows that the batch was made of.
        name: the column.
        batch: the batch.
        first: record number of the first row.
    """
    values = as_binary(rows, name).to_pylist()
    found = (values[record - first] for record in batch.records)
    return [None if value is None else value.decode("utf-8", "replace") for value in found]


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
    text = source.form.join(parts)
    if not text:
        account.drop("empty", where, "")
    return text
