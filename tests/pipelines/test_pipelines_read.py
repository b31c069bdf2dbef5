"""Readers: every fault of a record under every policy, named by file and line; good text exactly as it is."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import parse_recipe
from gristmill.pipelines import plan as plan_module
from gristmill.pipelines.plan import plan_run
from gristmill.pipelines.read import read_split
from gristmill.pipelines.records import SAMPLES_PER_REASON, RecordAccount

Read = Callable[..., tuple[list[str], RecordAccount]]


def read_all(*files: str, policy: str = "skip", **settings: Any) -> tuple[list[str], RecordAccount]:
    """All texts of some files, and the account; record numbers must come in order."""
    values = {
        "name": "test",
        "output": "somewhere/else",
        "tokenizer": {"path": "t.json"},
        "sources": [{"id": "s", "files": list(files), **settings}],
    }
    recipe = parse_recipe(values)
    account = RecordAccount(policy)
    texts: list[str] = []
    numbers: list[int] = []
    for split in plan_run(recipe).splits:
        for batch in read_split(split, recipe.sources[0], account):
            assert len(batch.texts) == len(batch.records) > 0
            texts += batch.texts
            numbers += batch.records
    assert numbers == sorted(set(numbers))
    assert account.records == len(texts) + sum(account.dropped.values())
    return texts, account


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads what is given: bytes of a file, by name."""

    def run(data: dict[str, bytes], **settings: Any) -> tuple[list[str], RecordAccount]:
        for name, content in data.items():
            (tmp_path / name).write_bytes(content)
        return read_all(*(str(tmp_path / name) for name in data), **settings)

    return run


