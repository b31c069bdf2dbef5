"""Opening a corpus: which index set is chosen, what is refused and why, and what its streams say of themselves."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.errors import CorpusError, FormatError, SettingsError
from gristmill.formats.schedule import Phase
from gristmill.runtime import Stream, open_corpus

Maker = Any


@pytest.fixture(scope="module")
def corpus(make_corpus: Maker) -> str:
    """One source; sets of length 16 (the corpus's own) and 8, seeds 1234 and 7."""
    folder: str = make_corpus(documents={"web": 80})
    make_corpus.index(folder, 8, 1234, own=False)
    make_corpus.index(folder, 8, 7, own=False)
    make_corpus.index(folder, 16, 7, own=False)
    make_corpus.index(folder, 16, 1234)
    return folder


@pytest.mark.parametrize(
    ("length", "seed", "expected"),
    [(None, None, (16, 1234)), (8, None, (8, 1234)), (None, 7, (16, 7)), (8, 7, (8, 7)), (16, 1234, (16, 1234))],
)
def test_what_is_not_asked_for_is_the_corpus_own(
    corpus: str, length: int | None, seed: int | None, expected: tuple[int, int]
) -> None:
    stream = open_corpus(corpus).stream("train", length, seed)
    assert f"L{expected[0]}-s{expected[1]}-" in " ".join(found.name for found in open_corpus(corpus).index_sets())
    assert stream.sequence_length == expected[0]
    other = open_corpus(corpus).stream(split="train", sequence_length=expected[0], seed=expected[1])
    assert stream.fingerprint == other.fingerprint


def test_every_set_gives_another_fingerprint(corpus: str) -> None:
    opened = open_corpus(corpus)
    fingerprints = {
        opened.stream(split, length, seed).fingerprint
        for split in ("train", "valid")
        for length in (8, 16)
        for seed in (7, 1234)
    }
    assert len(fingerprints) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"sequence_length": 32},
            "no index set for sequence length 32 and seed 1234. Present: L16-s1234-.*, L16-s7-.*",
        ),
        ({"sequence_length": 32}, r"build it with `gristmill index .* --seq-length 32 --seed 1234`"),
        ({"seed": 5}, "no index set for sequence length 16 and seed 5"),
        ({"index_set": "L4-s1-abc"}, "L4-s1-abc: no set.json, so this index set is missing or unfinished"),
    ],
)
def test_a_missing_set_is_named_with_those_present(corpus: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        open_corpus(corpus).stream(**arguments)


def test_a_set_can_be_named(corpus: str, make_corpus: Maker) -> None:
    opened = open_corpus(corpus)
    name = next(found.name for found in opened.index_sets() if found.name.startswith("L8-s7-"))
    assert opened.stream(index_set=name).sequence_length == 8
    with pytest.raises(CorpusError, match="has sequence length 8 and seed 7, not sequence length 16; leave out"):
        opened.stream(index_set=name, sequence_length=16)


def test_sets_that_differ_only_in_size_must_be_named(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 80})
    names = [make_corpus.index(folder, 16, 1234, samples, own=False) for samples in (40, 50)]
    with pytest.raises(CorpusError, match=r"prepared without \[index\], so no sequence length is set. Present: L16-"):
        open_corpus(folder).stream()
    with pytest.raises(CorpusError, match=r"several index sets fit sequence length 16 and seed 1234 .*name one with"):
        open_corpus(folder).stream(sequence_length=16, seed=1234)
    assert [len(open_corpus(folder).stream(index_set=name)) for name in names] == [40, 50]


def test_without_any_set_the_command_is_named(make_corpus: Maker) -> None:
    folder = make_corpus()
    with pytest.raises(CorpusError, match=r"There is none; build it with `gristmill index .* --seq-length LENGTH`"):
        open_corpus(folder).stream()


