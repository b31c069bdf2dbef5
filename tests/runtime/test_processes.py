"""Two real processes over loopback: each host's devices hold the reference, and checkpoints cross process counts."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gristmill.runtime import Checkpoints, TokenBatches, open_corpus

G = 16
ROWS = {
    "one axis": 8,
    "two axes": 8,
    "axes reversed": 8,
    "devices permuted": 8,
    "tensor axis outermost": 16,
    "sequence sharded": 8,
    "context outermost": 16,
    "rows shared by hosts": 12,
    "fewer parts than hosts": 16,
}
"""For each layout of the workers, the rows of a batch that each of two processes reads."""


def run_hosts(corpus: str, processes: int, *arguments: str) -> list[dict[str, Any]]:
    """Runs the worker in that many processes and returns what each reported."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("host_worker.py")), corpus, *arguments]
    workers = [
        subprocess.Popen(
            [*command, "--port", str(port), "--processes", str(processes), "--process", str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    try:
        finished = [worker.communicate(timeout=120) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (_, errors) in zip(workers, finished, strict=True):
        assert worker.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in finished]


@pytest.mark.slow
def test_two_processes(blended_corpus: str, tmp_path: Path) -> None:
    stream = open_corpus(blended_corpus).stream()
    inputs = stream.read(np.arange(len(stream)))[:, :-1]
    by_two, by_one = str(tmp_path / "by-two"), str(tmp_path / "by-one")
    for report in run_hosts(blended_corpus, 2, "--layouts", "--save", by_two):
        assert report["rows"] == ROWS

    sharding = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))
    everywhere = NamedSharding(sharding.mesh, PartitionSpec())
    with TokenBatches(stream, 8, sharding) as batches:  # another batch size and number of processes
        with Checkpoints(by_two) as checkpoints:
            step, model = checkpoints.restore({"weights": jax.device_put(jnp.zeros(8), everywhere)}, batches)
        assert (step, float(model["weights"][0]), batches.next_sample) == (3, 3.0, 3 * G)
        assert np.asarray(next(batches)["inputs"]).tolist() == inputs[48:56].tolist()
        with Checkpoints(by_one) as checkpoints:
            checkpoints.save(7, {"weights": model["weights"] + 4}, batches)

    for report in run_hosts(blended_corpus, 2, "--restore", by_two, by_one):
        assert report[by_two] == [3, 3.0, inputs[48:64].tolist()]
        assert report[by_one] == [7, 7.0, inputs[56:72].tolist()]
