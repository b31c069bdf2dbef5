"""Reads TFRecord files of `tf.train.Example`, JSON or text, compressed or not.

A file has no index, so only reading it from its start says where a record begins, and a file is one work item; what is
written as many files is read in parallel.
"""

import functools
from collections.abc import Iterator
from typing import Any

import xxhash

from gristmill.formats.recipe import SourceSettings
from gristmill.formats.storage import open_read
from gristmill.pipelines.decompress import DamagedError
from gristmill.pipelines.lines import open_bytes
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.record_forms import RecordTexts
from gristmill.pipelines.records import Batch, RecordAccount
from gristmill.pipelines.tfrecord_file import frames

__all__ = ["read_tfrecord"]


def read_tfrecord(extent: Extent, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """The texts of a file.

    Raises:
        InputError: a record is bad and the policy is "fail", no record has the field, or the file is damaged.
        MissingExtraError: the library of the extra `records` is not installed.
    """
    texts = RecordTexts(extent, source, account)
    with open_read(extent.path) as raw:
        stream = _Hashed(open_bytes(raw, extent))
        records = frames(stream, extent.path)
        number = 0
        while True:
            try:
                offset, data = next(records)
            except StopIteration:
                break
            except DamagedError:
                if extent.relative not in source.expect_damaged:
                    raise
                break
            batch = texts.add(data, functools.partial(_place, number, offset))
            number += 1
            if batch is not None:
                yield batch
    rest = texts.rest()
    if rest is not None:
        yield rest
    account.inputs.append((extent.file, stream.hasher.hexdigest(), account.records))


def _place(number: int, offset: int) -> str:
    return f": record {number}, counted from 0, at byte {offset}"


class _Hashed:
    """The bytes of a file; hashes what is read.

    Attributes:
        hasher: over all bytes so far.
    """

    def __init__(self, raw: Any) -> None:
        self.hasher = xxhash.xxh3_128()
        self._raw = raw

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        data: bytes = self._raw.read(size)
        self.hasher.update(data)
        return data
