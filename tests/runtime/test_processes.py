"""Two and four real processes over loopback: what their devices hold, and checkpoints that cross process counts."""

import importlib.util
import json
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.runtime import MegatronStream, make_fields, open_corpus

G = 16
WORKER = Path(__file__).with_name("host_worker.py")

ROWS = {
    "one axis": (8, 4),
    "two axes": (8, 4),
    "axes reversed": (8, 4),
    "devices permuted": (8, 4),
    "tensor axis outermost": (16, 8),
    "sequence sharded": (8, 4),
    "context outermost": (16, 8),
    "rows shared by hosts": (12, 8),
    "fewer parts than hosts": (16, 16),
    "two parts": (8, 8),
    "hosts without a device": (16, 16),
    "sequence in zig-zag": (8, 8),
    "context outermost in zig-zag": (16, 16),
    "microbatches": (8, 4),
    "microbatches of shared rows in zig-zag": (12, 8),
}
"""For each layout of the workers, the rows of a batch that each of two and of four processes reads."""

ZIGZAG = {2: [0, 3, 1, 2], 4: [0, 7, 1, 6, 2, 5, 3, 4]}
"""By the number of parts of the sequence: which of its chunks, two for each part, comes in which place."""


def load_worker() -> ModuleType:
    """The worker's code, for what this process does itself."""
    spec = importlib.util.spec_from_file_location("host_worker", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_hosts(corpus: str, out: Path, processes: int, work: list[Any], *, killed: bool = False) -> list[list[Any]]:
    """Runs the worker in that many processes and returns what each reported, line by line."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(WORKER), corpus, "--port", str(port), "--processes", str(processes)]
    command += ["--out", str(out), "--work", json.dumps(work)]
    workers = [
        subprocess.Popen(
            [*command, "--process", str(number)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for number in range(processes)
    ]
    try:
        finished = [worker.communicate(timeout=240) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (_, errors) in zip(workers, finished, strict=True):
        # the second to be killed may first notice that the other is gone
        assert worker.returncode in ({-signal.SIGKILL, -signal.SIGABRT} if killed else {0}), errors
    reports = [Path(f"{out}-{number}.jsonl").read_text("ascii") for number in range(processes)]
    return [[json.loads(line) for line in report.splitlines()] for report in reports]


def check_parts(worker: ModuleType, stream: MegatronStream, parts: Path, processes: int) -> None:
    """Whether the parts of all processes together are the global batches, each cell in its place."""
    held: dict[str, dict[str, list[tuple[Any, NDArray[Any]]]]] = {}
    for number in range(processes):
        with np.load(f"{parts}-{number}.npz") as file:
            for name in file.files:
                layout, place, step, field, bounds = name.split("|")
                key = f"{place}|{step}|{field}"
                held.setdefault(layout, {}).setdefault(key, []).append((json.loads(bounds), file[name]))
    assert held.keys() == ROWS.keys()
    for layout, fields in held.items():
        options = worker.LAYOUTS[layout][-1]
        assert len(fields) == 2 * 6 * (1 + (layout in worker.ON_DEVICES))
        for name, found in fields.items():
            _, step, field = name.split("|")
            expected = make_fields(stream.read(int(step) * G + np.arange(G)), stream.eod_id)[field]
            if options.get("zigzag"):
                split = worker.sharding_of(layout).shard_shape((G, stream.sequence_length))[1]
                chunks = ZIGZAG[stream.sequence_length // split]
                expected = expected.reshape(G, len(chunks), -1)[:, chunks].reshape(G, -1)
            if "microbatches" in options:
                expected = expected.reshape(options["microbatches"], -1, stream.sequence_length)
            covered = np.zeros(expected.shape, bool)
            for bounds, part in found:
                index = tuple(slice(*bound) for bound in bounds)
                np.testing.assert_array_equal(part, expected[index], f"{layout}: {field}")
                covered[index] = True
            assert covered.all(), f"{layout}: {field}"


def expected(stream: MegatronStream, rows: int) -> int:
    """The model of the workers after so many rows, in order."""
    tokens = stream.read(np.arange(rows))[:, :-1].astype(np.uint64)
    seen = 0
    for digest in (tokens * (2 * np.arange(tokens.shape[1], dtype=np.uint64) + 1)).sum(axis=1).tolist():
        seen = (seen * 1_000_003 + digest) % 2**32
    return seen


def test_one_process_with_eight_devices(blended_corpus: str, tmp_path: Path) -> None:
    worker, stream = load_worker(), open_corpus(blended_corpus).stream()
    rows, parts = worker.deliver(stream)
    assert rows == dict.fromkeys(ROWS, G)
    np.savez(tmp_path / "parts-0.npz", allow_pickle=False, **parts)
    check_parts(worker, stream, tmp_path / "parts", 1)


@pytest.mark.slow
def test_any_number_of_processes(blended_corpus: str, tmp_path: Path) -> None:
    """Everything that needs real processes, with one launch of two and one of four."""
    worker = load_worker()
    stream = open_corpus(blended_corpus).stream()
    one, two, four, cut, cuts = (str(tmp_path / name) for name in ("one", "two", "four", "cut", "cuts"))
    steps = sorted(random.Random(9).sample(range(24), 10))

    def at(rows: int, step: int | None = None) -> list[Any]:
        return [step, rows, expected(stream, rows)]

    padded = expected(stream, len(stream))
    for _ in range(-len(stream) % G):
        padded = padded * 1_000_003 % 2**32  # a row of padding
    every_row = [["open", {"layout": "one axis", "last_batch": "pad"}], ["train", -(-len(stream) // G)]]
    every_row_found = [[None, 0, 0], [None, len(stream), padded]]

    here = worker.Job(blended_corpus)
    here.open()
    here.do(["train", 2])
    for api in ("v0", "v1"):
        assert here.do(["save", api, f"{one}-{api}", 2, {"then": 1}]) == at(G * (3 if api == "v0" else 4))
    here.open(global_batch=8, prefetch=0)
    assert here.do(["restore", "v0", f"{one}-v0"]) == at(2 * G, 2)  # 1 -> 1
    assert here.do(["train", 3]) == at(2 * G + 3 * 8)

    work: list[Any] = [
        *every_row,
        ["open", {"prefetch": 3}],
        ["restore", "v0", f"{one}-v0"],  # 1 -> 2
        ["train", 1],
        ["save", "v0", f"{two}-v0", 3, {"then": 2}],
        ["save", "v1", f"{two}-v1", 5, {"then": 1}],
        ["open", {"layout": "microbatches", "microbatches": 4, "global_batch": 32}],
        ["restore", "v1", f"{one}-v1"],  # 1 -> 2
        ["train", 1],
        ["restore", "v0", f"{two}-v0"],  # 2 -> 2
        ["train", 1],
        ["open", {"global_batch": 8, "prefetch": 4}],
        ["save_at", cuts, steps],
        ["restore", "v0", f"{two}-v0"],
        ["train", 2],
        ["save", "v0", cut, 4],
        ["train", 4],
        ["save", "v0", cut, 5, {"kill": True}],
    ]
    reports = run_hosts(blended_corpus, tmp_path / "parts-2", 2, work, killed=True)
    for number, (rows, *found) in enumerate(reports):
        first_only = {"hosts without a device": 16 if number == 0 else 0}
        assert rows == {layout: counts[0] for layout, counts in ROWS.items()} | first_only
        assert found == [
            *every_row_found,
            [None, 0, 0],
            at(32, 2),
            at(48),
            at(80),
            at(96),
            [None, 0, 0],
            at(48, 2),
            at(80),
            at(48, 3),
            at(80),
            [None, 0, 0],
            at(8 * steps[-1]),
            at(48, 3),
            at(64),
            at(64),
            at(96),
        ]
    check_parts(worker, stream, tmp_path / "parts-2", 2)

    here.open(layout="devices permuted", microbatches=2)
    assert here.do(["restore", "v0", cut])[1:] in (at(64)[1:], at(96)[1:])  # 2 -> 1, killed while it was saved
    after_cut = here.do(["train", 0])[1]
    assert here.do(["restore", "v1", f"{two}-v1"]) == at(80, 5)  # 2 -> 1

    here.open(layout="rows shared by hosts")
    after = [list(at(8 * step + 16)[1:]) for step in steps if 8 * step + 16 <= 200]
    assert here.resume_at(cuts, steps[: len(after)]) == [tuple(one) for one in after]  # 2 -> 1, at random places

    work = [
        *every_row,
        ["open", {"global_batch": 8, "prefetch": 1}],
        ["restore", "v0", f"{two}-v0"],  # 2 -> 4
        ["train", 3],
        ["restore", "v1", f"{two}-v1"],  # 2 -> 4
        ["train", 1],
        ["restore", "v0", cut],  # 2 -> 4, killed while it was saved
        ["train", 2],
        ["restore", "v0", f"{one}-v0"],  # 1 -> 4
        ["save", "v0", f"{four}-v0", 2, {"then": 1}],
        ["resume_at", cuts, steps],
    ]
    for number, (rows, *found) in enumerate(run_hosts(blended_corpus, tmp_path / "parts-4", 4, work)):
        first_only = {"hosts without a device": 16 if number == 0 else 0}
        assert rows == {layout: counts[1] for layout, counts in ROWS.items()} | first_only
        assert [report[1:] for report in found] == [
            report[1:]
            for report in (
                *every_row_found,
                [None, 0, 0],
                at(48),
                at(72),
                at(80),
                at(88),
                at(after_cut),
                at(after_cut + 16),
                at(32),
                at(40),
                at(8 * steps[-1] + 8),
            )
        ]
        assert found[-1][0] == [at(8 * step + 8)[1:] for step in steps]  # 2 -> 4, at random places
    check_parts(worker, stream, tmp_path / "parts-4", 4)

    here.open(layout="sequence sharded")
    assert here.do(["restore", "v0", f"{four}-v0"]) == at(32, 2)  # 4 -> 1
    assert here.do(["train", 2]) == at(64)
    here.close()
