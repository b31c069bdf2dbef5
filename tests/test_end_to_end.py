"""From files of every kind to a verified corpus, and what a rerun does after every kind of change."""

import bz2
import gzip
import itertools
import json
import lzma
import os
import random
import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tokenizers import Tokenizer

from gristmill.formats.errors import CorpusError, DataError, InputError, SettingsError
from gristmill.formats.indexed import IndexedDataset
from gristmill.formats.origins import read_origins
from gristmill.formats.verify import verify_corpus

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "naïve",
    "résumé",
    "世界",
    "🙂",
    "\t",
    "def",
    "return\n",
    "",
    "",
    "x",
    "=",
    "1",
    "<b>",
]


def texts(count: int, seed: int, longest: int = 60) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) + f" {seed}.{number}" for number in range(count)]


def put_sources(workshop: Any) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """Sources of every format and compression, and the documents that each has in the end."""
    shared = texts(20, 0)
    web = texts(200, 1)
    code = {f"pkg/m{number}.py": f"def f{number}():\n\treturn {number}\n" for number in range(30)}
    folder = workshop.folder
    pack: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.compress,
        "": bytes,
    }
    for part, (ending, packer) in enumerate(pack.items()):
        workshop.jsonl(
            f"web/part-{part}.jsonl{ending}", shared[: 4 * part] + web[40 * part : 40 * part + 40], pack=packer
        )
    (folder / "books").mkdir()
    table = pa.table({"body": [*texts(50, 2), *shared, web[3], "", None], "n": range(73)})
    pq.write_table(table, folder / "books" / "b.parquet", row_group_size=20)
    for name, content in code.items():
        workshop.write(f"code/{name}", content.encode())
    workshop.write("code/pkg/copy.py", code["pkg/m3.py"].encode())
    workshop.write("code/pkg/empty.py", b"")
    workshop.write("code/.git/hooks/x.py", b"no")
    notes = [f"note {number}" for number in range(40)]
    line = next(text for text in shared if "\n" not in text)
    workshop.write("notes/a.txt", "\r\n".join([*notes, "", line]).encode())
    sources = [
        {"id": "web", "files": [f"{folder}/web/*"], "weight": 0.5},
        {"id": "books", "files": [f"{folder}/books"], "text_field": "body", "weight": 0.2}
        | {"bad_records": "skip", "max_bad_fraction": 0.05},
        {"id": "code", "files": [f"{folder}/code"], "weight": 0.2},
        {"id": "notes", "files": [f"{folder}/notes/a.txt"], "document": "line", "weight": 0.1},
    ]
    listed: dict[str, list[str]] = {"web": []}
    for part in range(5):
        listed["web"] += shared[: 4 * part] + web[40 * part : 40 * part + 40]
    listed["books"] = [*texts(50, 2), *shared, web[3]]
    listed["code"] = [code["pkg/m3.py"], *(code[name] for name in sorted(code))]
    listed["notes"] = [*notes, line]
    seen: set[str] = set()
    expected: dict[str, list[str]] = {}
    for source, documents in listed.items():
        expected[source] = [text for text in documents if not (text in seen or seen.add(text))]  # type: ignore[func-returns-value]  # add gives None
    return sources, expected


SHARDS = {"target_tokens": 3000}
INDEX = {"sequence_length": 64, "samples": 100, "splits": "80,10,10"}


