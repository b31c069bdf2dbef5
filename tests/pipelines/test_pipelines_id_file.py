"""Ids of documents by record: what is written is found again, by short reads, and damage is named."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.carry_table import Carry
from gristmill.formats.errors import FormatError
from gristmill.formats.recipe import parse_recipe
from gristmill.formats.storage import read_range
from gristmill.pipelines import id_file
from gristmill.pipelines.carried import carried_id, carried_id_text
from gristmill.pipelines.id_file import IdWriter, ids_of
from gristmill.pipelines.job import Job, make_job
from gristmill.pipelines.plan import plan_run
from gristmill.pipelines.records import Batch

IDS = [None, "a", 'q"\\\n\u2028é', 17, 2**80, -1.5, {"n": [1, "id"]}, "", True]


def job_of(workshop: Any, **source: Any) -> Job:
    files = [workshop.write("a.jsonl", b'{"text": "one", "id": "x"}\n')]
    recipe = parse_recipe(workshop.values({"files": files, "id_field": "id", **source}))
    return make_job(recipe, plan_run(recipe), tokenizer=None, engine=None)


def write(workshop: Any, ids: dict[int, Any], cuts: int) -> str:
    """Writes ids in batches of `cuts` records each, of which every third is dropped by a rule; gives the path."""
    job = job_of(workshop)
    (split,) = plan_run(job.recipe).splits
    records = sorted(ids)
    with IdWriter(job, split) as writer:
        for start in range(0, len(records), cuts):
            some = records[start : start + cuts]
            carried = [json.dumps({"id": ids[record], "u": "v"}, separators=(",", ":")).encode() for record in some]
            batch = Batch(["text"] * len(some), some, None, carried)
            left = [record for record in some if record % 3]
            writer.add(batch, batch if len(left) == len(some) else Batch(["text"] * len(left), left))
    path = job.path(writer.name)
    assert writer.facts()[writer.name].size == Path(path).stat().st_size
    return path


def ids_of_records(count: int, seed: int) -> dict[int, Any]:
    draw = random.Random(seed)
    return {record: draw.choice([*IDS, f"doc-{record}"]) for record in sorted(draw.sample(range(count * 2), count))}


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257, 900])
@pytest.mark.parametrize("tail", [64, 64 << 10])
def test_what_was_written_is_found(workshop: Any, monkeypatch: pytest.MonkeyPatch, count: int, tail: int) -> None:
    monkeypatch.setattr(id_file, "_TAIL_BYTES", tail)
    ids = ids_of_records(count, seed=count)
    path = write(workshop, ids, cuts=7)
    expected = {record: own for record, own in ids.items() if record % 3 and own is not None}
    assert ids_of(path, range(2 * count + 5)) == expected
    for record in (0, 1, *list(expected)[:3], *list(expected)[-3:], 2 * count + 4):
        assert ids_of(path, [record]) == {key: own for key, own in expected.items() if key == record}
    data = Path(path).read_bytes()
    assert Path(write(workshop, ids, cuts=300)).read_bytes() == data, "no byte depends on how batches are cut"


def test_a_look_up_reads_little(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(workshop, {record: f"urn:uuid:{record:036}" for record in range(30_000)}, cuts=1000)
    reads: list[int] = []
    inner = read_range

    def counted(name: str, start: int, length: int) -> bytes:
        reads.append(length)
        return inner(name, start, length)

    monkeypatch.setattr(id_file, "read_range", counted)
    assert ids_of(path, [1, 2, 10_000]) == {record: f"urn:uuid:{record:036}" for record in (1, 2, 10_000)}
    assert len(reads) == 3
    assert sum(reads) < 110_000 < Path(path).stat().st_size / 9


def test_the_text_of_an_id_is_that_of_the_line() -> None:
    for own in IDS:
        for rest in ({}, {"z": [1, {"id": 3}]}):
            line = json.dumps({"id": own, **rest}, ensure_ascii=False, separators=(",", ":")).encode()
            text = carried_id_text(line)
            assert (None if text is None else json.loads(text)) == carried_id(line) == own
    assert carried_id_text(b'{"url":"x","id":3}') is None


@pytest.mark.parametrize("damage", [b"", b"short", b"\xff" * 40, b"no line\n" + b"\0" * 12 + b"\1" + b"\0" * 7])
def test_damage_is_named(workshop: Any, damage: bytes) -> None:
    path = workshop.write("x.ids", damage)
    with pytest.raises(FormatError, match=r"x\.ids: damaged file of ids \(.*\); remove it and run again"):
        ids_of(path, [0])


def test_who_keeps_ids(workshop: Any) -> None:
    for source, keeps in (
        ({}, True),
        ({"clean": False}, False),
        ({"clean": {"exact_dedup": False}}, False),
    ):
        job = job_of(workshop, **source)
        assert job.keeps_ids(plan_run(job.recipe).splits[0]) is keeps, source
        assert ("ids" in job.settings["clean"]) is keeps
    for carry in (None, Carry(id_field=None, fields=("id",))):
        recipe = dataclasses.replace(job.recipe, sources=(dataclasses.replace(job.recipe.sources[0], carry=carry),))
        assert "ids" not in make_job(recipe, plan_run(recipe), tokenizer=None, engine=None).settings["clean"]
