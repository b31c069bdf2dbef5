"""The commands that work on anyone's data, as a user meets them."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.cli import main
from gristmill.formats.blend import greedy_blend, normalise
from gristmill.formats.indexed import IndexedDataset
from gristmill.runtime.megatron import open_megatron

WritePair = Callable[..., str]
Run = Callable[..., list[str]]


@pytest.fixture
def data(tmp_path: Path, write_pair: WritePair, monkeypatch: pytest.MonkeyPatch) -> Path:
    random = np.random.default_rng(0)
    for name, count in (("web/a", 60), ("web/b", 20), ("code", 50), ("tiny", 1)):
        write_pair(tmp_path / name, random.integers(1, 60, count), seed=count)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command and gives the lines it prints; `code` is the exit code, and errors are one line."""

    def work(*words: str, code: int = 0) -> list[str]:
        assert main(list(words)) == code
        said = capsys.readouterr()
        if code == 2:
            assert said.out == ""
            assert said.err.count("\n") == 1
            return [said.err]
        assert said.err == ""
        return said.out.splitlines()

    return work


def rows_of(spec: str, **options: Any) -> Any:
    stream = open_megatron(spec, **{"sequence_length": 16, "eod_id": 1, **options})
    return stream.read(np.arange(len(stream)))


# ------------------------------------------------------------------------------------------------------------- index


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("--num-samples", "300"), {"samples": 300}),
        (("--num-epochs", "2", "--seed", "7"), {"epochs": 2, "seed": 7}),
        (
            ("--num-samples", "9", "--split", "8,1,1", "--split-index", "1"),
            {"samples": 9, "splits": "8,1,1", "split": "valid"},
        ),
        (("--num-samples", "300", "--granularity", "document"), {"samples": 300, "granularity": "document"}),
    ],
)
def test_what_index_writes_is_what_a_stream_finds(
    data: Path, run: Run, words: tuple[str, ...], options: dict[str, Any]
) -> None:
    command = ("index", "--input", "web", "code", "--output-dir", "idx", "--seq-length", "16", *words)
    (said,) = run(*command)
    names = sorted(path.name for path in (data / "idx").iterdir())
    (key,) = {name[:32] for name in names}
    assert names == sorted(
        f"{key}-{name}" for name in ("document_index.npy", "index.json", "sample_index.npy", "shuffle_index.npy")
    )
    assert re.match(rf"idx/{key}-{{document,sample,shuffle}}_index\.npy: \d+ samples, \d epochs$", said)
    before = {path.name: path.stat().st_mtime_ns for path in (data / "idx").iterdir()}
    assert run(*command) == [said]
    np.testing.assert_array_equal(
        rows_of("idx|web:code", foreign_caches="require", **options), rows_of("web:code", **options)
    )
    assert {path.name: path.stat().st_mtime_ns for path in (data / "idx").iterdir()} == before


def test_index_without_the_extra_token(data: Path, run: Run) -> None:
    run(
        *("index", "--input", "code", "--output-dir", "idx", "--seq-length", "16", "--num-epochs", "1"),
        *("--add-extra-token", "0"),
    )
    (path,) = (data / "idx").glob("*-shuffle_index.npy")
    assert len(np.load(path)) == IndexedDataset("code").num_tokens // 16


def test_index_names_raw_shards_too(tmp_path: Path, write_raw: Callable[..., Path], run: Run) -> None:
    write_raw(tmp_path / "raw", [[*range(4, 90), 3]])
    folder = str(tmp_path / "idx")
    run("index", "--input", str(tmp_path / "raw"), "--output-dir", folder, "--seq-length", "8", "--num-epochs", "1")
    assert len(list((tmp_path / "idx").glob("*-shard_00000.idx"))) == 1
    found = rows_of(f"{folder}|{tmp_path}/raw", sequence_length=8, eod_id=None, foreign_caches="require")
    np.testing.assert_array_equal(found, rows_of(f"{tmp_path}/raw", sequence_length=8, eod_id=None))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "name a corpus, or other data with --input"),
        (("--input", "web"), "--output-dir D: the folder for the indices of --input is missing"),
        (("--input", "web", "--output-dir", "idx"), "--input needs --num-samples N or --num-epochs E"),
        (("--input", "web", "--output-dir", "idx", "--num-epochs", "1"), "--seq-length L: the tokens per sample are"),
        (("c", "--input", "web"), "c: a corpus and --input exclude each other"),
        (("--input", "web", "--extend"), "--extend does not go with --input"),
        (("c", "--seq-length", "8", "--output-dir", "idx"), "--output-dir goes with --input; a corpus says it itself"),
        (
            ("c", "--seq-length", "8", "--granularity", "document"),
            "--granularity and --add-extra-token go with --input",
        ),
        (("GOOD", "--split-index", "1"), "--split-index 1 goes with --split"),
        (("GOOD", "--split", "1,1", "--split-index", "3"), "--split-index 3: the parts are 0 train, 1 valid, 2 test"),
        (("GOOD", "--granularity", "line"), "granularity 'line'"),
        (("GOOD", "--seed", "-1"), "seed must be 0 to"),
        (("WALL",), "--output-dir: wall/"),
    ],
)
def test_what_index_refuses(data: Path, run: Run, words: tuple[str, ...], says: str) -> None:
    (data / "wall").write_text("no folder")
    good = ("--input", "web", "--output-dir", "idx", "--num-epochs", "1", "--seq-length", "8")
    given = [*good, *words[1:]] if words[:1] == ("GOOD",) else list(words)
    if words[:1] == ("WALL",):
        given = ["wall" if word == "idx" else word for word in good]
    (said,) = run("index", *given, code=2)
    assert says in said