def test_the_length_is_the_number_asked_for(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 80})
    make_corpus.index(folder, samples=33)
    stream = open_corpus(folder).stream()
    assert len(stream) == 33
    assert len(stream.reader.index.members[0].indices.shuffle_index) > 33
    with pytest.raises(IndexError, match="row 33 does not exist; the stream has 33 rows"):
        stream.read([33])


@pytest.mark.parametrize(
    ("split", "error", "message"),
    [
        ("test", CorpusError, r"test: the index set holds no samples of this split \('web': splits .* give it none of"),
        ("dev", SettingsError, "split 'dev': the splits are train, valid, test"),
    ],
)
def test_a_split_without_rows(corpus: str, split: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_corpus(corpus).stream(split)


def test_a_source_that_takes_no_part_is_listed(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 80, "code": 3})
    make_corpus.index(folder)
    corpus = open_corpus(folder)
    valid = corpus.stream("valid")
    assert valid.sources == ("web",)
    assert [(entry.source, entry.split) for entry in valid.left_out] == [("code", "valid")]
    assert corpus.stream("train").left_out == ()
    assert corpus.stream("train").sources == ("web", "code")


def test_rows_are_the_documents_that_were_written(make_corpus: Maker, blended_corpus: str) -> None:
    stream = open_corpus(blended_corpus).stream()
    assert isinstance(stream, Stream)
    assert stream.dtype == np.uint16
    assert (stream.eod_id, stream.vocabulary) == (1, 500)
    tokens = stream.read(np.arange(len(stream)))
    assert tokens.shape == (200, 17)
    documents = make_corpus.documents[blended_corpus]
    drawn = {"web": 0, "code": 0}
    for row in range(len(stream)):
        column = 0
        for piece in stream.describe(row):
            shard = int(piece.shard.rsplit("-", 3)[1])
            document = documents[piece.source][shard][piece.document]
            assert piece.column == column
            column += piece.stop - piece.start
            assert tokens[row, piece.column : column].tolist() == document[piece.start : piece.stop].tolist()
        assert column == 17
        drawn[piece.source] += 1
    assert drawn == {"web": 140, "code": 60}
    with pytest.raises(IndexError, match="row 200 does not exist"):
        stream.describe(200)


def test_int32_corpora_give_int32_rows(make_corpus: Maker) -> None:
    folder = make_corpus(dtype="int32", vocabulary=100_000)
    make_corpus.index(folder)
    tokens = open_corpus(folder).stream().read([0, 1, 2])
    assert tokens.dtype == np.int32
    assert tokens.max() > 65_535


def test_a_stream_travels_as_a_path(blended_corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(blended_corpus).parent)
    stream = open_corpus(Path(blended_corpus).name).stream(max_open_shards=2)
    expected = stream.read(np.arange(50))
    data = pickle.dumps(stream)
    assert len(data) < 2_000
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(data)
    assert repr(again) == repr(stream)
    assert again.fingerprint == stream.fingerprint
    np.testing.assert_array_equal(again.read(np.arange(50)), expected)
    stream.close()
    np.testing.assert_array_equal(stream.read(np.arange(50)), expected)


def test_a_stream_does_not_travel_to_another_corpus(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 80})
    name = make_corpus.index(folder)
    data = pickle.dumps(open_corpus(folder).stream())
    path = Path(folder) / "indices" / name / "set.json"
    other = make_corpus(documents={"web": 80}, seed=5)
    (path.parent / "set.json").write_text((Path(other) / "indices" / make_corpus.index(other) / "set.json").read_text())
    with pytest.raises(CorpusError, match="train: prepared anew since the stream was opened; open the corpus again"):
        pickle.loads(data)


