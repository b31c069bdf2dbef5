"""How fast are indices and blends built, beside Megatron's compiled helpers, and how much memory does a build take?

    python benchmarks/bench_indices.py [--megatron PYTHON] [--sequences 10000000] [--rows 2000000] [--rounds 3]
    python benchmarks/bench_indices.py --sources 200

CPU-seconds of one thread, the smallest of some rounds, the two sides alternating. With --megatron, PYTHON is an
interpreter that has megatron-core and torch (extra `parity`); without, the column of ratios stays empty. Document and
shuffle index are compared with `numpy.random.RandomState.shuffle` itself, which is most of what they are. Memory is the
peak of anonymous pages above that of the idle process, while a whole index set is built from shards on disk, against
the bytes of the arrays that are written; mapped files are not counted, since the kernel drops them when it likes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from index_inputs import LONGEST, lengths_of, order_of, weights_of
from measure import machine

HERE = Path(__file__).resolve().parent
MEMBERS = (2, 10, 50, 200)


class Megatron:
    """The other side: a process that times Megatron's helpers; without an interpreter it answers None."""

    def __init__(self, python: str | None) -> None:
        self._process: subprocess.Popen[str] | None = None
        if python is not None:
            command = [python, str(HERE / "megatron_indices.py")]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def time(self, *task: Any) -> float | None:
        """CPU-seconds of a task."""
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            return None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the interpreter given with --megatron could not run Megatron's helpers")
        return float(answer)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()


