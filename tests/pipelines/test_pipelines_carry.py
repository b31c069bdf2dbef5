"""What is carried along with documents, from every kind of source to the stream: values, places, and same bytes."""

import datetime
import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.formats.errors import CorpusError, GristmillError, InputError, RecipeError, SettingsError
from gristmill.formats.metadata import MetadataFile, metadata_faults, write_metadata
from gristmill.formats.recipe import parse_recipe
from gristmill.formats.verify import verify_corpus
from gristmill.pipelines.carried import carried_lines
from gristmill.pipelines.records import RecordAccount
from gristmill.runtime.corpus import open_corpus
from gristmill.runtime.inspect import inspect
from gristmill.runtime.trace import row_lines

INDEX = {"sequence_length": 16}
ROWS = [
    {"name": f"doc-{n}", "text": f"text {n} " + "of words " * (n % 7), "url": f"https://a.org/{n}"} for n in range(60)
]
EXPECTED = [{"id": row["name"], "url": row["url"]} for row in ROWS]
CARRY = {"id_field": "name", "carry": ["url"]}


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=7)
    return sink.getvalue()


def arrow(rows: list[dict[str, Any]]) -> bytes:
    table = pa.Table.from_pylist(rows)
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    return sink.getvalue()


def csv(rows: list[dict[str, Any]]) -> bytes:
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    return "\n".join(lines).encode() + b"\n"


def wet(rows: list[dict[str, Any]]) -> bytes:
    records = []
    for row in rows:
        data = row["text"].encode()
        head = (
            f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Record-ID: {row['name']}\r\nWARC-Target-URI: {row['url']}\r\n"
        )
        records.append(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data + b"\r\n\r\n")
    return b"".join(records)


