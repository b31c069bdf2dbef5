"""How much memory does preparing take with all deduplication, for very many documents and for large ones?

    python benchmarks/bench_dedup_memory.py

One input of five million documents of four to nine words, one of 1 GB of real text (copies of it among them) with a
document of 50 MB. The largest resident size of the whole process tree is what counts; the claim is below 2 GiB.
"""

import json
import random
import shutil
import sys
from pathlib import Path

from bench_prepare import recipe
from measure import machine, measure
from real_text import FOLDER, corpus, tokenizer

DOCUMENTS = 5_000_000
LONG_CHARS = 50_000_000
_LOOSE = "warn_fraction = 1.0\nmax_fraction = 1.0\n"
_DEDUP = f"[near_dedup]\n{_LOOSE}[paragraph_dedup]\nmin_chars = 20\n{_LOOSE}"


def many() -> Path:
    """The input of tiny documents."""
    path = FOLDER / "many.jsonl"
    if not path.exists():
        rng = random.Random(1)
        words = [f"w{number}" for number in range(5000)]
        partial = path.with_suffix(".partial")
        with partial.open("w") as file:
            for _ in range(DOCUMENTS):
                file.write('{"text":"' + " ".join(rng.choices(words, k=rng.randint(4, 9))) + '"}\n')
        partial.rename(path)
    return path


def large(source: Path) -> Path:
    """The input of 1 GB."""
    path = FOLDER / "large.jsonl"
    if not path.exists():
        rng = random.Random(3)
        words = [f"word{number}" for number in range(20_000)]
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            while file.tell() < 1_000_000_000:
                with source.open("rb") as text:
                    shutil.copyfileobj(text, file)
            long_text = " ".join(rng.choices(words, k=LONG_CHARS // 7))[:LONG_CHARS]
            file.write(json.dumps({"text": long_text}).encode() + b"\n")
        partial.rename(path)
    return path


def main() -> None:
    """Prints the table."""
    source = corpus(400)
    vocabulary = tokenizer(source)
    print(f"{machine()}\n\n| input | MB | peak MiB of the process tree | wall s |\n|---|---|---|---|")
    for name, path in (("five million tiny documents", many()), ("1 GB with a document of 50 MB", large(source))):
        shutil.rmtree(FOLDER / "dedup", ignore_errors=True)
        settings = recipe(path, vocabulary, "dedup", "")
        settings.write_text(settings.read_text() + _DEDUP)
        cost = measure([sys.executable, "-m", "gristmill", "prepare", str(settings), "--quiet"], memory=True)
        print(f"| {name} | {path.stat().st_size / 1e6:.0f} | {cost.memory / 2**20:.0f} | {cost.wall:.1f} |", flush=True)


if __name__ == "__main__":
    main()
