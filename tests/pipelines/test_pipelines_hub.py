"""Datasets of the hub as sources: which files they mean, how these are pinned and read, and what may go wrong."""

import gzip
import io
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.formats.errors import RecipeError, SettingsError, StorageError
from gristmill.formats.recipe import parse_recipe
from gristmill.formats.storage import open_read
from gristmill.pipelines.hub import _wait, hub_commit, hub_range, list_hub
from gristmill.pipelines.hub_file_system import hub_url
from gristmill.pipelines.hub_layout import files_by_split
from gristmill.pipelines.inputs import InputFile, find_inputs

NAME = "owner/set"
COMMIT = "1" * 40
LINE = b'{"text": "a"}\n'


def source(**settings: Any) -> Any:
    values = {
        "name": "test",
        "output": "somewhere/else",
        "tokenizer": {"path": "t.json"},
        "sources": [{"id": "s", **settings}],
    }
    return parse_recipe(values).sources[0]


def find(**settings: Any) -> tuple[InputFile, ...]:
    return find_inputs(source(**{"dataset": NAME, **settings}), "sources[0]")


def names(**settings: Any) -> list[str]:
    return [file.relative for file in find(**settings)]


def parquet(texts: Sequence[str], rows: int = 1000, **columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": list(texts), **columns}), sink, row_group_size=rows)
    return sink.getvalue()


def readme(configs: str) -> bytes:
    return f"---\nlicense: mit\nconfigs:\n{configs}---\n# A set\n".encode()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of no length between attempts; their number stays."""
    monkeypatch.setattr("gristmill.pipelines.hub.time.sleep", lambda seconds: None)


class TestWhichFiles:
    def test_what_the_readme_says(self, hub: Any) -> None:
        configs = (
            "- config_name: default\n  data_files:\n  - split: train\n    path: data/*/*\n"
            '- config_name: sample\n  data_files:\n  - split: train\n    path: ["sample/a/*", "sample/b.jsonl"]\n'
            "- config_name: folder\n  data_dir: data/x\n  data_files: {test: t.jsonl}\n"
            "- config_name: named\n  data_dir: named\n"
        )
        listed = ["data/x/0.jsonl", "data/x/t.jsonl", "data/y/1.jsonl", "data/deep/er/2.jsonl", "sample/a/3.jsonl"]
        listed += ["sample/b.jsonl", "named/train/4.jsonl", "named/valid/5.jsonl"]
        hub.add(NAME, {"README.md": readme(configs), **dict.fromkeys(listed, LINE)})
        assert names() == ["data/x/0.jsonl", "data/x/t.jsonl", "data/y/1.jsonl"]
        assert names(config="sample") == ["sample/a/3.jsonl", "sample/b.jsonl"]
        assert names(config="folder", split="test") == ["data/x/t.jsonl"]
        assert names(config="named", split="validation") == ["named/valid/5.jsonl"]
        with pytest.raises(SettingsError, match=r'sources\[0\].config: .* no configuration "other"; it has default, f'):
            names(config="other")
        with pytest.raises(SettingsError, match=r'sources\[0\].split: .* has no split "test"; it has train$'):
            names(split="test")

    def test_a_default_configuration_is_never_guessed(self, hub: Any) -> None:
        entry = "- config_name: {}\n  data_files: {}.jsonl\n"
        files = {"a.jsonl": LINE, "b.jsonl": LINE}
        hub.add(NAME, {"README.md": readme(entry.format("a", "a") + entry.format("b", "b")), **files})
        with pytest.raises(SettingsError, match=r"2 configurations and none is the default: a, b"):
            names()
        hub.add(
            "owner/other",
            {"README.md": readme(entry.format("a", "a") + entry.format("b", "b") + "  default: true\n"), **files},
        )
        assert names(dataset="owner/other") == ["b.jsonl"]

    @pytest.mark.parametrize("head", [b"", b"no head\n", b"---\nconfigs: [\n---\n", b"---\nlicense: mit\n---\n"])
    def test_names_where_the_readme_says_nothing(self, hub: Any, head: bytes) -> None:
        listed = [
            "data/train-00000-of-00002.jsonl",
            "data/train-00001-of-00002.jsonl",
            "data/test-00000-of-00001.jsonl",
        ]
        hub.add(NAME, {"README.md": head, ".gitattributes": b"", **dict.fromkeys(listed, LINE)})
        assert names() == listed[:2]
        assert names(split="test") == listed[2:]
        with pytest.raises(SettingsError, match=r'tell no split "valid", but test, train; name one of these'):
            names(split="valid")

    @pytest.mark.parametrize(
        ("listed", "expected"),
        [
            (["train-00000-of-00001.parquet"], {"train": [0]}),
            (["data/extra.1M-00000-of-00001.parquet"], {"extra.1M": [0]}),
            (["x/dev/a.jsonl", "training/b.jsonl", "other.jsonl"], {"validation": [0], "train": [1]}),
            (["set_train_1.jsonl", "set-eval.jsonl.gz", "retrained.jsonl"], {"train": [0], "test": [1]}),
            (["a.jsonl", "b/c.jsonl"], {"train": [0, 1]}),
            ([], {}),
        ],
    )
    def test_the_rule_for_names(self, listed: list[str], expected: dict[str, list[int]]) -> None:
        assert files_by_split(listed) == {split: [listed[at] for at in places] for split, places in expected.items()}

    def test_data_files(self, hub: Any) -> None:
        listed = [
            "data/c/0.jsonl",
            "data/python/1.jsonl",
            "data/python/2.jsonl.gz",
            "data/python/x/3.jsonl",
            "top.jsonl",
        ]
        hub.add(NAME, {name: gzip.compress(LINE) if name.endswith("gz") else LINE for name in listed} | {"a.md": b"x"})
        assert names(data_files="data/python/*.jsonl*") == listed[1:3]
        assert names(data_files=["top.jsonl", "data/python"]) == [listed[4], *listed[1:4]]
        assert names(data_files="data/**/*.jsonl") == [listed[0], listed[1], listed[3]]
        assert [file.compression for file in find(data_files="data/python")] == [None, "gzip", None]
        with pytest.raises(
            SettingsError,
            match=r"sources\[0\].data_files: .* at data/p/\*; there are a.md, data/c/0.jsonl, .* and 1 more",
        ):
            names(data_files="data/p/*")

    def test_a_configuration_is_a_folder_where_nothing_is_said(self, hub: Any) -> None:
        hub.add(NAME, {"default/train/0000.jsonl": LINE, "other/train/0000.jsonl": LINE})
        assert names(config="other") == ["other/train/0000.jsonl"]

    def test_a_dataset_that_is_no_plain_files(self, hub: Any) -> None:
        hub.add(NAME, {"set.py": b"", "README.md": b"", "images.tar": b""})
        with pytest.raises(
            SettingsError, match=r"no file of a format.*script set.py, which is not run.*images.tar.*refs/conv"
        ):
            names(format="auto")

    def test_a_wrong_name(self, hub: Any) -> None:
        with pytest.raises(
            SettingsError, match=r"owner/set: the hub answered 401: a gated or private dataset, or none of"
        ):
            names()
        hub.add(NAME, {"a.jsonl": LINE})
        with pytest.raises(SettingsError, match=r"owner/set at revision 'v9': the hub at .* has no such"):
            names(revision="v9")

    @pytest.mark.parametrize(
        ("settings", "problem"),
        [
            ({"files": ["a"], "dataset": NAME}, r"sources\[0\].dataset: names what is read, and so does files"),
            ({}, r"sources\[0\].files: is missing"),
            ({"files": ["a"], "split": "train"}, r"sources\[0\].split: .* but there is no dataset"),
            ({"dataset": "a/b/c"}, r"sources\[0\].dataset: .* the id of a dataset"),
            ({"dataset": NAME, "data_files": "x", "config": "c"}, r"sources\[0\].config: .* so does data_files"),
            ({"dataset": NAME, "data_files": "../x"}, r"sources\[0\].data_files: must be paths inside"),
        ],
    )
    def test_mistakes_in_the_recipe(self, settings: dict[str, Any], problem: str) -> None:
        with pytest.raises(RecipeError, match=problem):
            source(**settings)


class TestPins:
    def test_a_file_is_pinned_by_commit_size_and_digest(self, hub: Any) -> None:
        one, two = hub.add(NAME, {"a.jsonl": LINE, "b.jsonl": LINE * 2}, large=["b.jsonl"]), COMMIT
        first, second = find()
        assert (first.path, first.size) == (f"hub://{NAME}@{two}/a.jsonl", len(LINE))
        assert first.checksum.startswith("git:")
        assert (second.size, second.checksum[:7], len(second.checksum)) == (2 * len(LINE), "sha256:", 71)
        one.revisions["v2"] = "2" * 40
        assert find(revision="v2")[0].path == f"hub://{NAME}@{'2' * 40}/a.jsonl"
        assert find(revision="2" * 40)[0].checksum == first.checksum

    def test_every_page_of_a_listing_is_read(self, hub: Any) -> None:
        hub.add(NAME, {f"x/{number:02}.jsonl": LINE for number in range(20)})
        assert len(list_hub(NAME, COMMIT)) == 20
        assert list_hub(NAME, COMMIT, "nowhere") == []

    def test_planning_reads_no_data_of_plain_tables(self, hub: Any) -> None:
        hub.add(NAME, {"train.parquet": parquet(["a"] * 10)})
        find()
        assert not [path for method, path, _ in hub.requests if "/resolve/" in path]


class TestTransfers:
    DATA = bytes(range(256)) * 40

    def url(self, hub: Any, **settings: Any) -> str:
        hub.add(NAME, {"a b/ü.bin": self.DATA, "empty": b""}, **settings)
        return hub_url(NAME, COMMIT, "a b/ü.bin")

    def fault(self, kind: str, match: str, **settings: Any) -> Any:
        return sys.modules["hub_server"].Fault(kind, match, **settings)

    @pytest.mark.parametrize("cached", [False, True])
    @pytest.mark.parametrize("large", [(), ("a b/ü.bin",)])
    def test_any_range(self, hub: Any, large: tuple[str, ...], cached: bool) -> None:
        url = self.url(hub, large=large)
        hub.cached = cached
        assert hub_range(url, 5, 300) == self.DATA[5:305]
        with open_read(url) as file:
            assert file.read() == self.DATA
            file.seek(-7, 2)
            assert file.read() == self.DATA[-7:]
        with open_read(hub_url(NAME, COMMIT, "empty")) as file:
            assert file.read() == b""

    def test_a_cut_connection_goes_on_from_the_right_byte(self, hub: Any) -> None:
        url = self.url(hub, large=["a b/ü.bin"])
        hub.reset(self.fault("cut", "/large/", times=2, keep=1000))
        assert hub_range(url, 100, 9000) == self.DATA[100:9100]
        ranges = [found for _, path, found in hub.requests if path.startswith("/large/")]
        assert ranges == ["bytes=100-9099", "bytes=1100-9099", "bytes=2100-9099"]

    @pytest.mark.parametrize(("kind", "status"), [("status", 429), ("status", 503), ("drop", 0)])
    def test_a_passing_fault(self, hub: Any, kind: str, status: int) -> None:
        url = self.url(hub)
        hub.reset(
            self.fault(kind, "resolve", times=3, status=status), self.fault(kind, "/api/", times=3, status=status)
        )
        assert hub_range(url, 0, 10) == self.DATA[:10]
        assert hub_commit(NAME, None) == COMMIT
        assert len(list_hub(NAME, COMMIT)) == 2

    @pytest.mark.parametrize(
        ("headers", "seconds"),
        [
            ({"retry-after": "7"}, 7),
            ({"ratelimit": '"api";r=0;t=55'}, 55),
            ({"retry-after": "86400"}, 600),
            ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
            ({}, None),
        ],
    )
    def test_how_long_the_hub_asks_to_wait(self, headers: dict[str, str], seconds: float | None) -> None:
        assert _wait(headers) == seconds

    def test_a_lasting_fault(self, hub: Any) -> None:
        url = self.url(hub)
        hub.reset(self.fault("status", "resolve", times=99, status=500))
        with pytest.raises(
            StorageError, match=r"ü.bin: cannot be read from .*answered 500, 7 times in a row; run again"
        ):
            hub_range(url, 0, 10)

    def test_what_is_not_there(self, hub: Any) -> None:
        self.url(hub)
        with pytest.raises(SettingsError, match=r"hub://owner/set@1+/gone: the hub at .* has no such .*404"):
            hub_range(hub_url(NAME, COMMIT, "gone"), 0, 10)

    def test_a_server_without_ranges(self, hub: Any) -> None:
        url = self.url(hub)
        hub.ranges = False
        assert hub_range(url, 0, 10) == self.DATA[:10]
        with pytest.raises(StorageError, match="serves no byte ranges"):
            hub_range(url, 5, 10)

    def test_only_the_wanted_columns_are_read(self, hub: Any) -> None:
        draw = random.Random(7)
        noise = [draw.randbytes(200).hex() for _ in range(20_000)]
        data = parquet([f"text {number}" for number in range(20_000)], rows=5_000, other=noise)
        hub.add(NAME, {"a.parquet": data}, large=["a.parquet"])
        (file,) = find()
        hub.reset()
        with open_read(file.path) as raw:
            table = pq.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False).read(columns=["text"], use_threads=False)
        assert table.num_rows == 20_000
        asked = [tuple(map(int, found[6:].split("-"))) for _, path, found in hub.requests if path.startswith("/large/")]
        assert sum(last - first + 1 for first, last in asked) < len(data) / 4


class TestSecrets:
    def test_a_gated_dataset_needs_a_token_of_the_environment(
        self, hub: Any, workshop: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        texts = [f"document {number}" for number in range(30)]
        lines = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
        hub.add(NAME, {"train.jsonl": lines, "extra.parquet": parquet(texts)}, large=["train.jsonl"], gated=True)
        hub.token = "hf_VerySecretToken"
        told = []
        with pytest.raises(
            SettingsError, match=r"answered 401: a gated .* no HF_TOKEN is set; accept .* set HF_TOKEN"
        ) as error:
            workshop.prepare({"dataset": NAME})
        told.append(str(error.value))
        monkeypatch.setenv("HF_TOKEN", "hf_AnotherSecretToken")
        with pytest.raises(SettingsError, match=r"token of the environment is not allowed") as error:
            workshop.prepare({"dataset": NAME})
        told.append(str(error.value))
        monkeypatch.setenv("HF_TOKEN", hub.token)
        with pytest.raises(SettingsError) as error:
            workshop.prepare({"dataset": NAME, "split": "nope"})
        told.append(str(error.value))
        workshop.prepare(
            {
                "dataset": NAME,
                "data_files": "train.jsonl",
                "materialize": True,
            },
            options={"quiet": False},
        )
        assert workshop.texts("s0") == texts
        told += [path.read_bytes().decode("latin-1") for path in workshop.folder.rglob("*") if path.is_file()]
        told += capfd.readouterr()
        assert not any("SecretToken" in text for text in told)
        assert set(hub.tokens) == {hub.token, "hf_AnotherSecretToken"}

    def test_another_host_gets_no_token(self, hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        with sys.modules["hub_server"].running_hub() as other:
            other.add(NAME, {"a.jsonl": LINE})
            hub.add(NAME, {"a.jsonl": LINE}, large=["a.jsonl"], gated=True)
            hub.elsewhere = other.address.replace("127.0.0.1", "localhost")
            monkeypatch.setenv("HF_TOKEN", hub.token)
            assert hub_range(hub_url(NAME, COMMIT, "a.jsonl"), 0, 5) == LINE[:5]
            assert hub.tokens
            assert other.requests
            assert not other.tokens


@pytest.mark.parametrize("options", [{}, {"max_workers": 2}, {"runner": "FnApiRunner"}], ids=["loop", "pool", "Beam"])
def test_a_corpus_is_the_same_from_the_hub_and_from_a_copy(
    hub: Any, workshop: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    files = {
        "data/train-00000-of-00002.parquet": parquet([f"row {number}" for number in range(50)], rows=7),
        "data/train-00001-of-00002.parquet": parquet([f"column {number}" for number in range(40)], rows=9),
    }
    hub.add(NAME, {"README.md": b"# nothing", **files}, large=list(files))
    for name, data in files.items():
        workshop.write(f"copy/{name}", data)
    workshop.prepare({"dataset": NAME}, output=str(tmp_path / "remote"), options=options)
    workshop.prepare({"files": [f"{workshop.folder}/copy"]}, output=str(tmp_path / "local"))
    assert workshop.tree(tmp_path / "remote") == workshop.tree(tmp_path / "local")
    assert len(workshop.texts("s0", tmp_path / "remote")) == 90
