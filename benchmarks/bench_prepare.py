"""What does JSONL to shards cost, beside the least that could be done and beside other tools?

    python benchmarks/bench_prepare.py [--megabytes 210] [--rounds 3] [--megatron PYTHON]

Each line is a whole program, measured alternately; *net* leaves out start-up, which is the same program on an input of
one line. With --megatron, PYTHON is an interpreter that has megatron-core and torch (extra `parity`).
"""

import argparse
import shutil
import sys
from operator import attrgetter
from pathlib import Path

from measure import Cost, machine, measure
from real_text import EOD, FOLDER, corpus, tokenizer

HERE = Path(__file__).resolve().parent


def recipe(source: Path, vocabulary: Path, name: str, clean: str, top: str = "") -> Path:
    """Writes a recipe with one source, or one for each file of a folder."""
    path = FOLDER / f"{name}.toml"
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    path.write_text(
        f'name = "{name}"\noutput = "{FOLDER / name}"\n{top}\n[defaults]\n{clean}\n'
        f'[tokenizer]\npath = "{vocabulary}"\neod = "{EOD}"\n'
        + "".join(f'[[sources]]\nid = "{file.stem}"\nfiles = "{file}"\n' for file in files)
    )
    return path


def prepare(source: Path, vocabulary: Path, name: str, *words: str, clean: str = "", top: str = "") -> Cost:
    """Cost of `gristmill prepare` from nothing."""
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    path = recipe(source, vocabulary, name, clean, top)
    return measure([sys.executable, "-m", "gristmill", "prepare", str(path), "--quiet", *words])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=210)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megatron", metavar="PYTHON")
    parser.add_argument("--skip-slow", action="store_true", help="leave out the loops that take minutes")
    arguments = parser.parse_args()
    big = corpus(arguments.megabytes)
    vocabulary = tokenizer(big)
    tiny = FOLDER / "one-line.jsonl"
    tiny.write_text('{"text": "one line"}\n')
    one = {"RAYON_NUM_THREADS": "1", "FASTOKENS_BPE_THREADS": "1"}
    loops = HERE / "loops.py"
    programs = {
        "bare loop: orjson, fastokens flat, write": lambda source: measure(
            [sys.executable, str(loops), "flat", str(source), str(vocabulary), str(FOLDER / "bare.bin")], one
        ),
        "gristmill, plain loop": lambda source: prepare(source, vocabulary, "loop", "--runner", "loop"),
        'gristmill, plain loop, dedup_key = "identical"': lambda source: prepare(
            source, vocabulary, "identical", "--runner", "loop", top='dedup_key = "identical"'
        ),
        "gristmill, plain loop, clean = false": lambda source: prepare(
            source, vocabulary, "asis", "--runner", "loop", clean="clean = false"
        ),
        "gristmill, Beam, one worker": lambda source: prepare(source, vocabulary, "beam", "--runner", "FnApiRunner"),
    }
    serial = {"TOKENIZERS_PARALLELISM": "false"}
    slow = {
        "loop with tokenizers.encode_batch_fast": lambda source: measure(
            [sys.executable, str(loops), "batch", str(source), str(vocabulary), str(FOLDER / "batch.bin")],
            serial,
        )
    }
    if arguments.megatron:
        slow["Megatron's way: pool, encode, IndexedDatasetBuilder"] = lambda source: measure(
            [arguments.megatron, str(loops), "megatron", str(source), str(vocabulary), str(FOLDER / "megatron")],
            serial,
        )
    print(f"{machine()}; {big.stat().st_size / 1e6:.0f} MB of JSONL, vocabulary of 50,257")
    costs = best(programs, big, tiny, arguments.rounds)
    if not arguments.skip_slow:
        costs |= best(slow, big, tiny, 1)
    bare = costs[next(iter(programs))][1].cpu
    print(
        "\n| program | CPU-s | start-up CPU-s | net CPU-s | net, bare loop = 1 | peak MB |\n|---|---|---|---|---|---|"
    )
    for name, (start, net) in costs.items():
        print(f"| {name} | {start.cpu + net.cpu:.2f} | {start.cpu:.2f} | {net.cpu:.2f} | {net.cpu / bare:.2f} |")


def best(programs, big: Path, tiny: Path, rounds: int, by: str = "cpu"):  # type: ignore[no-untyped-def]  # of lambdas
    """For each program its start-up and its net cost, the smallest by CPU or wall time of some alternating rounds."""
    starts: dict[str, list[Cost]] = {name: [] for name in programs}
    wholes: dict[str, list[Cost]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            starts[name].append(program(tiny))
            wholes[name].append(program(big))
    found = {}
    for name in programs:
        start = min(starts[name], key=attrgetter(by))
        found[name] = (start, min(wholes[name], key=attrgetter(by)).net(start))
    return found


if __name__ == "__main__":
    main()
