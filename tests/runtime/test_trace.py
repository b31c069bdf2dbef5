"""Tracing: what is said of a step equals what a training loop of those batch sizes is given."""

import argparse
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gristmill.formats.errors import SettingsError
from gristmill.runtime import StreamSource, open_corpus
from gristmill.runtime import trace as trace_module
from gristmill.runtime.trace import count_sources, row_lines, source_lines, trace


@pytest.fixture(scope="module")
def prepared(new_workshop: Callable[[], Any]) -> Any:
    """A corpus of two sources, in the folder `out`: 60 training samples of 16 tokens."""
    workshop = new_workshop()
    for name, count in (("web", 60), ("code", 30)):
        workshop.jsonl(f"{name}.jsonl", [f"{name} {number} jumps over the lazy dog" for number in range(count)])
    sources = [{"id": name, "files": [f"{workshop.folder}/{name}.jsonl"], "weight": 0.5} for name in ("web", "code")]
    index = {"sequence_length": 16, "samples": 60, "splits": "8,2"}
    workshop.prepare(*sources, index=index, shards={"target_tokens": 300})
    return workshop


def said(capsys: pytest.CaptureFixture[str], corpus: str, *words: str) -> list[str]:
    parser = argparse.ArgumentParser()
    trace_module.add_arguments(parser)
    assert trace_module.run(parser.parse_args([corpus, *words])) == 0
    return capsys.readouterr().out.splitlines()


