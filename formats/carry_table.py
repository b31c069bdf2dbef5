"""What a source carries along with its texts: an id and other fields, as the recipe names them."""

from dataclasses import dataclass

from gristmill.formats.settings_table import SettingsTable

__all__ = ["Carry", "ID_KEY", "read_carry"]

ID_KEY = "id"
"""What the value of `id_field` is called wherever it is carried to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carry:
    """Fields that are kept beside a document.

    Attributes:
        id_field: field that names the document, or None.
        fields: other fields.
    """

    id_field: str | None
    fields: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The fields, the id first."""
        return self.fields if self.id_field is None else (self.id_field, *self.fields)

    @property
    def keys(self) -> tuple[str, ...]:
        """What their values are called, in the order of `names`."""
        return self.fields if self.id_field is None else (ID_KEY, *self.fields)

    def setting(self, name: str) -> str:
        """The key of the recipe that names a field."""
        return "id_field" if name == self.id_field else "carry"


def read_carry(table: SettingsTable) -> Carry | None:
    """Reads `id_field` and `carry` of a source; None where neither is given."""
    id_field = table.take("id_field", str, None, rule=bool, says="the name of a field")
    fields = table.strings("carry")
    for name in sorted({name for name in fields if fields.count(name) > 1}):
        table.note("carry", f'names "{name}" twice; name it once')
    if id_field is not None and id_field in fields:
        table.note("carry", f'names "{id_field}", which id_field names already; leave it out of one')
    elif id_field is not None and ID_KEY in fields:
        table.note(
            "carry", f'names "{ID_KEY}", which is what the value of id_field is called; leave out one of the two'
        )
    return Carry(id_field=id_field, fields=fields) if id_field is not None or fields else None
