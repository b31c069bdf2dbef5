"""A run of training that is killed again and again; started by test_resume.py.

Reads from standard input, as JSON, what each life of the run is to do. Imports everything once, and forks the processes
of each life, one or two that form a job of JAX's, before JAX has started anything, so that a life costs no imports. It
trains on from the newest checkpoint, saves every few steps in the background while batches are made ahead, and kills
itself right after one of the saves.
"""

import json
import os
import signal
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill.runtime import Checkpoints, Stream, TokenBatches, open_corpus


def live(life: dict[str, Any], process: int, port: int, report: Any) -> None:
    """One life of one process. Reports, line by line, where it stands after restoring, and of every batch its rows."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8 // life["processes"])
    if life["processes"] > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", life["processes"], process)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "context"))
    whole = open_corpus(life["corpus"]).stream(index_set=life["index_set"])
    stream: Stream = whole if life["left_out"] is None else whole.skip_range(*life["left_out"])
    sharding = NamedSharding(mesh, PartitionSpec("data", "context"))
    everywhere = NamedSharding(mesh, PartitionSpec())

    @jax.jit
    def step(seen: jax.Array, inputs: jax.Array) -> jax.Array:
        found: jax.Array = seen * jnp.uint32(1_000_003) + inputs.astype(jnp.uint32).sum(dtype=jnp.uint32)
        return found

    checkpoints = Checkpoints(life["checkpoints"])
    options = {"microbatches": life["microbatches"], "prefetch": life["prefetch"]}
    with TokenBatches(stream, life["global_batch"], sharding, **options) as batches:
        model = {"seen": jax.device_put(jnp.uint32(0), everywhere), "rows": jax.device_put(jnp.uint32(0), everywhere)}
        if checkpoints.latest is not None:
            _, model = checkpoints.restore(model, batches)
        print(json.dumps([batches.next_sample, int(model["rows"])]), file=report, flush=True)
        saves = 0
        for number, batch in enumerate(batches, 1):
            inputs = np.zeros(batch["inputs"].shape, np.int64)
            for shard in batch["inputs"].addressable_shards:
                inputs[shard.index] = shard.data
            rows = batches.next_sample - batches.global_batch + batches.plan.rows
            tokens = inputs.reshape(-1, stream.sequence_length)[batches.plan.rows]
            print(json.dumps([rows.tolist(), tokens.tolist()]), file=report, flush=True)
            model = {"seen": step(model["seen"], batch["inputs"]), "rows": model["rows"] + batches.global_batch}
            if number % life["save_every"] == 0:
                checkpoints.save(batches.next_sample, model, batches)
                saves += 1
                if saves == life["kill_at"]:
                    time.sleep(life["kill_after_seconds"])
                    os.kill(os.getpid(), signal.SIGKILL)
    checkpoints.close()


def main() -> None:
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")  # JAX has started nothing yet
    for life in json.load(sys.stdin):
        if "move_to" in life:
            os.rename(life["corpus"], life["move_to"])
            life["corpus"] = life["move_to"]
        for path in Path(life["checkpoints"]).glob("[0-9]*/data/state.json") if "add_to_state" in life else ():
            path.write_text(json.dumps({**json.loads(path.read_text()), **life["add_to_state"]}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        children = []
        for process in range(life["processes"]):
            child = os.fork()
            if child == 0:
                os.dup2(2, 1)  # Gloo tells there with whom it is connected
                with open(f"{life['report']}.{process}", "w", encoding="ascii") as report:
                    live(life, process, port, report)
                os._exit(0)  # nothing of the process that waits is run twice
            children.append(child)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)


if __name__ == "__main__":
    main()
