"""Digests of settings and facts: the same meaning gives the same digest on any machine and Python version.

A value is written as canonical JSON (sorted keys, no spaces, ASCII, no NaN) and hashed with SHA-256. That trades a
little speed against a custom encoding for digests that anyone can recompute with standard tools.
"""

import dataclasses
import hashlib
import json
from typing import Any

__all__ = ["canonical_json", "digest", "ORDER_VERSION", "pretty_json", "short"]

_quoted = json.encoder.encode_basestring

ORDER_VERSION = 1
"""Version of the rules that turn data and settings into an order of samples; raised only when bytes change."""


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
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
        rows = [_indented(entry, inner) for entry in value]
        return f"[{inner}{f',{inner}'.join(rows)}{line}]" if rows else "[]"
    if value is None or isinstance(value, int | float):
        return json.dumps(value, allow_nan=False)
    return _indented(_plain(value), line)


def _name(key: Any) -> str:
    return _quoted(key) if isinstance(key, str) else f'"{json.dumps(key, allow_nan=False)}"'


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def short(full_digest: str) -> str:
    """The first 12 digits of a digest: enough for a file name or a message."""
    return full_digest[:12]
