"""Datasets of the hub that are no plain files: when and how they are streamed, resumed and refused."""

import io
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.errors import InputError, MissingExtraError, RecipeError, SettingsError, StorageError
from gristmill.formats.origins import OriginFile
from gristmill.formats.recipe import parse_recipe
from gristmill.pipelines import hub_stream
from gristmill.pipelines import plan as plan_module
from gristmill.pipelines.estimate import estimate_source
from gristmill.pipelines.hub_file_system import HubFileSystem
from gristmill.pipelines.inputs import InputFile, find_inputs
from gristmill.pipelines.plan import Split, plan_run
from gristmill.pipelines.read import read_split
from gristmill.pipelines.records import RecordAccount

pytest.importorskip("datasets", reason="needs the extra `hub`")

NAME = "owner/set"
COMMIT = "1" * 40


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of no length between attempts, and no stream that another test opened."""
    monkeypatch.setattr("gristmill.pipelines.hub.time.sleep", lambda seconds: None)
    monkeypatch.setattr(hub_stream, "_streams", {})


def tar(texts: Sequence[str | bytes], start: int = 0, *, ending: str = "txt") -> bytes:
    """A web dataset: a text and its JSON a sample."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number, text in enumerate(texts, start):
            data = text if isinstance(text, bytes) else text.encode()
            body = data.decode("utf-8", "replace")
            about = json.dumps({"url": f"https://a.org/{number}", "doc": {"body": body}}).encode()
            for suffix, part in ((ending, data), ("json", about)):
                entry = tarfile.TarInfo(f"x/{number:06}.{suffix}")
                entry.size = len(part)
                archive.addfile(entry, io.BytesIO(part))
    return out.getvalue()


