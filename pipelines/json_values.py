"""Values of records as JSON has a form for them: what it lacks (dates, decimals, bytes) becomes a string."""

import math
from typing import Any

__all__ = ["json_value", "text_of"]


def text_of(value: Any) -> str:
    """A value that JSON has no form for, as a string; bytes as UTF-8, with U+FFFD in place of what is none."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def json_value(value: Any) -> Any:
    """A value as JSON has a form for it: a number that is none becomes null, a lone surrogate U+FFFD."""
    if isinstance(value, dict):
        return {str(json_value(name)): json_value(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, int) else text_of(value)
