"""Streams over data that anyone made: the rows, the caches, and what happens when either changes."""

import dataclasses
import hashlib
import json
import os
import pickle
import re
import shutil
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from gristmill.formats.blend import greedy_blend, normalise
from gristmill.formats.data_spec import DataEntry
from gristmill.formats.errors import CorpusError, DataError, FormatError, InputError, SettingsError
from gristmill.formats.indexed import IndexedDataset
from gristmill.runtime import StreamSource, TokenBatches, open_megatron
from gristmill.runtime.reader import RowReader
from gristmill.runtime.streams import MegatronStream, PaddedMegatronStream, Stream

WritePair = Callable[..., str]


def rows_of(stream: Stream) -> Any:
    return stream.read(np.arange(len(stream)))


def open_(spec: str | Path, **options: Any) -> MegatronStream:
    return open_megatron(str(spec), **{"sequence_length": 16, "eod_id": 1, **options})


@pytest.fixture
def web(tmp_path: Path, write_pair: WritePair) -> str:
    random = np.random.default_rng(0)
    return write_pair(tmp_path / "data" / "web", random.integers(1, 60, 80))


@pytest.fixture
def code(tmp_path: Path, write_pair: WritePair) -> str:
    random = np.random.default_rng(1)
    return write_pair(tmp_path / "data" / "code", random.integers(1, 60, 50), seed=1, dtype="int32")


# ------------------------------------------------------------------------------------------------------- the rows


def test_the_samples_of_a_real_pair_are_megatrons(repository: Path, shared_data: Path, tmp_path: Path) -> None:
    """Digests of every sample, made by megatron-core 0.16.1; `tests/golden/README.md` says how."""
    golden = json.loads((repository / "tests" / "golden" / "megatron_samples.json").read_text())
    prefix = shared_data / "openwebtext_text_document"
    assert hashlib.sha256(Path(f"{prefix}.bin").read_bytes()).hexdigest() == golden["tokens_sha256"]
    compared = 0
    for case in golden["cases"]:
        spec = ";".join(f"{prefix},{weight}" for weight in case["weights"] or []) or str(prefix)
        for split, wanted, found in zip(("train", "valid", "test"), case["samples"], case["found"], strict=True):
            if found is None:
                continue
            for folder in (None, tmp_path, tmp_path):
                stream = open_megatron(
                    spec,
                    sequence_length=case["sequence_length"],
                    eod_id=4999,
                    seed=case["seed"],
                    split=split,
                    splits=case["split"],
                    samples=wanted,
                    cache_dir=folder,
                )
                assert len(stream) == found["rows"]
                assert hashlib.sha256(rows_of(stream).astype("<i4").tobytes()).hexdigest() == found["sha256"]
                compared += 1
    assert compared == 3 * sum(found is not None for case in golden["cases"] for found in case["found"])


def test_the_rows_are_those_of_a_corpus_of_the_same_shards(blended_corpus: str) -> None:
    from gristmill.runtime import open_corpus

    tokens = Path(blended_corpus) / "tokens"
    adopted = open_(f"{tokens}/web,0.7;{tokens}/code,0.3", samples=200, splits="90,10,0")
    own = open_corpus(blended_corpus).stream()
    assert (len(adopted), adopted.dtype) == (len(own), own.dtype)
    np.testing.assert_array_equal(rows_of(adopted), rows_of(own))


def test_many_shards_are_their_concatenation(tmp_path: Path, write_pair: WritePair) -> None:
    random = np.random.default_rng(2)
    lengths = [random.integers(0, 40, count) for count in (30, 1, 25)]
    parts = [write_pair(tmp_path / "parts" / f"{number}", some, seed=number) for number, some in enumerate(lengths)]
    pairs = [IndexedDataset(part) for part in parts]
    whole = tmp_path / "whole"
    from gristmill.formats.indexed_writer import write_indexed

    with write_indexed(str(whole), np.dtype("uint16")) as writer:
        for pair in pairs:
            writer.add(pair.read(0, pair.num_tokens), pair.lengths)
    expected = rows_of(open_(whole, epochs=2))
    np.testing.assert_array_equal(rows_of(open_(tmp_path / "parts", epochs=2)), expected)
    np.testing.assert_array_equal(rows_of(open_(":".join(parts[::-1]), epochs=2)), expected)


