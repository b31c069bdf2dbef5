"""Reads text files and Python sources: a document is a whole file, or a line of it.

Bytes become text as UTF-8; a Python source may name another encoding in its first lines, as the language allows.
Line ends are kept as they are except that a document which is a line loses its own.
"""

import codecs
import io
import tokenize  # noqa: TID251 - Python's own module, for the encoding a source declares
from collections.abc import Iterator

import xxhash

from gristmill.formats.recipe import SourceSettings
from gristmill.formats.storage import open_read
from gristmill.pipelines.decompress import DamagedError
from gristmill.pipelines.lines import BLOCK_BYTES, UTF8_MARK, foreign_mark, line_blocks, line_number, open_bytes
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.records import Batch, Place, RecordAccount

__all__ = ["read_text_files", "read_text_lines"]

_NO_SOURCE_ENCODINGS = {"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"}
"""Codecs that Python calls text encodings and that no source file is written in."""


def read_text_files(extents: list[Extent], source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """Whole files, one document each, in batches.

    Raises:
        InputError: a file is no valid text and the policy is "fail", or it is damaged.
    """
    batch, size = Batch([], records := []), 0
    for extent in extents:
        data = _whole(extent, source, account)
        text = _decode_file(data, extent, source, account)
        if text:
            batch.texts.append(text)
            records.append(account.records)
            size += len(data)
        account.records += 1
        if size >= BLOCK_BYTES:
            yield batch
            batch, size = Batch([], records := []), 0
    if batch.texts:
        yield batch


def _whole(extent: Extent, source: SourceSettings, account: RecordAccount) -> bytes:
    hasher = xxhash.xxh3_128()
    blocks: list[bytes] = []
    with open_read(extent.path) as raw:
        stream = open_bytes(raw, extent)
        try:
            while block := stream.read(BLOCK_BYTES):
                hasher.update(block)
                blocks.append(block)
        except DamagedError:
            if extent.relative not in source.expect_damaged:
                raise
    account.inputs.append((extent.file, hasher.hexdigest(), account.records + 1))
    return b"".join(blocks)


def _decode_file(data: bytes, extent: Extent, source: SourceSettings, account: RecordAccount) -> str | None:
    def where() -> Place:
        return Place(extent.path, extent.relative)

    foreign = foreign_mark(data)
    if foreign is not None:
        account.reject("invalid_utf8", where, f"{foreign} text, by its byte-order mark", "convert the file to UTF-8")
        return None
    encoding = "utf-8"
    if extent.format == "python" and not data.startswith(UTF8_MARK):
        try:
            encoding = _source_encoding(data)
        except LookupError as error:
            account.reject("unknown_encoding", where, str(error), "mend or leave out the file")
            return None
    data = data.removeprefix(UTF8_MARK)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if source.invalid_text != "replace":
            account.reject("invalid_utf8", where, str(error), "convert the file to UTF-8")
            return None
        account.counted["repaired_text"] += 1
        text = data.decode(encoding, "replace")
    if not text:
        account.drop("empty", where, "")
    return text


def _source_encoding(data: bytes) -> str:
    """The encoding that a Python source declares in its first two lines, UTF-8 if none.

    Raises:
        LookupError: there is no such encoding, or none that can hold a source which says so in ASCII.
    """
    try:
        declared = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError as error:
        if "unknown encoding" in str(error):
            raise LookupError(str(error)) from error
        return "utf-8"
    name = codecs.lookup(declared).name
    if name in _NO_SOURCE_ENCODINGS or b" # x".decode(name, "replace") != " # x":
        raise LookupError(f"unknown encoding: {declared}")
    return declared


def read_text_lines(extent: Extent, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """Lines, one document each; empty lines are no records.

    Raises:
        InputError: a line is no valid text and the policy is "fail", or the file is damaged.
    """
    hasher = xxhash.xxh3_128()
    for block in line_blocks(extent, hasher, tolerate_damage=extent.relative in source.expect_damaged):
        batch = Batch([], records := [])
        offset = block.offset
        for line in block.lines():
            content = line.removesuffix(b"\r")
            if content:
                text = _decode_line(content, offset, extent, source, account)
                if text:
                    batch.texts.append(text)
                    records.append(account.records)
                account.records += 1
            offset += len(line) + 1
        if batch.texts:
            yield batch
    account.inputs.append((extent.file, hasher.hexdigest(), account.records))


def _decode_line(
    line: bytes, offset: int, extent: Extent, source: SourceSettings, account: RecordAccount
) -> str | None:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        if source.invalid_text == "replace":
            account.counted["repaired_text"] += 1
            return line.decode("utf-8", "replace")

        def where() -> Place:
            return Place(extent.path, extent.relative, f":{line_number(extent.path, extent, offset)}")

        account.reject("invalid_utf8", where, str(error), "convert the file to UTF-8")
        return None
