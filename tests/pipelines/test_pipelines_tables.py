"""Arrow IPC and CSV: the same documents as from JSON lines, cut or whole, and what is wrong named by its place."""

import bz2
import contextlib
import csv
import gzip
import io
import lzma
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import parse_recipe
from gristmill.pipelines.plan import plan_run
from gristmill.pipelines.read import read_split
from gristmill.pipelines.records import RecordAccount

TEXTS = ["plain", 'a "quoted" one', "two\nlines, and a comma", "世界\r\nend", "x" * 3000, "tab\there"]


def read(workshop: Any, source: dict[str, Any]) -> tuple[list[str], RecordAccount]:
    """The texts of a source, in order, and the account of the last split."""
    recipe = parse_recipe(workshop.values(source))
    texts: list[str] = []
    account = RecordAccount(recipe.sources[0].bad_records)
    for split in plan_run(recipe).splits:
        account = RecordAccount(recipe.sources[0].bad_records)
        for batch in read_split(split, recipe.sources[0], account):
            texts += batch.texts
            assert len(batch.records) == len(batch.texts)
    return texts, account


def arrow(texts: list[Any], *, stream: bool, rows: int = 2, kind: pa.DataType | None = None) -> bytes:
    table = pa.table({"id": range(len(texts)), "text": pa.array(texts, kind or pa.string())})
    sink = io.BytesIO()
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


def table_text(rows: list[list[str]], delimiter: str = ",") -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return text.getvalue().encode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_arrow(workshop: Any, stream: bool, kind: pa.DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 40)
    path = workshop.write("a.arrow", arrow(TEXTS, stream=stream, kind=kind))
    assert read(workshop, {"files": [path]})[0] == TEXTS
    assert len(plan_run(parse_recipe(workshop.values({"files": [path]}))).splits) == (1 if stream else 3)


