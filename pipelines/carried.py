"""What records carry along: fields as the lines of JSON in which they travel from a reader to the shard's side.

A line is made where a record is read, once, so that no later step needs to know what is in it. Whatever type a field
has becomes JSON; what JSON has no form for (dates, decimals, bytes) becomes a string.
"""

import json
from collections.abc import Sequence
from typing import Any

import orjson

from gristmill.formats.carry_table import ID_KEY, Carry
from gristmill.formats.recipe import SourceSettings
from gristmill.pipelines.json_values import json_value, text_of
from gristmill.pipelines.records import RecordAccount

__all__ = ["carried_id", "carried_id_text", "carried_lines", "mended", "named_fields"]

_OPTIONS = orjson.OPT_NON_STR_KEYS
_ID_START = f'{{"{ID_KEY}":'
_decode_at = json.JSONDecoder().raw_decode


def named_fields(source: SourceSettings) -> dict[str, str]:
    """Every field that makes up a source's texts or is carried along, and the key of the recipe that names it."""
    carry = source.carry
    carried = {} if carry is None else {name: carry.setting(name) for name in carry.names}
    texts = {source.text_field: "text_field", source.extra_text_field: "extra_text_field"}
    if source.template is not None:
        texts = dict.fromkeys(source.form.names, "template")
    return carried | {name: setting for name, setting in texts.items() if name is not None}


def carried_lines(carry: Carry, columns: Sequence[Sequence[Any]], account: RecordAccount) -> list[bytes]:
    """One JSON object per document.

    Args:
        carry: what is carried.
        columns: for each field the values of all documents; None where a document has none.
        account: takes the count of those that have none.
    """
    for key, column in zip(carry.keys, columns, strict=True):
        without = sum(value is None for value in column)
        if without:
            account.counted[f"without.{key}"] += without
    keys = carry.keys
    return [_line(dict(zip(keys, values, strict=True))) for values in zip(*columns, strict=True)]


def _line(values: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(values, text_of, _OPTIONS)
    except TypeError:  # a lone surrogate, an integer of more than 64 bits, or a key of a kind that JSON has not
        return json.dumps(json_value(values), ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def mended(value: str) -> str:
    """Text that was decoded with `surrogateescape`, with U+FFFD in place of what was no UTF-8."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def carried_id(line: bytes) -> Any:
    """The id in a line; None where there is none."""
    return json.loads(line).get(ID_KEY)


def carried_id_text(line: bytes) -> str | None:
    """The id in a line as it stands there, a JSON text, where an id comes first; None where there is none."""
    text = line.decode("utf-8")
    if not text.startswith(_ID_START):
        return None
    value, end = _decode_at(text, len(_ID_START))
    return None if value is None else text[len(_ID_START) : end]
