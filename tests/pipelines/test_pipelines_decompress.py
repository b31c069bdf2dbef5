"""Compressed files: all members read, damage noticed, memory bounded."""

import bz2
import gzip
import io
import lzma
import random
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import InputError
from gristmill.pipelines.decompress import HEAD_BYTES, DamagedError, DecompressedStream, detect_compression


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": _zstd,
}
EVERY = pytest.mark.parametrize("compression", PACKERS)
TEXT = b"".join(b'{"text": "line %d"}\n' % number for number in range(3000))


def unpack(data: bytes, compression: str, size: int = 1 << 20) -> bytes:
    stream = DecompressedStream(io.BytesIO(data), compression, "part.jsonl.z")
    blocks = []
    while block := stream.read(size):
        blocks.append(block)
    return b"".join(blocks)


@EVERY
@pytest.mark.parametrize("content", [b"", b"x", TEXT, bytes(range(256)) * 3000], ids=["none", "one", "text", "binary"])
def test_one_member(compression: str, content: bytes) -> None:
    packed = PACKERS[compression](content)
    assert detect_compression(packed[:HEAD_BYTES]) == compression
    assert unpack(packed, compression) == content


@EVERY
def test_every_member(compression: str) -> None:
    pack = PACKERS[compression]
    assert unpack(pack(b"one\ntwo\n") + pack(b"") + pack(b"three\n") + pack(b""), compression) == b"one\ntwo\nthree\n"
    assert unpack(pack(b"") + pack(TEXT) + pack(TEXT), compression) == TEXT + TEXT


@EVERY
@given(contents=st.lists(st.binary(max_size=300), max_size=6), size=st.integers(1, 400))
@settings(max_examples=40, deadline=None)
def test_members_of_any_length_read_in_pieces_of_any_length(compression: str, contents: list[bytes], size: int) -> None:
    packed = b"".join(map(PACKERS[compression], contents))
    assert unpack(packed, compression, size) == b"".join(contents)


@EVERY
@pytest.mark.parametrize("part", ["half", "999 of 1000", "all but a byte", "a few bytes"])
def test_a_file_cut_short(compression: str, part: str) -> None:
    packed = PACKERS[compression](TEXT)
    length = {
        "half": len(packed) // 2,
        "999 of 1000": len(packed) * 999 // 1000,
        "all but a byte": len(packed) - 1,
        "a few bytes": 12,
    }[part]
    with pytest.raises(DamagedError, match=rf"part\.jsonl\.z: the {compression} data end before their end mark"):
        unpack(packed[:length], compression)


@EVERY
def test_a_file_cut_short_in_its_second_member(compression: str) -> None:
    pack = PACKERS[compression]
    with pytest.raises(DamagedError, match="cut short"):
        unpack(pack(TEXT) + pack(TEXT)[:-1], compression)


@EVERY
def test_every_cut_of_a_small_file(compression: str) -> None:
    packed = PACKERS[compression](b'{"text": "a"}\n')
    for length in range(HEAD_BYTES, len(packed)):
        with pytest.raises(DamagedError, match="cut short"):
            unpack(packed[:length], compression)


@EVERY
def test_what_came_before_the_damage_was_given(compression: str) -> None:
    packed = PACKERS[compression](TEXT)
    stream = DecompressedStream(io.BytesIO(packed + packed[:-1]), compression, "x")
    assert stream.read(10 * len(TEXT)).startswith(TEXT + TEXT[:1000])
    for _ in range(2):
        with pytest.raises(DamagedError):
            stream.read()


@EVERY
def test_a_flipped_bit_of_the_check_sum(compression: str) -> None:
    packed = bytearray(PACKERS[compression](TEXT))
    place = {"gzip": -8, "bzip2": -3, "xz": -20, "zstd": -2}[compression]
    packed[place] ^= 0x10
    with pytest.raises(DamagedError, match=rf"part\.jsonl\.z: damaged {compression} data"):
        unpack(bytes(packed), compression)


@EVERY
def test_flipped_bits_anywhere_are_no_other_error(compression: str) -> None:
    packed = PACKERS[compression](TEXT)
    rng = random.Random(compression)
    for _ in range(150):
        damaged = bytearray(packed)
        damaged[rng.randrange(HEAD_BYTES, len(packed))] ^= 1 << rng.randrange(8)
        try:
            unpack(bytes(damaged), compression)
        except InputError:
            continue


@EVERY
def test_garbage_behind_the_last_member(compression: str) -> None:
    with pytest.raises(DamagedError, match=f"damaged {compression} data"):
        unpack(PACKERS[compression](TEXT) + b"garbage that is no member", compression)


@pytest.mark.parametrize("compression", ["gzip", "xz"])
@pytest.mark.parametrize("zeros", [4, 512, 1 << 20])
def test_zeros_behind_and_between_members(compression: str, zeros: int) -> None:
    packed = PACKERS[compression](TEXT)
    assert unpack(packed + bytes(zeros), compression) == TEXT
    assert unpack(packed + bytes(zeros) + packed, compression) == TEXT + TEXT


def test_a_zstd_stream_of_unknown_length_and_of_skippable_frames() -> None:
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    skippable = b"\x53\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
    assert detect_compression(skippable[:HEAD_BYTES]) == "zstd"
    assert unpack(skippable + unsized + skippable + unsized, "zstd") == TEXT + TEXT
    with pytest.raises(DamagedError, match="cut short"):
        unpack(skippable[:-2], "zstd")


def test_a_zstd_window_of_half_a_gigabyte_is_read() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=29, write_checksum=1)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = compressor.compress(TEXT) + compressor.flush()
    assert unpack(packed, "zstd") == TEXT


def bomb(compression: str, megabytes: int) -> bytes:
    """Zeros, packed: a thousandth of their size and less."""
    zeros = bytes(1 << 20)
    if compression == "gzip":
        codec = zlib.compressobj(9, wbits=31)
        return b"".join([*(codec.compress(zeros) for _ in range(megabytes)), codec.flush()])
    if compression == "zstd":
        parts = zstandard.ZstdCompressor(level=1).compressobj()
        return b"".join([*(parts.compress(zeros) for _ in range(megabytes)), parts.flush()])
    return PACKERS[compression](zeros * megabytes)


@EVERY
def test_a_bomb_goes_off_in_small_pieces(compression: str) -> None:
    packed = bomb(compression, 24)
    assert len(packed) < 50_000
    stream = DecompressedStream(io.BytesIO(packed), compression, "x")
    total = 0
    tracemalloc.start()
    try:
        while block := stream.read(1 << 16):
            assert len(block) <= 2 << 20
            total += len(block)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 24 << 20
    assert peak < 12 << 20


def test_a_file_that_is_no_packed_one() -> None:
    for head in (
        b"",
        b"{",
        b'{"text": ',
        b"BZ",
        b"BZh",
        b"BZh9",
        b"BZh9x",
        b"BZh0",
        b"\x1f",
        b"\x28\xb5\x2f",
        b"P*M\x18"[:3],
    ):
        assert detect_compression(head) is None
