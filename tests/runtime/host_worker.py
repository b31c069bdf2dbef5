"""One process of a training job on this machine: delivers in every layout, trains, saves, resumes and is killed.

test_processes.py starts several of them, each with the same list of things to do, and does some itself. The model is a
number that depends on every row trained on and on their order, in whole numbers, so that it is the same to the last bit
on any number of devices.
"""

import argparse
import json
import os
import signal
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray
from orbax.checkpoint.experimental import v1

from gristmill.runtime import Checkpoints, MegatronStream, TokenBatches, open_corpus

G, STEPS = 16, 2
PERMUTED = [5, 0, 3, 6, 1, 4, 7, 2]
SHARED = [0, 4, 1, 2, 5, 6, 3, 7]

Axes = str | tuple[str, ...] | None
LAYOUTS: dict[str, tuple[tuple[int, ...], str, tuple[Axes, ...], list[int] | None, dict[str, Any]]] = {
    "one axis": ((8,), "d", ("d",), None, {}),
    "two axes": ((4, 2), "df", (("d", "f"),), None, {}),
    "axes reversed": ((4, 2), "df", (("f", "d"),), None, {}),
    "devices permuted": ((8,), "d", ("d",), PERMUTED, {}),
    "tensor axis outermost": ((2, 4), "td", ("d",), None, {}),
    "sequence sharded": ((4, 2), "dc", ("d", "c"), None, {}),
    "context outermost": ((2, 4), "cd", ("d", "c"), None, {}),
    "rows shared by hosts": ((4, 2), "dt", ("d",), SHARED, {}),
    "fewer parts than hosts": ((8,), "t", (), None, {}),
    "two parts": ((2, 4), "dt", ("d",), None, {}),
    "hosts without a device": ((2,), "d", ("d",), [0, 1], {}),
    "sequence in zig-zag": ((2, 4), "dc", ("d", "c"), None, {"zigzag": True}),
    "context outermost in zig-zag": ((4, 2), "cd", ("d", "c"), PERMUTED, {"zigzag": True}),
    "microbatches": ((4, 2), "df", (("f", "d"),), None, {"microbatches": 2}),
    "microbatches of shared rows in zig-zag": ((4, 2), "dc", ("d", "c"), SHARED, {"microbatches": 4, "zigzag": True}),
}
"""Mesh shape, names of its axes, axes of rows and sequence, order of the devices, options of `TokenBatches`."""


ON_DEVICES = {
    "axes reversed": "device",
    "context outermost in zig-zag": "device",
    "microbatches of shared rows in zig-zag": "device",
    "rows shared by hosts": "tokens",
    "fewer parts than hosts": "tokens",
    "microbatches": "tokens",
}
"""Layouts in which fields are made on the devices too, with what is sent there."""


def sharding_of(layout: str) -> NamedSharding:
    """The sharding of a layout, over all devices of the job or the first of them."""
    shape, names, spec, order, _ = LAYOUTS[layout]
    devices = np.array(jax.devices())[list(range(int(np.prod(shape)))) if order is None else order]
    return NamedSharding(Mesh(devices.reshape(shape), tuple(names)), PartitionSpec(*spec))


def deliver(stream: MegatronStream) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
    """Takes two batches in each layout, in some of them with fields made on the devices.

    Returns:
        The rows that this process read for a batch, by layout, and every part that its devices hold, by
        ``layout|place|step|field|bounds``.
    """
    rows, parts = {}, {}
    for layout in [*LAYOUTS, *ON_DEVICES]:
        place = ON_DEVICES[layout] if layout in rows else "host"
        options = LAYOUTS[layout][-1] | {"fields": place}
        with TokenBatches(stream, G, sharding_of(layout), **options) as batches:
            rows[layout] = len(batches.plan.rows)
            expand = jax.jit(batches.expand) if place != "host" else batches.expand
            for step in range(STEPS):
                found = next(batches)
                assert {name: array.shape for name, array in found.items()} == {
                    name: spec.shape for name, spec in batches.element_spec.items()
                }
                for field, array in expand(found).items():
                    assert (array.shape, array.sharding) == (batches.plan.shape, batches.plan.sharding)
                    for shard in array.addressable_shards:
                        bounds = [part.indices(size)[:2] for part, size in zip(shard.index, array.shape, strict=True)]
                        parts[f"{layout}|{place}|{step}|{field}|{json.dumps(bounds)}"] = np.asarray(shard.data)
    return rows, parts


