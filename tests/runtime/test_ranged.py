"""Ranged reads: the same rows as through maps, in few reads, and an error where a file ends or goes away."""

import itertools
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import FormatError, StorageError
from gristmill.formats.indexed import PairFiles
from gristmill.formats.indexed_writer import write_indexed
from gristmill.formats.indices import build_indices, plan_epochs
from gristmill.runtime.corpus import open_corpus
from gristmill.runtime.ranged import FileArray, RangedFile, open_ranged, ranged_array
from gristmill.runtime.ranges import GAP_BYTES
from gristmill.runtime.reader import RowReader
from gristmill.runtime.row_index import Member, RowIndex
from gristmill.runtime.shards import Shard

NAMES = itertools.count()


@pytest.fixture(scope="module", params=["uint16", "int32"])
def index(request: pytest.FixtureRequest, make_corpus: Any) -> RowIndex:
    """Two sources of three shards, blended; every index array is a file."""
    folder = make_corpus(weights={"web": 0.7, "code": 0.3}, dtype=request.param)
    make_corpus.index(folder, samples=150)
    return open_corpus(folder).stream("train").reader.index


@pytest.mark.parametrize("limit", [1, 4, None])
def test_rows_are_those_of_the_maps(index: RowIndex, limit: int | None) -> None:
    mapped = RowReader(lambda: index, backend="mmap")
    ranged = RowReader(lambda: index, backend="pread", max_open_shards=limit)
    rows = np.random.default_rng(0).permutation(np.concatenate([np.arange(150), np.arange(20)]))
    expected = mapped.read(rows)
    for read in (ranged.read, ranged.read_numpy):
        found = read(rows)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(ranged.read_documents(rows)[1], mapped.read_documents(rows)[1])
    np.testing.assert_array_equal(ranged.documents(ranged.pieces(rows)), mapped.documents(mapped.pieces(rows)))
    assert ranged.open_shards <= (limit or 6)
    assert ranged.read([]).shape == (0, 17)
    ranged.close()
    assert ranged.open_shards == 0


def test_nothing_is_mapped_and_bytes_are_counted(index: RowIndex) -> None:
    reader = RowReader(lambda: index, backend="pread")
    for number in range(len(reader.shards)):
        pair = reader.shards[number].open("pread")
        assert pair.mapped_tokens is None
        assert isinstance(pair.lengths, FileArray)
        pair.close()
    tokens = reader.read(np.arange(10))
    found = reader.read_counts()
    assert found["bytes_read"] >= tokens.size * np.dtype(reader.shards[0].dtype).itemsize
    assert found["shards_opened"] == reader.open_shards > 0


def test_every_descriptor_is_given_back(index: RowIndex) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("the system does not list open descriptors")
    before = descriptors()
    for backend in ("mmap", "pread"):
        reader = RowReader(lambda: index, backend=backend)
        reader.read(np.arange(100))
        assert descriptors() > before
        reader.close()
        del reader
        assert descriptors() == before


@pytest.fixture
def pair(tmp_path: Path) -> str:
    """A pair of 300 sequences of 100 tokens; token n of the file is n."""
    prefix = str(tmp_path / "pair")
    with write_indexed(prefix, np.dtype("uint16")) as writer:
        writer.add(np.arange(30_000, dtype=np.uint16), np.full(300, 100))
    return prefix


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 29_990), st.integers(1, 3000)), max_size=40), st.randoms())
def test_ranges_in_any_order_and_overlapping(pair: str, ranges: list[tuple[int, int]], random: Any) -> None:
    ranges = [(start, min(count, 30_000 - start)) for start, count in ranges]
    starts, counts = (np.array(values, np.int64) for values in (zip(*ranges, strict=True) if ranges else ((), ())))
    places = np.cumsum(counts) - counts
    order = list(range(len(ranges)))
    random.shuffle(order)
    out = np.zeros(int(counts.sum()), np.uint16)
    dataset = open_ranged(pair, "sequence")
    read = dataset.read_into(starts[order], counts[order], places[order], out)
    assert out.tolist() == [token for start, count in ranges for token in range(start, start + count)]
    assert read >= len(np.unique(out)) * 2
    dataset.close()


