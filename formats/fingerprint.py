"""Digests of settings and facts: the same meaning gives the same digest on any machine and Python version.

A value is written as canonical JSON (sorted keys, no spaces, ASCII, no NaN) and hashed with SHA-256. That trades a
little speed against a custom encoding for digests that anyone can recompute with standard tools.
"""

import dataclasses
import functools
import hashlib
import json
from typing import Any

__all__ = ["canonical_json", "digest", "ORDER_VERSION", "pretty_json", "short"]

_quoted = json.encoder.encode_basestring
_SCALARS = frozenset({str, int, float, bool, type(None)})
_BETWEEN = "\x01"
_FLAT = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(_BETWEEN, ": "))

ORDER_VERSION = 1
"""Version of the rules that turn data and settings into an order of samples; raised only when bytes change."""


@functools.cache
def _names(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass; None for any other class."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def _plain(value: Any) -> Any:
    names = _names(value.__class__)
    if names is not None:
        return {name: getattr(value, name) for name in names}
    raise TypeError(f"{type(value).__name__} has no canonical JSON form: use dict, list, str, int, float, bool or None")


def canonical_json(value: Any) -> bytes:
    """The one JSON text of a value: sorted keys, no spaces, ASCII only.

    Raises:
        ValueError: the value holds a NaN or an infinity.
        TypeError: the value holds something that JSON has no form for.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain).encode("ascii")


def pretty_json(value: Any) -> bytes:
    """The same value for people: sorted keys, two spaces, a final newline, UTF-8. Equally deterministic.

    What UTF-8 cannot hold (a file name of other bytes) is written as JSON's own escape and reads back the same.
    """
    text = _indented(value, "\n")
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _indented(value: Any, line: str) -> str:
    """What `json.dumps` gives with two spaces and sorted keys, which is slow, and many files make long texts."""
    if isinstance(value, str):
        return _quoted(value)
    if type(value) is int:  # and no bool
        return str(value)
    inner = line + "  "
    if isinstance(value, dict):
        rows = [f"{_name(key)}: {_indented(value[key], inner)}" for key in sorted(value)]
        return f"{{{inner}{f',{inner}'.join(rows)}{line}}}" if rows else "{}"
    if isinstance(value, list | tuple):
        flat = _flat(value, inner)
        rows = [_indented(entry, inner) for entry in value] if flat is None else [flat]
        return f"[{inner}{f',{inner}'.join(rows)}{line}]" if rows else "[]"
    if value is None or isinstance(value, int | float):
        return json.dumps(value, allow_nan=False)
    return _indented(_plain(value), line)


def _flat(entries: list[Any] | tuple[Any, ...], line: str) -> str | None:
    """The rows of a list of dictionaries, or of lists, that hold nothing but scalars; None for any other list.

    They are encoded in one go. What stands between two values then is a character that no JSON text has anywhere else,
    so the places for the ends of lines are found by it.
    """
    first = entries[0] if entries else None
    kind: Any = type(first)
    if kind not in (dict, list) and _names(kind) is None:
        return None
    rows = entries if kind in (dict, list) else [_plain(entry) if type(entry) is kind else entry for entry in entries]
    if kind is list:
        flat = all(type(row) is list and row and _SCALARS.issuperset(map(type, row)) for row in rows)
        opening, closing = "[", "]"
    else:
        flat = all(type(row) is dict and row and _SCALARS.issuperset(map(type, row.values())) for row in rows)
        opening, closing = "{", "}"
    if not flat:
        return None
    inner = line + "  "
    text = _FLAT.encode(rows)[2:-2].replace(f"{closing}{_BETWEEN}{opening}", f"{line}{closing},{line}{opening}{inner}")
    return f"{opening}{inner}{text.replace(_BETWEEN, ',' + inner)}{line}{closing}"


def _name(key: Any) -> str:
    return _quoted(key) if isinstance(key, str) else f'"{json.dumps(key, allow_nan=False)}"'


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def short(full_digest: str) -> str:
    """The first 12 digits of a digest: enough for a file name or a message."""
    return full_digest[:12]
