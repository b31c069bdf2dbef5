"""Global batches for a training loop: a Grain iterator whose elements are sharded `jax.Array`s.

Batch after batch, rows [next_sample, next_sample + G) of a stream are read by the processes that hold them, turned into
fields and handed to the devices, a few batches ahead on one thread. Elements are whole batches, so Grain's cost per
element is paid once for each; the price is that transformations of single rows belong into `StreamSource` pipelines.
"""

import logging
import time
import weakref
from collections.abc import Coroutine, Generator, Mapping
from dataclasses import asdict
from types import TracebackType
from typing import Any, Literal, Self, get_args

import grain
import jax
from jax.sharding import Sharding

from gristmill.formats.errors import SettingsError
from gristmill.runtime.delivery import BatchPlan, plan_batch
from gristmill.runtime.device_fields import DeviceFields
from gristmill.runtime.fields import FieldOptions
from gristmill.runtime.host_fields import HostFields
from gristmill.runtime.metrics import BatchMetrics, count_loss_tokens
from gristmill.runtime.naming import Naming, check_naming
from gristmill.runtime.prefetch import Prefetcher
from gristmill.runtime.raw_rows import RawReader
from gristmill.runtime.stall import StallReports, check_stall_seconds
from gristmill.runtime.state import StreamState, check_state
from gristmill.runtime.state_file import load_state, save_state
from gristmill.runtime.streams import Stream

__all__ = ["Batch", "LastBatch", "Place", "TokenBatches"]

Batch = dict[str, jax.Array]
"""The arrays of a global batch by name, as `TokenBatches.element_spec` has them: unless asked otherwise, the six fields
of `FIELD_NAMES`, each int32 [G, L], or [k, G / k, L]."""

Place = Literal["host", "device"]
"""Where fields are made: by NumPy before they go to the devices, or by the training step."""

LastBatch = Literal["drop", "pad"]
"""What becomes of the last rows of a stream where they are fewer than a batch has."""

_log = logging.getLogger(__name__)


