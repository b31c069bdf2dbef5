"""Reads web archives: the text of WET records, and of the pages in WARC records once their HTML is taken away.

A record that holds no page (an image, a redirect, an empty answer, a body that is packed in a way not read here or was
cut short) is left out by a rule and counted, since an archive is full of them; text that cannot be decoded is a bad
record. An archive is one work item: nothing but reading it says
where a record begins.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import xxhash

from gristmill.formats.errors import InputError, MissingExtraError
from gristmill.formats.recipe import SourceSettings
from gristmill.formats.storage import open_read
from gristmill.pipelines.carried import carried_lines
from gristmill.pipelines.decompress import DamagedError
from gristmill.pipelines.lines import BLOCK_BYTES, open_bytes
from gristmill.pipelines.plan import Extent
from gristmill.pipelines.records import Batch, Place, RecordAccount

if TYPE_CHECKING:
    from warcio.recordloader import ArcWarcRecord

__all__ = ["read_warc"]

_END = b"\r\n\r\n"
_HEADERS = {"id": "WARC-Record-ID", "url": "WARC-Target-URI", "date": "WARC-Date"}
_HTML = ("text/html", "application/xhtml+xml")
_UNREAD_PACKINGS = {"br", "zstd", "x-gzip", "compress", "x-compress", "dcb", "dcz"}


def read_warc(extent: Extent, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """The texts of an archive: of its `conversion` records as they are, of its `response` and `resource` records the
    text of the page.

    Raises:
        InputError: the file is damaged, cut short or no archive, or a record is bad and the policy is "fail".
        MissingExtraError: the libraries of the extra `web` are not installed.
    """
    try:
        from warcio.archiveiterator import ArchiveIterator
        from warcio.exceptions import ArchiveLoadFailed
    except ImportError as error:
        raise MissingExtraError("warcio", "web", 'sources of the format "warc"') from error
    tolerant = extent.relative in source.expect_damaged
    with open_read(extent.path) as raw:
        stream = _Bytes(open_bytes(raw, extent), tolerant=tolerant)
        batch, records, size = *_empty(source), 0
        try:
            for record in ArchiveIterator(stream):
                if record.rec_type not in {"conversion", "response", "resource"}:
                    continue
                where = _place(extent, record, source)
                data, fault = _body(record)
                if tolerant and (stream.ended or not _is_whole(record)):
                    break  # the archive was cut within it
                text = _text(record, data, fault, where, source, account)
                if text:
                    batch.texts.append(text)
                    records.append(account.records)
                    if batch.addresses is not None:
                        batch.addresses.append(record.rec_headers.get_header("WARC-Target-URI"))
                    if batch.carried is not None and source.carry is not None:
                        values = [[_header(record, name)] for name in source.carry.names]
                        batch.carried += carried_lines(source.carry, values, account)
                    size += len(text)
                account.records += 1
                if size >= BLOCK_BYTES:
                    yield batch
                    batch, records, size = *_empty(source), 0
        except (ArchiveLoadFailed, ValueError) as error:
            raise InputError(f"{extent.path}: no valid web archive: {error}; fetch it again or leave it out") from error
        if stream.last != _END and not tolerant:
            raise InputError(
                f"{extent.path}: cut short: the last record does not end as one must; fetch it again, or list the file "
                "under expect_damaged to use what is there"
            )
    if batch.texts:
        yield batch
    account.inputs.append((extent.file, stream.hasher.hexdigest(), account.records))


def _empty(source: SourceSettings) -> tuple[Batch, list[int]]:
    """A batch without texts, which takes addresses and headers where the source asks for them, and its records."""
    records: list[int] = []
    addresses: list[str | None] | None = [] if source.clean.url_lists else None
    return Batch([], records, addresses, None if source.carry is None else []), records


def _header(record: "ArcWarcRecord", name: str) -> str | None:
    """A header of an archive's record, by its name or one of the short ones."""
    value: str | None = record.rec_headers.get_header(_HEADERS.get(name, name))
    return value


