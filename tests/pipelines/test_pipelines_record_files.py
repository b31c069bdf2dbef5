"""TFRecord and ArrayRecord files: what they hold comes out, cut or whole, and what is wrong with them is named.

The TFRecords and the Examples are written byte by byte by the functions here, from the descriptions of the formats; the
ArrayRecords by their own library.
"""

import gzip
import json
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fsspec
import google_crc32c
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import InputError, SettingsError
from gristmill.formats.recipe import parse_recipe
from gristmill.pipelines.array_record_file import read_array_index
from gristmill.pipelines.estimate import estimate_source
from gristmill.pipelines.input_formats import format_of
from gristmill.pipelines.plan import plan_run
from gristmill.pipelines.read import read_split
from gristmill.pipelines.records import RecordAccount
from gristmill.pipelines.tfrecord_file import packed_frames

TEXTS = [f"document {number} of a few words, né 世界 \u2028 \x00 \r\n" for number in range(300)]


def crc32c(data: bytes) -> int:
    """The definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def tfrecord(records: Iterable[bytes]) -> bytes:
    return b"".join((head := struct.pack("<Q", len(data))) + masked(head) + data + masked(data) for data in records)


def varint(value: int) -> bytes:
    value %= 2**64
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(**features: Any) -> bytes:
    """A serialized tf.train.Example: bytes and strings, integers, floats, lists of them, or None for no value."""
    entries = b""
    for name, given_values in features.items():
        values = given_values if isinstance(given_values, list) else [given_values]
        if given_values is None:
            feature = b""
        elif values and isinstance(values[0], int):
            feature = field(3, field(1, b"".join(map(varint, values))))
        elif values and isinstance(values[0], float):
            feature = field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            texts = [value.encode() if isinstance(value, str) else value for value in values]
            feature = field(1, b"".join(field(1, text) for text in texts))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def array_record(path: Path, records: Iterable[bytes], options: str = "") -> Path:
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def write(path: Path, records: Iterable[bytes]) -> Path:
    """Writes records in the format that the name tells."""
    if format_of(path.name) == "array_record":
        return array_record(path, records)
    path.write_bytes(tfrecord(records))
    return path


def examples(texts: Iterable[str | bytes], name: str = "text") -> list[bytes]:
    return [example(**{name: text, "n": number, "score": 0.5}) for number, text in enumerate(texts)]


def read(path: "Path | str", **source: Any) -> tuple[list[str], RecordAccount]:
    """The texts of a file, through the plan, and the account."""
    values = {"name": "test", "output": "somewhere/else", "tokenizer": {"path": "t.json"}}
    recipe = parse_recipe(values | {"sources": [{"id": "s", "files": [str(path)], **source}]})
    account = RecordAccount(recipe.sources[0].bad_records)
    texts: list[str] = []
    for split in plan_run(recipe).splits:
        for batch in read_split(split, recipe.sources[0], account):
            texts += batch.texts
            assert len(batch.records) == len(batch.texts)
    return texts, account


ENDINGS = [".tfrecord", ".array_record"]
EVERY_FORMAT = pytest.mark.parametrize("ending", ENDINGS)


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(range(256)) * 3])
def test_the_checksum_is_that_of_the_standard(data: bytes) -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, B.4
    assert crc32c(data) == google_crc32c.value(data)


def test_a_file_that_other_software_wrote(tmp_path: Path) -> None:
    """The test file of Grain's reader: a sequence in which each line tells the one before."""
    written = bytes.fromhex(
        "01000000000000000175de4131c30c4ad60300000000000000b099490e312031"
        "59bed8de0300000000000000b099490e322031b4f2345f0700000000000000bb"
        "d79f11312032203120319886ebb80b000000000000008615f504312031203120"
        "322032203161692698"
    )
    (tmp_path / "x.tfrecord").write_bytes(written)
    assert read(tmp_path / "x.tfrecord", record="text")[0] == ["1", "1 1", "2 1", "1 2 1 1", "1 1 1 2 2 1"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.tfrecord", "tfrecord"),
        ("a.TFRecords", "tfrecord"),
        ("a.tfrecord.gz", "tfrecord"),
        ("c4-train.tfrecord-00000-of-01024", "tfrecord"),
        ("c4-train.tfrecords-0-of-1.gz", "tfrecord"),
        ("a.array_record", "array_record"),
        ("a.arrayrecord", "array_record"),
        ("c4-train.array_record-00007-of-01024", "array_record"),
        ("a.tfrecord-00000", None),
        ("a.jsonl-00000-of-00010", None),
        ("a.record", None),
    ],
)
def test_what_names_tell(name: str, kind: str | None) -> None:
    assert format_of(name) == kind