# ------------------------------------------------------------------------------------------------------------- blend

SPEC = "web,0.5;tiny,0;code,0.3"
BLEND = ("blend", "--datasets", SPEC, "--output-dir", "out", "--seq-length", "16", "--total-samples", "100")


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "where",
    [("--max-workers", "1"), ("--max-workers", "2"), ("--runner", "loop"), ("--runner", "FnApiRunner")],
    ids=lambda where: where[1],
)
def test_what_blend_writes_is_what_a_stream_finds(data: Path, run: Run, where: tuple[str, ...]) -> None:
    said = run(*BLEND, *where)
    assert said[-2:] == ["out: a blend of 100 samples", "tiny takes no part: its weight is 0"]
    names = sorted(files(data / "out"))
    assert [name for name in names if "/" not in name] == [
        "blend.json",
        "dataset_index.npy",
        "dataset_sample_index.npy",
    ]
    assert {name.split("/")[0] for name in names if "/" in name} == {"dataset_0", "dataset_2"}
    dataset_index, numbers = np.load("out/dataset_index.npy"), np.load("out/dataset_sample_index.npy")
    expected = greedy_blend(normalise(normalise([0.5, 0.3]).tolist()), 100)
    np.testing.assert_array_equal(dataset_index, expected[0])
    np.testing.assert_array_equal(numbers, expected[1])
    spec = "out/dataset_0|web,0.5;out/dataset_2|code,0.3"
    found = rows_of(spec, samples=100, blend_index_dir="out", foreign_caches="require")
    np.testing.assert_array_equal(found, rows_of("web,0.5;code,0.3", samples=100))
    shorter = rows_of(spec, samples=90, blend_index_dir="out")
    np.testing.assert_array_equal(shorter, rows_of("web,0.5;code,0.3", samples=90))


def test_every_way_of_building_writes_the_same_bytes(data: Path, run: Run) -> None:
    run(*BLEND, "--max-workers", "1")
    run(*("other" if word == "out" else word for word in BLEND), "--runner", "FnApiRunner")
    assert files(data / "other") == files(data / "out")


def test_a_blend_goes_on_where_it_stopped(data: Path, run: Run) -> None:
    run(*BLEND, "--max-workers", "1")
    whole = files(data / "out")
    for path in [*(data / "out" / "dataset_2").iterdir(), *(data / "out").glob("dataset_*.npy")]:
        path.unlink()
    (data / "out" / "blend.json").unlink()
    kept = {path: path.stat().st_mtime_ns for path in (data / "out" / "dataset_0").iterdir()}
    run(*BLEND, "--max-workers", "1")
    assert files(data / "out") == whole
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert run(*BLEND, "--max-workers", "1")[-2] == "out: the blend of 100 samples is there"


def test_a_killed_blend_is_no_hindrance(data: Path, run: Run) -> None:
    process = subprocess.Popen([sys.executable, "-m", "gristmill", *BLEND], stdout=subprocess.DEVNULL)
    try:
        process.wait(timeout=0.7)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    run(*BLEND, "--max-workers", "1")
    run(*("other" if word == "out" else word for word in BLEND), "--max-workers", "1")
    assert files(data / "out").items() >= files(data / "other").items()


def test_margin_and_split_are_those_of_the_stream(data: Path, run: Run) -> None:
    run(*BLEND, "--margin", "10", "--split", "9,1", "--split-index", "0", "--seed", "3", "--max-workers", "1")
    found = rows_of(
        "out/dataset_0|web,0.5;out/dataset_2|code,0.3",
        samples=100,
        surplus=0.1,
        splits="9,1",
        seed=3,
        blend_index_dir="out",
        foreign_caches="require",
    )
    np.testing.assert_array_equal(found, rows_of("web,0.5;code,0.3", samples=100, surplus=0.1, splits="9,1", seed=3))


