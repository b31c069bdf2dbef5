"""Rows: compiled gather, its NumPy definition, and a plain walk over documents in memory all agree."""

import dataclasses
import itertools
import pickle
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import CorpusError, FormatError, SettingsError
from gristmill.formats.indexed import PairFiles
from gristmill.formats.indexed_writer import write_indexed
from gristmill.formats.indices import MemberIndices, build_indices, plan_epochs
from gristmill.runtime.pairs import TokenPairs
from gristmill.runtime.reader import RowReader
from gristmill.runtime.row_index import Member, RowIndex
from gristmill.runtime.shards import Shard

FOLDERS = itertools.count()


def write_member(folder: Path, name: str, shards: list[list[list[int]]], dtype: str) -> tuple[Shard, ...]:
    """Writes shards of sequences; three sequences make a document."""
    written = []
    for number, sequences in enumerate(shards):
        prefix = str(folder / f"{name}-{number}")
        lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        per_document = np.full(len(sequences) // 3 + 1, 3)
        per_document[-1] = len(sequences) - 3 * (len(per_document) - 1)
        with write_indexed(prefix, np.dtype(dtype)) as writer:
            writer.add(np.array([token for sequence in sequences for token in sequence], dtype), lengths, per_document)
        written.append(
            Shard(
                prefix=prefix,
                name=f"{name}-{number}",
                dtype=dtype,
                sequences=len(sequences),
                tokens=int(lengths.sum()),
            )
        )
    return tuple(written)


def index_member(
    name: str, files: tuple[Shard, ...], shards: list[list[list[int]]], length: int, epochs: int, extra: int
) -> Member:
    lengths = [len(sequence) for shard in shards for sequence in shard]
    plan = plan_epochs(tokens=sum(lengths), sequence_length=length, epochs=epochs, add_extra_token=bool(extra))
    return Member(source=name, shards=files, indices=build_indices(lengths, 0, len(lengths), plan, seed=7))


def expected_rows(index: RowIndex, sequences: list[list[list[int]]]) -> tuple[list[list[int]], list[list[bool]]]:
    """Every row and where it goes on with another sequence, from the text of the rule: join in document order, cut."""
    rows, starts = [], []
    for row in range(index.rows):
        number, sample = 0, row
        if index.dataset_index is not None and index.dataset_sample_index is not None:
            number, sample = int(index.dataset_index[row]), int(index.dataset_sample_index[row])
        indices = index.members[number].indices
        texts = [sequences[number][int(sequence)] for sequence in indices.document_index]
        joined = [(token, place == 0) for text in texts for place, token in enumerate(text)]
        start = int(indices.shuffle_index[sample]) * index.sequence_length
        cut = joined[start : start + index.sequence_length + index.extra]
        rows.append([token for token, _ in cut])
        starts.append([False, *(first for _, first in cut[1:])])
    return rows, starts


@st.composite
def members(draw: st.DrawFn) -> tuple[list[list[list[list[int]]]], list[str], int, int, int]:
    length = draw(st.integers(1, 9))
    extra = draw(st.integers(0, 1))
    epochs = draw(st.integers(1, 3))
    count = draw(st.integers(1, 3))
    dtypes = draw(st.lists(st.sampled_from(["uint16", "int32", "int64"]), min_size=count, max_size=count))
    sequence = st.lists(st.integers(0, 60_000), max_size=14)
    shards = [
        [*draw(st.lists(st.lists(sequence, max_size=5), min_size=1, max_size=4)), [[5] * (length + 1)]]
        for _ in range(count)
    ]
    return shards, dtypes, length, epochs, extra


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(members(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_rows_equal_the_joined_documents(
    tmp_path: Path, drawn: tuple[list[list[list[list[int]]]], list[str], int, int, int], limit: int, random: Any
) -> None:
    shards, dtypes, length, epochs, extra = drawn
    folder = tmp_path / str(next(FOLDERS))
    folder.mkdir()
    built = tuple(
        index_member(name, write_member(folder, name, sequences, dtype), sequences, length, epochs, extra)
        for name, sequences, dtype in zip("abc", shards, dtypes, strict=False)
    )
    choices = [(m, s) for m, member in enumerate(built) for s in range(member.indices.samples)]
    random.shuffle(choices)
    blended = len(built) > 1
    index = RowIndex(
        members=built,
        dataset_index=np.array([m for m, _ in choices], np.int16) if blended else None,
        dataset_sample_index=np.array([s for _, s in choices], np.int64) if blended else None,
        rows=len(choices),
        sequence_length=length,
        extra=extra,
    )
    flat = [[sequence for shard in sequences for sequence in shard] for sequences in shards]
    expected, starts = expected_rows(index, flat)
    reader = RowReader(lambda: index, max_open_shards=limit)
    assert reader.dtype == (np.uint16 if set(dtypes) == {"uint16"} else np.int32)
    rows = list(range(len(expected)))
    random.shuffle(rows)
    rows += rows[:3]
    for read in (reader.read, reader.read_numpy):
        found = read(rows)
        assert found.dtype == reader.dtype
        assert found.tolist() == [expected[row] for row in rows]
        assert reader.open_shards <= limit
    check_pairs(reader.read_pairs(rows), [expected[row] for row in rows], reader.dtype)
    tokens, found_starts = reader.read_documents(rows)
    assert tokens.tolist() == [expected[row] for row in rows]
    assert found_starts.dtype == bool
    assert found_starts.tolist() == [starts[row] for row in rows]
    check_pieces(reader, rows, expected, flat, shards)
    reader.close()
    assert reader.open_shards == 0


def check_pairs(pairs: TokenPairs, expected: list[list[int]], dtype: Any) -> None:
    inputs, targets = pairs
    assert inputs.tolist() == [row[:-1] for row in expected]
    assert targets.tolist() == [row[1:] for row in expected]
    for one in pairs:
        assert one.dtype == dtype
        assert one.flags.c_contiguous
        assert one.flags.writeable
        assert one.ctypes.data % 64 == 0, "so that devices may take the memory over"
    assert not np.shares_memory(inputs, targets)


def check_pieces(
    reader: RowReader,
    rows: list[int],
    expected: list[list[int]],
    flat: list[list[list[int]]],
    shards: list[list[list[list[int]]]],
) -> None:
    """The pieces tile each row and lead to the tokens, by sequence and by document."""
    pieces = reader.pieces(rows)
    documents, starts = reader.documents(pieces)
    covered = np.zeros((len(rows), reader.width), int)
    first_shard = np.cumsum([0] + [len(sequences) for sequences in shards])
    for place in range(len(pieces)):
        row, column, count = int(pieces.row[place]), int(pieces.column[place]), int(pieces.count[place])
        member, shard = int(pieces.member[place]), int(pieces.shard[place])
        covered[row, column : column + count] += 1
        sequences = shards[member][shard - first_shard[member]]
        sequence, offset = int(pieces.sequence[place]), int(pieces.offset[place])
        tokens = expected[rows[row]][column : column + count]
        assert sequences[sequence][offset : offset + count] == tokens
        document = int(documents[place])
        assert document == sequence // 3
        joined = [token for text in sequences[3 * document : 3 * document + 3] for token in text]
        assert joined[int(starts[place]) : int(starts[place]) + count] == tokens
    assert (covered == 1).all()


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., RowReader]:
    """A reader of one member: 40 sequences of 9 tokens in 8 shards, rows of 8 + 1."""
    shards = [[[100 * shard + 10 * s + t for t in range(9)] for s in range(5)] for shard in range(8)]
    files = write_member(tmp_path, "a", shards, "uint16")

    def make(**changes: Any) -> RowReader:
        member = index_member("a", files, shards, 8, 2, 1)
        index = RowIndex(
            members=(Member(source="a", shards=files, indices=changes.pop("indices", member.indices)),),
            dataset_index=None,
            dataset_sample_index=None,
            rows=member.indices.samples,
            sequence_length=8,
            extra=1,
        )
        return RowReader(partial(_same, index), **changes)

    return make


def _same(index: RowIndex) -> RowIndex:
    return index


def test_every_read_is_fresh(small: Callable[..., RowReader]) -> None:
    reader = small()
    first, second = reader.read([0, 1]), reader.read([0, 1])
    assert first.ctypes.data % 64 == 0, "so that devices which share this memory take it as it is"
    assert not np.shares_memory(first, second)
    first[:] = 0
    np.testing.assert_array_equal(reader.read([0, 1]), second)


@pytest.mark.parametrize("rows", [[], np.array([], np.int64), range(0)])
def test_no_rows_give_no_rows(small: Callable[..., RowReader], rows: Any) -> None:
    assert small().read(rows).shape == (0, 9)
    assert small().read_numpy(rows).shape == (0, 9)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 89], "row 89 does not exist; the stream has 89 rows, 0 to 88"),
        ([-1], "row -1 does not exist"),
        ([0.5], "rows are float64 of shape"),
        ([[0]], r"rows are int64 of shape \(1, 1\); the rule is a list of integers"),
    ],
)
def test_rows_that_do_not_exist(small: Callable[..., RowReader], rows: Any, message: str) -> None:
    reader = small()
    assert len(reader) == 89
    for read in (reader.read, reader.read_numpy):
        with pytest.raises(IndexError, match=message):
            read(rows)


