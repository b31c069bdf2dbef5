"""Lines of a file, of any range of it, and of any number of ranges that meet."""

import gzip
import itertools
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import InputError
from gristmill.pipelines import lines as module
from gristmill.pipelines.lines import LineBlock, line_blocks, line_number, strip_mark
from gristmill.pipelines.plan import Extent


def extent(path: Path, start: int = 0, end: int | None = None, compression: str | None = None) -> Extent:
    size = path.stat().st_size
    whole = start == 0 and end in {None, size}
    return Extent(
        file=0,
        path=str(path),
        relative=path.name,
        format="jsonl",
        compression=compression,
        start=start,
        end=size if end is None else end,
        whole=whole,
    )


def blocks(part: Extent, **options: Any) -> list[LineBlock]:
    return list(line_blocks(part, xxhash.xxh3_128(), **options))


def lines(part: Extent, **options: Any) -> list[bytes]:
    return [line for block in blocks(part, **options) for line in block.lines()]


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines") / "x.jsonl"


CONTENT = st.lists(st.sampled_from([b"\n", b"a", b"bc\n", b"\r\n", b"\xe2\x80\xa8", b"dddddddddd", b" "])).map(b"".join)


@given(content=CONTENT, cuts=st.lists(st.integers(0, 200)), block_bytes=st.integers(1, 20))
@settings(max_examples=400, deadline=None)
def test_ranges_that_meet_give_every_line_once(
    scratch: Path, content: bytes, cuts: list[int], block_bytes: int
) -> None:
    scratch.write_bytes(content)
    before, module.BLOCK_BYTES = module.BLOCK_BYTES, block_bytes
    try:
        bounds = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
        if len(bounds) == 1:
            bounds = [0, 0]
        parts = [extent(scratch, start, end) for start, end in itertools.pairwise(bounds)]
        found = [block for part in parts for block in blocks(part)]
    finally:
        module.BLOCK_BYTES = before
    assert b"".join(block.data for block in found) == content
    expected = content.split(b"\n")
    assert [line for block in found for line in block.lines()] == (expected if expected[-1] else expected[:-1])
    for block in found:
        assert content[block.offset : block.offset + len(block.data)] == block.data
        assert block.offset == 0 or content[block.offset - 1 : block.offset] == b"\n"


@given(content=CONTENT, cut=st.integers(0, 200))
@settings(max_examples=100, deadline=None)
def test_a_line_belongs_to_the_range_of_its_first_byte(scratch: Path, content: bytes, cut: int) -> None:
    scratch.write_bytes(content)
    cut = min(cut, len(content))
    starts = [0, *(place + 1 for place, byte in enumerate(content) if byte == 10)]
    assert len(lines(extent(scratch, 0, cut))) == sum(start < cut for start in starts)
    assert len(lines(extent(scratch, cut))) == sum(cut <= start < len(content) for start in starts)


def test_the_digest_is_of_what_belongs_to_the_range(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"one\ntwo\nthree")
    for start, end, content in ((0, 13, b"one\ntwo\nthree"), (0, 2, b"one\n"), (2, 5, b"two\n"), (5, 13, b"three")):
        hasher = xxhash.xxh3_128()
        list(line_blocks(extent(path, start, end), hasher))
        assert hasher.digest() == xxhash.xxh3_128_digest(content)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"\n\n", [b"", b""]),
        (b"a", [b"a"]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb", [b"a\r", b"b"]),
        (b"a\rb\rc", [b"a\rb\rc"]),
        ("a\u2028b\u2029c\u0085d\ve\ff\x1cg".encode(), ["a\u2028b\u2029c\u0085d\ve\ff\x1cg".encode()]),
        (b"\xef\xbb\xbfa\nb", [b"a", b"b"]),
        (b"\xef\xbb\xbf", []),
        (b"a\n\xef\xbb\xbfb\n", [b"a", b"\xef\xbb\xbfb"]),
    ],
)
def test_what_ends_a_line(tmp_path: Path, content: bytes, expected: list[bytes], packed: bool) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(gzip.compress(content) if packed else content)
    assert lines(extent(path, compression="gzip" if packed else None)) == expected


def test_a_line_longer_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    long = b"x" * (3 * module.BLOCK_BYTES + 17)
    path.write_bytes(b"a\n" + long + b"\nb\n")
    assert lines(extent(path)) == [b"a", long, b"b"]
    middle = len(long) // 2
    assert lines(extent(path, 0, middle)) == [b"a", long]
    assert lines(extent(path, middle, middle + 10)) == []
    assert lines(extent(path, middle)) == [b"b"]


@pytest.mark.parametrize("name", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_another_encoding_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.jsonl"
    mark = "" if name in {"utf-16", "utf-32"} else "\ufeff"
    path.write_bytes((mark + '{"text": "a"}\n').encode(name))
    family = name[:6].upper()
    with pytest.raises(InputError, match=rf"x\.jsonl: is {family} text \(it starts with that byte-order mark\); conv"):
        lines(extent(path))


def test_strip_mark_takes_one_mark_only() -> None:
    assert strip_mark(b"\xef\xbb\xbf\xef\xbb\xbfa", "x") == b"\xef\xbb\xbfa"
    assert strip_mark(b"a\xef\xbb\xbf", "x") == b"a\xef\xbb\xbf"


@pytest.mark.parametrize("packed", [False, True])
def test_the_number_of_a_line(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "x.jsonl"
    content = b"\xef\xbb\xbf" + b"".join(b"line %d\n" % number for number in range(300_000))
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    part = extent(path, compression="gzip" if packed else None)
    for number in (1, 2, 150_001, 300_000):
        offset = content.index(b"line %d\n" % (number - 1))
        assert line_number(str(path), part, offset) == number


class TestDamage:
    CONTENT = b"".join(b'{"text": "line %d"}\n' % number for number in range(100_000))

    def test_it_stops_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl.gz"
        packed = gzip.compress(self.CONTENT)
        path.write_bytes(packed[: len(packed) // 2])
        with pytest.raises(InputError, match=r"x\.jsonl\.gz: the gzip data end before their end mark"):
            lines(extent(path, compression="gzip"))

    def test_whole_lines_are_taken_where_it_is_expected(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl.gz"
        packed = gzip.compress(self.CONTENT)
        path.write_bytes(packed[: len(packed) // 2])
        found = lines(extent(path, compression="gzip"), tolerate_damage=True)
        expected = self.CONTENT.split(b"\n")[:-1]
        assert 10_000 < len(found) < len(expected)
        assert found == expected[: len(found)]

    def test_what_comes_before_wrong_bytes_is_taken_too(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl.gz"
        packed = gzip.compress(self.CONTENT)
        path.write_bytes(packed[:-8] + b"12345678")
        with pytest.raises(InputError, match=r"damaged gzip data"):
            lines(extent(path, compression="gzip"))
        found = lines(extent(path, compression="gzip"), tolerate_damage=True)
        expected = self.CONTENT.split(b"\n")[:-1]
        assert len(found) > 50_000
        assert found == expected[: len(found)]