class TestWholeRun:
    def test_every_kind_of_file_to_a_verified_corpus(self, workshop: Any) -> None:
        sources, expected = put_sources(workshop)
        result = workshop.prepare(*sources, shards=SHARDS, index=INDEX)
        assert (result.stages, result.finished) == (("download", "clean", "tokenize", "index", "blend"), True)
        for source, documents in expected.items():
            assert workshop.texts(source) == documents
        manifest = workshop.manifest()
        for entry in manifest["sources"]:
            assert entry["documents_in"] == entry["documents_kept"] + sum(entry["dropped"].values())
            assert entry["documents_kept"] == len(expected[entry["id"]])
            assert entry["documents_kept"] == sum(shard["documents"] for shard in entry["shards"])
            assert all(shard["eod_tokens"] == shard["documents"] for shard in entry["shards"])
        web, books, code, notes = manifest["sources"]
        assert web["dropped"] == {"exact_duplicate": 0 + 4 + 8 + 12}
        assert books["dropped"] == {"empty": 1, "exact_duplicate": 17, "null_text": 1}
        assert code["dropped"] == {"empty": 1, "exact_duplicate": 1}
        assert notes["dropped"] == {"exact_duplicate": 1}
        assert [file["path"] for file in web["inputs"]] == [
            "part-0.jsonl.gz",
            "part-1.jsonl.bz2",
            "part-2.jsonl.xz",
            "part-3.jsonl.zst",
            "part-4.jsonl",
        ]
        assert len(web["shards"]) > 1
        assert verify_corpus(str(workshop.folder / "out")) == []
        assert not (workshop.folder / "out" / "spill").exists()
        rejected = json.loads(
            (workshop.folder / "out" / "rejected" / "books" / "00000.jsonl").read_text().splitlines()[-1]
        )
        assert (rejected["reason"], rejected["where"]) == ("null_text", "b.parquet: row 72, counted from 0")

    def test_first_and_last_document_of_a_shard_are_named(self, workshop: Any) -> None:
        sources, _ = put_sources(workshop)
        workshop.prepare(*sources, shards=SHARDS)
        inputs = {
            "web": {f"part-{part}.jsonl{ending}" for part, ending in enumerate((".gz", ".bz2", ".xz", ".zst", ""))}
        }
        for entry in workshop.manifest()["sources"]:
            records = [(shard["first"]["record"], shard["last"]["record"]) for shard in entry["shards"]]
            assert all(first <= last for first, last in records)
            assert all(last < first for (_, last), (first, _) in itertools.pairwise(records))
            named = {shard[end]["input"] for shard in entry["shards"] for end in ("first", "last")}
            assert named <= {file["path"] for file in entry["inputs"]}
            assert entry["id"] != "web" or {"part-0.jsonl.gz", "part-4.jsonl"} <= named <= inputs["web"]

    def test_an_order_of_files_and_records_is_kept(self, workshop: Any) -> None:
        documents = texts(300, 3)
        for part in range(3):
            workshop.jsonl(f"d/{2 - part}.jsonl", documents[200 - 100 * part : 300 - 100 * part])
        workshop.prepare({"files": [str(workshop.folder / "d")]})
        assert workshop.texts("s0") == documents

    def test_a_byte_order_mark_changes_no_token(self, new_workshop: Callable[[], Any]) -> None:
        plain, marked = new_workshop(), new_workshop()
        lines = b'{"text": "one"}\n{"text": "two"}\n'
        plain.prepare({"files": [plain.write("a.jsonl", lines)]})
        marked.prepare({"files": [marked.write("a.jsonl", b"\xef\xbb\xbf" + lines)]})
        for name in ("bin", "idx"):
            pair = f"out/tokens/s0/s0-00000-of-00001.{name}"
            assert (plain.folder / pair).read_bytes() == (marked.folder / pair).read_bytes()

    def test_text_that_would_be_spoilt_by_cleaning(self, workshop: Any) -> None:
        documents = [
            "def f(x):\n\tif x:\n\t    return {'a': 1}\n\n\n",
            "nul\x00 esc\x1b soft\xadhyphen zero\u200bwidth",
            "a\u2028b\u2029c\u0085d\x0be\x0cf",
            "世界 👩\u200d👩\u200d👧\u200d👦 مرحبا",
            "  leading and trailing  \r\n",
            "<|endoftext|>",
            "see <|endoftext|> in GPT-2<|endoftext|>",
            "e\u0301 is not é",
        ]
        for clean in (True, False):
            workshop.prepare(
                {"files": [workshop.jsonl("a.jsonl", documents)]}, defaults={"clean": clean}, name=f"clean-{clean}"
            )
            assert workshop.texts("s0") == documents
            assert workshop.manifest()["sources"][0]["counted"] == {"control_hits": 3}

    def test_empty_documents_everywhere(self, workshop: Any) -> None:
        for clean, kept in ((True, ["a"]), (False, ["   ", "\n", "a"])):
            for listed in (["", "   ", "\n", "a", ""], ["a", "", "   ", "\n"]):
                workshop.prepare({"files": [workshop.jsonl("a.jsonl", listed)]}, defaults={"clean": clean})
                assert sorted(workshop.texts("s0")) == sorted(kept)
                assert verify_corpus(str(workshop.folder / "out")) == []

    def test_a_corpus_of_nothing_is_an_error(self, workshop: Any) -> None:
        for content, why in (
            (b"", "its files hold no record; name other files"),
            (b"\n\n", "its files hold no record; name other files"),
            (
                b'{"text": ""}\n{"text": " "}\n',
                r"no document is left of 2 records read; dropped: 1 blank, 1 empty\. Relax",
            ),
        ):
            path = workshop.write("a.jsonl", content)
            with pytest.raises(DataError, match=rf"source 's0': {why}"):
                workshop.prepare({"files": [path]})
            assert not (workshop.folder / "out" / "manifest.json").exists()

    def test_one_source_that_only_repeats_another_is_an_error(self, workshop: Any) -> None:
        path = workshop.jsonl("a.jsonl", ["one", "two"])
        copy = workshop.jsonl("b.jsonl", ["two", "one"])
        with pytest.raises(DataError, match=r"source 's1': no document is left of 2 records read"):
            workshop.prepare({"files": [path]}, {"files": [copy]})

    def test_more_bad_records_than_allowed(self, workshop: Any) -> None:
        path = workshop.write("a.jsonl", b'{"text": "a"}\n' * 98 + b"bad\n" * 2)
        source = {"files": [path], "bad_records": "skip"}
        with pytest.raises(DataError, match=r"source 's0': 2 of 100 records are bad \(.*2 malformed_json\), more than"):
            workshop.prepare(source)
        workshop.prepare(source | {"max_bad_fraction": 0.02})
        assert workshop.manifest()["sources"][0]["dropped"] == {"exact_duplicate": 97, "malformed_json": 2}
        with pytest.raises(DataError, match=r"2 of 100 records are bad"):
            workshop.prepare(source | {"clean": False})

    def test_a_file_name_that_is_no_unicode(self, workshop: Any) -> None:
        folder = os.fsencode(workshop.folder) + b"/d"
        os.mkdir(folder)
        with open(folder + b"/caf\xe9.jsonl", "wb") as file:
            file.write(b'{"text": "a"}\n')
        workshop.prepare({"files": [os.fsdecode(folder)]})
        assert workshop.manifest()["sources"][0]["inputs"][0]["path"] == "caf\udce9.jsonl"
        assert workshop.texts("s0") == ["a"]

    def test_many_small_sources(self, workshop: Any) -> None:
        expected = {f"s{number}": texts(20, 1000 + number, 5) for number in range(150)}
        listed = [{"files": [workshop.jsonl(f"{name}.jsonl", own)]} for name, own in expected.items()]
        workshop.prepare(*listed)
        assert {name: workshop.texts(name) for name in expected} == expected
        assert verify_corpus(str(workshop.folder / "out")) == []