def test_a_cap_below_what_a_row_touches_still_reads(small: Callable[..., RowReader]) -> None:
    narrow, wide = small(max_open_shards=1), small()
    rows = np.arange(len(wide))
    np.testing.assert_array_equal(narrow.read(rows), wide.read(rows))
    assert (narrow.open_shards, wide.open_shards) == (1, 8)
    with pytest.raises(SettingsError, match="max_open_shards must be at least 1, not 0"):
        small(max_open_shards=0)


def test_many_threads_read_through_a_cap(small: Callable[..., RowReader]) -> None:
    reader = small(max_open_shards=2)
    rows = np.arange(len(reader))
    expected = small().read(rows)
    wrong: list[BaseException | str] = []

    def run(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(60):
                some = random.integers(0, len(reader), 7)
                if not (reader.read(some) == expected[some]).all():
                    wrong.append(f"thread {seed}")
        except BaseException as error:  # noqa: BLE001 - shown below
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert reader.open_shards <= 2


def _damaged(indices: MemberIndices, **arrays: np.ndarray) -> MemberIndices:
    values = {name: getattr(indices, name) for name in ("plan", "document_index", "sample_index", "shuffle_index")}
    return MemberIndices(**{**values, **arrays})


DAMAGES: dict[str, tuple[Callable[[MemberIndices], MemberIndices], str]] = {
    "shuffle": (
        lambda i: _damaged(i, shuffle_index=i.shuffle_index + np.uint32(1000)),
        "indices contradict each other",
    ),
    "sample": (lambda i: _damaged(i, sample_index=i.sample_index + np.int32(1000)), "indices contradict each other"),
    "backward": (lambda i: _damaged(i, sample_index=i.sample_index[::-1].copy()), "indices contradict each other"),
    "document": (
        lambda i: _damaged(i, document_index=i.document_index + np.int32(40)),
        "indices contradict each other",
    ),
    "negative": (
        lambda i: _damaged(i, document_index=i.document_index - np.int32(40)),
        "indices contradict each other",
    ),
    "offset": (
        lambda i: _damaged(i, sample_index=i.sample_index + np.array([0, 9], np.int32)),
        "a sample reaches beyond a sequence",
    ),
    "length": (
        lambda i: _damaged(i, sample_index=np.repeat(i.sample_index[::2], 2, axis=0)[: len(i.sample_index)].copy()),
        "its pieces hold .* tokens, not 9",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_indices_are_an_error_not_other_tokens(
    small: Callable[..., RowReader], damage: Callable[[MemberIndices], MemberIndices], message: str
) -> None:
    reader = small(indices=damage(small().index.members[0].indices))
    for read in (reader.read, reader.read_numpy, reader.read_pairs):
        with pytest.raises(FormatError, match=message):
            read(np.arange(len(reader)))


def test_a_blend_that_names_no_member(small: Callable[..., RowReader]) -> None:
    index = small().index
    blend = np.full(index.rows, 3, np.int16)
    broken = RowIndex(
        members=index.members,
        dataset_index=blend,
        dataset_sample_index=np.arange(index.rows),
        rows=index.rows,
        sequence_length=8,
        extra=1,
    )
    with pytest.raises(FormatError, match="the blend names member 3, but there are 1"):
        RowReader(lambda: broken).read([0])


def test_an_index_that_is_no_plain_array(small: Callable[..., RowReader]) -> None:
    indices = small().index.members[0].indices
    with pytest.raises(FormatError, match="source 'a': an index is no plain array"):
        small(indices=_damaged(indices, document_index=np.repeat(indices.document_index, 2)[::2]))


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:-size])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda folder: _cut(folder / "a-3.bin", 2),
            FormatError,
            "a-3.bin: has 88 bytes, but .*a-3.idx ends at byte 90",
        ),
        (lambda folder: _cut(folder / "a-3.bin", 1), FormatError, "a-3.bin: 89 bytes are no whole number of uint16"),
        (lambda folder: _cut(folder / "a-3.idx", 8), FormatError, "a-3.idx: .*cut short"),
        (lambda folder: (folder / "a-3.bin").unlink(), FormatError, "a-3.bin: token file not found"),
        (
            lambda folder: write_member(folder, "a", [[[1]]] * 4, "uint16"),
            CorpusError,
            r"a-\d: holds 1 tokens in 1 sequences of uint16, but 45 in 5 of uint16 are recorded: cut short or",
        ),
        (
            lambda folder: write_member(folder, "a", [[[1] * 9] * 5] * 4, "int32"),
            CorpusError,
            r"holds 45 tokens in 5 sequences of int32, but 45 in 5 of uint16 are recorded",
        ),
    ],
    ids=["token", "byte", "index", "missing", "replaced", "dtype"],
)
def test_files_that_are_not_what_they_were_are_named(
    small: Callable[..., RowReader], tmp_path: Path, change: Callable[[Path], Any], error: type[Exception], message: str
) -> None:
    reader = small()
    change(tmp_path)
    for read in (reader.read, reader.read_numpy, reader.read_pairs):
        with pytest.raises(error, match=message):
            read(np.arange(len(reader)))
    assert reader.open_shards <= 8