@pytest.mark.parametrize(("gap", "together"), [(0, True), (1, True), (GAP_BYTES, True), (GAP_BYTES + 2, False)])
def test_close_ranges_are_read_together(pair: str, gap: int, together: bool) -> None:
    gap_tokens = -(-gap // 2)
    dataset = open_ranged(pair, "sequence")
    starts, counts = np.array([100, 110 + gap_tokens]), np.array([10, 10])
    out = np.zeros(20, np.uint16)
    assert dataset.read_into(starts, counts, np.array([0, 10]), out) == 40 + (2 * gap_tokens if together else 0)
    assert out.tolist() == [*range(100, 110), *range(110 + gap_tokens, 120 + gap_tokens)]
    dataset.close()


def test_more_ranges_than_one_read_can_take(pair: str) -> None:
    dataset = open_ranged(pair, "sequence")
    starts = np.arange(0, 30_000, 2)
    out = np.zeros(15_000, np.uint16)
    dataset.read_into(starts, np.ones(15_000, np.int64), np.arange(15_000), out)
    np.testing.assert_array_equal(out, starts)
    dataset.close()


@pytest.mark.parametrize("start", [-1, 29_995, 40_000])
def test_a_range_beyond_the_file_is_an_error(pair: str, start: int) -> None:
    dataset = open_ranged(pair, "sequence")
    with pytest.raises(
        FormatError, match=r"pair\.bin: tokens -?\d+ to \d+ are wanted, but there are 30000: .* damaged"
    ):
        dataset.read_into(np.array([5, start]), np.array([10, 10]), np.array([0, 10]), np.zeros(20, np.uint16))
    dataset.close()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_array_is_the_array(tmp_path: Path, data: st.DataObject) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(["<i2", "<i4", "<u4", "<i8"])))
    shape = data.draw(st.sampled_from([(1,), (9,), (7, 2)]))
    array = np.sort(np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 20, shape).astype(dtype), axis=0)
    path = tmp_path / f"{next(NAMES)}.npy"
    np.save(path, array)
    mapped = np.load(path, mmap_mode="r")
    skip = data.draw(st.integers(0, len(array) - 1))
    found, array = ranged_array(mapped[skip:]), array[skip:]
    assert isinstance(found, FileArray)
    places = np.array(data.draw(st.lists(st.integers(-len(array), len(array) - 1))), np.int64)
    np.testing.assert_array_equal(found[places], array[places])
    np.testing.assert_array_equal(found[-1], array[-1])
    np.testing.assert_array_equal(np.asarray(found), array)
    assert (len(found), found.dtype, found.shape) == (len(array), array.dtype, array.shape)
    for wrong in (len(array), [0, -len(array) - 1]):
        with pytest.raises(IndexError, match=r"entries -?\d+ to \d+ of \d+ asked for"):
            found[wrong]
    if array.ndim == 1:
        values = np.array(data.draw(st.lists(st.integers(-1, 21))), np.int64)
        for side in ("left", "right"):
            np.testing.assert_array_equal(found.searchsorted(values, side), array.searchsorted(values, side))


def test_arrays_in_memory_stay_there() -> None:
    array = np.arange(5)
    assert ranged_array(array) is array
    assert ranged_array(array[1:]).base is array  # type: ignore[union-attr]


