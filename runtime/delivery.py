"""From a host's rows to global `jax.Array`s: which rows this process must read, and how its devices get them.

The plan asks the sharding itself which part each device of this process holds, so any mesh works: batch over one axis
or several, in any order, devices permuted, replicas, axes that split the sequence, rows shared between hosts, hosts
without a device in the mesh. A process reads each row it needs once, whole, and hands on only the columns of its
devices; where the sequence is split over hosts that costs reading more than is kept, since segments and positions of a
row follow from all that comes before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from numpy.typing import NDArray

from gristmill.formats.errors import SettingsError
from gristmill.runtime.array_entry import ArrayEntry
from gristmill.runtime.whole_number import whole_number

__all__ = ["BatchPlan", "plan_batch", "zigzag_columns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How global batches of one shape reach the devices of this process.

    Attributes:
        global_batch: G, rows of a batch over all processes.
        sequence_length: L.
        microbatches: k, into which the rows of a batch are cut, or None where they are not.
        sharding: of the arrays delivered, which have `shape`.
        rows: int64 [R], the rows of a batch that this process reads: sorted, each once; empty where no device of the
            mesh is its own.
        places: where the rows of each part lie among those read, by the first row of the part in a batch or microbatch.
        columns: int64 [L], which column of a row is delivered in each place; None where all stay where they are.
    """

    global_batch: int
    sequence_length: int
    microbatches: int | None = None
    sharding: Sharding
    rows: NDArray[np.int64]
    places: Mapping[int, slice]
    columns: NDArray[np.int64] | None = None
    _entries: dict[tuple[bool, np.dtype[np.generic]], ArrayEntry] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _widths: dict[tuple[int, bool], "BatchPlan"] = field(init=False, repr=False, compare=False, default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a global array: (G, L), or (k, G / k, L) in microbatches."""
        return (*self.row_shape, self.sequence_length)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a global array that holds one value for each row: (G,), or (k, G / k) in microbatches."""
        if self.microbatches is None:
            return (self.global_batch,)
        return (self.microbatches, self.global_batch // self.microbatches)

    @property
    def row_sharding(self) -> Sharding:
        """Sharding of an array of `row_shape` that lies as the rows of the batch do."""
        return _sharding_of_rows(self.sharding, len(self.row_shape))

    def of_width(self, width: int, *, split: bool = False) -> "BatchPlan":
        """The plan for arrays that hold `width` values for each row instead of L.

        Args:
            width: values of a row.
            split: whether the axes that split the sequence split these too, in the order given; else each device of a
                row gets them all.
        """
        found = self._widths.get((width, split))
        if found is None:
            sharding = self.sharding if split else self.row_sharding
            found = replace(self, sequence_length=width, sharding=sharding, columns=None)
            self._widths[width, split] = found
        return found

    def deliver(self, local: NDArray[np.generic]) -> jax.Array:
        """Makes a global array of what this process read.

        Args:
            local: [R, L], the rows of `rows` in that order, their columns in natural order; or [R], one value for each
                of them. JAX may keep the memory (on CPU it does), so it must never be written again.

        Returns:
            Array of `shape` with `sharding`, the columns in the order of `columns`; or of `row_shape` with
            `row_sharding`. Each process gives its own devices their part, without any communication.
        """
        per_row = local.ndim == 1
        if self.columns is not None and not per_row:
            local = local.take(self.columns, axis=1)
        if self.microbatches is not None:
            local = local.reshape(self.microbatches, len(self.rows) // self.microbatches, *local.shape[1:])
        key = (per_row, local.dtype)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._entry(per_row)
        return entry.make(local)

    def _entry(self, per_row: bool) -> ArrayEntry:
        """What makes arrays of what this process read."""
        shape, sharding = (self.row_shape, self.row_sharding) if per_row else (self.shape, self.sharding)
        axis = len(self.row_shape) - 1  # of the rows; microbatches before it are never split

        def part(index: tuple[slice, ...] | None) -> tuple[slice, ...]:
            rows = slice(None) if index is None else index[axis]
            others = () if index is None else index[axis + 1 :]
            return (slice(None),) * axis + (self.places[rows.start or 0], *others)

        parts = sharding.addressable_devices_indices_map(shape)
        return ArrayEntry(shape, sharding, {device: part(index) for device, index in parts.items()})


@lru_cache(maxsize=64)
def _sharding_of_rows(sharding: Sharding, dimensions: int) -> Sharding:
    """A sharding without what it says of the last dimension; made once, since each batch needs it."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    return sharding.update(spec=PartitionSpec(*tuple(sharding.spec)[:dimensions]))


def zigzag_columns(sequence_length: int, parts: int) -> NDArray[np.int64]:
    """The order of columns that gives each part of a causal sequence the same amount of attention.

    The sequence is cut into ``2 * parts`` chunks; part *i* gets chunk *i* and, behind it, chunk ``2 * parts - 1 - i``,
    so that each has an early chunk with little to attend to and a late one with much.

    Args:
        sequence_length: L.
        parts: into how many parts the sequence is split, at least 1.

    Returns:
        int64 [L], a permutation: place *j* of the sequence delivered is column ``result[j]`` of the row. Its inverse is
        ``numpy.argsort(result)``.

    Raises:
        SettingsError: L is no multiple of ``2 * parts``.

    Examples:
        >>> zigzag_columns(8, 2).tolist()
        [0, 1, 6, 7, 2, 3, 4, 5]
    """
    if sequence_length % (2 * parts):
        raise SettingsError(
            f"sequence_length {sequence_length} cannot be dealt out in zig-zag over {parts} parts of the sequence: it "
            f"must be a multiple of {2 * parts}, two chunks for each part"
        )
    chunks = np.arange(sequence_length, dtype=np.int64).reshape(2 * parts, -1)
    first = np.arange(parts)
    return chunks[np.stack([first, 2 * parts - 1 - first], axis=1).ravel()].ravel()


def plan_batch(
    sharding: Sharding,
    global_batch: int,
    sequence_length: int,
    *,
    microbatches: int | None = None,
    zigzag: bool = False,
) -> BatchPlan:
    """Plans the delivery of [G, L] batches, or of [k, B, L] ones in k microbatches of B = G / k rows.

    Args:
        sharding: how a [G, L] array, or a microbatch [B, L], lies on the devices of all processes: usually a
            `NamedSharding` whose first entry names the axes that split the rows, and the second those that split the
            sequence. Microbatches themselves are not split over devices.
        global_batch: G, at least 1.
        sequence_length: L, at least 1.
        microbatches: k, at least 1; None for [G, L]. Microbatch *i* holds rows ``[i * B, (i + 1) * B)`` of the batch.
        zigzag: deliver the columns in the order of `zigzag_columns` for as many parts as the sharding splits the
            sequence into.

    Raises:
        SettingsError: G, B or L does not divide evenly over the axes, the sharding does not fit two dimensions, or
            another argument is out of range.

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
    global_batch = whole_number("global_batch", global_batch, 1, of="rows")
    groups = _microbatches(microbatches, global_batch)
    shape = (global_batch // groups, sequence_length)
    if isinstance(sharding, NamedSharding) and len(sharding.spec) > len(shape):
        raise SettingsError(
            f"a batch has two dimensions, rows and sequence, but {_describe(sharding)} splits {len(sharding.spec)}"
        )
    try:
        parts = sharding.addressable_devices_indices_map(shape)
        columns = zigzag_columns(sequence_length, shape[1] // sharding.shard_shape(shape)[1]) if zigzag else None
    except (ValueError, TypeError) as error:
        rows = f"global_batch {global_batch}" + ("" if microbatches is None else f" in {groups} microbatches")
        raise SettingsError(
            f"{rows} with sequence_length {sequence_length} does not fit {_describe(sharding)}: {error}"
        ) from error
    mine = np.zeros(shape[0], bool)
    bounds = [(slice(None) if index is None else index[0]).indices(shape[0])[:2] for index in parts.values()]
    for start, stop in bounds:
        mine[start:stop] = True
    before = np.concatenate([[0], np.cumsum(mine)]).tolist()  # rows read before each row of the batch
    first = np.arange(groups, dtype=np.int64)[:, None] * shape[0]
    return BatchPlan(
        global_batch=global_batch,
        sequence_length=sequence_length,
        microbatches=None if microbatches is None else groups,
        sharding=sharding if microbatches is None else _of_microbatches(sharding),
        rows=(first + np.flatnonzero(mine)).ravel(),
        places={start: slice(before[start], before[stop]) for start, stop in bounds},
        columns=columns,
    )


def _microbatches(microbatches: int | None, global_batch: int) -> int:
    """How many groups of rows a batch has."""
    if microbatches is None:
        return 1
    microbatches = whole_number("microbatches", microbatches, 1, or_none=True)
    if global_batch % microbatches:
        raise SettingsError(
            f"global_batch {global_batch} cannot be cut into {microbatches} microbatches: it must be a multiple of them"
        )
    return microbatches


def _of_microbatches(sharding: Sharding) -> Sharding:
    """The sharding of [k, B, L] where each [B, L] lies as given."""
    if isinstance(sharding, NamedSharding):
        return sharding.update(spec=PartitionSpec(None, *sharding.spec))
    if isinstance(sharding, SingleDeviceSharding):
        return sharding
    raise SettingsError(
        f"sharding is a {type(sharding).__name__}, which says nothing of microbatches; use a NamedSharding"
    )


def _describe(sharding: Sharding) -> str:
    if isinstance(sharding, NamedSharding):
        axes = ", ".join(f"{name}={size}" for name, size in sharding.mesh.shape.items())
        return f"the sharding {sharding.spec} on a mesh of {axes}"
    return repr(sharding)