def zipped(**files: bytes) -> bytes:
    """A ZIP archive; two underscores in a name are its dot."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "."), data)
    return out.getvalue()


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def recipe(output: str = "somewhere/else", **settings: Any) -> Any:
    return parse_recipe(
        {
            "name": "test",
            "output": output,
            "tokenizer": {"path": "t.json"},
            "sources": [{"id": "s", "dataset": NAME, **settings}],
        }
    )


def find(**settings: Any) -> tuple[InputFile, ...]:
    return find_inputs(recipe(**settings).sources[0], "sources[0]")


def read(**settings: Any) -> tuple[list[str], RecordAccount]:
    """All texts of a source, and the account of its reading."""
    given = recipe(**settings)
    account = RecordAccount(given.sources[0].bad_records)
    texts = [
        text
        for split in plan_run(given).splits
        for batch in read_split(split, given.sources[0], account)
        for text in batch.texts
    ]
    return texts, account


def fault(kind: str, match: str, **settings: Any) -> Any:
    return sys.modules["hub_server"].Fault(kind, match, **settings)


TARS = {
    "data/train-0.tar": tar(["one", "two"]),
    "data/train-1.tar": tar(["three"], 5),
    "data/test-0.tar": tar(["four"]),
}


class TestWhatIsStreamed:
    def test_web_datasets_by_text_or_json(self, hub: Any) -> None:
        hub.add(NAME, {"README.md": b"# no head", **TARS}, large=list(TARS))
        assert read(text_field="txt")[0] == ["one", "two", "three"]
        assert read(text_field="json.doc.body")[0] == ["one", "two", "three"]
        assert read(template="{txt}: {json.url}")[0][2] == "three: https://a.org/5"
        assert read(text_field="txt", split="test")[0] == ["four"]
        assert read(text_field="txt", data_files="data/t*-0.tar")[0] == ["four", "one", "two"]
        with pytest.raises(SettingsError, match=r'sources\[0\].split: .* tell no split "dev", but test, train; name'):
            read(split="dev")

    @pytest.mark.parametrize(
        ("files", "texts"),
        [
            (
                {"a.zip": zipped(x__jsonl=lines({"text": "a", "n": 0}), y__jsonl=lines({"n": 1, "text": "b"}))},
                ["a", "b"],
            ),
            ({"a.zip": zipped(x__json=b'[{"text": "a"}, {"text": "b"}]')}, ["a", "b"]),
            ({"train.zip": zipped(x__txt=b"a\nb"), "test.zip": zipped(x__txt=b"c")}, ["a", "b"]),
            ({"a.zip": zipped(x__csv=b'text,n\n"a\nb",2\n')}, ["a\nb"]),
            (
                {
                    "a.zip": zipped(
                        metadata__jsonl=lines({"file_name": "i.jpg", "text": "a"}), i__jpg=b"\xff\xd8", j__jpg=b""
                    )
                },
                ["a"],
            ),
        ],
        ids=["json lines", "json", "text", "csv", "folder of images"],
    )
    def test_archives(self, hub: Any, files: dict[str, bytes], texts: list[str]) -> None:
        hub.add(NAME, files)
        assert read()[0] == texts

    def test_what_the_card_says(self, hub: Any) -> None:
        card = (
            b"---\nconfigs:\n- config_name: c\n  data_files: {train: 'x/*.zip'}\n  sep: ';'\n"
            b"dataset_info:\n  config_name: c\n  features:\n  - {name: text, dtype: string}\n"
            b"  - {name: n, dtype: string}\n---\n"
        )
        hub.add(
            NAME, {"README.md": card, "x/a.zip": zipped(a__csv=b"text;n\n007;1\n"), "b.zip": zipped(a__csv=b"text\nb")}
        )
        assert read(config="c")[0] == ["007"], "neither a number nor split at commas"

    def test_only_where_no_file_is_known_or_when_asked(self, hub: Any) -> None:
        hub.add(NAME, {"a.jsonl": lines({"text": "a"}), "b.tar": tar(["b"]), "c.tar": tar(["c"])})
        assert [file.format for file in find()] == ["jsonl"]
        assert [(file.format, file.relative) for file in find(streaming=True)] == [
            ("stream", "b.tar"),
            ("stream", "c.tar"),
        ]
        assert read(streaming=True, data_files="a.jsonl")[0] == read(streaming=False)[0] == ["a"]
        hub.add("owner/other", {"a.tar": tar(["a"])})
        with pytest.raises(SettingsError, match=r"no file of a format that is read; there are a.tar"):
            find(dataset="owner/other", streaming=False)
        with pytest.raises(SettingsError, match=r'the format of ".*a.tar" cannot be told'):
            find(dataset="owner/other", streaming=False, data_files="*.tar")

    def test_shards_are_pinned(self, hub: Any) -> None:
        hub.add(NAME, dict(TARS), large=list(TARS))
        first, second = find(text_field="txt")
        assert (first.relative, first.size) == ("data/train-0.tar", len(TARS["data/train-0.tar"]))
        assert first.path.startswith(f"hub://{NAME}@{COMMIT}/data/train-0.tar#0-of-2-by-datasets-")
        more = {**TARS, "data/train-2.tar": tar(["six"]), "data/train-1.tar": tar(["changed"])}
        hub.add("owner/more", more, large=list(more), revisions={"main": "2" * 40})
        changed = find(dataset="owner/more", text_field="txt")
        assert [file.checksum == old.checksum for file, old in zip(changed, (first, second))] == [True, False]
        assert changed[0].path.startswith(f"hub://owner/more@{'2' * 40}/")

    def test_each_shard_is_an_item_but_very_many_are_put_together(
        self, hub: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub.add(NAME, {f"{number}.tar": tar([str(number)]) for number in range(5)})
        given = recipe(text_field="txt")
        assert [len(split.extents) for split in plan_run(given).splits] == [1] * 5
        monkeypatch.setattr(plan_module, "_FILES_PER_SPLIT", 3)
        assert [len(split.extents) for split in plan_run(given).splits] == [3, 2]


class TestRefused:
    def test_a_script_is_never_run(self, hub: Any) -> None:
        hub.add(NAME, {"set.py": b"raise SystemExit('ran')", "data.zip": zipped(a__jsonl=lines({"text": "a"}))})
        for settings in ({}, {"streaming": True}):
            with pytest.raises(
                SettingsError, match=r"only the script set.py, which is not run, makes text of its files"
            ):
                find(**settings)
        assert read(data_files="data.zip")[0] == ["a"]

    @pytest.mark.parametrize("name", ["data.lance", "x.h5", "x.pkl"])
    def test_kinds_that_are_left_out(self, hub: Any, name: str) -> None:
        hub.add(NAME, {name: b"x", "README.md": b""})
        with pytest.raises(SettingsError, match=r"no file of a format that is read"):
            find()
        with pytest.raises(SettingsError, match=r"cannot be streamed: .*webdataset.*there are|tell no split"):
            find(streaming=True)

    def test_the_extra_is_missing(self, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        hub.add(NAME, TARS)
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(
            MissingExtraError, match=r"sources\[0\].dataset: to stream owner/set needs `datasets`.*\[hub\]"
        ):
            find()

    def test_what_the_library_makes_no_records_of(self, hub: Any) -> None:
        hub.add(NAME, {"a.zip": b"no archive"})
        with pytest.raises(InputError, match=r"a.zip: is no ZIP archive: .*; tell its owner"):
            find()
        hub.add("owner/other", {"a.tar": b"no archive"})
        with pytest.raises(InputError, match=r"other@1+/: `datasets` [\d.]+ makes no records of a.tar as webdataset: "):
            find(dataset="owner/other")

    @pytest.mark.parametrize(
        ("settings", "problem"),
        [
            ({"streaming": True, "format": "jsonl"}, r"sources\[0\].format: .* with streaming = true `datasets` reads"),
            ({"streaming": "yes"}, r"sources\[0\].streaming: .* true or false"),
            ({"streaming": True, "dataset": None, "files": ["a"]}, r"sources\[0\].streaming: .* there is no dataset"),
        ],
    )
    def test_mistakes_in_the_recipe(self, settings: dict[str, Any], problem: str) -> None:
        values = {"id": "s", "dataset": NAME, **settings}
        given = {name: value for name, value in values.items() if value is not None}
        with pytest.raises(RecipeError, match=problem):
            parse_recipe({"name": "t", "output": "o", "tokenizer": {"path": "t"}, "sources": [given]})


class TestRecords:
    def test_bad_ones(self, hub: Any) -> None:
        values = [{"text": "a"}, {"text": None}, {"text": ""}, {"text": "b"}]
        hub.add(NAME, {"a.zip": zipped(x__jsonl=lines(*values))})
        texts, account = read(bad_records="skip")
        assert texts == ["a", "b"]
        assert (account.records, account.bad, dict(account.dropped)) == (4, 1, {"null_text": 1, "empty": 1})
        assert account.samples[0]["where"] == "a.zip: record 1, counted from 0"
        with pytest.raises(InputError, match=rf"hub://{NAME}@1+/a.zip#0-of-1: record 1, counted from 0: null text"):
            read()

    def test_bytes_that_are_no_text(self, hub: Any) -> None:
        hub.add(NAME, {"a.tar": tar([b"good", b"b\xffd"], ending="md")})
        texts, account = read(text_field="md", bad_records="skip")
        assert (texts, dict(account.dropped)) == (["good"], {"invalid_utf8": 1})
        texts, account = read(text_field="md", invalid_text="replace")
        assert (texts, dict(account.counted)) == (["good", "b\ufffdd"], {"repaired_text": 1})

    def test_surrogates_and_values_that_are_no_strings(self, hub: Any) -> None:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for number, body in enumerate([b'{"t": "a"}'] * 5 + [b'{"t": "\\ud800"}']):
                entry = tarfile.TarInfo(f"{number}.json")
                entry.size = len(body)
                archive.addfile(entry, io.BytesIO(body))
        hub.add(NAME, {"a.tar": out.getvalue()})
        texts, account = read(text_field="json.t", bad_records="skip")
        assert (texts, dict(account.dropped)) == (["a"] * 5, {"lone_surrogate": 1})
        texts, account = read(text_field="json", bad_records="skip")
        assert (texts, dict(account.dropped)) == ([], {"not_a_string": 6})

    def test_a_column_that_is_not_there(self, hub: Any) -> None:
        hub.add(NAME, TARS)
        with pytest.raises(InputError, match=r"train-0.tar#0-of-2: no column 'body'; columns seen: txt, json, __key__"):
            read(text_field="body", bad_records="skip")
        with pytest.raises(InputError, match=r"none of 2 records has the text: no field 'json.body'"):
            read(text_field="json.body", bad_records="skip")

    @pytest.mark.parametrize(
        ("cut", "problem"),
        [
            (20_997, "`datasets` cannot go on: ReadError: .*; tell"),
            (20_480, "ends without the mark of an archive's end"),
        ],
        ids=["inside a text", "between two"],
    )
    def test_a_damaged_shard(self, hub: Any, cut: int, problem: str) -> None:
        data = tar([f"document {number}" for number in range(40)])
        hub.add(NAME, {"a.tar": data[:cut], "b.tar": tar(["whole"])})
        with pytest.raises(InputError, match=rf"a.tar#0-of-2: {problem}.*or list the shard in expect_damaged"):
            read(text_field="txt", bad_records="skip")
        texts, _ = read(text_field="txt", expect_damaged=["a.tar"])
        assert texts[0] == "document 0"
        assert 5 < len(texts) < 40
        assert texts[-1] == "whole"

    def test_addresses(self, hub: Any, tmp_path: Path) -> None:
        hub.add(NAME, TARS)
        (tmp_path / "list").write_text("b.org\n")
        clean = {"url_lists": [str(tmp_path / "list")], "url_field": "json.url"}
        given = recipe(text_field="txt", clean=clean)
        account = RecordAccount("fail")
        (batch,) = read_split(plan_run(given).splits[0], given.sources[0], account)
        assert batch.addresses == ["https://a.org/0", "https://a.org/1"]

    def test_fields_that_are_carried_along(self, hub: Any) -> None:
        hub.add(NAME, TARS)
        given = recipe(text_field="txt", id_field="__key__", carry=["json.url"])
        (batch,) = read_split(plan_run(given).splits[1], given.sources[0], RecordAccount("fail"))
        assert batch.carried is not None
        assert [json.loads(line) for line in batch.carried] == [{"id": "x/000005", "json.url": "https://a.org/5"}]

    def test_another_version_of_the_library(self, hub: Any) -> None:
        hub.add(NAME, TARS)
        given = recipe(text_field="txt")
        split = plan_run(given).splits[0]
        for mark, problem in (
            ("#0-of-2-by-datasets-4.0.0", "planned with datasets 4.0.0"),
            ("#0-of-3", "2 shards now"),
        ):
            path = split.extents[0].path
            wrong = path.partition("#")[0] + mark + ("" if "by" in mark else path.partition("-of-2")[2])
            other: Split = replace(split, extents=(replace(split.extents[0], path=wrong),))
            with pytest.raises((InputError, SettingsError), match=problem):
                next(read_split(other, given.sources[0], RecordAccount("fail")))


class TestTransfers:
    @pytest.mark.parametrize(("kind", "status"), [("status", 429), ("status", 503), ("drop", 0), ("cut", 0)])
    def test_passing_faults(self, hub: Any, kind: str, status: int) -> None:
        texts = [f"document {number} " * 20 for number in range(300)]
        hub.add(NAME, {"a.tar": tar(texts)}, large=["a.tar"])
        hub.reset(
            *(fault(kind, match, times=3, status=status, keep=70_001) for match in ("/api/", "resolve", "/large/"))
            if kind != "cut"
            else [fault(kind, "/large/", times=3, keep=70_001)]
        )
        assert read(text_field="txt")[0] == texts
        ranges = [found for _, path, found in hub.requests if path.startswith("/large/")]
        if kind == "cut":
            assert ranges[:3] == ["bytes=0-262143", "bytes=70001-262143", "bytes=140002-262143"]

    def test_a_lasting_fault_is_one_of_the_storage(self, hub: Any) -> None:
        hub.add(NAME, TARS)
        given = recipe(text_field="txt")
        split = plan_run(given).splits[1]
        hub.reset(fault("status", "train-1", times=99, status=500))
        with pytest.raises(StorageError, match=r"train-1.tar: cannot be read from .*answered 500, 7 times in a row"):
            list(read_split(split, given.sources[0], RecordAccount("fail")))

    def test_workers_list_once_and_ask_for_no_sizes(self, hub: Any) -> None:
        hub.add(NAME, {f"{number}.tar": tar([str(number)]) for number in range(6)}, large=["0.tar"])
        given = recipe(text_field="txt")
        splits = plan_run(given).splits
        hub_stream._streams.clear()
        HubFileSystem.clear_instance_cache()
        hub.reset()
        for split in splits:
            list(read_split(split, given.sources[0], RecordAccount("fail")))
        assert {method for method, _, _ in hub.requests} == {"GET"}
        assert len([path for _, path, _ in hub.requests if "/tree/" in path]) == 4, (
            "the root for a card, and all, by pages"
        )


class TestCorpora:
    TEXTS = tuple(f"document {number} of some length" for number in range(90))

    def add(self, hub: Any, **settings: Any) -> None:
        shards = {f"data/{at // 30}.tar": tar(self.TEXTS[at : at + 30], at) for at in range(0, 90, 30)}
        hub.add(NAME, {"README.md": b"", **shards}, large=list(shards), **settings)

    @pytest.mark.parametrize(
        "options", [{}, {"max_workers": 2}, {"runner": "FnApiRunner"}], ids=["loop", "pool", "Beam"]
    )
    def test_a_corpus_is_the_same_on_any_runner_and_as_of_lines(
        self, hub: Any, workshop: Any, tmp_path: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        self.add(hub)
        caplog.set_level("INFO")
        streamed = {"dataset": NAME, "text_field": "txt"}
        workshop.prepare(streamed, output=str(tmp_path / "one"), options={**options, "quiet": False})
        assert re.search(
            r"source 's0': owner/set is streamed by datasets [\d.]+, 3 shards, since it has no", caplog.text
        )
        workshop.prepare({**streamed, "materialize": True}, output=str(tmp_path / "two"))
        one, two = workshop.tree(tmp_path / "one"), workshop.tree(tmp_path / "two")
        assert one == {name: found for name, found in two.items() if not name.startswith("raw/")}
        for number in range(3):
            workshop.jsonl(f"copy/{number}.jsonl", self.TEXTS[30 * number : 30 * number + 30])
        workshop.prepare({"files": [f"{workshop.folder}/copy"]}, output=str(tmp_path / "lines"))
        same = [name for name in one if name.endswith((".bin", ".idx"))]
        lined = workshop.tree(tmp_path / "lines")
        assert same
        assert {name: one[name] for name in same} == {name: lined[name] for name in same}
        inputs = workshop.manifest(tmp_path / "one")["sources"][0]["inputs"]
        assert [entry["path"] for entry in inputs] == ["data/0.tar", "data/1.tar", "data/2.tar"]
        (origins,) = (tmp_path / "one").rglob("*.rec")
        place = OriginFile(str(origins)).place(65)
        assert (place.input, place.record) == (2, 5), "number of the shard, and of the record in it"
        assert COMMIT not in (tmp_path / "one" / "manifest.json").read_text()

    def test_a_finished_shard_is_not_read_again(self, hub: Any, workshop: Any, tmp_path: Path) -> None:
        self.add(hub)
        streamed = {"dataset": NAME, "text_field": "txt"}
        hub.reset(fault("status", "data/2.tar", times=99, status=500))
        with pytest.raises(StorageError, match=r"data/2.tar: cannot be read from"):
            workshop.prepare(streamed)
        assert [path for _, path, _ in hub.requests if "/large/" in path and "data/1.tar" in path]
        hub_stream._streams.clear()
        hub.reset()
        workshop.prepare(streamed)
        read_again = {path[-10:] for _, path, _ in hub.requests if "/large/" in path}
        assert read_again == {"data/0.tar", "data/2.tar"}, "of the first its head alone, for the columns and the sample"
        workshop.prepare(streamed, output=str(tmp_path / "undisturbed"))
        assert workshop.tree() == workshop.tree(tmp_path / "undisturbed")

    def test_a_gated_dataset(
        self, hub: Any, workshop: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.add(hub, gated=True)
        hub.token = "hf_VerySecretToken"
        streamed = {"dataset": NAME, "text_field": "txt"}
        with pytest.raises(SettingsError, match=r"answered 401: a gated .* no HF_TOKEN is set"):
            workshop.prepare(streamed)
        monkeypatch.setenv("HF_TOKEN", hub.token)
        workshop.prepare(streamed, options={"quiet": False, "max_workers": 2})
        assert workshop.texts("s0") == list(self.TEXTS)
        told = [path.read_bytes().decode("latin-1") for path in workshop.folder.rglob("*") if path.is_file()]
        told += capfd.readouterr()
        assert not any("SecretToken" in text for text in told)
        assert set(hub.tokens) == {hub.token}

    def test_limits_and_estimates(self, hub: Any, workshop: Any) -> None:
        texts = [f"{number} " * 300 for number in range(3000)]
        hub.add(NAME, {f"{at}.tar": tar(texts[at * 500 : at * 500 + 500], at * 500) for at in range(6)})
        given = recipe(text_field="txt")
        found = estimate_source(given.sources[0], find(text_field="txt"), lambda some: sum(map(len, some)))
        assert found.documents == pytest.approx(3000, rel=0.1)
        assert found.tokens == pytest.approx(sum(map(len, texts)), rel=0.2)
        hub.reset()
        workshop.prepare({"dataset": NAME, "text_field": "txt", "max_documents": 600})
        assert workshop.texts("s0") == texts[:600]
        assert len(plan_module.read_plan(str(workshop.folder / "out")).splits) == 3, "and one more, to be sure"