def test_indices_of_other_shards_are_never_used(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 80})
    name = make_corpus.index(folder)
    manifest = Path(folder) / "manifest.json"
    value = json.loads(manifest.read_text())
    value["sources"][0]["shards"][1]["bin"]["sha256"] = "f" * 64
    manifest.write_text(json.dumps(value))
    with pytest.raises(CorpusError, match=f"{name}: built from other shards of source 'web'"):
        open_corpus(folder).stream()
    assert open_corpus(folder).index_sets() == []
    with pytest.raises(CorpusError, match=r"no index set for sequence length 16 and seed 1234\. There is none"):
        open_corpus(folder).stream(sequence_length=16)


def test_a_set_without_the_extra_token_is_refused(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 80})
    make_corpus.index(folder, extra=False)
    with pytest.raises(CorpusError, match="built without the extra token"):
        open_corpus(folder).stream()


def test_a_schedule_is_followed_and_a_state_crosses_into_it(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 400, "code": 400}, weights={"web": 0.9, "code": 0.1})
    plain = make_corpus.index(folder, samples=160)
    phases = (Phase(100, (0.1, 0.9)),)
    name = make_corpus.index(folder, samples=160, schedule=phases, own=False)
    corpus = open_corpus(folder)
    before, after = (corpus.stream(index_set=one) for one in (plain, name))
    rows = np.arange(160)
    assert before.history == ()
    assert [(change.from_sample, change.parent) for change in after.history] == [(100, before.fingerprint)]
    np.testing.assert_array_equal(after.read(rows[:100]), before.read(rows[:100]))
    assert (after.read(rows[100:]) != before.read(rows[100:])).any()
    drawn = [after.describe(int(row))[0].source for row in rows]
    assert (drawn[:100].count("web"), drawn[100:].count("web")) == (90, 6)
    for place, source in enumerate(after.sources):
        assert after.reader.index.dataset_index is not None
        assert after.reader.index.dataset_sample_index is not None
        own = after.reader.index.dataset_sample_index[:160][after.reader.index.dataset_index[:160] == place]
        assert own.tolist() == list(range(drawn.count(source)))
    assert pickle.loads(pickle.dumps(after)).history == after.history


def test_moving_a_corpus_keeps_the_fingerprint(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 80})
    make_corpus.index(folder)
    before = open_corpus(folder).stream().fingerprint
    moved = Path(folder).rename(folder + "-moved")
    assert open_corpus(moved).stream().fingerprint == before
    assert open_corpus(f"file://{moved}").stream().fingerprint == before


@pytest.mark.parametrize(
    ("prepare", "error", "message"),
    [
        (lambda folder: None, CorpusError, "no such folder; a corpus is made by `gristmill prepare RECIPE`"),
        (lambda folder: folder.mkdir(), CorpusError, "no manifest.json, so this is no finished corpus"),
        (lambda folder: (folder.mkdir(), (folder / "manifest.json").write_text("{")), FormatError, "damaged manifest"),
    ],
    ids=["absent", "unfinished", "damaged"],
)
def test_no_corpus(tmp_path: Path, prepare: Callable[[Path], object], error: type[Exception], message: str) -> None:
    prepare(tmp_path / "out")
    with pytest.raises(error, match=message):
        open_corpus(tmp_path / "out")


WITHOUT_JAX = """
import sys
from gristmill.runtime import open_corpus
stream = open_corpus(sys.argv[1]).stream()
stream.read([0, 1])
stream.describe(0)
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"jax", "grain", "orbax", "apache_beam"}))
"""


def test_reading_needs_neither_jax_nor_grain(blended_corpus: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX, blended_corpus], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


READ_ONE = """
import json, sys
import gristmill
from gristmill.runtime import open_corpus
print(json.dumps([gristmill.__file__, open_corpus(sys.argv[1]).stream().read([0]).tolist()]))
"""