def test_raw_shards_are_read_like_the_pairs_they_could_be(
    tmp_path: Path, write_raw: Callable[..., Path], write_pair: WritePair
) -> None:
    random = np.random.default_rng(3)
    documents = [[*random.integers(4, 900, int(length)).tolist(), 3] for length in random.integers(0, 30, 60)]
    shards = [documents[:20], documents[20:21], documents[21:]]
    manifest = write_raw(tmp_path / "raw", [[token for document in some for token in document] for some in shards])
    from gristmill.formats.indexed_writer import write_indexed

    with write_indexed(str(tmp_path / "pair"), np.dtype("int32")) as writer:
        for document in documents:
            writer.add(np.array(document), np.array([len(document)]))
    expected = rows_of(open_(tmp_path / "pair", eod_id=3, samples=100))
    for spec, options in ((manifest, {}), (manifest.parent, {"cache_dir": tmp_path / "cache"})):
        stream = open_(spec, eod_id=None, samples=100, **options)
        assert (stream.eod_id, stream.vocabulary, stream.dtype) == (3, 1000, np.dtype(np.int32))
        np.testing.assert_array_equal(rows_of(stream), expected)
        again = pickle.loads(pickle.dumps(stream))
        np.testing.assert_array_equal(rows_of(again), expected)
    alone = open_(manifest, eod_id=None, samples=100, cache_dir=tmp_path / "other", process_index=1)
    assert not (tmp_path / "other").exists()
    np.testing.assert_array_equal(rows_of(pickle.loads(pickle.dumps(alone))), expected)


def test_documents_as_the_unit_are_the_order_of_whole_documents(tmp_path: Path, write_pair: WritePair) -> None:
    """MaxText's `mmap_split_sentences`: as if each document had been one sequence."""
    lengths = np.random.default_rng(4).integers(0, 30, 90)
    sentences = write_pair(tmp_path / "sentences", lengths, sentences=3)
    pair = IndexedDataset(sentences)
    from gristmill.formats.indexed_writer import write_indexed

    with write_indexed(str(tmp_path / "whole"), np.dtype("uint16")) as writer:
        writer.add(pair.read(0, pair.num_tokens), lengths.reshape(-1, 3).sum(axis=1))
    by_document = open_(sentences, granularity="document", samples=120, splits="8,1,1", cache_dir=tmp_path / "cache")
    whole = open_(tmp_path / "whole", samples=120, splits="8,1,1")
    np.testing.assert_array_equal(rows_of(by_document), rows_of(whole))
    by_sequence = open_(sentences, samples=120, splits="8,1,1", cache_dir=tmp_path / "cache")
    assert (rows_of(by_sequence) != rows_of(by_document)).any()
    assert by_sequence.fingerprint != by_document.fingerprint
    piece = by_document.describe(7)[0]
    document = pair.document_indices[piece.document]
    first = int(pair.pointers[document]) // 2 + piece.start
    np.testing.assert_array_equal(
        by_document.read([7])[0, : piece.stop - piece.start], pair.read(first, piece.stop - piece.start)
    )
    np.testing.assert_array_equal(rows_of(pickle.loads(pickle.dumps(by_document))), rows_of(whole))


def test_weights_without_a_number_of_samples_repeat_nothing(web: str, code: str) -> None:
    stream = open_(f"{web},0.4;{code},0.6")
    members = [open_(web), open_(code)]
    shares = normalise(normalise([0.4, 0.6]).tolist())
    assert len(stream) == int(min(len(members[0]) / shares[0], len(members[1]) / shares[1]))
    dataset_index, numbers = greedy_blend(shares, len(stream))
    expected = [members[which].read([number])[0] for which, number in zip(dataset_index, numbers, strict=True)]
    np.testing.assert_array_equal(rows_of(stream), expected)


def test_entries_without_weights_are_drawn_in_proportion(web: str, code: str) -> None:
    whole = open_(f"{web};{code}")
    assert len(whole) == len(open_(web)) + len(open_(code))
    rows = rows_of(whole)
    assert sorted(map(tuple, rows.tolist())) == sorted(
        map(tuple, [*rows_of(open_(web)).tolist(), *rows_of(open_(code)).tolist()])
    )
    part = open_(f"{web};{code}", samples=20)
    assert len(part) == 20


def test_the_last_partial_sample_is_kept_when_asked(web: str, code: str, tmp_path: Path) -> None:
    """One row more for each entry, shuffled in with the others, padded at its end."""
    spec = f"{web};{code}"
    options: dict[str, Any] = {"split": "valid", "splits": "1,8", "cache_dir": tmp_path / "cache"}
    dropped, kept = open_(spec, **options), open_(spec, **options, drop_last_partial=False)
    assert isinstance(kept, PaddedMegatronStream)
    assert not isinstance(dropped, PaddedMegatronStream)
    assert len(kept) == len(dropped) + 2
    assert kept.fingerprint != dropped.fingerprint
    rows = np.arange(len(kept))
    tokens, valid = kept.read(rows), kept.valid_length(rows)
    assert (valid < 16).sum() == 2
    for row in rows:
        held = sum(piece.stop - piece.start for piece in kept.describe(int(row)))
        assert held == valid[row] + 1
        assert (tokens[row, held:] == 0).all()
    np.testing.assert_array_equal(kept.reader.read_numpy(rows), tokens)
    again = pickle.loads(pickle.dumps(kept))
    assert isinstance(again, PaddedMegatronStream)
    np.testing.assert_array_equal(again.valid_length(rows), valid)
    np.testing.assert_array_equal(rows_of(again), tokens)
    in_all = sum(member.indices.plan.tokens for member in kept.reader.index.members)
    assert valid.sum() == in_all - 2, "every token of the split but the first of each entry is a target once"


