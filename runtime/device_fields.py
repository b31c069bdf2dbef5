"""Fields made on the devices: tokens go there, and the training step derives the six fields from them.

Tokens go as two arrays, inputs and targets, which can be split along the sequence; or as rows of L + 1, half the bytes,
where nothing splits it. What tokens alone cannot say goes along in a few numbers for each row: where padding begins,
what lies before the first column of a device where the sequence is split, and the segments where the index found them
or short ones were merged. So each device works on its own part and none asks another, whatever the mesh. The price is a
scan over the sequence in each step, which the devices do beside the rest; the NumPy definition in
`gristmill.runtime.fields` is what it equals.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from numpy.typing import NDArray

from gristmill.formats.errors import SettingsError
from gristmill.runtime.boundaries import segment_bound
from gristmill.runtime.delivery import BatchPlan
from gristmill.runtime.fields import CU_SEQLENS, FIELD_NAMES, FieldOptions, check_ids, ids_fit, padding_of
from gristmill.runtime.pairs import pairs_of
from gristmill.runtime.raw_rows import PairedRows, RawRows
from gristmill.runtime.segment_lengths import listed_starts, segment_lengths

__all__ = ["DeviceFields", "POSITION_CARRY", "SEGMENT_CARRY", "TOKENS", "VALID_LENGTH"]

TOKENS = "tokens"
"""[G, L + 1] in the stream's dtype: rows as the stream has them, inputs and targets in one."""

VALID_LENGTH = "valid_length"
"""int32 [G]: positions of a row that hold an input with its target."""

SEGMENT_CARRY, POSITION_CARRY = "segment_carry", "position_carry"
"""int32 [G, C]: segment and position of the first column of each of the C runs of columns that devices hold."""