def row(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


GOOD = row(text="good")

BAD_LINES = {
    "cut": (b'{"text":"cut\n', "malformed_json", "unexpected end of data|EOF|control character"),
    "array": (b"[]\n", "not_an_object", r"a list, b'\[\]'"),
    "string": (b'"just a string"\n', "not_an_object", "a str"),
    "number": (b"5\n", "not_an_object", "a int"),
    "null": (b"null\n", "not_an_object", "a NoneType"),
    "NaN": (b'{"text": NaN}\n', "malformed_json", "NaN"),
    "Infinity": (b'{"text": "a", "x": -Infinity}\n', "malformed_json", "Infinity"),
    "two values": (b'{"text": "a"} {"text": "b"}\n', "malformed_json", "text"),
    "no value": (b"\x00\n", "malformed_json", "x00"),
    "deep": (b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "malformed_json", "[Rr]ecursion|depth"),
    "control character": (b'{"text": "a\x0bb"}\n', "malformed_json", "control character"),
    "missing": (row(body="a"), "missing_field", "no field 'text'; fields seen: body"),
    "other case": (row(Text="a", x=1), "missing_field", "no field 'text'; fields seen: Text, x"),
    "no fields": (b"{}\n", "missing_field", "fields seen: none"),
    "field null": (row(text=None), "null_text", "field 'text' is null"),
    "field number": (row(text=5), "not_a_string", "field 'text' is a int: 5"),
    "field bool": (row(text=True), "not_a_string", "field 'text' is a bool: True"),
    "field list": (row(text=["a", "b"]), "not_a_string", r"field 'text' is a list: \['a', 'b'\]"),
    "field object": (row(text={"a": 1}), "not_a_string", "field 'text' is a dict"),
    "invalid utf-8": (b'{"text":"caf\xff\xfe"}\n', "invalid_utf8", r"caf\\xff\\xfe"),
    "encoded surrogate": (b'{"text":"\xed\xa0\x80"}\n', "invalid_utf8", r"\\xed\\xa0\\x80"),
    "escaped surrogate": (b'{"text":"a\\ud800b"}\n', "lone_surrogate", r"ud800"),
    "reversed pair": (b'{"text":"a\\ude00\\ud83d"}\n', "lone_surrogate", r"ude00"),
}
EVERY_BAD_LINE = pytest.mark.parametrize(("line", "reason", "found"), BAD_LINES.values(), ids=BAD_LINES)


class TestJsonl:
    @EVERY_BAD_LINE
    def test_a_bad_line_stops_the_run(self, read: Read, line: bytes, reason: str, found: str) -> None:
        with pytest.raises(InputError) as caught:
            read({"a.jsonl": GOOD + b"\n" + line + GOOD}, policy="fail")
        message = str(caught.value)
        assert f"/a.jsonl:3: {reason.replace('_', ' ')}: " in message
        assert message.endswith('or set bad_records = "skip" to count such records and go on')
        assert len(message) < 700
        with pytest.raises(InputError, match=found):
            read({"a.jsonl": GOOD + line + GOOD}, policy="fail")

    @EVERY_BAD_LINE
    def test_a_bad_line_is_counted(self, read: Read, line: bytes, reason: str, found: str) -> None:
        texts, account = read({"a.jsonl": GOOD + line + GOOD + line})
        assert texts == ["good", "good"]
        assert account.dropped == {reason: 2}
        assert (account.bad, account.records) == (2, 4)
        assert [sample["where"] for sample in account.samples] == ["a.jsonl:2", "a.jsonl:4"]
        assert {sample["reason"] for sample in account.samples} == {reason}
        assert len(account.samples_jsonl().splitlines()) == 2

    def test_all_faults_of_one_file(self, read: Read) -> None:
        lines = [line for line, _, _ in BAD_LINES.values()]
        texts, account = read({"a.jsonl": GOOD.join([b"", *lines, b""])})
        assert texts == ["good"] * (len(lines) + 1)
        assert account.bad == len(lines)

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"", []),
            (b"\n \n\t\r\n", []),
            (GOOD.replace(b"\n", b"\r\n") * 2, ["good", "good"]),
            (GOOD + b"\n   \n" + GOOD.strip(), ["good", "good"]),
            (b"\xef\xbb\xbf" + GOOD, ["good"]),
            (b'{"text":"a\xe2\x80\xa8b\xe2\x80\xa9c\xc2\x85d"}\n', ["a\u2028b\u2029c\u0085d"]),
            (row(text="a\x0bb\x0cc\rd\ne\x00f"), ["a\x0bb\x0cc\rd\ne\x00f"]),
            (b'{"text":"\\ud83d\\ude00"}\n', ["\U0001f600"]),
            (b'{"text":"a","text":"b"}\n', ["b"]),
            (b'{"text":"a","x":"caf\xff"}\n' + GOOD, ["a", "good"]),  # what is wrong in another field is no fault
            (b'{"x":{"y":["\\ud800"]},"text":"a"}\n', ["a"]),
            (b'{"\xff":1,"text":"\xc3\xa9"}\n', ["\u00e9"]),
            (b'  {"x": 1e400, "text" : "a"}  \n', ["a"]),
            (b'{"x": ' + b"[" * 900 + b"]" * 900 + b', "text":"a"}\n', ["a"]),
            (b'{"x": 123456789012345678901234567890, "text":"a"}\n', ["a"]),
            (row(text="\ufeffa"), ["\ufeffa"]),
        ],
    )
    def test_good_text_is_given_as_it_is(self, read: Read, content: bytes, expected: list[str]) -> None:
        texts, account = read({"a.jsonl": content}, policy="fail")
        assert texts == expected
        assert not account.dropped

    def test_empty_text_is_no_fault(self, read: Read) -> None:
        texts, account = read({"a.jsonl": row(text="") + GOOD + row(text="") + row(text="  ")}, policy="fail")
        assert texts == ["good", "  "]
        assert (account.dropped, account.bad) == ({"empty": 2}, 0)

    @given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20), plain=st.booleans())
    @settings(max_examples=100, deadline=None)
    def test_any_text_comes_through(
        self, tmp_path_factory: pytest.TempPathFactory, texts: list[str], plain: bool
    ) -> None:
        path = tmp_path_factory.mktemp("any") / "a.jsonl"
        path.write_bytes(b"".join(json.dumps({"text": t}, ensure_ascii=plain).encode() + b"\n" for t in texts))
        found, account = read_all(str(path), policy="fail")
        assert found == [text for text in texts if text]
        assert account.dropped.get("empty", 0) == texts.count("")

    def test_a_wrong_field_is_told_under_both_policies(self, read: Read) -> None:
        content = b"".join(row(content=f"document {number}", id=number) for number in range(5))
        with pytest.raises(InputError, match=r"a\.jsonl:1: missing field: no field 'text'; fields seen: content, id"):
            read({"a.jsonl": content}, policy="fail")
        with pytest.raises(
            InputError,
            match=r"a\.jsonl: none of 5 records has the text: no field 'text'; fields seen: content, id; set",
        ):
            read({"b.jsonl": GOOD * 1000, "a.jsonl": content}, policy="skip")

    def test_many_fields_are_not_all_listed(self, read: Read) -> None:
        with pytest.raises(InputError, match=r"fields seen: f0, .*f19;"):
            read({"a.jsonl": row(**{f"f{number}": 1 for number in range(1000)})}, policy="fail")

    def test_columns_that_nobody_asked_for_may_be_anything(self, read: Read) -> None:
        content = (
            row(text="a", d=None) + row(text="b", d="x", link="y") + row(text="c", d={"e": [1]}) + row(d=1, text="d")
        )
        assert read({"a.jsonl": content}, policy="fail")[0] == ["a", "b", "c", "d"]

    def test_the_sample_is_bounded_and_the_count_is_not(self, read: Read) -> None:
        _, account = read({"a.jsonl": GOOD + row(text=1) * 1000 + row(text=None) * 30})
        assert account.dropped == {"not_a_string": 1000, "null_text": 30}
        assert len(account.samples) == 2 * SAMPLES_PER_REASON
        huge = {"a.jsonl": GOOD + row(text=["x" * 100_000])}
        assert len(read(huge)[1].samples_jsonl()) < 1000

    def test_a_fault_in_the_second_range_of_a_file_has_its_line(
        self, read: Read, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plan_module, "SPLIT_BYTES", 1000)
        content = GOOD * 150 + b"oops\n" + GOOD * 10
        with pytest.raises(InputError, match=r"a\.jsonl:151: malformed json"):
            read({"a.jsonl": content}, policy="fail")

    def test_a_fault_in_a_packed_file_has_its_line(self, read: Read) -> None:
        with pytest.raises(InputError, match=r"a\.jsonl\.gz:151: malformed json"):
            read({"a.jsonl.gz": gzip.compress(b"\xef\xbb\xbf" + GOOD * 150 + b"oops\n")}, policy="fail")

    def test_files_of_one_name_are_told_apart_in_a_message(self, tmp_path: Path) -> None:
        for folder, content in (("en", GOOD), ("de", GOOD + b"oops\n")):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "part.jsonl").write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_all(str(tmp_path / "en"), str(tmp_path / "de"), policy="fail")
        assert str(caught.value).startswith(f"{tmp_path}/de/part.jsonl:2: malformed json: ")
        _, account = read_all(str(tmp_path / "en"), str(tmp_path / "de"))
        assert account.samples[0]["where"] == "de/part.jsonl:2"

    def test_one_long_line(self, read: Read) -> None:
        text = "word " * 1_000_000
        assert read({"a.jsonl": GOOD + row(text=text) + GOOD})[0] == ["good", text, "good"]


