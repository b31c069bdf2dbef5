"""Web archives: pages become text, what is no page is counted, damage is named."""

import gzip
import io
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("warcio", reason="the extra `web` is not installed")
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import parse_recipe
from gristmill.pipelines.plan import plan_run
from gristmill.pipelines.read import read_split
from gristmill.pipelines.records import RecordAccount

pytestmark = [  # of the library's writer, which these archives are made with
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
STORY = "This is the first paragraph of a story about a mill by the river, told at some length for its readers."
PAGE = (
    f"<html><head><title>Mill</title></head><body><nav><a href='/'>Home</a></nav><main><h1>The mill</h1><p>{STORY}</p>"
    "<p>Gr\u00fc\u00dfe \u4e16\u754c</p></main><footer>imprint</footer></body></html>"
)


class Archive:
    """An archive in memory."""

    def __init__(self, *, packed: bool) -> None:
        self.buffer = io.BytesIO()
        self._writer = WARCWriter(self.buffer, gzip=packed)

    def page(self, data: bytes, kind: str = "text/html", status: str = "200 OK", **headers: str) -> "Archive":
        listed = [("Content-Type", kind), *((name.replace("_", "-"), value) for name, value in headers.items())]
        http = StatusAndHeaders(status, listed, protocol="HTTP/1.1")
        record = self._writer.create_warc_record(
            "http://mill.example/", "response", payload=io.BytesIO(data), http_headers=http
        )
        self._writer.write_record(record)
        return self

    def text(self, data: bytes, kind: str = "conversion") -> "Archive":
        record = self._writer.create_warc_record(
            "http://mill.example/", kind, payload=io.BytesIO(data), warc_content_type="text/plain"
        )
        self._writer.write_record(record)
        return self

    @property
    def data(self) -> bytes:
        return self.buffer.getvalue()


def read(path: str, **settings: Any) -> tuple[list[str], RecordAccount]:
    values = {
        "name": "test",
        "output": "out",
        "tokenizer": {"path": "x"},
        "sources": [{"id": "web", "files": [path], **settings}],
    }
    recipe = parse_recipe(values)
    account = RecordAccount(recipe.sources[0].bad_records)
    texts: list[str] = []
    for split in plan_run(recipe).splits:
        for batch in read_split(split, recipe.sources[0], account):
            texts += batch.texts
    return texts, account


@pytest.mark.parametrize("packed", [False, True])
def test_pages_and_texts(tmp_path: Path, packed: bool) -> None:
    archive = (
        Archive(packed=packed).text(b"about this crawl", "warcinfo").page(PAGE.encode(), "text/html; charset=utf-8")
    )
    archive.page(PAGE.encode("gb18030"), "application/xhtml+xml").page(
        gzip.compress(PAGE.encode()), Content_Encoding="gzip"
    )
    archive.text("plain \u4e16\u754c\n".encode()).page(b"just text", "text/plain")
    path = tmp_path / ("a.warc.gz" if packed else "a.wet")
    path.write_bytes(archive.data)
    texts, account = read(str(path))
    assert len(texts) == account.records == 5
    assert texts[3:] == ["plain \u4e16\u754c\n", "just text"]
    for text in texts[:3]:
        assert STORY in text
        assert "imprint" not in text
        assert "<" not in text
    assert "\u4e16\u754c" in texts[0]
    assert texts[0] == texts[2]
    assert "imprint" in read(str(path), html="all")[0][0]


def test_what_is_no_page_is_counted(tmp_path: Path) -> None:
    archive = Archive(packed=True).page(b"\x89PNG", "image/png").page(b"moved", status="301 Moved")
    archive.page(b"").page(b"good text", "text/plain").text(b"about it", "metadata")
    path = tmp_path / "a.warc.gz"
    path.write_bytes(archive.data)
    texts, account = read(str(path))
    assert texts == ["good text"]
    assert account.dropped == {"not_a_page": 1, "http_status": 1, "empty": 1}
    assert account.bad == 0
    assert all("a.warc.gz: record <urn:uuid:" in sample["where"] for sample in account.samples)


def test_pages_that_cannot_be_unpacked(tmp_path: Path) -> None:
    """Packings that are not read here are no text, whatever libraries are installed; nor is what was cut short."""
    packed = gzip.compress("".join(random.Random(0).choices("abcdefgh \n", k=80_000)).encode())
    broken = bytearray(packed)
    broken[20_000] ^= 255
    archive = Archive(packed=True)
    for packing in ("br", "ZSTD", "x-gzip", "gzip, br"):
        archive.page(b"\x8b\x05\x80hello\x03", Content_Encoding=packing)
    for body in (bytes(broken), packed[:-9]):
        archive.page(body, "text/plain", Content_Encoding="gzip")
    archive.page(b"moved", status="301 Moved", Content_Encoding="br")
    archive.page(b"\x89PNG", "image/png", Content_Encoding="br").page(b"", Content_Encoding="gzip")
    archive.page(b"not packed", "text/plain", Content_Encoding="gzip")
    archive.page(b"nor this", "text/plain", Content_Encoding="utf-8").page(b"last", "text/plain")
    path = tmp_path / "a.warc.gz"
    path.write_bytes(archive.data)
    texts, account = read(str(path))
    assert texts == ["not packed", "nor this", "last"]
    left_out = {"content_encoding": 4, "malformed_body": 2, "http_status": 1, "not_a_page": 1, "empty": 1}
    assert account.dropped == left_out
    assert (account.records, account.bad) == (12, 0)


def test_text_that_cannot_be_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.wet"
    path.write_bytes(Archive(packed=False).text(b"caf\xff").text(b"good").data)
    with pytest.raises(InputError, match=r"a\.wet: record <urn:uuid:.*>: invalid utf8: "):
        read(str(path))
    texts, account = read(str(path), bad_records="skip")
    assert (texts, account.bad) == (["good"], 1)
    assert read(str(path), invalid_text="replace")[0] == ["caf\ufffd", "good"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("part", [0.3, 0.55, 0.8, 0.97])
def test_an_archive_that_is_cut_short(tmp_path: Path, packed: bool, part: float) -> None:
    archive = Archive(packed=packed)
    for number in range(8):
        archive.text(f"text number {number} of an archive".encode())
    path = tmp_path / ("a.wet.gz" if packed else "a.wet")
    path.write_bytes(archive.data[: int(len(archive.data) * part)])
    with pytest.raises(InputError, match=r"a\.wet.*cut short"):
        read(str(path))
    texts, account = read(str(path), expect_damaged=[path.name])
    assert account.records == len(texts)
    assert texts == [f"text number {number} of an archive" for number in range(len(texts))]
    assert len(texts) == int(8 * part)


@pytest.mark.parametrize("data", [b"hello world\n" * 3, b"{}\n", b"\x00" * 100])
def test_a_file_that_is_no_archive(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.warc: no valid web archive: .*fetch it again or leave it out"):
        read(str(path))


def test_a_corpus_of_an_archive(workshop: Any) -> None:
    archive = Archive(packed=True)
    for number in range(30):
        archive.page(PAGE.replace("river", f"river {number}").encode())
    workshop.prepare({"files": [workshop.write("a.warc.gz", archive.data)]})
    texts = workshop.texts("s0")
    assert len(texts) == 30
    assert all(f"river {number}," in text for number, text in enumerate(texts))
