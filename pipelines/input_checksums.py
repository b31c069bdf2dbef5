"""What identifies the content of an input file: a hash of all its bytes on a disk, the store's own checksum elsewhere.

Local files are read for it once more than the work needs, at the speed of memory where they are read soon after;
others cost a question and no byte.
"""

import os
from typing import Any

import xxhash

from gristmill.formats.errors import InputError, StorageError
from gristmill.formats.storage import local_name, named
from gristmill.pipelines.input_formats import HEAD_BYTES
from gristmill.pipelines.input_stores import open_store

__all__ = ["hash_of", "stored_checksum"]

_CHECKSUMS = ("crc32c", "md5Hash", "md5", "sha256", "ETag", "etag")
_HASH_BYTES = 8 << 20


def hash_of(path: str) -> tuple[int, str, bytes]:
    """Size of a local file, what identifies its content, and its first bytes."""
    hasher, head, size = xxhash.xxh3_128(), b"", 0
    with named(path, "be examined"), open(local_name(path), "rb") as file:
        step = min(_HASH_BYTES, os.fstat(file.fileno()).st_size + 1)
        while True:
            block = file.read(step)
            hasher.update(block)
            head, size = head or block[:HEAD_BYTES], size + len(block)
            if len(block) < step:
                return size, f"xxh3:{hasher.hexdigest()}", head


def stored_checksum(path: str, size: int) -> str:
    """What a store says of an object's content.

    Raises:
        InputError: the store unpacks the object on the way, so that its size is not that of what is read.
        StorageError: the store does not answer.
    """
    try:
        file_system, inner = open_store(path)
        facts: dict[str, Any] = file_system.info(inner)
        checksum = next((f"{name}:{facts[name]}" for name in _CHECKSUMS if facts.get(name)), None)
        checksum = checksum or f"store:{file_system.checksum(inner)}"
    except (OSError, ValueError, NotImplementedError) as error:
        raise StorageError(f"{path}: cannot be examined: {error}") from error
    encoding = facts.get("contentEncoding")
    if encoding:
        raise InputError(
            f"{path}: is stored with Content-Encoding: {encoding}, so that the store unpacks it on the way and what is "
            f"read has another size than the {size} bytes it tells; clear that header of the object, the packed file "
            "is then read as it is"
        )
    return checksum
