"""Closing a stage: every document must be accounted for, or nothing is finished."""

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.errors import CorpusError, DataError, FormatError, InputError
from gristmill.formats.recipe import parse_recipe
from gristmill.pipelines.dedup import LOSER_DTYPE, write_drops
from gristmill.pipelines.encode import encode_split
from gristmill.pipelines.encoders import TOKENIZER_FOLDER, encoder_of
from gristmill.pipelines.job import Job, make_job
from gristmill.pipelines.plan import Split, plan_run, write_plan
from gristmill.pipelines.scan import scan_split
from gristmill.pipelines.shards import assemble_shard, plan_shards
from gristmill.pipelines.stages import close_clean, close_download, close_tokenize, require_stage, valid_stage
from gristmill.tokenize.engine import choose_engine
from gristmill.tokenize.load import resolve_tokenizer
from gristmill.tokenize.resolved import write_resolved

Results = list[dict[str, Any]]


class Run:
    """A corpus of two sources, brought as far as a test needs."""

    def __init__(self, workshop: Any, more: bytes = b"", *, early: bool = False, **settings: Any) -> None:
        web = ["one", "two", "two", "", "three " * 30]
        sources = [
            {"files": [workshop.jsonl("a.jsonl", web, pack=lambda lines: lines + more)]} | settings,
            {"files": [workshop.jsonl("b.jsonl", ["two", "four"])]},
        ]
        output = str(workshop.folder / ("early" if early else "out"))
        recipe = parse_recipe(workshop.values(*sources, shards={"target_tokens": 20}, output=output))
        plan = plan_run(recipe)
        resolved = resolve_tokenizer(recipe.tokenizer.path, recipe.tokenizer.eod)
        job = make_job(recipe, plan, tokenizer=resolved, engine=choose_engine(resolved).engine)
        self.job: Job = dataclasses.replace(job, encodes_early=early)
        self.splits: tuple[Split, ...] = plan.splits
        write_plan(self.job.corpus, plan)
        write_resolved(resolved, self.job.path(TOKENIZER_FOLDER))

    def clean(self) -> tuple[Results, Results]:
        wanted = [split for split in self.splits if self.job.scans(split)]
        lost = {1: [np.array([(0, 1)], LOSER_DTYPE).tobytes()]} if len(wanted) == 2 else {}
        scans = [scan_split(self.job, split) for split in wanted]
        return (
            scans,
            [
                write_drops(self.job, split, scan, lost.get(split.number, []))
                for split, scan in zip(wanted, scans, strict=True)
            ],
        )

    def tokenize(self) -> tuple[Results, Results]:
        encodes = [encode_split(self.job, split) for split in self.splits]
        return encodes, [assemble_shard(self.job, plan) for plan in plan_shards(self.job, encodes)]


@pytest.fixture
def run(workshop: Any) -> Run:
    return Run(workshop)


@pytest.fixture
def cleaned(run: Run) -> Run:
    close_clean(run.job, *run.clean())
    return run