def test_reading_works_where_no_compiled_code_can_be_kept(
    blended_corpus: str, repository: Path, tmp_path: Path
) -> None:
    package = tmp_path / "gristmill"
    shutil.copytree(repository / "src" / "gristmill", package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (package, *(path for path in package.iterdir() if path.is_dir())):
        (folder / "__pycache__").write_text("a file, so that no folder can take its place")
    nowhere = {"PYTHONPATH": str(tmp_path), "HOME": os.devnull, "XDG_CACHE_HOME": os.devnull}
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | nowhere
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", READ_ONE, blended_corpus],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    file, tokens = json.loads(done.stdout)
    assert Path(file).parent == package
    assert tokens == open_corpus(blended_corpus).stream().read([0]).tolist()


def rows_of(stream: Stream) -> np.ndarray:
    return stream.read(np.arange(len(stream)))


def test_a_missing_index_set_is_built_when_asked(make_corpus: Maker) -> None:
    """For as many tokens as the corpus's own order: 200 rows of 16 tokens are 100 of 32."""
    folder = make_corpus(weights={"web": 0.7, "code": 0.3})
    make_corpus.index(folder, samples=200)
    corpus = open_corpus(folder)
    with pytest.raises(CorpusError, match="no index set for sequence length 32"):
        corpus.stream(sequence_length=32)
    alone = corpus.stream(sequence_length=32, build=True, process_index=1)
    assert len(corpus.index_sets()) == 1
    travelled = pickle.loads(pickle.dumps(alone))
    built = corpus.stream(sequence_length=32, build=True)
    assert len(corpus.index_sets()) == 2
    found = corpus.stream(sequence_length=32)
    assert len(built) == len(found) == 100
    for stream in (alone, travelled, built, pickle.loads(pickle.dumps(alone)), pickle.loads(pickle.dumps(built))):
        assert stream.fingerprint == found.fingerprint
        np.testing.assert_array_equal(rows_of(stream), rows_of(found))
    assert alone.describe(3) == found.describe(3)
    assert repr(alone) == repr(found)


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"sequence_length": 8, "samples": 30}, 30),
        ({"seed": 5}, 200),
        ({"sequence_length": 24, "split": "valid"}, None),
    ],
)
def test_what_is_built_is_what_is_asked_for(
    make_corpus: Maker, options: dict[str, Any], rows: int | None, process: int
) -> None:
    folder = make_corpus(weights={"web": 0.7, "code": 0.3})
    make_corpus.index(folder, samples=200)
    stream = open_corpus(folder).stream(**options, build=True, process_index=process)
    assert rows is None or len(stream) == rows
    assert stream.sequence_length == options.get("sequence_length", 16)
    assert (stream.split, len(open_corpus(folder).index_sets())) == (options.get("split", "train"), 2 - process)


def test_what_is_there_is_not_built_again(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 80})
    name = make_corpus.index(folder, samples=50)
    stream = open_corpus(folder).stream(build=True)
    assert [found.name for found in open_corpus(folder).index_sets()] == [name]
    assert len(stream) == 50
    with pytest.raises(CorpusError, match="5000 samples asked for, but the stored indices hold"):
        open_corpus(folder).stream(build=True, samples=5000)


def test_a_corpus_without_an_order_of_its_own_needs_a_length(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 80})
    with pytest.raises(CorpusError, match=r"prepared without \[index\], so no sequence length is set"):
        open_corpus(folder).stream(build=True)
    stream = open_corpus(folder).stream(sequence_length=16, build=True)
    assert len(stream) == len(open_corpus(folder).stream(sequence_length=16, seed=1234))


def test_a_corpus_that_cannot_be_written_is_read_all_the_same(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 80})
    expected = rows_of(open_corpus(folder).stream(sequence_length=16, build=True, process_index=1))
    (Path(folder) / "indices").write_text("in the way")
    with pytest.warns(UserWarning, match=r"the index set cannot be kept: .*indices/.*make .*/indices writable, or run"):
        stream = open_corpus(folder).stream(sequence_length=16, build=True)
    np.testing.assert_array_equal(rows_of(stream), expected)
    np.testing.assert_array_equal(rows_of(pickle.loads(pickle.dumps(stream))), expected)
