"""Window streams: what a row holds, that each window comes once, that splits share nothing, and what a stream says."""

import os
import pickle
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.formats.errors import CorpusError, DataError, SettingsError
from gristmill.formats.indexed import bin_path
from gristmill.formats.indexed_writer import write_indexed
from gristmill.formats.schedule import Phase
from gristmill.formats.split import split_bounds
from gristmill.runtime import open_corpus
from gristmill.runtime.streams import DocumentStream, Stream
from gristmill.runtime.window_stream import PaddedWindowStream, WindowStream
from gristmill.runtime.windows import WindowOptions, open_windows

EOD = 1
Documents = list[list[NDArray[np.integer]]]


def write(folder: Path, shards: Documents, dtype: str = "uint16") -> str:
    """Pairs of a folder, one for each list of documents."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, documents in enumerate(shards):
        with write_indexed(str(folder / f"part-{number:03d}"), np.dtype(dtype)) as writer:
            for document in documents:
                writer.add(document, np.array([len(document)]))
    return str(folder)


def tokens_of(shards: Documents) -> NDArray[np.integer]:
    return np.concatenate([document for documents in shards for document in documents])


def documents(lengths: list[list[int]], dtype: str = "uint16") -> Documents:
    """Documents of these lengths, shard by shard; every token but the last of each is another number."""
    count = iter(range(2, 60_000))
    return [[np.array([*(next(count) for _ in range(n - 1)), EOD], dtype) for n in shard] for shard in lengths]


def windows_of(tokens: NDArray[np.integer], length: int) -> list[tuple[int, ...]]:
    """All whole windows, by the definition."""
    return [tuple(tokens[first : first + length + 1].tolist()) for first in range(0, len(tokens) - length, length)]


SHARDS = st.lists(st.lists(st.integers(1, 30), min_size=0, max_size=8), min_size=1, max_size=5).filter(
    lambda shards: sum(map(sum, shards)) > 20
)
FOLDERS = iter(range(10**9))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shards=SHARDS, length=st.integers(1, 19), seed=st.integers(0, 2**32), epochs=st.integers(1, 3), data=st.data())
def test_each_pass_has_every_window_once_and_is_shuffled_by_itself(
    tmp_path: Path, shards: list[list[int]], length: int, seed: int, epochs: int, data: st.DataObject
) -> None:
    written = documents(shards)
    folder = write(tmp_path / str(next(FOLDERS)), written)
    stream = open_windows(folder, sequence_length=length, eod_id=EOD, seed=seed, epochs=epochs)
    expected = windows_of(tokens_of(written), length)
    assert len(stream) == epochs * len(expected)
    rows = [tuple(row) for row in stream.read(np.arange(len(stream))).tolist()]
    for first in range(0, len(rows), len(expected)):
        assert Counter(rows[first : first + len(expected)]) == Counter(expected)
    some = data.draw(st.lists(st.integers(0, len(stream) - 1), max_size=20))
    assert [tuple(row) for row in stream.read(np.array(some, np.int64)).tolist()] == [rows[row] for row in some]
    stream.close()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shards=SHARDS, length=st.integers(1, 12), splits=st.sampled_from(["98,1,1", "1,1,1", "60,40", "5,0,5"]))
def test_splits_share_no_document_and_no_token(
    tmp_path: Path, shards: list[list[int]], length: int, splits: str
) -> None:
    written = documents(shards)
    folder = write(tmp_path / str(next(FOLDERS)), written)
    every = [document for shard in written for document in shard]
    seen: Counter[int] = Counter()
    for split, (first, last) in split_bounds(splits, len(every)).items():
        tokens = np.concatenate([*every[first:last], np.zeros(0, np.uint16)])
        if len(tokens) <= length:
            with pytest.raises(CorpusError, match=f"{split}: no window of {length} tokens"):
                open_windows(folder, sequence_length=length, eod_id=EOD, split=split, splits=splits)
            continue
        stream = open_windows(
            folder, sequence_length=length, eod_id=EOD, split=split, splits=splits, drop_last_partial=False
        )
        rows = np.arange(len(stream))
        read, held = stream.read(rows), stream.reader.held(rows)
        here = {int(token) for row, count in zip(read, held, strict=True) for token in row[:count]} - {EOD}
        assert here == set(tokens.tolist()) - {EOD}
        seen.update(here)
        assert len(stream) == -(-(len(tokens) - 1) // length)
        stream.close()
    assert set(seen.values()) <= {1}


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shards=SHARDS, length=st.integers(1, 19))
def test_the_partial_window_is_padded_and_every_token_is_a_target_once(
    tmp_path: Path, shards: list[list[int]], length: int
) -> None:
    tokens = tokens_of(documents(shards))
    folder = write(tmp_path / str(next(FOLDERS)), documents(shards))
    stream = open_windows(folder, sequence_length=length, eod_id=EOD, shuffle=False, drop_last_partial=False)
    assert isinstance(stream, PaddedWindowStream)
    rows = np.arange(len(stream))
    read, valid = stream.read(rows), stream.valid_length(rows)
    targets = np.concatenate([row[1 : count + 1] for row, count in zip(read, valid, strict=True)])
    assert np.array_equal(targets, tokens[1:])
    assert all((row[count + 1 :] == 0).all() for row, count in zip(read, valid, strict=True))
    stream.close()


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("dtypes", [("uint16", "uint16"), ("uint16", "int32"), ("int32", "uint8")])
def test_every_way_of_reading_gives_the_same(tmp_path: Path, backend: Any, dtypes: tuple[str, str]) -> None:
    random = np.random.default_rng(0)
    folders = []
    for number, dtype in enumerate(dtypes):
        shards = [[np.append(random.integers(2, 200, 12), EOD).astype(dtype) for _ in range(20)] for _ in range(4)]
        folders.append(write(tmp_path / f"{number}-{backend}", shards, dtype))
    stream = open_windows(";".join(folders), sequence_length=30, eod_id=EOD, vocabulary=200, backend=backend)
    few = open_windows(";".join(folders), sequence_length=30, eod_id=EOD, vocabulary=200, max_open_shards=1)
    rows = np.arange(len(stream))
    read = stream.read(rows)
    assert read.dtype == (np.uint16 if set(dtypes) == {"uint16"} else np.int32)
    assert np.array_equal(read, stream.reader.read_numpy(rows))
    assert np.array_equal(read, few.read(rows))
    for one in (stream, few):
        inputs, targets = one.read_pairs(rows)
        assert inputs.dtype == targets.dtype == read.dtype
        assert np.array_equal(inputs, read[:, :-1])
        assert np.array_equal(targets, read[:, 1:])
    assert few.reader.open_shards <= 1
    assert not np.shares_memory(stream.read(rows), stream.read(rows))
    for one in (stream, few):
        one.close()


def test_a_document_longer_than_many_windows(tmp_path: Path) -> None:
    tokens = np.append(np.arange(2, 5000), EOD).astype(np.uint16)
    folder = write(tmp_path, [[], [tokens], []])
    stream = open_windows(folder, sequence_length=100, eod_id=EOD, shuffle=False)
    assert np.array_equal(stream.read([7])[0], tokens[700:801])
    assert [(piece.document, piece.start, piece.stop) for piece in stream.describe(7)] == [(0, 700, 801)]
    assert not stream.read_documents([7])[1].any()
    stream.close()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shards=SHARDS, length=st.integers(1, 19))
def test_pieces_say_where_tokens_came_from_and_where_documents_begin(
    tmp_path: Path, shards: list[list[int]], length: int
) -> None:
    written = documents(shards)
    folder = write(tmp_path / str(next(FOLDERS)), written)
    stream = open_windows(folder, sequence_length=length, eod_id=EOD)
    rows = np.arange(len(stream))
    tokens, starts = stream.read_documents(rows)
    assert np.array_equal(tokens, stream.read(rows))
    for row in rows.tolist():
        pieces = stream.describe(row)
        rebuilt = [
            written[int(piece.shard.rsplit("-", 1)[1])][piece.document][piece.start : piece.stop] for piece in pieces
        ]
        assert np.array_equal(np.concatenate(rebuilt), tokens[row])
        assert np.flatnonzero(starts[row]).tolist() == [piece.column for piece in pieces[1:]]
    stream.close()


# ------------------------------------------------------------------------------------------------------------ corpora


@pytest.fixture(scope="module")
def corpus(make_corpus: Any) -> str:
    folder: str = make_corpus(weights={"web": 0.7, "code": 0.3})
    make_corpus.index(folder, samples=200)
    return folder


def test_a_stream_of_a_corpus_is_a_stream(corpus: str) -> None:
    stream = open_corpus(corpus).windows()
    assert isinstance(stream, Stream)
    assert isinstance(stream, DocumentStream)
    assert isinstance(stream, WindowStream)
    assert (len(stream), stream.sequence_length, stream.eod_id, stream.vocabulary) == (200, 16, EOD, 500)
    assert re.fullmatch(
        r"WindowStream\('tiny', split='train', sequence_length=16, fingerprint=[0-9a-f]{12}\)", repr(stream)
    )
    assert stream.sources == ("web", "code")
    again = pickle.loads(pickle.dumps(stream))
    assert np.array_equal(again.read([3, 199]), stream.read([3, 199]))
    assert len(pickle.dumps(stream)) < 6000
    with pytest.raises(IndexError, match="row 200 does not exist; the stream has 200 rows, 0 to 199"):
        stream.read([200])


def test_weights_are_followed_and_each_source_goes_through_its_own_windows(corpus: str) -> None:
    stream = open_corpus(corpus).windows(samples=1000)
    assert stream.rows_by_source(np.arange(1000)) == {"web": 700, "code": 300}
    members, windows = stream.reader._walk.locate(np.arange(1000))
    for member, count in enumerate(stream.windows.values()):
        mine = windows[members == member]
        passes = [mine[first : first + count] for first in range(0, len(mine) - count, count)]
        assert all(np.array_equal(np.sort(one), np.arange(count)) for one in passes)
        assert len({one.tobytes() for one in passes}) == len(passes)


def test_valid_is_one_pass_over_the_documents_of_the_index_set(corpus: str) -> None:
    opened = open_corpus(corpus)
    stream, indexed = opened.windows("valid"), opened.stream("valid")
    assert len(stream) == sum(stream.windows.values())

    def found(one: Any) -> set[tuple[str, int]]:
        return {(piece.shard, piece.document) for row in range(len(one)) for piece in one.describe(row)}

    assert found(indexed) <= found(stream)
    train = open_corpus(corpus).windows(options=WindowOptions(epochs=1))
    assert not found(train) & found(stream)


def test_more_samples_are_the_same_stream(corpus: str) -> None:
    opened = open_corpus(corpus)
    short, long = opened.windows(samples=150), opened.windows(samples=900)
    assert short.fingerprint == long.fingerprint == opened.windows().fingerprint
    assert np.array_equal(short.read(np.arange(150)), long.read(np.arange(150)))


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "length": ("train", {"sequence_length": 8}),
    "seed": ("train", {"seed": 9}),
    "split": ("valid", {}),
    "splits": ("train", {"options": WindowOptions(splits="80,20,0")}),
    "sources": ("train", {"options": WindowOptions(sources=["web"])}),
    "no shuffle": ("train", {"options": WindowOptions(shuffle=False)}),
    "no weights": ("train", {"options": WindowOptions(epochs=1)}),
    "a schedule": ("train", {"options": WindowOptions(schedule={64: (0.1, 0.9)})}),
    "partial": ("train", {"options": WindowOptions(drop_last_partial=False)}),
}


def test_what_decides_the_rows_decides_the_fingerprint(corpus: str) -> None:
    opened = open_corpus(corpus)
    found = {name: opened.windows(split, **options).fingerprint for name, (split, options) in CHANGES.items()}
    found["nothing"] = opened.windows().fingerprint
    found["megatron"] = opened.stream().fingerprint
    assert len(set(found.values())) == len(found)


def test_fingerprint_and_rows_do_not_depend_on_the_place(corpus: str, tmp_path: Path) -> None:
    os.symlink(corpus, tmp_path / "moved")
    here, there = open_corpus(corpus).windows(), open_corpus(tmp_path / "moved").windows()
    assert here.fingerprint == there.fingerprint
    assert np.array_equal(here.read(np.arange(50)), there.read(np.arange(50)))


def test_a_source_keeps_its_order_whatever_is_beside_it(corpus: str) -> None:
    opened = open_corpus(corpus)
    both = opened.windows(samples=100)
    alone = opened.windows(samples=70, options=WindowOptions(sources=["web"]))
    members, _ = both.reader._walk.locate(np.arange(100))
    assert np.array_equal(both.read(np.flatnonzero(members == 0)), alone.read(np.arange(70)))


def test_a_schedule_is_a_history(make_corpus: Any) -> None:
    folder = make_corpus(weights={"web": 0.7, "code": 0.3})
    make_corpus.index(folder, samples=200, schedule=(Phase(120, (0.1, 0.9)),))
    opened = open_corpus(folder)
    stream = opened.windows()
    assert stream.rows_by_source(np.arange(120)) == {"web": 84, "code": 36}
    assert stream.rows_by_source(np.arange(120, 200)) == {"web": 8, "code": 72}
    plain = opened.windows(options=WindowOptions(schedule={}))
    assert [(change.from_sample, change.parent) for change in stream.history] == [(120, plain.fingerprint)]
    assert stream.history[-1].fingerprint == stream.fingerprint
    assert np.array_equal(stream.read(np.arange(120)), plain.read(np.arange(120)))
    halved = opened.windows(sequence_length=8)
    assert (len(halved), halved.history[0].from_sample) == (400, 240)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"split": "dev"}, SettingsError, "split 'dev': the splits are train, valid, test"),
        ({"sequence_length": 0}, SettingsError, "sequence_length must be 1"),
        ({"sequence_length": 10_000}, CorpusError, r"train: no window of 10000 tokens \('web': its 1\d* tokens are"),
        (
            {"split": "test"},
            CorpusError,
            "test: no window .*'web': splits '90,10,0' give it none of the source's 60 seq",
        ),
        ({"samples": 0}, SettingsError, "samples of a split must be at least 1"),
        ({"samples": 1e3}, SettingsError, "samples must be a whole number, not 1000.0"),
        ({"seed": "7"}, SettingsError, "seed must be a whole number, not '7'"),
        ({"samples": 9, "options": WindowOptions(epochs=2)}, SettingsError, r"by samples \(9\) or by epochs \(2\)"),
        ({"options": WindowOptions(sources=["none"])}, SettingsError, "sources 'none': the corpus has 'web', 'code'"),
        ({"options": WindowOptions(sources=[])}, SettingsError, "sources of an empty list: the corpus has 'web'"),
        (
            {"options": WindowOptions(schedule={9: (1.0,)})},
            SettingsError,
            "1 weights from sample 9 on for the 2 sources",
        ),
        ({"options": WindowOptions(schedule={900: (1, 1)})}, SettingsError, "above 0 and below samples, which is 200"),
    ],
)
def test_what_cannot_be_is_named(corpus: str, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_corpus(corpus).windows(**arguments)


def test_without_an_index_set_a_length_is_needed_and_enough(make_corpus: Any) -> None:
    opened = open_corpus(make_corpus(documents={"web": 80}))
    with pytest.raises(CorpusError, match=r"prepared without \[index\], so no sequence length is set; give sequence"):
        opened.windows()
    stream = opened.windows(sequence_length=16)
    assert (len(stream), stream.facts["splits"]) == (stream.windows["web"], "969,30,1")


def test_limits_on_epochs_are_kept(tmp_path: Path, make_corpus: Any, corpus: str) -> None:
    opened = open_corpus(corpus)
    sources = tuple(replace(source, max_epochs=2.0) for source in opened.manifest.sources)
    limited = replace(opened, manifest=replace(opened.manifest, sources=sources))
    with pytest.raises(
        DataError, match=r"web: 700 samples are drawn from it, but 69 windows, max_epochs = 2, allow 138"
    ):
        limited.windows(samples=1000)
    with pytest.raises(
        DataError, match=r"web: 318 samples of 106 windows go through it 3 times, but its max_epochs is 2"
    ):
        limited.windows(options=WindowOptions(epochs=3))


def test_changed_shards_are_noticed(make_corpus: Any) -> None:
    folder = make_corpus(documents={"web": 60})
    stream = open_corpus(folder).windows(sequence_length=16)
    data = pickle.dumps(stream)
    path = Path(bin_path(f"{folder}/{open_corpus(folder).manifest.sources[0].shards[1].path}"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises((CorpusError, Exception), match=re.escape(str(path)[:-4])):
        pickle.loads(data).read(np.arange(len(stream)))
    stream.close()


# ---------------------------------------------------------------------------------------------------------- data spec


def test_data_of_others_with_weights(tmp_path: Path) -> None:
    written = [documents([[20] * n]) for n in (12, 7)]
    folders = [write(tmp_path / name, shards) for name, shards in zip("ab", written, strict=True)]
    spec = f"{folders[0]},3;{folders[1]},1"
    stream = open_windows(spec, sequence_length=10, eod_id=EOD)
    assert len(stream) == min(int(23 / 0.75), int(13 / 0.25))  # no source repeats
    assert stream.rows_by_source(np.arange(len(stream)))["a"] in (22, 23)
    later = open_windows(spec, sequence_length=10, eod_id=EOD, samples=40, schedule={20: (0, 1)})
    assert later.rows_by_source(np.arange(20, 40)) == {"a": 0, "b": 20}
    passes = open_windows(spec, sequence_length=10, eod_id=EOD, epochs=2)
    assert passes.rows_by_source(np.arange(len(passes))) == {"a": 46, "b": 26}
    again = pickle.loads(pickle.dumps(stream))
    assert np.array_equal(again.read([0, 5]), stream.read([0, 5]))
    for one in (stream, later, passes, again):
        one.close()


def test_splits_may_be_cut_by_documents_of_several_sequences(tmp_path: Path) -> None:
    with write_indexed(str(tmp_path / "part"), np.dtype("uint16")) as writer:
        for number in range(10):
            writer.add(np.full(12, number + 2, np.uint16), np.array([5, 4, 3]), np.array([3]))
    options: dict[str, Any] = {"sequence_length": 4, "eod_id": 11, "splits": "45,55", "shuffle": False}
    whole = open_windows(str(tmp_path / "part"), granularity="document", **options)
    assert set(np.unique(whole.read(np.arange(len(whole)))).tolist()) <= {2, 3, 4, 5}  # round(4.5) documents
    assert whole.reader.index.members[0].tokens == 48
    sequences = open_windows(str(tmp_path / "part"), **options)
    assert sequences.reader.index.members[0].tokens == 12 * 4 + 5 + 4  # round(13.5) sequences
    for one in (whole, sequences):
        one.close()