def test_a_sample(prepared: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stream = open_corpus(prepared.folder / "out").stream()
    for row in (0, 7, 59):
        head, title, *lines = said(capsys, f"{prepared.folder}/out", "--sample", str(row))
        assert head == f"test, train, {stream.fingerprint[:12]}: 60 samples of 16 tokens"
        assert title == f"sample {row}"
        assert lines == list(row_lines(stream.describe(row)))
        assert all(re.fullmatch(r"  .*: (web|code), tokens/\1/.*; \1\.jsonl, record \d+", line) for line in lines)


def test_text_is_shown_on_request(prepared: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stream = open_corpus(prepared.folder / "out").stream()
    lines = said(capsys, f"{prepared.folder}/out", "--sample", "3", "--text")[2:]
    assert lines[1::2] == [f"    {piece.text!r}" for piece in stream.describe(3, text=True)]
    assert "dog<|endoftext|>" in "".join(lines)


def test_the_steps_of_a_schedule_are_those_of_a_loop(prepared: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Batches of 4 up to step 3, then of 8, against batches made by Grain from the same rows."""
    import grain

    corpus = f"{prepared.folder}/out"
    rows = iter(grain.MapDataset.source(StreamSource(open_corpus(corpus).stream())))
    stream = open_corpus(corpus).stream()
    words = ("--batch-schedule", "0:4,3:8")
    at = 0
    for step, batch in enumerate([4, 4, 4, 8, 8, 8]):
        head, *lines = said(capsys, corpus, "--step", str(step), *words)
        assert head.endswith(f": step {step}, samples {at} to {at + batch - 1}")
        titles = [line for line in lines if not line.startswith(" ")]
        assert titles == [f"sample {at + row}, row {row} of the batch" for row in range(batch)]
        for row in range(batch):
            inputs = next(rows)["inputs"]
            (head_of_one, title, *one) = said(capsys, corpus, "--step", str(step), "--row", str(row), *words)
            assert (head_of_one, title) == (head, titles[row])
            assert one == list(row_lines(stream.describe(at + row)))
            assert np.array_equal(stream.read([at + row])[0, :-1], inputs)
        at += batch


def test_the_sources_of_steps_are_counted(
    prepared: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = open_corpus(prepared.folder / "out").stream()
    expected = Counter(stream.describe(row)[0].source for row in range(8, 32))
    monkeypatch.setattr(trace_module, "_ROWS_AT_ONCE", 5)
    assert count_sources(stream, range(8, 32)) == expected
    head, *lines = said(capsys, f"{prepared.folder}/out", "--steps", "1:4", "--global-batch", "8")
    assert head.endswith(": steps 1 to 3, samples 8 to 31")
    assert lines == list(source_lines(expected, 16))
    counts = {line.split()[0]: int(line.split()[1]) for line in lines}
    assert counts == expected
    assert sum(int(line.split()[5].replace(",", "")) for line in lines) == 24 * 16


def test_streams_of_windows_and_with_rows_left_out(prepared: Any, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = open_corpus(prepared.folder / "out")
    for words, stream in (([], corpus.stream()), (["--windows"], corpus.windows())):
        view = stream.skip_range(3, 10).skip_range(5, 6)
        words = [*words, "--skip", "3:10", "--skip", "5:6"]
        head, _, *lines = said(capsys, f"{prepared.folder}/out", "--sample", "7", "--text", *words)
        assert head == f"test, train, {view.fingerprint[:12]}: 52 samples of 16 tokens"
        assert lines == list(row_lines(stream.describe(15, text=True)))
        assert all(re.fullmatch(r"  .*: (web|code), tokens/\1/.*; \1\.jsonl, record \d+", line) for line in lines[::2])


def test_how_lines_look(make_corpus: Any) -> None:
    """Of a corpus that keeps no records, as anyone's data do not."""
    folder = make_corpus(documents={"web": 8}, shards=1, longest=3)
    make_corpus.index(folder, samples=1, sequence_length=4, splits="1,0,0")
    stream = open_corpus(folder).stream()
    title, *lines = trace(stream, range(1))
    assert title == "sample 0"
    shard = "tokens/web/web-00000-of-00001"
    assert all(re.fullmatch(rf"  \d( to \d)?: web, {shard}, document \d, tokens \d( to \d)?", line) for line in lines)
    assert list(source_lines({"a": 1, "long": 3}, 1000)) == [
        "  long                3 samples   75.00 %                3,000 tokens",
        "  a                   1 samples   25.00 %                1,000 tokens",
    ]
    assert list(source_lines({}, 10)) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sample", "60"], r"sample 60: the stream has 60 samples, numbered from 0; name an earlier one, or more"),
        (["--sample", "-1"], r"sample -1: the stream has 60 samples"),
        (["--sample", "1", "--global-batch", "4"], r"--global-batch: says nothing about --sample 1; leave it out"),
        (["--sample", "1", "--batch-schedule", "0:4"], r"--batch-schedule: says nothing about --sample 1"),
        (["--sample", "1", "--row", "0"], r"--row: says nothing about --sample 1"),
        (["--step", "1"], r"steps are counted in batches: say how many samples a step had with --global-batch G"),
        (["--step", "7", "--global-batch", "8"], r"samples 56 to 63: the stream has 60 samples"),
        (["--step", "1", "--global-batch", "8", "--row", "8"], r"--row 8: step 1 has rows 0 to 7"),
        (["--steps", "1:2", "--global-batch", "8", "--row", "0"], r"--row 0: is of one batch; name it with --step"),
        (["--steps", "1-2", "--global-batch", "8"], r"--steps 1-2: the rule is FIRST:STOP, two step numbers"),
        (["--steps", "2:1", "--global-batch", "8"], r"steps 2:1: hold none"),
        (["--sample", "1", "--skip", "5"], r"--skip 5: the rule is FIRST:STOP, two sample numbers; STOP itself is not"),
        (["--sample", "1", "--skip", "50:61"], r"rows 50 to 61 cannot be skipped: the rule is 0 <= first < last <= 60"),
        (["--sample", "1", "--windows", "--index-set", "L16"], r"--index-set L16: windows have none; leave out one"),
        (["--steps", "0:9", "--global-batch", "8"], r"samples 0 to 71: the stream has 60 samples"),
    ],
)
def test_what_cannot_be_answered(prepared: Any, words: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    trace_module.add_arguments(parser)
    with pytest.raises(SettingsError, match=message):
        trace_module.run(parser.parse_args([f"{prepared.folder}/out", *words]))


def test_a_stream_that_does_not_know_its_sources(prepared: Any) -> None:
    class Plain:
        def __repr__(self) -> str:
            return "Plain()"

    with pytest.raises(SettingsError, match=r"Plain\(\) does not say which source a row is of"):
        count_sources(Plain(), range(2))  # type: ignore[arg-type]  # on purpose


def test_the_command(prepared: Any) -> None:
    done = prepared.cli("trace", "out", "--step", "2", "--global-batch", "4", "--split", "train", "--row", "1")
    assert done.returncode == 0, done.stderr
    assert "sample 9, row 1 of the batch\n" in done.stdout
    refused = prepared.cli("trace", "out", "--step", "2")
    assert refused.returncode == 2
    assert refused.stderr.startswith("gristmill: steps are counted in batches: say")
    refused = prepared.cli("trace", "out")
    assert refused.returncode == 2
    assert "one of the arguments --sample --step --steps is required" in refused.stderr