def seconds(work: Callable[[], Any]) -> float:
    """CPU-seconds of this thread for one call."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def best(rounds: int, ours: Callable[[], Any], theirs: Callable[[], float | None]) -> tuple[float, float | None]:
    """The smallest time of each side over some alternating rounds."""
    mine: list[float] = []
    others: list[float] = []
    for _ in range(rounds):
        mine.append(seconds(ours))
        other = theirs()
        if other is not None:
            others.append(other)
    return min(mine), min(others, default=None)


def compare(megatron: Megatron, sequences: int, rows: int, rounds: int) -> Iterator[tuple[str, float, float | None]]:
    """What is measured, our CPU-seconds, and Megatron's."""
    from gristmill.formats.blend import exhaustive_blend, greedy_blend
    from gristmill.formats.indices import build_sample_index, plan_epochs

    lengths, order = lengths_of(sequences), order_of(sequences)
    tokens = int(lengths.sum())
    for length in (2048, 64):
        plan = plan_epochs(tokens=tokens, sequence_length=length)
        build_sample_index(lengths, order, plan)  # compiles
        mine, other = best(
            rounds,
            lambda plan=plan: build_sample_index(lengths, order, plan),  # type: ignore[misc]  # bound at once
            lambda length=length: megatron.time("sample_index", sequences, length),  # type: ignore[misc]
        )
        yield f"sample index, {sequences:.0e} sequences, L = {length}", mine, other
    for kind in ("random", "equal"):
        for members in MEMBERS:
            weights = weights_of(members, kind)
            greedy_blend(weights, 30_000)  # compiles
            mine, other = best(
                rounds,
                lambda weights=weights: greedy_blend(weights, rows),  # type: ignore[misc]
                lambda members=members, kind=kind: megatron.time("blend", members, kind, rows),  # type: ignore[misc]
            )
            yield f"blend of {members}, {kind} weights, {rows:.0e} samples", mine, other
    for members in MEMBERS:
        sizes = [rows // members] * members
        exhaustive_blend([20_000, 20_000])  # compiles
        mine, other = best(
            rounds,
            lambda sizes=sizes: exhaustive_blend(sizes),  # type: ignore[misc]
            lambda members=members: megatron.time("exhaustive", members, rows),  # type: ignore[misc]
        )
        yield f"exhaustive blend of {members}, {rows:.0e} samples", mine, other


def shuffles(sequences: int, rounds: int) -> Iterator[tuple[str, float, float]]:
    """What is measured, its CPU-seconds, and those of `RandomState.shuffle` on as many elements of the same dtype."""
    from gristmill.formats.indices import build_document_index, build_shuffle_index, plan_epochs

    def shuffled(count: int, dtype: type[np.integer[Any]]) -> Callable[[], None]:
        return lambda: np.random.RandomState(1234).shuffle(np.arange(count, dtype=dtype))

    for epochs in (1, 2):
        count = sequences // epochs
        plan = plan_epochs(tokens=count * 400, sequence_length=400, epochs=epochs)
        mine, other = best(
            rounds,
            lambda plan=plan, count=count: build_document_index(  # type: ignore[misc]
                0, count, plan, np.random.RandomState(1234)
            ),
            lambda count=count: seconds(shuffled(count * epochs, np.int32)),  # type: ignore[misc]  # noqa: B023
        )
        yield f"document index, {count * epochs:.0e} entries, {epochs} epochs", mine, other or 0.0
    plan = plan_epochs(tokens=sequences * 400 + 1, sequence_length=400)
    mine, other = best(
        rounds,
        lambda: build_shuffle_index(plan, np.random.RandomState(1234)),
        lambda: seconds(shuffled(plan.samples, np.uint32)),
    )
    yield f"shuffle index, {plan.samples:.0e} samples", mine, other or 0.0


# Memory


@contextmanager
def peak_memory(found: list[int]) -> Iterator[None]:
    """Adds the largest growth of anonymous memory during the block, sampled every 2 ms."""
    base, stop = anonymous_bytes(), threading.Event()
    peak = [base]

    def watch() -> None:
        while not stop.wait(0.002):
            peak[0] = max(peak[0], anonymous_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        found.append(peak[0] - base)


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def make_corpus(folder: Path, sources: int, sequences: int, shards: int, longest: int) -> None:
    """A corpus whose tokens are holes in files: building indices reads lengths only."""
    from gristmill.formats.indexed import pack_header
    from gristmill.formats.manifest import (
        Manifest,
        RecordAddress,
        ShardEntry,
        SourceEntry,
        TokenizerEntry,
        write_manifest,
    )
    from gristmill.formats.storage import FileFacts

    address = RecordAddress(input="", split=0, record=0)
    entries = []
    for name in (f"source{number}" for number in range(sources)):
        shard_entries = []
        for shard in range(shards):
            lengths = lengths_of(sequences // shards, longest)
            ends = np.cumsum(lengths, dtype=np.int64)
            path = f"tokens/{name}/{name}-{shard:05d}-of-{shards:05d}"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            tokens, documents = int(ends[-1]), len(lengths)
            with open(folder / f"{path}.bin", "wb") as file:
                file.truncate(2 * tokens)
            with open(folder / f"{path}.idx", "wb") as file:
                file.write(pack_header(np.dtype("<u2"), documents, documents))
                file.write(lengths.tobytes())
                file.write((2 * (ends - lengths)).tobytes())
                file.write(np.arange(documents + 1, dtype=np.int64).tobytes())
            sizes = [FileFacts((folder / f"{path}.{kind}").stat().st_size, f"{name}{shard}") for kind in ("bin", "idx")]
            shard_entries.append(
                ShardEntry(
                    path=path,
                    tokens=tokens,
                    documents=documents,
                    eod_tokens=documents,
                    bin=sizes[0],
                    idx=sizes[1],
                    first=address,
                    last=address,
                )
            )
        documents = sum(shard.documents for shard in shard_entries)
        entries.append(
            SourceEntry(
                id=name,
                weight=1.0,
                max_epochs=None,
                inputs=(),
                documents_in=documents,
                documents_kept=documents,
                dropped={},
                counted={},
                shards=tuple(shard_entries),
            )
        )
    tokenizer = TokenizerEntry(
        fingerprint="", engine="", engine_version="", eod_id=0, eod_token="", pad_id=None, vocabulary=60_000
    )
    manifest = Manifest(
        name="bench",
        recipe_digest="",
        software="",
        tokenizer=tokenizer,
        dtype="uint16",
        sources=tuple(entries),
        index_set=None,
    )
    write_manifest(str(folder), manifest)


def build_in_this_process(folder: Path, sources: int, sequence_length: int) -> None:
    """Builds an index set of one pass and prints peak memory and bytes written."""
    from gristmill.formats.index_build import build_index_set
    from gristmill.formats.index_set import IndexSettings, SplitRequest
    from gristmill.formats.manifest import read_manifest

    manifest = read_manifest(str(folder))
    samples = manifest.tokens // sequence_length - 10 * sources

    def build(seed: int, train: SplitRequest) -> int:
        settings = IndexSettings(sequence_length=sequence_length, seed=seed, splits="1", train=train)
        return sum(facts.size for facts in build_index_set(str(folder), manifest, settings).files.values())

    build(1, SplitRequest(samples=sources * 100))  # compiles and imports
    found: list[int] = []
    with peak_memory(found):
        written = build(2, SplitRequest(samples=int(samples * 0.98)))
    print(json.dumps([found[0], written]))


def memory(sequences: int) -> Iterator[tuple[str, int, int]]:
    """What is built, the peak of memory, and the bytes written; each in a process of its own."""
    for sources, shards, length, longest in (
        (1, 1, 2048, LONGEST),
        (1, 20, 2048, LONGEST),
        (1, 20, 8192, LONGEST),
        (1, 20, 512, LONGEST),
        (4, 5, 2048, LONGEST),
        (1, 20, 65_536, LONGEST),
        (1, 20, 1 << 20, LONGEST),
        (1, 20, 65_536, 100_000),
        (1, 20, 1 << 20, 100_000),
    ):
        with tempfile.TemporaryDirectory(prefix="gristmill-bench-", dir=os.environ.get("TMPDIR")) as folder:
            make_corpus(Path(folder), sources, sequences // sources, shards, longest)
            command = [sys.executable, __file__, "--build", folder, str(sources), str(length)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            peak, written = json.loads(done.stdout.splitlines()[-1])
        documents = f"{sequences:.0e} sequences of up to {longest - 1} tokens"
        yield f"{sources} sources of {shards} shards, {documents}, L = {length}", peak, written


# Many sources


def many_sources(sources: int, sequences: int, rounds: int) -> Iterator[tuple[int, float]]:
    """Number of workers, and the best seconds of building an index set of so many sources with them."""
    from gristmill.formats.index_build import build_index_set
    from gristmill.formats.index_set import IndexSettings, SplitRequest
    from gristmill.formats.manifest import read_manifest

    with tempfile.TemporaryDirectory(prefix="gristmill-bench-", dir=os.environ.get("TMPDIR")) as folder:
        make_corpus(Path(folder), sources, sequences // sources, 1, LONGEST)
        manifest = read_manifest(folder)
        train = SplitRequest(samples=int(manifest.tokens // 2048 * 0.9))
        counts = sorted({1, len(os.sched_getaffinity(0))})
        taken: dict[int, list[float]] = {workers: [] for workers in counts}
        for number in range(rounds + 1):  # the first compiles
            for workers in counts:
                settings = IndexSettings(sequence_length=2048, seed=10 * number + workers, splits="1", train=train)
                began = time.perf_counter()
                build_index_set(folder, manifest, settings, workers=workers)
                taken[workers].append(time.perf_counter() - began)
        for workers, all_seconds in taken.items():
            yield workers, min(all_seconds[1:])


def print_memory(sequences: int) -> None:
    """Prints the table of memory."""
    print("\n| index set | peak MB | arrays written, MB | ratio |\n|---|---|---|---|")
    for name, peak, written in memory(sequences):
        print(f"| {name} | {peak / 1e6:.0f} | {written / 1e6:.0f} | {peak / written:.2f} |", flush=True)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megatron", metavar="PYTHON")
    parser.add_argument("--sequences", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-memory", action="store_true", help="leave out the builds on disk")
    parser.add_argument("--sources", type=int, metavar="N", help="measure the build of N sources by workers instead")
    parser.add_argument("--memory-only", action="store_true", help="leave out everything else")
    parser.add_argument("--build", nargs=3, metavar=("FOLDER", "SOURCES", "LENGTH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.build:
        folder, sources, length = arguments.build
        build_in_this_process(Path(folder), int(sources), int(length))
        return
    if arguments.sources:
        print("\n| workers | seconds |\n|---|---|")
        for workers, taken in many_sources(arguments.sources, arguments.sequences, arguments.rounds):
            print(f"| {workers} | {taken:.2f} |", flush=True)
        return
    if arguments.memory_only:
        print_memory(arguments.sequences)
        return
    print(f"{machine()}; NumPy {np.__version__}; best of {arguments.rounds}, CPU-seconds of one thread")
    print("\n| what | CPU-s | Megatron's helper, CPU-s | ratio |\n|---|---|---|---|")
    megatron = Megatron(arguments.megatron)
    for name, mine, other in compare(megatron, arguments.sequences, arguments.rows, arguments.rounds):
        beside = "| | |" if other is None else f"| {other:.3f} | {mine / other:.2f} |"
        print(f"| {name} | {mine:.3f} {beside}", flush=True)
    megatron.close()
    print("\n| what | CPU-s | `RandomState.shuffle`, CPU-s | ratio |\n|---|---|---|---|")
    for name, mine, shuffle in shuffles(arguments.sequences, arguments.rounds):
        print(f"| {name} | {mine:.3f} | {shuffle:.3f} | {mine / shuffle:.2f} |", flush=True)
    if not arguments.skip_memory:
        print_memory(arguments.sequences)


if __name__ == "__main__":
    main()