class TestTwoFields:
    SETTINGS: ClassVar = {"text_field": "q", "extra_text_field": "a", "separator": " => "}

    def test_they_are_joined(self, read: Read) -> None:
        content = row(q="one", a="1") + row(a="2", q="two") + row(q="", a="") + row(q="three", a="")
        assert read({"a.jsonl": content}, **self.SETTINGS)[0] == ["one => 1", "two => 2", " => ", "three => "]

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (row(q="one"), "missing_field"),
            (row(a="one"), "missing_field"),
            (row(q="one", a=None), "null_text"),
            (row(q=["one"], a=["two"]), "not_a_string"),
            (row(q="one", a=2), "not_a_string"),
        ],
    )
    def test_both_must_be_there(self, read: Read, line: bytes, reason: str) -> None:
        texts, account = read({"a.jsonl": row(q="x", a="y") + line}, **self.SETTINGS)
        assert texts == ["x => y"]
        assert account.dropped == {reason: 1}

    def test_of_a_parquet_file(self, tmp_path: Path) -> None:
        table = pa.table({"q": ["one", None, "three"], "n": [1, 2, 3], "a": ["1", "2", ""]})
        pq.write_table(table, tmp_path / "a.parquet")
        texts, account = read_all(str(tmp_path / "a.parquet"), **self.SETTINGS)
        assert texts == ["one => 1", "three => "]
        assert account.dropped == {"null_text": 1}


