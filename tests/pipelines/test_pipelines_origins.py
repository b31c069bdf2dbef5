"""From a document back to its record: the `.rec` files of a corpus against the inputs themselves."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.formats.manifest import read_manifest
from gristmill.formats.origins import OriginFile, origins_path


@pytest.fixture(autouse=True)
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of some hundred bytes, so that files are cut and put together."""
    monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 700)


def inputs_of(workshop: Any) -> tuple[list[dict[str, Any]], dict[str, dict[str, list[str]]]]:
    """Sources, and by source and file the texts of all its records, those that will be left out included."""
    web = {
        f"web/{part}.jsonl": [f"web text {part} {place % 17} {'word ' * (place % 5)}" for place in range(10 + 9 * part)]
        for part in range(4)
    }
    web["web/1.jsonl"][3:5] = ["", "x"]  # left out, but counted
    for name, texts in web.items():
        rows = [json.dumps({"text": text}) for text in texts]
        rows[2:2] = ["  ", '{"no": 1}'] if name == "web/2.jsonl" else []  # the first is blank: no record
        workshop.write(name, ("\n".join(rows) + "\n").encode())
    web["web/2.jsonl"][2:2] = ["{no text}"]
    table = [f"row {number} {'of parquet ' * (number % 7)}" for number in range(60)]
    (workshop.folder / "table").mkdir()
    pq.write_table(pa.table({"text": table}), workshop.folder / "table" / "a.parquet", row_group_size=7)
    code = {f"code/m{number}.py": [f"def f():\n    return {number % 20}\n"] for number in range(30)}
    for name, (text,) in code.items():
        workshop.write(name, text.encode())
    lines = [f"line {number % 25}" for number in range(70)]
    workshop.write("lines/a.txt", ("\n".join(lines) + "\n").encode())
    folder = workshop.folder
    sources: list[dict[str, Any]] = [
        {"id": "web", "files": [f"{folder}/web"], "bad_records": "skip", "max_bad_fraction": 0.1},
        {"id": "table", "files": [f"{folder}/table/*"], "clean": False},
        {"id": "code", "files": [f"{folder}/code"]},
        {"id": "lines", "files": [f"{folder}/lines/*"], "document": "line"},
    ]
    return sources, {"web": web, "table": {"a.parquet": table}, "code": code, "lines": {"a.txt": lines}}


@pytest.mark.parametrize("parts", [("tokenize",), ("clean", "tokenize")], ids=["read once", "read twice"])
def test_every_document_leads_to_its_record(workshop: Any, parts: tuple[str, ...]) -> None:
    """Whether the scan encodes too, or a later run reads the input again."""
    sources, texts = inputs_of(workshop)
    top = {"defaults": {"clean": {"min_chars": 3}}, "shards": {"target_tokens": 400}}
    for last in parts:
        workshop.prepare(*sources, **top, options={"last": last})
    corpus = str(workshop.folder / "out")
    manifest = read_manifest(corpus)
    cut = 0
    for source in manifest.sources:
        decoded = iter(workshop.texts(source.id))
        files = [entry.path for entry in source.inputs]
        by_name = {Path(name).name: found for name, found in texts[source.id].items()}
        seen = []
        for shard in source.shards:
            assert shard.rec is not None
            origins = OriginFile(origins_path(f"{corpus}/{shard.path}"))
            places = [origins.place(number) for number in range(shard.documents)]
            for place in places:
                assert by_name[Path(files[place.input]).name][place.record] == next(decoded)
            for place, address in ((places[0], shard.first), (places[-1], shard.last)):
                assert (files[place.input], place.split, place.split_record) == (
                    address.input,
                    address.split,
                    address.record,
                )
            seen += [(place.input, place.record) for place in places]
            cut += any(place.record != place.split_record for place in places)
        assert next(decoded, None) is None
        assert seen == sorted(set(seen))
    assert cut > 5, "most files are cut or put together"
