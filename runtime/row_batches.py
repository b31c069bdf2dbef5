"""Batches of rows of a stream, one after the other, made ahead on a thread, with the state that resumes them.

What every way of delivering batches has in common: which rows come next, where the stream ends, what a state may be
taken up, how a thread that reads ahead is stopped. How rows become a batch is the business of whoever delivers it.
"""

import logging
import time
import weakref
from collections.abc import Coroutine, Generator
from dataclasses import asdict
from types import TracebackType
from typing import Any, Literal, Protocol, Self, get_args

import grain
import numpy as np
from numpy.typing import NDArray

from gristmill.formats.errors import SettingsError
from gristmill.runtime.fields import FieldOptions
from gristmill.runtime.metrics import BatchMetrics, count_loss_tokens
from gristmill.runtime.prefetch import Prefetcher
from gristmill.runtime.raw_rows import RawReader
from gristmill.runtime.stall import StallReports, check_stall_seconds
from gristmill.runtime.state import StreamState, check_state
from gristmill.runtime.state_file import load_state, save_state
from gristmill.runtime.streams import Stream
from gristmill.runtime.whole_number import whole_number

__all__ = ["BatchMaker", "LastBatch", "RowBatches"]

LastBatch = Literal["drop", "pad"]
"""What becomes of the last rows of a stream where they are fewer than a batch."""

_log = logging.getLogger(__name__)


class BatchMaker(Protocol):
    """Makes a batch of the rows of it that this process reads."""

    @property
    def paired(self) -> bool:
        """Whether it needs no more than inputs and targets, and so takes `PairedRows` too."""
        ...

    def deliver(self, raw: Any) -> dict[str, Any]:
        """The batch whose rows these are.

        Raises:
            DataError: an id is out of range, or a row has more segments than the options allow.
        """
        ...


class RowBatches(grain.DatasetIterator):  # type: ignore[misc]  # Grain ships no types, so its classes are Any
    """Iterates over the batches of a stream; see `TokenBatches` for how it ends, and is saved, restored and closed.

    Attributes:
        stream: where the rows come from.
        options: how the fields are made.
        next_sample: rows delivered so far, which is the number of the first row of the next batch.
        real_rows: rows of the stream in the batch delivered last; less than `global_batch` where it was padded.
    """

    _closed = False  # here, so that `close` works on an object whose construction failed
    _parents = ()
    _prefetcher: "Prefetcher[tuple[dict[str, Any], int]] | None" = None
    _finalizer: "weakref.finalize[Any, Any] | None" = None

    def __init__(
        self,
        stream: Stream,
        global_batch: int,
        rows: NDArray[np.int64],
        maker: BatchMaker,
        *,
        options: FieldOptions,
        last_batch: LastBatch,
        prefetch: int,
        allow_stream_change: bool,
        close_seconds: float,
        stall_seconds: float,
    ) -> None:
        """Checks everything that can be known before a row is read.

        Args:
            stream: where the rows come from.
            global_batch: G, rows of a batch over all processes.
            rows: int64 [R], which of them this process reads, in the order in which `maker` takes them.
            maker: makes a batch of them.
            options: how the fields are made.
            last_batch: what becomes of the last rows where they are fewer than G, see `TokenBatches`; and likewise:
            prefetch: how many batches are made ahead.
            allow_stream_change: let `set_state` take up the state of another stream.
            close_seconds: how long `close` waits for a read that is under way.
            stall_seconds: after how long a wait for a batch is reported.

        Raises:
            SettingsError: G is larger than the stream, or another argument is out of range.
        """
        super().__init__()
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
        self.options = options
        self.next_sample = self.real_rows = 0
        self._global_batch = global_batch
        self._length = len(stream)
        self._rows = rows
        self._maker = maker
        self._reader = RawReader(stream, options, pad=last_batch == "pad")
        self._prefetch = whole_number("prefetch", prefetch, 0, of="batches")
        self._allow_stream_change = allow_stream_change
        self._close_seconds = close_seconds
        self._metrics = BatchMetrics(stream, rows, stream.sequence_length)
        self._stall_seconds = check_stall_seconds(stall_seconds)

    @property
    def global_batch(self) -> int:
        """G, rows of a batch over all processes."""
        return self._global_batch

    @property
    def leftover_rows(self) -> int:
        """Rows at the end of the stream that no batch from here on will hold: less than G."""
        left = max(0, len(self.stream) - self.next_sample) % self.global_batch
        return left if left < self._fewest else 0

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.stream!r}, global_batch={self.global_batch}, next_sample={self.next_sample})"
        )

    def __next__(self) -> dict[str, Any]:
        """The next batch.

        Raises:
            StopIteration: fewer than G rows remain.
            ValueError: the iterator is closed, or was while this waited.
            GristmillError: the rows cannot be read or are not what they must be. The state stays put, so the next call
                tries the same rows again.
        """
        self._assert_not_closed()
        rows = min(self._global_batch, self._length - self.next_sample)
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
                batch, loss_tokens = _make_batch(self._reader, self._maker, self._rows, self.next_sample)
            self._metrics.add(self.next_sample, loss_tokens, time.monotonic() - began)
        except StopIteration as error:  # rows remain, so somebody stopped the thread
            self._stop()
            raise ValueError(f"{self!r} was closed by another thread while it waited") from error
        except BaseException:  # Ctrl-C too: the thread may be a batch further than the state
            self._stop()
            raise
        self.real_rows = rows
        self.next_sample += rows
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
                _batches(self._reader, self._maker, self._rows, self.next_sample, self.global_batch, self._fewest),
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


def _make_batch(
    reader: RawReader, maker: BatchMaker, rows: NDArray[np.int64], first: int
) -> tuple[dict[str, Any], int]:
    """A batch, and how many of its positions on this process have a part in the loss."""
    raw = (reader.read_paired if maker.paired else reader.read)(first + rows)
    loss_tokens = count_loss_tokens(
        raw.inputs,
        reader.stream.eod_id,
        eod_mask_loss=reader.options.eod_mask_loss,
        valid_length=raw.valid_length,
    )
    return maker.deliver(raw), loss_tokens


def _batches(
    reader: RawReader, maker: BatchMaker, rows: NDArray[np.int64], first: int, global_batch: int, fewest: int
) -> Generator[tuple[dict[str, Any], int], None, None]:
    while len(reader.stream) - first >= fewest:
        yield _make_batch(reader, maker, rows, first)
        first += global_batch
