"""Field cases that cross rooms: names of inputs (O11, O13), empty documents (O19) and counts beyond 32 bits (O20)."""

import gzip
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from gristmill.formats.errors import DataError, SettingsError
from gristmill.formats.index_member import MemberReport, member_layout
from gristmill.formats.index_plan import IndexSettings, MemberSource, ShardIdentity, SplitRequest, plan_members
from gristmill.formats.indexed import pack_header
from gristmill.formats.indexed_writer import write_indexed
from gristmill.formats.indices import MemberIndices, plan_epochs, sample_index_compiled, shuffle_index_dtype
from gristmill.formats.npy import npy_header, npy_size, open_npy
from gristmill.formats.split import SPLITS, split_bounds
from gristmill.formats.verify import verify_corpus
from gristmill.runtime import open_corpus, open_megatron
from gristmill.runtime.reader import RowReader
from gristmill.runtime.row_index import Member, RowIndex
from gristmill.runtime.shards import Shard

GIB = 1 << 30
BACKENDS: tuple[Literal["mmap", "pread"], ...] = ("mmap", "pread")


class TestInputs:
    """O11 and O13: files that were read twice, in the order of a directory, or over each other."""

    NAMES = ("a1.jsonl", "a0.jsonl", "b.jsonl", "sub/a0.jsonl")

    def test_each_file_once_in_one_order(self, new_workshop: Callable[[], Any]) -> None:
        trees, inputs = [], []
        for names in (self.NAMES, self.NAMES[::-1]):
            workshop = new_workshop()
            for name in names:
                workshop.jsonl(f"d/{name}", [f"{name} {number}" for number in range(3)])
            for marker in (".part-0.swp", "_SUCCESS"):
                workshop.jsonl(f"d/{marker}", ["not to be read"])
            (workshop.folder / "d" / "c.jsonl").symlink_to("b.jsonl")
            folder = workshop.folder / "d"
            workshop.prepare({"files": [f"{folder}/*.jsonl", f"{folder}/a*.jsonl", str(folder)]})
            assert Counter(workshop.texts("s0")) == {f"{name} {number}": 1 for name in names for number in range(3)}
            inputs.append(workshop.manifest()["sources"][0]["inputs"])
            trees.append(workshop.tree())
        assert [each["path"] for each in inputs[0]] == ["a0.jsonl", "a1.jsonl", "b.jsonl", "sub/a0.jsonl"]
        assert all(each["size"] > 0 and len(each["xxh3"]) == 32 for each in inputs[0])
        assert inputs[0] == inputs[1]
        assert trees[0] == trees[1]

    def test_files_of_one_name(self, workshop: Any) -> None:
        files = {
            "en/part-0.jsonl": bytes,
            "de/part-0.jsonl": bytes,
            "de/part-0.jsonl.gz": gzip.compress,
        }
        listed = [workshop.jsonl(name, [f"{name} {n}" for n in range(5)], pack=pack) for name, pack in files.items()]
        workshop.prepare({"files": listed})
        assert workshop.texts("s0") == [f"{name} {number}" for name in files for number in range(5)]
        assert [each["path"] for each in workshop.manifest()["sources"][0]["inputs"]] == [
            *list(files)[:2],
            "part-0.jsonl.gz",
        ]


def tokens_of(rows: Any) -> Counter[int]:
    return Counter(np.asarray(rows)[:, :-1].ravel().tolist())