@EVERY_FORMAT
class TestExamples:
    def test_texts_come_as_they_are(self, tmp_path: Path, ending: str) -> None:
        path = write(tmp_path / f"x{ending}", examples(TEXTS))
        texts, account = read(path)
        assert texts == TEXTS
        assert (account.records, account.bad) == (300, 0)

    def test_fields_are_joined_as_elsewhere(self, tmp_path: Path, ending: str) -> None:
        path = write(tmp_path / f"x{ending}", [example(question="What?", answer="That.", n=[1, 2, 3])])
        assert read(path, text_field="question", extra_text_field="answer")[0] == ["What?\n\nThat."]
        assert read(path, template="Q: {question} A: {answer}")[0] == ["Q: What? A: That."]

    def test_other_records_than_examples(self, tmp_path: Path, ending: str) -> None:
        path = write(tmp_path / f"x{ending}", [text.encode() for text in TEXTS])
        assert read(path, record="text")[0] == TEXTS
        path = write(tmp_path / f"y{ending}", [json.dumps({"doc": {"body": text}}).encode() for text in TEXTS])
        assert read(path, record="json", text_field="doc.body")[0] == TEXTS

    @pytest.mark.parametrize(
        ("record", "reason", "told"),
        [
            (example(n=1), "missing_field", "no feature 'text'; features seen: n"),
            (example(text=[1, 2]), "not_a_string", "feature 'text' holds integers"),
            (example(text=0.5), "not_a_string", "feature 'text' holds floats"),
            (example(text=["a", "b"]), "not_a_string", "feature 'text' holds 2 values"),
            (example(text=[]), "null_text", "feature 'text' holds no value"),
            (example(text=None), "null_text", "feature 'text' holds no value"),
            (example(text=b"caf\xff\xfe"), "invalid_utf8", "invalid start byte"),
            (b"\x0a\xff\xff", "malformed_example", "set record"),
        ],
        ids=["missing", "integers", "floats", "two", "empty list", "no list", "invalid", "none"],
    )
    def test_a_bad_record_is_one_bad_record(
        self, tmp_path: Path, ending: str, record: bytes, reason: str, told: str
    ) -> None:
        path = write(tmp_path / f"x{ending}", [example(text="one"), record, example(text="three")])
        with pytest.raises(InputError) as caught:
            read(path)
        assert f"x{ending}: record 1, counted from 0" in str(caught.value)
        assert reason.replace("_", " ") in str(caught.value)
        assert told in str(caught.value)
        texts, account = read(path, bad_records="skip")
        assert texts == ["one", "three"]
        assert (account.records, account.bad, dict(account.dropped)) == (3, 1, {reason: 1})
        assert account.samples[0]["where"].startswith(f"x{ending}: record 1, counted from 0")

    def test_invalid_bytes_can_be_replaced(self, tmp_path: Path, ending: str) -> None:
        path = write(tmp_path / f"x{ending}", [example(text=b"caf\xff"), example(text="")])
        texts, account = read(path, invalid_text="replace")
        assert texts == ["caf\ufffd"]
        assert (dict(account.counted), dict(account.dropped)) == ({"repaired_text": 1}, {"empty": 1})

    def test_a_wrong_name_or_kind_is_no_bad_record(self, tmp_path: Path, ending: str) -> None:
        path = write(tmp_path / f"x{ending}", examples(TEXTS, "body"))
        with pytest.raises(InputError, match="none of 300 records has the text: no feature 'text'; features seen: bod"):
            read(path, bad_records="skip", max_bad_fraction=1.0)

    def test_what_an_address_list_needs(self, tmp_path: Path, ending: str) -> None:
        records = [example(text="one", url="https://a.org/x"), example(text="two"), example(text="three", url=3)]
        path = write(tmp_path / f"x{ending}", records)
        values = {"name": "t", "output": "o", "tokenizer": {"path": "t"}}
        source = {"id": "s", "files": [str(path)], "clean": {"url_lists": ["l"]}}
        recipe = parse_recipe(values | {"sources": [source]})
        (split,) = plan_run(recipe).splits
        (batch,) = read_split(split, recipe.sources[0], RecordAccount("fail"))
        assert batch.addresses == ["https://a.org/x", None, None]

    def test_what_is_carried_along(self, tmp_path: Path, ending: str) -> None:
        records = [example(text="one", name="a", n=[1, -2], score=0.5), example(text="", name="b"), example(text="two")]
        path = write(tmp_path / f"x{ending}", records)
        values = {"name": "t", "output": "o", "tokenizer": {"path": "t"}}
        source = {"id": "s", "files": [str(path)], "id_field": "name", "carry": ["n", "score"]}
        recipe = parse_recipe(values | {"sources": [source]})
        account = RecordAccount("fail")
        (split,) = plan_run(recipe).splits
        (batch,) = read_split(split, recipe.sources[0], account)
        assert batch.carried is not None
        assert [json.loads(line) for line in batch.carried] == [
            {"id": "a", "n": [1, -2], "score": 0.5},
            {"id": None, "n": None, "score": None},
        ]
        assert account.samples[0]["id"] == "b"
        assert dict(account.counted) == {"without.id": 1, "without.n": 1, "without.score": 1}

    def test_nothing_in_it(self, tmp_path: Path, ending: str) -> None:
        texts, account = read(write(tmp_path / f"x{ending}", []))
        assert (texts, account.records) == ([], 0)

    def test_a_large_record_and_batches_of_bounded_size(self, tmp_path: Path, ending: str) -> None:
        texts = ["x" * 3_000_000, *("y" * 400_000 for _ in range(5)), "z"]
        path = write(tmp_path / f"x{ending}", [example(text=text) for text in texts])
        values = {
            "name": "t",
            "output": "o",
            "tokenizer": {"path": "t"},
            "sources": [{"id": "s", "files": [str(path)]}],
        }
        recipe = parse_recipe(values)
        (split,) = plan_run(recipe).splits
        batches = list(read_split(split, recipe.sources[0], RecordAccount("fail")))
        assert [text for batch in batches for text in batch.texts] == texts
        assert [len(batch.texts) for batch in batches] == [1, 3, 3]

    def test_an_estimate(self, tmp_path: Path, ending: str) -> None:
        texts = [f"{number} " + "some words " * 200 for number in range(2000)]
        write(tmp_path / f"x{ending}", [example(text=text) for text in texts])
        values = {"name": "t", "output": "o", "tokenizer": {"path": "t"}}
        recipe = parse_recipe(values | {"sources": [{"id": "s", "files": [str(tmp_path)]}]})
        found = estimate_source(recipe.sources[0], plan_run(recipe).inputs[0], lambda some: sum(map(len, some)))
        assert 1700 < found.documents < 2300
        assert 0 < found.sampled < 1000

    def test_a_corpus(self, workshop: Any, ending: str) -> None:
        """The same documents as from JSON lines, and the same bytes when copied first."""
        texts = [*TEXTS[:40], TEXTS[0], "a last one"]
        path = write(workshop.folder / f"x{ending}", examples(texts))
        workshop.prepare({"files": [str(path)]})
        assert workshop.texts("s0") == [*TEXTS[:40], "a last one"]
        plain = workshop.tree()
        workshop.prepare({"files": [str(path)], "materialize": True}, output=str(workshop.folder / "copied"))
        copied = workshop.tree(workshop.folder / "copied")
        assert {name: found for name, found in copied.items() if not name.startswith("raw/")} == plain
        workshop.prepare({"files": [workshop.jsonl("y.jsonl", texts)]}, output=str(workshop.folder / "lines"))
        assert workshop.documents("s0", workshop.folder / "lines") == workshop.documents("s0")


