"""Faults that people met in the field, in every format and compression that they can come in.

The tests beside the readers look at each fault closely; these make sure that none of them depends on the format, the
packing, or how a file is called.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from gristmill.formats.errors import GristmillError, InputError
from gristmill.formats.recipe import parse_recipe
from gristmill.pipelines.plan import plan_run
from gristmill.pipelines.read import read_split
from gristmill.pipelines.records import RecordAccount

TEXTS = [f"document {number} of a few words, né 世界" for number in range(300)]
ODD = [
    "a\u2028b\u2029c\u0085d",
    "tab\tand \U0001f468‍\U0001f469‍\U0001f467",
    "nul \x00 and \x1b",
    "soft\u00adhyphen\u200b",
]


def as_jsonl(texts: list[str]) -> list[bytes]:
    return [json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in texts]


def as_csv(texts: list[str], delimiter: str = ",") -> list[bytes]:
    rows = []
    for row in [["id", "text"], *([str(number), text] for number, text in enumerate(texts))]:
        sink = io.StringIO(newline="")
        csv.writer(sink, delimiter=delimiter, lineterminator="\n").writerow(row)
        rows.append(sink.getvalue().encode())
    return rows


def as_tsv(texts: list[str]) -> list[bytes]:
    return as_csv(texts, "\t")


def as_lines(texts: list[str]) -> list[bytes]:
    return [text.encode() + b"\n" for text in texts]


def as_wet(texts: list[str]) -> list[bytes]:
    records = []
    for number, text in enumerate(texts):
        data = text.encode()
        head = (
            f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Record-ID: <urn:uuid:{number}>\r\nContent-Type: text/plain\r\n"
        )
        records.append(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data + b"\r\n\r\n")
    return records


def as_tfrecord(texts: list[str]) -> list[bytes]:
    def masked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)

    pairs = [(struct.pack("<Q", len(data)), data) for data in map(str.encode, texts)]
    return [head + masked(head) + data + masked(data) for head, data in pairs]


FORMATS: dict[str, tuple[Callable[[list[str]], list[bytes]], str, dict[str, Any]]] = {
    "jsonl": (as_jsonl, ".jsonl", {}),
    "csv": (as_csv, ".csv", {}),
    "tsv": (as_tsv, ".tsv", {}),
    "lines": (as_lines, ".txt", {"document": "line"}),
    "wet": (as_wet, ".wet", {}),
    "tfrecord": (as_tfrecord, ".tfrecord", {"record": "text"}),
}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}
EVERY_FORMAT = pytest.mark.parametrize("name", FORMATS)
EVERY_PACKING = pytest.mark.parametrize("packing", PACKED)


def read(path: Path, **settings: Any) -> tuple[list[str], RecordAccount]:
    """The texts of a file, through the plan, and the account."""
    values = {
        "name": "test",
        "output": "somewhere/else",
        "tokenizer": {"path": "t.json"},
        "sources": [{"id": "s", "files": [str(path)], **settings}],
    }
    recipe = parse_recipe(values)
    account = RecordAccount(recipe.sources[0].bad_records)
    texts: list[str] = []
    for split in plan_run(recipe).splits:
        for batch in read_split(split, recipe.sources[0], account):
            texts += batch.texts
    return texts, account


@EVERY_FORMAT
@EVERY_PACKING
class TestPacked:
    def parts(self, name: str, texts: list[str] = TEXTS) -> tuple[list[bytes], str, dict[str, Any]]:
        write, ending, settings = FORMATS[name]
        return write(texts), ending, settings

    def test_one_member_and_many(self, tmp_path: Path, name: str, packing: str) -> None:
        parts, ending, settings = self.parts(name)
        pack = PACKED[packing]
        one = pack(b"".join(parts))
        many = pack(b"".join(parts[:100])) + pack(b"") + pack(b"".join(parts[100:]))
        for data in (one, many):
            path = tmp_path / f"x{ending}{packing}"
            path.write_bytes(data)
            assert read(path, **settings)[0] == TEXTS

    def test_a_name_that_says_something_else(self, tmp_path: Path, name: str, packing: str) -> None:
        parts, ending, settings = self.parts(name)
        (tmp_path / f"packed{ending}").write_bytes(PACKED[packing](b"".join(parts)))
        (tmp_path / f"plain{ending}{packing}").write_bytes(b"".join(parts))
        (tmp_path / f"LARGE{ending}{packing}".upper()).write_bytes(PACKED[packing](b"".join(parts)))
        for path in sorted(tmp_path.iterdir()):
            assert read(path, **settings)[0] == TEXTS, path

    @pytest.mark.parametrize("policy", ["fail", "skip"])
    @pytest.mark.parametrize("keep", [0.5, 0.999])
    def test_cut_short(self, tmp_path: Path, name: str, packing: str, policy: str, keep: float) -> None:
        parts, ending, settings = self.parts(name)
        whole = PACKED[packing](b"".join(parts))
        path = tmp_path / f"x{ending}{packing}"
        path.write_bytes(whole[: int(len(whole) * keep)])
        with pytest.raises(InputError, match=rf"x\{ending}\{packing}"):
            read(path, bad_records=policy, max_bad_fraction=1.0, **settings)

    def test_nothing_at_all(self, tmp_path: Path, name: str, packing: str) -> None:
        path = tmp_path / f"x{FORMATS[name][1]}{packing}"
        path.write_bytes(b"")
        with pytest.raises(InputError, match=r"has 0 bytes, which is no complete compressed file"):
            read(path, **FORMATS[name][2])


@EVERY_FORMAT
class TestText:
    def test_only_a_line_feed_ends_a_line(self, tmp_path: Path, name: str) -> None:
        write, ending, settings = FORMATS[name]
        path = tmp_path / f"x{ending}"
        path.write_bytes(b"".join(write(ODD)))
        assert read(path, **settings)[0] == ODD

    def test_a_mark_in_front_is_no_text(self, tmp_path: Path, name: str) -> None:
        if name in {"wet", "tfrecord"}:
            pytest.skip("a file begins with what its format says")
        write, ending, settings = FORMATS[name]
        (tmp_path / f"x{ending}").write_bytes(b"\xef\xbb\xbf" + b"".join(write(TEXTS)))
        assert read(tmp_path / f"x{ending}", **settings)[0] == TEXTS

    def test_carriage_returns_are_no_text(self, tmp_path: Path, name: str) -> None:
        if name in {"wet", "tfrecord"}:
            pytest.skip("its records have lengths")
        write, ending, settings = FORMATS[name]
        parts = [part.removesuffix(b"\n") for part in write(TEXTS)]
        (tmp_path / f"x{ending}").write_bytes(b"\r\n".join(parts))  # and none behind the last
        assert read(tmp_path / f"x{ending}", **settings)[0] == TEXTS

    def test_another_encoding_is_named(self, tmp_path: Path, name: str) -> None:
        if name == "tfrecord":
            pytest.skip("its records are bytes")
        write, ending, settings = FORMATS[name]
        path = tmp_path / f"x{ending}"
        path.write_bytes(b"".join(write(TEXTS)).decode().encode("utf-16"))
        with pytest.raises(InputError, match=rf"x\{ending}"):
            read(path, **settings)

    @pytest.mark.parametrize("policy", ["fail", "skip"])
    def test_invalid_bytes_are_one_bad_record(self, tmp_path: Path, name: str, policy: str) -> None:
        if name == "tfrecord":
            pytest.skip("a changed byte is told by its checksum; its own tests write such records")
        write, ending, settings = FORMATS[name]
        parts = write(["one", "c@@", "three"])
        path = tmp_path / f"x{ending}"
        path.write_bytes(b"".join(parts).replace(b"@@", b"\xff\xfe"))
        if policy == "fail":
            with pytest.raises(InputError, match=rf"x\{ending}.*invalid utf8"):
                read(path, **settings)
            return
        texts, account = read(path, bad_records="skip", **settings)
        assert texts == ["one", "three"]
        assert (account.records, account.bad, dict(account.dropped)) == (3, 1, {"invalid_utf8": 1})
        assert read(path, invalid_text="replace", **settings)[0] == ["one", "c��", "three"]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrow stream"])
class TestTables:
    def write(self, path: Path, kind: str, table: pa.Table) -> None:
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=50)
            return
        opened = pa.ipc.new_stream if kind.endswith("stream") else pa.ipc.new_file
        with opened(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=50)

    def test_texts_come_as_they_are(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / f"x.{kind.split()[0]}"
        self.write(path, kind, pa.table({"text": [*TEXTS, *ODD]}))
        assert read(path)[0] == [*TEXTS, *ODD]

    @pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
    def test_cut_short(self, tmp_path: Path, kind: str, keep: float) -> None:
        path = tmp_path / f"x.{kind.split()[0]}"
        self.write(path, kind, pa.table({"text": TEXTS}))
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
        with pytest.raises(GristmillError, match=rf"x\.{kind.split()[0]}"):
            read(path, bad_records="skip", max_bad_fraction=1.0)

    def test_columns_that_nobody_wants_may_drift(self, tmp_path: Path, kind: str) -> None:
        ending = kind.split()[0]
        kinds = [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.binary(), pa.string()]
        others = [[{"a": 1}] * 2, ["x", "y"], [None, None], [1.5, 2.5]]
        for number, (column, other) in enumerate(zip(kinds, others, strict=True)):
            texts = pa.array([f"{number} one", f"{number} two"])
            table = pa.table({"metadata": other, "text": texts.cast(column)})
            self.write(tmp_path / f"f{number}.{ending}", kind, table)
        assert read(tmp_path)[0] == [f"{number} {word}" for number in range(4) for word in ("one", "two")]
