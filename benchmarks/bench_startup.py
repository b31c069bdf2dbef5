"""How long does a training process take from its imports to the first batch, and how much memory is its own?

    python benchmarks/bench_startup.py [--samples 1000000 1000000000] [--shards 256 8192] [--rounds 3]

Corpora of files with holes (see `sparse_corpus.py`), of two sizes and two numbers of shards. For each, processes are
started one after the other, and then two at once: each imports everything, makes a mesh, and then opens corpus and
stream and takes the first batch of 8 rows, which is what is timed, wall and CPU; then it reads 6,400 rows at random
places and says how much of its memory no other process shares (USS), above that of the imports and the mesh. The best
of some rounds. A process that runs alone counts the pages of files as its own, the second of two does not.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import machine

BATCH = 8


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, nargs="+", default=[1_000_000, 1_000_000_000])
    parser.add_argument("--shards", type=int, nargs="+", default=[256, 8192])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--open", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.open:
        open_in_this_process(arguments.open)
        return
    print(f"{machine()}; best of {arguments.rounds}")
    print(
        "\n| samples | shards | imports s | open s | first batch s | together s | together CPU-s | private MB | of the "
        "second process |\n|---|---|---|---|---|---|---|---|---|"
    )
    for shards in arguments.shards:
        for samples in arguments.samples:
            with tempfile.TemporaryDirectory(prefix="gristmill-bench-", dir=os.environ.get("TMPDIR")) as folder:
                from sparse_corpus import write_sparse_corpus

                write_sparse_corpus(Path(folder), samples, shards)
                found = [start(folder, 1)[0] for _ in range(arguments.rounds + 1)][1:]  # the first compiles
                second = min(start(folder, 2)[1]["private"] for _ in range(arguments.rounds))
            best = {key: min(one[key] for one in found) for key in found[0]}
            print(
                f"| {samples:.0e} | {shards} | {best['imports']:.2f} | {best['open']:.3f} | {best['first']:.3f} | "
                f"{best['open'] + best['first']:.3f} | "
                f"{best['cpu']:.3f} | {best['private'] / 1e6:.1f} | {second / 1e6:.1f} |",
                flush=True,
            )


def start(folder: str, processes: int) -> list[dict[str, float]]:
    """What so many processes that run at once say of themselves, those that are measured last coming last."""
    command = [sys.executable, __file__, "--open", folder]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    running = []
    for _ in range(processes):  # each is ready, and waits for a line, before the next starts
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        running.append((process, json.loads(process.stdout.readline())))
    for process, _ in running:
        process.communicate("\n")
    return [found for _, found in running]


def open_in_this_process(folder: str) -> None:
    """Opens a corpus, takes a batch, reads at random, prints what it cost, and waits to be let go."""
    began = time.monotonic()
    import jax
    import numpy as np
    import psutil
    from jax.sharding import NamedSharding, PartitionSpec

    from gristmill.runtime import StreamSource, TokenBatches, open_corpus

    sharding = NamedSharding(jax.make_mesh((1,), ("data",)), PartitionSpec("data"))
    jax.block_until_ready(jax.device_put(np.zeros((BATCH, 8)), sharding))
    imported, cpu = time.monotonic(), time.process_time()
    base = psutil.Process().memory_full_info().uss
    stream = open_corpus(folder).stream("train")
    StreamSource(stream)
    opened = time.monotonic()
    batches = TokenBatches(stream, BATCH, sharding)
    jax.block_until_ready(next(batches))
    first, cpu = time.monotonic(), time.process_time() - cpu
    rows = np.random.default_rng(0).integers(0, len(stream), (100, 64))
    for some in rows:
        stream.read(some)
    private = psutil.Process().memory_full_info().uss - base
    found = {"imports": imported - began, "open": opened - imported, "first": first - opened, "cpu": cpu}
    found["private"] = private
    print(json.dumps(found), flush=True)
    sys.stdin.readline()
    batches.close()


if __name__ == "__main__":
    main()
