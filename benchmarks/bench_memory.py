"""How much memory does preparing take for one large file, one large shard and one very long document?

    python benchmarks/bench_memory.py

The input is one JSONL file of about 200 MB with a document of 30 MB in it, the output a single shard. The largest
resident size of the whole process tree is what counts; the claim is below 1.5 GiB on every way of running.
"""

import json
import shutil
import sys

from bench_prepare import recipe
from measure import machine, measure
from real_text import FOLDER, corpus, tokenizer

LONG_CHARS = 30_000_000
WAYS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("plain loop", ("--runner", "loop")),
    ("auto", ()),
    ("Beam, one worker", ("--runner", "FnApiRunner")),
    (
        "Beam, two threads over gRPC",
        ("--runner", "FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_threading"),
    ),
    (
        "Beam, two processes",
        ("--runner", "FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"),
    ),
)


def main() -> None:
    """Prints the table."""
    source = corpus(170)
    vocabulary = tokenizer(source)
    path = FOLDER / "with-long-document.jsonl"
    if not path.exists():
        with source.open(encoding="utf-8") as lines:
            long_text = " ".join(json.loads(line)["text"] for line in lines)[:LONG_CHARS]
        partial = path.with_suffix(".partial")
        shutil.copy(source, partial)
        with partial.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"text": long_text}, ensure_ascii=False) + "\n")
        partial.rename(path)
    print(f"{machine()}; {path.stat().st_size / 1e6:.0f} MB with one document of {LONG_CHARS / 1e6:.0f} M characters")
    print("\n| way of running | peak MiB of the process tree | wall s |\n|---|---|---|")
    for name, words in WAYS:
        shutil.rmtree(FOLDER / "memory", ignore_errors=True)
        settings = recipe(path, vocabulary, "memory", "")
        settings.write_text(settings.read_text() + "[shards]\ntarget_tokens = 10_000_000_000\n")
        cost = measure([sys.executable, "-m", "gristmill", "prepare", str(settings), "--quiet", *words], memory=True)
        print(f"| {name} | {cost.memory / 2**20:.0f} | {cost.wall:.1f} |", flush=True)


if __name__ == "__main__":
    main()