def test_a_single_member_has_no_blend(data: Path, run: Run) -> None:
    words = ["web,2" if word == SPEC else word for word in BLEND]
    assert run(*words)[-1] == "out: a single member takes part, so its own order is that of the blend"
    np.testing.assert_array_equal(
        rows_of("out/dataset_0|web,2", samples=100, foreign_caches="require"), rows_of("web,2", samples=100)
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({SPEC: "web,0.5;code"}, "entry 2 'code' has no weight"),
        ({SPEC: "idx|web,1;code,1"}, "--datasets: idx|… names an index folder, but --output-dir says where indices go"),
        ({SPEC: "web,1;gone,1"}, "gone: neither this folder nor"),
        ({"100": "0"}, "samples of a split must be at least 1, not 0"),
        ({"out": "wall"}, "--output-dir: wall/"),
        ({"+": "--max-workers 0"}, "--max-workers 0: at least 1 is needed"),
        ({"+": "--margin -1"}, "a surplus of -0.01 is no share"),
        ({"+": "--direct_num_workers=2"}, "gristmill blend knows no such option, and Beam's go with --runner"),
        ({"+": "--runner NoSuchRunner"}, "--runner NoSuchRunner: Beam cannot make this runner"),
        ({"+": "--split-index 1"}, "--split-index 1 goes with --split"),
    ],
)
def test_what_blend_refuses(data: Path, change: dict[str, str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "wall").write_text("no folder")
    words = [change.get(word, word) for word in BLEND] + change.get("+", "").split()
    if "workers" not in change.get("+", "") and "runner" not in change.get("+", ""):
        words += ["--max-workers", "1"]
    assert main(words) == (1 if "gone" in says else 2)
    (said,) = capsys.readouterr().err.splitlines()
    assert says in said


def test_another_blend_is_not_overwritten(data: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(*BLEND, "--max-workers", "1")
    other = ["web,0.3;tiny,0;code,0.5" if word == SPEC else word for word in BLEND]
    before = files(data / "out")
    capsys.readouterr()
    assert main([*other, "--max-workers", "1"]) == 2
    said = capsys.readouterr().err
    assert "out: holds another blend (out/dataset_index.npy: sample 0 is of member 0, but these weights" in said
    assert "remove dataset_index.npy, dataset_sample_index.npy and blend.json" in said
    assert {name: content for name, content in files(data / "out").items() if "/" not in name} == {
        name: content for name, content in before.items() if "/" not in name
    }


# ----------------------------------------------------------------------------------------- merge, export and verify


def test_merge(data: Path, run: Run) -> None:
    said = run("merge", "--input", "web", "code", "--output-prefix", "whole/all")
    assert said[-1].startswith("whole/all: ")
    assert len(said) == 4
    np.testing.assert_array_equal(rows_of("whole/all"), rows_of("code:web"))
    (refused,) = run("merge", "--input", "web", "--output-prefix", "whole/all", code=2)
    assert "all.bin: is there already" in refused


def test_export_there_and_back(data: Path, run: Run) -> None:
    said = run("export", "web", "--format", "raw-uint32", "--output", "raw", "--eod-id", "1", "--shard-tokens", "500")
    assert said[-1].startswith("raw/manifest.json: ")
    assert json.loads((data / "raw" / "manifest.json").read_text())["shard_count"] == len(said) - 1
    np.testing.assert_array_equal(rows_of("raw", eod_id=None), rows_of("web"))
    run("export", "raw", "--format", "megatron", "--output", "back")
    assert IndexedDataset("back").dtype == np.int32
    np.testing.assert_array_equal(rows_of("back"), rows_of("web"))


def test_export_tells_of_eods_inside_documents(tmp_path: Path, write_pair: WritePair, run: Run) -> None:
    write_pair(tmp_path / "a", [3, 4, 5], sentences=3)
    pair = IndexedDataset(str(tmp_path / "a"))
    tokens = pair.read(0, 12)
    pair.close()
    tokens[2] = 1
    tokens.tofile(tmp_path / "a.bin")
    said = run(
        "export", str(tmp_path / "a"), "--format", "raw-uint32", "--output", str(tmp_path / "raw"), "--eod-id", "1"
    )
    assert said[-1] == "the EOD stands 1 times inside documents: readers of raw shards will see so many more of them"


def test_verify_reads_anyones_data(data: Path, run: Run) -> None:
    assert run("verify", "web", "--eod-id", "1", "--vocabulary", "500") == ["web: sound"]
    assert run("verify", "web:code", "--checksums", "sums") == ["web:code: sound"]
    content = bytearray(Path("code.bin").read_bytes())
    content[11] ^= 1
    Path("code.bin").write_bytes(content)
    said = run("verify", "web:code", "--checksums", "sums", code=1)
    assert said[0].startswith("code.bin: sha256 ")
    assert said[-1] == "web:code: 1 problems"
    assert run("verify", "web/a", "--eod-id", "7", code=1)[-1] == "web/a: 1 problems"
