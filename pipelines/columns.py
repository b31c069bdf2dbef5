"""Columns of text in Arrow batches, whatever file they were read from: their types, their digest, their documents.

Strings, large strings, string views, dictionaries of strings and binary columns holding UTF-8 are text. A batch without
a fault becomes a list in one call; one with a fault is gone through row by row, so that each gets its own reason.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import SourceSettings
from gristmill.pipelines.carried import carried_lines, named_fields
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.records import Batch, Place, RecordAccount

__all__ = ["as_binary", "check_columns", "column_batch", "ColumnHasher", "wanted_columns"]

_SHOWN_COLUMNS = 20


def wanted_columns(source: SourceSettings) -> list[str]:
    """Every column that a source reads, each once: of its texts, of their addresses, and what it carries along."""
    address = [source.clean.url_field] if source.clean.url_lists else []
    carried = source.carry.names if source.carry is not None else ()
    return list(dict.fromkeys([*source.form.names, *address, *carried]))


def check_columns(schema: pa.Schema, source: SourceSettings, extent: Extent) -> None:
    """Refuses columns that are missing, occur twice, or hold no text where text is needed.

    Raises:
        InputError: names the column, the key of the recipe that asks for it, and the columns that there are.
    """
    address = {source.clean.url_field: "clean.url_field"} if source.clean.url_lists else {}
    texts = {*source.form.names, *address}
    for name, setting in (address | named_fields(source)).items():
        found = schema.names.count(name)
        if not found and _nested_type(schema, name) is None:
            seen = ", ".join(schema.names[:_SHOWN_COLUMNS]) or "none"
            raise InputError(f"{extent.path}: no column {name!r}; columns seen: {seen}; set {setting} to one of them")
        if found > 1:
            raise InputError(f"{extent.path}: {found} columns are called {name!r}; rename all but one")
        kind = schema.field(name).type if found else _nested_type(schema, name)
        if name in texts and not _holds_text(kind):
            raise InputError(
                f"{extent.path}: column {name!r} holds {kind}, not strings; set {setting} to a text column"
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
    column = _column(rows, name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.large_binary())


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    if name in rows.schema.names:
        return rows.column(name)
    first, *rest = name.split(".")
    return pc.struct_field(rows.column(first), rest)


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
    rows: pa.RecordBatch,
    columns: list[pa.Array],
    first_row: Callable[[], int],
    extent: Extent,
    source: SourceSettings,
    account: RecordAccount,
) -> Batch:
    """The texts of some rows, with their addresses and what they carry along where the source asks for that.

    Args:
        rows: the rows.
        columns: the columns that make up the text, as `as_binary` gives them.
        first_row: gives the number of their first row in the file, when a message needs it.
        extent: what they were read from.
        source: how the columns are joined, and what becomes of a bad row.
        account: takes counts and samples.

    Raises:
        InputError: a row is bad and the policy is "fail", or a value cannot be carried.
    """
    first = account.records
    batch = _texts(rows, columns, first_row, extent, source, account)
    if source.clean.url_lists:
        values = as_binary(rows, source.clean.url_field).to_pylist()
        found = (values[record - first] for record in batch.records)
        batch.addresses = [None if value is None else value.decode("utf-8", "replace") for value in found]
    if source.carry is not None:
        left = pa.array(np.asarray(batch.records, np.int64) - first)
        carried = [_values(_column(rows, name).take(left), name, extent) for name in source.carry.names]
        batch.carried = carried_lines(source.carry, carried, account)
    return batch


def _values(column: pa.Array, name: str, extent: Extent) -> list[Any]:
    """The values of a column, as Python has them; times as text, of which Arrow knows finer ones than Python."""
    try:
        if pa.types.is_timestamp(column.type) or pa.types.is_time(column.type):
            column = column.cast(pa.string())
        values: list[Any] = column.to_pylist()
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"{extent.path}: column {name!r}, {column.type}, cannot be carried along: {error}") from error
    return values


def _texts(
    rows: pa.RecordBatch,
    columns: list[pa.Array],
    first_row: Callable[[], int],
    extent: Extent,
    source: SourceSettings,
    account: RecordAccount,
) -> Batch:
    first = account.records
    form = source.form
    try:
        texts = columns[0].cast(pa.large_string()).to_pylist()
        if len(columns) > 1 or any(form.literals):
            lists = [texts, *(column.cast(pa.large_string()).to_pylist() for column in columns[1:])]
            texts = [form.join(values) for values in zip(*lists, strict=True)]
        if all(texts):
            account.records += rows.num_rows
            return Batch(texts, range(first, first + rows.num_rows))
    except (pa.ArrowInvalid, TypeError, UnicodeDecodeError):
        pass  # a null or invalid UTF-8 somewhere: the rows are gone through one by one
    ids = source.carry.id_field if source.carry is not None else None
    named = [None] * rows.num_rows if ids is None else _values(_column(rows, ids), ids, extent)
    batch = Batch([], records := [])
    for row, values in enumerate(zip(*(column.to_pylist() for column in columns), strict=True)):
        text = _text(values, _place(extent, first_row, row, named[row]), source, account)
        if text:
            batch.texts.append(text)
            records.append(account.records)
        account.records += 1
    return batch


def _place(extent: Extent, first_row: Callable[[], int], row: int, named: Any) -> Callable[[], Place]:
    return lambda: Place(extent.path, extent.relative, f": row {first_row() + row}, counted from 0", named)


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