def test_arrow_faults(workshop: Any) -> None:
    path = workshop.write("a.arrow", arrow(["good", None, "", "also"], stream=False))
    with pytest.raises(InputError, match=r"a\.arrow: row 1, counted from 0: null text"):
        read(workshop, {"files": [path]})
    texts, account = read(workshop, {"files": [path], "bad_records": "skip", "max_bad_fraction": 1})
    assert texts == ["good", "also"]
    assert account.dropped == {"null_text": 1, "empty": 1}
    with pytest.raises(InputError, match=r"no column 'body'; columns seen: id, text"):
        read(workshop, {"files": [path], "text_field": "body"})
    with pytest.raises(InputError, match=r"column 'id' holds int64, not strings"):
        read(workshop, {"files": [path], "text_field": "id"})
    for stream in (False, True):
        whole = arrow(TEXTS, stream=stream)
        path = workshop.write("b.feather", whole[: len(whole) // 2])
        with pytest.raises(InputError, match=r"b\.feather: .*fetch it again"):
            read(workshop, {"files": [path]})


def test_a_split_of_an_arrow_file_reads_its_own_part(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes before is read only where a message has to say which row of the file it is about."""
    monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 100_000)
    texts = [f"{number} " * 8000 for number in range(60)]
    path = workshop.write("a.arrow", arrow([*texts, None], stream=False, rows=1))
    recipe = parse_recipe(workshop.values({"files": [path], "bad_records": "skip"}))
    splits, found = plan_run(recipe).splits, []
    assert len(splits) >= 10
    with open(path, "rb") as file:
        taken = 0

        class Counted:
            """The file, with a count of the bytes that are read."""

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def read(self, size: int = -1) -> bytes:
                nonlocal taken
                data = file.read(size)
                taken += len(data)
                return data

        monkeypatch.setattr("gristmill.pipelines.read_arrow.open_read", lambda _: contextlib.nullcontext(Counted()))
        for split in splits:
            file.seek(0)
            taken, account = 0, RecordAccount("skip")
            for batch in read_split(split, recipe.sources[0], account):
                found += batch.texts
                assert taken < 200_000
        assert [sample["where"] for sample in account.samples] == ["a.arrow: row 60, counted from 0"]
    assert found == texts


PACKS: dict[str, Callable[[bytes], bytes]] = {
    "csv": bytes,
    "csv.gz": gzip.compress,
    "csv.bz2": bz2.compress,
    "csv.xz": lzma.compress,
    "csv.zst": zstandard.compress,
}


@pytest.mark.parametrize("name", PACKS)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_csv(workshop: Any, name: str, mark: bytes) -> None:
    rows = [["id", "text"], *([str(number), text] for number, text in enumerate(TEXTS))]
    path = workshop.write(f"a.{name}", PACKS[name](mark + table_text(rows)))
    assert read(workshop, {"files": [path]})[0] == TEXTS


def test_tsv_and_two_columns(workshop: Any) -> None:
    path = workshop.write("a.tsv", table_text([["text", "more", "n"], ["a,b", "c", "1"], ["d", "e\tf", "2"]], "\t"))
    source = {"files": [path], "extra_text_field": "more", "separator": " | "}
    assert read(workshop, source)[0] == ["a,b | c", "d | e\tf"]


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), max_size=8)
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_gives_what_was_written(workshop: Any, texts: list[str]) -> None:
    path = workshop.write("a.csv", table_text([["text", "n"], *([text, "1"] for text in texts)]))
    assert read(workshop, {"files": [path]})[0] == texts


def test_csv_faults(workshop: Any) -> None:
    rows = b'text,n\r\ngood,1\r\n"two\nlines",2\r\nshort\r\n\r\nb\xffd,3\r\n,4\r\nlast,5\r\n'
    path = workshop.write("a.csv", rows)
    with pytest.raises(InputError, match=r"a\.csv:5: wrong column count: 1 values where the header names 2"):
        read(workshop, {"files": [path]})
    texts, account = read(workshop, {"files": [path], "bad_records": "skip", "max_bad_fraction": 1})
    assert texts == ["good", "two\nlines", "last"]
    assert account.dropped == {"wrong_column_count": 1, "invalid_utf8": 1, "empty": 1}
    assert [sample["where"] for sample in account.samples] == ["a.csv:5", "a.csv:7", "a.csv:8"]
    source = {"files": [path], "bad_records": "skip", "max_bad_fraction": 1, "invalid_text": "replace"}
    assert read(workshop, source)[0] == ["good", "two\nlines", "b\ufffdd", "last"]
    with pytest.raises(InputError, match=r"no column 'body'; columns seen: text, n; set text_field"):
        read(workshop, {"files": [path], "text_field": "body"})
    with pytest.raises(InputError, match=r"n\.csv: is empty, without a line that names columns; leave it out"):
        read(workshop, {"files": [workshop.write("n.csv", b"")]})
    twice = workshop.write("b.csv", b"text,text\na,b\n")
    with pytest.raises(InputError, match=r"2 columns are called 'text'"):
        read(workshop, {"files": [twice]})


def test_a_csv_that_is_cut_short(workshop: Any) -> None:
    path = workshop.write("a.csv", b'text\ngood\n"never closed\nand more')
    with pytest.raises(InputError, match=r"a\.csv:4: no valid CSV: unexpected end of data; mend the file"):
        read(workshop, {"files": [path], "bad_records": "skip"})
    assert read(workshop, {"files": [path], "expect_damaged": ["a.csv"]})[0] == ["good"]
    data = gzip.compress(table_text([["text"], *([f"row {number} " * 50] for number in range(2000))]))
    path = workshop.write("b.csv.gz", data[: len(data) // 2])
    with pytest.raises(InputError, match=r"b\.csv\.gz: .*cut short"):
        read(workshop, {"files": [path]})
    assert read(workshop, {"files": [path], "expect_damaged": ["b.csv.gz"]})[0][0].startswith("row 0 ")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_csv_that_is_cut_within_a_row(workshop: Any, end: str) -> None:
    """What is left of a row looks like a row, of which the last value is shorter."""
    whole = f"id,text{end}" + "".join(f"{number},the text of row {number}{end}" for number in range(40))
    for length in range(len(whole) - 60, len(whole) + 1):
        path = workshop.write("a.csv", whole[:length].encode())
        texts, account = read(workshop, {"files": [path], "expect_damaged": ["a.csv"]})
        rows = len(whole[: length + (whole[length - 1] == "\r")].split(end)) - 2
        assert texts == [f"the text of row {number}" for number in range(rows)]
        assert account.records == rows
    packed = workshop.write("b.csv.gz", gzip.compress(whole.encode())[:-60])
    texts, _ = read(workshop, {"files": [packed], "expect_damaged": ["b.csv.gz"]})
    assert texts == [f"the text of row {number}" for number in range(len(texts))]
    assert 0 < len(texts) < 40


def test_a_fault_in_a_csv_that_is_listed_as_damaged(workshop: Any) -> None:
    """The lines of faults are told as in any other file."""
    path = workshop.write("a.csv", b"text\ngood\na,b\ngood\nc,d\nlas")
    texts, account = read(workshop, {"files": [path], "expect_damaged": ["a.csv"], "bad_records": "skip"})
    assert texts == ["good", "good"]
    assert [sample["where"] for sample in account.samples] == ["a.csv:3", "a.csv:5"]


def test_a_corpus_of_tables_equals_one_of_lines(workshop: Any) -> None:
    texts = [f"document {number} of many" for number in range(50)]
    lines = workshop.jsonl("a.jsonl", texts)
    tables = {
        "csv": workshop.write("a.csv", table_text([["text"], *([text] for text in texts)])),
        "arrow": workshop.write("a.arrow", arrow(texts, stream=False, rows=7)),
        "stream": workshop.write("b.arrow", arrow(texts, stream=True, rows=7)),
    }
    workshop.prepare({"files": [lines]}, output=str(workshop.folder / "lines"))
    for name, path in tables.items():
        workshop.prepare({"files": [path]}, output=str(workshop.folder / name))
        for kind in ("bin", "idx"):
            pairs = [next((workshop.folder / one / "tokens").rglob(f"*.{kind}")) for one in ("lines", name)]
            assert pairs[0].read_bytes() == pairs[1].read_bytes()