@pytest.mark.parametrize("place", range(5))
def test_a_token_that_does_not_fit_is_named(tmp_path: Path, place: int) -> None:
    """Also the first, which is no target, and the last, which is no input."""
    shards = [[[2**40 if number == place else number for number in range(5)]]]
    files = write_member(tmp_path, "a", shards, "int64")
    member = index_member("a", files, shards, 4, 1, 1)
    index = RowIndex(
        members=(member,), dataset_index=None, dataset_sample_index=None, rows=1, sequence_length=4, extra=1
    )
    reader = RowReader(lambda: index)
    for read in (reader.read, reader.read_pairs):
        with pytest.raises(FormatError, match=r"a token of 1099511627776 .* does not fit the stream's int32"):
            read([0])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_every_integer_dtype_of_the_format_becomes_int32(tmp_path: Path, dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = [max(limits.min, -(2**31) + 1), 0, 1, 100, min(limits.max, 2**31 - 1)]
    files = write_member(tmp_path, "a", [[values]], dtype)
    member = index_member("a", files, [[values]], 4, 1, 1)
    index = RowIndex(
        members=(member,), dataset_index=None, dataset_sample_index=None, rows=1, sequence_length=4, extra=1
    )
    reader = RowReader(lambda: index)
    assert reader.read([0]).tolist() == reader.read_numpy([0]).tolist() == [values]
    check_pairs(reader.read_pairs([0]), [values], np.int32)


def test_shards_on_an_object_store_are_read_by_range(small: Callable[..., RowReader], tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in tmp_path.iterdir():
        memory.pipe(f"/reader-test/{path.name}", path.read_bytes())
    local = small()
    shards = tuple(
        Shard(
            prefix=f"memory://reader-test/{shard.name}",
            name=shard.name,
            dtype=shard.dtype,
            sequences=shard.sequences,
            tokens=shard.tokens,
        )
        for shard in local.shards
    )
    index = RowIndex(
        members=(Member(source="a", shards=shards, indices=local.index.members[0].indices),),
        dataset_index=None,
        dataset_sample_index=None,
        rows=local.index.rows,
        sequence_length=8,
        extra=1,
    )
    rows = np.arange(len(local))
    np.testing.assert_array_equal(RowReader(lambda: index).read(rows), local.read(rows))
    for found, expected in zip(RowReader(lambda: index).read_documents(rows), local.read_documents(rows), strict=True):
        np.testing.assert_array_equal(found, expected)
    memory.rm("/reader-test", recursive=True)


def test_pickles_as_the_way_to_open_it(small: Callable[..., RowReader]) -> None:
    reader = small(max_open_shards=5)
    again = pickle.loads(pickle.dumps(reader))
    rows = np.arange(len(reader))
    np.testing.assert_array_equal(again.read(rows), reader.read(rows))
    assert again.open_shards == 5


@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "bytes"])
def test_uint32_tokens_become_int32_after_a_check(tmp_path: Path, in_memory: bool) -> None:
    """Raw shards: the index says int32, which is as wide, and may lie elsewhere or in memory."""
    values = [1, 2**31 - 1, 70_000, 4, 0, 9, 9, 2**31]
    write_member(tmp_path, "a", [[[0] * len(values)]], "int32")
    index_path, tokens_path = tmp_path / "index", tmp_path / "raw.u32"
    (tmp_path / "a-0.idx").rename(index_path)
    tokens_path.write_bytes(np.array(values, "<u4").tobytes())
    files = PairFiles(
        tokens=str(tokens_path),
        index=index_path.read_bytes() if in_memory else str(index_path),
        dtype=np.dtype("<u4"),
    )
    shard = Shard(prefix=str(tmp_path / "a-0"), name="a-0", dtype="uint32", sequences=1, tokens=8, files=files)
    member = index_member("a", (shard,), [[values]], 3, 1, 1)
    index = RowIndex(
        members=(member,), dataset_index=None, dataset_sample_index=None, rows=2, sequence_length=3, extra=1
    )
    reader = RowReader(lambda: index)
    assert reader.dtype == np.int32
    row, bad = (int(row) for row in np.argsort(member.indices.shuffle_index))
    assert reader.read([row]).tolist() == reader.read_numpy([row]).tolist() == [values[:4]]
    tokens_path.write_bytes(np.array(values[::-1], "<u4").tobytes())
    for read in (reader.read, reader.read_numpy):
        with pytest.raises(FormatError, match=r"a token of 2147483648 .* does not fit the stream's int32"):
            read([row, bad])


