"""Global batches for a training loop: a Grain iterator whose elements are sharded `jax.Array`s.

Batch after batch, rows [next_sample, next_sample + G) of a stream are read by the processes that hold them, turned into
fields and handed to the devices, a few batches ahead on one thread. Elements are whole batches, so Grain's cost per
element is paid once for each; the price is that transformations of single rows belong into `StreamSource` pipelines.
"""

from collections.abc import Mapping
from typing import Literal, get_args

import jax
from jax.sharding import Sharding

from gristmill.formats.errors import SettingsError
from gristmill.runtime.delivery import BatchPlan, plan_batch
from gristmill.runtime.device_fields import DeviceFields
from gristmill.runtime.fields import FieldOptions, options_or_default
from gristmill.runtime.host_fields import HostFields
from gristmill.runtime.naming import Naming, check_naming
from gristmill.runtime.raw_rows import PaddedStream
from gristmill.runtime.row_batches import LastBatch, RowBatches
from gristmill.runtime.streams import Stream, require_stream

__all__ = ["Batch", "Place", "TokenBatches"]

Batch = dict[str, jax.Array]
"""The arrays of a global batch by name, as `TokenBatches.element_spec` has them: unless asked otherwise, the six fields
of `FIELD_NAMES`, each int32 [G, L], or [k, G / k, L]."""

Place = Literal["host", "device", "tokens"]
"""Where fields are made: on the host before they go to the devices; or by the training step, from inputs and targets or
from whole rows of tokens."""


