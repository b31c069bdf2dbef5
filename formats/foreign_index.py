"""Index arrays that Megatron or MaxText's reader left in a cache folder: found, checked against the data, and used.

    <hash>-GPTDataset-<split>-{description.txt,document_index.npy,sample_index.npy,shuffle_index.npy}      Megatron
    <hash>-{metadata.json,document_index.npy,sample_index.npy,shuffle_index.npy}                           MaxText

Their names say which paths they were made for, not which data: re-tokenised files and another setting of the extra
token keep the old name. So nothing but seed, length and number of samples is believed; that the arrays fit is seen
from their shapes, their ends, and the tokens that some hundred samples of them span. Checking all rows would cost as
much as building them.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.errors import FormatError, GristmillError, StorageError
from gristmill.formats.index_member import member_epochs
from gristmill.formats.index_plan import MemberPlan
from gristmill.formats.indices import EpochPlan, Lengths, MemberIndices, plan_epochs
from gristmill.formats.member_store import INDICES, index_layout, refuse_ends
from gristmill.formats.npy import open_remote
from gristmill.formats.storage import base_name, exists, is_local, list_files, local_path, read_bytes

__all__ = ["find_foreign_indices", "ForeignIndex", "open_by_prefix", "open_foreign_array", "use_foreign_index"]

_ROWS_LOOKED_AT = 512
_METADATA = "-metadata.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignIndex:
    """Three arrays of somebody else's, and what is said of them.

    Attributes:
        prefix: path or URL up to the name of an array, without the dash.
        seed: of their shuffles.
        sequence_length: tokens per sample.
        samples: number of samples they were built for; None for one pass, or for `epochs`.
        epochs: passes they were built for, where `samples` is None; None is one.
        names: last parts of the data's paths.
    """

    prefix: str
    seed: int
    sequence_length: int
    samples: int | None
    epochs: int | None
    names: tuple[str, ...]


def find_foreign_indices(folder: str, split: str) -> list[ForeignIndex]:
    """The indices of Megatron's and MaxText's in a folder, by name; unreadable descriptions are passed over.

    Args:
        folder: path or URL; a missing one holds none.
        split: ``train``, ``valid`` or ``test``; MaxText's do not tell theirs and are given for every split.

    Raises:
        StorageError: the folder cannot be listed.
    """
    ending = f"-GPTDataset-{split}-description.txt"
    found = []
    for path in list_files(folder):
        try:
            if path.endswith(ending):
                found.append(_megatron(path, json.loads(read_bytes(path))))
            elif path.endswith(_METADATA):
                found.append(_maxtext(path, json.loads(read_bytes(path))))
        except (ValueError, KeyError, TypeError, AttributeError):  # some other file of that name
            continue
    return found


def _megatron(path: str, value: Mapping[str, Any]) -> ForeignIndex:
    return ForeignIndex(
        prefix=path.removesuffix("-description.txt"),
        seed=int(value["random_seed"]),
        sequence_length=int(value["sequence_length"]),
        samples=None if value["num_samples"] is None else int(value["num_samples"]),
        epochs=None,
        names=(base_name(value["dataset_path"]),),
    )


def _maxtext(path: str, value: Mapping[str, Any]) -> ForeignIndex:
    samples = value["num_samples_requested"]
    return ForeignIndex(
        prefix=path.removesuffix(_METADATA),
        seed=int(value["seed"]),
        sequence_length=int(value["seq_length"]),
        samples=None if samples is None else int(samples),
        epochs=int(value["num_epochs"]) if samples is None and value["num_epochs"] is not None else None,
        names=tuple(base_name(place) for place in value["input_paths"]),
    )


def use_foreign_index(
    found: Sequence[ForeignIndex],
    plan: MemberPlan,
    tokens: int,
    names: Sequence[str],
    lengths: Callable[[], Lengths],
) -> tuple[tuple[ForeignIndex, MemberIndices] | None, list[str]]:
    """The first of some foreign indices that fits a member.

    Args:
        found: from `find_foreign_indices`.
        plan: the member.
        tokens: tokens per epoch of the member.
        names: last parts of the member's paths; indices made for other names are tried too, but silently.
        lengths: gives the tokens of every sequence of the whole source; called when there is something to check.

    Returns:
        What fits and its arrays, or None; and for each one of the same name, seed and length that does not fit, the
        reason.
    """
    epochs = member_epochs(plan, tokens)
    reasons: list[str] = []
    for one in sorted(found, key=lambda other: not set(other.names) & set(names)):
        if (one.seed, one.sequence_length) != (plan.seed, plan.sequence_length):
            continue
        try:
            return (one, _checked(one, plan, epochs, lengths)), reasons
        except GristmillError as error:
            if set(one.names) & set(names):
                reasons.append(str(error))
    return None, reasons


def _checked(found: ForeignIndex, plan: MemberPlan, epochs: EpochPlan, lengths: Callable[[], Lengths]) -> MemberIndices:
    told = plan_epochs(
        tokens=epochs.tokens,
        sequence_length=epochs.sequence_length,
        samples=found.samples,
        epochs=found.epochs,
        add_extra_token=epochs.add_extra_token,
    )
    if (told.epochs, told.separate) != (epochs.epochs, epochs.separate):
        raise FormatError(
            f"{found.prefix}: built for {_passes(told)}, but {_passes(epochs)} are needed here, which is another order"
        )
    indices = open_by_prefix(found.prefix, plan, epochs)
    _check_spans(found.prefix, indices, lengths(), plan)
    return indices


def open_by_prefix(prefix: str, plan: MemberPlan, epochs: EpochPlan) -> MemberIndices:
    """The arrays ``<prefix>-{document,sample,shuffle}_index.npy``, if dtypes, shapes and ends can be the member's.

    Args:
        prefix: path or URL up to the name of an array, without the dash.
        plan: the member.
        epochs: how often its tokens are gone through.

    Raises:
        FormatError: an array is missing, damaged or of something else.
        StorageError: a file cannot be read.
    """
    arrays = {index: open_foreign_array(f"{prefix}-{index}.npy") for index in INDICES}
    for index, (dtype, shape) in index_layout(plan, epochs).items():
        array = arrays[index]
        if array.dtype != dtype or array.shape != shape:
            raise FormatError(
                f"{prefix}-{index}.npy: shape {array.shape} of {array.dtype.name}, but these data need {shape} of "
                f"{np.dtype(dtype).name}: made from other data, or with another setting of the extra token"
            )
    problem = refuse_ends(arrays, plan, epochs)
    if problem is not None:
        raise FormatError(f"{prefix}-{problem[0]}.npy: {problem[1]}: made from other data")
    return MemberIndices(plan=epochs, **arrays)


def _passes(epochs: EpochPlan) -> str:
    last = ", the last one shuffled apart" if epochs.separate else ""
    return f"{epochs.epochs} epoch{'s' if epochs.epochs > 1 else ''}{last}"


def open_foreign_array(path: str) -> NDArray[Any]:
    """An array that any program wrote: memory-mapped from a local file, read into memory from elsewhere.

    Raises:
        FormatError: the file is missing, cut short or no such file.
        StorageError: it cannot be read.
    """
    if not exists(path):
        raise FormatError(f"{path}: missing")
    opened = open_remote(path)
    if opened is not None:
        return opened
    try:
        if is_local(path):
            array: NDArray[Any] = np.load(local_path(path), mmap_mode="r", allow_pickle=False)
        else:
            array = np.load(io.BytesIO(read_bytes(path)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(f"{path}: no readable .npy file ({error}): half-written?") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    return array if array.dtype.isnative and array.flags.c_contiguous else np.ascontiguousarray(array)


def _check_spans(prefix: str, indices: MemberIndices, lengths: Lengths, plan: MemberPlan) -> None:
    """Whether samples at equal distances, the first and the last among them, lie in their sequences and span L.

    Behind the last whole sample they span what is left.
    """
    documents, rows, epochs = indices.document_index, indices.sample_index, indices.plan
    wrong = FormatError(
        f"{prefix}: its samples do not span {epochs.sequence_length} tokens of these data: made from others"
    )
    count = min(epochs.samples, _ROWS_LOOKED_AT)
    samples = np.unique(np.linspace(0, epochs.samples - 1, count).astype(np.int64))
    begin, end = rows[samples].astype(np.int64), rows[samples + 1].astype(np.int64)
    entries = end[:, 0] - begin[:, 0] + 1
    if rows[0].tolist() != [0, 0] or (begin[:, 0] < 0).any() or (entries < 1).any():
        raise wrong
    if (end[:, 0] >= len(documents)).any() or int(entries.sum()) > len(documents) + len(samples):
        raise wrong
    stops = np.cumsum(entries)
    which = np.repeat(np.arange(len(samples)), entries)
    places = begin[which, 0] + np.arange(len(which)) - (stops - entries)[which]
    sequences = documents[places].astype(np.int64)
    if (sequences < plan.start).any() or (sequences >= plan.end).any():
        raise wrong
    held = lengths[sequences].astype(np.int64)
    last = stops - 1
    extra = int(epochs.add_extra_token)
    if (end[:, 1] < 0).any() or (end[:, 1] + extra > held[last]).any():
        raise wrong
    if (begin[:, 1] < 0).any() or (begin[:, 1] > held[stops - entries]).any():
        raise wrong
    spans = np.bincount(which, held, len(samples)).astype(np.int64) - held[last] + end[:, 1] - begin[:, 1]
    left = epochs.epochs * epochs.tokens - extra - samples * epochs.sequence_length
    if (spans != np.clip(left, 0, epochs.sequence_length)).any():
        raise wrong
