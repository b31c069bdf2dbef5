"""Reads a shard of a dataset of the hub through the library `datasets`, where no reader of ours knows its files.

A worker works out the same stream as the plan did, from the commit, and iterates the shard that it was given; of the
columns it takes those that make up the text. The library gives whole records: what one of them lacks is a bad record
like any other, but where the library can make no records of a file, it stops, and so does the run.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import xxhash

from gristmill.formats.errors import GristmillError, InputError, SettingsError
from gristmill.formats.recipe import SourceSettings
from gristmill.formats.storage import file_size, read_range
from gristmill.formats.text_form import MISSING, field_value
from gristmill.pipelines.carried import carried_lines, named_fields
from gristmill.pipelines.hub_repository import HubRepository
from gristmill.pipelines.hub_stream import open_stream
from gristmill.pipelines.lines import BLOCK_BYTES
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.read_jsonl import object_text
from gristmill.pipelines.records import Batch, Place, RecordAccount

__all__ = ["read_stream"]

_SHARD = re.compile(r"hub://([^@]+)@([0-9a-f]{40})/.*#(\d+)-of-(\d+)-by-datasets-(.+)", re.DOTALL)
_ROWS = 256
_SHOWN = 20
_SHOWN_BYTES = 80
_TAR_BLOCK = 512

_Where = Callable[[], Place]


def read_stream(extent: Extent, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """The texts of a shard.

    Raises:
        MissingExtraError: the library is not installed.
        SettingsError: it is another version than the run was planned with.
        InputError: a record is bad and the policy is "fail", no record has the field, or the library cannot go on.
        StorageError: the hub does not answer.
    """
    first, missing = account.records, account.dropped["missing_field"]
    address = source.clean.url_field if source.clean.url_lists else None
    hasher = xxhash.xxh3_128()
    carry = source.carry
    batch, size = _empty(source), 0
    for record in _records(extent, source, address):
        named = None if carry is None or carry.id_field is None else _carried(record, carry.id_field)
        where = functools.partial(_place, extent, account.records - first, named)
        text = _text(record, source, account, where, hasher)
        if text:
            batch.texts.append(text)
            batch.records.append(account.records)  # type: ignore[union-attr]  # a list, as `_empty` made it
            if batch.addresses is not None and address is not None:
                found = field_value(record, address)
                batch.addresses.append(found if isinstance(found, str) else None)
            if batch.carried is not None and carry is not None:
                batch.carried += carried_lines(carry, [[_carried(record, name)] for name in carry.names], account)
            size += len(text)
        account.records += 1
        if size >= BLOCK_BYTES or len(batch.texts) == _ROWS:
            yield batch
            batch, size = _empty(source), 0
    if batch.texts:
        yield batch
    records = account.records - first
    if records and account.dropped["missing_field"] - missing == records:
        raise InputError(
            f"{_shown(extent)}: none of {records} records has the text: {account.last_bad}; set text_field"
        )
    account.inputs.append((extent.file, hasher.hexdigest(), account.records))


def _empty(source: SourceSettings) -> Batch:
    addresses: list[str | None] | None = [] if source.clean.url_lists else None
    return Batch([], [], addresses, None if source.carry is None else [])


def _carried(record: Mapping[str, Any], name: str) -> Any:
    value = field_value(record, name)
    return None if value is MISSING else value


def _shown(extent: Extent) -> str:
    return extent.path.partition("-by-datasets-")[0]


def _place(extent: Extent, number: int, named: Any) -> Place:
    return Place(_shown(extent), extent.relative, f": record {number}, counted from 0", named)


def _records(extent: Extent, source: SourceSettings, address: str | None) -> Iterator[Mapping[str, Any]]:
    """The records of a shard, as the library gives them, with the columns that are wanted at least."""
    match = _SHARD.fullmatch(extent.path)
    if match is None or source.hub is None:
        raise InputError(f"{extent.path}: is no shard of a dataset; start the run again")
    dataset, commit, number, count, version = match.groups()
    stream = open_stream(source.hub, HubRepository(dataset, commit), f"source {source.id!r}")
    if stream.version != version:
        raise SettingsError(
            f"{_shown(extent)}: the run was planned with datasets {version}, but datasets {stream.version} is "
            "installed here; install one version where the run starts and on its workers"
        )
    if stream.shards != int(count):
        raise InputError(f"{_shown(extent)}: there are {stream.shards} shards now; start the run again")
    data = stream.data
    if data.features is not None:
        data = data.select_columns(_columns(list(data.features), source, address, extent))
    data = data.shard(num_shards=int(count), index=int(number))
    iterator = iter(data)
    while True:
        try:
            record = next(iterator, None)
        except Exception as error:  # whatever the builders of the library raise
            own = _own(error)
            if own is not None:
                raise own from error
            if extent.relative in source.expect_damaged:
                return
            raise InputError(
                f"{_shown(extent)}: `datasets` cannot go on: {type(error).__name__}: {error}; tell the dataset's "
                "owner, or list the shard in expect_damaged to take what comes before"
            ) from error
        if record is None:
            if not _ends_whole(extent) and extent.relative not in source.expect_damaged:
                raise InputError(
                    f"{_shown(extent)}: ends without the mark of an archive's end, so it is cut short; tell the "
                    "dataset's owner, or list the shard in expect_damaged to take what it has"
                )
            return
        yield record


def _ends_whole(extent: Extent) -> bool:
    """Whether a shard that is a TAR archive ends as such; the library takes one that was cut between two files."""
    path, _, _ = extent.path.rpartition("#")
    if not path.lower().endswith(".tar"):
        return True
    size = file_size(path)
    return not any(read_range(path, max(0, size - _TAR_BLOCK), min(size, _TAR_BLOCK)))


def _own(error: BaseException | None) -> GristmillError | None:
    """The error of ours behind one of the library, None for none."""
    while error is not None and not isinstance(error, GristmillError):
        error = error.__cause__ or error.__context__
    return error


def _columns(seen: list[str], source: SourceSettings, address: str | None, extent: Extent) -> list[str]:
    """The columns that make up the text or are carried along, and the address where there is one.

    Raises:
        InputError: one is missing.
    """
    wanted = []
    for name, setting in named_fields(source).items():
        column = name if name in seen else name.split(".")[0]
        if column not in seen:
            told = ", ".join(seen[:_SHOWN]) or "none"
            raise InputError(
                f"{_shown(extent)}: no column {name!r}; columns seen: {told}; set {setting} to one of them"
            )
        wanted.append(column)
    if address is not None:
        wanted.append(address if address in seen else address.split(".")[0])
    return [column for column in dict.fromkeys(wanted) if column in seen]


def _text(
    record: Mapping[str, Any], source: SourceSettings, account: RecordAccount, where: _Where, hasher: Any
) -> str | None:
    """The text of a record, or None after the account was told why there is none."""
    row = dict(record)
    data: list[bytes] = []
    faults: list[tuple[str, str]] = []
    for name in source.form.names:
        value = field_value(record, name)
        if isinstance(value, bytes):
            data.append(value)
            try:
                value = value.decode("utf-8")
            except UnicodeDecodeError as error:
                faults.append(("invalid_utf8", f"{error.reason} in {data[-1][:_SHOWN_BYTES]!r}"))
                value = data[-1].decode("utf-8", "replace")
        elif isinstance(value, str):
            try:
                data.append(value.encode("utf-8"))
            except UnicodeEncodeError as error:
                data.append(value.encode("utf-8", "surrogatepass"))
                faults.append(("lone_surrogate", str(error)))
                value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        else:
            data.append(b"" if value is None or value is MISSING else repr(value).encode("utf-8", "replace"))
        if value is not MISSING:
            row[name] = value
    hasher.update(b"".join(b"%d:%s" % (len(part), part) for part in data))
    if faults:
        if source.invalid_text != "replace":
            account.reject(faults[0][0], where, faults[0][1], "mend the value")
            return None
        account.counted["repaired_text"] += 1
    return object_text(row, source, account, where)
