"""Does `auto` use the machine: how much less wall time than one worker does it take?

    python benchmarks/bench_cores.py [--megabytes 400] [--rounds 3]

Each way is measured on one JSONL file and, for its start-up, on one line; *net* is the difference. Whole programs,
alternately, the best of the rounds. The last line is what a user waits for on a megabyte, imports included.
"""

import argparse

from bench_prepare import best, prepare
from measure import Cost, machine
from real_text import FOLDER, corpus, tokenizer

WAYS: dict[str, tuple[str, ...]] = {
    "one worker": ("--runner", "FnApiRunner"),
    "auto": (),
    "two threads over gRPC": (
        "--runner",
        "FnApiRunner",
        "--direct_num_workers=2",
        "--direct_running_mode=multi_threading",
    ),
    "two processes": ("--runner", "FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"),
}
IN_MEMORY = ("--runner", "FnApiRunner", "--direct_num_workers=2")
"""What `auto` is on a large input; on one line it would be the plain loop, whose start-up is another."""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    big = corpus(arguments.megabytes)
    vocabulary = tokenizer(big)
    tiny = FOLDER / "one-line.jsonl"
    tiny.write_text('{"text": "one line"}\n')

    def program(name: str, words: tuple[str, ...]):  # type: ignore[no-untyped-def]  # a function of the source
        def run(source) -> Cost:  # type: ignore[no-untyped-def]
            return prepare(source, vocabulary, "cores", *(IN_MEMORY if source == tiny and name == "auto" else words))

        return run

    print(f"{machine()}; {big.stat().st_size / 1e6:.0f} MB of JSONL, vocabulary of 50,257")
    costs = best({name: program(name, words) for name, words in WAYS.items()}, big, tiny, arguments.rounds, by="wall")
    one = costs["one worker"][1].wall
    print("\n| way | wall s | start-up s | net wall s | net, one worker = 1 | net CPU-s |\n|---|---|---|---|---|---|")
    for name, (start, net) in costs.items():
        print(
            f"| {name} | {start.wall + net.wall:.2f} | {start.wall:.2f} | {net.wall:.2f} | {net.wall / one:.2f} "
            f"| {net.cpu:.2f} |"
        )
    small = FOLDER / "text-1.jsonl"
    with big.open("rb") as file:
        small.write_bytes(b"".join(file.readlines(1_000_000)))
    waited = prepare(small, vocabulary, "cores").wall
    print(f"\n{small.stat().st_size / 1e6:.1f} MB with auto: {waited:.2f} s of wall time")


if __name__ == "__main__":
    main()
