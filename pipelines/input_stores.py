"""The stores that inputs lie in: which package reads a URL, and what the web says of a file.

An address of the web is one file, never a pattern: a question mark in it begins a query. What identifies the file is
its ETag, else its length and date; a server that tells none of them, or that serves no byte ranges, is refused while
planning, since what workers read could not be told apart or not be cut.
"""

import posixpath
import re
import urllib.parse
from typing import Any

import fsspec

from gristmill.formats.errors import SettingsError, StorageError
from gristmill.formats.resuming import web_length

__all__ = ["open_store", "web_facts", "web_name", "web_path"]


def open_store(url: str) -> tuple[Any, str]:
    """The file system behind a URL, and the path in it.

    Raises:
        SettingsError: the package that reads such URLs is not installed, or nothing reads them.
        StorageError: the URL cannot be read.
    """
    protocol = re.split("::|://", url, maxsplit=1)[0]
    try:
        file_system, inner = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise SettingsError(
            f"{url}: {protocol}:// is read through a package that is not installed: {error}; {_install(protocol)}"
        ) from error
    except ValueError as error:
        if protocol not in fsspec.available_protocols():
            known = "gs://, s3://, abfs://, https:// and hf:// are read, and others that fsspec knows"
            raise SettingsError(f"{url}: nothing reads {protocol}://; {known}") from error
        raise StorageError(f"{url}: cannot be opened: {error}") from error
    return file_system, inner


def _install(protocol: str) -> str:
    package = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}.get(protocol)
    return f"pip install {package}" if package else "install it where the run and its workers are"


def web_path(url: str) -> str:
    """The path of an address of the web, without query."""
    return urllib.parse.unquote(urllib.parse.urlsplit(url).path)


def web_name(url: str) -> str:
    """What a file of the web is called: the last part of its address."""
    return posixpath.basename(web_path(url).rstrip("/")) or "index"


def web_facts(url: str) -> tuple[int, str]:
    """Size and checksum of a file of the web.

    Raises:
        StorageError: the server does not answer, or does not tell what is needed.
    """
    size, headers = web_length(url)
    for name in ("etag", "last-modified"):
        if headers.get(name):
            return size, f"{name}:{headers[name]}:{size}"
    return size, f"length:{size}"