class TokenBatches(grain.DatasetIterator):  # type: ignore[misc]  # Grain ships no types, so its classes are Any
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

    _closed = False  # here, so that `close` works on an object whose construction failed
    _parents = ()
    _prefetcher: "Prefetcher[tuple[Batch, int]] | None" = None
    _finalizer: "weakref.finalize[Any, Any] | None" = None

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
            fields: ``host``: a batch holds the fields, made by NumPy. ``device``: it holds `inputs` and `targets` in
                the stream's dtype and a few numbers for each row, and `expand` makes the fields in the training step.
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
        super().__init__()
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
            raise SettingsError(f"prefetch must be a whole number of batches of at least 0, not {prefetch!r}")
        self.plan = plan_batch(sharding, global_batch, stream.sequence_length, microbatches=microbatches, zigzag=zigzag)
        if last_batch not in get_args(LastBatch):
            names = " or ".join(map(repr, get_args(LastBatch)))
            raise SettingsError(f"last_batch must be {names}, not {last_batch!r}")
        self._fewest = 1 if last_batch == "pad" else global_batch  # rows that make a batch
        if len(stream) < self._fewest:
            raise SettingsError(
                f"global_batch {global_batch} is more than the {len(stream)} rows of the stream, so there would be no "
                'batch at all; lower it, build an index set with more samples, or pad the batch with last_batch="pad"'
            )
        self.stream = stream
        self.options = FieldOptions() if options is None else options
        self._reader = RawReader(stream, self.options, pad=last_batch == "pad")
        self._fields = _maker(stream, self.plan, self.options, fields, check_naming(naming))
        self.next_sample = self.real_rows = 0
        self._prefetch = prefetch
        self._allow_stream_change = allow_stream_change
        self._close_seconds = close_seconds
        self._metrics = BatchMetrics(stream, self.plan.rows, stream.sequence_length)
        self._stall_seconds = check_stall_seconds(stall_seconds)

    @property
    def global_batch(self) -> int:
        """G, rows of a batch over all processes."""
        return self.plan.global_batch

    @property
    def leftover_rows(self) -> int:
        """Rows at the end of the stream that no batch from here on will hold: less than G."""
        left = max(0, len(self.stream) - self.next_sample) % self.global_batch
        return left if left < self._fewest else 0

    @property
    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape, dtype and sharding of what `next` yields, so that a step can be compiled before any data is there."""
        return dict(self._fields.spec)

    def expand(self, batch: Mapping[str, jax.Array]) -> Batch:
        """Makes the six fields of a batch of ``fields="device"``; a batch of ``fields="host"`` is given back as it is.

        Pure, and meant to be called inside the jitted training step, where it costs a scan over the sequence and no
        communication between devices, also where the sequence is split over them.

        Args:
            batch: as `next` yields it.

        Returns:
            The fields that ``fields="host"`` delivers, equal bit for bit, each int32 with the sharding of `inputs`;
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

    def __repr__(self) -> str:
        return f"TokenBatches({self.stream!r}, global_batch={self.global_batch}, next_sample={self.next_sample})"

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            StopIteration: fewer than G rows remain.
            ValueError: the iterator is closed, or was while this waited.
            GristmillError: the rows cannot be read or are not what they must be. The state stays put, so the next call
                tries the same rows again.
        """
        self._assert_not_closed()
        rows = min(self.global_batch, len(self.stream) - self.next_sample)
        if rows < self._fewest:
            self._stop()
            _log.info("the stream ends: %d rows delivered, %d left over", self.next_sample, self.leftover_rows)
            raise StopIteration
        began = time.monotonic()
        try:
            if self._prefetch:
                self.start_prefetch()
                awaited = range(self.next_sample, self.next_sample + rows)
                reports = StallReports(self.stream, awaited, self._stall_seconds)
                batch, loss_tokens = self._prefetcher.get(reports)  # type: ignore[union-attr]  # start_prefetch made one
            else:
                batch, loss_tokens = _make_batch(self._reader, self._fields, self.next_sample)
        except StopIteration as error:  # rows remain, so somebody stopped the thread
            self._stop()
            raise ValueError(f"{self!r} was closed by another thread while it waited") from error
        except Exception:
            self._stop()
            raise
        self._metrics.add(self.next_sample, loss_tokens, time.monotonic() - began)
        self.next_sample += rows
        self.real_rows = rows
        return batch

    def metrics(self) -> dict[str, int | float]:
        """What was delivered, read and waited for so far, as a flat dict of numbers; cheap, from any thread.

        Counts are of the rows that this process reads, since this object was made; what the stream read
        (``bytes_read``, ``shard_hits``, ``shards_opened``) since it was opened, batches made ahead included.
        ``wait_seconds`` is what the loop waited in `next`; ``samples/<source>`` are the rows of each source.
        """
        return self._metrics.snapshot()

    def start_prefetch(self) -> None:
        """Starts making batches ahead, if not yet done; `next` does it too."""
        self._assert_not_closed()
        if self._prefetcher is None and self._prefetch:
            self._prefetcher = Prefetcher(
                _batches(self._reader, self._fields, self.next_sample, self._fewest),
                self._prefetch,
                name=f"gristmill prefetch of {self.stream!r}",
                close_seconds=self._close_seconds,
            )
            self._finalizer = weakref.finalize(self, self._prefetcher.close)

    def get_state(self) -> dict[str, Any]:
        """What resumes the run behind the last batch delivered: a JSON value, for any number of processes."""
        state = StreamState(
            next_sample=self.next_sample,
            fingerprint=self.stream.fingerprint,
            fields=self.options.digest,
            facts=getattr(self.stream, "facts", None),
            options=asdict(self.options),
        )
        return state.to_json()

    def set_state(self, state: dict[str, Any], *, allow_stream_change: bool | None = None) -> None:
        """Goes on where a state was taken.

        Args:
            state: from `get_state`, of a run with any number of processes, batch size or prefetch depth.
            allow_stream_change: as in the constructor, which None takes.

        Raises:
            CorpusError: the state is of another stream, of an earlier one that went on otherwise, or beyond the end of
                this one.
            FormatError: the state is damaged or of another version.
            ValueError: the iterator is closed.

        Warns:
            UserWarning: the fields are made with other options from here on.
        """
        self._assert_not_closed()
        parsed = StreamState.from_json(state)
        check_state(
            parsed,
            fingerprint=self.stream.fingerprint,
            rows=len(self.stream),
            fields=self.options.digest,
            facts=getattr(self.stream, "facts", None),
            options=asdict(self.options),
            history=getattr(self.stream, "history", ()),
            ancestors=getattr(self.stream, "ancestors", None),
            allow_stream_change=self._allow_stream_change if allow_stream_change is None else allow_stream_change,
        )
        self._stop()
        self.next_sample = parsed.next_sample

    async def save(self, directory: Any) -> Coroutine[Any, Any, None]:
        """Takes the state at once; what it returns writes it into a folder that Orbax is about to make."""
        return save_state(directory, self.get_state())

    async def load(self, directory: Any) -> Coroutine[Any, Any, None]:
        """What it returns reads the state of a folder and sets it; raises as `set_state` does."""
        return load_state(directory, self.set_state)

    def close(self) -> None:
        """Stops the thread and drops the batches made ahead; may be called twice. The stream stays open."""
        super().close()
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stop(self) -> None:
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is not None and self._finalizer is not None:
            self._finalizer.detach()
            prefetcher.close()

    def _get_next_index(self) -> int:
        batch, rest = divmod(self.next_sample, self.global_batch)
        if rest and self.next_sample < len(self.stream):
            raise ValueError(f"row {self.next_sample} is no start of a batch of {self.global_batch}")
        return batch + (rest > 0)

    def _set_next_index(self, index: int) -> None:
        self._stop()
        self.next_sample = min(index * self.global_batch, len(self.stream))


def _maker(
    stream: Stream, plan: BatchPlan, options: FieldOptions, fields: str, naming: Naming
) -> HostFields | DeviceFields:
    """What makes batches of rows."""
    if fields not in get_args(Place):
        raise SettingsError(f"fields must be {' or '.join(map(repr, get_args(Place)))}, not {fields!r}")
    if fields == "host":
        return HostFields(plan=plan, options=options, naming=naming, eod_id=stream.eod_id, vocabulary=stream.vocabulary)
    if naming != "maxtext":
        raise SettingsError(
            f'naming={naming!r} goes with fields="host": with fields="device", expand makes the six fields, and a step '
            "may give them other names"
        )
    return DeviceFields(plan, options, eod_id=stream.eod_id, vocabulary=stream.vocabulary, dtype=stream.dtype)


def _make_batch(reader: RawReader, fields: HostFields | DeviceFields, first: int) -> tuple[Batch, int]:
    """A batch, and how many of its positions on this process have a part in the loss."""
    raw = reader.read(first + fields.plan.rows)
    loss_tokens = count_loss_tokens(
        raw.tokens,
        reader.stream.eod_id,
        eod_mask_loss=fields.options.eod_mask_loss,
        valid_length=raw.valid_length,
    )
    return fields.deliver(raw), loss_tokens


def _batches(
    reader: RawReader, fields: HostFields | DeviceFields, first: int, fewest: int
) -> Generator[tuple[Batch, int], None, None]:
    while len(reader.stream) - first >= fewest:
        yield _make_batch(reader, fields, first)
        first += fields.plan.global_batch