def test_the_loss_of_a_padded_row_ends_with_its_tokens(web: str) -> None:
    stream = open_(web, split="valid", drop_last_partial=False)
    assert isinstance(stream, PaddedMegatronStream)
    valid = stream.valid_length(np.arange(len(stream)))
    (short,) = np.flatnonzero(valid < 16)
    fields = StreamSource(stream)[int(short)]
    for name in ("inputs_segmentation", "targets_segmentation"):
        assert (fields[name] > 0).tolist() == (np.arange(16) < valid[short]).tolist()


def test_more_samples_than_there_are_tokens_for_hold_one_token_each(web: str) -> None:
    """Megatron counts in single precision, so beyond 2**24 tokens a split can have samples too many."""
    stream = open_(web, split="valid", drop_last_partial=False)
    index = stream.reader.index
    (member,) = index.members
    sample_index = np.concatenate([member.indices.sample_index, member.indices.sample_index[-1:]])
    count = member.indices.samples
    indices = dataclasses.replace(
        member.indices, sample_index=sample_index, shuffle_index=np.arange(count + 1, dtype=np.uint32)
    )
    longer = dataclasses.replace(index, members=(dataclasses.replace(member, indices=indices),), rows=count + 1)
    reader = RowReader(lambda: longer)
    rows = np.arange(count + 1)
    assert reader.held(rows)[-1] == 1
    for tokens in (reader.read(rows), reader.read_numpy(rows)):
        assert tokens[-1].tolist() == [1] + [0] * 16, "the last token of the data, an EOD, and padding"


def test_weights_can_change_at_a_sample(web: str, code: str, tmp_path: Path) -> None:
    spec = f"{web},0.9;{code},0.1"
    plain = open_(spec, samples=160)
    options: dict[str, Any] = {"samples": 160, "schedule": {100: (0.1, 0.9)}}
    changed = open_(spec, **options, cache_dir=tmp_path / "cache")
    with building() as built:
        again = open_(spec, **options, cache_dir=tmp_path / "cache")
        assert not built
    assert again.fingerprint == changed.fingerprint == changed.history[-1].fingerprint
    assert [change.from_sample for change in changed.history] == [100]
    np.testing.assert_array_equal(rows_of(again), rows_of(changed))
    np.testing.assert_array_equal(rows_of(pickle.loads(pickle.dumps(changed))), rows_of(changed))
    drawn = changed.reader.index.dataset_index
    assert drawn is not None
    assert (drawn[:100] == 0).sum() == 90
    assert (drawn[100:160] == 0).sum() == 6
    assert plain.reader.index.dataset_index is not None
    np.testing.assert_array_equal(drawn[:100], plain.reader.index.dataset_index[:100])
    from_weights = open_(f"{web},5;{code},5", samples=160, schedule={100: (0.1, 0.9)})
    assert from_weights.fingerprint != changed.fingerprint


def test_more_samples_inside_the_arrays_leave_the_rows_as_they_are(web: str, code: str, tmp_path: Path) -> None:
    spec = f"{web},0.5;{code},0.5"
    few, more = (open_(spec, samples=samples, cache_dir=tmp_path / "cache") for samples in (60, 62))
    assert (few.fingerprint, len(few), len(more)) == (more.fingerprint, 60, 62)
    np.testing.assert_array_equal(rows_of(more)[:60], rows_of(few))
    sharding = SingleDeviceSharding(jax.devices()[0])
    before = TokenBatches(few, 4, sharding, prefetch=0)
    next(before)
    after = TokenBatches(more, 4, sharding, prefetch=0)
    after.set_state(before.get_state())
    assert after.next_sample == 4
    many = TokenBatches(open_(spec, samples=3000, cache_dir=tmp_path / "cache"), 4, sharding, prefetch=0)
    with pytest.raises(CorpusError, match=r"ask for as many as the saved run did \(the order of a prepared corpus can"):
        many.set_state(before.get_state())
    other = TokenBatches(open_(spec, samples=60, seed=9), 4, sharding, prefetch=0)
    with pytest.raises(CorpusError, match=r"Open the corpus with the settings of the saved run, or pass allow_stream"):
        other.set_state(before.get_state())


def test_a_stream_can_be_delivered(web: str) -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    stream = open_(web, samples=64)
    with TokenBatches(stream, global_batch=16, sharding=sharding) as batches:
        batch = next(batches)
        np.testing.assert_array_equal(np.asarray(batch["inputs"]), stream.read(np.arange(16))[:, :-1])
        state = batches.get_state()
    assert state["fingerprint"] == stream.fingerprint


