"""Languages, word lists, addresses, evaluation texts: what is dropped, what passes, what is told."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from gristmill.formats.clean_settings import CleanSettings, DecontaminationSettings, LanguageSettings, PinnedFile
from gristmill.formats.errors import InputError, SettingsError
from gristmill.pipelines.clean import clean_batch
from gristmill.pipelines.clean_documents import Documents
from gristmill.pipelines.clean_lists import AddressRule, ContaminationRule
from gristmill.pipelines.records import Batch, RecordAccount

TEXTS = {
    "en": "The house by the river was sold last winter to a family with three children and a dog.",
    "de": "Das Haus am Fluss wurde im letzten Winter an eine Familie mit drei Kindern und einem Hund verkauft.",
    "fr": "La maison au bord de la rivière a été vendue l'hiver dernier à une famille avec trois enfants.",
    "ru": "Дом у реки был продан прошлой зимой семье с тремя детьми и собакой.",  # noqa: RUF001
}


def clean(texts: list[str], chosen: CleanSettings) -> tuple[Batch, RecordAccount]:
    account = RecordAccount("fail")
    return clean_batch(Batch(texts, range(len(texts))), chosen, account, lambda _: "a.jsonl"), account


def written(path: Path, text: str) -> PinnedFile:
    path.write_text(text, encoding="utf-8")
    return PinnedFile(path=str(path))


class TestLanguage:
    @pytest.mark.parametrize("detector", ["py3langid", "pycld2"])
    def test_only_those_asked_for_go_on(self, detector: str) -> None:
        pytest.importorskip(detector)
        chosen = CleanSettings(languages=LanguageSettings(keep=("de", "en"), detector=detector))
        found, account = clean(list(TEXTS.values()), chosen)
        assert found.texts == [TEXTS["en"], TEXTS["de"]]
        assert account.dropped == {"language": 2}
        assert re.fullmatch(r"fr [01]\.\d{3}", account.samples[0]["found"])

    @pytest.mark.parametrize("detector", ["py3langid", "pycld2"])
    def test_odd_texts_have_some_answer(self, detector: str) -> None:
        pytest.importorskip(detector)
        texts = ["\x00", "\ufffe\U000e0001\u0378", "\U0001f600" * 50, "12345 67", "\x1b[31m \x7f\x85"]
        found, account = clean(texts, CleanSettings(languages=LanguageSettings(keep=("en",), detector=detector)))
        assert len(found.texts) + account.dropped["language"] == len(texts)

    def test_the_score_must_reach_its_threshold(self) -> None:
        chosen = CleanSettings(languages=LanguageSettings(keep=("en",), min_score=0.9999))
        found, account = clean(["ok"], chosen)
        assert found.texts == []
        assert re.fullmatch(r"\w+ 0\.\d{3}( < 0\.9999)?", account.samples[0]["found"])

    def test_only_the_beginning_is_looked_at(self) -> None:
        text = TEXTS["en"] + TEXTS["ru"] * 50
        short = CleanSettings(languages=LanguageSettings(keep=("en",), chars=len(TEXTS["en"])))
        assert clean([text], short)[0].texts == [text]
        assert clean([text], CleanSettings(languages=LanguageSettings(keep=("en",))))[0].texts == []

    def test_a_language_that_the_detector_does_not_know_is_named(self) -> None:
        with pytest.raises(SettingsError, match=r"py3langid knows no language 'english'; it knows .*\bde, .*\ben\b"):
            clean(["text"], CleanSettings(languages=LanguageSettings(keep=("english",))))

    def test_a_model_of_the_users(self, tmp_path: Path) -> None:
        fasttext = pytest.importorskip("fasttext")
        lines = [f"__label__{code} {word}" for code, text in TEXTS.items() for word in text.split() for _ in range(20)]
        (tmp_path / "train.txt").write_text("\n".join(lines))
        model = fasttext.train_supervised(str(tmp_path / "train.txt"), epoch=20, verbose=0, thread=1, minn=2, maxn=4)
        model.save_model(str(tmp_path / "model.bin"))
        file = PinnedFile(path=str(tmp_path / "model.bin"))
        chosen = CleanSettings(languages=LanguageSettings(keep=("en",), detector="fasttext", model=file))
        found, account = clean([TEXTS["en"] + "\n" + TEXTS["en"], TEXTS["ru"], TEXTS["de"]], chosen)
        assert len(found.texts) == 1
        assert account.dropped == {"language": 2}
        (tmp_path / "no.bin").write_bytes(b"no model")
        wrong = LanguageSettings(keep=("en",), detector="fasttext", model=PinnedFile(path=str(tmp_path / "no.bin")))
        with pytest.raises(InputError, match=r"no\.bin: is no fastText model"):
            clean(["text"], CleanSettings(languages=wrong))


class TestBadWords:
    @pytest.fixture
    def chosen(self, tmp_path: Path) -> CleanSettings:
        return CleanSettings(bad_words=(written(tmp_path / "words.txt", "# odd\nfoo\n\nbar baz\n悪い\nx-y\n"),))

    @pytest.mark.parametrize(
        ("text", "entry"),
        [
            ("a foo b", "foo"),
            ("FOO!", "foo"),
            ("food", None),
            ("bar  baz", "bar baz"),
            ("bar\nBaz", "bar baz"),
            ("bar, baz", None),
            ("barbaz", None),
            ("とても悪い人", "悪い"),
            ("x-y", "x-y"),
            ("x y", None),
            ("odd", None),
        ],
    )
    def test_phrases(self, chosen: CleanSettings, text: str, entry: str | None) -> None:
        found, account = clean([text], chosen)
        assert found.texts == ([] if entry else [text])
        assert [sample["found"] for sample in account.samples] == ([entry] if entry else [])

    @pytest.mark.parametrize(("text", "message"), [("", "the list is empty"), ("# only this\n", "the list is empty")])
    def test_an_empty_list_is_refused(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(InputError, match=message):
            clean(["x"], CleanSettings(bad_words=(written(tmp_path / "empty.txt", text),)))


class TestContamination:
    QUESTION = "How many wooden boats did the old fisherman, who lived by the lake, sell in the year 1950?"

    def rule(self, tmp_path: Path, **more: Any) -> CleanSettings:
        file = written(tmp_path / "eval.jsonl", json.dumps({"q": self.QUESTION, "choices": ["a few", "none"]}) + "\n")
        return CleanSettings(decontaminate=DecontaminationSettings(files=(file,), **more))

    @pytest.mark.parametrize(
        ("text", "kept"),
        [
            (QUESTION, False),
            ("Before. " + QUESTION.upper().replace(",", " -") + " After.", False),
            (" ".join(QUESTION.split()[:12]), True),
            (" ".join(QUESTION.split()[:13]), False),
            (QUESTION.replace("fisherman", "woman"), True),
            ("a few none", True),
        ],
    )
    def test_thirteen_words_alike_are_found(self, tmp_path: Path, text: str, kept: bool) -> None:
        found, account = clean([text], self.rule(tmp_path))
        assert (found.texts == [text]) is kept
        assert account.dropped == ({} if kept else {"contaminated": 1})

    def test_as_many_must_be_shared_as_asked_for(self, tmp_path: Path) -> None:
        thirteen = " ".join(self.QUESTION.split()[:13])
        assert clean([thirteen], self.rule(tmp_path, min_hits=2))[0].texts == [thirteen]
        assert clean([self.QUESTION], self.rule(tmp_path, min_hits=2))[0].texts == []

    def test_texts_too_short_to_be_found_are_refused(self, tmp_path: Path) -> None:
        file = written(tmp_path / "eval.txt", "only four words here\nand three more\n")
        with pytest.raises(InputError, match=r"eval\.txt: no evaluation text has 13 words"):
            clean(["x"], CleanSettings(decontaminate=DecontaminationSettings(files=(file,))))

    def test_a_line_that_is_no_json_is_named(self, tmp_path: Path) -> None:
        file = written(tmp_path / "eval.jsonl", '{"a": "b"}\n{"a": \n')
        with pytest.raises(InputError, match=r"eval\.jsonl:2: no valid JSON"):
            clean(["x"], CleanSettings(decontaminate=DecontaminationSettings(files=(file,))))

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 10**6))
    def test_what_is_found_is_what_sets_of_ngrams_find(self, tmp_path_factory: Any, seed: int) -> None:
        draw = random.Random(seed)
        words = ["a", "b", "c", "d,", "E", "--", "f!"]
        texts = [" ".join(draw.choices(words, k=draw.randint(1, 14))) for _ in range(8)]
        evaluation = "\n".join(texts[:3]) + "\na b c d e f a b c\n"
        file = written(tmp_path_factory.mktemp("eval") / "eval.txt", evaluation)

        def ngrams(text: str) -> set[tuple[str, ...]]:
            plain = re.findall("[a-z]", text.lower())
            return {tuple(plain[place : place + 4]) for place in range(len(plain) - 3)}

        held = set().union(*map(ngrams, evaluation.split("\n")))
        found = Documents(texts[3:])
        ContaminationRule(DecontaminationSettings(files=(file,), ngram=4), by_space=False).apply(found)
        assert found.alive.tolist() == [not ngrams(text) & held for text in texts[3:]]


@pytest.mark.parametrize(
    ("address", "entry"),
    [
        ("https://bad.example/x", "bad.example"),
        ("http://WWW.Bad.Example:8080/", "bad.example"),
        ("https://user@bad.example", "bad.example"),
        ("https://notbad.example/", None),
        ("https://bad.example.org/", None),
        ("https://mixed.example/ok", None),
        ("https://mixed.example/spam/1?q=2", "mixed.example/spam"),
        ("https://mixed.example/spam", "mixed.example/spam"),
        ("https://mixed.example/spammer", None),
        ("bad.example", "bad.example"),
        ("", None),
        (None, None),
        ("http://[broken/spam", None),
        ("http://mixed\u2100.example/spam", None),
        ("https://[bad.example", None),
        ("http://[open.example/a?b", "[open.example"),
    ],
)
def test_addresses(tmp_path: Path, address: str | None, entry: str | None) -> None:
    file = written(tmp_path / "urls.txt", "bad.example\nhttps://mixed.example/spam/\n[open.example\n")
    found = Documents(["text"], [address])
    AddressRule([file]).apply(found)
    assert found.verdicts == ({0: ("url_lists", entry)} if entry else {})


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "csv"])
def test_addresses_are_read_beside_the_text(workshop: Any, kind: str) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "one", "meta": {"at": "https://good.example/"}},
        {"text": "two", "meta": {"at": "https://bad.example/"}},
        {"text": "three", "meta": {"at": None}},
        {"text": "", "meta": {"at": "https://bad.example/"}},
        {"text": "five", "meta": {"at": "http://www.bad.example/5"}},
        {"text": "six", "meta": {"at": "http://better.example/5"}},
    ]
    if kind == "jsonl":
        path = workshop.write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    elif kind == "parquet":
        path = str(workshop.folder / "a.parquet")
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "csv":
        lines = [f'"{row["text"]}","{row["meta"]["at"] or ""}"' for row in rows]
        path = workshop.write("a.csv", "\n".join(["text,meta.at", *lines]).encode())
    else:
        path = str(workshop.folder / "a.arrow")
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    lists = workshop.write("urls.txt", b"bad.example\n")
    workshop.prepare({"files": path, "clean": {"url_lists": lists, "url_field": "meta.at"}})
    assert workshop.texts("s0") == ["one", "three", "six"]
    (account,) = workshop.manifest()["sources"]
    assert account["dropped"] == {"empty": 1, "url_lists": 2}
    assert account["counted"]["no_address"] == 1


def test_a_table_without_the_column_of_addresses_is_refused(workshop: Any) -> None:
    clean = {"url_lists": workshop.write("urls.txt", b"bad.example\n"), "url_field": "link"}
    with pytest.raises(InputError, match=r"no column 'link'; columns seen: text, url; set clean\.url_field to one of"):
        workshop.prepare({"files": workshop.write("a.csv", b"text,url\na,b\n"), "clean": clean})


def test_a_format_without_addresses_is_refused(workshop: Any) -> None:
    lists = workshop.write("urls.txt", b"bad.example\n")
    told = r"sources\[0\]\.clean\.url_lists: .*a\.txt holds texts without fields, .*; set url_lists = \[\] in the clean"
    with pytest.raises(SettingsError, match=told):
        workshop.prepare({"files": workshop.write("a.txt", b"text"), "clean": {"url_lists": lists}})
    assert not (workshop.folder / "out").exists()
    records = {"files": workshop.write("a.tfrecord", b""), "record": "text", "clean": {"url_lists": lists}}
    with pytest.raises(SettingsError, match=r"a\.tfrecord holds texts without fields"):
        workshop.prepare(records)


def test_another_list_rebuilds_and_the_same_elsewhere_does_not(workshop: Any) -> None:
    source: dict[str, Any] = {"files": workshop.jsonl("a.jsonl", ["a foo", "a bar", "a baz"])}
    for name, word, left in (("x", "foo", ["a bar", "a baz"]), ("x", "bar", ["a foo", "a baz"])):
        lists = workshop.write(f"{name}.txt", word.encode())
        workshop.prepare({**source, "clean": {"bad_words": lists}})
        assert workshop.texts("s0") == left
    before = workshop.tree()
    moved = workshop.write("moved.txt", b"bar")
    workshop.prepare({**source, "clean": {"bad_words": moved}})
    assert workshop.tree() == before


def test_a_list_that_is_missing_stops_before_any_work(workshop: Any) -> None:
    source = {"files": workshop.jsonl("a.jsonl", ["text"]), "clean": {"bad_words": "no/such/list.txt"}}
    with pytest.raises(SettingsError, match=r"list\.txt.*a cleaning step of the recipe names this file"):
        workshop.prepare(source)
    assert not (workshop.folder / "out").exists()


def test_the_addresses_of_a_web_archive_are_its_own(workshop: Any) -> None:
    pytest.importorskip("warcio")
    pages = [
        ("https://good.example/1", "one"),
        ("https://sub.bad.example/2", "two"),
        ("https://good.example/3", "three"),
    ]
    archive = b"".join(
        b"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: %b\r\nContent-Type: text/plain\r\n"
        b"Content-Length: %d\r\n\r\n%b\r\n\r\n" % (address.encode(), len(text), text.encode())
        for address, text in pages
    )
    lists = workshop.write("urls.txt", b"bad.example\n")
    workshop.prepare({"files": workshop.write("a.warc", archive), "clean": {"url_lists": lists}})
    assert workshop.texts("s0") == ["one", "three"]
    assert workshop.manifest()["sources"][0]["dropped"] == {"url_lists": 1}