class TestEmptyDocuments:
    """O19: an empty document first, last or everywhere, from records to rows."""

    @pytest.mark.parametrize("clean", [True, False])
    @pytest.mark.parametrize("full", [(1, 4), (0,), (5,), (2, 3)], ids=str)
    def test_are_dropped_and_counted_and_rows_go_on(self, workshop: Any, full: tuple[int, ...], clean: bool) -> None:
        texts = ["", "   ", "\n", "", "   ", "\n"]
        for place in full:
            texts[place] = f"the quick brown fox of place {place} jumps over"
        index = {"sequence_length": 4, "splits": "1"}
        workshop.prepare({"files": [workshop.jsonl("a.jsonl", texts)]}, index=index, defaults={"clean": clean})
        entry = workshop.manifest()["sources"][0]
        dropped = Counter("blank" if text else "empty" for text in texts if not text.strip() and (clean or not text))
        assert entry["dropped"] == dict(dropped)
        assert entry["documents_in"] == entry["documents_kept"] + sum(entry["dropped"].values()) == len(texts)
        documents = workshop.documents("s0")
        assert all(len(document) > 1 for document in documents)
        assert verify_corpus(str(workshop.folder / "out")) == []
        stream = open_corpus(str(workshop.folder / "out")).stream("train")
        whole = Counter(token for document in documents for token in document)
        rows = stream.read(np.arange(len(stream)))
        assert len(rows) == (whole.total() - 1) // 4
        assert tokens_of(rows) <= whole

    @pytest.mark.parametrize("lengths", [[0, 9, 7], [9, 7, 0], [0, 0, 9, 0, 0, 7, 0], [16, 0]], ids=str)
    def test_of_others_are_passed_over(
        self, write_pair: Callable[..., str], tmp_path: Path, lengths: list[int]
    ) -> None:
        prefix = write_pair(tmp_path / "pair", lengths)
        stream = open_megatron(prefix, sequence_length=5, eod_id=1, splits=None)
        rows = stream.read(np.arange(len(stream)))
        assert np.array_equal(rows, stream.reader.read_numpy(np.arange(len(stream))))
        assert len(rows) == (16 - 1) // 5
        whole = Counter(np.fromfile(f"{prefix}.bin", "<u2").tolist())
        assert tokens_of(rows) <= whole
        assert tokens_of(rows).total() == 15

    def test_and_nothing_else_is_an_error(self, write_pair: Callable[..., str], tmp_path: Path) -> None:
        prefix = write_pair(tmp_path / "pair", [0, 0, 0])
        with pytest.raises(DataError, match="pair"):
            open_megatron(prefix, sequence_length=5, eod_id=1)


def source(sequences: int) -> MemberSource:
    return MemberSource("web", None, None, (ShardIdentity("web-0", "0" * 64, sequences),))