class TestTemplate:
    SETTINGS: ClassVar = {"template": "Q: {doc.q}\n{{A}}: {a} ({doc.q})"}
    ROWS: ClassVar = [{"doc": {"q": "one"}, "a": "1"}, {"a": "2", "doc": {"q": "two", "x": 3}}]
    TEXTS: ClassVar = ["Q: one\n{A}: 1 (one)", "Q: two\n{A}: 2 (two)"]

    def test_of_lines(self, read: Read) -> None:
        content = b"".join(row(**values) for values in self.ROWS)
        assert read({"a.jsonl": content}, **self.SETTINGS)[0] == self.TEXTS

    def test_a_name_with_dots_that_a_field_has(self, read: Read) -> None:
        content = row(**{"doc.q": "flat", "doc": {"q": "deep"}}) + row(doc={"q": "deep"})
        assert read({"a.jsonl": content}, text_field="doc.q")[0] == ["flat", "deep"]

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (row(doc={"q": "x"}), "missing_field"),
            (row(doc="q", a="x"), "missing_field"),
            (row(doc={}, a="x"), "missing_field"),
            (row(doc={"q": None}, a="x"), "null_text"),
            (row(doc={"q": 1}, a="x"), "not_a_string"),
        ],
    )
    def test_faults(self, read: Read, line: bytes, reason: str) -> None:
        texts, account = read({"a.jsonl": row(**self.ROWS[0]) + line}, **self.SETTINGS)
        assert texts == self.TEXTS[:1]
        assert account.dropped == {reason: 1}

    @pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
    def test_of_tables(self, tmp_path: Path, name: str) -> None:
        table = pa.Table.from_pylist([*self.ROWS, {"doc": None, "a": "3"}, {"doc": {"q": "x"}, "a": None}])
        if name == "a.parquet":
            pq.write_table(table, tmp_path / name)
        else:
            with pa.ipc.new_file(str(tmp_path / name), table.schema) as file:
                file.write_table(table)
        texts, account = read_all(str(tmp_path / name), **self.SETTINGS)
        assert texts == self.TEXTS
        assert account.dropped == {"null_text": 2}
        with pytest.raises(InputError, match=r"no column 'doc\.z'; columns seen: doc, a"):
            read_all(str(tmp_path / name), text_field="doc.z")
        with pytest.raises(InputError, match=r"column 'doc' holds struct<.*>, not strings"):
            read_all(str(tmp_path / name), text_field="doc")


class TestRepair:
    @pytest.mark.parametrize(
        ("line", "text"),
        [
            (b'{"text":"caf\xff\xfe"}\n', "caf\ufffd\ufffd"),
            (b'{"text":"a\\ud800b"}\n', "a\ufffdb"),
            (b'{"text":"\xed\xa0\x80"}\n', "\ufffd\ufffd\ufffd"),
        ],
    )
    def test_invalid_text_is_replaced_and_counted(self, read: Read, line: bytes, text: str) -> None:
        texts, account = read({"a.jsonl": GOOD + line}, policy="fail", invalid_text="replace")
        assert texts == ["good", text]
        assert (account.counted, account.dropped) == ({"repaired_text": 1}, {})

    def test_a_text_that_needs_no_repair_is_not_counted(self, read: Read) -> None:
        texts, account = read({"a.jsonl": b'{"text":"ok","x":"\\udfff"}\n'}, policy="fail", invalid_text="replace")
        assert (texts, account.counted, account.dropped) == (["ok"], {}, {})

    @pytest.mark.parametrize("name", ["cut", "NaN", "Infinity", "deep", "array", "missing", "two values", "no value"])
    def test_other_faults_stay_faults(self, read: Read, name: str) -> None:
        line, reason, _ = BAD_LINES[name]
        texts, account = read({"a.jsonl": GOOD + line}, invalid_text="replace")
        assert texts == ["good"]
        assert (account.counted, account.dropped) == ({}, {reason: 1})

    def test_of_text_files_and_lines(self, read: Read) -> None:
        data = {"a.txt": b"caf\xff\n\xfe\n"}
        assert read(data, invalid_text="replace")[0] == ["caf\ufffd\n\ufffd\n"]
        texts, account = read(data, invalid_text="replace", document="line")
        assert texts == ["caf\ufffd", "\ufffd"]
        assert account.counted == {"repaired_text": 2}

    def test_of_a_binary_column(self, tmp_path: Path) -> None:
        table = pa.table({"text": pa.array([b"good", b"caf\xff"], pa.binary())})
        pq.write_table(table, tmp_path / "a.parquet")
        texts, account = read_all(str(tmp_path / "a.parquet"), invalid_text="replace")
        assert texts == ["good", "caf\ufffd"]
        assert account.counted == {"repaired_text": 1}


