"""What does a computed order cost: a row's place by the permutation against its look-up in stored index arrays?

    python benchmarks/bench_windows.py [--tokens 200000000] [--batches 200] [--rounds 5]

CPU-nanoseconds, the smallest of some rounds, the sides alternating; every round goes on where the one before stopped.
Two tables. Per row: which window a row is, by the permutation, against reading its entry of a stored permutation of the
same size (NumPy's `take` from a mapped int32 file in the page cache). Per token: a batch of windows against the same
batch in Megatron's order, and against a plain copy of whole rows, all from one `.bin/.idx` pair in the page cache.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from bench_gather import write_pair
from measure import machine

from gristmill.runtime import open_megatron, open_windows
from gristmill.runtime.permutation import shuffle

SIZES = (10**6 + 3, 10**8 + 7)
BATCHES = (64, 4096)
SHAPES = ((2048, 64), (8192, 64), (2048, 8))
EOD = 0


def best(sides: Mapping[str, Callable[[int], object]], calls: int, rounds: int) -> dict[str, float]:
    """CPU-seconds of a call of each side."""
    found = dict.fromkeys(sides, float("inf"))
    done = 0
    for side in sides.values():
        side(0)
    for _ in range(rounds):
        for name, side in sides.items():
            began = time.process_time()
            for call in range(done, done + calls):
                side(call)
            found[name] = min(found[name], (time.process_time() - began) / calls)
        done += calls
    return found


def per_row(folder: Path, size: int, rows: int, calls: int, rounds: int) -> str:
    """The row of the first table for a number of windows."""
    stored = folder / f"{size}.npy"
    if not stored.exists():
        np.save(stored, np.random.default_rng(0).permutation(size).astype(np.int32))
    mapped = np.load(stored, mmap_mode="r")
    sizes, keys, groups = np.array([size]), np.array([1], np.uint64), np.zeros(rows, np.int64)

    def numbers(call: int) -> np.ndarray:
        return (call * rows + np.arange(rows)) % size

    sides = {
        "permutation": lambda call: shuffle(numbers(call), groups, sizes, keys),
        "stored": lambda call: mapped[numbers(call)],
        "nothing": numbers,
    }
    found = best(sides, calls, rounds)
    computed, read = (1e9 * (found[name] - found["nothing"]) / rows for name in ("permutation", "stored"))
    return f"| {size:,} | {rows:,} | {computed:.0f} | {read:.0f} |"


def per_token(prefix: str, tokens: np.ndarray, shape: tuple[int, int], calls: int, rounds: int) -> str:
    """The row of the second table for a shape of batch."""
    length, rows = shape
    samples = 2 * (calls * rounds + 1) * rows
    windows = open_windows(prefix, sequence_length=length, eod_id=EOD, samples=samples)
    megatron = open_megatron(prefix, sequence_length=length, eod_id=EOD, samples=samples)
    whole = len(tokens) // (length + 1)
    places = np.random.default_rng(1).integers(0, whole, samples)

    def copy(call: int) -> None:
        out = np.empty((rows, length + 1), np.uint16)
        for row, place in enumerate(places[call * rows : (call + 1) * rows].tolist()):
            out[row] = tokens[place * (length + 1) : (place + 1) * (length + 1)]

    sides = {
        "copy": copy,
        "windows": lambda call: windows.read(call * rows + np.arange(rows)),
        "megatron": lambda call: megatron.read(call * rows + np.arange(rows)),
    }
    found = {name: 1e9 * seconds / (rows * length) for name, seconds in best(sides, calls, rounds).items()}
    windows.close()
    megatron.close()
    cells = " | ".join(f"{found[name]:.3f} ({found[name] / found['windows']:.2f})" for name in sides)
    return f"| {length:,} x {rows} | {cells} |"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000_000)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("\nCPU-ns per row\n\n| windows | rows of a batch | permutation | stored index |\n|---|---|---|---|")
        for size in SIZES:
            for rows in BATCHES:
                print(per_row(folder, size, rows, options.batches, options.rounds), flush=True)
        prefix = write_pair(folder, options.tokens)
        tokens = np.frombuffer(Path(prefix + ".bin").read_bytes(), np.uint16)
        print("\nCPU-ns per token, and in brackets against the windows\n")
        print("| shape | plain copy | windows | Megatron's order |\n|---|---|---|---|")
        for shape in SHAPES:
            print(per_token(prefix, tokens, shape, options.batches, options.rounds), flush=True)


if __name__ == "__main__":
    main()
