"""One of several processes of a training job on this machine; run by test_processes.py.

Each checks, in every layout, that its own devices hold their part of the reference, then goes through the checkpoints
that it is told to restore and leaves one of its own.
"""

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill.runtime import Checkpoints, MegatronStream, TokenBatches, make_fields, open_corpus

G = 16
PERMUTED = [5, 0, 3, 6, 1, 4, 7, 2]


def layouts() -> dict[str, NamedSharding]:
    devices = np.array(jax.devices())

    def sharding(
        shape: tuple[int, ...], names: str, *spec: str | tuple[str, ...], order: list[int] | None = None
    ) -> NamedSharding:
        chosen = devices if order is None else devices[order]
        return NamedSharding(Mesh(chosen.reshape(shape), tuple(names)), PartitionSpec(*spec))

    return {
        "one axis": sharding((8,), "d", "d"),
        "two axes": sharding((4, 2), "df", ("d", "f")),
        "axes reversed": sharding((4, 2), "df", ("f", "d")),
        "devices permuted": sharding((8,), "d", "d", order=PERMUTED),
        "tensor axis outermost": sharding((2, 4), "td", "d"),
        "sequence sharded": sharding((4, 2), "dc", "d", "c"),
        "context outermost": sharding((2, 4), "cd", "d", "c"),
        "rows shared by hosts": sharding((4, 2), "dt", "d", order=[0, 4, 1, 2, 5, 6, 3, 7]),
        "fewer parts than hosts": sharding((8,), "t"),
    }


def check_layouts(stream: MegatronStream) -> dict[str, int]:
    """Compares three batches of each layout; returns how many rows this process read for a batch."""
    rows = {}
    reference = make_fields(stream.read(np.arange(3 * G)), stream.eod_id)
    for name, sharding in layouts().items():
        with TokenBatches(stream, G, sharding) as batches:
            rows[name] = len(batches.plan.rows)
            for step in range(3):
                for field, array in next(batches).items():
                    for shard in array.addressable_shards:
                        expected = reference[field][step * G : (step + 1) * G][shard.index]
                        np.testing.assert_array_equal(np.asarray(shard.data), expected, f"{name}: {field}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--layouts", action="store_true")
    parser.add_argument("--restore", nargs="*", default=[])
    parser.add_argument("--save")
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8 // arguments.processes)
    jax.distributed.initialize(f"127.0.0.1:{arguments.port}", arguments.processes, arguments.process)
    stream = open_corpus(arguments.corpus).stream()
    report: dict[str, object] = {"rows": check_layouts(stream)} if arguments.layouts else {}
    sharding = layouts()["axes reversed"]
    weights = jax.device_put(jnp.zeros(8), NamedSharding(sharding.mesh, PartitionSpec()))
    with TokenBatches(stream, G, sharding, prefetch=3) as batches:
        for folder in arguments.restore:
            with Checkpoints(folder) as checkpoints:
                step, model = checkpoints.restore({"weights": weights}, batches)
            inputs = multihost_utils.process_allgather(next(batches)["inputs"], tiled=True)
            report[folder] = [step, float(model["weights"][0]), np.asarray(inputs).tolist()]
        if arguments.save:
            batches.set_state({**batches.get_state(), "next_sample": 0})
            for _ in range(3):
                next(batches)
            with Checkpoints(arguments.save) as checkpoints:
                checkpoints.save(3, {"weights": weights + 3}, batches)
                next(batches)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
