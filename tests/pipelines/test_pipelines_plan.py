"""Cutting inputs into splits: by the inputs alone, large files cut, small ones put together."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import FormatError, InputError
from gristmill.formats.recipe import Recipe, parse_recipe
from gristmill.pipelines import plan as module
from gristmill.pipelines.plan import Plan, plan_run, planned_splits, read_plan, write_plan


def recipe(*sources: dict[str, Any]) -> Recipe:
    return parse_recipe(
        {
            "name": "test",
            "output": "somewhere/else",
            "tokenizer": {"path": "t.json"},
            "sources": [{"id": f"s{number}"} | source for number, source in enumerate(sources)],
        }
    )


def planned(*sources: dict[str, Any]) -> Plan:
    return plan_run(recipe(*sources))


def parts(plan: Plan) -> list[list[tuple[str, int, int]]]:
    return [[(extent.relative, extent.start, extent.end) for extent in split.extents] for split in plan.splits]


@pytest.fixture
def small_splits(monkeypatch: pytest.MonkeyPatch) -> int:
    """Splits of 1000 bytes, so that files of some kilobytes are large."""
    monkeypatch.setattr(module, "SPLIT_BYTES", 1000)
    return 1000


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, int], str]:
    def write(name: str, size: int) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        return str(path)

    return write


def parquet(path: Path, groups: list[int], text: str = "word") -> str:
    writer = pq.ParquetWriter(path, pa.schema([("text", pa.string())]), use_dictionary=False, compression="none")
    for rows in groups:
        writer.write_table(pa.table({"text": pa.array([f"{text} {row}" for row in range(rows)], pa.string())}))
    writer.close()
    return str(path)


class TestCuts:
    def test_a_large_file_is_cut_into_equal_pieces(self, put: Callable[[str, int], str], small_splits: int) -> None:
        plan = planned({"files": [put("a.jsonl", 2500)]})
        assert parts(plan) == [[("a.jsonl", 0, 833)], [("a.jsonl", 833, 1666)], [("a.jsonl", 1666, 2500)]]
        assert not any(extent.whole for split in plan.splits for extent in split.extents)

    def test_a_file_of_just_the_size_is_not_cut(self, put: Callable[[str, int], str], small_splits: int) -> None:
        plan = planned({"files": [put("a.jsonl", 1000)]})
        assert parts(plan) == [[("a.jsonl", 0, 1000)]]
        assert plan.splits[0].extents[0].whole

    def test_small_files_share_a_split(self, put: Callable[[str, int], str], tmp_path: Path, small_splits: int) -> None:
        for number in range(7):
            put(f"d/{number}.jsonl", 300)
        plan = planned({"files": [str(tmp_path / "d")]})
        assert [len(split.extents) for split in plan.splits] == [3, 3, 1]

    def test_files_that_cannot_be_cut_stay_whole(
        self, put: Callable[[str, int], str], tmp_path: Path, small_splits: int
    ) -> None:
        put("d/a.txt", 3000)
        put("d/b.py", 3000)
        (tmp_path / "d" / "c.jsonl").write_bytes(b"\x1f\x8b\x08" + bytes(3000))
        assert parts(planned({"files": [str(tmp_path / "d")]})) == [
            [("a.txt", 0, 3000)],
            [("b.py", 0, 3000)],
            [("c.jsonl", 0, 3003)],
        ]

    def test_text_of_lines_is_cut(self, put: Callable[[str, int], str], small_splits: int) -> None:
        plan = planned({"files": [put("a.txt", 2000)], "document": "line"})
        assert parts(plan) == [[("a.txt", 0, 1000)], [("a.txt", 1000, 2000)]]

    def test_a_split_holds_a_bounded_number_of_files(self, put: Callable[[str, int], str], tmp_path: Path) -> None:
        for number in range(4100):
            put(f"d/{number:04d}.py", 1)
        plan = planned({"files": [str(tmp_path / "d")]})
        assert [len(split.extents) for split in plan.splits] == [4096, 4]

    def test_an_empty_file_is_a_split_too(self, put: Callable[[str, int], str]) -> None:
        assert parts(planned({"files": [put("a.jsonl", 0)]})) == [[("a.jsonl", 0, 0)]]

    def test_sources_do_not_share_a_split(self, put: Callable[[str, int], str]) -> None:
        plan = planned({"files": [put("a.jsonl", 10)]}, {"files": [put("b.jsonl", 10)]})
        assert [(split.number, split.source, split.part) for split in plan.splits] == [(0, 0, 0), (1, 1, 0)]

    @given(sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=12))
    @settings(max_examples=60, deadline=None)
    def test_every_byte_is_in_one_split(self, tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
        folder = tmp_path_factory.mktemp("sizes")
        for number, size in enumerate(sizes):
            (folder / f"{number:02d}.jsonl").write_bytes(bytes(size))
        before, module.SPLIT_BYTES = module.SPLIT_BYTES, 1000
        try:
            plan = planned({"files": [str(folder)]})
        finally:
            module.SPLIT_BYTES = before
        assert all(sum(end - start for _, start, end in split) <= 1000 for split in parts(plan))
        flat = [extent for split in parts(plan) for extent in split]
        for number, size in enumerate(sizes):
            own = [(start, end) for name, start, end in flat if name == f"{number:02d}.jsonl"]
            assert own[0][0] == 0
            assert own[-1][1] == size
            assert all(end == start for (_, end), (start, _) in itertools.pairwise(own))
        assert [name for name, _, _ in flat] == sorted(name for name, _, _ in flat)


class TestParquet:
    def test_row_groups_are_kept_together_up_to_the_aim(self, tmp_path: Path, small_splits: int) -> None:
        path = parquet(tmp_path / "a.parquet", [20] * 10)
        size = pq.read_metadata(path).row_group(0).total_byte_size
        together = small_splits // size
        assert together > 1
        found = [(start, end) for split in parts(planned({"files": [path]})) for _, start, end in split]
        bounds = [*range(0, 10, together), 10]
        assert found == list(itertools.pairwise(bounds))

    def test_a_row_group_larger_than_the_aim_is_alone(self, tmp_path: Path, small_splits: int) -> None:
        path = parquet(tmp_path / "a.parquet", [5, 500, 5])
        assert [split[0][1:] for split in parts(planned({"files": [path]}))] == [(0, 1), (1, 2), (2, 3)]

    @pytest.mark.parametrize("groups", [[], [0]])
    def test_a_file_without_rows_is_read_too(self, tmp_path: Path, groups: list[int]) -> None:
        plan = planned({"files": [parquet(tmp_path / "a.parquet", groups)]})
        assert len(plan.splits) == 1
        assert plan.splits[0].extents[0].whole

    @pytest.mark.parametrize("keep", [0, 3, 0.5, 0.99])
    def test_a_file_cut_short_is_named(self, tmp_path: Path, keep: float) -> None:
        path = tmp_path / "a.parquet"
        parquet(path, [100])
        data = path.read_bytes()
        path.write_bytes(data[: int(keep if keep > 1 or not keep else keep * len(data))])
        with pytest.raises(InputError, match=r"a\.parquet: cannot be read as Parquet"):
            planned({"files": [str(path)]})


class TestDigest:
    def test_it_follows_content_and_not_place(self, tmp_path: Path) -> None:
        for folder in ("one", "two"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "a.jsonl").write_bytes(b'{"text": "a"}\n')
        one, two = (planned({"files": [str(tmp_path / folder)]}) for folder in ("one", "two"))
        assert one.digest() == two.digest()
        (tmp_path / "two" / "a.jsonl").write_bytes(b'{"text": "b"}\n')
        assert one.digest() != planned({"files": [str(tmp_path / "two")]}).digest()

    @pytest.mark.parametrize(
        ("settings", "changes"),
        [
            ({"weight": 0.5}, False),
            ({"max_epochs": 3}, False),
            ({"text_field": "body"}, True),
            ({"clean": False}, True),
            ({"clean": {"min_chars": 1}}, True),
            ({"bad_records": "skip"}, True),
            ({"invalid_text": "replace"}, True),
            ({"document": "line"}, True),
            ({"expect_damaged": ["a.jsonl"]}, True),
        ],
    )
    def test_it_follows_what_decides_the_documents(
        self, put: Callable[[str, int], str], settings: dict[str, Any], changes: bool
    ) -> None:
        path = put("a.jsonl", 100)
        assert (planned({"files": [path]}).digest() != planned({"files": [path], **settings}).digest()) == changes


def test_a_plan_is_read_back(put: Callable[[str, int], str], tmp_path: Path, small_splits: int) -> None:
    plan = planned({"files": [put("a.jsonl", 2500), put("b.txt", 10)]}, {"files": [put("c.py", 10)]})
    write_plan(str(tmp_path / "out"), plan)
    assert read_plan(str(tmp_path / "out")) == plan
    assert planned_splits(str(tmp_path / "out"), plan.digest()) == plan.splits
    with pytest.raises(FormatError, match=r"plan\.json: is the plan of another run by now; start the run again"):
        planned_splits(str(tmp_path / "out"), "another")


def test_the_own_output_is_no_input(tmp_path: Path) -> None:
    for name in ("data/a.jsonl", "data/out/manifest.json", "data/out/tokenizer/tokenizer.json", "data/outer/b.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}\n")
    values = {
        "name": "test",
        "output": str(tmp_path / "data" / "out"),
        "tokenizer": {"path": "t.json"},
        "sources": [{"id": "s", "files": [str(tmp_path / "data")]}],
    }
    assert [file.relative for file in plan_run(parse_recipe(values)).inputs[0]] == ["a.jsonl", "outer/b.jsonl"]
