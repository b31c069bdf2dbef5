"""Reads a column of a CSV or TSV file with a header line, compressed or not.

Quoted values may hold line ends, so no byte of a file says where a record begins, and a file is one work item. Values
are taken as they stand: an empty one is an empty text, and nothing is guessed to be a number, a date or missing.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import xxhash

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import SourceSettings
from gristmill.formats.storage import open_read
from gristmill.pipelines.carried import carried_lines, mended, named_fields
from gristmill.pipelines.decompress import DamagedError
from gristmill.pipelines.lines import BLOCK_BYTES, open_bytes, strip_mark
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.records import Batch, Place, RecordAccount

__all__ = ["read_csv"]

_LONGEST_VALUE = 1 << 28
_SHOWN_COLUMNS = 20


def read_csv(extent: Extent, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """The texts of a file; blank lines are no records.

    Raises:
        InputError: a column is missing, a row is bad and the policy is "fail", or the file is damaged.
    """
    csv.field_size_limit(_LONGEST_VALUE)
    with open_read(extent.path) as raw:
        stream = _Bytes(open_bytes(raw, extent), extent.path, tolerant=extent.relative in source.expect_damaged)
        lines = io.TextIOWrapper(
            io.BufferedReader(stream, BLOCK_BYTES), encoding="utf-8", errors="surrogateescape", newline=""
        )
        reader = csv.reader(lines, delimiter=_delimiter(extent.relative), strict=True)
        try:
            header = next(reader, None)
            if header is None:
                raise InputError(f"{extent.path}: is empty, without a line that names columns; leave it out")
            _check_header(header, source, extent)
            rows = _up_to_damage(reader, stream) if stream.tolerant else reader
            yield from _batches(rows, reader, header, extent, source, account)
        except csv.Error as error:
            raise InputError(
                f"{extent.path}:{reader.line_num}: no valid CSV: {error}; mend the file, or set format if it is none"
            ) from error
        finally:
            account.inputs.append((extent.file, stream.hasher.hexdigest(), account.records))


def _delimiter(name: str) -> str:
    return "\t" if any(part == "tsv" for part in name.lower().split("/")[-1].split(".")[1:]) else ","


def _check_header(header: list[str], source: SourceSettings, extent: Extent) -> None:
    """Refuses columns that are missing or occur twice, with the key of the recipe that asks for them."""
    address = {source.clean.url_field: "clean.url_field"} if source.clean.url_lists else {}
    for name, setting in (address | named_fields(source)).items():
        if header.count(name) != 1:
            seen = ", ".join(header[:_SHOWN_COLUMNS]) or "none"
            found = f"{header.count(name)} columns are called" if name in header else "no column"
            raise InputError(f"{extent.path}: {found} {name!r}; columns seen: {seen}; set {setting} to one of them")


def _up_to_damage(reader: Any, stream: "_Bytes") -> Iterator[list[str]]:
    """The rows of a file that was cut short, up to the last that is whole: one without a line end is none."""
    try:
        for row in reader:
            if stream.ended and stream.last not in {b"\n", b"\r"}:  # the end is met in the last row alone
                return
            yield row
    except csv.Error:
        if not stream.ended:
            raise


def _batches(
    rows: Iterable[list[str]],
    reader: Any,
    header: list[str],
    extent: Extent,
    source: SourceSettings,
    account: RecordAccount,
) -> Iterator[Batch]:
    columns = [header.index(name) for name in source.form.names]
    carry = source.carry
    carried = [] if carry is None else [header.index(name) for name in carry.names]
    id_column = None if carry is None or carry.id_field is None else carried[0]
    address_column = header.index(source.clean.url_field) if source.clean.url_lists else None
    batch, records, size = *_empty(source), 0
    line = reader.line_num
    for row in rows:
        if row:
            text = _text(row, len(header), columns, _place(extent, line + 1, row, id_column), source, account)
            if text:
                batch.texts.append(text)
                records.append(account.records)
                if address_column is not None and batch.addresses is not None:
                    batch.addresses.append(row[address_column] or None)
                if carry is not None and batch.carried is not None:
                    batch.carried += carried_lines(carry, [[mended(row[column])] for column in carried], account)
                size += len(text)
            account.records += 1
        line = reader.line_num
        if size >= BLOCK_BYTES:
            yield batch
            batch, records, size = *_empty(source), 0
    if batch.texts:
        yield batch


def _empty(source: SourceSettings) -> tuple[Batch, list[int]]:
    """A batch without texts, and its list of records."""
    records: list[int] = []
    addresses: list[str | None] | None = [] if source.clean.url_lists else None
    return Batch([], records, addresses, None if source.carry is None else []), records


def _place(extent: Extent, line: int, row: list[str], id_column: int | None) -> Callable[[], Place]:
    def where() -> Place:
        named = mended(row[id_column]) if id_column is not None and id_column < len(row) else None
        return Place(extent.path, extent.relative, f":{line}", named)

    return where


def _text(
    row: list[str],
    width: int,
    columns: list[int],
    where: Callable[[], Place],
    source: SourceSettings,
    account: RecordAccount,
) -> str | None:
    if len(row) != width:
        found = f"{len(row)} values where the header names {width}"
        account.reject("wrong_column_count", where, found, "mend the row")
        return None
    text = source.form.join([row[column] for column in columns])
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        data = text.encode("utf-8", "surrogateescape")
        if source.invalid_text != "replace":
            account.reject("invalid_utf8", where, f"{error.reason} in {data[:80]!r}", "convert the file to UTF-8")
            return None
        account.counted["repaired_text"] += 1
        text = data.decode("utf-8", "replace")
    if not text:
        account.drop("empty", where, "")
    return text


class _Bytes(io.RawIOBase):
    """The decompressed bytes of a file without a byte-order mark; hashes what is read.

    Attributes:
        hasher: over all bytes so far.
        tolerant: whether a file that was cut short ends where it does.
        ended: whether the end was reached.
        last: the last byte so far.
    """

    def __init__(self, raw: Any, path: str, *, tolerant: bool) -> None:
        super().__init__()
        self.hasher = xxhash.xxh3_128()
        self._raw = raw
        self._path = path
        self.tolerant = tolerant
        self.ended = False
        self.last = b""
        self._left: bytes | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            begun = self._left is not None
            try:
                data = self._raw.read(BLOCK_BYTES)
            except DamagedError:
                if not self.tolerant:
                    raise
                data = b""
            self.ended = not data
            self.last = data[-1:] or self.last
            self.hasher.update(data)
            self._left = data if begun else strip_mark(data, self._path)
        part, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)
