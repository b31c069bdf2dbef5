"""Reads ArrayRecord files of `tf.train.Example`, JSON or text, chunk by chunk.

Memory follows the chunk, of one record as such files are written today, of many in older ones. The digest of what was
read is over the records themselves, so it is the same however a file was packed or cut.
"""

import functools
from collections.abc import Iterator

import xxhash

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import SourceSettings
from gristmill.formats.storage import file_size
from gristmill.pipelines.array_record_file import open_array_record, read_array_index
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.record_forms import RecordTexts
from gristmill.pipelines.records import Batch, RecordAccount

__all__ = ["read_array_record"]


def read_array_record(extent: Extent, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """The texts of some chunks.

    Raises:
        InputError: a record is bad and the policy is "fail", no record has the field, or the file is damaged.
        MissingExtraError: the library of the extra `records` is not installed.
        StorageError: the file cannot be read.
    """
    texts = RecordTexts(extent, source, account)
    hasher = xxhash.xxh3_128()
    size = file_size(extent.path)
    index = read_array_index(extent.path, size)
    first, last, ranges = 0, None, [(0, size)]
    if index is not None and not extent.whole:
        if extent.end >= len(index.records):
            raise InputError(f"{extent.path}: has {len(index.records) - 1} chunks, fewer than when the run was planned")
        first, last = int(index.records[extent.start]), int(index.records[extent.end])
        ranges = [(int(index.bounds[extent.start]), int(index.bounds[extent.end])), (int(index.bounds[-1]), size)]
    with open_array_record(extent.path, size, ranges) as reader:
        last = reader.num_records() if last is None else last
        if first < last:
            reader.seek(first)
        for number in range(first, last):
            try:
                data = reader.read()
            except (RuntimeError, ValueError, IndexError) as error:
                raise InputError(
                    f"{extent.path}{_place(number)}: damaged ArrayRecord data: {error}; fetch it again"
                ) from error
            hasher.update(len(data).to_bytes(8, "little"))
            hasher.update(data)
            batch = texts.add(data, functools.partial(_place, number))
            if batch is not None:
                yield batch
    rest = texts.rest()
    if rest is not None:
        yield rest
    account.inputs.append((extent.file, hasher.hexdigest(), account.records))


def _place(number: int) -> str:
    return f": record {number}, counted from 0"
