"""The one-line grammar that names data made by anyone: where it lies, where its indices lie, and its share of a blend.

    entries  :=  entry {";" entry} [";"]
    entry    :=  [index_folder "|"] path {":" path} ["," weight]

A path is the prefix of a `.bin/.idx` pair, a folder of pairs, or raw token shards by their JSON manifest; several
paths in one entry are one data set. It is the grammar of MaxText's `mmap_npy` reader and, without folders, of its
`mmap` reader, without their traps: one weighted entry, a closing ``;`` and URLs all work. One line of text is less
clear than a table of settings, and it is what the launch scripts of people who move here already hold.
"""

import math
import re
from dataclasses import dataclass

from gristmill.formats.errors import SettingsError

__all__ = ["DataEntry", "parse_data_spec"]

_SEPARATOR = re.compile(r"(?<!:):(?!:|//)")
_NUMERIC = re.compile(r"[+-]?([0-9.]|nan|inf)", re.IGNORECASE)
_FORM = "'[index_folder|]path[:path...][,weight]', entries separated by ';'"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataEntry:
    """One member of a blend, or all of the data.

    Attributes:
        paths: paths or URLs, at least one; together they are one data set.
        index_folder: folder or URL that keeps the indices of this entry; None where none is named.
        weight: share in the blend, finite and not negative, in any unit; None where none is named.
    """

    paths: tuple[str, ...]
    index_folder: str | None = None
    weight: float | None = None


def parse_data_spec(text: str) -> tuple[DataEntry, ...]:
    """The entries that a line of text names, in its order.

    What stands behind the last comma of an entry is its weight when it looks like a number and holds no ``/``; with
    several entries either all have a weight or none has. Neither ``://`` nor ``::`` separates paths, so
    URLs can be written. Spaces around entries, paths and weights do not count.

    Args:
        text: the line, see the module's docstring.

    Raises:
        SettingsError: the text breaks a rule; the message names the entry by its number, the text and the rule.

    Examples:
        >>> [entry.weight for entry in parse_data_spec("idx/web|gs://bucket/web,0.7; idx/code|code_a:code_b,0.3;")]
        [0.7, 0.3]
    """
    parts = text.split(";")
    if len(parts) > 1 and not parts[-1].strip():
        parts.pop()
    if not any(part.strip() for part in parts):
        raise SettingsError(f"data {text!r}: names no data; write {_FORM}")
    entries = tuple(_parse_entry(text, number, part.strip()) for number, part in enumerate(parts, 1))
    without = [number for number, entry in enumerate(entries, 1) if entry.weight is None]
    if without and len(without) < len(entries):
        raise SettingsError(
            f"{_where(text, without[0])} {parts[without[0] - 1].strip()!r} has no weight, while others have one; write "
            "'path,weight' for every entry, or no weight at all to draw in proportion to length"
        )
    if not without and sum(entry.weight or 0.0 for entry in entries) <= 0.0:
        raise SettingsError(f"data {text!r}: every weight is 0, so nothing would be drawn; give one a value above 0")
    return entries


def _where(text: str, number: int) -> str:
    return f"data {text!r}: entry {number}"


def _parse_entry(text: str, number: int, part: str) -> DataEntry:
    where = _where(text, number)
    if not part:
        raise SettingsError(f"{where} is empty; drop one ';' or write {_FORM}")
    place, comma, last = part.rpartition(",")
    weight = None
    if comma and (_NUMERIC.match(last.strip()) or not last.strip()) and "/" not in last:
        weight = _weight(where, last.strip())
        part = place.strip()
        if not part:
            raise SettingsError(f"{where} is a weight without data; write {_FORM}")
    elif last.strip().startswith("-"):
        raise SettingsError(f"{where}: weight {last.strip()!r} is no number; write for example 0.3")
    folder, bar, rest = part.partition("|")
    if bar and "|" in rest:
        raise SettingsError(
            f"{where} {part!r} holds {part.count('|')} '|'; one separates the index folder from the data"
        )
    if bar and not folder.strip():
        raise SettingsError(f"{where} {part!r} names no index folder before '|'; name one, or drop the '|'")
    paths = [path.strip() for path in _SEPARATOR.split(rest if bar else part)]
    if not all(paths):
        what = "no data behind '|'" if paths == [""] else "an empty path beside ':'"
        raise SettingsError(f"{where} {part!r} has {what}; write {_FORM}")
    return DataEntry(paths=tuple(paths), index_folder=folder.strip() if bar else None, weight=weight)


def _weight(where: str, text: str) -> float:
    if not text:
        raise SettingsError(f"{where} ends with ',' and has no weight behind it; write one or drop the ','")
    try:
        weight = float(text.replace("_", "?"))  # Python's own spelling of 1_000 is no weight
    except ValueError as error:
        raise SettingsError(f"{where}: weight {text!r} is no number; write for example 0.3") from error
    if not math.isfinite(weight):
        raise SettingsError(f"{where}: weight {text} is not finite; write for example 0.3")
    if weight < 0:
        raise SettingsError(f"{where}: weight {text} is negative; 0 leaves an entry out")
    return weight
