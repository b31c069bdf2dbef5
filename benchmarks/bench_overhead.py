"""What does Beam itself cost beside the plain loop, and what do ten thousand small files cost beside ten large ones?

    python benchmarks/bench_overhead.py [--megabytes 2000] [--files 10000] [--files-megabytes 200] [--rounds 3]

Both on one core, so that the encoder takes one thread whoever runs it. *net* leaves out start-up, which is the same
program on an input of one line. The text is some tens of MB of real text, over and over with another number before
each piece, so that no two documents are the same. 0 megabytes leave a question out.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from bench_prepare import best, recipe
from measure import Cost, machine, measure
from real_text import FOLDER, corpus, tokenizer

SEED_MEGABYTES = 60
LARGEST_CHARS = 8000
LIMIT_SECONDS, LIMIT_SHARE, LIMIT_FILES = 1.0, 0.05, 1.3


def pieces() -> Iterator[bytes]:
    """Lines of JSON without end, of at most some kilobytes, no two of them the same."""
    texts = [json.loads(line)["text"] for line in corpus(SEED_MEGABYTES).open("rb")]
    cut = [text[at : at + LARGEST_CHARS] for text in texts for at in range(0, len(text), LARGEST_CHARS)]
    for number in count():
        text = f"{number} {cut[number % len(cut)]}"
        yield json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"


def lines(megabytes: int, files: int) -> Path:
    """A folder of so many files with so many megabytes together; made once."""
    folder = FOLDER / f"lines-{megabytes}-in-{files}"
    if folder.exists():
        return folder
    partial = folder.with_suffix(".partial")
    partial.mkdir(parents=True, exist_ok=True)
    source, written = pieces(), 0
    for number in range(files):
        with (partial / f"{number:05d}.jsonl").open("wb") as file:
            while written < megabytes * 1_000_000 * (number + 1) / files:
                written += file.write(next(source))
    partial.rename(folder)
    return folder


def prepare(source: Path, vocabulary: Path, name: str, core: int, *words: str) -> Cost:
    """Cost of `gristmill prepare` from nothing, of one source, on one core."""
    path = recipe(source, vocabulary, name, "")
    text = path.read_text().split("[[sources]]")[0]
    path.write_text(f'{text}[[sources]]\nid = "text"\nfiles = "{source}"\n')
    measure([sys.executable, "-c", "import shutil, sys; shutil.rmtree(sys.argv[1], True)", str(FOLDER / name)])
    pinned = f"import os, sys; os.sched_setaffinity(0, {{{core}}}); os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-m", "gristmill", "prepare", str(path), "--quiet", *words]
    return measure([sys.executable, "-c", pinned, *command])


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--files-megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    core = min(os.sched_getaffinity(0))
    vocabulary = tokenizer(corpus(SEED_MEGABYTES))
    tiny = FOLDER / "one"
    tiny.mkdir(exist_ok=True)
    (tiny / "one-line.jsonl").write_text('{"text": "one line"}\n')
    print(f"{machine()}; one core")
    if arguments.megabytes:
        ways = {"plain loop": ("--runner", "loop"), "Beam, one worker": ("--runner", "FnApiRunner")}
        programs = {
            name: lambda source, words=words: prepare(source, vocabulary, "overhead", core, *words)
            for name, words in ways.items()
        }
        costs = best(programs, lines(arguments.megabytes, 10), tiny, arguments.rounds)
        print(f"\n| {arguments.megabytes} MB | CPU-s | start-up CPU-s | net CPU-s |\n|---|---|---|---|")
        for name, (start, net) in costs.items():
            print(f"| {name} | {start.cpu + net.cpu:.2f} | {start.cpu:.2f} | {net.cpu:.2f} |")
        loop, beam = (net.cpu for _, net in costs.values())
        allowed = LIMIT_SECONDS + LIMIT_SHARE * loop
        print(
            f"\nBeam's own: {beam - loop:.2f} CPU-s ({beam / loop - 1:.1%} of the work); at most {allowed:.2f} allowed"
        )
    if arguments.files_megabytes:
        small = lines(arguments.files_megabytes, arguments.files)
        large = lines(arguments.files_megabytes, 10)
        by_size = {
            name: lambda source, given=given: prepare(
                source if source == tiny else given, vocabulary, "files", core, "--runner", "loop"
            )
            for name, given in (("10 files", large), (f"{arguments.files:,} files", small))
        }
        found = best(by_size, large, tiny, arguments.rounds)
        print(f"\n| {arguments.files_megabytes} MB in | net CPU-s |\n|---|---|")
        for name, (_, net) in found.items():
            print(f"| {name} | {net.cpu:.2f} |")
        few, many = (net.cpu for _, net in found.values())
        print(f"\n{many / few:.2f} times; at most {LIMIT_FILES} allowed")


if __name__ == "__main__":
    main()