class TestText:
    def test_a_file_is_a_document(self, read: Read) -> None:
        content = "a\u2028b\u2029c\u0085d\ve\ff\r\n\tg\x00\n"
        texts, _ = read({"a.txt": content.encode(), "b.txt": b"\xef\xbb\xbfmarked", "c.txt": b""})
        assert texts == [content, "marked"]

    def test_a_line_is_a_document(self, read: Read) -> None:
        content = "one\r\n\r\n\n two\u2028still two\vand\fon\n\tthree".encode()
        texts, account = read({"a.txt": content}, document="line")
        assert texts == ["one", " two\u2028still two\vand\fon", "\tthree"]
        assert not account.dropped

    def test_many_files_make_few_batches(self, read: Read) -> None:
        data = {f"{number:03d}.py": b"x = 1\n" for number in range(200)}
        assert read(data)[0] == ["x = 1\n"] * 200

    def test_invalid_text(self, read: Read) -> None:
        with pytest.raises(
            InputError, match=r"/a\.txt: invalid utf8: 'utf-8' codec can't decode byte 0xff in position 3"
        ):
            read({"a.txt": b"caf\xff"}, policy="fail")
        with pytest.raises(InputError, match=r"/a\.txt:2: invalid utf8: "):
            read({"a.txt": b"good\ncaf\xff\n"}, policy="fail", document="line")
        texts, account = read({"a.txt": b"caf\xff", "b.txt": b"good"})
        assert texts == ["good"]
        assert account.dropped == {"invalid_utf8": 1}
        assert account.samples[0]["where"] == "a.txt"

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
    def test_a_file_of_another_encoding_is_one_bad_record(self, read: Read, encoding: str) -> None:
        data = {"a.txt": "text".encode(encoding), "b.txt": b"good"}
        with pytest.raises(
            InputError, match=rf"/a\.txt: invalid utf8: {encoding.upper()} text, by its byte-order mark"
        ):
            read(data, policy="fail")
        for given_settings in ({}, {"invalid_text": "replace"}):
            texts, account = read(data, **given_settings)
            assert texts == ["good"]
            assert account.dropped == {"invalid_utf8": 1}

    def test_packed_files(self, read: Read) -> None:
        assert read({"a.txt.gz": gzip.compress(b"one\ntwo\n"), "b.txt": b"three"})[0] == ["one\ntwo\n", "three"]
        with pytest.raises(InputError, match=r"a\.txt\.gz: the gzip data end before their end mark"):
            read({"a.txt.gz": gzip.compress(b"one\ntwo\n" * 100)[:-4]})

    def test_formats_of_one_source_may_differ(self, read: Read) -> None:
        data = {"a.txt": b"text", "b.jsonl": GOOD, "c.py": b"x = 1\n", "d.txt": b"more"}
        assert read(data)[0] == ["text", "good", "x = 1\n", "more"]


