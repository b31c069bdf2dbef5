"""What do the signatures of near deduplication cost, beside datatrove's?

    python benchmarks/bench_near.py [--megabytes 100] [--rounds 3] [--datatrove PYTHON]

CPU-seconds per megabyte of real text, from texts in memory to the keys of 14 bands of 8 rows over word 5-grams, once
everything is loaded and compiled; the ways alternately, the best of the rounds. datatrove is slow enough that a few
megabytes tell. With --datatrove, PYTHON is an interpreter that has it.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

from measure import machine
from real_text import corpus

from gristmill.formats.near_table import NearDedup
from gristmill.pipelines.near_signatures import band_keys, shingles_of

_BATCH = 1 << 20


def ours(path: Path, megabytes: float) -> float:
    """CPU-seconds per megabyte."""
    settings = NearDedup()
    band_keys(shingles_of(["a few words to compile everything that is compiled once"], settings.ngram), settings)
    taken, size = 0.0, 0
    texts: list[str] = []
    waiting = 0
    with path.open("rb") as file:
        for line in file:
            texts.append(json.loads(line)["text"])
            waiting += len(texts[-1].encode())
            if waiting >= _BATCH:
                began = time.process_time()
                band_keys(shingles_of(texts, settings.ngram), settings)
                taken += time.process_time() - began
                size += waiting
                texts, waiting = [], 0
                if size > megabytes * 1e6:
                    break
    return taken / (size / 1e6)


def theirs(python: str, path: Path, splitter: str) -> float:
    """CPU-seconds per megabyte."""
    script = str(Path(__file__).with_name("datatrove_signatures.py"))
    size = "3" if splitter == "default" else "10"
    done = subprocess.run([python, script, str(path), splitter, size], capture_output=True, text=True, check=True)
    megabytes, seconds = map(float, done.stdout.split())
    return seconds / megabytes


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--datatrove", metavar="PYTHON")
    arguments = parser.parse_args()
    path = corpus(arguments.megabytes)
    print(f"{machine()}; {arguments.megabytes} MB of JSONL")
    best: dict[str, float] = {}
    for _ in range(arguments.rounds):
        found = {"gristmill": ours(path, arguments.megabytes)}
        if arguments.datatrove:
            found |= {
                "datatrove, default tokenizer": theirs(arguments.datatrove, path, "default"),
                "datatrove, regex splitter": theirs(arguments.datatrove, path, "regex"),
            }
        best = {name: min(cost, best.get(name, cost)) for name, cost in found.items()}
    print("\n| way | CPU-s per MB | MB per CPU-s | gristmill = 1 |\n|---|---|---|---|")
    for name, cost in best.items():
        print(f"| {name} | {cost:.4f} | {1 / cost:.1f} | {cost / best['gristmill']:.1f} |")


if __name__ == "__main__":
    main()