def test_data_and_caches_on_an_object_store(
    web: str, code: str, write_raw: Callable[..., Path], tmp_path: Path
) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    write_raw(tmp_path / "raw", [[*range(4, 300), 3], [*range(4, 90), 3]])
    for path in [*(tmp_path / "data").iterdir(), *(tmp_path / "raw").rglob("*.*")]:
        memory.pipe(f"/adopted/{path.relative_to(tmp_path).as_posix()}", path.read_bytes())
    base = "memory://adopted"
    options = {"samples": 60, "cache_dir": f"{base}/cache"}
    spec = f"{base}/idx|{base}/data/web,0.5;{base}/data/code,0.5"
    expected = open_(f"{web},0.5;{code},0.5", samples=60)
    for _ in range(2):
        stream = open_(spec, **options)
        assert stream.fingerprint == expected.fingerprint
        np.testing.assert_array_equal(rows_of(stream), rows_of(expected))
    np.testing.assert_array_equal(rows_of(pickle.loads(pickle.dumps(stream))), rows_of(expected))
    assert (len(memory.ls("/adopted/idx")), len(memory.ls("/adopted/cache"))) == (4, 7)
    raw = open_(f"{base}/raw", eod_id=None, **options)
    np.testing.assert_array_equal(rows_of(raw), rows_of(open_(tmp_path / "raw", eod_id=None, samples=60)))
    memory.rm("/adopted", recursive=True)


def test_entries_can_be_given_as_they_are(web: str, code: str) -> None:
    entries = [DataEntry(paths=(web,), weight=0.5), DataEntry(paths=(code,), weight=0.5)]
    stream = open_megatron(entries, sequence_length=16, eod_id=1, samples=20)
    np.testing.assert_array_equal(rows_of(stream), rows_of(open_(f"{web},1;{code},1", samples=20)))


# -------------------------------------------------------------------------------------------------- the fingerprint


def test_the_fingerprint_is_that_of_the_rows(web: str, code: str, tmp_path: Path) -> None:
    spec = f"{web},0.5;{code},0.5"
    base = open_(spec, samples=40)
    same = [
        open_(spec, samples=40, cache_dir=tmp_path / "cache"),
        open_(spec, samples=41),
        open_(f"{tmp_path}/idx|{web},5; {code},5;", samples=40),
        open_(f"file://{web},0.5;{os.path.relpath(code)},0.5", samples=40),
    ]
    others = [
        open_(spec, samples=40, seed=1),
        open_(spec, samples=40, sequence_length=8),
        open_(f"{web},0.4;{code},0.6", samples=40),
        open_(f"{code},0.5;{web},0.5", samples=40),
        open_(spec, samples=40, splits="9,1"),
        open_(spec, samples=40, split="valid"),
        open_(spec, samples=4000),
        open_(web, samples=40),
    ]
    assert {stream.fingerprint for stream in same} == {base.fingerprint}
    assert len({stream.fingerprint for stream in [base, *others]}) == 1 + len(others)
    assert "/" not in repr(base)


@pytest.mark.parametrize("kept", [True, False])
def test_a_stream_travels_as_paths_and_keys(web: str, code: str, tmp_path: Path, kept: bool) -> None:
    spec = f"{os.path.relpath(web)},0.5;{code},0.5"
    stream = open_(spec, samples=60, cache_dir=tmp_path / "cache" if kept else None)
    data = pickle.dumps(stream)
    assert len(data) < 4_000
    here = Path.cwd()
    try:
        os.chdir(tmp_path)
        again = pickle.loads(data)
    finally:
        os.chdir(here)
    assert again.fingerprint == stream.fingerprint
    np.testing.assert_array_equal(rows_of(again), rows_of(stream))
    if kept:
        shutil.rmtree(tmp_path / "cache")
        np.testing.assert_array_equal(rows_of(pickle.loads(data)), rows_of(stream))


