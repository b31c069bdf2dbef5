"""Does `auto` use the machine: how much less wall time than one worker does it take?

    python benchmarks/bench_cores.py [--megabytes 400] [--rounds 3]

Each way is measured on one JSONL file and, for its start-up, on two files of a line each, so that two processes have
something to do; *net* is the difference. Whole programs, alternately, the best of the rounds. The last line is what a
user waits for on a megabyte, imports included.
"""

import argparse

from bench_prepare import best, prepare
from measure import machine
from real_text import FOLDER, corpus, tokenizer

BEAM = ("--runner", "FnApiRunner")
WAYS: dict[str, tuple[str, ...]] = {
    "Beam, one worker": BEAM,
    "auto": (),
    "loop, one process": ("--runner", "loop"),
    "Beam, two threads": (*BEAM, "--direct_num_workers=2"),
    "Beam, two threads over gRPC": (*BEAM, "--direct_num_workers=2", "--direct_running_mode=multi_threading"),
    "Beam, two processes": (*BEAM, "--direct_num_workers=2", "--direct_running_mode=multi_processing"),
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    big = corpus(arguments.megabytes)
    vocabulary = tokenizer(big)
    tiny = FOLDER / "two-lines"
    tiny.mkdir(exist_ok=True)
    for name in ("a", "b"):
        (tiny / f"{name}.jsonl").write_text(f'{{"text": "line {name}"}}\n')

    def program(words: tuple[str, ...]):  # type: ignore[no-untyped-def]  # a function of the source
        few = words or ("--max-workers", "2")  # so few bytes would not start processes
        return lambda source: prepare(source, vocabulary, "cores", *(few if source == tiny else words))

    print(f"{machine()}; {big.stat().st_size / 1e6:.0f} MB of JSONL, vocabulary of 50,257")
    costs = best({name: program(words) for name, words in WAYS.items()}, big, tiny, arguments.rounds, by="wall")
    one = costs["Beam, one worker"][1].wall
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