class TestPython:
    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"), "# -*- coding: latin-1 -*-\nx = 'é'\n"),
            (b"#!/bin/sh\n# vim: set fileencoding=cp1252 :\n\x80", "#!/bin/sh\n# vim: set fileencoding=cp1252 :\n€"),
            (b"\xef\xbb\xbfx = 1\n", "x = 1\n"),
            (b"\xef\xbb\xbf# coding: latin-1\nx = '\xc3\xa9'\n", "# coding: latin-1\nx = 'é'\n"),
            (b"def f():\n\treturn '\x0c'\r\n", "def f():\n\treturn '\x0c'\r\n"),
            (b"x = 1\ny = 2\n# coding: latin-1\n\xc3\xa9", "x = 1\ny = 2\n# coding: latin-1\né"),
        ],
    )
    def test_the_declared_encoding_is_used(self, read: Read, content: bytes, text: str) -> None:
        assert read({"a.py": content}, policy="fail")[0] == [text]

    @pytest.mark.parametrize(
        "name",
        [
            "hex",
            "rot13",
            "zlib",
            "nonsense",
            "undefined",
            "idna",
            "punycode",
            "unicode_escape",
            "raw_unicode_escape",
            "utf-7",
            "utf-16",
            "cp037",
            "mbcs",
        ],
    )
    def test_an_encoding_that_is_none(self, read: Read, name: str) -> None:
        data = {"a.py": f"# coding: {name}\nx = '\\ud800\\d +2AA-'\n".encode(), "b.py": b"x\n"}
        with pytest.raises(InputError, match=r"/a\.py: unknown encoding: "):
            read(data, policy="fail")
        texts, account = read(data, invalid_text="replace")
        assert texts == ["x\n"]
        assert account.dropped == {"unknown_encoding": 1}

    def test_invalid_text_in_the_first_line(self, read: Read) -> None:
        with pytest.raises(InputError, match=r"/a\.py: invalid utf8"):
            read({"a.py": b"# caf\xff\n"}, policy="fail")
        assert read({"a.py": b"# caf\xff\n"}, invalid_text="replace")[0] == ["# caf\ufffd\n"]

    def test_invalid_text_in_a_declared_encoding(self, read: Read) -> None:
        assert read({"a.py": b"# coding: ascii\n# caf\xff\n", "b.py": b"x\n"})[1].dropped == {"invalid_utf8": 1}


class TestParquet:
    TEXTS: ClassVar = ["one", "zwei", "", "x" * 5000, "trois é"]

    @pytest.mark.parametrize(
        "column",
        [
            pa.array(TEXTS),
            pa.array(TEXTS, pa.large_string()),
            pa.array(TEXTS, pa.string_view()),
            pa.array([text.encode() for text in TEXTS], pa.binary()),
            pa.array([text.encode() for text in TEXTS], pa.large_binary()),
            pa.array(TEXTS).dictionary_encode(),
            pa.array(TEXTS, pa.large_string()).dictionary_encode(),
        ],
        ids=lambda column: str(column.type),
    )
    def test_every_kind_of_text(self, tmp_path: Path, column: pa.Array) -> None:
        pq.write_table(pa.table({"n": range(5), "text": column}), tmp_path / "a.parquet")
        texts, account = read_all(str(tmp_path / "a.parquet"), policy="fail")
        assert texts == [text for text in self.TEXTS if text]
        assert (account.dropped, account.records) == ({"empty": 1}, 5)

    @pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())], ids=str)
    def test_nulls(self, tmp_path: Path, kind: pa.DataType) -> None:
        values: list[str | None] = ["a", None, "b", None]
        column = pa.array(values).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(values).cast(kind)
        pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
        texts, account = read_all(str(tmp_path / "a.parquet"))
        assert texts == ["a", "b"]
        assert account.dropped == {"null_text": 2}
        assert [sample["where"] for sample in account.samples] == [
            "a.parquet: row 1, counted from 0",
            "a.parquet: row 3, counted from 0",
        ]
        with pytest.raises(InputError, match=r"/a\.parquet: row 1, counted from 0: null text: the value is null"):
            read_all(str(tmp_path / "a.parquet"), policy="fail")

    def test_a_column_of_nothing_but_nulls(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"text": pa.nulls(3)}), tmp_path / "a.parquet")
        assert read_all(str(tmp_path / "a.parquet"))[1].dropped == {"null_text": 3}

    @pytest.mark.parametrize(
        "column",
        [
            pa.array([["a"]]),
            pa.array([{"a": 1}]),
            pa.array([5]),
            pa.array([1.5]),
            pa.array([True]),
            pa.array([5]).dictionary_encode(),
            pa.array([b"abcd"], pa.binary(4)),
        ],
        ids=lambda column: str(column.type),
    )
    def test_a_column_that_is_no_text(self, tmp_path: Path, column: pa.Array) -> None:
        pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
        for policy in ("fail", "skip"):
            with pytest.raises(InputError, match=r"/a\.parquet: column 'text' holds .*, not strings; set text_field"):
                read_all(str(tmp_path / "a.parquet"), policy=policy)

    def test_a_missing_column(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"body": ["a"], "Text": ["b"]}), tmp_path / "a.parquet")
        with pytest.raises(
            InputError, match=r"/a\.parquet: no column 'text'; columns seen: body, Text; set text_field"
        ):
            read_all(str(tmp_path / "a.parquet"))

    def test_two_columns_of_one_name(self, tmp_path: Path) -> None:
        table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
        pq.write_table(table, tmp_path / "a.parquet")
        with pytest.raises(InputError, match=r"/a\.parquet: 2 columns are called 'text'"):
            read_all(str(tmp_path / "a.parquet"))

    def test_invalid_utf8(self, tmp_path: Path) -> None:
        table = pa.table({"text": pa.array([b"good"] * 700 + [b"caf\xff"] + [b"good"], pa.binary())})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
        texts, account = read_all(str(tmp_path / "a.parquet"))
        assert texts == ["good"] * 701
        assert account.samples[0]["where"] == "a.parquet: row 700, counted from 0"

    def test_schemas_may_drift_in_other_columns(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"text": ["a"], "meta": ["x"]}), tmp_path / "a.parquet")
        nested = pa.table({"meta": [{"k": 1}], "text": pa.array(["b"], pa.large_string())})
        pq.write_table(nested, tmp_path / "b.parquet")
        (tmp_path / "c.jsonl").write_bytes(row(text="c", meta=None))
        assert read_all(str(tmp_path))[0] == ["a", "b", "c"]

    def test_no_rows(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
        pq.ParquetWriter(tmp_path / "b.parquet", pa.schema([("text", pa.string())])).close()
        texts, account = read_all(str(tmp_path))
        assert (texts, account.records, len(account.inputs)) == ([], 0, 2)

    @pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "brotli"])
    def test_codecs(self, tmp_path: Path, codec: str) -> None:
        pq.write_table(pa.table({"text": self.TEXTS}), tmp_path / "a.parquet", compression=codec)
        assert len(read_all(str(tmp_path / "a.parquet"))[0]) == 4

    def test_damaged_pages(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        table = pa.table({"text": [f"document {number}" for number in range(1000)]})
        pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
        data = bytearray(path.read_bytes())
        place = data.index(b"document 500")
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"/a\.parquet: damaged Parquet data: .*[Cc][Rr][Cc]"):
            read_all(str(path))

    def test_the_digest_does_not_depend_on_the_cut_of_row_groups(self, tmp_path: Path) -> None:
        texts = [None if number % 7 == 0 else f"document {number}" for number in range(2000)]
        digests = set()
        for rows in (100, 256, 999, 5000):
            pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=rows)
            digests.add(read_all(str(tmp_path / "a.parquet"))[1].inputs[0][1])
        assert len(digests) == 1


