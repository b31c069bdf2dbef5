"""What a run shows of itself: on a terminal, in lines, as events; and what looking costs."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.receipts import Receipt, write_receipt
from gristmill.pipelines.progress import Progress
from gristmill.pipelines.receipt_watch import ReceiptWatch
from gristmill.pipelines.run_tally import RunTally, number_text, time_text

SLOW = """
import os
import time

def keep(text):
    time.sleep(float(os.environ.get("SECONDS_A_DOCUMENT", "0.4")))
    return text if "drop" not in text else None

keep.version = 1
"""
ESCAPE = re.compile(r"\x1b\[(\d*)([A-Za-z])")


@pytest.fixture
def slow(workshop: Any) -> str:
    """A recipe of three sources, a split each, that takes 0.4 seconds for every document."""
    workshop.write("slow_steps.py", SLOW.encode())
    sources = []
    for number in range(3):
        texts = [f"text {number}", f"{('drop', 'keep', 'drop')[number]} this"]
        path = workshop.jsonl(f"{number}.jsonl", texts)
        sources.append({"id": f"source-{number}", "files": [path], "clean": {"custom": ["slow_steps:keep"]}})
    recipe: str = workshop.recipe(*sources)
    return recipe


class Screen:
    """A terminal of some width, as far as the view needs one: what stands on it after what was written."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines = [""]
        self.row = 0
        self.widest = 0
        self.ups = 0

    def write(self, text: str) -> None:
        for part in re.split(r"(\x1b\[\d*[A-Za-z]|\r|\n)", text):
            escape = ESCAPE.fullmatch(part)
            if escape and escape[2] == "A":
                self.ups += 1
                self.row = max(0, self.row - int(escape[1] or 1))
            elif escape and escape[2] == "J":
                del self.lines[self.row :]
                self.lines.append("")
            elif part == "\n":
                self.row += 1
                if self.row == len(self.lines):
                    self.lines.append("")
            elif part and part != "\r" and not escape:
                self.lines[self.row] += part
                self.widest = max(self.widest, len(self.lines[self.row]))


class Session:
    """A command on a terminal of its own.

    Attributes:
        said: all that it wrote.
        process: it.
    """

    def __init__(self, words: list[str], folder: Path, columns: int = 70, **environment: str) -> None:
        self.said = ""
        self._master, slave = pty.openpty()
        self.resize(columns)
        variables = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gristmill", *words],
            cwd=folder,
            env={**variables, "TERM": "xterm", "PYTHONPATH": str(folder), **environment},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def resize(self, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def until(self, found: Callable[[str], bool], seconds: float = 60) -> str:
        """Reads until something was written, or the command ended."""
        end = time.monotonic() + seconds
        while not found(self.said):
            assert time.monotonic() < end, self.said
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self._master, 65536).decode()
                except OSError:  # the other end is closed
                    break
        return self.said

    def end(self) -> str:
        """Reads to the end; gives all that was written."""
        said = self.until(lambda _: False)
        self.process.wait(60)
        os.close(self._master)
        return said


