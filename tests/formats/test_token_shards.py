"""Pairs made by anyone: found in a stable order, checked, identified."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from gristmill.formats.errors import CorpusError, FormatError, InputError, SettingsError
from gristmill.formats.indexed_writer import write_indexed
from gristmill.formats.token_shards import (
    BLOCK_BYTES,
    BLOCKS,
    examine_pair,
    find_prefixes,
    sampled_digest,
    shard_lengths,
    tokens_in_range,
)


def write(prefix: Path, lengths: list[int], first: int = 0, dtype: str = "uint16") -> str:
    prefix.parent.mkdir(parents=True, exist_ok=True)
    tokens = (np.arange(sum(lengths)) + first) % 1000
    with write_indexed(str(prefix), np.dtype(dtype)) as writer:
        writer.add(tokens.astype(dtype), np.array(lengths, np.int64))
    return str(prefix)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    for name in ("web_2", "web_10", "Web_1"):
        write(tmp_path / "data" / name, [3, 4])
    (tmp_path / "data" / "notes.txt").write_text("no pair")
    write(tmp_path / "data" / "below" / "other", [5])
    return tmp_path / "data"


def test_a_folder_stands_for_its_pairs_in_order_of_names(pairs: Path) -> None:
    expected = [f"{pairs}/Web_1", f"{pairs}/web_10", f"{pairs}/web_2"]
    assert find_prefixes([str(pairs)]) == expected
    assert find_prefixes([str(pairs / "web_2"), str(pairs / "web_10"), str(pairs / "Web_1")]) == expected
    assert find_prefixes([f"{pairs}/web_2.idx"]) == find_prefixes([f"{pairs}/web_2.bin"]) == [f"{pairs}/web_2"]


@pytest.mark.parametrize(
    ("paths", "error", "message"),
    [
        (["web_2", "web_2"], SettingsError, r"web_2: named twice \(by .*web_2 and by .*web_2\), so its tokens would"),
        ([".", "web_2"], SettingsError, r"web_2: named twice"),
        (["web_2", "below/../web_2.bin"], SettingsError, "named twice"),
        (["none"], InputError, r"none: neither this folder nor .*none\.idx exists; name the prefix"),
        (["empty"], InputError, r"empty: no \.idx file directly inside; name the prefix"),
    ],
)
def test_what_leads_to_no_pair_or_to_one_twice(
    pairs: Path, paths: list[str], error: type[Exception], message: str
) -> None:
    (pairs / "empty").mkdir()
    with pytest.raises(error, match=message):
        find_prefixes([str(pairs / path) for path in paths])


def test_each_pair_is_checked(pairs: Path) -> None:
    (pairs / "web_2.bin").unlink()
    assert f"{pairs}/web_2" in find_prefixes([str(pairs)])
    with pytest.raises(FormatError, match=r"web_2\.bin: token file not found"):
        examine_pair(f"{pairs}/web_2")


def test_what_a_pair_holds(tmp_path: Path) -> None:
    shard = examine_pair(write(tmp_path / "a", [3, 0, 5]))
    assert (shard.name, shard.dtype, shard.tokens, shard.sequences) == ("a", "uint16", 8, 3)
    moved = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-moved")
    assert examine_pair(str(moved / "a")).identity == shard.identity
    assert shard.shard_identity.sequences == 3
    document = examine_pair(str(tmp_path / "a"), "document")
    assert document.identity != shard.identity


@pytest.mark.parametrize(
    ("place", "found"),
    [(0, True), (BLOCK_BYTES - 1, True), (BLOCK_BYTES + 1, False), (-1, True), (-BLOCK_BYTES - 9, False)],
)
def test_a_changed_token_is_found_where_a_block_meets_it(tmp_path: Path, place: int, found: bool) -> None:
    prefix = write(tmp_path / "a", [1000] * 200)
    path = Path(f"{prefix}.bin")
    before, times = examine_pair(prefix).identity, path.stat()
    data = bytearray(path.read_bytes())
    assert len(data) > BLOCKS * BLOCK_BYTES
    data[place] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (examine_pair(prefix).identity != before) is found


@pytest.mark.parametrize("unit", ["sequence", "document"])
def test_the_identity_is_the_one_described(tmp_path: Path, unit: Literal["sequence", "document"]) -> None:
    """`formats/README.md`, section on adopted data, followed with standard tools alone."""
    prefix = write(tmp_path / "a", [997] * 200)
    index, tokens = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    blocks = b"".join(tokens[k * (len(tokens) - 4096) // 15 :][:4096] for k in range(16))
    value: dict[str, object] = {
        "index": hashlib.sha256(index).hexdigest(),
        "tokens": {"bytes": len(tokens), "blocks": hashlib.sha256(blocks).hexdigest()},
    }
    if unit == "document":
        value["unit"] = "document"
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert examine_pair(prefix, unit).identity == hashlib.sha256(text.encode()).hexdigest()


def test_a_small_token_file_is_covered_whole(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    seen = set()
    for size in (0, 1, BLOCKS * BLOCK_BYTES):
        path.write_bytes(b"\0" * size)
        seen.add(sampled_digest(str(path)))
    for place in (1, 5000, BLOCKS * BLOCK_BYTES - 1):
        data = bytearray(BLOCKS * BLOCK_BYTES)
        data[place] = 1
        path.write_bytes(data)
        seen.add(sampled_digest(str(path)))
    assert len(seen) == 6


def test_a_changed_index_is_always_found(tmp_path: Path) -> None:
    prefix = write(tmp_path / "a", [500] * 400)
    before = examine_pair(prefix).identity
    path = Path(f"{prefix}.idx")
    times = path.stat()
    data = bytearray(path.read_bytes())
    first = 34 + 4 * 200
    data[first : first + 8] = np.array([499, 501], "<i4").tobytes()
    pointer = 34 + 4 * 400 + 8 * 201
    data[pointer : pointer + 8] = (np.frombuffer(data[pointer : pointer + 8], "<i8") - 2).tobytes()
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert examine_pair(prefix).identity != before


def test_lengths_and_tokens_of_ranges(tmp_path: Path) -> None:
    lengths = [[3, 4], [], [0, 5, 6], [7]]
    shards = [examine_pair(write(tmp_path / f"s{number}", some)) for number, some in enumerate(lengths)]
    flat = [length for some in lengths for length in some]
    assert shard_lengths(shards).tolist() == flat
    for start in range(len(flat) + 1):
        for end in range(start, len(flat) + 1):
            assert tokens_in_range(shards, start, end) == sum(flat[start:end])


def test_a_pair_that_was_replaced_meanwhile_is_named(tmp_path: Path) -> None:
    shard = examine_pair(write(tmp_path / "a", [3, 4]))
    write(tmp_path / "a", [3, 4, 5])
    with pytest.raises(CorpusError, match="holds 12 tokens in 3 sequences of uint16, but held 7 in 2 of uint16 a mom"):
        shard.open()


def test_pairs_on_an_object_store_have_the_same_identity(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    prefixes = [write(tmp_path / name, [500] * count) for name, count in (("a", 100), ("b", 3))]
    for path in tmp_path.iterdir():
        memory.pipe(f"/token-shards/{path.name}", path.read_bytes())
    remote = find_prefixes(["memory://token-shards"])
    assert remote == ["memory://token-shards/a", "memory://token-shards/b"]
    assert [examine_pair(prefix).identity for prefix in remote] == [
        examine_pair(prefix).identity for prefix in prefixes
    ]
    memory.rm("/token-shards", recursive=True)


def test_opening_reads_blocks_of_the_tokens_and_no_more(tmp_path: Path) -> None:
    """A terabyte that is a hole in the file: going through it would take minutes."""
    prefix = write(tmp_path / "a", [1000] * 2000)
    with Path(f"{prefix}.bin").open("r+b") as file:
        file.truncate(1 << 40)
    index = bytearray(Path(f"{prefix}.idx").read_bytes())
    count = 512
    lengths = np.full(count, (1 << 39) // count, np.int64)
    head = index[:18] + np.array([count, count + 1], "<u8").tobytes()
    parts = (lengths.astype("<i4"), (np.cumsum(lengths) - lengths) * 2, np.arange(count + 1, dtype="<i8"))
    Path(f"{prefix}.idx").write_bytes(head + b"".join(part.tobytes() for part in parts))
    began = time.process_time()
    assert examine_pair(prefix).tokens == 1 << 39
    assert time.process_time() - began < 5
