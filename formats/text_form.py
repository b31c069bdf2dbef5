"""How the text of a record is put together from its fields: one field, two, or a template of several.

A template is text with field names in braces, ``"{question}\\n\\n{answer}"``; doubled braces stand for themselves. A
name with dots leads into nested values, unless a field is called just so. Nothing is formatted: only text is put in, as
it is.
"""

import functools
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["field_value", "MISSING", "parse_template", "text_form", "TextForm"]

MISSING = object()
"""What `field_value` gives where there is no such field."""


@dataclass(frozen=True, slots=True)
class TextForm:
    """A text with holes.

    Attributes:
        names: the fields, in the order in which their values are put in; one may occur twice.
        literals: the text before each value, and that behind the last; one more than `names`.
    """

    names: tuple[str, ...]
    literals: tuple[str, ...]

    def join(self, values: Sequence[str]) -> str:
        """The text.

        Args:
            values: one for each name.

        Raises:
            TypeError: a value is no text.
        """
        parts = [self.literals[0]]
        for value, literal in zip(values, self.literals[1:], strict=True):
            parts += (value, literal)
        return "".join(parts)


def parse_template(template: str) -> TextForm:
    """Reads a template.

    Raises:
        ValueError: braces do not match, a name is empty, asks for a format, or there is none at all.
    """
    names: list[str] = []
    literals = [""]
    for literal, name, form, conversion in string.Formatter().parse(template):
        literals[-1] += literal
        if name is None:
            continue
        if not name:
            raise ValueError("braces without a field's name; double them to mean braces")
        if form or conversion:
            raise ValueError(f"{{{name}}} asks for a format; values are put in as they are")
        names.append(name)
        literals.append("")
    if not names:
        raise ValueError("no field's name in braces")
    return TextForm(tuple(names), tuple(literals))


@functools.lru_cache(maxsize=256)
def text_form(text_field: str, extra_text_field: str | None, separator: str, template: str | None) -> TextForm:
    """The form that a source's settings ask for.

    Args:
        text_field: the only or first field.
        extra_text_field: a second one, or None.
        separator: what joins the two.
        template: takes the place of all three where it is given.
    """
    if template is not None:
        return parse_template(template)
    if extra_text_field is None:
        return TextForm((text_field,), ("", ""))
    return TextForm((text_field, extra_text_field), ("", separator, ""))


def field_value(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field of a record, `MISSING` where there is none."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value