def test_a_file_that_is_gone_or_closed(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nothing: cannot be opened: No such file"):
        RangedFile(str(tmp_path / "nothing"))
    path = tmp_path / "some"
    path.write_bytes(b"12345")
    file = RangedFile(str(path))
    assert file.read(1, 3) == b"234"
    assert file[-2:] == b"45"
    with pytest.raises(FormatError, match="some: ends at byte 5, but bytes 3 to 6 are needed: cut short while it was"):
        file.read(3, 3)
    file.close()
    file.close()
    with pytest.raises(StorageError, match="some: cannot be read: Bad file descriptor"):
        file.read(1, 3)


@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "bytes"])
def test_raw_tokens_with_an_index_elsewhere(tmp_path: Path, in_memory: bool) -> None:
    values = np.array([1, 2**31 - 1, 70_000, 4, 0, 9, 9, 2**31], "<u4")
    with write_indexed(str(tmp_path / "a"), np.dtype("int32")) as writer:
        writer.add(np.zeros(8, np.int32), np.array([8]))
    (tmp_path / "raw.u32").write_bytes(values.tobytes())
    index_path = tmp_path / "a.idx"
    files = PairFiles(
        tokens=str(tmp_path / "raw.u32"),
        index=index_path.read_bytes() if in_memory else str(index_path),
        dtype=np.dtype("<u4"),
    )
    shard = Shard(prefix=str(tmp_path / "a"), name="a", dtype="uint32", sequences=1, tokens=8, files=files)
    plan = plan_epochs(tokens=8, sequence_length=3, epochs=1)
    member = Member(source="a", shards=(shard,), indices=build_indices([8], 0, 1, plan, seed=7))
    made = RowIndex(
        members=(member,), dataset_index=None, dataset_sample_index=None, rows=2, sequence_length=3, extra=1
    )
    reader = RowReader(lambda: made, backend="pread")
    good, bad = (int(row) for row in np.argsort(member.indices.shuffle_index))
    assert reader.read([good]).tolist() == [values[:4].tolist()]
    (tmp_path / "raw.u32").write_bytes(values[::-1].tobytes())
    with pytest.raises(FormatError, match=r"a token of 2147483648 .* does not fit the stream's int32"):
        reader.read([good, bad])


def test_documents_can_be_the_unit(tmp_path: Path) -> None:
    with write_indexed(str(tmp_path / "a"), np.dtype("uint16")) as writer:
        writer.add(np.arange(14, dtype=np.uint16), np.array([2, 0, 1, 3, 1, 7]), np.array([3, 2, 1]))
    shard = Shard(prefix=str(tmp_path / "a"), name="a", dtype="uint16", sequences=3, tokens=14, unit="document")
    plan = plan_epochs(tokens=14, sequence_length=3, epochs=2)
    member = Member(source="a", shards=(shard,), indices=build_indices([3, 4, 7], 0, 3, plan, seed=7))
    made = RowIndex(
        members=(member,),
        dataset_index=None,
        dataset_sample_index=None,
        rows=member.indices.samples,
        sequence_length=3,
        extra=1,
    )
    rows = np.arange(made.rows)
    expected = RowReader(lambda: made, backend="mmap").read(rows)
    np.testing.assert_array_equal(RowReader(lambda: made, backend="pread").read(rows), expected)


def test_the_backend_survives_pickling(index: RowIndex) -> None:
    opened = _Opened(index.rows)
    _Opened.indices[index.rows] = index
    again = pickle.loads(pickle.dumps(RowReader(opened, backend="pread", max_open_shards=3)))
    rows = np.arange(20)
    np.testing.assert_array_equal(again.read(rows), RowReader(opened, backend="mmap").read(rows))
    assert again.read_counts()["shards_opened"] >= 3
    assert all(again.shards[number].open("pread").mapped_tokens is None for number in range(3))
    assert again.open_shards <= 3


class _Opened:
    """Opens an index by a key, as readers pickle."""

    indices: dict[int, RowIndex] = {}  # noqa: RUF012 - shared on purpose

    def __init__(self, key: int) -> None:
        self.key = key

    def __call__(self) -> RowIndex:
        return self.indices[self.key]
