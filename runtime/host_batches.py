"""Batches as NumPy arrays of one process, for trainers that put them onto devices themselves, such as MaxText.

A process gets the rows that its devices will hold, so that the trainer's global array has the stream's rows in the
stream's order, whatever the mesh. State and end are those of the whole job: every process has the same, so a run may go
on with another number of them. The price of not knowing the sharding is that a host whose devices share rows with
another's cannot be served; `TokenBatches` is for those.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grain
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.errors import SettingsError
from gristmill.runtime.fields import FieldOptions, options_or_default
from gristmill.runtime.naming import Naming, check_naming
from gristmill.runtime.raw_rows import RawRows
from gristmill.runtime.row_batches import LastBatch, RowBatches
from gristmill.runtime.streams import Stream, require_stream
from gristmill.runtime.whole_number import whole_number

if TYPE_CHECKING:
    from jax.sharding import Mesh

__all__ = ["host_rows", "HostBatches", "HostBatchIterator", "mesh_rows"]


def host_rows(global_batch: int, process_index: int, process_count: int) -> NDArray[np.int64]:
    """The rows of a batch that a process holds where each holds a block, in the order of their numbers.

    Returns:
        int64 [G / process_count], ascending.

    Raises:
        SettingsError: the rows do not divide evenly, or there is no such process.
    """
    if process_count < 1 or not 0 <= process_index < process_count:
        raise SettingsError(f"process {process_index} of {process_count}: processes are numbered from 0")
    return _blocks(global_batch, [process_index], process_count, "processes")


def mesh_rows(global_batch: int, mesh: "Mesh", process_index: int) -> NDArray[np.int64]:
    """The rows of a batch that the devices of a process hold, where its rows are split over all axes of a mesh.

    Args:
        global_batch: G.
        mesh: whose devices hold a block of rows each, in the order in which the mesh has them.
        process_index: number of the process.

    Returns:
        int64 [R], block after block in the order of the process's devices in the mesh, as `Mesh.local_devices` has
        them: what is cut into equal parts for these.

    Raises:
        SettingsError: the rows do not divide evenly over the devices, or the process has none.
    """
    owners = [device.process_index for device in mesh.devices.flat]
    places = [place for place, owner in enumerate(owners) if owner == process_index]
    if not places:
        raise SettingsError(
            f"process {process_index} has no device in the mesh of {len(owners)}; only processes that have may read"
        )
    return _blocks(global_batch, places, len(owners), "devices of the mesh")


def _blocks(global_batch: int, places: list[int], count: int, what: str) -> NDArray[np.int64]:
    """The rows of some of `count` equal blocks."""
    batch = whole_number("global_batch", global_batch, 1, of="rows")
    if batch % count:
        raise SettingsError(f"global_batch {batch} cannot be dealt out to {count} {what}: make it a multiple")
    size = batch // count
    return (np.array(places, np.int64)[:, None] * size + np.arange(size)).ravel()


def _checked_rows(rows: ArrayLike, global_batch: int) -> NDArray[np.int64]:
    """Rows of a batch, int64 [R]; others would be read from the batches before or behind it, in silence.

    Raises:
        SettingsError: there are none such, or one is there twice.
    """
    found = np.asarray(rows)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise SettingsError(
            f"rows are {found.dtype} of shape {found.shape}; the rule is a list of integers, such as host_rows and "
            "mesh_rows give"
        )
    found = found.astype(np.int64)
    bad = found[(found < 0) | (found >= global_batch)]
    if bad.size:
        raise SettingsError(
            f"row {bad[0]} is not in a batch of {global_batch}, whose rows are numbered from 0; see host_rows and "
            "mesh_rows"
        )
    if len(np.unique(found)) < len(found):
        raise SettingsError(f"rows {found.tolist()!s:.80} name one twice; each process reads a row of a batch once")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _FieldMaker:
    """Makes the fields of rows, and leaves them where they are."""

    options: FieldOptions
    naming: Naming
    eod_id: int
    vocabulary: int | None

    @property
    def paired(self) -> bool:
        return False

    def deliver(self, raw: RawRows) -> dict[str, NDArray[Any]]:
        return raw.fields(self.eod_id, self.options, vocabulary=self.vocabulary, naming=self.naming)


class HostBatchIterator(RowBatches):
    """Iterates over batches of NumPy arrays; `HostBatches` makes it. For the rest see `TokenBatches`.

    Attributes:
        rows: int64 [R], the rows of a batch that this process reads.
    """

    def __init__(self, batches: "HostBatches", **how: Any) -> None:
        """Reads nothing; `how` as for `RowBatches`."""
        self.rows = batches.rows
        stream, options = batches.stream, batches.options
        maker = _FieldMaker(options=options, naming=batches.naming, eod_id=stream.eod_id, vocabulary=stream.vocabulary)
        super().__init__(stream, batches.global_batch, batches.rows, maker, options=options, **how)


class HostBatches(grain.IterDataset):  # type: ignore[misc]  # Grain ships no types, so its classes are Any
    """A Grain `IterDataset` whose elements are the batches of one process, as dicts of NumPy arrays.

    Each ``iter`` begins at the first row, so a validation set is read anew by iterating anew. Pickles as paths.

    Attributes:
        stream: where the rows come from.
        global_batch: G, rows of a batch over all processes.
        rows: int64 [R], those of them that this process reads, in the order in which it delivers them.
        options: how the fields are made.
        naming: whose names they have.

    Examples:
        >>> batches = HostBatches(stream, 64, rows=mesh_rows(64, mesh, jax.process_index()))  # doctest: +SKIP
        >>> iterator = iter(batches)  # doctest: +SKIP
    """

    def __init__(
        self,
        stream: Stream,
        global_batch: int,
        *,
        rows: ArrayLike,
        options: FieldOptions | None = None,
        naming: Naming = "maxtext",
        last_batch: LastBatch = "drop",
        prefetch: int = 2,
        allow_stream_change: bool = False,
        close_seconds: float = 5.0,
        stall_seconds: float = 30.0,
    ) -> None:
        """Reads nothing. Arguments as for `TokenBatches`, but for `rows`.

        Args:
            stream: where the rows come from.
            global_batch: G.
            rows: int64 [R], which rows of a batch this process reads, each 0 to G - 1 and once: see `host_rows` and
                `mesh_rows`.
            options: how the fields are made; None takes the defaults of `FieldOptions`.
            naming: ``maxtext`` for the six fields, int32 [R, L]; ``megatron`` for Megatron's names and dtypes.
            last_batch: what becomes of the last rows where they are fewer than G.
            prefetch: how many batches are made ahead.
            allow_stream_change: let `set_state` take up the state of another stream.
            close_seconds: how long `close` waits for a read that is under way.
            stall_seconds: after how long a wait for a batch is reported in the log.

        Raises:
            SettingsError: an argument is out of range.
        """
        super().__init__()
        require_stream(stream)
        self.stream = stream
        self.global_batch = whole_number("global_batch", global_batch, 1, of="rows")
        self.rows = _checked_rows(rows, self.global_batch)
        self.options = options_or_default(options)
        self.naming = check_naming(naming)
        self._how: dict[str, Any] = {
            "last_batch": last_batch,
            "prefetch": prefetch,
            "allow_stream_change": allow_stream_change,
            "close_seconds": close_seconds,
            "stall_seconds": stall_seconds,
        }
        HostBatchIterator(self, **self._how).close()  # complains now, and not when a loop begins

    def __iter__(self) -> HostBatchIterator:
        return HostBatchIterator(self, **self._how)

    def __len__(self) -> int:
        """Number of batches."""
        full, rest = divmod(len(self.stream), self.global_batch)
        return full + (rest > 0 and self._how["last_batch"] == "pad")

    def __repr__(self) -> str:
        return f"HostBatches({self.stream!r}, global_batch={self.global_batch}, rows={len(self.rows)})"