def test_another_process_maps_what_was_kept_and_hashes_nothing(
    web: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pickle.dumps(open_(web, cache_dir=tmp_path / "cache"))

    def refuse(path: str) -> str:
        raise AssertionError(path)

    monkeypatch.setattr("gristmill.formats.token_shards.sampled_digest", refuse)
    for module in ("adopted_order", "member_store"):
        monkeypatch.setattr(f"gristmill.formats.{module}.build_member", refuse)
    assert len(pickle.loads(data)) > 10


def test_changed_data_are_refused_by_a_stream_that_travelled(web: str, write_pair: WritePair) -> None:
    data = pickle.dumps(open_(web))
    write_pair(Path(web), [20] * 60)
    with pytest.raises(CorpusError, match=r"web: the data changed since the stream was opened; open it again"):
        pickle.loads(data)


# ----------------------------------------------------------------------------------------------------- the caches


@contextmanager
def building() -> Iterator[list[int]]:
    """Counts the members that are built meanwhile."""
    from gristmill.formats.index_member import build_member

    built: list[int] = []

    def counting(*arguments: Any) -> Any:
        built.append(1)
        return build_member(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        for module in ("adopted_order", "member_store"):
            patch.setattr(f"gristmill.formats.{module}.build_member", counting)
        yield built


def test_what_was_built_is_kept_and_found(web: str, code: str, tmp_path: Path) -> None:
    spec = f"{web},0.5;{tmp_path}/own|{code},0.5"
    options: dict[str, Any] = {"samples": 60, "cache_dir": tmp_path / "cache", "blend_cache_dir": tmp_path / "blends"}
    with building() as built:
        first = open_(spec, **options)
        assert len(built) == 2
        again = open_(spec, **options)
        assert len(built) == 2
    np.testing.assert_array_equal(rows_of(again), rows_of(first))
    counts = {name: len(list((tmp_path / name).iterdir())) for name in ("cache", "own", "blends")}
    assert counts == {"cache": 4, "own": 4, "blends": 3}


def test_only_process_zero_writes(web: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    alone = open_(web, cache_dir=cache, process_index=3)
    assert not cache.exists()
    first = open_(web, cache_dir=cache, process_index=0)
    np.testing.assert_array_equal(rows_of(alone), rows_of(first))


def test_nothing_is_written_without_a_folder(web: str, tmp_path: Path) -> None:
    before = sorted(path.name for path in (tmp_path / "data").iterdir())
    open_(web)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == before == ["web.bin", "web.idx"]


WORKER = """
import hashlib, sys, numpy
from gristmill.runtime import open_megatron
spec, cache, index = sys.argv[1:]
stream = open_megatron(spec, sequence_length=16, eod_id=1, samples=3000, cache_dir=cache, process_index=int(index))
rows = stream.read(numpy.arange(len(stream)))
print(stream.fingerprint, hashlib.sha256(rows.tobytes()).hexdigest())
"""


def start(spec: str, cache: Path, index: int = 0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WORKER, spec, str(cache), str(index)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "private"])
@pytest.mark.parametrize("same_index", [True, False], ids=["all write", "one writes"])
def test_four_processes_that_start_at_once_agree(
    web: str, code: str, tmp_path: Path, shared: bool, same_index: bool
) -> None:
    spec = f"{web},0.5;{code},0.5"
    folders = [tmp_path / ("cache" if shared else f"cache{number}") for number in range(4)]
    running = [start(spec, folder, 0 if same_index else number) for number, folder in enumerate(folders)]
    said = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * 4, said
    assert [error for _, error in said] == [""] * 4
    assert len({out for out, _ in said}) == 1
    for folder in {folder for number, folder in enumerate(folders) if same_index or number == 0}:
        names = [path.name for path in folder.iterdir()]
        assert len(names) == 2 * 4 + 3
        assert not [name for name in names if name.startswith(".")]
    with building() as built:
        stream = open_(spec, samples=3000, cache_dir=folders[0])
        assert not built
    assert said[0][0].split() == [stream.fingerprint, hashlib.sha256(rows_of(stream).tobytes()).hexdigest()]


def test_a_builder_that_died_leaves_nothing_in_the_way(
    web: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two files: the first arrays are there, a temporary file is, the record is not."""
    from gristmill.formats.npy import write_npy

    cache = tmp_path / "cache"

    def dying(path: str, array: Any) -> Any:
        if "shuffle" in path:
            (cache / f".{Path(path).name}.{'0' * 32}.tmp").write_bytes(b"half")
            raise KeyboardInterrupt
        return write_npy(path, array)

    monkeypatch.setattr("gristmill.formats.index_writer.write_npy", dying)
    with pytest.raises(KeyboardInterrupt):
        open_(web, cache_dir=cache)
    assert len(list(cache.iterdir())) == 3
    monkeypatch.undo()
    expected = rows_of(open_(web))
    np.testing.assert_array_equal(rows_of(open_(web, cache_dir=cache)), expected)
    with building() as built:
        np.testing.assert_array_equal(rows_of(open_(web, cache_dir=cache)), expected)
        assert not built


def test_a_killed_builder_is_no_hindrance(web: str, code: str, tmp_path: Path) -> None:
    spec = f"{web},0.5;{code},0.5"
    for wait in (0.3, 0.6):
        process = start(spec, tmp_path / "cache")
        timer = threading.Timer(wait, process.kill)
        timer.start()
        process.communicate(timeout=60)
        timer.cancel()
    stream = open_(spec, samples=3000, cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(rows_of(stream), rows_of(open_(spec, samples=3000)))


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Takes away the right to write; the superuser keeps it, so a file stands in the folder's way there."""
    if os.geteuid() == 0:
        moved = folder.rename(folder.with_name(f"{folder.name}-kept")) if folder.exists() else None
        folder.write_text("in the way")
        yield
        folder.unlink()
        if moved is not None:
            moved.rename(folder)
        return
    folder.mkdir(exist_ok=True)
    mode = stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(0o555)
    yield
    folder.chmod(mode)


def test_a_cache_that_cannot_be_written_is_a_warning_with_path_and_option(web: str, code: str, tmp_path: Path) -> None:
    expected = rows_of(open_(f"{web},1;{code},1", samples=50))
    with read_only(tmp_path / "cache"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            stream = open_(f"{web},1;{code},1", samples=50, cache_dir=tmp_path / "cache")
        said = [str(warning.message) for warning in caught]
        np.testing.assert_array_equal(rows_of(stream), expected)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.testing.assert_array_equal(rows_of(pickle.loads(pickle.dumps(stream))), expected)
    assert len(said) == 3
    assert all(re.search(rf"cannot be kept: {tmp_path}/cache.*name a folder that can", message) for message in said)
    assert [message.rsplit(" ", 1)[1] for message in said] == ["cache_dir", "cache_dir", "blend_cache_dir"]


@pytest.mark.parametrize("index", ["document_index", "sample_index", "shuffle_index"])
def test_a_half_written_array_is_named_and_built_anew(web: str, tmp_path: Path, index: str) -> None:
    cache = tmp_path / "cache"
    expected = rows_of(open_(web, cache_dir=cache))
    (path,) = cache.glob(f"*-{index}.npy")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.warns(UserWarning, match=rf"web: stored indices cannot be used: {path}: \d+ bytes where.*built anew"):
        stream = open_(web, cache_dir=cache)
    np.testing.assert_array_equal(rows_of(stream), expected)
    with building() as built:
        open_(web, cache_dir=cache)
        assert not built


def test_a_half_written_blend_is_named_and_built_anew(web: str, code: str, tmp_path: Path) -> None:
    options = {"samples": 50, "cache_dir": tmp_path / "cache"}
    expected = rows_of(open_(f"{web},1;{code},1", **options))
    (path,) = (tmp_path / "cache").glob("*-dataset_index.npy")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.warns(UserWarning, match=rf"train: a stored blend is not used: {path}: \d+ bytes where"):
        stream = open_(f"{web},1;{code},1", **options)
    np.testing.assert_array_equal(rows_of(stream), expected)
    open_(f"{web},1;{code},1", **options)


@pytest.mark.parametrize("what", ["index", "tokens"])
def test_other_data_under_the_same_name_size_and_time_are_never_served_the_old_order(
    tmp_path: Path, write_pair: WritePair, what: str
) -> None:
    prefix = write_pair(tmp_path / "web", [30, 40] * 40)
    before = open_(prefix, cache_dir=tmp_path / "cache")
    path = Path(f"{prefix}.{'idx' if what == 'index' else 'bin'}")
    times = path.stat()
    if what == "index":
        write_pair(tmp_path / "web", [40, 30] * 40)
    else:
        write_pair(tmp_path / "web", [30, 40] * 40, seed=9)
    assert path.stat().st_size == times.st_size
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = open_(prefix, cache_dir=tmp_path / "cache")
    assert after.fingerprint != before.fingerprint
    np.testing.assert_array_equal(rows_of(after), rows_of(open_(prefix)))


def test_swapped_names_and_one_more_shard_are_noticed(tmp_path: Path, write_pair: WritePair) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        write_pair(tmp_path / "data" / name, [30] * 40, seed=seed)
    options = {"cache_dir": tmp_path / "cache"}
    before = open_(tmp_path / "data", **options)
    for kind in ("bin", "idx"):
        (tmp_path / "data" / f"a.{kind}").rename(tmp_path / "data" / f"x.{kind}")
        (tmp_path / "data" / f"b.{kind}").rename(tmp_path / "data" / f"a.{kind}")
        (tmp_path / "data" / f"x.{kind}").rename(tmp_path / "data" / f"b.{kind}")
    swapped = open_(tmp_path / "data", **options)
    write_pair(tmp_path / "data" / "c", [30] * 40, seed=3)
    more = open_(tmp_path / "data", **options)
    assert len({stream.fingerprint for stream in (before, swapped, more)}) == 3
    np.testing.assert_array_equal(rows_of(more), rows_of(open_(tmp_path / "data")))


def test_many_shards_stay_within_the_limit_of_open_files(tmp_path: Path, write_pair: WritePair) -> None:
    """Under 1,024 descriptors, and as few as 80 are enough."""
    import resource

    pair = Path(write_pair(tmp_path / "one", [20, 30]))
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(600):
        for kind in (".bin", ".idx"):
            os.link(pair.with_suffix(kind), folder / f"{number:04d}{kind}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 80, hard))
    try:
        stream = open_(folder, cache_dir=tmp_path / "cache")
        rows = rows_of(stream)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert rows.shape == (len(stream), 17)
    stream.close()


# ----------------------------------------------------------------------------------- indices of Megatron's and others


def leave_megatrons(folder: Path, stream: MegatronStream, prefix: str, **told: Any) -> None:
    """Writes the indices of a stream's first member as Megatron would have."""
    folder.mkdir(exist_ok=True)
    indices = stream.reader.index.members[0].indices
    value = {
        "class": "GPTDataset",
        "dataset_path": prefix,
        "num_samples": None,
        "index_split": "train",
        "random_seed": 1234,
        "sequence_length": 16,
        "split": "1",
        "split_matrix": [[0, 1.0], None, None],
        "tokenizer": {},
    } | told
    text = json.dumps(value, indent=4)
    stem = f"{folder}/{hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()}-GPTDataset-train"
    Path(f"{stem}-description.txt").write_text(text)
    for index in ("document_index", "sample_index", "shuffle_index"):
        np.save(f"{stem}-{index}.npy", getattr(indices, index))


def test_a_cache_of_megatrons_is_used(web: str, tmp_path: Path) -> None:
    stream = open_(web)
    leave_megatrons(tmp_path / "cache", stream, web)
    with building() as built:
        reused = open_(web, cache_dir=tmp_path / "cache", foreign_caches="require")
        again = pickle.loads(pickle.dumps(reused))
        assert not built
    np.testing.assert_array_equal(rows_of(reused), rows_of(stream))
    np.testing.assert_array_equal(rows_of(again), rows_of(stream))
    assert reused.fingerprint == stream.fingerprint
    assert len(list((tmp_path / "cache").iterdir())) == 4
    with building() as built:
        open_(web, cache_dir=tmp_path / "cache", foreign_caches="ignore")
        assert built
    assert len(list((tmp_path / "cache").iterdir())) == 8


def test_a_cache_of_megatrons_that_does_not_fit_is_named(web: str, tmp_path: Path, write_pair: WritePair) -> None:
    leave_megatrons(tmp_path / "cache", open_(web), web)
    write_pair(Path(web), [20, 30] * 40)
    with pytest.raises(
        CorpusError, match=r"cache: stored indices are required for 'web', but none fits: .*-GPTDataset"
    ):
        open_(web, cache_dir=tmp_path / "cache", foreign_caches="require")
    with pytest.warns(
        UserWarning, match=r"web: stored indices are not used: .*-GPTDataset-train-sample_index\.npy: sha"
    ):
        stream = open_(web, cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(rows_of(stream), rows_of(open_(web)))


def test_what_is_required_and_not_there(web: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="none there is for web, seed 1234, length 16"):
        open_(web, cache_dir=tmp_path / "cache", foreign_caches="require")
    with pytest.raises(CorpusError, match="stored indices are required, but no cache folder is named; give cache_dir"):
        open_(web, foreign_caches="require")
    for name, prefix in (("web", web), ("code", code)):
        open_(f"{tmp_path}/{name}|{prefix}", samples=400, epochs=None)
    open_(f"{tmp_path}/web|{web},1;{tmp_path}/code|{code},1", samples=40)
    with pytest.raises(CorpusError, match="train: a stored blend is required, but none fits: none"):
        open_(f"{tmp_path}/web|{web},1;{tmp_path}/code|{code},1", samples=40, foreign_caches="require")


def leave_blend(folder: Path, weights: list[float], size: int, stem: str = "") -> None:
    folder.mkdir(exist_ok=True)
    first, second = greedy_blend(normalise(normalise(weights).tolist()), size)
    np.save(folder / f"{stem}dataset_index.npy", first)
    np.save(folder / f"{stem}dataset_sample_index.npy", second)


def test_a_blend_made_beforehand_goes_first_and_may_be_longer(
    web: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = f"{web},0.3;{code},0.7"
    expected = rows_of(open_(spec, samples=50))
    leave_blend(tmp_path / "made", [0.3, 0.7], 70)

    def refuse(*_: Any) -> Any:
        raise AssertionError("the blend is there")

    monkeypatch.setattr("gristmill.formats.adopted_blend.build_blend", refuse)
    options = {"samples": 50, "blend_index_dir": tmp_path / "made", "blend_cache_dir": tmp_path / "cache"}
    stream = open_(spec, **options)
    np.testing.assert_array_equal(rows_of(stream), expected)
    assert len(stream) == 50
    assert not (tmp_path / "cache").exists()
    with (
        pytest.raises(AssertionError, match="the blend is there"),
        pytest.warns(UserWarning, match="70 samples, but 80 are needed"),
    ):
        open_(spec, **{**options, "samples": 80})


@pytest.mark.parametrize(
    ("weights", "size", "message"),
    [
        (
            [0.7, 0.3],
            70,
            r"made/dataset_index\.npy: sample 0 is of member 0, but these weights give member 1: made for o",
        ),
        ([0.3, 0.7], 40, r"made/dataset_index\.npy: 40 samples, but 50 are needed"),
        (None, 0, "made: holds no dataset_index.npy and dataset_sample_index.npy"),
    ],
)
def test_a_blend_that_does_not_fit_is_named_and_the_cache_is_next(
    web: str, code: str, tmp_path: Path, weights: list[float] | None, size: int, message: str
) -> None:
    spec = f"{web},0.3;{code},0.7"
    if weights is not None:
        leave_blend(tmp_path / "made", weights, size)
    with pytest.warns(UserWarning, match=message):
        stream = open_(spec, samples=50, blend_index_dir=tmp_path / "made", blend_cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(rows_of(stream), rows_of(open_(spec, samples=50)))
    assert len(list((tmp_path / "cache").iterdir())) == 3
    again = open_(spec, samples=50, blend_index_dir=tmp_path / "made", blend_cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(rows_of(again), rows_of(stream))


# ----------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("spec", "options", "error", "message"),
    [
        ("", {}, SettingsError, "data '': names no data"),
        ("WEB,-1;CODE,1", {}, SettingsError, "weight -1 is negative"),
        ("WEB-gone", {}, InputError, "web-gone: neither this folder nor"),
        ("WEB", {"eod_id": None}, SettingsError, "eod_id is needed"),
        ("WEB", {"eod_id": 500, "vocabulary": 500}, SettingsError, "eod_id 500 lies outside the vocabulary of 500"),
        ("WEB", {"granularity": "line"}, SettingsError, "granularity 'line'"),
        ("WEB", {"split": "dev"}, SettingsError, "split 'dev'"),
        ("WEB", {"drop_last_partial": False}, SettingsError, "train: the partial last sample is always dropped"),
        ("WEB,1;CODE,1", {"split": "valid", "schedule": {5: (1, 2)}}, SettingsError, "in the training split alone"),
        ("WEB,1;CODE,1", {"schedule": {5: (1, 2)}}, SettingsError, "a schedule of weights needs a number of samples"),
        ("WEB,1;CODE,1", {"samples": 9, "schedule": {5: (1,)}}, SettingsError, "1 weights from sample 5 on for 2 sou"),
        ("WEB,1;CODE,1", {"samples": 9, "schedule": {9: (1, 2)}}, SettingsError, "the rule is from_sample above 0 an"),
        ("WEB", {"foreign_caches": "maybe"}, SettingsError, "foreign_caches 'maybe': it is 'use', 'ignore' or 'req"),
        ("WEB", {"max_open_shards": 0}, SettingsError, "max_open_shards must be at least 1"),
        ("WEB", {"sequence_length": 100_000}, DataError, "source 'web' gives no sample"),
        ("WEB,5;CODE,5;WEB,1", {"samples": 2}, SettingsError, "source 'web-2' would get none of the 2 samples"),
        ("WEB", {"split": "test", "splits": "100,0,0"}, CorpusError, "test: the index set holds no samples of this"),
        ("WEB", {"split": "test", "splits": "1,0", "samples": 5}, DataError, "test: 5 samples asked for, but no sou"),
        ("WEB,1;WEBx,1", {}, InputError, "webx: neither this folder nor"),
        ("WEB", {"samples": 1e3}, SettingsError, "samples must be a whole number, not 1000.0"),
        ("WEB", {"sequence_length": "16"}, SettingsError, "sequence_length must be a whole number, not '16'"),
        ("WEB", {"eod_id": "1"}, SettingsError, "eod_id must be a whole number, not '1'"),
        ("WEB", {"splits": 98}, SettingsError, "split 98: no text; write up to three proportions"),
        ("WEB,1", {"samples": 9, "schedule": {5: 1}}, SettingsError, "schedule: weights from sample 5 on are 1; the r"),
        ("WEB,1", {"samples": 9, "schedule": [(5, 1)]}, SettingsError, r"schedule is \[\(5, 1\)\]; the rule is"),
        ("WEB", {"max_open_shards": "4"}, SettingsError, "max_open_shards must be a whole number, not '4'"),
    ],
)
def test_what_is_refused(
    web: str, code: str, spec: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_(spec.replace("WEB", web).replace("CODE", code), **options)


def test_data_are_named_by_a_path_too_and_numbers_may_be_numpys(web: str) -> None:
    stream = open_(web, seed=7)
    again = open_megatron(Path(web), sequence_length=np.int32(16), eod_id=np.int64(1), seed=np.int64(7))  # type: ignore[arg-type]  # they are taken
    assert again.fingerprint == stream.fingerprint
    assert json.dumps(dict(again.facts)) == json.dumps(dict(stream.facts))
    for wrong in ([web], 7, []):
        with pytest.raises(SettingsError, match=r"the data are .*; name them by a path, by a line of text"):
            open_megatron(wrong, sequence_length=16, eod_id=1)  # type: ignore[arg-type]  # on purpose


def test_data_without_the_eod_warn(web: str, code: str) -> None:
    with pytest.warns(
        UserWarning, match=r"code: none of 32 documents looked at ends with eod_id=7 \(the first with 1\)"
    ):
        open_(code, eod_id=7)
    open_(web, eod_id=1)


def test_a_damaged_pair_is_named(web: str) -> None:
    path = Path(f"{web}.bin")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(FormatError, match=r"web\.bin: has \d+ bytes, but .*web\.idx ends at byte \d+"):
        open_(web)


def test_an_entry_without_samples_in_a_split_is_listed(web: str, tmp_path: Path, write_pair: WritePair) -> None:
    short = write_pair(tmp_path / "short", [3, 3])
    stream = open_(f"{web};{short}", split="valid", splits="1,1")
    assert stream.sources == ("web",)
    assert [(entry.source, entry.place) for entry in stream.left_out] == [("short", 1)]
    assert "its 1 sequences hold 3 tokens" in stream.left_out[0].reason
