"""Reads JSON lines: one object per line, its text in a named field.

A block of lines is parsed in one list comprehension as long as every line is good; a block with a bad line is gone
through again line by line, so that each fault gets its own reason and line number. Good data never pay for that.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import xxhash

from gristmill.formats.recipe import SourceSettings
from gristmill.pipelines.lines import LineBlock, line_blocks, line_number
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.records import Batch, RecordAccount

__all__ = ["read_jsonl"]

_SHOWN_FIELDS = 20


def read_jsonl(extent: Extent, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """The texts of a JSON lines extent; blank lines are no records.

    Raises:
        InputError: a line is bad and the policy is "fail", or the file is damaged.
    """
    hasher = xxhash.xxh3_128()
    for block in line_blocks(extent, hasher, tolerate_damage=extent.relative in source.expect_damaged):
        batch = _fast(block, source, account) or _slow(block, extent, source, account)
        if batch.texts:
            yield batch
    account.inputs.append((extent.file, hasher.hexdigest(), account.records))


def _fast(block: LineBlock, source: SourceSettings, account: RecordAccount) -> Batch | None:
    """The batch of a block without a fault; None when there is one."""
    lines = block.lines()
    name, extra, separator = source.text_field, source.extra_text_field, source.separator
    loads = orjson.loads
    try:
        if extra is None:
            texts = [loads(line)[name] for line in lines]
        else:
            rows = [loads(line) for line in lines]
            texts = [row[name] + separator + row[extra] for row in rows]
    except (ValueError, KeyError, TypeError):
        return None
    if set(map(type, texts)) != {str} or not all(texts):
        return None
    first = account.records
    account.records += len(texts)
    return Batch(texts, range(first, first + len(texts)))


def _slow(block: LineBlock, extent: Extent, source: SourceSettings, account: RecordAccount) -> Batch:
    batch = Batch([], records := [])
    offset = block.offset
    for line in block.lines():
        if line.strip():
            text = _text(line, source, account, _place(extent, offset))
            if text:
                batch.texts.append(text)
                records.append(account.records)
            account.records += 1
        offset += len(line) + 1
    return batch


def _place(extent: Extent, offset: int) -> Callable[[], str]:
    return lambda: f"{extent.relative}:{line_number(extent.path, extent, offset)}"


def _text(line: bytes, source: SourceSettings, account: RecordAccount, where: Callable[[], str]) -> str | None:
    """The text of one line, or None after the account was told why there is none."""
    row = _parse(line, source, account, where)
    if row is None:
        return None
    parts = []
    for name in (source.text_field, source.extra_text_field):
        if name is None:
            continue
        if name not in row:
            seen = ", ".join(list(row)[:_SHOWN_FIELDS]) or "none"
            account.reject("missing_field", where, f"no field {name!r}; fields seen: {seen}", "set text_field to one")
            return None
        value = row[name]
        if value is None:
            account.reject("null_text", where, f"field {name!r} is null", "leave the record out")
            return None
        if not isinstance(value, str):
            kind = type(value).__name__
            account.reject("not_a_string", where, f"field {name!r} is a {kind}: {value!r}", "name a field of strings")
            return None
        parts.append(value)
    text = source.separator.join(parts)
    if not text:
        account.drop("empty", where, "")
    return text


def _parse(
    line: bytes, source: SourceSettings, account: RecordAccount, where: Callable[[], str]
) -> dict[str, Any] | None:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        row = _repair(line, source, account)
        if row is None:
            reason = "malformed_json" if _is_utf8(line) else "invalid_utf8"
            account.reject(reason, where, f"{error} in {line[:80]!r}", "mend the line")
            return None
    if not isinstance(row, dict):
        kind = type(row).__name__
        account.reject("not_an_object", where, f"a {kind}, {line[:80]!r}", "write one JSON object per line")
        return None
    return row


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _repair(line: bytes, source: SourceSettings, account: RecordAccount) -> Any:
    """The row after invalid text was replaced, if that is the policy and all that is wrong; else None."""
    if source.invalid_text != "replace":
        return None
    try:
        row = json.loads(line.decode("utf-8", "replace"), parse_constant=_no_constant)
    except ValueError:
        return None
    account.counted["repaired_text"] += 1
    return _without_surrogates(row)


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
