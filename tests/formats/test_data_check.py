"""Every byte of anyone's data read, and what is found."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gristmill.formats import data_check
from gristmill.formats.data_check import check_data
from gristmill.formats.errors import FormatError
from gristmill.formats.token_shards import examine_pair

WritePair = Callable[..., str]
WriteRaw = Callable[..., Path]


@pytest.fixture
def data(tmp_path: Path, write_pair: WritePair) -> str:
    for name, seed in (("a", 1), ("b", 2)):
        write_pair(tmp_path / "data" / name, [1000] * 200, seed=seed)
    return str(tmp_path / "data")


def change(path: str | Path, place: int) -> None:
    """Changes a byte and keeps size and time."""
    times = Path(path).stat()
    content = bytearray(Path(path).read_bytes())
    content[place] ^= 1
    Path(path).write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_sound_data_have_no_problems(data: str, write_raw: WriteRaw, tmp_path: Path) -> None:
    assert check_data(data) == []
    assert check_data(data, eod_id=1, vocabulary=500) == []
    write_raw(tmp_path / "raw", [[5, 3], [6, 3]])
    assert check_data(f"{tmp_path}/raw") == []


def test_tokens_that_no_block_meets_are_found_by_the_checksums(data: str, tmp_path: Path) -> None:
    sums = str(tmp_path / "sums")
    assert check_data(data, checksums=sums) == []
    assert check_data(data, checksums=sums) == []
    before = examine_pair(f"{data}/b").identity
    change(f"{data}/b.bin", 5001)
    assert examine_pair(f"{data}/b").identity == before, "opening cannot see it"
    (problem,) = check_data(data, checksums=sums)
    assert problem.startswith(f"{data}/b.bin: sha256 ")
    assert problem.endswith("its content changed")


def test_the_checksums_are_those_of_a_common_tool(data: str, tmp_path: Path) -> None:
    check_data(data, checksums=str(tmp_path / "sums"))
    done = subprocess.run(["sha256sum", "-c", str(tmp_path / "sums")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("OK") == 4


def test_files_that_came_or_went_are_told(data: str, tmp_path: Path, write_pair: WritePair) -> None:
    sums = str(tmp_path / "sums")
    check_data(data, checksums=sums)
    for kind in ("bin", "idx"):
        (Path(data) / f"a.{kind}").rename(Path(data) / f"c.{kind}")
    problems = check_data(data, checksums=sums)
    assert [problem.split(": ")[1].split(" ")[0:2] for problem in problems] == [["is", "not"]] * 2 + [["is", "in"]] * 2


def test_no_checksums_are_written_for_data_that_are_wrong(data: str, tmp_path: Path) -> None:
    assert check_data(data, eod_id=7, checksums=str(tmp_path / "sums")) != []
    assert not (tmp_path / "sums").exists()
    (tmp_path / "sums").write_text("no checksum\n")
    with pytest.raises(
        FormatError, match="sums: line 1: 'no checksum' is no checksum; the rule is a SHA-256, two spac"
    ):
        check_data(data, checksums=str(tmp_path / "sums"))


@pytest.mark.parametrize("block", [7, 1000, 1 << 20])
def test_wrong_ids_and_ends_are_told(data: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_check, "_BLOCK_TOKENS", block)
    tokens = np.fromfile(f"{data}/a.bin", "<u2")
    tokens[5], tokens[199_999] = 60_000, 2
    tokens.tofile(f"{data}/a.bin")
    problems = check_data(data, eod_id=1, vocabulary=500)
    assert [problem.partition(" (")[0] for problem in problems] == [
        f"{data}/a: token 5 is 60000; ids must be at least 0 and below 500",
        f"{data}/a: the document that ends at token 199999 ends with 2, not with the EOD 1",
    ]


def test_damaged_indices_and_manifests_are_told(data: str, write_raw: WriteRaw, tmp_path: Path) -> None:
    change(f"{data}/a.idx", 34)
    (problem,) = check_data(data)
    assert "a.idx: sequence 1 has a pointer that is not the sum" in problem
    path = write_raw(tmp_path / "raw", [[5, 3], [6, 3]])
    assert check_data(str(path)) == []
    from gristmill.formats.raw_index import index_raw_shards
    from gristmill.formats.raw_manifest import read_raw_manifest

    long = [7] * 40_000 + [3]
    manifest = read_raw_manifest(str(write_raw(tmp_path / "long", [long])))
    index_raw_shards(manifest)
    change(manifest.shards[0].path, 9_001)
    (problem,) = check_data(str(tmp_path / "long"))
    assert problem.startswith(f"{manifest.shards[0].path}: sha256 ")
    assert problem.endswith(f", but {manifest.path} says {manifest.shards[0].sha256}")
