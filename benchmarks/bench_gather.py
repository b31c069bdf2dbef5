"""What does a batch cost: gathering its rows, handing it to devices, and what other loaders take for the same rows?

    python benchmarks/bench_gather.py [--megatron PYTHON] [--tokens 200000000] [--batches 200] [--rounds 5]

CPU-seconds of the whole process per token, the smallest of some rounds, the sides alternating; every round goes on
where the one before stopped. The yardstick is a plain copy: whole rows at shuffled places of one array in memory, a
slice of NumPy's for each, into a fresh batch. Data are one `.bin/.idx` pair of uint16 in the page cache, documents of
lognormal lengths with a mean of 1,000 tokens. The Grain pipeline is a source that reads a sample from a NumPy map,
`to_iter_dataset()` and `batch`, all options left alone. With --megatron, PYTHON is an interpreter that has torch and
megatron-core (extra `parity`): GPTDataset and DataLoader, its options left alone too. A loop that does nothing but call
`next` always waits for the thread that makes batches ahead, and pays for being woken up; a training step seldom does.
So the price without that thread is told as well, and in a second table what a batch costs a loop that sleeps for 2 ms
between its calls, less the sleep alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import grain
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from measure import machine

from gristmill.formats.indexed_writer import write_indexed
from gristmill.runtime import MegatronStream, TokenBatches, open_megatron
from gristmill.runtime.backends import Backend

HERE = Path(__file__).resolve().parent
SHAPES = ((2048, 64), (8192, 64), (2048, 8), (8192, 8))
BACKENDS: tuple[Backend, Backend] = ("mmap", "pread")
EOD = 0
DEVICES = 8
PACED_SHAPES = SHAPES[:2]
PAUSE_SECONDS = 0.002


def write_pair(folder: Path, tokens: int) -> str:
    """A pair of documents of lognormal lengths, 1,000 tokens on average."""
    random = np.random.default_rng(0)
    lengths = np.maximum(1, random.lognormal(np.log(1000) - 0.5, 1.0, tokens // 1000)).astype(np.int64)
    values = random.integers(1, 50_000, int(lengths.sum()), dtype=np.uint16)
    values[np.cumsum(lengths) - 1] = EOD
    with write_indexed(str(folder / "data"), np.dtype("uint16")) as writer:
        writer.add(values, lengths)
    return str(folder / "data")


class SampleSource:
    """A sample at a time, as a Grain source is usually written: slices of a NumPy map, joined."""

    def __init__(self, stream: MegatronStream, prefix: str) -> None:
        indices = stream.reader.index.members[0].indices
        self._documents, self._samples, self._shuffle = (
            np.asarray(array) for array in (indices.document_index, indices.sample_index, indices.shuffle_index)
        )
        pair = stream.reader.shards[0].open()
        self._lengths, self._pointers = np.array(pair.lengths), np.array(pair.pointers) // 2
        self._tokens = np.memmap(prefix + ".bin", np.uint16, mode="r")

    def __len__(self) -> int:
        return len(self._shuffle)

    def __getitem__(self, row: Any) -> dict[str, np.ndarray]:
        place = self._shuffle[row]
        (first, offset), (last, end) = self._samples[place], self._samples[place + 1]
        parts = []
        for entry in range(first, last + 1):
            document = self._documents[entry]
            start = self._pointers[document] + (offset if entry == first else 0)
            stop = self._pointers[document] + (end + 1 if entry == last else self._lengths[document])
            parts.append(self._tokens[start:stop])
        tokens = np.concatenate(parts)
        return {"inputs": tokens[:-1], "targets": tokens[1:]}


class Megatron:
    """GPTDataset behind a DataLoader, in a process of its own; without an interpreter it answers None."""

    def __init__(self, python: str | None, prefix: str, length: int, batch: int, cache: Path) -> None:
        self._process: subprocess.Popen[str] | None = None
        if python is not None:
            command = [python, str(HERE / "megatron_loader.py"), prefix, str(length), str(batch), str(cache)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )

    def seconds(self, batches: int) -> float | None:
        """CPU-seconds of so many batches."""
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            return None
        self._process.stdin.write(f"{batches}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the interpreter given with --megatron could not run Megatron's GPTDataset")
        return float(json.loads(answer))

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()


def sharding_of(devices: int) -> NamedSharding:
    """Rows over so many devices."""
    return NamedSharding(jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices]), PartitionSpec("data"))


def copies(memory: np.ndarray, length: int, batch: int) -> Iterator[Any]:
    """Batches of whole rows at shuffled places of an array."""
    random = np.random.default_rng(1)
    while True:
        for starts in random.permutation(len(memory) // (length + 1))[: 100 * batch].reshape(-1, batch) * (length + 1):
            out = np.empty((batch, length + 1), np.uint16)
            for row, start in enumerate(starts.tolist()):
                out[row] = memory[start : start + length + 1]
            yield out


def gathers(stream: MegatronStream, batch: int) -> Iterator[Any]:
    """Batches of rows of the stream, as arrays of NumPy."""
    while True:
        for first in range(0, len(stream) - batch + 1, batch):
            yield stream.read(np.arange(first, first + batch))


def delivered(stream: MegatronStream, batch: int, devices: int, place: Any, prefetch: int = 2) -> Iterator[Any]:
    """Batches as `jax.Array`s on so many devices."""
    while True:
        with TokenBatches(stream, batch, sharding_of(devices), fields=place, prefetch=prefetch) as batches:
            yield from batches


def grain_batches(source: SampleSource, batch: int) -> Iterator[Any]:
    """Batches of Grain's, as arrays of NumPy."""
    return iter(grain.MapDataset.source(source).repeat().to_iter_dataset().batch(batch))