def tfrecord(rows: list[dict[str, Any]]) -> bytes:
    def masked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return int(((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32).to_bytes(4, "little")

    found = b""
    for row in rows:
        data = json.dumps(row).encode()
        head = len(data).to_bytes(8, "little")
        found += head + masked(head) + data + masked(data)
    return found


SOURCES: dict[str, tuple[Callable[[list[dict[str, Any]]], bytes], dict[str, Any]]] = {
    "x.jsonl": (jsonl, CARRY),
    "x.parquet": (parquet, CARRY),
    "x.arrow": (arrow, CARRY),
    "x.csv": (csv, CARRY),
    "x.wet": (wet, {"id_field": "id", "carry": ["url"]}),
    "x.tfrecord": (tfrecord, {**CARRY, "record": "json"}),
}


def lines(corpus: Path, source: str = "s0") -> list[dict[str, Any]]:
    """What is carried along with the documents of a source, in their order."""
    manifest = json.loads((corpus / "manifest.json").read_bytes())
    entry = next(entry for entry in manifest["sources"] if entry["id"] == source)
    found = []
    for shard in entry["shards"]:
        data = (corpus / f"{shard['path']}.meta.jsonl").read_bytes()
        found += [json.loads(line) for line in data.split(b"\n")[:-1]]
        assert data.count(b"\n") == shard["documents"]
    return found


@pytest.mark.parametrize("name", SOURCES)
class TestSources:
    def test_a_corpus_of_it(self, workshop: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Copies are dropped with what they carry; cut, copied first and uncleaned, the same comes out."""
        monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 2000)
        write, carry = SOURCES[name]
        rows = [*ROWS[:20], {**ROWS[3], "name": "again"}, *ROWS[20:]]
        source = {"files": [workshop.write(name, write(rows))], **carry}
        shards = {"target_tokens": 400}
        workshop.prepare(source, shards=shards, index=INDEX)
        assert lines(workshop.folder / "out") == EXPECTED
        assert workshop.texts("s0") == [row["text"] for row in ROWS]
        assert verify_corpus(str(workshop.folder / "out")) == []
        plain = workshop.tree()
        assert len([path for path in plain if path.endswith(".meta.offsets")]) > 2
        copied = workshop.folder / "copied"
        workshop.prepare({**source, "materialize": True}, shards=shards, index=INDEX, output=str(copied))
        assert {path: found for path, found in workshop.tree(copied).items() if not path.startswith("raw/")} == plain
        every = workshop.folder / "every"
        workshop.prepare({**source, "clean": False}, shards=shards, index=INDEX, output=str(every))
        assert [line["id"] for line in lines(every)] == [row["name"] for row in rows]

    def test_a_missing_field(self, workshop: Any, name: str) -> None:
        write, carry = SOURCES[name]
        source = {"files": [workshop.write(name, write(ROWS))], **carry, "carry": ["where"]}
        if name in {"x.parquet", "x.arrow", "x.csv"}:
            with pytest.raises(
                InputError, match=rf"{name}: no column 'where'; columns seen: .*; set carry to one of th"
            ):
                workshop.prepare(source)
            return
        workshop.prepare(source)
        assert lines(workshop.folder / "out")[0] == {"id": "doc-0", "where": None}
        assert workshop.manifest()["sources"][0]["counted"] == {"without.where": 60}


def test_nothing_is_different_without_it(workshop: Any) -> None:
    """The other files are those of a recipe that carries nothing, and the manifest of such a one is silent about it."""
    path = workshop.write("x.jsonl", jsonl(ROWS))
    workshop.prepare({"files": [path]}, index=INDEX)
    plain = workshop.tree()
    assert "meta" not in (workshop.folder / "out" / "manifest.json").read_text("utf-8")
    workshop.prepare({"files": [path], **CARRY}, index=INDEX, output=str(workshop.folder / "with"))
    carrying = workshop.tree(workshop.folder / "with")
    assert {name for name in carrying if name not in plain} == {
        "clean/s0/00000.ids",
        *(f"tokens/s0/s0-00000-of-00001.{kind}" for kind in ("meta.jsonl", "meta.offsets")),
    }
    assert {name for name, found in plain.items() if carrying[name] != found} == {"manifest.json"}


@pytest.mark.parametrize("options", [{"runner": "auto", "max_workers": 2}, {"runner": "FnApiRunner"}])
def test_any_runner_gives_the_same(workshop: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [workshop.write(f"{number}.jsonl", jsonl(ROWS[10 * number : 10 * number + 10])) for number in range(6)]
    second = {"files": [workshop.write("y.parquet", parquet(ROWS[:9]))], "carry": ["url"]}
    sources = [{"files": paths, **CARRY}, {**second, "clean": {"exact_dedup": False}}]
    workshop.prepare(*sources, shards={"target_tokens": 300})
    expected = workshop.tree()
    other = workshop.folder / "other"
    workshop.prepare(*sources, shards={"target_tokens": 300}, output=str(other), options=options)
    assert workshop.tree(other) == expected
    assert lines(other, "s1") == [{"url": row["url"]} for row in ROWS[:9]]


def test_stages_in_two_runs_give_the_same(workshop: Any) -> None:
    """The second run reads the input again, of which the first had found what goes on."""
    source = {"files": [workshop.write("x.jsonl", jsonl([*ROWS, *ROWS[5:9]]))], **CARRY, "clean": {"min_chars": 8}}
    workshop.prepare(source)
    expected = workshop.tree()
    assert 0 < len(lines(workshop.folder / "out")) < 60
    apart = str(workshop.folder / "apart")
    workshop.prepare(source, output=apart, options={"last": "clean"})
    workshop.prepare(source, output=apart)
    assert workshop.tree(apart) == expected


def test_a_limit_cuts_what_is_carried_too(workshop: Any) -> None:
    workshop.prepare({"files": [workshop.write("x.jsonl", jsonl(ROWS))], **CARRY, "max_documents": 17})
    assert lines(workshop.folder / "out") == EXPECTED[:17]


def test_it_is_found_from_a_row_of_the_stream(workshop: Any) -> None:
    workshop.prepare({"files": [workshop.write("x.jsonl", jsonl(ROWS))], **CARRY}, index=INDEX | {"splits": "1,0,0"})
    out = str(workshop.folder / "out")
    stream = open_corpus(out).stream("train")
    for row in range(0, len(stream), 7):
        pieces = stream.describe(row)
        for piece in pieces:
            assert piece.origin is not None
            assert piece.origin.carried == EXPECTED[piece.document]
        assert any(f"id doc-{pieces[0].document}, url https://a.org/" in line for line in row_lines(pieces))
    stream.close()
    shown = inspect(out, documents=2)
    assert "id doc-1, url https://a.org/1" in shown
    assert "doc-2" not in shown


def test_verify_finds_what_is_wrong(workshop: Any) -> None:
    workshop.prepare({"files": [workshop.write("x.jsonl", jsonl(ROWS))], **CARRY})
    (path,) = (workshop.folder / "out" / "tokens" / "s0").glob("*.meta.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"doc-7", b'doc"7'))
    found = " ".join(verify_corpus(str(workshop.folder / "out")))
    assert "meta.jsonl: sha256" in found
    assert "meta.jsonl: document 7: no JSON" in found
    path.write_bytes(whole[:-9])
    assert "meta.jsonl: " in " ".join(verify_corpus(str(workshop.folder / "out")))
    path.unlink()
    assert any("meta.jsonl" in problem for problem in verify_corpus(str(workshop.folder / "out")))


def test_rejects_are_called_by_their_ids(workshop: Any) -> None:
    rows: list[dict[str, Any]] = [*ROWS[:3], {"name": "short", "text": "x"}, {"name": "null", "text": None}]
    rows += [{"name": "empty", "text": ""}, {"name": 17, "text": 4}]
    told = []
    for name, write, some in (("x.jsonl", jsonl, rows), ("x.parquet", parquet, rows[:-1])):
        source = {"files": [workshop.write(name, write(some))], "id_field": "name", "clean": {"min_chars": 3}}
        workshop.prepare({**source, "bad_records": "skip", "max_bad_fraction": 1.0})
        (path,) = (workshop.folder / "out" / "rejected" / "s0").glob("*.jsonl")
        told.append({(s["reason"], s["id"]) for s in map(json.loads, path.read_text("utf-8").splitlines())})
        with pytest.raises(InputError, match=rf"{name}.*\('null'\): null text"):
            workshop.prepare(source)
    assert told[1] == {("min_chars", "short"), ("null_text", "null"), ("empty", "empty")}
    assert told[0] == told[1] | {("not_a_string", 17)}


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (pa.array([datetime.date(2024, 2, 29)] * 4), "2024-02-29"),
        (pa.array([b"\xff\x00a"] * 4), "\ufffd\x00a"),
        (pa.array([Decimal("1.50")] * 4), "1.50"),
        (pa.array([float("nan")] * 4), None),
        (pa.array([{"n": 7}] * 4), {"n": 7}),
    ],
)
def test_an_id_of_any_kind_is_told(workshop: Any, ids: pa.Array, told: Any) -> None:
    """A sample calls its record what the shard's side would have called it, and copies of the source can say it too."""
    path = str(workshop.folder / "x.parquet")
    pq.write_table(pa.table({"text": ["good", None, "", "x"], "n": ids}), path)
    source = {"files": [path], "id_field": "n", "clean": {"min_chars": 2}}
    skip = {"bad_records": "skip", "max_bad_fraction": 1.0, "materialize": True}
    workshop.prepare({**source, **skip})
    (rejected,) = (workshop.folder / "out" / "rejected" / "s0").glob("*.jsonl")
    samples = [json.loads(line, parse_constant=pytest.fail) for line in rejected.read_text("utf-8").splitlines()]
    assert [sample["reason"] for sample in samples] == ["empty", "min_chars", "null_text"]
    assert [sample.get("id") for sample in samples] == [told] * 3
    assert lines(workshop.folder / "out") == [{"id": told}]
    with pytest.raises(InputError, match=r"row 1, counted from 0.*: null text"):
        workshop.prepare(source)


def test_what_is_no_text_in_a_field_that_is_carried(workshop: Any) -> None:
    """It is no fault of the text, which goes on; what is carried has U+FFFD in its place."""
    data = b'{"text":"one","u":"caf\xff"}\n{"text":"two","u":"\\ud800x"}\n{"text":"three","u":"good"}\n'
    workshop.prepare({"files": [workshop.write("x.jsonl", data)], "carry": ["u"]})
    assert workshop.texts("s0") == ["one", "two", "three"]
    assert lines(workshop.folder / "out") == [{"u": "caf\ufffd"}, {"u": "\ufffdx"}, {"u": "good"}]
    assert workshop.manifest()["sources"][0]["counted"] == {}


def test_a_column_that_is_missing_is_asked_for_by_its_key(workshop: Any) -> None:
    path = workshop.write("x.parquet", parquet(ROWS))
    lists = {"clean": {"url_lists": [workshop.write("list.txt", b"b.org\n")], "url_field": "address"}}
    for settings, key in (
        ({"text_field": "body"}, "text_field"),
        ({"extra_text_field": "body"}, "extra_text_field"),
        ({"template": "{body}"}, "template"),
        ({"id_field": "body"}, "id_field"),
        ({"carry": "body"}, "carry"),
    ):
        with pytest.raises(InputError, match=rf"x\.parquet: no column 'body'; .*; set {key} to one of them"):
            workshop.prepare({"files": [path], **settings})
    with pytest.raises(InputError, match=r"no column 'address'; .*; set clean\.url_field to one of them"):
        workshop.prepare({"files": [path], **lists})


@pytest.mark.parametrize("settings", [{}, {"format": "python"}, {"document": "line"}])
def test_texts_without_fields_carry_nothing(workshop: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(
        SettingsError, match=r"id_field: .*x\.txt holds texts without fields, so nothing can be carried"
    ):
        workshop.prepare({"files": [workshop.write("x.txt", b"text\n")], "id_field": "name", **settings})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"carry": ["a", "a"]}, 'sources[0].carry: names "a" twice'),
        ({"carry": ["a"], "id_field": "a"}, 'sources[0].carry: names "a", which id_field names already'),
        (
            {"carry": ["id"], "id_field": "a"},
            'sources[0].carry: names "id", which is what the value of id_field is called',
        ),
        ({"id_field": ""}, 'sources[0].id_field: is ""; it must be the name of a field'),
    ],
)
def test_mistakes_in_the_recipe(workshop: Any, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(workshop.values({"files": ["x"], **settings}))
    assert str(caught.value.problems[0]).startswith(told)


def test_values_of_every_type_become_json(workshop: Any) -> None:
    day = datetime.datetime(2024, 5, 6, 7, 8, 9)
    values: dict[str, pa.Array] = {
        "time": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
        "date": pa.array([day.date()]),
        "money": pa.array([Decimal("1.50")]),
        "data": pa.array([b"caf\xc3\xa9\xff"]),
        "list": pa.array([["a", None, "b"]]),
        "row": pa.array([{"x": 1, "when": day}]),
        "kind": pa.array(["a"]).dictionary_encode(),
        "none": pa.array([None], pa.string()),
        "nan": pa.array([float("nan")]),
        "large": pa.array([2**63 + 5], pa.uint64()),
    }
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["a text"], **values}), sink)
    workshop.prepare({"files": [workshop.write("x.parquet", sink.getvalue())], "carry": [*values, "row.x"]})
    assert lines(workshop.folder / "out") == [
        {
            "time": "2023-11-14 22:13:20.123456789",
            "date": "2024-05-06",
            "money": "1.50",
            "data": "café\ufffd",
            "list": ["a", None, "b"],
            "row": {"x": 1, "when": "2024-05-06T07:08:09"},
            "kind": "a",
            "none": None,
            "nan": None,
            "large": 2**63 + 5,
            "row.x": 1,
        }
    ]