class TestClean:
    def test_what_it_adds_up_to(self, run: Run) -> None:
        sources = close_clean(run.job, *run.clean())["sources"]
        assert sources["s0"] | {"read": ""} == {
            "records": 5,
            "kept": 3,
            "bad": 0,
            "dropped": {"empty": 1, "exact_duplicate": 1},
            "counted": {},
            "read": "",
            "text": {"characters_in": 189, "bytes_in": 189, "characters_kept": 186, "bytes_kept": 186},
        }
        assert sources["s1"]["dropped"] == {"exact_duplicate": 1}
        assert valid_stage(run.job, "clean") is not None

    @pytest.mark.parametrize(
        "change",
        [
            lambda scans, drops: scans[0].update(kept=4),
            lambda scans, drops: scans[0].update(records=6),
            lambda scans, drops: scans[0]["dropped"].update(empty=2),
            lambda scans, drops: drops[1].update(copies=0) or scans[1].update(kept=1),
        ],
    )
    def test_what_does_not_add_up(self, run: Run, change: Callable[[Results, Results], None]) -> None:
        scans, drops = copy.deepcopy(run.clean())
        change(scans, drops)
        with pytest.raises(
            DataError, match=r"source 's[01]': \d records came in, but \d were kept and \d dropped; this"
        ):
            close_clean(run.job, scans, drops)
        assert valid_stage(run.job, "clean") is None

    @pytest.mark.parametrize("missing", [0, 1])
    def test_a_result_that_is_missing(self, run: Run, missing: int) -> None:
        results = run.clean()
        results[missing].pop()
        with pytest.raises(DataError, match=r"scans and \d drop lists for 2 splits"):
            close_clean(run.job, *results)

    def test_leftovers_of_earlier_plans_are_removed(self, run: Run) -> None:
        strangers = [
            Path(run.job.path(name)) for name in ("clean/s0/00001.keys", "clean/old/0.drops", "rejected/old/1.jsonl")
        ]
        for path in strangers:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"old")
        close_clean(run.job, *run.clean())
        assert not any(path.exists() for path in strangers)
        assert not strangers[1].parent.exists()
        assert Path(run.job.path("clean/s0/00000.keys")).exists()


class TestTokenize:
    def test_what_it_adds_up_to(self, cleaned: Run) -> None:
        sources = close_tokenize(cleaned.job, *cleaned.tokenize())["sources"]
        assert [(source["id"], source["records"], source["kept"]) for source in sources] == [("s0", 5, 3), ("s1", 2, 1)]
        assert sources[0]["dropped"] == {"empty": 1, "exact_duplicate": 1}
        assert all(shard["eod_tokens"] == shard["documents"] for source in sources for shard in source["shards"])

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda encodes, shards: encodes.pop(), "1 encoded splits for 2 planned"),
            (
                lambda encodes, shards: encodes[0].update(documents=2),
                "5 records came in, but 2 were kept and 2 dropped",
            ),
            (
                lambda encodes, shards: shards[0].update(documents=9),
                "shards hold .* documents and .* tokens, but 3 and",
            ),
            (lambda encodes, shards: shards.pop(0), "shards hold .* documents and .* tokens, but 3 and"),
            (lambda encodes, shards: shards[0].update(tokens=1), "shards hold 3 documents and .* tokens, but 3 and"),
            (
                lambda encodes, shards: encodes[0].update(inputs=[[0, "0" * 32, 5]]),
                "5 records were scanned, but reading again gave 5 or other bytes; an input changed during the run",
            ),
            (
                lambda encodes, shards: encodes[0].update(records=4),
                "5 records were scanned, but reading again gave 4 or other bytes",
            ),
        ],
    )
    def test_what_does_not_add_up(self, cleaned: Run, change: Callable[[Results, Results], object], says: str) -> None:
        encodes, shards = copy.deepcopy(cleaned.tokenize())
        change(encodes, shards)
        with pytest.raises(DataError, match=says):
            close_tokenize(cleaned.job, encodes, shards)
        assert valid_stage(cleaned.job, "tokenize") is None

    def test_an_input_that_changes_between_two_readings(self, cleaned: Run) -> None:
        path = Path(cleaned.splits[0].extents[0].path)
        path.write_bytes(path.read_bytes().replace(b"one", b"eno"))
        with pytest.raises(InputError, match=r"an input changed during the run\. Start again"):
            close_tokenize(cleaned.job, *cleaned.tokenize())

    def test_an_input_that_shrinks_between_two_readings(self, cleaned: Run) -> None:
        path = Path(cleaned.splits[0].extents[0].path)
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
        with pytest.raises(InputError, match="5 records were scanned, but reading again gave 1 or other bytes"):
            close_tokenize(cleaned.job, *cleaned.tokenize())

    def test_bad_records_of_a_source_that_is_not_cleaned(self, workshop: Any) -> None:
        run = Run(workshop, more=b"oops\n", clean=False, bad_records="skip", max_bad_fraction=0.1)
        close_clean(run.job, *run.clean())
        with pytest.raises(DataError, match=r"source 's0': 1 of 6 records are bad \(.*1 malformed_json\)"):
            close_tokenize(run.job, *run.tokenize())