class TestExpectedDamage:
    PACKED = gzip.compress(b"".join(row(text=f"document {number}") for number in range(3000)))

    @pytest.mark.parametrize("keep", [0.5, 0.999])
    def test_a_file_cut_short_stops_both_policies(self, read: Read, keep: float) -> None:
        cut = self.PACKED[: int(keep * len(self.PACKED))]
        for policy in ("fail", "skip"):
            with pytest.raises(InputError, match=r"a\.jsonl\.gz: the gzip data end before their end mark"):
                read({"a.jsonl.gz": cut}, policy=policy)

    def test_unless_it_is_expected(self, read: Read) -> None:
        cut = self.PACKED[: len(self.PACKED) // 2]
        texts, account = read({"a.jsonl.gz": cut}, policy="fail", expect_damaged=["a.jsonl.gz"])
        assert texts == [f"document {number}" for number in range(len(texts))]
        assert 500 < len(texts) < 3000
        assert account.records == len(texts)

    def test_of_a_whole_text_file(self, read: Read) -> None:
        packed = gzip.compress(b"one\n" * 10_000)
        texts, _ = read({"a.txt.gz": packed[:-8]}, expect_damaged=["a.txt.gz"])
        assert texts == ["one\n" * 10_000]


def test_a_split_is_read_twice_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "SPLIT_BYTES", 2000)
    lines = [line for line, _, _ in BAD_LINES.values() if len(line) < 1000]
    (tmp_path / "a.jsonl").write_bytes(GOOD.join(lines * 5))
    first, second = (read_all(str(tmp_path)) for _ in range(2))
    assert first == second
