"""From a host's rows to global `jax.Array`s: which rows this process must read, and how its devices get them.

The plan asks the sharding itself which part each device of this process holds, so any mesh works: batch over one axis
or several, in any order, devices permuted, replicas, axes that split the sequence, rows shared between hosts. A process
reads each row it needs once, whole; where the sequence is split over hosts that costs reading more than the columns
kept, since segments and positions of a row follow from all that comes before.
"""

from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding
from numpy.typing import NDArray

from gristmill.formats.errors import SettingsError

__all__ = ["BatchPlan", "plan_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How global batches of one shape reach the devices of this process.

    Attributes:
        global_batch: rows of a batch over all processes, G.
        sequence_length: L.
        sharding: of the [G, L] arrays.
        rows: int64 [R], the rows of a batch that this process reads: sorted, each once.
    """

    global_batch: int
    sequence_length: int
    sharding: Sharding
    rows: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of a global array, (G, L)."""
        return (self.global_batch, self.sequence_length)

    def deliver(self, local: NDArray[np.generic]) -> jax.Array:
        """Makes a global array of what this process read.

        Args:
            local: [R, L], the rows of `rows` in that order. JAX may keep the memory (on CPU it does), so it must never
                be written again.

        Returns:
            Array of shape [G, L] with `sharding`; each process gives its own devices their part, without any
            communication.
        """

        def part(index: tuple[slice, ...] | None) -> NDArray[np.generic]:
            rows, columns = index or (slice(None), slice(None))
            start, stop, _ = rows.indices(self.global_batch)
            first = int(np.searchsorted(self.rows, start))  # all rows of a part are there, so they lie side by side
            return local[first : first + stop - start, columns]

        return jax.make_array_from_callback(self.shape, self.sharding, part, dtype=local.dtype)


def plan_batch(sharding: Sharding, global_batch: int, sequence_length: int) -> BatchPlan:
    """Plans the delivery of [G, L] batches.

    Args:
        sharding: how a [G, L] array lies on the devices of all processes, usually a `NamedSharding` whose first entry
            names the axes that split the batch.
        global_batch: G, at least 1.
        sequence_length: L, at least 1.

    Raises:
        SettingsError: G or L does not divide evenly over the axes, or the sharding does not fit two dimensions.

    Examples:
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> plan_batch(NamedSharding(mesh, jax.P("data")), 4, 8).rows.tolist()
        [0, 1, 2, 3]
    """
    if not isinstance(sharding, Sharding):
        raise SettingsError(
            f"sharding is a {type(sharding).__name__}; it must be a jax.sharding.Sharding, for example "
            'NamedSharding(mesh, PartitionSpec("data"))'
        )
    if isinstance(global_batch, bool) or not isinstance(global_batch, int) or global_batch < 1:
        raise SettingsError(f"global_batch must be a whole number of rows of at least 1, not {global_batch!r}")
    shape = (global_batch, sequence_length)
    if isinstance(sharding, NamedSharding) and len(sharding.spec) > len(shape):
        raise SettingsError(
            f"a batch has two dimensions, rows and sequence, but {_describe(sharding)} splits {len(sharding.spec)}"
        )
    try:
        parts = sharding.addressable_devices_indices_map(shape)
    except (ValueError, TypeError) as error:
        raise SettingsError(
            f"global_batch {global_batch} with sequence_length {sequence_length} does not fit {_describe(sharding)}: "
            f"{error}"
        ) from error
    rows = np.zeros(global_batch, bool)
    for index in parts.values():
        rows[index[0] if index is not None else slice(None)] = True
    return BatchPlan(
        global_batch=global_batch,
        sequence_length=sequence_length,
        sharding=sharding,
        rows=np.flatnonzero(rows).astype(np.int64),
    )


def _describe(sharding: Sharding) -> str:
    if isinstance(sharding, NamedSharding):
        axes = ", ".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
        return f"the sharding {sharding.spec} on a mesh of {axes}"
    return repr(sharding)
