"""The three indices that turn a run of token sequences into a shuffled series of samples, exactly as Megatron does.

    document_index  [epochs * sequences]  int32           sequence numbers in the order of the token stream
    sample_index    [samples + 1, 2]      int32 or int64  where each sample begins: place in document_index, token there
    shuffle_index   [samples]             uint32 or int64 the order in which samples are served

The source of every rule is GPTDataset of megatron-core 0.16.1. One legacy `numpy.random.RandomState` per member draws
first the document order, then the sample order; it is slower than newer generators and the only one that gives the
same order. Sequences are the unit: a document of several sequences is shuffled sequence by sequence.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.errors import DataError, SettingsError

__all__ = [
    "build_document_index",
    "build_indices",
    "build_sample_index",
    "build_shuffle_index",
    "EpochPlan",
    "KeepArray",
    "Lengths",
    "MemberIndices",
    "plan_epochs",
    "sample_index_compiled",
    "sample_index_dtype",
    "sample_index_numpy",
    "shuffle_index_dtype",
]

Lengths = NDArray[np.int32] | NDArray[np.uint16]
"""Tokens of each sequence; uint16 where none has more than 65,535, which halves the memory that a build takes."""

KeepArray = Callable[[str, NDArray[Any]], NDArray[Any]]
"""Takes a finished index by its name, ``document_index`` and so on, and gives back the array to go on with."""

_INT32_MAX = 2**31 - 1
_UINT32_MAX = 2**32 - 1
_SEPARATE_BELOW = 0.80  # of one epoch's samples
_SMALL = 200_000  # document index entries and samples: NumPy has found the rows before Numba is loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """How often the tokens of a member are gone through, and what that gives.

    Attributes:
        tokens: tokens per epoch.
        sequence_length: tokens per sample.
        add_extra_token: whether neighbouring samples share one token.
        epochs: passes over the tokens.
        separate: whether the last epoch is shuffled by itself, so that a run that needs only a part of it takes whole
            earlier epochs first.
        samples: samples that the epochs hold: rows of the shuffle index.
    """

    tokens: int
    sequence_length: int
    add_extra_token: bool
    epochs: int
    separate: bool
    samples: int

    @property
    def samples_before_final(self) -> int:
        """Samples that lie wholly in the epochs before the last."""
        return ((self.epochs - 1) * self.tokens - int(self.add_extra_token)) // self.sequence_length


def plan_epochs(
    *,
    tokens: int,
    sequence_length: int,
    samples: int | None = None,
    epochs: int | None = None,
    add_extra_token: bool = True,
    drop_last_partial: bool = True,
) -> EpochPlan:
    """Epochs and samples of a member.

    Without the partial sample, `samples` is ``(epochs * tokens - e) // sequence_length`` with e = 1 for the extra
    token. With it, Megatron counts in single precision, ``ceil(float32(epochs * tokens - e) / float32(length))``, which
    is exact below 2**24 tokens and off by a few samples above; the count is reproduced.

    Args:
        tokens: tokens per epoch, at least 1.
        sequence_length: tokens per sample, at least 1.
        samples: samples wanted; epochs are added until they are there. Excludes `epochs`.
        epochs: passes wanted, at least 1. Neither given: one pass.
        add_extra_token: whether neighbouring samples share one token.
        drop_last_partial: whether the last sample is dropped when it is shorter than the others.

    Raises:
        SettingsError: a count is out of range, or both `samples` and `epochs` are given.
        DataError: there are no tokens.
    """
    if sequence_length < 1:
        raise SettingsError(f"sequence_length must be at least 1, not {sequence_length}")
    if samples is not None and epochs is not None:
        raise SettingsError(f"samples ({samples}) and epochs ({epochs}) exclude each other: give one of them")
    if samples is not None and samples < 0:
        raise SettingsError(f"samples must not be negative, but {samples} are asked for")
    if epochs is not None and epochs < 1:
        raise SettingsError(f"epochs must be at least 1, not {epochs}")
    if tokens < 1:
        raise DataError("there are no tokens to index: the range holds no sequence, or only empty ones")
    extra = int(add_extra_token)
    passes = epochs or 1
    if samples is not None:
        passes = max(1, -(-(samples * sequence_length + extra) // tokens))
    separate = False
    if passes > 1 and samples is not None:
        final = samples - ((passes - 1) * tokens - extra) // sequence_length
        per_epoch = (tokens - extra) // sequence_length
        separate = final < int(_SEPARATE_BELOW * per_epoch)
    usable = passes * tokens - extra
    if drop_last_partial:
        total = usable // sequence_length
    else:
        total = math.ceil(np.float32(usable) / np.float32(sequence_length))
    return EpochPlan(
        tokens=tokens,
        sequence_length=sequence_length,
        add_extra_token=add_extra_token,
        epochs=passes,
        separate=separate,
        samples=total,
    )


def sample_index_dtype(entries: int, longest: int) -> type[np.int32] | type[np.int64]:
    """dtype of a sample index over `entries` document index entries with sequences of up to `longest` tokens."""
    return np.int32 if max(entries, longest) <= _INT32_MAX else np.int64


def shuffle_index_dtype(samples: int) -> type[np.uint32] | type[np.int64]:
    """dtype of a shuffle index of `samples` samples."""
    return np.int64 if samples >= _UINT32_MAX - 1 else np.uint32


def build_document_index(start: int, end: int, plan: EpochPlan, random: np.random.RandomState) -> NDArray[np.int32]:
    """The sequences of all epochs in shuffled order.

    All epochs are shuffled together, so a sequence can come twice before another comes once; when the last epoch is
    separate, it is shuffled by itself behind the others.

    Args:
        start: first sequence number.
        end: one past the last; at most 2**31 - 1.
        plan: epochs of the member.
        random: the member's generator, as seeded; advanced.

    Returns:
        [epochs * (end - start)] int32.

    Raises:
        SettingsError: sequence numbers do not fit int32.
    """
    if not 0 <= start <= end <= _INT32_MAX:
        raise SettingsError(
            f"sequences {start} to {end}: a document index numbers 0 to {_INT32_MAX} (int32); use several sources"
        )
    once = end - start
    index = np.arange(start, end, dtype=np.int32)
    if plan.epochs > 1:
        first, index = index, np.empty(plan.epochs * once, dtype=np.int32)
        index.reshape(plan.epochs, once)[:] = first
        del first
    if plan.separate:
        random.shuffle(index[: (plan.epochs - 1) * once])
        random.shuffle(index[(plan.epochs - 1) * once :])
    else:
        random.shuffle(index)
    return index


def build_sample_index(
    lengths: Lengths, document_index: NDArray[np.int32], plan: EpochPlan
) -> NDArray[np.int32 | np.int64]:
    """Where each sample begins in the stream of sequences that the document index spells.

    Row 0 is (0, 0). Row k >= 1 stands for the token at ``k * sequence_length`` of the stream: its place in the document
    index and its offset in that sequence. With the extra token it is the last token of sample k - 1 and the first of
    sample k; without, a boundary on the end of a sequence is written as that end, so offset = length. Rows past the end
    of the stream (a kept partial sample) point behind its last token; where the stream ends in empty sequences and the
    extra token is on, that is the last sequence with tokens (Megatron fails there).

    Args:
        lengths: [sequences] int32 or uint16 tokens of every sequence, by sequence number.
        document_index: [entries] int32, at least one entry.
        plan: epochs of the member.

    Returns:
        [samples + 1, 2] int32, or int64 when a place needs it.
    """
    small = len(document_index) + plan.samples <= _SMALL
    return (sample_index_numpy if small else sample_index_compiled)(lengths, document_index, plan)


def sample_index_numpy(
    lengths: Lengths, document_index: NDArray[np.int32], plan: EpochPlan
) -> NDArray[np.int32 | np.int64]:
    """`build_sample_index` as its definition in NumPy: a search in the running sum of lengths."""
    extra = int(plan.add_extra_token)
    stream = lengths[document_index].astype(np.int64)
    ends = np.cumsum(stream)
    boundaries = np.arange(1, plan.samples + 1, dtype=np.int64) * plan.sequence_length
    places = np.searchsorted(ends, boundaries + extra, side="left")
    last = len(stream) - 1
    if extra:
        last = int(np.max(np.flatnonzero(stream), initial=0))
    inside = places < len(stream)
    places = np.where(inside, places, last)
    offsets = np.where(inside, boundaries - (ends - stream)[places], stream[last] - extra)
    rows = np.zeros((plan.samples + 1, 2), dtype=sample_index_dtype(len(document_index), 0))
    rows[1:, 0] = places
    rows[1:, 1] = offsets
    return rows


def sample_index_compiled(
    lengths: Lengths, document_index: NDArray[np.int32], plan: EpochPlan
) -> NDArray[np.int32 | np.int64]:
    """`build_sample_index` in compiled code: one walk, and no memory but the result's."""
    from gristmill.formats import kernels

    rows = np.empty((plan.samples + 1, 2), dtype=sample_index_dtype(len(document_index), 0))
    kernels.sample_rows(
        _read_only(lengths), _read_only(document_index), plan.sequence_length, int(plan.add_extra_token), rows
    )
    return rows


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: compiled code is specialised on it, so that mapped and built arrays share one version."""
    view = array.view()
    view.flags.writeable = False
    return view


def build_shuffle_index(plan: EpochPlan, random: np.random.RandomState) -> NDArray[np.uint32 | np.int64]:
    """The order in which samples are served; when the last epoch is separate, its samples come last.

    Args:
        plan: epochs of the member.
        random: the member's generator, after the document index was drawn from it; advanced.

    Returns:
        [samples] uint32, or int64 from 2**32 - 2 samples on.
    """
    index: NDArray[np.uint32 | np.int64] = np.arange(plan.samples, dtype=shuffle_index_dtype(plan.samples))
    if plan.separate and plan.samples_before_final != plan.samples:
        random.shuffle(index[: plan.samples_before_final])
        random.shuffle(index[plan.samples_before_final :])
    else:
        random.shuffle(index)
    return index


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIndices:
    """The three indices of one member.

    Attributes:
        plan: the epochs that they were built for.
        document_index: [epochs * sequences] int32.
        sample_index: [samples + 1, 2] int32 or int64.
        shuffle_index: [samples] uint32 or int64.
    """

    plan: EpochPlan
    document_index: NDArray[np.int32]
    sample_index: NDArray[np.int32 | np.int64]
    shuffle_index: NDArray[np.uint32 | np.int64]

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.shuffle_index)


def build_indices(
    lengths: Lengths | Sequence[int] | Callable[[], Lengths],
    start: int,
    end: int,
    plan: EpochPlan,
    seed: int | Sequence[int],
    keep: KeepArray | None = None,
) -> MemberIndices:
    """Document, sample and shuffle index of the sequences ``start`` to ``end`` of a source.

    Args:
        lengths: [sequences] int32 or uint16 tokens of every sequence of the whole source, by sequence number; or what
            gives them, which is asked once the document index is finished.
        start: first sequence of the member.
        end: one past its last.
        plan: epochs of the member, from `plan_epochs` with ``tokens = sum(lengths[start:end])``.
        seed: of the member's `RandomState`; an integer for Megatron's order, several for one that Megatron never has.
        keep: takes each index as soon as it is finished; None leaves them in memory.

    Raises:
        SettingsError: sequence numbers do not fit int32.
    """
    kept = keep or (lambda _, array: array)
    random = np.random.RandomState(seed)
    document_index = kept("document_index", build_document_index(start, end, plan, random))
    sample_index = kept("sample_index", build_sample_index(_counts(lengths), document_index, plan))
    shuffle_index = kept("shuffle_index", build_shuffle_index(plan, random))
    return MemberIndices(
        plan=plan, document_index=document_index, sample_index=sample_index, shuffle_index=shuffle_index
    )


def _counts(lengths: Lengths | Sequence[int] | Callable[[], Lengths]) -> Lengths:
    values: Lengths = np.asarray(lengths() if callable(lengths) else lengths)
    return values if values.dtype == np.uint16 else values.astype(np.int32, copy=False)