class TestTfrecord:
    @pytest.mark.parametrize("pack", [gzip.compress, zlib.compress], ids=["gzip", "zlib"])
    def test_packed_as_tensorflow_packs(self, tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
        data = tfrecord(examples(TEXTS))
        for name, packed in {"one.tfrecord": pack(data), "two.tfrecord": pack(data[:40]) + pack(data[40:])}.items():
            (tmp_path / name).write_bytes(packed)
            assert read(tmp_path / name)[0] == TEXTS
        (tmp_path / "cut.tfrecord").write_bytes(pack(data)[:-20])
        with pytest.raises(InputError, match=r"cut\.tfrecord: .*cut short"):
            read(tmp_path / "cut.tfrecord")

    @pytest.mark.parametrize("length", [0x8B1F, 0x9C78, 0x0178, 0x685A42, 1])
    def test_a_length_that_looks_like_a_compression(self, tmp_path: Path, length: int) -> None:
        """The first two bytes are those of gzip, zlib or bzip2."""
        texts = ["x" * length, "y"]
        (tmp_path / "x.tfrecord").write_bytes(tfrecord(text.encode() for text in texts))
        assert read(tmp_path / "x.tfrecord", record="text")[0] == texts

    def test_what_heads_tell(self) -> None:
        assert packed_frames(tfrecord([b"x"])[:12]) is None
        assert packed_frames(b"") is None
        assert packed_frames(gzip.compress(b"x")[:12]) == "gzip"
        for level in (1, 6, 9):
            assert packed_frames(zlib.compress(b"x", level)[:12]) == "zlib"

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6), data=st.data())
    def test_any_cut_and_any_changed_bit_is_found(self, tmp_path: Path, lengths: list[int], data: Any) -> None:
        texts = ["abcdefghij"[number % 10] * length for number, length in enumerate(lengths)]
        whole = tfrecord(text.encode() for text in texts)
        ends = np.cumsum([0, *(16 + length for length in lengths)]).tolist()
        path = tmp_path / "x.tfrecord"
        cut = data.draw(st.integers(0, len(whole) - 1))
        path.write_bytes(whole[:cut])
        before = sum(end <= cut for end in ends) - 1
        if cut in ends:
            assert read(path, record="text")[0] == [text for text in texts[:before] if text]
        else:
            with pytest.raises(InputError, match=rf"record {before}, counted from 0, at byte {ends[before]}: "):
                read(path, record="text")
        bit = data.draw(st.integers(0, 8 * len(whole) - 1))
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        hit = sum(end <= bit // 8 for end in ends) - 1
        with pytest.raises(InputError, match=rf"x\.tfrecord: record {hit}, .*wrong checksum; the file is damaged"):
            read(path, record="text", bad_records="skip", max_bad_fraction=1.0)
        assert read(path, record="text", expect_damaged=["x.tfrecord"])[0] == [text for text in texts[:hit] if text]

    @pytest.mark.parametrize("data", [b"hello, this is a text\n", b"{}\n", b"\x00" * 100, b"PAR1" * 20])
    def test_a_file_that_is_none(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "x.tfrecord").write_bytes(data)
        with pytest.raises(InputError, match=r"x\.tfrecord: record 0, counted from 0, at byte 0: "):
            read(tmp_path / "x.tfrecord", bad_records="skip")

    def test_many_small_files_are_one_item_and_each_large_one_is_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(4):
            write(tmp_path / f"x.tfrecord-0000{number}-of-00004", examples(TEXTS[50 * number : 50 * number + 50]))
        values = {"name": "t", "output": "o", "tokenizer": {"path": "t"}}
        recipe = parse_recipe(values | {"sources": [{"id": "s", "files": [str(tmp_path)]}]})
        assert len(plan_run(recipe).splits) == 1
        monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 1000)
        assert len(plan_run(recipe).splits) == 4
        assert read(tmp_path)[0] == TEXTS[:200]