def _body(record: "ArcWarcRecord") -> tuple[bytes, tuple[str, str] | None]:
    """What a record holds, unpacked as the server packed it; or the reason and the finding where that cannot be."""
    headers = record.http_headers
    packing = (headers.get_header("Content-Encoding") if headers is not None else None) or ""
    packing = packing.strip().lower()
    if packing in _UNREAD_PACKINGS or "," in packing:
        record.raw_stream.read()
        return b"", ("content_encoding", packing)
    stream = record.content_stream()
    data = stream.read()
    codec = getattr(stream, "decompressor", None)  # none where the body is not packed, whatever its head says
    if data and codec is not None and not codec.eof:
        return b"", ("malformed_body", f"{packing}, cut short or damaged")
    return data, None


def _is_whole(record: "ArcWarcRecord") -> bool:
    return not getattr(record.raw_stream, "limit", 0)


def _place(extent: Extent, record: "ArcWarcRecord", source: SourceSettings) -> Callable[[], Place]:
    name = _header(record, "id") or _header(record, "url")
    id_field = None if source.carry is None else source.carry.id_field
    named = None if id_field is None else _header(record, id_field)
    return lambda: Place(extent.path, extent.relative, f": record {name}", named)


def _text(
    record: "ArcWarcRecord",
    data: bytes,
    fault: tuple[str, str] | None,
    where: Callable[[], Place],
    source: SourceSettings,
    account: RecordAccount,
) -> str | None:
    kind = "text/plain"
    if record.rec_type != "conversion":
        headers = record.http_headers
        status = headers.get_statuscode() if headers is not None else "200"
        if status != "200":
            account.drop("http_status", where, status)
            return None
        kind = (headers.get_header("Content-Type") if headers is not None else None) or (
            record.rec_headers.get_header("Content-Type") or ""
        )
        kind = kind.partition(";")[0].strip().lower()
    if kind != "text/plain" and kind not in _HTML:
        account.drop("not_a_page", where, kind)
        return None
    if fault is not None:
        account.drop(fault[0], where, fault[1])
        return None
    if kind == "text/plain":
        text = _plain(data, where, source, account)
    else:
        text = _page_text(data, main=source.html == "main")
    if text == "":
        account.drop("empty", where, "")
    return text


def _plain(data: bytes, where: Callable[[], Place], source: SourceSettings, account: RecordAccount) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if source.invalid_text != "replace":
            account.reject("invalid_utf8", where, str(error), "leave the record out")
            return None
        account.counted["repaired_text"] += 1
        return data.decode("utf-8", "replace")


def _page_text(data: bytes, *, main: bool) -> str:
    """The text of an HTML page in whatever encoding it says it is, or looks to be."""
    try:
        from resiliparse.extract.html2text import extract_plain_text
        from resiliparse.parse.encoding import bytes_to_str, detect_encoding
    except ImportError as error:
        raise MissingExtraError("resiliparse", "web", 'sources of the format "warc"') from error
    page = bytes_to_str(data, detect_encoding(data, html5_compatible=True) or "utf-8")
    return str(extract_plain_text(page, main_content=main, alt_texts=False)).strip()


class _Bytes:
    """The decompressed bytes of an archive; hashes what is read.

    Attributes:
        hasher: over all bytes so far.
        last: the last four bytes so far.
        ended: whether more was asked for than there is.
    """

    def __init__(self, raw: Any, *, tolerant: bool) -> None:
        self.hasher = xxhash.xxh3_128()
        self.last = b""
        self.ended = False
        self._raw = raw
        self._tolerant = tolerant

    def read(self, size: int = -1) -> bytes:
        """The next bytes, up to `size` of them."""
        try:
            data: bytes = self._raw.read(size)
        except DamagedError:
            if not self._tolerant:
                raise
            data = b""
        self.ended = not data
        self.hasher.update(data)
        self.last = (self.last + data[-4:])[-4:]
        return data