class TestTerminal:
    def test_the_view_is_drawn_in_place_and_gone_at_the_end(self, workshop: Any, slow: str) -> None:
        session = Session(["prepare", slow, "--runner", "loop"], workshop.folder, columns=150)
        said = session.end()
        assert session.process.returncode == 0, said
        screen = Screen(150)
        screen.write(said)
        assert screen.ups >= 3
        shown = [line for line in screen.lines if line]
        assert shown[0].startswith("test: 3 input files, ")
        assert shown[1].startswith("stages download, clean, tokenize")
        assert [line.split()[2] for line in shown[2:] if line.endswith("is done")] == ["download", "clean", "tokenize"]
        assert "            source-1: 2 documents, 2 kept" in shown
        assert "            source-2: 2 documents, 1 kept, 1 rejected (1 custom.slow_steps:keep)" in shown
        assert shown[-1].startswith("done in ")
        assert "\x1b[1mclean  " in said
        assert re.search(r"  scan: [12] of 3 splits, .*, 1 rejected \(1 custom\.slow_steps:keep\), \d+ s left", said)
        assert re.search(r"    source-2  0 of 1 splits\r\n", said)
        assert "?25l" not in said, "a cursor that is hidden stays hidden when the process is killed"

    def test_it_follows_the_width_and_takes_no_colour_where_none_is_wanted(self, workshop: Any, slow: str) -> None:
        environment = {"NO_COLOR": "1", "SECONDS_A_DOCUMENT": "1"}
        session = Session(["prepare", slow, "--runner", "loop"], workshop.folder, columns=120, **environment)
        session.until(lambda said: "source-2  0 of 1" in said)
        session.resize(24)
        wide = len(session.said)
        session.until(lambda said: "scan: 1 of 3 splits" in said[wide:].partition("\x1b[J")[2])
        session.process.send_signal(signal.SIGINT)
        said = session.end()
        assert "\n  scan: 1 of 3 splits, " in said[:wide], "the line is longer than the terminal gets"
        assert "\n  scan: 1 of 3 splits, \r\n" in said[wide:]
        assert "\x1b[1m" not in said
        screen = Screen(24)
        screen.write(said)
        assert not [line for line in screen.lines if line.startswith(("clean", "  scan"))]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_a_run_that_is_stopped_leaves_the_terminal_whole(self, workshop: Any, slow: str, number: int) -> None:
        session = Session(["prepare", slow, "--runner", "loop"], workshop.folder)
        session.until(lambda said: " of 3 splits, " in said)
        session.process.send_signal(number)
        said = session.end()
        screen = Screen(70)
        screen.write(said)
        assert screen.lines[-1] == "", "the next prompt stands on a line of its own"
        if number == signal.SIGINT:
            assert session.process.returncode == 130
            assert screen.lines[-2].startswith("gristmill: interrupted; ")
            assert re.match(r" +\d+\.\d s  scan: [12] of 3 splits", screen.lines[-3])
            assert not [line for line in screen.lines if line.startswith("clean  ")]

    def test_an_error_stands_alone(self, workshop: Any, slow: str) -> None:
        workshop.write("2.jsonl", b'{"text": "one"}\nnonsense\n')
        session = Session(["prepare", slow, "--runner", "loop"], workshop.folder)
        screen = Screen(200)
        screen.write(session.end())
        assert session.process.returncode == 1
        assert "/2.jsonl:2: malformed json: " in screen.lines[-2]
        assert not [line for line in screen.lines if line.startswith("clean  ")]

    def test_a_dumb_terminal_gets_lines(self, workshop: Any) -> None:
        recipe = workshop.recipe({"files": [workshop.jsonl("a.jsonl", ["a"])]})
        said = Session(["prepare", recipe, "--runner", "loop"], workshop.folder, TERM="dumb").end()
        assert "\x1b" not in said
        assert "clean is done" in said


