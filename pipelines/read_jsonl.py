"""Reads JSON lines: one object per line, its text in a named field.

A block of lines is parsed in one list comprehension as long as every line is good; a block with a bad line is gone
through again line by line, so that each fault gets its own reason and line number. Good data never pay for that. A
file (or the part of it that is a work item) in which no record at all has the field is refused whatever the policy:
that is a wrong name and no bad record.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson
import xxhash

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import SourceSettings
from gristmill.formats.text_form import MISSING, field_value
from gristmill.pipelines.carried import carried_lines
from gristmill.pipelines.lines import LineBlock, line_blocks, line_number
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.records import Batch, Place, RecordAccount

__all__ = ["object_text", "parse_object", "read_jsonl"]

_SHOWN_FIELDS = 20


def read_jsonl(extent: Extent, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """The texts of a JSON lines extent; blank lines are no records.

    Raises:
        InputError: a line is bad and the policy is "fail", no line has the field, or the file is damaged.
    """
    first, missing = account.records, account.dropped["missing_field"]
    hasher = xxhash.xxh3_128()
    for block in line_blocks(extent, hasher, tolerate_damage=extent.relative in source.expect_damaged):
        batch = _fast(block, source, account) or _slow(block, extent, source, account)
        if batch.texts:
            yield batch
    records = account.records - first
    if records and account.dropped["missing_field"] - missing == records:
        raise InputError(f"{extent.path}: none of {records} records has the text: {account.last_bad}; set text_field")
    account.inputs.append((extent.file, hasher.hexdigest(), account.records))


def _fast(block: LineBlock, source: SourceSettings, account: RecordAccount) -> Batch | None:
    """The batch of a block without a fault; None when there is one."""
    lines = block.lines()
    loads = orjson.loads
    try:
        addresses, columns = None, None
        if (
            source.extra_text_field is None
            and source.template is None
            and "." not in source.text_field
            and not source.clean.url_lists
            and source.carry is None
        ):
            name = source.text_field
            texts = [loads(line)[name] for line in lines]
        else:
            form = source.form
            rows = [loads(line) for line in lines]
            texts = [form.join([field_value(row, name) for name in form.names]) for row in rows]
            if source.clean.url_lists:
                addresses = [_address(row, source.clean.url_field) for row in rows]
            if source.carry is not None:
                columns = [[_carried(row, name) for row in rows] for name in source.carry.names]
    except (ValueError, KeyError, TypeError):
        return None
    if set(map(type, texts)) != {str} or not all(texts):
        return None
    carry, first = source.carry, account.records
    carried = None if carry is None or columns is None else carried_lines(carry, columns, account)
    account.records += len(texts)
    return Batch(texts, range(first, first + len(texts)), addresses, carried)


def _address(row: Any, name: str) -> str | None:
    """Where a record says that it comes from; None where it does not."""
    value = field_value(row, name) if isinstance(row, dict) else None
    return value if isinstance(value, str) else None


def _carried(row: dict[str, Any], name: str) -> Any:
    value = field_value(row, name)
    return None if value is MISSING else value


def _slow(block: LineBlock, extent: Extent, source: SourceSettings, account: RecordAccount) -> Batch:
    addresses: list[str | None] | None = [] if source.clean.url_lists else None
    carry = source.carry
    carried: list[bytes] | None = None if carry is None else []
    batch = Batch([], records := [], addresses, carried)
    offset = block.offset
    for line in block.lines():
        if line.strip():
            row = parse_object(line, source, account, _place(extent, offset))
            named = None if row is None or carry is None or carry.id_field is None else _carried(row, carry.id_field)
            text = None if row is None else object_text(row, source, account, _place(extent, offset, named))
            if row is not None and text:
                batch.texts.append(text)
                records.append(account.records)
                if addresses is not None:
                    addresses.append(_address(row, source.clean.url_field))
                if carried is not None and carry is not None:
                    carried += carried_lines(carry, [[_carried(row, name)] for name in carry.names], account)
            account.records += 1
        offset += len(line) + 1
    return batch


def _place(extent: Extent, offset: int, named: Any = None) -> Callable[[], Place]:
    return lambda: Place(extent.path, extent.relative, f":{line_number(extent.path, extent, offset)}", named)


def object_text(
    row: dict[str, Any], source: SourceSettings, account: RecordAccount, where: Callable[[], Place]
) -> str | None:
    """The text of an object, or None after the account was told why there is none.

    Raises:
        InputError: there is none, and the policy is "fail".
    """
    parts = []
    for name in source.form.names:
        value = field_value(row, name)
        if value is MISSING:
            seen = ", ".join(list(row)[:_SHOWN_FIELDS]) or "none"
            account.reject("missing_field", where, f"no field {name!r}; fields seen: {seen}", "set text_field to one")
            return None
        if value is None:
            account.reject("null_text", where, f"field {name!r} is null", "leave the record out")
            return None
        if not isinstance(value, str):
            kind = type(value).__name__
            account.reject("not_a_string", where, f"field {name!r} is a {kind}: {value!r}", "name a field of strings")
            return None
        parts.append(value)
    text = source.form.join(parts)
    if not text:
        account.drop("empty", where, "")
    return text


def parse_object(
    line: bytes, source: SourceSettings, account: RecordAccount, where: Callable[[], Place]
) -> dict[str, Any] | None:
    """The object that some bytes hold, or None after the account was told that they hold none.

    Raises:
        InputError: they hold none, and the policy is "fail".
    """
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        row, fault = _look_again(line, source.form.names)
        if fault is not None:
            if row is None or source.invalid_text != "replace":
                account.reject(fault, where, f"{error} in {line[:80]!r}", "mend the line")
                return None
            account.counted["repaired_text"] += 1
    if not isinstance(row, dict):
        kind = type(row).__name__
        account.reject("not_an_object", where, f"a {kind}, {line[:80]!r}", "write one JSON object per line")
        return None
    return row


def _look_again(line: bytes, wanted: Sequence[str]) -> tuple[Any, str | None]:
    """What a line that orjson refuses holds all the same, and its fault.

    Args:
        line: the line.
        wanted: the fields that make up the text; what is wrong in another one is no fault of the record.

    Returns:
        The row, with U+FFFD in place of invalid text, and the name of the fault; None for the row where more than text
        is wrong, None for the fault where nothing is, as orjson refuses some numbers and nestings that JSON allows.
    """
    text = line.decode("utf-8", "replace")
    valid = text.encode("utf-8") == line
    try:
        row = json.loads(text, parse_constant=_no_constant)
        told = row if valid else json.loads(line.decode("utf-8", "surrogateescape"), parse_constant=_no_constant)
        mended = _without_surrogates(row)
    except (ValueError, RecursionError):
        return None, "malformed_json" if valid else "invalid_utf8"
    if isinstance(told, dict):
        values = (field_value(told, name) for name in wanted)
        sound = all(_without_surrogates(value) == value for value in values if value is not MISSING)
    else:
        sound = bool(_without_surrogates(told) == told)
    if sound:
        return mended, None
    return mended, "lone_surrogate" if valid else "invalid_utf8"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _without_surrogates(value: Any) -> Any:
    """`value` with U+FFFD in place of every lone surrogate in its strings."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_without_surrogates(name): _without_surrogates(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(entry) for entry in value]
    return value
