"""What a source's text is made of, as the recipe says it: which fields, and how they are put together."""

from gristmill.formats.settings_table import SettingsTable
from gristmill.formats.text_form import parse_template

__all__ = ["read_template"]


def read_template(table: SettingsTable) -> str | None:
    """Reads `template` of a source; None where it is not given."""
    template = table.take("template", str)
    if template is None:
        return None
    try:
        parse_template(template)
    except ValueError as error:
        table.note("template", f"is {template!r}: {error}")
    for name in ("text_field", "extra_text_field", "separator"):
        if table.has(name):
            table.note(name, "says how the text is made up, and so does template; give one of them")
    return template