def test_what_json_has_no_form_for() -> None:
    carry = (
        parse_recipe(
            {
                "name": "n",
                "output": "o",
                "tokenizer": {"path": "t"},
                "sources": [{"id": "s", "files": ["x"], "carry": "a"}],
            }
        )
        .sources[0]
        .carry
    )
    assert carry is not None
    values = [2**70, "a\ud800b", {1: {"x": (float("inf"), b"\xff")}, (2, 3): None}, [2**64, 0.5, True]]
    found = [json.loads(line) for line in carried_lines(carry, [values], RecordAccount("fail"))]
    expected = [2**70, "a\ufffdb", {"1": {"x": [None, "\ufffd"]}, "[2, 3]": None}, [2**64, 0.5, True]]
    assert [line["a"] for line in found] == expected


def test_the_files_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    some = [json.dumps({"n": number, "x": "y" * (number * 37 % 500)}).encode() for number in range(300)]
    prefix = str(tmp_path / "shard")
    with write_metadata(prefix) as writer:
        for start in range(0, 300, 64):
            writer.add(some[start : start + 64])
    assert [found.size for found in writer.facts()] == [sum(map(len, some)) + 300, 8 * 301]
    file = MetadataFile(prefix)
    assert all(file.values(number) == json.loads(some[number]) for number in (0, 1, 150, 299))
    assert list(metadata_faults(prefix, 300)) == []
    assert "are not 300 offsets" in "".join(metadata_faults(prefix, 299))
    for wrong in (-1, 300):
        with pytest.raises(GristmillError, match=f"document {wrong} of 300"):
            file.values(wrong)
    offsets = np.fromfile(tmp_path / "shard.meta.offsets", "<u8")
    offsets[7] += 1
    offsets.tofile(tmp_path / "shard.meta.offsets")
    assert "document 7 begins at byte" in "".join(metadata_faults(prefix, 300))
    with pytest.raises(GristmillError, match="document 7"):
        file.values(7)


def test_a_changed_list_of_fields_is_made_anew(workshop: Any) -> None:
    path = workshop.write("x.jsonl", jsonl(ROWS))
    workshop.prepare({"files": [path], **CARRY})
    workshop.prepare({"files": [path], "carry": ["url"]})
    assert lines(workshop.folder / "out") == [{"url": row["url"]} for row in ROWS]
    workshop.prepare({"files": [path]})
    assert not list((workshop.folder / "out" / "tokens").rglob("*.meta.*"))
    with pytest.raises(CorpusError):
        open_corpus(str(workshop.folder / "nowhere"))
