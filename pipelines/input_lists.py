"""Lists of inputs: a text file that names what a source reads, one path or URL a line."""

import posixpath
from collections.abc import Iterator, Sequence

from gristmill.formats.errors import SettingsError, StorageError
from gristmill.formats.storage import exists, is_local, read_bytes

__all__ = ["expand_lists"]

_SHOWN_BYTES = 80


def expand_lists(patterns: Sequence[str], key: str) -> Iterator[str]:
    """The patterns of a source, with what a list holds in place of ``@list``.

    A line is what `files` may hold: a path, folder, glob or URL; a relative path counts from the list's own folder.
    Blank lines and those that begin with ``#`` are skipped. A file that is really called ``@...`` is meant literally.

    Args:
        patterns: the source's `files`.
        key: their path in the recipe, for messages.

    Raises:
        SettingsError: a list cannot be read, is no UTF-8, names another list, or names nothing.
    """
    for pattern in patterns:
        if not pattern.startswith("@") or (is_local(pattern) and exists(pattern)):
            yield pattern
        else:
            yield from _lines(pattern[1:], key)


def _lines(path: str, key: str) -> list[str]:
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except StorageError as error:
        raise SettingsError(f'{key}: the list "@{path}" cannot be read: {error}') from error
    except UnicodeDecodeError as error:
        raise SettingsError(f'{key}: the list "@{path}" is no UTF-8 text: {error}') from error
    found = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("@"):
            raise SettingsError(f"{key}: {path}:{number}: names a list, {line[:_SHOWN_BYTES]}; lists are not nested")
        found.append(line if not is_local(line) or line.startswith("file:") else posixpath.join(_folder(path), line))
    if not found:
        raise SettingsError(f'{key}: the list "@{path}" names nothing: no line but blank ones and comments')
    return found


def _folder(path: str) -> str:
    return path.rpartition("/")[0] + "/" if "/" in path else ""