def test_documents_can_be_the_unit(tmp_path: Path) -> None:
    """Three sequences make a document; its tokens stay together wherever the order puts it."""
    shards = [[[1, 2], [], [3], [4, 5, 6], [7], [8, 9]], [[10], [11, 12], [13], [14]]]
    whole = [
        [list(itertools.chain(*shard[start : start + 3])) for start in range(0, len(shard) + 1, 3)] for shard in shards
    ]
    files = tuple(
        dataclasses.replace(shard, unit="document", sequences=len(documents))
        for shard, documents in zip(write_member(tmp_path, "a", shards, "uint16"), whole, strict=True)
    )
    member = index_member("a", files, whole, 3, 2, 1)
    index = RowIndex(
        members=(member,),
        dataset_index=None,
        dataset_sample_index=None,
        rows=member.indices.samples,
        sequence_length=3,
        extra=1,
    )
    reader = RowReader(lambda: index, max_open_shards=1)
    rows = list(range(index.rows))
    flat = [document for shard in whole for document in shard]
    assert reader.read(rows).tolist() == reader.read_numpy(rows).tolist() == expected_rows(index, [flat])[0]
    pieces = reader.pieces(rows)
    documents, starts = reader.documents(pieces)
    for place in range(len(pieces)):
        shard, count = int(pieces.shard[place]), int(pieces.count[place])
        document, start = int(documents[place]), int(starts[place])
        row, column = int(pieces.row[place]), int(pieces.column[place])
        found = whole[shard][document][start : start + count]
        assert found == reader.read([row])[0, column : column + count].tolist()
