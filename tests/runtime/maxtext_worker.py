"""What MaxText does with its data, restated from a description of its `MultiHostDataLoadIterator`.

test_maxtext.py uses `Loader` in its own process and starts some of this file, which are the processes of a job: they
report the rows that their devices hold, save where they are as MaxText does, and go on.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

PERMUTED = [2, 0, 3, 1]
STEPS = 3


class Loader:
    """Calls what that class calls: `iter` of an iterable, `next`, an equal cut for the devices here, zeros at the end.

    Attributes:
        local_iterator: what MaxText's checkpoints take.
    """

    def __init__(self, dataloader: Any, mesh: Mesh, *, generate_padding_batch: bool = False) -> None:
        assert not hasattr(dataloader, "as_numpy_iterator"), "such a one would be taken for a dataset of TensorFlow's"
        assert isinstance(dataloader, Iterable)
        self.dataloader, self.mesh, self.pads = dataloader, mesh, generate_padding_batch
        self.reset()

    def reset(self) -> None:
        """Begins anew, as before each round of validation."""
        self.local_iterator: Any = iter(self.dataloader)
        self.last: dict[str, NDArray[Any]] | None = None
        self.at_end = False

    def __next__(self) -> dict[str, jax.Array]:
        if not (self.at_end and self.pads):
            try:
                self.last = next(self.local_iterator)
            except StopIteration:
                if not self.pads:
                    raise
                self.at_end = True
        assert self.last is not None
        local = jax.tree.map(np.zeros_like, self.last) if self.at_end else self.last
        return jax.tree.map(self.globally, local)  # type: ignore[no-any-return]  # a tree is Any to mypy

    def globally(self, local: NDArray[Any]) -> jax.Array:
        """The global array of equal parts: of its processes, and of their devices in the order of the mesh."""
        parts = np.split(local, len(self.mesh.local_devices), axis=0)
        shape = (jax.process_count() * local.shape[0], *local.shape[1:])
        sharding = NamedSharding(self.mesh, PartitionSpec(self.mesh.axis_names))
        buffers = jax.device_put(parts, self.mesh.local_devices)
        return jax.make_array_from_single_device_arrays(shape, sharding, buffers)


def save(loader: Loader, folder: Path) -> None:
    """Writes the iterator's state under the name that MaxText gives it."""
    name = f"process_{jax.process_index()}-of-{jax.process_count()}.json"
    (folder / name).write_text(json.dumps(loader.local_iterator.get_state(), indent=4))


def restore(loader: Loader, folder: Path) -> None:
    """Reads it back."""
    name = f"process_{jax.process_index()}-of-{jax.process_count()}.json"
    loader.local_iterator.set_state(json.loads((folder / name).read_text()))


def main() -> None:
    """Runs one process."""
    parser = argparse.ArgumentParser()
    for name in ("--port", "--process", "--processes", "--folder", "--settings"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 4 // int(given.processes))
    jax.distributed.initialize(f"127.0.0.1:{given.port}", int(given.processes), int(given.process))
    from gristmill.runtime.maxtext import maxtext_batches

    mesh = Mesh(np.array(jax.devices())[PERMUTED].reshape(2, 2), ("data", "fsdp"))
    folder = Path(given.folder)
    loader = Loader(maxtext_batches(json.loads(given.settings), mesh=mesh), mesh)
    parts = {}
    for step in range(STEPS):
        if step == 2:  # another process of the same number goes on
            save(loader, folder)
            loader = Loader(maxtext_batches(json.loads(given.settings), mesh=mesh), mesh)
            restore(loader, folder)
        for name, array in next(loader).items():
            for shard in array.addressable_shards:
                start = shard.index[0].start or 0
                parts[f"{step}|{name}|{start}"] = np.asarray(shard.data)
    loader.local_iterator.close()
    np.savez(folder / f"parts-{given.process}.npz", allow_pickle=False, **parts)


if __name__ == "__main__":
    main()