def test_a_stage_that_must_be_there(run: Run) -> None:
    with pytest.raises(CorpusError, match="stage 'download' is not finished for this recipe and these inputs; run"):
        require_stage(run.job, "download")
    close_download(run.job)
    assert require_stage(run.job, "download").result["sources"]["s0"]["files"] == 1


def test_a_damaged_plan_is_named(run: Run) -> None:
    Path(run.job.path("_stages", "plan.json")).write_bytes(b'{"inputs": [')
    with pytest.raises(FormatError, match=r"plan\.json: damaged plan \(JSONDecodeError: .*; start the run again"):
        close_download(run.job)


class TestEncode:
    def test_finished_items_are_not_done_again(self, cleaned: Run) -> None:
        first = cleaned.tokenize()
        made = [path for folder in ("spill", "tokens") for path in Path(cleaned.job.path(folder)).rglob("*.*")]
        times = [path.stat().st_mtime_ns for path in made]
        assert cleaned.tokenize() == first
        assert [path.stat().st_mtime_ns for path in made] == times
        assert len(times) > 8

    @pytest.mark.parametrize("early", [False, True])
    @pytest.mark.parametrize("kind", ["tok", "doc", "kept"])
    def test_a_lost_spill_is_made_again(self, workshop: Any, kind: str, early: bool) -> None:
        run = Run(workshop, early=early)
        run.clean()
        first = run.tokenize()
        (path,) = Path(run.job.path("spill/s0")).glob(f"00000-*.{kind}")
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        again = run.tokenize()
        assert again[1] == first[1]
        if early and kind != "kept":
            assert again[0][0].pop("tokens_at") != first[0][0].pop("tokens_at"), "it is encoded by itself"
        else:
            assert path.read_bytes() == content
        assert again[0] == first[0]

    def test_who_encodes_is_not_seen(self, workshop: Any) -> None:
        lines = [f"some text {number % 7} {'<|endoftext|>' * (number % 3)}" for number in range(40)] + ["only here"]
        more = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in lines)
        recorded = []
        for early in (False, True):
            run = Run(workshop, more, early=early)
            _, drops = run.clean()
            encodes, shards = run.tokenize()
            assert sum(int(drop["copies"]) for drop in drops) > 0
            assert encodes[0]["control_hits"] > 0
            spills = {path.name.split("-")[1][:12] for path in Path(run.job.path("spill")).rglob("*.tok")}
            kept = {path.name.split("-")[1][:12] for path in Path(run.job.path("spill")).rglob("*.kept")}
            assert (spills == kept) != early
            bins = {shard["path"]: Path(run.job.path(f"{shard['path']}.bin")).read_bytes() for shard in shards}
            recorded.append(([{**encode, "tokens_at": ""} for encode in encodes], shards, bins))
        assert recorded[0] == recorded[1]

    def test_another_tokenizer_in_the_corpus_is_refused(self, cleaned: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gristmill.pipelines.encoders._ENCODERS", {})  # as in a worker that begins
        other = resolve_tokenizer(cleaned.job.recipe.tokenizer.path, 5)
        write_resolved(other, cleaned.job.path(TOKENIZER_FOLDER))
        with pytest.raises(CorpusError, match=r"but the run was planned with .* another run writes to the same output"):
            encoder_of(cleaned.job)

    def test_a_pair_without_its_ends_is_refused(self, cleaned: Run) -> None:
        encodes, _ = cleaned.tokenize()
        (path,) = Path(cleaned.job.path("spill/s0")).glob("00000-*.tok")
        path.write_bytes(b"\x05\x00" * (len(path.read_bytes()) // 2))
        for receipt in Path(cleaned.job.path("_stages/items/assemble")).rglob("*.json"):
            receipt.unlink()
        with pytest.raises(FormatError, match=r"s0-00000-of-0000\d: 0 EODs for \d documents; each must end with one"):
            assemble_shard(cleaned.job, plan_shards(cleaned.job, encodes)[0])