class TestThirtyTwoBits:
    """O20: sums, places and numbers that once overflowed; what is large is a hole in a file, or never there."""

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_row_across_two_and_four_gib(self, tmp_path: Path, backend: Literal["mmap", "pread"]) -> None:
        """Documents shuffled whole, so that rows begin anywhere; the marks lie around the tokens they straddle."""
        lengths = np.array([GIB // 2 - 3] * 5 + [1000], "<i4")
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        index = pack_header(np.dtype("uint16"), len(lengths), len(lengths)) + lengths.tobytes()
        index += (2 * starts[:-1]).astype("<i8").tobytes() + np.arange(len(lengths) + 1, dtype="<i8").tobytes()
        (tmp_path / "pair.idx").write_bytes(index)
        (tmp_path / "pair.bin").write_bytes(b"")
        os.truncate(tmp_path / "pair.bin", int(2 * starts[-1]))
        with (tmp_path / "pair.bin").open("r+b") as file:
            for mark in (2 * GIB, 4 * GIB):
                file.seek(mark - 6)
                file.write((mark // GIB * 10 + np.arange(6, dtype="<u2")).tobytes())
        options: dict[str, Any] = {"sequence_length": 1 << 20, "eod_id": 1, "splits": None, "backend": backend}
        with pytest.warns(UserWarning, match="none of 6 documents looked at ends with eod_id=1"):
            stream = open_megatron(str(tmp_path / "pair"), **options)
        assert len(stream) == (int(starts[-1]) - 1) >> 20
        pieces = stream.reader.pieces(np.arange(len(stream)))
        first = starts[pieces.sequence] + pieces.offset
        for mark in (2 * GIB, 4 * GIB):
            token = mark // 2 - 3
            (piece,) = np.flatnonzero((first <= token) & (token + 6 <= first + pieces.count))
            (row,) = stream.read([int(pieces.row[piece])])
            column = int(pieces.column[piece] + token - first[piece])
            assert row[column : column + 6].tolist() == [mark // GIB * 10 + number for number in range(6)]
            assert np.count_nonzero(row) == 6

    def test_three_billion_documents_are_planned_or_refused(self) -> None:
        many = 3_000_000_000
        parts = split_bounds("969,30,1", many)
        assert [parts[name] for name in SPLITS] == [
            (0, 2_907_000_000),
            (2_907_000_000, 2_997_000_000),
            (2_997_000_000, many),
        ]
        settings = IndexSettings(sequence_length=4096, seed=1, splits="1", train=SplitRequest(epochs=2))
        with pytest.raises(SettingsError, match="'web' holds 3000000000 sequences: a document index numbers at most"):
            plan_members(settings, [source(many)])
        (member,) = plan_members(settings, [source(many // 2)])
        tokens = 700 * member.end
        epochs = plan_epochs(tokens=tokens, sequence_length=4096, epochs=member.epochs)
        assert epochs.samples == (2 * tokens - 1) // 4096
        report = MemberReport(
            split="train",
            source="web",
            place=0,
            start=member.start,
            end=member.end,
            tokens=tokens,
            epochs=epochs.epochs,
            separate=epochs.separate,
            rows=epochs.samples,
            weight=None,
            left_out=None,
        )
        layout = member_layout(report)
        assert {name: np.dtype(dtype).name for name, (dtype, _) in layout.items()} == {
            "document_index": "int32",
            "sample_index": "int64",  # for places, of which two epochs have 3e9
            "shuffle_index": "uint32",
        }
        assert layout["document_index"][1] == (many,)
        assert plan_epochs(tokens=2**32 * 4, sequence_length=4).samples == 2**32 - 1
        assert shuffle_index_dtype(2**32 - 1) is np.int64

    def test_places_beyond_two_billion_are_counted(self) -> None:
        """One document of two tokens, again and again, by an order that takes no memory."""
        order = np.broadcast_to(np.int32(0), (2**31 + 5000,))
        plan = plan_epochs(tokens=2 * len(order), sequence_length=1 << 12)
        rows = sample_index_compiled(np.full(1, 2, np.int32), order, plan)
        assert rows.dtype == np.int64
        assert int(rows[-1, 0]) > 2**31
        assert np.array_equal(rows[:, 0], np.arange(plan.samples + 1) << 11)
        assert not rows[:, 1].any()

    @pytest.mark.parametrize("samples", [3_000_000_000, 2**32 + 5], ids=["uint32", "int64"])
    def test_rows_beyond_two_billion_are_read(self, tmp_path: Path, samples: int) -> None:
        """Three billion documents and more samples, in arrays that are holes but for the entries of one row."""
        with write_indexed(str(tmp_path / "pair"), np.dtype("uint16")) as writer:
            writer.add(np.arange(1, 13, dtype=np.uint16), np.full(4, 3))
        row, place, entry = samples - 2, 2_600_000_000, 2_900_000_000
        indices = MemberIndices(
            plan=plan_epochs(tokens=3 * 10**9, sequence_length=4),
            document_index=hole(tmp_path / "d.npy", np.int32, (3_000_000_000,), {entry: [2, 0, 3]}),
            sample_index=hole(tmp_path / "s.npy", np.int64, (samples + 1, 2), {2 * place: [entry, 1, entry + 1, 2]}),
            shuffle_index=hole(tmp_path / "r.npy", shuffle_index_dtype(samples), (samples,), {row: [place]}),
        )
        shard = Shard(prefix=str(tmp_path / "pair"), name="pair", dtype="uint16", sequences=4, tokens=12)
        index = RowIndex(
            members=(Member(source="web", shards=(shard,), indices=indices),),
            dataset_index=None,
            dataset_sample_index=None,
            rows=samples,
            sequence_length=4,
            extra=1,
        )
        for backend in BACKENDS:
            reader = RowReader(partial(same, index), backend=backend)
            for read in (reader.read, reader.read_numpy):
                assert read([row]).tolist() == [[8, 9, 1, 2, 3]]
            reader.close()


def same(index: RowIndex) -> RowIndex:
    return index


def hole(path: Path, dtype: Any, shape: tuple[int, ...], values: dict[int, list[int]]) -> Any:
    """A stored array of zeros but for `values`, by the place of the first of each run."""
    header = npy_header(dtype, shape)
    path.write_bytes(header)
    try:
        os.truncate(path, npy_size(dtype, shape))
    except OSError as error:
        pytest.skip(f"no file of this size can be made here: {error}")
    with path.open("r+b") as file:
        for place, run in values.items():
            file.seek(len(header) + place * np.dtype(dtype).itemsize)
            file.write(np.array(run, dtype).tobytes())
    return open_npy(str(path), dtype, shape)