class TokenBatches(RowBatches):
    """Iterates over the global batches of a stream.

    Every process of a training job makes one with the same arguments and calls `next` equally often. It is used by one
    thread at a time. `close` it, or use it in a ``with`` block; one that is merely dropped, or alive when the
    interpreter ends, stops its thread too.

    Ends with StopIteration, on all processes at the same step, once fewer than G rows remain; `next_sample` then stays
    where it is and `leftover_rows` says how many rows were not delivered. With ``last_batch="pad"`` they are one more
    batch, filled up with padding, so that each row is delivered exactly once.

    It saves and loads itself as an item of Orbax's `save_checkpointables` and `load_checkpointables`, and through
    `DataSave` and `DataRestore` as one of a `CheckpointManager`.

    Attributes:
        stream: where the rows come from.
        options: how the fields are made.
        plan: which rows this process reads, and how they reach its devices.
        next_sample: rows delivered so far, which is the number of the first row of the next batch.
        real_rows: how many rows of the batch delivered last are rows of the stream: G, but for a padded one.

    Examples:
        >>> batches = TokenBatches(stream, 64, NamedSharding(mesh, P("data")))  # doctest: +SKIP
        >>> for batch in batches:  # doctest: +SKIP
        ...     state = train_step(state, batch)
    """

    def __init__(
        self,
        stream: Stream,
        global_batch: int,
        sharding: Sharding,
        *,
        options: FieldOptions | None = None,
        fields: Place = "host",
        naming: Naming = "maxtext",
        microbatches: int | None = None,
        zigzag: bool = False,
        last_batch: LastBatch = "drop",
        prefetch: int = 2,
        allow_stream_change: bool = False,
        close_seconds: float = 5.0,
        stall_seconds: float = 30.0,
    ) -> None:
        """Checks everything that can be known before a row is read.

        Args:
            stream: where the rows come from.
            global_batch: G, rows of a batch over all processes.
            sharding: of the [G, L] arrays, or of a microbatch; see `plan_batch`.
            options: how the fields are made; None takes the defaults of `FieldOptions`, whatever the naming.
            fields: ``host``: a batch holds the fields, made on the host. ``device``: it holds `inputs` and `targets` in
                the stream's dtype and a few numbers for each row, and `expand` makes the fields in the training step.
                ``tokens``: likewise, but of `tokens`, [G, L + 1], half the bytes; for shardings that do not split the
                sequence, without `zigzag`.
            naming: ``maxtext`` for the six fields, ``megatron`` for Megatron's names (int32 and float32 arrays); the
                latter with ``fields="host"`` only.
            microbatches: k: deliver the G rows as [k, G / k, L] for gradient accumulation, microbatch after microbatch
                in the order of the stream; None: as [G, L]. The state counts rows, so it may differ when resuming.
            zigzag: deliver every field with its columns in zig-zag order (`zigzag_columns`), for as many parts as the
                sharding splits the sequence into. Segments and positions are those of the row as it was.
            last_batch: what becomes of the last rows where they are fewer than G: ``drop`` leaves them out; ``pad``
                makes a batch of them that ends in rows of padding: token, segment and position 0, no part in the loss.
            prefetch: how many batches are made ahead, at least 0. Each holds the arrays of this process's rows, as
                `element_spec` has them. 0 makes each batch when it is asked for, without a thread.
            allow_stream_change: let `set_state` take up the state of another stream, at the same row number.
            close_seconds: how long `close` waits for a read that is under way.
            stall_seconds: after how long a wait for a batch is reported in the log, with the file that is being read;
                and again whenever it is twice as old. Needs a thread to wait for, so not with `prefetch` 0.

        Raises:
            SettingsError: G does not divide evenly over the devices, is larger than the stream, or another argument is
                out of range.
        """
        require_stream(stream)
        options = options_or_default(options)
        self.plan = plan_batch(sharding, global_batch, stream.sequence_length, microbatches=microbatches, zigzag=zigzag)
        padded = last_batch == "pad" or isinstance(stream, PaddedStream)
        self._fields = _maker(stream, self.plan, options, fields, check_naming(naming), padded=padded)
        super().__init__(
            stream,
            self.plan.global_batch,
            self.plan.rows,
            self._fields,
            options=options,
            last_batch=last_batch,
            prefetch=prefetch,
            allow_stream_change=allow_stream_change,
            close_seconds=close_seconds,
            stall_seconds=stall_seconds,
        )

    @property
    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape, dtype and sharding of what `next` yields, so that a step can be compiled before any data is there."""
        return dict(self._fields.spec)

    def expand(self, batch: Mapping[str, jax.Array]) -> Batch:
        """Makes the six fields of a batch of tokens; a batch of ``fields="host"`` is given back as it is.

        Pure, and meant to be called inside the jitted training step, where it costs a scan over the sequence and no
        communication between devices, also where the sequence is split over them.

        Args:
            batch: as `next` yields it.

        Returns:
            The fields that ``fields="host"`` delivers, equal bit for bit, each int32 with the sharding given;
            with ``options.cu_seqlens``, that array as well. With `zigzag`, in that order; `cu_seqlens` counts columns
            of the row as it was.

        Raises:
            SettingsError: an array of the batch is missing.

        Examples:
            >>> @jax.jit  # doctest: +SKIP
            ... def train_step(state, batch):
            ...     fields = batches.expand(batch)
        """
        return self._fields.expand(batch)


def _maker(
    stream: Stream, plan: BatchPlan, options: FieldOptions, fields: Place, naming: Naming, *, padded: bool
) -> HostFields | DeviceFields:
    """What makes batches of rows."""
    if fields not in get_args(Place):
        raise SettingsError(f"fields must be one of {', '.join(map(repr, get_args(Place)))}, not {fields!r}")
    if fields == "host":
        return HostFields(plan=plan, options=options, naming=naming, eod_id=stream.eod_id, vocabulary=stream.vocabulary)
    if naming != "maxtext":
        raise SettingsError(
            f'naming={naming!r} goes with fields="host": with fields="{fields}", expand makes the six fields, and a '
            "step may give them other names"
        )
    return DeviceFields(
        plan,
        options,
        eod_id=stream.eod_id,
        vocabulary=stream.vocabulary,
        dtype=stream.dtype,
        place=fields,
        padded=padded,
    )
