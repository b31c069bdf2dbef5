"""Building an index set: memory below what is written, members side by side, and nothing done twice."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.cli import main
from gristmill.formats.errors import DataError, SettingsError, StorageError
from gristmill.formats.index_build import build_index_set, source_lengths, source_tokens
from gristmill.formats.index_member import build_member, make_member
from gristmill.formats.index_set import (
    IndexSettings,
    SplitRequest,
    order_fingerprint,
    plan_members,
    read_set,
    set_path,
)
from gristmill.formats.index_sources import index_sources
from gristmill.formats.index_writer import IndexWriter
from gristmill.formats.indices import Lengths, build_indices, plan_epochs
from gristmill.pipelines.run_lock import working_on

SETTINGS = IndexSettings(sequence_length=8, seed=5, splits="9,1", train=SplitRequest(samples=4000))
NewCorpus = Callable[..., Any]


def many(count: int) -> tuple[dict[str, list[int]], dict[str, float]]:
    """Lengths and weights of many small sources."""
    random = np.random.default_rng(count)
    names = [f"source{number:03d}" for number in range(count)]
    lengths = {name: random.integers(1, 30, 40).tolist() for name in names}
    return lengths, {name: float(weight) for name, weight in zip(names, random.integers(1, 4, count), strict=True)}


def arrays_below(folder: str) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(Path(folder).rglob("*.npy"))}


def test_arrays_are_mapped_from_where_they_were_written(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(0, 50, 500).astype(np.int32)
    plan = plan_epochs(tokens=int(lengths.sum()), sequence_length=16, samples=3000)
    asked: list[str] = []

    def counts() -> Lengths:
        asked.extend(writer.facts)
        return lengths

    writer = IndexWriter(lambda index: str(tmp_path / f"{index}.npy"))
    kept = build_indices(counts, 0, 500, plan, 7, writer)
    expected = build_indices(lengths, 0, 500, plan, 7)
    assert asked == ["document_index"], "lengths are asked for when the document index is out of memory"
    for index in ("document_index", "sample_index", "shuffle_index"):
        found = getattr(kept, index)
        assert isinstance(found, np.memmap)
        np.testing.assert_array_equal(found, getattr(expected, index), strict=True)
        np.testing.assert_array_equal(np.load(tmp_path / f"{index}.npy"), found, strict=True)


def test_what_cannot_be_written_stays_in_memory_where_that_is_allowed(tmp_path: Path) -> None:
    lengths = np.full(50, 20, np.int32)
    plan = plan_epochs(tokens=1000, sequence_length=16)
    (tmp_path / "file").write_text("")
    places = {"document_index": tmp_path / "a.npy", "sample_index": tmp_path / "file" / "b.npy"}
    lenient = IndexWriter(lambda index: str(places[index]), required=False)
    kept = build_indices(lengths, 0, 50, plan, 7, lenient)
    assert isinstance(lenient.error, StorageError)
    assert lenient.facts.keys() == {"document_index"}
    np.testing.assert_array_equal(kept.shuffle_index, build_indices(lengths, 0, 50, plan, 7).shuffle_index)
    with pytest.raises(StorageError, match=r"b\.npy"):
        build_indices(lengths, 0, 50, plan, 7, IndexWriter(lambda index: str(places[index])))


@pytest.mark.parametrize("longest", [65_535, 65_536, 200_000])
def test_a_member_made_in_files_is_the_one_made_in_memory(tmp_path: Path, longest: int, new_corpus: NewCorpus) -> None:
    """Whatever the lengths: those of more than 65,535 tokens are held in wider integers."""
    corpus = new_corpus({"web": [5, 9, longest, 30, 1, 7, 70_000 if longest > 65_535 else 2, 12]})
    sources = index_sources(corpus.manifest.sources)
    lengths = source_lengths(corpus.folder, sources[0])
    assert lengths.dtype == (np.uint16 if longest < 65_536 else np.int32)
    assert lengths.tolist() == corpus.lengths["web"]
    settings = IndexSettings(sequence_length=4096, seed=5, splits="1", train=SplitRequest(samples=300))
    (plan,) = plan_members(settings, sources)
    tokens = source_tokens(corpus.folder, sources[0], 0, 8)
    report = make_member(str(tmp_path), plan, lambda: lengths, tokens)
    with pytest.raises(DataError, match=rf"'web': its sequences hold {tokens} tokens, but held 100000 a moment ago"):
        make_member(str(tmp_path / "other"), plan, lambda: lengths, 100_000)
    built = build_member(plan, lengths.astype(np.int32))
    for index in ("document_index", "sample_index", "shuffle_index"):
        stored = np.load(tmp_path / f"train/web/{index}.npy")
        np.testing.assert_array_equal(stored, getattr(built, index), strict=True)
        assert report.files[f"train/web/{index}.npy"].size == (tmp_path / f"train/web/{index}.npy").stat().st_size


def test_any_number_of_workers_builds_the_same_bytes(new_corpus: NewCorpus) -> None:
    folders = []
    for workers in (1, 4):
        corpus = new_corpus(*many(12))
        build_index_set(corpus.folder, corpus.manifest, SETTINGS, workers=workers)
        folders.append(corpus.folder)
    first, second = ({name: path.read_bytes() for name, path in arrays_below(one).items()} for one in folders)
    assert len(first) == 2 * (12 * 3 + 2)
    assert first == second
    with pytest.raises(SettingsError, match="0 workers: at least 1 is needed"):
        build_index_set(corpus.folder, corpus.manifest, SETTINGS, workers=0)


def test_a_killed_build_goes_on_where_it_stopped(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(*many(80))
    whole = new_corpus(*many(80))
    undisturbed = build_index_set(whole.folder, whole.manifest, SETTINGS)
    folder = Path(set_path(corpus.folder, SETTINGS, index_sources(corpus.manifest.sources)))
    words = ["index", corpus.folder, "--seq-length", "8", "--seed", "5", "--split", "9,1", "--num-samples", "4000"]
    receipts = Path(corpus.folder) / "_stages" / "items" / "index"
    began = subprocess.Popen([sys.executable, "-m", "gristmill", *words], stdout=subprocess.DEVNULL)
    while began.poll() is None and len(list(receipts.rglob("*.json"))) < 20:
        time.sleep(0.005)
    began.send_signal(signal.SIGKILL)
    assert began.wait() == -signal.SIGKILL, "it was finished before it could be killed"
    assert not (folder / "set.json").exists()
    finished = [json.loads(path.read_text())["files"] for path in receipts.rglob("*.json")]
    kept = {name: (Path(corpus.folder) / name).stat().st_ino for files in finished for name in files}
    assert 60 <= len(kept) < 480
    assert main(words) == 0
    assert {name: (Path(corpus.folder) / name).stat().st_ino for name in kept} == kept, "built once, left alone"
    found = read_set(str(folder))
    assert found.files == undisturbed.files
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {".npy", ".json"}, (
        "no temporary file is left"
    )


def test_a_member_whose_file_is_gone_or_short_is_built_again(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(*many(3))
    built = build_index_set(corpus.folder, corpus.manifest, SETTINGS)
    os.remove(f"{built.folder}/set.json")
    os.remove(f"{built.folder}/train/source001/shuffle_index.npy")
    with open(f"{built.folder}/valid/source002/sample_index.npy", "r+b") as file:
        file.truncate(140)
    before = {name: path.stat().st_ino for name, path in arrays_below(built.folder).items() if "source" in name}
    again = build_index_set(corpus.folder, corpus.manifest, SETTINGS)
    assert again.files == built.files
    after = {name: path.stat().st_ino for name, path in arrays_below(built.folder).items()}
    renewed = {name.rsplit("/", 1)[0] for name, inode in before.items() if after[name] != inode}
    assert renewed == {"train/source001", "valid/source002"}


def test_no_two_runs_work_into_one_corpus(new_corpus: NewCorpus, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = new_corpus(*many(2))
    words = ["index", corpus.folder, "--seq-length", "8", "--num-samples", "50"]
    with working_on(corpus.folder):
        assert main(words) == 1
    assert "another run is working on this corpus; wait for it or stop it" in capsys.readouterr().err
    assert main(words) == 0
    with working_on(corpus.folder):
        assert main([*words[:2], "--extend", "x"]) == 1


def test_a_folder_that_is_no_corpus_is_not_written_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(tmp_path / "none"), "--seq-length", "8"]) == 1
    assert not (tmp_path / "none").exists()


def kept(**changes: Any) -> IndexSettings:
    return dataclasses.replace(SETTINGS, valid=SplitRequest(drop_last_partial=False), **changes)


def test_a_kept_partial_sample_is_part_of_key_record_and_fingerprint(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(*many(3))
    dropped = build_index_set(corpus.folder, corpus.manifest, SETTINGS)
    index_set = build_index_set(corpus.folder, corpus.manifest, kept())
    assert index_set == read_set(index_set.folder)
    assert index_set.key != dropped.key
    assert order_fingerprint(index_set, "train") == order_fingerprint(dropped, "train")
    assert order_fingerprint(index_set, "valid") != order_fingerprint(dropped, "valid")
    for report in index_set.order("valid").members:
        whole, rest = divmod(report.tokens - 1, 8)
        assert report.rows == whole + (rest > 0)
        assert dropped.order("valid").member(report.source).rows == whole
    assert "drop_last_partial" not in Path(dropped.folder, "set.json").read_text()
    extension = corpus.extend(index_set, samples=9000)
    assert extension == read_set(extension.folder)
    for name, facts in index_set.files.items():
        assert name.startswith("train/") or extension.files[name] == facts


def test_one_token_beyond_the_extra_one_is_a_partial_sample(new_corpus: NewCorpus) -> None:
    """Two tokens give one input and its target; one token gives none, and the source is left out and named."""
    corpus = new_corpus({"web": [50] * 9 + [2], "math": [50] * 9 + [1]}, {"web": 1.0, "math": 1.0})
    order = build_index_set(corpus.folder, corpus.manifest, kept()).order("valid")
    assert [(report.source, report.rows) for report in order.members] == [("web", 1)]
    assert [(entry.source, entry.reason) for entry in order.left_out] == [
        ("math", "its 1 sequences hold 1 tokens, and one sample of length 8 needs 2")
    ]


def test_the_partial_sample_on_the_command_line(new_corpus: NewCorpus, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = new_corpus(*many(2))
    words = ["index", corpus.folder, "--seq-length", "8", "--seed", "5", "--split", "9,1", "--num-samples", "4000"]
    assert main([*words, "--keep-last-partial"]) == 0
    read_set(set_path(corpus.folder, kept(), index_sources(corpus.manifest.sources)))
    assert main(["index", corpus.folder, "--extend", "x", "--keep-last-partial"]) == 2
    assert "--keep-last-partial does not go with --extend" in capsys.readouterr().err


def test_training_always_drops_it() -> None:
    with pytest.raises(SettingsError, match="train: the partial last sample is always dropped, as Megatron does"):
        IndexSettings(sequence_length=8, seed=5, splits="1", train=SplitRequest(drop_last_partial=False))