OPTIONS = ["group_size:1", "group_size:7", "group_size:64,transpose:true", "group_size:5,uncompressed"]
MORE_OPTIONS = [*OPTIONS, "group_size:4,brotli:3", "group_size:3,pad_to_block_boundary:true", "group_size:2,snappy"]


class TestArrayRecord:
    @pytest.mark.parametrize("options", MORE_OPTIONS)
    @pytest.mark.parametrize("place", ["disk", "elsewhere"])
    def test_cut_or_whole_however_it_is_packed(
        self, tmp_path: Path, options: str, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path: Path | str = array_record(tmp_path / "x.array_record", examples(TEXTS), options)
        if place == "elsewhere":
            memory = fsspec.filesystem("memory")
            memory.pipe("/test/x.array_record", Path(path).read_bytes())
            path = "memory://test/x.array_record"
        whole = read(path)
        assert whole[0] == TEXTS
        monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 2000)
        cut = read(path)
        assert cut[0] == TEXTS
        assert cut[1].records == 300
        known = "brotli" not in options and "snappy" not in options
        assert (len(cut[1].inputs) > 1) == known  # the index is packed like the chunks

    @pytest.mark.parametrize("records", [0, 1, 70_000])
    def test_the_index(self, tmp_path: Path, records: int) -> None:
        path = array_record(tmp_path / "x.array_record", (b"%d" % number for number in range(records)))
        index = read_array_index(str(path), path.stat().st_size)
        assert index is not None
        assert index.records.tolist() == list(range(records + 1))
        assert len(index.bounds) == records + 1
        assert (np.diff(index.bounds) > 0).all()

    @pytest.mark.parametrize("keep", [0.0, 0.3, 0.5, 0.999])
    @pytest.mark.parametrize("policy", ["fail", "skip"])
    def test_cut_short(self, tmp_path: Path, keep: float, policy: str) -> None:
        path = array_record(tmp_path / "x.array_record", examples(TEXTS))
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
        with pytest.raises(InputError, match=r"x\.array_record: cannot be read as ArrayRecord: .*Fetch it again"):
            read(path, bad_records=policy, max_bad_fraction=1.0)

    def test_a_cut_at_a_block(self, tmp_path: Path) -> None:
        path = array_record(tmp_path / "x.array_record", [b"x" * 9 * number for number in range(400)], "uncompressed")
        whole = path.read_bytes()
        for size in range(65536, len(whole), 65536):
            path.write_bytes(whole[:size])
            with pytest.raises(InputError, match=r"x\.array_record: cannot be read as ArrayRecord"):
                read(path, record="text")

    def test_a_changed_bit_of_a_record_is_named(self, tmp_path: Path) -> None:
        path = array_record(tmp_path / "x.array_record", examples(TEXTS))
        index = read_array_index(str(path), path.stat().st_size)
        assert index is not None
        data = bytearray(path.read_bytes())
        data[int(index.bounds[123]) + 50] ^= 4
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"x\.array_record: record 123, counted from 0: damaged ArrayRecord data"):
            read(path, bad_records="skip")

    @pytest.mark.parametrize("data", [b"hello", b"\x00" * 131072, b"PAR1" * 32768])
    def test_a_file_that_is_none(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "x.arrayrecord").write_bytes(data)
        with pytest.raises(InputError, match=r"x\.arrayrecord: cannot be read as ArrayRecord"):
            read(tmp_path / "x.arrayrecord")

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(place=st.integers(0, 3 * 65536 - 1), byte=st.integers(0, 255))
    def test_damage_anywhere_is_named_or_harmless(self, tmp_path: Path, place: int, byte: int) -> None:
        path = tmp_path / "x.array_record"
        if not path.exists():
            array_record(path, (text.encode() * 20 for text in TEXTS), "uncompressed,group_size:9")
        data = bytearray(path.read_bytes())
        data[place % len(data)] = byte
        (tmp_path / "y.array_record").write_bytes(data)
        try:
            found = read(tmp_path / "y.array_record", record="text")[0]
        except InputError as error:
            assert "y.array_record" in str(error)  # noqa: PT017 - both ends are right
        else:
            assert found == [text * 20 for text in TEXTS]


@pytest.mark.parametrize(
    ("ending", "module", "library"),
    [(".tfrecord", "google_crc32c", "google-crc32c"), (".array_record", "array_record.python", "array-record")],
)
def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, module: str, library: str
) -> None:
    path = write(tmp_path / f"x{ending}", examples(TEXTS[:3]))
    monkeypatch.setitem(__import__("sys").modules, module, None)
    monkeypatch.delitem(__import__("sys").modules, f"{module}.array_record_module", raising=False)
    with pytest.raises(SettingsError, match=rf"needs `{library}`, which is not installed: .*gristmill\[records\]"):
        read(path)