class DeviceFields:
    """Delivers what fields are made from, and makes them inside a jitted function.

    Attributes:
        plan: how arrays [G, L] reach the devices.
        options: how the fields are made.
        paired: whether inputs and targets are all it needs, in the order of the row, so that `deliver` takes either.
        spec: shape, dtype and sharding of each array of a batch.
    """

    def __init__(
        self,
        plan: BatchPlan,
        options: FieldOptions,
        *,
        eod_id: int,
        vocabulary: int | None,
        dtype: np.dtype[np.uint16 | np.int32],
        place: Literal["device", "tokens"] = "device",
        padded: bool = True,
    ) -> None:
        """Settles which arrays a batch has.

        Args:
            plan: how arrays [G, L] reach the devices.
            options: how the fields are made.
            eod_id: id that closes a document.
            vocabulary: bound of the ids, or None.
            dtype: of the tokens.
            place: ``device`` for inputs and targets apart, ``tokens`` for whole rows.
            padded: whether rows may be short or missing; whole rows that never are go without `valid_length`.

        Raises:
            SettingsError: the sharding is of a kind that does not say which axes split what; or it splits the sequence,
                or columns are in zig-zag order, and rows are to go whole.
        """
        if not isinstance(plan.sharding, NamedSharding | SingleDeviceSharding):
            raise SettingsError(
                f'fields="{place}" needs a NamedSharding or a SingleDeviceSharding, not a '
                f'{type(plan.sharding).__name__}, whose axes cannot be told; or take fields="host"'
            )
        self.plan = plan
        self.options = options
        self._eod_id = eod_id
        self._vocabulary = vocabulary
        self._all_fit = ids_fit(np.full(1, np.iinfo(dtype).max, dtype), vocabulary) and np.iinfo(dtype).min == 0
        self._resets = options.reset_attention_mask or options.reset_position_ids
        self._runs = _runs(plan)
        self._more = self._plan_more()
        self._full = np.full(len(plan.rows), plan.sequence_length, np.int32)
        self._field = jax.ShapeDtypeStruct(plan.shape, np.int32, sharding=plan.sharding)
        self._whole = _plan_whole(plan) if place == "tokens" else None
        self.paired = self._whole is None and plan.columns is None and not self._more
        sent = {"inputs": plan, "targets": plan} if self._whole is None else {TOKENS: self._whole}
        self.spec = {name: jax.ShapeDtypeStruct(one.shape, dtype, sharding=one.sharding) for name, one in sent.items()}
        if padded or self._whole is None:
            self.spec[VALID_LENGTH] = jax.ShapeDtypeStruct(plan.row_shape, np.int32, sharding=plan.row_sharding)
        for name, one in self._more.items():
            self.spec[name] = jax.ShapeDtypeStruct(one.shape, np.int32, sharding=one.sharding)

    def _plan_more(self) -> dict[str, BatchPlan]:
        """The arrays of a batch besides tokens and valid lengths, and how they reach the devices."""
        length, options = self.plan.sequence_length, self.options
        told_by_tokens = options.boundaries == "eod" and options.segments(length) == segment_bound(length)
        if options.cu_seqlens or (self._resets and not told_by_tokens):
            return {CU_SEQLENS: self.plan.of_width(options.segments(length) + 1)}
        if len(self._runs) == 1:
            return {}
        carries = self.plan.of_width(len(self._runs), split=True)
        wanted = {SEGMENT_CARRY: options.reset_attention_mask, POSITION_CARRY: options.reset_position_ids}
        return {name: carries for name, is_wanted in wanted.items() if is_wanted}

    def deliver(self, raw: RawRows | PairedRows) -> dict[str, jax.Array]:
        """Sends the batch whose rows these are: `plan.rows` of it, in that order.

        Raises:
            DataError: an id is out of range, or a row has more segments than the options allow.
        """
        self._check(raw)
        batch = self._deliver_tokens(raw)
        if VALID_LENGTH in self.spec:
            valid = self._full.copy() if raw.valid_length is None else np.array(raw.valid_length, np.int32)
            batch[VALID_LENGTH] = self.plan.deliver(valid)
        more = self._more
        if not more or isinstance(raw, PairedRows):
            return batch
        length, options = self.plan.sequence_length, self.options
        starts = raw.starts if options.boundaries == "index" else None
        listed = listed_starts(raw.tokens, self._eod_id, starts)
        if CU_SEQLENS in more:
            lengths = segment_lengths(listed, raw.rows, length, raw.valid_length, options)
            return batch | {CU_SEQLENS: more[CU_SEQLENS].deliver(lengths)}
        carries = _carries(listed, len(raw.tokens), length, self._runs)
        return batch | {name: one.deliver(carries[name]) for name, one in more.items()}

    def _check(self, raw: RawRows | PairedRows) -> None:
        """Refuses ids that are out of range."""
        if self._all_fit:
            return
        parts = (raw.inputs, raw.targets[:, -1]) if isinstance(raw, PairedRows) else (raw.tokens,)
        if not all(ids_fit(part, self._vocabulary) for part in parts):
            # names the first wrong one, unless they are all padding
            shape = raw.inputs.shape
            padding = None if raw.valid_length is None else padding_of(np.asarray(raw.valid_length), shape)
            check_ids(raw.tokens, self._vocabulary, padding, raw.rows)

    def _deliver_tokens(self, raw: RawRows | PairedRows) -> dict[str, jax.Array]:
        """Sends the tokens of every batch."""
        if self._whole is not None:
            return {TOKENS: self._whole.deliver(raw.tokens)}
        inputs, targets = raw.inputs, raw.targets
        if self.plan.columns is None and isinstance(raw, RawRows):
            inputs, targets = pairs_of(raw.tokens)
        return {"inputs": self.plan.deliver(inputs), "targets": self.plan.deliver(targets)}

    def expand(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Derives the six fields of a batch; see `gristmill.runtime.batches.TokenBatches.expand`."""
        missing = sorted(self.spec.keys() - batch.keys())
        if missing:
            raise SettingsError(
                f"the batch has no {', '.join(missing)}: expand takes what these batches yield, with all of its arrays"
            )
        names = tuple(self.spec)
        given = tuple(batch[name] for name in names)
        expand = partial(self._expand_part, names)
        sharding = self.plan.sharding
        if isinstance(sharding, NamedSharding):
            specs = tuple(_full_spec(self.spec[name]) for name in names)
            made = tuple([_full_spec(self._field)] * 5)
            expand = jax.shard_map(expand, mesh=sharding.mesh, in_specs=specs, out_specs=made)
        inputs, targets, segmentation, loss, position = expand(*given)
        fields = dict(zip(FIELD_NAMES, (inputs, targets, segmentation, loss, position, position)))
        return fields | ({CU_SEQLENS: batch[CU_SEQLENS]} if self.options.cu_seqlens else {})

    def _expand_part(self, names: tuple[str, ...], *arrays: jax.Array) -> tuple[jax.Array, ...]:
        """The fields of the part of a batch that one device holds, from its parts of the arrays."""
        batch = dict(zip(names, arrays))
        if self._whole is None:
            inputs, targets = batch["inputs"], batch["targets"]
        else:
            inputs, targets = batch[TOKENS][..., :-1], batch[TOKENS][..., 1:]
        shape = inputs.shape
        runs = self._runs
        run = self.plan.sequence_length // len(runs)
        here = shape[-1] // run  # runs on this device
        first = jnp.asarray(runs, jnp.int32)
        if here < len(runs):
            first = jax.lax.dynamic_slice(first, (jax.lax.axis_index(self._sequence_axes) * here,), (here,))
        columns = first[:, None] + jnp.arange(run, dtype=jnp.int32)  # [C', run]

        def cut(array: jax.Array) -> jax.Array:
            return array.reshape(*shape[:-1], here, run).astype(jnp.int32)

        inputs, targets = cut(inputs), cut(targets)
        loss = inputs != self._eod_id if self.options.eod_mask_loss else jnp.ones_like(inputs, bool)
        segmentation, position = jnp.ones_like(inputs), jnp.broadcast_to(columns, inputs.shape)
        if self._resets:
            if CU_SEQLENS in batch:
                starts, segment, start = _from_lengths(batch[CU_SEQLENS], first, run)
            else:
                ends = inputs[..., :-1] == self._eod_id
                starts = jnp.pad(ends, [(0, 0)] * (ends.ndim - 1) + [(1, 0)])
                segment = batch[SEGMENT_CARRY] if SEGMENT_CARRY in batch else jnp.ones_like(inputs[..., 0])
                start = first - batch[POSITION_CARRY] if POSITION_CARRY in batch else jnp.zeros_like(segment)
            if self.options.reset_attention_mask:
                segmentation = segment[..., None] + jnp.cumsum(starts, axis=-1, dtype=jnp.int32)
            if self.options.reset_position_ids:
                last = jax.lax.cummax(jnp.where(starts, columns, 0), axis=inputs.ndim - 1)
                position = columns - jnp.maximum(last, start[..., None])
        fields: tuple[jax.Array, ...] = (inputs, targets, segmentation, loss.astype(jnp.int32), position)
        if VALID_LENGTH in batch:
            is_valid = columns < batch[VALID_LENGTH][..., None, None]
            fields = tuple(jnp.where(is_valid, field, 0) for field in fields)
        return tuple(field.reshape(shape) for field in fields)

    @property
    def _sequence_axes(self) -> tuple[str, ...]:
        """The axes of the mesh that split the sequence, the slowest first."""
        entry = _full_spec(self._field)[-1]
        return entry if isinstance(entry, tuple) else (entry,)


def _runs(plan: BatchPlan) -> NDArray[np.int64]:
    """int64 [C]: first column of each run of neighbouring columns, as devices hold them; all are equally long."""
    columns = np.arange(plan.sequence_length, dtype=np.int64) if plan.columns is None else plan.columns
    breaks = np.flatnonzero(np.diff(columns) != 1) + 1
    run = math.gcd(plan.sharding.shard_shape(plan.shape)[-1], *breaks.tolist())
    return columns[::run]


def _plan_whole(plan: BatchPlan) -> BatchPlan:
    """The plan for arrays of whole rows, L + 1 tokens each.

    Raises:
        SettingsError: a row is split over devices, or its columns are put in another order.
    """
    if plan.columns is not None or plan.sharding.shard_shape(plan.shape)[-1] < plan.sequence_length:
        what = "split the sequence over devices" if plan.columns is None else "put columns in zig-zag order"
        raise SettingsError(
            f'fields="tokens" sends rows of L + 1 tokens as they are and cannot {what}; take fields="device", which '
            "sends inputs and targets apart"
        )
    return plan.of_width(plan.sequence_length + 1)


def _full_spec(array: jax.ShapeDtypeStruct) -> PartitionSpec:
    spec = tuple(array.sharding.spec)
    return PartitionSpec(*spec, *[None] * (len(array.shape) - len(spec)))


def _from_lengths(lengths: jax.Array, first: jax.Array, run: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where segments begin, from their cumulative lengths.

    Args:
        lengths: int32 [..., K + 1], columns of the whole row.
        first: int32 [C], first column of each run.
        run: columns of a run.

    Returns:
        starts: bool [..., C, run], where a segment begins behind the first column of its run.
        segment: int32 [..., C], number of the segment of each run's first column.
        start: int32 [..., C], where that segment begins.
    """
    begun = lengths[..., None, :] <= first[:, None]  # [..., C, K + 1]
    segment = jnp.sum(begun, axis=-1, dtype=jnp.int32)
    start = jnp.max(jnp.where(begun, lengths[..., None, :], 0), axis=-1)
    places = lengths[..., None, :] - first[:, None]
    places = jnp.where(begun, run, places).reshape(-1, lengths.shape[-1])  # beyond the run: dropped
    starts = jnp.zeros((len(places), run), bool).at[jnp.arange(len(places))[:, None], places].set(True, mode="drop")
    return starts.reshape(*segment.shape, run), segment, start


def _carries(
    listed: NDArray[np.int64], rows: int, length: int, first: NDArray[np.int64]
) -> dict[str, NDArray[np.int32]]:
    """Segment and position of some columns of each row.

    Args:
        listed: where segments begin, as from `listed_starts`.
        rows: R.
        length: L.
        first: int64 [C], the columns.

    Returns:
        int32 [R, C] each.
    """
    begin = np.arange(rows)[:, None] * (length + 1)
    before = np.searchsorted(listed, begin)
    upto = np.searchsorted(listed, begin + first, side="right")
    last = np.append(listed, 0)[upto - 1] - begin
    position = np.where(upto > before, first - last, first)
    return {SEGMENT_CARRY: (upto - before + 1).astype(np.int32), POSITION_CARRY: position.astype(np.int32)}
