"""Copies of sources in the corpus: when they are made and read, and that no later byte depends on them."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from gristmill.formats.errors import InputError, RecipeError
from gristmill.formats.recipe import parse_recipe
from gristmill.pipelines.raw import raw_path

RUNNERS: dict[str, dict[str, Any]] = {
    "this process": {"runner": "loop"},
    "two processes": {"runner": "loop", "max_workers": 2},
    "Beam": {"runner": "FnApiRunner"},
}


def fill(workshop: Any) -> list[dict[str, Any]]:
    """Sources of several formats with copies, empty and bad records."""
    draw = random.Random(5)
    words = ["the", "quick", "fox", "né", "世界", "x = 1"]

    def texts(count: int) -> list[str]:
        own = [" ".join(draw.choices(words, k=draw.randint(1, 40))) for _ in range(count)]
        return [*own, "", own[0]]

    for part in range(3):
        workshop.jsonl(f"web/{part}.jsonl.gz", texts(50), pack=gzip.compress)
    lines = b'oops\n{"text": 5}\n{"text": null}\n{"no": 1}\n{"text": "\\ud800"}\n' * 9
    workshop.write("web/bad.jsonl", lines + json.dumps({"text": "good", "url": "http://x.org/"}).encode())
    table = pa.table({"doc": [{"body": text} for text in texts(90)], "more": [f"m{number}" for number in range(92)]})
    (workshop.folder / "rows").mkdir()
    pq.write_table(table, workshop.folder / "rows" / "a.parquet", row_group_size=10)
    workshop.write("lines/a.txt.zst", zstandard.compress("\n".join(texts(60)).encode()))
    for number in range(5):
        workshop.write(f"code/m{number}.py", f"def f():\n\treturn {number % 4}\n".encode())
    folder = workshop.folder
    return [
        {"id": "web", "files": [f"{folder}/web"], "bad_records": "skip", "max_bad_fraction": 0.5},
        {"id": "rows", "files": [f"{folder}/rows"], "template": "{doc.body}\n{more}", "clean": {"min_chars": 5}},
        {"id": "lines", "files": [f"{folder}/lines"], "document": "line", "clean": False},
        {"id": "code", "files": [f"{folder}/code"]},
    ]


@pytest.fixture(autouse=True)
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 3000)


def later(tree: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in tree.items() if not name.startswith("raw/")}


def copied(sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [source | {"materialize": True} for source in sources]


@pytest.mark.parametrize("options", RUNNERS.values(), ids=RUNNERS)
def test_no_later_byte_depends_on_a_copy(workshop: Any, options: dict[str, Any]) -> None:
    sources = fill(workshop)
    place, copy = workshop.folder / "place", workshop.folder / "copy"
    workshop.prepare(*sources, output=str(place))
    workshop.prepare(*copied(sources), output=str(copy), options=options)
    assert later(workshop.tree(copy)) == workshop.tree(place)
    parts = sorted(path.relative_to(copy).as_posix() for path in (copy / "raw").rglob("*"))
    assert raw_path("rows", 1) in parts
    receipt = json.loads((copy / "_stages" / "download.json").read_bytes())
    assert sorted(receipt["files"]) == [name for name in parts if name.endswith(".parquet")]
    assert len(list((copy / "_stages/items/download").rglob("*.json"))) == len(receipt["files"])


def test_a_copy_is_parquet_for_others(workshop: Any) -> None:
    workshop.prepare({"files": [workshop.jsonl("a.jsonl", ["one", "", "three"])], "materialize": True})
    path = workshop.folder / "out" / raw_path("s0", 0)
    table = pq.read_table(path)
    assert table.to_pydict() == {"record": [0, 2], "text": ["one", "three"], "url": [None, None]}
    assert pq.read_metadata(path).row_group(0).column(1).compression == "ZSTD"
    workshop.prepare({"files": [str(path)]}, output=str(workshop.folder / "other"))
    assert workshop.texts("s0", workshop.folder / "other") == ["one", "three"]


def test_row_groups_are_bounded(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.pipelines.raw._GROUP_CHARS", 1000)
    monkeypatch.setattr("gristmill.pipelines.lines.BLOCK_BYTES", 500)
    monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 1 << 20)
    texts = [f"document {number}" for number in range(500)]
    workshop.prepare({"files": [workshop.jsonl("a.jsonl", texts)], "materialize": True})
    metadata = pq.read_metadata(workshop.folder / "out" / raw_path("s0", 0))
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert len(sizes) >= 5
    assert max(sizes) < 150
    assert workshop.texts("s0") == texts


def test_what_was_copied_is_not_read_again(hub: Any, workshop: Any) -> None:
    texts = [random.Random(number).randbytes(60).hex() for number in range(2000)]
    data = gzip.compress(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts))
    hub.add("a/b", {"train.jsonl.gz": data})
    source = {"dataset": "a/b", "materialize": True}
    workshop.prepare(source, options={"last": "download"})

    def asked() -> int:
        ranges = [found[6:].split("-") for _, path, found in hub.requests if "/resolve/" in path and found]
        hub.reset()
        return sum(int(last) - int(first) + 1 for first, last in ranges)

    assert asked() >= len(data)
    copy = workshop.folder / "out" / raw_path("s0", 0)
    made = copy.stat().st_mtime_ns
    workshop.prepare(source | {"clean": {"min_chars": 3}}, options={"last": "clean"})
    assert asked() < 100
    assert copy.stat().st_mtime_ns == made
    workshop.prepare(source)
    assert copy.stat().st_mtime_ns == made
    assert workshop.texts("s0") == texts


def test_recipes_share_a_download(hub: Any, new_workshop: Callable[[], Any], tmp_path: Path) -> None:
    texts = [random.Random(number).randbytes(60).hex() for number in range(2000)]
    data = gzip.compress(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts))
    hub.add("a/b", {"train.jsonl.gz": data})
    shared = tmp_path / "copies"
    source = {"dataset": "a/b", "copies": str(shared)}
    first, second, third = new_workshop(), new_workshop(), new_workshop()
    first.prepare(source)
    kept = sorted(path.name for path in shared.iterdir())
    assert [name.rpartition(".")[2] for name in kept] == ["json", "parquet"]
    assert not (first.folder / "out/raw").exists()
    assert not any(path.is_file() for path in (first.folder / "out/_stages/items/download").rglob("*"))
    hub.reset()
    second.prepare({**source, "clean": {"min_chars": 3}}, name="another", seed=7)
    large = [
        found for _, path, found in hub.requests if "/resolve/" in path and found and not found.startswith("bytes=0-")
    ]
    assert not large, "the second recipe read the copy"
    third.prepare({"dataset": "a/b"})
    assert first.tree() == third.tree()
    assert first.texts("s0") == second.texts("s0") == texts
    second.prepare({**source, "bad_records": "skip"}, name="another", seed=7)
    assert set(kept) < {path.name for path in shared.iterdir()}, "read in another way, so copied anew"
    copy = shared / kept[1]
    copy.write_bytes(copy.read_bytes()[:-5])
    first.prepare(source, options={"last": "download"})
    first.prepare({**source, "clean": {"min_chars": 1}})
    assert first.texts("s0") == texts


def test_where_copies_are_kept_is_a_place(workshop: Any) -> None:
    with pytest.raises(RecipeError, match=r"copies: says where copies are kept, but materialize = false makes none"):
        parse_recipe(workshop.values({"files": ["x"], "copies": "y", "materialize": False}))


@pytest.mark.parametrize("below", ["", "/copies"])
def test_copies_beside_the_input_are_no_input(workshop: Any, below: str) -> None:
    texts = [f"text {number}" for number in range(30)]
    workshop.jsonl("in/a.jsonl", texts)
    folder = f"{workshop.folder}/in"
    source = {"files": [folder], "copies": f"{folder}{below}"}
    for name in ("first", "second"):
        workshop.prepare(source, output=f"{workshop.folder}/{name}")
        assert workshop.texts("s0", workshop.folder / name) == texts
    assert workshop.tree(workshop.folder / "first") == workshop.tree(workshop.folder / "second")
    assert len(list((workshop.folder / "in").rglob("*.parquet"))) == 1


def test_another_reading_makes_another_copy(workshop: Any) -> None:
    rows = b"".join(json.dumps({"text": f"a{number}", "body": f"b{number}"}).encode() + b"\n" for number in range(9))
    source = {"files": [workshop.write("a.jsonl", rows)], "materialize": True}
    workshop.prepare(source)
    workshop.prepare(source | {"text_field": "body"})
    assert workshop.texts("s0") == [f"b{number}" for number in range(9)]


def test_a_copy_that_nobody_asks_for_goes(workshop: Any) -> None:
    source = {"files": [workshop.jsonl("a.jsonl", ["one", "two"])]}
    workshop.prepare(source)
    before = workshop.tree()
    workshop.prepare(source | {"materialize": True})
    assert (workshop.folder / "out" / raw_path("s0", 0)).is_file()
    assert later(workshop.tree()) == before
    workshop.prepare(source)
    assert workshop.tree() == before
    assert not list((workshop.folder / "out/_stages/items/download").rglob("*.json"))


def test_a_copy_that_is_cut_short_is_made_anew(workshop: Any) -> None:
    source = {"files": [workshop.jsonl("a.jsonl", ["one", "two"])], "materialize": True}
    workshop.prepare(source)
    before = workshop.tree()
    copy = workshop.folder / "out" / raw_path("s0", 0)
    copy.write_bytes(copy.read_bytes()[:-5])
    workshop.prepare(source)
    assert workshop.tree() == before


def test_a_copy_that_rotted_is_named(workshop: Any) -> None:
    texts = [random.Random(number).randbytes(60).hex() for number in range(200)]
    source = {"files": [workshop.jsonl("a.jsonl", texts)], "materialize": True}
    workshop.prepare(source, options={"last": "download"})
    copy: Path = workshop.folder / "out" / raw_path("s0", 0)
    data = bytearray(copy.read_bytes())
    data[len(data) // 2] ^= 0xFF
    copy.write_bytes(data)
    with pytest.raises(InputError, match=r"part-00000.parquet: damaged copy: .*; remove it and run again"):
        workshop.prepare(source)
    copy.unlink()
    workshop.prepare(source)
    assert workshop.texts("s0") == texts


def test_a_bad_record_stops_the_copy_by_policy(workshop: Any) -> None:
    source = {"files": [workshop.write("a.jsonl", b'{"text": "a"}\noops\n')], "materialize": True}
    with pytest.raises(InputError, match=r"a.jsonl:2: not json|a.jsonl:2: .*oops"):
        workshop.prepare(source)
    assert not (workshop.folder / "out" / "manifest.json").exists()