class TestLines:
    def test_where_there_is_no_terminal(self, workshop: Any) -> None:
        recipe = workshop.recipe({"files": [workshop.jsonl("a.jsonl", ["a", "b", "a"])]}, index={"sequence_length": 2})
        done = workshop.cli("prepare", recipe)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stderr
        ends = [line.split(" s  ", 1)[-1] for line in done.stderr.splitlines() if " is done" in line]
        assert ends[0].startswith("download is done: ")
        assert ends[1] == "clean is done: 3 documents, 2 kept, 1 rejected (1 exact_duplicate)"
        assert ends[2] == "tokenize is done: 2 documents, 4 tokens, 1 shard"
        assert ends[3].startswith("index is done")
        assert ends[4].startswith("blend is done")

    def test_of_a_run_for_one_source(self, workshop: Any) -> None:
        recipe = workshop.recipe(*({"files": [workshop.jsonl(f"{n}.jsonl", ["a", f"b{n}"])]} for n in range(2)))
        done = workshop.cli("prepare", recipe, "--source", "s0")
        assert "  scan: 1 of 1 splits" in done.stderr
        assert "  assemble: 1 of 1 shards" in done.stderr
        assert "s1" not in done.stderr

    @pytest.mark.parametrize("words", [(), ("--log-format", "json")])
    def test_quiet_says_nothing(self, workshop: Any, words: tuple[str, ...]) -> None:
        recipe = workshop.recipe({"files": [workshop.jsonl("a.jsonl", ["a"])]})
        done = workshop.cli("prepare", recipe, "--quiet", *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_events_tell_the_same(workshop: Any) -> None:
    recipe = workshop.recipe({"files": [workshop.jsonl("a.jsonl", ["a", "b", "a"])]}, index={"sequence_length": 2})
    done = workshop.cli("prepare", recipe, "--log-format", "json")
    events = [json.loads(line) for line in done.stderr.splitlines()]
    names = [event["event"] for event in events]
    assert names[0] == "start"
    assert names[-2:] == ["done", "end"]
    ends = {event["stage"]: event for event in events if event["event"] == "stage_end"}
    assert list(ends) == ["download", "clean", "tokenize", "index", "blend"]
    assert ends["clean"]["sources"] == {"s0": {"documents": 3, "kept": 2, "rejected": {"exact_duplicate": 1}}}
    assert ends["tokenize"]["sources"] == {"s0": {"documents": 2, "tokens": 4, "shards": 1}}
    items = {(event["step"], event["item"]): event for event in events if event["event"] == "item"}
    assert items["scan", "s0/00000"]["records"] == 3
    assert items["assemble", "s0/00000-of-00001"]["tokens"] == 4


def test_a_stage_begins_when_the_one_before_was_published(workshop: Any) -> None:
    """However late the watcher, which looks once a second, comes to see it."""
    from gristmill.formats.recipe import parse_recipe
    from gristmill.pipelines.job import make_job
    from gristmill.pipelines.plan import plan_run

    path = workshop.jsonl("a.jsonl", ["x" * 4_000_000])
    recipe = parse_recipe(workshop.values({"files": [path]}, {"files": [workshop.jsonl("b.jsonl", ["x"])]}))
    plan = plan_run(recipe)
    job = make_job(recipe, plan, tokenizer=None, engine=None)
    progress = Progress(job, plan, ["download", "clean"])
    progress._began = progress._stage_began = time.monotonic() - 20
    receipt = workshop.folder / "out" / "_stages" / "download.json"
    write_receipt(str(receipt), Receipt(digest="d", result={"sources": {}}))
    eight_seconds_ago = time.time() - 8
    os.utime(receipt, (eight_seconds_ago, eight_seconds_ago))
    progress._watch.follow("scan", "s0")
    put(workshop.folder / "out", "scan", "s0/00000", records=1)
    progress._look()
    stage, step, *_ = progress._drawing(time.monotonic())
    assert stage == "clean  8 s"
    assert step == "  scan: 1 of 2 splits, 0.5 MB/s, 0 s left"


# ------------------------------------------------------------------------------------------------ the watcher


def put(corpus: Path, step: str, item: str, **result: Any) -> None:
    write_receipt(str(corpus / "_stages" / "items" / step / f"{item}.json"), Receipt(digest="d", result=result))


COST = """
import json, sys, time
from pathlib import Path
from gristmill.formats.receipts import Receipt, write_receipt
from gristmill.pipelines.receipt_watch import ReceiptWatch

corpus, items, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
folder = corpus / "_stages" / "items" / "scan" / "s"
folder.mkdir(parents=True)
receipt = b'{"digest": "d", "files": {}, "settings": {}, "result": {"records": 1}}'
now, opened, scanned = [0.0], [], []
watch = ReceiptWatch(str(corpus), lambda step, item: None, lambda: now[0])
watch.follow("scan", "s")

def hook(name, arguments):
    if name == "open" and str(arguments[0]).startswith(str(folder)) and arguments[1] in ("r", "rb", None):
        opened.append(arguments[0])
    elif name in ("os.scandir", "os.listdir") and str(arguments[0]).startswith(str(folder)):
        scanned.append(len(written))

written, found = [], []
sys.addaudithook(hook)
for second in range(seconds):
    while len(written) < items * (second + 1) // seconds:
        written.append(f"{len(written):05d}")
        (folder / f"{written[-1]}.json").write_bytes(receipt)
    now[0] += 1.0
    found += watch.look(["scan"])
found += watch.look(["scan"], last=True)
idle = len(opened), len(scanned)
time.sleep(0.2)  # the time of the folder is of another tick now
now[0] += 10.0
found += watch.look(["scan"])
settled = len(scanned)
for _ in range(100):
    now[0] += 10.0
    found += watch.look(["scan"])
print(json.dumps({
    "found": len({item.item for item in found}), "opened": len(opened), "listed": sum(scanned),
    "idle": [len(opened) - idle[0], len(scanned) - settled],
}))
"""


def test_looking_costs_one_read_an_item_and_few_names_a_second(tmp_path: Path) -> None:
    items, seconds = 3000, 60
    words = [sys.executable, "-c", COST, str(tmp_path), str(items), str(seconds)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    cost = json.loads(done.stdout)
    assert cost["found"] == cost["opened"] == items
    assert cost["listed"] <= 2000 * seconds + 2 * items
    assert cost["idle"] == [0, 0], "a folder in which nothing happens is neither listed nor read"


class TestWatch:
    def watch(self, corpus: Path, valid: bool = False) -> ReceiptWatch:
        receipt = Receipt(digest="d", result={"records": 9}) if valid else None
        watch = ReceiptWatch(str(corpus), lambda step, item: receipt)
        watch.follow("scan", "s")
        return watch

    def test_what_an_earlier_run_left_counts_where_it_is_valid(self, tmp_path: Path) -> None:
        put(tmp_path, "scan", "s/00000", records=9)
        assert list(self.watch(tmp_path).look(["scan"])) == []
        (found,) = self.watch(tmp_path, valid=True).look(["scan"])
        assert (found.item, found.earlier, found.result) == ("s/00000", True, {"records": 9})

    def test_an_item_that_is_done_again_counts(self, tmp_path: Path) -> None:
        put(tmp_path, "scan", "s/00000", records=1)
        watch = self.watch(tmp_path)
        assert list(watch.look(["scan"])) == []
        put(tmp_path, "scan", "s/00000", records=2)
        (found,) = watch.look(["scan"], last=True)
        assert (found.earlier, found.result) == (False, {"records": 2})

    def test_damaged_and_vanished_receipts_are_passed_over(self, tmp_path: Path) -> None:
        watch = self.watch(tmp_path)
        folder = tmp_path / "_stages" / "items" / "scan" / "s"
        put(tmp_path, "scan", "s/00000", records=1)
        (folder / "00001.json").write_bytes(b"{")
        (folder / "00002.json").symlink_to(folder / "nowhere")
        (folder / ".00003.json.0123.tmp").write_bytes(b"")
        assert [found.item for found in watch.look(["scan"], last=True)] == ["s/00000"]
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        assert list(watch.look(["scan"], last=True)) == []

    def test_a_store(self, bucket: str) -> None:
        now = [0.0]
        watch = ReceiptWatch(f"{bucket}/watched", lambda step, item: None, lambda: now[0])
        watch.follow("scan", "s")
        path = f"{bucket}/watched/_stages/items/scan/s/00000.json"
        write_receipt(path, Receipt(digest="d", result={"records": 4}))
        assert list(watch.look(["scan"])) == [], "not before the time"
        now[0] += 20.0
        (found,) = watch.look(["scan"])
        assert (found.item, found.result) == ("s/00000", {"records": 4})


class TestTally:
    def tally(self, workshop: Any, *sources: Any, encodes_early: bool = False) -> RunTally:
        from gristmill.formats.recipe import parse_recipe
        from gristmill.pipelines.job import make_job
        from gristmill.pipelines.plan import plan_run

        recipe = parse_recipe(workshop.values(*sources))
        plan = plan_run(recipe)
        job = replace(make_job(recipe, plan, tokenizer=None, engine=None), encodes_early=encodes_early)
        return RunTally(job, plan, {"scan": "splits", "encode": "splits", "assemble": "shards"})

    def found(self, step: str, item: str, *, earlier: bool = False, **result: Any) -> Any:
        from gristmill.pipelines.receipt_watch import FoundItem

        return FoundItem(step=step, item=item, result=result, earlier=earlier)

    def test_rates_are_those_of_this_run(self, workshop: Any) -> None:
        paths = [workshop.jsonl(f"{n}.jsonl", ["x" * 500_000] * 2) for n in range(4)]
        tally = self.tally(workshop, *({"files": [path]} for path in paths))
        assert tally.add(self.found("scan", "s0/00000", earlier=True, records=2, dropped={"a": 1}))
        assert tally.add(self.found("scan", "s1/00000", records=2, tokens=3_000_000, dropped={"a": 2, "b": 1}))
        assert not tally.add(self.found("scan", "s1/00000", records=2)), "once is enough"
        assert not tally.add(self.found("scan", "s9/00000")), "of another plan"
        step = tally.steps["scan"]
        size = Path(paths[0]).stat().st_size
        assert step.line(2.0) == (
            f"2 of 4 splits, {size / 2e6:.1f} MB/s, 1.5 M tokens/s, 4 rejected (3 a, 1 b), 4 s left"
        )
        fields = step.fields(2.0)
        assert (fields["done"], fields["of"], fields["earlier"], fields["records"]) == (2, 4, 1, 4)
        assert fields["bytes_per_second"] == round(size / 2)
        assert fields["sources"]["s1"]["rejected"] == {"a": 2, "b": 1}
        assert step.source_lines()[0].startswith("s2  0 of 1 splits"), "what is not finished comes first"

    def test_there_is_no_rate_before_a_second_is_over(self, workshop: Any) -> None:
        tally = self.tally(workshop, *({"files": [workshop.jsonl(f"{n}.jsonl", ["x" * 500_000])]} for n in range(2)))
        tally.add(self.found("scan", "s0/00000", records=1, tokens=500_000))
        step = tally.steps["scan"]
        assert step.line(0.001) == step.line(0.9) == "1 of 2 splits"
        told = ("bytes_per_second", "tokens_per_second", "seconds_left")
        assert [step.fields(0.9)[name] for name in told] == [None, None, None]
        assert step.line(1.0) == "1 of 2 splits, 0.5 MB/s, 500 k tokens/s, 1 s left"

    def test_tokens_that_the_scan_made_are_no_rate_of_encoding(self, workshop: Any) -> None:
        tally = self.tally(workshop, {"files": [workshop.jsonl("a.jsonl", ["a"])]}, encodes_early=True)
        for step in ("scan", "encode"):
            tally.add(self.found(step, "s0/00000", tokens=700))
        assert "350 tokens/s" in tally.steps["scan"].line(2.0)
        assert tally.steps["encode"].line(2.0) == "1 of 1 splits"
        assert tally.steps["encode"].source_lines() == ["s0  1 of 1 splits, 700 tokens"]

    def test_a_shard_says_how_many_there_are(self, workshop: Any) -> None:
        tally = self.tally(workshop, {"files": [workshop.jsonl("a.jsonl", ["a"])]})
        assert tally.steps["assemble"].line(1.0) == "0 shards"
        tally.add(self.found("assemble", "s0/00003-of-00016", tokens=5))
        assert tally.steps["assemble"].line(1.0) == "1 of 16 shards, 5 tokens/s, 15 s left"

    def test_tables_count_by_their_groups_of_rows(self, workshop: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = workshop.folder / "a.parquet"
        table = pa.table({"text": ["x" * 20_000_000] * 4})
        pq.write_table(table, path, row_group_size=1, compression="none", use_dictionary=False)
        tally = self.tally(workshop, {"files": [str(path)]})
        source = tally.steps["scan"].sources["s0"]
        assert source.expected == 4
        assert source.total_bytes == path.stat().st_size // 4 * 4


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (1234, "1.23 k"), (4.56e6, "4.56 M"), (7.8e10, "78 G")]
)
def test_numbers(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