class Job:
    """A run of training, as far as its data go."""

    batches: TokenBatches

    def __init__(self, corpus: str) -> None:
        self.stream = open_corpus(corpus).stream()

    def open(self, layout: str = "axes reversed", global_batch: int = G, **options: Any) -> None:
        """Begins anew at the first row."""
        self.close()
        self.sharding = sharding_of(layout)
        everywhere = NamedSharding(self.sharding.mesh, PartitionSpec())
        self.model = {"seen": jax.device_put(jnp.uint32(0), everywhere)}
        self.batches = TokenBatches(self.stream, global_batch, self.sharding, **options)
        self._train = jax.jit(fold, out_shardings=everywhere)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.model = {"seen": self._train(self.model["seen"], next(self.batches)["inputs"])}

    def save(self, api: str, folder: str, step: int, *, then: int = 0, kill: bool = False) -> None:
        """Saves in the background, trains on for `then` steps meanwhile; killed, it neither waits nor trains."""
        if api == "v0":
            checkpoints = Checkpoints(folder)
            checkpoints.save(step, self.model, self.batches)
            if kill:
                os.kill(os.getpid(), signal.SIGKILL)
            self.train(then)
            checkpoints.close()
        else:
            with v1.training.Checkpointer(folder) as checkpointer:
                saving = checkpointer.save_checkpointables_async(step, {"model": self.model, "data": self.batches})
                self.train(then)
                saving.result()

    def restore(self, api: str, folder: str) -> int:
        """Goes on from the newest checkpoint; returns its step."""
        if api == "v0":
            with Checkpoints(folder) as checkpoints:
                step, self.model = checkpoints.restore(self.model, self.batches)
            return step
        with v1.training.Checkpointer(folder) as checkpointer:
            newest = checkpointer.latest
            assert newest is not None
            loaded = checkpointer.load_checkpointables(newest, {"model": self.model, "data": self.batches})
            self.model = loaded["model"]
            return int(newest.step)

    def save_at(self, folder: str, steps: list[int]) -> None:
        """Saves after each of these steps while it trains on."""
        with Checkpoints(folder, keep=len(steps)) as checkpoints:
            for step, before in zip(steps, [0, *steps], strict=False):
                self.train(step - before)
                checkpoints.save(step, self.model, self.batches)

    def resume_at(self, folder: str, steps: list[int]) -> list[tuple[int, int]]:
        """Goes on from each of these checkpoints for one batch; returns the rows delivered and the model, for each."""
        found = []
        with Checkpoints(folder, keep=len(steps)) as checkpoints:
            for step in steps:
                _, self.model = checkpoints.restore(self.model, self.batches, step)
                self.train(1)
                found.append((self.batches.next_sample, int(self.model["seen"])))
        return found

    def close(self) -> None:
        if hasattr(self, "batches"):
            self.batches.close()

    def do(self, work: Sequence[Any]) -> Any:
        """Does one thing of a list: its name, then its arguments, the named ones last as a dict."""
        name, *given = work
        named = given.pop() if given and isinstance(given[-1], dict) else {}
        found = getattr(self, name)(*given, **named)
        return [found, self.batches.next_sample, int(self.model["seen"])]


def fold(seen: jax.Array, inputs: jax.Array) -> jax.Array:
    """Takes the rows of a batch into account, one after the other; see `expected` in test_processes.py."""
    rows = inputs.reshape(-1, inputs.shape[-1]).astype(jnp.uint32)
    digests = (rows * (2 * jnp.arange(rows.shape[1], dtype=jnp.uint32) + 1)).sum(axis=1, dtype=jnp.uint32)
    found, _ = jax.lax.scan(lambda value, digest: (value * jnp.uint32(1_000_003) + digest, None), seen, digests)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--out", required=True, help="prefix of the files of parts held and of what was done")
    parser.add_argument("--work", required=True, help="JSON: a list of what to do, see Job.do")
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8 // arguments.processes)
    jax.distributed.initialize(f"127.0.0.1:{arguments.port}", arguments.processes, arguments.process)
    job = Job(arguments.corpus)
    rows, parts = deliver(job.stream)
    out = f"{arguments.out}-{arguments.process}"
    np.savez(f"{out}.npz", allow_pickle=False, **parts)
    with open(f"{out}.jsonl", "w", encoding="ascii") as report:
        print(json.dumps(rows), file=report, flush=True)
        for work in json.loads(arguments.work):
            print(json.dumps(job.do(work)), file=report, flush=True)
    job.close()


if __name__ == "__main__":
    main()