class TestShards:
    @pytest.mark.parametrize("target", [1, 7, 50, 1000, 10**9])
    def test_a_document_is_in_the_shard_of_its_first_token(self, workshop: Any, target: int) -> None:
        rng = random.Random(target)
        documents = [" ".join(rng.choices(WORDS, k=rng.choice([1, 2, 5, 40]))) + str(n) for n in range(60)]
        workshop.prepare(
            {"files": [workshop.jsonl("a.jsonl", documents[:35]), workshop.jsonl("b.jsonl", documents[35:])]},
            shards={"target_tokens": target},
        )
        tokenizer = Tokenizer.from_file(str(workshop.tokenizer))
        lengths = [len(tokenizer.encode(text).ids) + 1 for text in documents]
        starts = np.cumsum([0, *lengths])[:-1]
        expected = [count for _, count in sorted(Counter((starts // target).tolist()).items())]
        shards = workshop.manifest()["sources"][0]["shards"]
        assert [shard["documents"] for shard in shards] == expected
        assert [shard["path"] for shard in shards] == [
            f"tokens/s0/s0-{number:05d}-of-{len(shards):05d}" for number in range(len(shards))
        ]
        assert workshop.texts("s0") == documents

    def test_documents_longer_than_a_shard(self, workshop: Any) -> None:
        documents = [f"{number}" * size for number, size in enumerate([10, 999, 1000, 1001, 5000, 3, 2])]
        workshop.prepare({"files": [workshop.jsonl("a.jsonl", documents)]}, shards={"target_tokens": 1000})
        shards = workshop.manifest()["sources"][0]["shards"]
        assert all(shard["tokens"] for shard in shards)
        assert workshop.texts("s0") == documents
        assert verify_corpus(str(workshop.folder / "out")) == []

    def test_the_cut_into_splits_is_not_seen(
        self, new_workshop: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        documents = texts(400, 4, 20) + texts(50, 4, 20)
        trees = []
        for split_bytes in (1 << 30, 5000, 700):
            monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", split_bytes)
            workshop = new_workshop()
            workshop.prepare({"files": [workshop.jsonl("a.jsonl", documents)]}, shards={"target_tokens": 900})
            tree = {name: digest for name, digest in workshop.tree().items() if name.startswith("tokens/")}
            for name in tree:
                if name.endswith(".rec"):  # which names splits too, but leads to the same records of the same files
                    numbers, runs = read_origins(str(workshop.folder / "out" / name))
                    run = np.searchsorted(runs["document"], np.arange(len(numbers)), side="right") - 1
                    tree[name] = str([runs["input"][run].tolist(), (runs["offset"][run] + numbers).tolist()])
            trees.append(tree)
        assert trees[0] == trees[1] == trees[2]
        assert len(trees[0]) > 10

    def test_a_large_vocabulary_takes_four_bytes(self, workshop: Any, tmp_path: Path) -> None:
        value = json.loads(workshop.tokenizer.read_bytes())
        for number in range(len(value["model"]["vocab"]), 70_000):
            value["model"]["vocab"][f"unused {number}"] = number
        workshop.tokenizer = Path(workshop.write("large/tokenizer.json", json.dumps(value).encode()))
        documents = texts(10, 5)
        workshop.prepare({"files": [workshop.jsonl("a.jsonl", documents)]})
        assert workshop.manifest()["dtype"] == "int32"
        pair = IndexedDataset(str(workshop.folder / "out" / workshop.manifest()["sources"][0]["shards"][0]["path"]))
        assert pair.dtype == np.int32
        pair.close()
        assert workshop.texts("s0") == documents


class TestRerun:
    @pytest.fixture(autouse=True)
    def told(self, caplog: pytest.LogCaptureFixture) -> None:
        """What a run says is logged; the command line is who prints it."""
        caplog.set_level("INFO", "gristmill")

    @pytest.fixture
    def done(self, workshop: Any) -> tuple[Any, list[dict[str, Any]]]:
        """A finished corpus of two sources, and its recipe's sources."""
        sources = [
            {"files": [workshop.jsonl("a.jsonl", texts(60, 6))], "weight": 0.7},
            {"files": [workshop.jsonl("b.jsonl", texts(40, 7))], "weight": 0.3},
        ]
        workshop.prepare(*sources, shards=SHARDS, index=INDEX)
        return workshop, sources

    def fresh(
        self, new_workshop: Callable[[], Any], old: Any, sources: list[dict[str, Any]], **top: Any
    ) -> dict[str, str]:
        """The files of a corpus that is prepared anew."""
        other = new_workshop()
        other.tokenizer = old.tokenizer
        other.prepare(*sources, **{"shards": SHARDS, "index": INDEX} | top)
        tree: dict[str, str] = other.tree()
        return tree

    def test_does_nothing_when_nothing_changed(self, done: Any, caplog: pytest.LogCaptureFixture) -> None:
        workshop, sources = done
        before = {path: path.stat().st_mtime_ns for path in (workshop.folder / "out").rglob("*.[jbin]*")}
        result = workshop.prepare(*sources, shards=SHARDS, index=INDEX, options={"quiet": False})
        assert (result.stages, result.finished) == ((), True)
        assert "nothing to do" in caplog.text
        assert before == {path: path.stat().st_mtime_ns for path in before}

    def test_sees_a_changed_input_of_the_same_size_and_time(
        self, done: Any, new_workshop: Callable[[], Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        workshop, sources = done
        path = Path(sources[1]["files"][0])
        times, content = path.stat(), path.read_bytes()
        path.write_bytes(content.replace(b"fox", b"cat"))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        result = workshop.prepare(*sources, shards=SHARDS, index=INDEX, options={"quiet": False})
        assert result.stages == ("download", "clean", "tokenize", "index", "blend")
        assert "stage download was finished before, but inputs.s1 was " in caplog.text
        assert "cat" in " ".join(workshop.texts("s1"))
        assert workshop.tree() == self.fresh(new_workshop, workshop, sources)
        assert verify_corpus(str(workshop.folder / "out")) == []

    @pytest.mark.parametrize(
        ("change", "stages", "says"),
        [
            ({"index": INDEX | {"sequence_length": 32}}, ("index", "blend"), "index.sequence_length was 64, now 32"),
            ({"seed": 5}, ("index", "blend"), "index.seed was 1234, now 5"),
            ({"shards": {"target_tokens": 500}}, ("tokenize", "index", "blend"), "target_tokens was 3000, now 500"),
            ({"index": INDEX | {"splits": "70,20,10"}}, ("index", "blend"), "index.splits was 80,10,10, now 70,20,10"),
        ],
        ids=["length", "seed", "shards", "splits"],
    )
    def test_does_what_a_changed_option_needs(
        self,
        done: Any,
        new_workshop: Callable[[], Any],
        caplog: pytest.LogCaptureFixture,
        change: dict[str, Any],
        stages: tuple[str, ...],
        says: str,
    ) -> None:
        workshop, sources = done
        result = workshop.prepare(*sources, options={"quiet": False}, **{"shards": SHARDS, "index": INDEX} | change)
        assert result.stages == stages
        assert says in caplog.text
        fresh = self.fresh(new_workshop, workshop, sources, **change)
        assert {name: workshop.tree()[name] for name in fresh} == fresh
        others = workshop.tree().keys() - fresh.keys()
        assert all(name.startswith("indices/") for name in others)
        assert bool(others) == (stages == ("index", "blend"))
        assert verify_corpus(str(workshop.folder / "out")) == []

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"weight": 0.5}, "mixture.s0 was [0.7, None], now [0.5, None]"),
            ({"clean": {"min_chars": 100}}, "clean.min_chars was 0, now 100"),
            ({"text_field": "other"}, "text_field was text, now other"),
        ],
        ids=["weight", "clean", "field"],
    )
    def test_says_what_changed_in_a_source(
        self, done: Any, new_workshop: Callable[[], Any], caplog: pytest.LogCaptureFixture, change: Any, says: str
    ) -> None:
        workshop, sources = done
        changed = [sources[0] | change, sources[1]]
        if "text_field" in change:
            workshop.jsonl("a.jsonl", texts(60, 6), field="other")
        workshop.prepare(*changed, shards=SHARDS, index=INDEX, options={"quiet": False})
        assert says in caplog.text
        fresh = self.fresh(new_workshop, workshop, changed)
        assert {name: workshop.tree()[name] for name in fresh} == fresh

    def test_a_changed_tokenizer(
        self, done: Any, new_workshop: Callable[[], Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        workshop, sources = done
        value = json.loads(workshop.tokenizer.read_bytes())
        value["added_tokens"].append(
            {**value["added_tokens"][0], "id": len(value["model"]["vocab"]), "content": "<new>"}
        )
        workshop.tokenizer = Path(workshop.write("other/tokenizer.json", json.dumps(value).encode()))
        result = workshop.prepare(*sources, shards=SHARDS, index=INDEX, options={"quiet": False})
        assert result.stages == ("tokenize", "index", "blend")
        assert "stage tokenize was finished before, but tokenizer was " in caplog.text
        assert workshop.tree() == self.fresh(new_workshop, workshop, sources)

    def test_a_changed_eod(self, done: Any) -> None:
        workshop, sources = done
        tokenizer = {"path": str(workshop.tokenizer), "eod": 5}
        result = workshop.prepare(*sources, shards=SHARDS, index=INDEX, tokenizer=tokenizer)
        assert result.stages == ("tokenize", "index", "blend")
        assert all(document[-1] == 5 for document in workshop.documents("s0"))

    def test_a_source_more_and_a_source_less(self, done: Any, new_workshop: Callable[[], Any]) -> None:
        workshop, sources = done
        more = [*sources, {"files": [workshop.jsonl("c.jsonl", texts(30, 8))], "weight": 0.1}]
        workshop.prepare(*more, shards=SHARDS, index=INDEX)
        assert workshop.tree() == self.fresh(new_workshop, workshop, more)
        workshop.prepare(sources[1] | {"id": "s1"}, shards=SHARDS, index=INDEX)
        assert workshop.tree() == self.fresh(new_workshop, workshop, [sources[1] | {"id": "s1"}])
        assert not (workshop.folder / "out" / "tokens" / "s0").exists()

    def test_the_order_of_sources_decides_who_keeps_a_copy(self, workshop: Any) -> None:
        one, two = (workshop.jsonl(name, ["both", f"only {name}"]) for name in ("a.jsonl", "b.jsonl"))
        workshop.prepare({"id": "a", "files": [one]}, {"id": "b", "files": [two]})
        assert (workshop.texts("a"), workshop.texts("b")) == (["both", "only a.jsonl"], ["only b.jsonl"])
        workshop.prepare({"id": "b", "files": [two]}, {"id": "a", "files": [one]})
        assert (workshop.texts("a"), workshop.texts("b")) == (["only a.jsonl"], ["both", "only b.jsonl"])

    def test_fewer_shards_leave_none_of_the_old(self, done: Any, new_workshop: Callable[[], Any]) -> None:
        workshop, sources = done
        few = {"target_tokens": 10**6}
        workshop.prepare(*sources, shards=few, index=INDEX)
        assert workshop.tree() == self.fresh(new_workshop, workshop, sources, shards=few)
        assert len(list((workshop.folder / "out" / "tokens").rglob("*.bin"))) == 2

    @pytest.mark.parametrize("change", [{"name": "renamed"}, {"index": None}], ids=["name", "no index"])
    def test_what_only_the_manifest_says(
        self, done: Any, new_workshop: Callable[[], Any], change: dict[str, Any]
    ) -> None:
        workshop, sources = done
        top = {key: value for key, value in ({"shards": SHARDS, "index": INDEX} | change).items() if value is not None}
        result = workshop.prepare(*sources, **top)
        assert (result.stages, result.finished) == ((), True)
        other = new_workshop()
        other.tokenizer = workshop.tokenizer
        other.prepare(*sources, **top)
        assert workshop.manifest() == other.manifest()

    def test_weights_without_an_index(self, workshop: Any) -> None:
        path, other = workshop.jsonl("a.jsonl", ["a"]), workshop.jsonl("b.jsonl", ["b"])
        for weight in (0.25, 0.5):
            workshop.prepare({"files": [path], "weight": weight}, {"files": [other], "weight": 1 - weight})
            assert [entry["weight"] for entry in workshop.manifest()["sources"]] == [weight, 1 - weight]

    @pytest.mark.parametrize(
        "name",
        [
            "manifest.json",
            "tokenizer/tokenizer.json",
            "tokenizer/facts.json",
            "tokens/s0/*.bin",
            "tokens/s1/*.idx",
            "indices/*/train/s0/sample_index.npy",
            "indices/*/set.json",
            "clean/s0/00000.keys",
            "_stages/tokenize.json",
            "_stages/download.json",
            "_stages/plan.json",
        ],
    )
    @pytest.mark.parametrize("how", ["removed", "cut"])
    def test_mends_what_was_lost(self, done: Any, name: str, how: str) -> None:
        workshop, sources = done
        before = workshop.tree()
        path = sorted((workshop.folder / "out").glob(name))[0]
        content = path.read_bytes()
        path.unlink()
        if how == "cut":
            path.write_bytes(content[: len(content) // 2])
        assert workshop.prepare(*sources, shards=SHARDS, index=INDEX).finished
        assert workshop.tree() == before
        assert verify_corpus(str(workshop.folder / "out")) == []

    def test_moved_inputs_are_the_same_inputs(self, workshop: Any) -> None:
        path = Path(workshop.jsonl("here/a.jsonl", texts(10, 9)))
        workshop.prepare({"files": [str(path)]})
        before = workshop.manifest()
        path.rename(path.parent.parent / "a.jsonl")
        result = workshop.prepare({"files": [str(path.parent.parent / "a.jsonl")]})
        assert result.stages == ()
        assert workshop.manifest() == before


class TestParts:
    SOURCES: tuple[tuple[str, int], ...] = (("a", 10), ("b", 11), ("c", 12))

    def sources(self, workshop: Any) -> list[dict[str, Any]]:
        shared = texts(10, 13)
        return [
            {"id": name, "files": [workshop.jsonl(f"{name}.jsonl", texts(30, seed) + shared)], "weight": 1.0}
            for name, seed in self.SOURCES
        ]

    @pytest.fixture
    def whole(self, new_workshop: Callable[[], Any]) -> tuple[Any, dict[str, str]]:
        workshop = new_workshop()
        workshop.prepare(*self.sources(workshop), shards=SHARDS, index=INDEX)
        return workshop, workshop.tree()

    @pytest.mark.parametrize(
        "steps",
        [
            [{"last": "download"}, {"last": "clean"}, {"last": "tokenize"}, {"last": "index"}, {"last": "blend"}],
            [{"last": "clean"}, {"first": "tokenize"}],
            [{"last": "tokenize"}, {"first": "index", "last": "index"}, {"first": "blend", "last": "blend"}],
            [{"source": "a"}, {"source": "b"}, {"source": "c"}, {}],
            [{"source": "c"}, {"source": "a"}, {}],
            [
                {"source": "b", "last": "clean"},
                {"source": "b"},
                {"last": "clean"},
                {"source": "a"},
                {"first": "tokenize"},
            ],
            [{"last": "clean"}, {"source": "c", "first": "tokenize", "last": "tokenize"}, {}],
            [{}, {"source": "a"}, {}],
        ],
        ids=["stage by stage", "two halves", "from and to", "source by source", "two sources", "mixed", "one", "again"],
    )
    def test_in_parts_it_is_the_same_corpus(self, whole: Any, workshop: Any, steps: list[dict[str, Any]]) -> None:
        sources = self.sources(workshop)
        for number, step in enumerate(steps):
            result = workshop.prepare(*sources, shards=SHARDS, index=INDEX, options=step)
            unfinished = step.get("source") is not None or step.get("last") in {"download", "clean"}
            assert result.finished != unfinished
            assert (workshop.folder / "out" / "manifest.json").exists() or unfinished, number
        assert workshop.tree() == whole[1]

    def test_up_to_tokens_the_manifest_lists_shards_only(self, workshop: Any) -> None:
        sources = self.sources(workshop)
        workshop.prepare(*sources, shards=SHARDS, index=INDEX, options={"last": "tokenize"})
        assert workshop.manifest()["index_set"] is None
        workshop.prepare(*sources, shards=SHARDS, index=INDEX)
        assert workshop.manifest()["index_set"] is not None

    def test_a_stage_that_is_not_finished_is_named(self, workshop: Any) -> None:
        with pytest.raises(CorpusError, match="stage 'download' is not finished for this recipe and these inputs"):
            workshop.prepare(*self.sources(workshop), options={"first": "tokenize"})
        workshop.prepare(*self.sources(workshop), options={"last": "clean"})
        with pytest.raises(CorpusError, match="stage 'tokenize' is not finished"):
            workshop.prepare(*self.sources(workshop), index=INDEX, options={"first": "index"})

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"first": "nope"}, r"--from nope: no such stage; the stages are download, clean, tokenize, index, blend"),
            ({"last": "nope"}, r"--to nope: no such stage"),
            (
                {"first": "tokenize", "last": "clean"},
                r"--from tokenize --to clean: the first stage lies behind the last",
            ),
            ({"last": "index"}, r"--to index: the recipe has no \[index\]"),
            ({"first": "blend"}, r"--from blend: the run ends before it, with tokenize"),
            ({"source": "x"}, r"--source x: the recipe has no such source; it has a, b, c"),
        ],
    )
    def test_parts_that_are_none(self, workshop: Any, options: dict[str, Any], says: str) -> None:
        with pytest.raises(SettingsError, match=says):
            workshop.prepare(*self.sources(workshop), options=options)
        assert not (workshop.folder / "out").exists()

    def test_an_index_needs_every_source(self, workshop: Any) -> None:
        with pytest.raises(SettingsError, match="--to index: an index set needs every source"):
            workshop.prepare(*self.sources(workshop), index=INDEX, options={"last": "index", "source": "a"})


class TestOutput:
    def test_a_folder_with_other_files_is_left_alone(self, workshop: Any) -> None:
        source = {"files": [workshop.jsonl("a.jsonl", ["a"])]}
        workshop.write("out/thesis.tex", b"precious")
        with pytest.raises(
            SettingsError, match=r"output .*/out: holds .*thesis\.tex but no corpus; give an empty or new"
        ):
            workshop.prepare(source)
        assert [path.name for path in (workshop.folder / "out").iterdir()] == ["thesis.tex"]

    def test_a_folder_with_another_folder_is_left_alone(self, workshop: Any) -> None:
        workshop.write("out/tokens/x.bin", b"precious")
        with pytest.raises(SettingsError, match=r"holds .*tokens but no corpus"):
            workshop.prepare({"files": [workshop.jsonl("a.jsonl", ["a"])]})

    def test_an_empty_folder_is_taken(self, workshop: Any) -> None:
        (workshop.folder / "out").mkdir()
        assert workshop.prepare({"files": [workshop.jsonl("a.jsonl", ["a"])]}).finished

    def test_an_output_inside_the_input(self, workshop: Any) -> None:
        workshop.jsonl("data/a.jsonl", ["a"])
        workshop.write("data/b.txt", b"b")
        output = str(workshop.folder / "data" / "corpus")
        first = workshop.prepare({"files": [str(workshop.folder / "data")]}, output=output)
        again = workshop.prepare({"files": [str(workshop.folder / "data")]}, output=output)
        assert (len(first.stages), again.stages) == (3, ())

    def test_nothing_is_written_for_a_run_that_is_refused(self, workshop: Any) -> None:
        path = workshop.jsonl("a.jsonl", ["a"])
        for sources, top in (
            ([{"files": ["no-such-file.jsonl"]}], {}),
            ([{"files": [path]}], {"tokenizer": {"path": str(workshop.tokenizer), "eod": "</eos>"}}),
            ([{"files": [path]}], {"tokenizer": {"path": str(workshop.folder / "no-such-tokenizer.json")}}),
        ):
            with pytest.raises(SettingsError):
                workshop.prepare(*sources, **top)
            assert not (workshop.folder / "out").exists()

    def test_a_change_during_the_run_is_noticed(self, workshop: Any) -> None:
        path = workshop.jsonl("a.jsonl", texts(10, 14))
        workshop.prepare({"files": [path]}, options={"last": "clean"})
        workshop.jsonl("a.jsonl", texts(10, 15))
        with pytest.raises(CorpusError, match="stage 'download' is not finished for this recipe and these inputs"):
            workshop.prepare({"files": [path]}, options={"first": "tokenize"})


class TestMegatron:
    """One JSON lines file and one shard are what Megatron's preprocess_data writes with --append-eod."""

    @pytest.mark.slow
    def test_a_pair_made_by_megatron_is_made_again(self, workshop: Any, shared_data: Path) -> None:
        original = shared_data / "openwebtext_text_document"
        pair = IndexedDataset(str(original))
        folder = workshop.folder / "gpt2"
        folder.mkdir()
        for name in ("vocab.json", "merges.txt"):
            (folder / name).write_bytes((shared_data / f"gpt2-tiny-{name}").read_bytes())
        from tokenizers import ByteLevelBPETokenizer

        tokenizer = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
        starts = pair.pointers // pair.dtype.itemsize
        documents = [
            tokenizer.decode(pair.read(int(start), int(length) - 1).tolist(), skip_special_tokens=False)
            for start, length in zip(starts, pair.lengths)
        ]
        pair.close()
        workshop.prepare(
            {"files": [workshop.jsonl("openwebtext.jsonl", documents)]},
            defaults={"clean": False},
            tokenizer={"path": str(folder), "eod": "<|endoftext|>"},
        )
        made = workshop.folder / "out" / workshop.manifest()["sources"][0]["shards"][0]["path"]
        for kind in (".bin", ".idx"):
            assert Path(f"{made}{kind}").read_bytes() == Path(f"{original}{kind}").read_bytes()

    def test_the_golden_pair(self, workshop: Any, repository: Path) -> None:
        golden = repository / "tests" / "golden"
        workshop.prepare(
            {"files": [str(golden / "megatron_pair.jsonl")]},
            defaults={"clean": False},
            tokenizer={"path": str(golden / "megatron_pair_tokenizer.json"), "eod": "<|endoftext|>"},
        )
        made = workshop.folder / "out" / workshop.manifest()["sources"][0]["shards"][0]["path"]
        for kind in (".bin", ".idx"):
            assert Path(f"{made}{kind}").read_bytes() == (golden / f"megatron_pair{kind}").read_bytes()


class TestLargeDocuments:
    LONG: ClassVar = {
        "one letter": "a" * 5_000_000,
        "no space": "hovercraft" * 500_000,
        "words": "word " * 6_000_000,
        "lines": "a line of code\n" * 300_000,
    }

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", LONG)
    def test_take_bounded_time(self, workshop: Any, kind: str) -> None:
        document = self.LONG[kind]
        path = workshop.jsonl("a.jsonl", ["before", document, "after"])
        recipe = workshop.recipe({"files": [path]})
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = workshop.cli("prepare", recipe, "--quiet", "--runner", "loop", timeout=300)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert (done.returncode, done.stderr) == (0, "")
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20
        assert workshop.manifest()["sources"][0]["documents_kept"] == 3
        pair = IndexedDataset(str(workshop.folder / "out" / "tokens" / "s0" / "s0-00000-of-00001"))
        first, length = int(pair.lengths[0]), int(pair.lengths[1])
        ids = pair.read(first, length - 1)
        pair.close()
        tokenizer = Tokenizer.from_file(str(workshop.tokenizer))
        step = length // 50
        pieces = [ids[at : at + step].tolist() for at in range(0, len(ids), step)]
        assert "".join(tokenizer.decode(piece, skip_special_tokens=False) for piece in pieces) == document


def test_an_input_that_is_damaged_leaves_nothing_that_looks_finished(workshop: Any) -> None:
    packed = gzip.compress(b"".join(b'{"text": "line %d"}\n' % number for number in range(3000)))
    path = workshop.write("a.jsonl.gz", packed[: len(packed) // 2])
    for policy in ("fail", "skip"):
        with pytest.raises(InputError, match=r"a\.jsonl\.gz: the gzip data end before their end mark"):
            workshop.prepare({"files": [path], "bad_records": policy})
        assert not (workshop.folder / "out" / "manifest.json").exists()
        assert not (workshop.folder / "out" / "tokens").exists()
    workshop.prepare({"files": [path], "expect_damaged": ["a.jsonl.gz"]})
    assert 0 < workshop.manifest()["sources"][0]["documents_kept"] < 3000