def pauses() -> Iterator[Any]:
    """Nothing."""
    while True:
        yield ()


def seconds(batches: Iterator[Any], count: int, pause_seconds: float = 0.0) -> float:
    """CPU-seconds of this process, all threads, for so many batches, each after a pause."""
    began = time.process_time()
    for _ in range(count):
        if pause_seconds:
            time.sleep(pause_seconds)
        batch = next(batches)
    jax.block_until_ready(batch)  # what is still on its way costs this process, too
    return time.process_time() - began


def smallest(sides: Mapping[str, tuple[Callable[[int], float | None], int]], rounds: int) -> dict[str, float]:
    """CPU-seconds of a batch, the smallest of some rounds, for each side and the batches of its rounds."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):  # the first warms up
        for name, (side, count) in sides.items():
            taken = side(count)
            if number and taken is not None:
                found[name].append(taken / count)
    return {name: min(times) for name, times in found.items() if times}


def compare(prefix: str, folder: Path, arguments: argparse.Namespace, length: int, batch: int) -> dict[str, float]:
    """CPU-nanoseconds per token of each side."""
    stream, ranged = (
        open_megatron(prefix, sequence_length=length, eod_id=EOD, cache_dir=folder / "cache", backend=backend)
        for backend in BACKENDS
    )
    memory = np.fromfile(prefix + ".bin", np.uint16)
    megatron = Megatron(arguments.megatron, prefix, length, batch, folder / "megatron")
    per_round = max(20, arguments.batches * 64 // batch // (length // 2048))
    sides: dict[str, tuple[Callable[[int], float | None], int]] = {}
    for name, made, share in (
        ("plain copy", copies(memory, length, batch), 1),
        ("gather", gathers(stream, batch), 1),
        ("gather by ranged reads", gathers(ranged, batch), 4),
        ("next(), whole rows, 1 device", delivered(stream, batch, 1, "tokens"), 1),
        ("whole rows, prefetch=0", delivered(stream, batch, 1, "tokens", 0), 1),
        (f"next(), whole rows, {DEVICES} devices", delivered(stream, batch, DEVICES, "tokens"), 1),
        ("next(), inputs and targets, 1 device", delivered(stream, batch, 1, "device"), 1),
        ("inputs and targets, prefetch=0", delivered(stream, batch, 1, "device", 0), 1),
        (f"next(), inputs and targets, {DEVICES} devices", delivered(stream, batch, DEVICES, "device"), 1),
        ("next(), six fields on the host, 1 device", delivered(stream, batch, 1, "host"), 4),
        ("Grain, samples one by one, defaults", grain_batches(SampleSource(stream, prefix), batch), 10),
    ):
        sides[name] = partial(seconds, made), per_round // share
    sides["Megatron's GPTDataset and DataLoader"] = megatron.seconds, per_round // 10
    found = smallest(sides, arguments.rounds)
    megatron.close()
    return {name: taken / (batch * length) * 1e9 for name, taken in found.items()}


def compare_paced(
    prefix: str, folder: Path, arguments: argparse.Namespace, length: int, batch: int
) -> dict[str, float]:
    """CPU-nanoseconds per token of each side in a loop that pauses, less those of its pauses."""
    stream = open_megatron(prefix, sequence_length=length, eod_id=EOD, cache_dir=folder / "cache")
    made = {
        "pause": pauses(),
        "gather": gathers(stream, batch),
        "next(), whole rows, 1 device": delivered(stream, batch, 1, "tokens"),
        "whole rows, prefetch=0": delivered(stream, batch, 1, "tokens", 0),
        "next(), inputs and targets, 1 device": delivered(stream, batch, 1, "device"),
    }
    paced = partial(seconds, pause_seconds=PAUSE_SECONDS)
    sides = {name: (partial(paced, batches), arguments.batches) for name, batches in made.items()}
    found = smallest(sides, arguments.rounds)
    return {name: (taken - found["pause"]) / (batch * length) * 1e9 for name, taken in found.items() if name != "pause"}


def print_table(tables: dict[tuple[int, int], dict[str, float]]) -> None:
    """Prints what sides cost by shape, in brackets against the gather."""
    print("\n| side |" + "".join(f" {length} x {batch} |" for length, batch in tables))
    print("|---|" + "---|" * len(tables))
    for side in next(iter(tables.values())):
        cells = [f" {table[side]:.3f} ({table[side] / table['gather']:.2f}) |" for table in tables.values()]
        print(f"| {side} |" + "".join(cells))
    sys.stdout.flush()


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megatron", metavar="PYTHON")
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--batches", type=int, default=200, help="in a round, of 64 rows of 2,048")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", DEVICES)
    print(f"{machine()}; NumPy {np.__version__}, JAX {jax.__version__}, Grain {grain.__version__}")
    print(f"{arguments.tokens:.0e} tokens; smallest of {arguments.rounds} rounds, CPU-ns per token (gather = 1)")
    with tempfile.TemporaryDirectory(prefix="gristmill-bench-", dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        prefix = write_pair(folder, arguments.tokens)
        print_table({shape: compare(prefix, folder, arguments, *shape) for shape in SHAPES})
        print(f"\nWith {PAUSE_SECONDS * 1000:g} ms of sleep before each call, less the sleep:")
        print_table({shape: compare_paced(prefix, folder, arguments, *shape) for shape in PACED_SHAPES})


if __name__ == "__main__":
    main()
