"""The two index arrays of a blend in a folder: stored under a key, or found under anyone's names and checked.

    <key>-blend-{dataset_index,dataset_sample_index}.npy  <key>-blend.json    kept here, by content
    dataset_index.npy  dataset_sample_index.npy  [blend.json]                 `gristmill blend`, MaxText
    <hash>-BlendedDataset-<split>-{dataset_index,dataset_sample_index}.npy    Megatron

A pair without a record of ours is checked against the rule itself: every member's samples must be counted through
without a gap, and the rule, begun from the counts so far, must give the same rows in windows over the whole length. A
longer pair serves a shorter request, because the rule never looks ahead.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.blend import draw, unlimited
from gristmill.formats.errors import FormatError, GristmillError
from gristmill.formats.fingerprint import ORDER_VERSION, digest, pretty_json
from gristmill.formats.foreign_index import open_foreign_array
from gristmill.formats.index_blend import BlendIndices, BlendRule
from gristmill.formats.npy import open_npy, write_npy
from gristmill.formats.schedule import Phase, draw_phases
from gristmill.formats.storage import base_name, exists, join, list_files, read_bytes, write_bytes

__all__ = ["BlendRequest", "find_blend", "load_blend", "save_blend"]

_FORMAT = "gristmill-blend-index"
_VERSION = 1
_NAME_DIGITS = 32
_RECORD = "blend.json"
_OURS = "-blend-"
_PAIR = ("dataset_index", "dataset_sample_index")
_FIRST_WINDOW, _WINDOW, _WINDOWS = 1 << 14, 1 << 11, 8
_CHUNK_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendRequest:
    """What a blend must be.

    Attributes:
        split: ``train``, ``valid`` or ``test``.
        rule: how members are drawn, and how many samples.
        rows: [members] samples that each member has.
    """

    split: str
    rule: BlendRule
    rows: tuple[int, ...]

    @property
    def key(self) -> str:
        """Digest of what decides the arrays; which data the members are does not matter to them."""
        limits = list(self.rows) if self.rule.kind == "exhaustive" else None
        rule = {name: value for name, value in asdict(self.rule).items() if name != "samples"}
        return digest(
            {"format": _FORMAT, "version": _VERSION, "order_version": ORDER_VERSION, "rule": rule, "limits": limits}
        )

    def indices(self, dataset_index: NDArray[np.int16], dataset_sample_index: NDArray[np.int64]) -> BlendIndices:
        """The blend of these arrays, as long as the rule says."""
        return BlendIndices(
            kind=self.rule.kind,
            weights=self.rule.weights,
            phases=self.rule.phases,
            samples=self.rule.samples,
            dataset_index=dataset_index[: self.rule.size],
            dataset_sample_index=dataset_sample_index[: self.rule.size],
        )


def _names(key: str | None) -> tuple[str, str, str]:
    if key is None:
        return f"{_PAIR[0]}.npy", f"{_PAIR[1]}.npy", _RECORD
    stem = key[:_NAME_DIGITS]
    return f"{stem}{_OURS}{_PAIR[0]}.npy", f"{stem}{_OURS}{_PAIR[1]}.npy", f"{stem}-{_RECORD}"


def save_blend(folder: str, request: BlendRequest, blend: BlendIndices, *, named: bool = True) -> None:
    """Writes the arrays of a blend, each whole or not at all, and then their record.

    Args:
        folder: path or URL; made where it is missing.
        request: what the blend was built for.
        blend: its arrays.
        named: by their key; without, by MaxText's plain names, of which a folder has room for one pair.

    Raises:
        StorageError: a file cannot be written.
    """
    first, second, record = _names(request.key if named else None)
    write_npy(join(folder, first), blend.dataset_index)
    write_npy(join(folder, second), blend.dataset_sample_index)
    value = {"key": request.key, "size": len(blend.dataset_index), "samples": blend.samples, "split": request.split}
    write_bytes(join(folder, record), pretty_json(value))


def load_blend(folder: str, request: BlendRequest) -> BlendIndices | None:
    """The blend that `save_blend` stored by its key; None where it is not there.

    Raises:
        FormatError: an array is missing, half-written or damaged.
        StorageError: a file cannot be read.
    """
    names = _names(request.key)
    return _load(folder, names, request) if exists(join(folder, names[2])) else None


def _load(folder: str, names: tuple[str, str, str], request: BlendRequest) -> BlendIndices | None:
    """A pair with a record; None when the record is that of another blend."""
    try:
        record = json.loads(read_bytes(join(folder, names[2])))
        key, size = record["key"], int(record["size"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{join(folder, names[2])}: damaged record ({type(error).__name__}: {error})") from error
    if key != request.key:
        return None
    first = open_npy(join(folder, names[0]), np.int16, (size,))
    second = open_npy(join(folder, names[1]), np.int64, (size,))
    for row in (0, size - 1):
        if not 0 <= int(first[row]) < len(request.rows) or not 0 <= int(second[row]) < request.rows[int(first[row])]:
            raise FormatError(
                f"{join(folder, names[1])}: row {row} names sample {second[row]} of member {first[row]}, which is not "
                "there: damaged; remove the three files to build them again"
            )
    return request.indices(first, second)


def find_blend(folder: str, request: BlendRequest) -> tuple[BlendIndices | None, list[str]]:
    """A blend in a folder that fits, whoever made it.

    Tried are the pair of the request's key, the pair of plain names, Megatron's for the split, and any other, in this
    order.

    Args:
        folder: path or URL.
        request: what the blend must be.

    Returns:
        The blend, or None; and why each pair that was tried before does not fit.

    Raises:
        StorageError: the folder cannot be listed.
    """
    reasons: list[str] = []
    present = set(list_files(folder))
    for names in (_names(request.key), _names(None)):
        if join(folder, names[2]) in present:
            try:
                blend = _load(folder, names, request)
            except GristmillError as error:
                reasons.append(str(error))
                continue
            if blend is not None:
                return blend, reasons
    for path in _foreign_pairs(folder, present, request.split):
        second = path[: -len(f"{_PAIR[0]}.npy")] + f"{_PAIR[1]}.npy"
        try:
            arrays = open_foreign_array(path), open_foreign_array(second)
            _check_fit(path, arrays, request)
        except GristmillError as error:
            reasons.append(str(error))
            continue
        return request.indices(*arrays), reasons
    return None, reasons


def _foreign_pairs(folder: str, present: set[str], split: str) -> list[str]:
    """Paths of the dataset indices of pairs, those named for the split before the others; none of ours by key."""
    plain = join(folder, f"{_PAIR[0]}.npy")
    found = [path for path in sorted(present) if path.endswith(f"-{_PAIR[0]}.npy") or path == plain]
    not_meant = [_OURS, *(f"-BlendedDataset-{name}-" for name in ("train", "valid", "test") if name != split)]
    found = [path for path in found if not any(mark in base_name(path) for mark in not_meant)]
    return sorted(found, key=lambda path: (path != plain, f"-BlendedDataset-{split}-" not in path))


def _check_fit(path: str, arrays: tuple[NDArray[Any], NDArray[Any]], request: BlendRequest) -> None:
    """Refuses a pair that the rule would not have given.

    Raises:
        FormatError: says in which way.
    """
    dataset_index, dataset_sample_index = arrays
    size = len(dataset_index) if dataset_index.ndim == 1 else -1
    if (
        dataset_index.dtype != np.int16
        or dataset_sample_index.dtype != np.int64
        or dataset_sample_index.shape != (size,)
    ):
        raise FormatError(
            f"{path}: {dataset_index.shape} of {dataset_index.dtype} beside {dataset_sample_index.shape} of "
            f"{dataset_sample_index.dtype}; a blend is int16 and int64 of one length"
        )
    wanted = request.rule.samples
    if size < wanted:
        raise FormatError(f"{path}: {size} samples, but {wanted} are needed")
    members = len(request.rows)
    stops = {min(_FIRST_WINDOW, wanted)}
    stops |= {min(wanted, place * wanted // _WINDOWS + _WINDOW) for place in range(1, _WINDOWS)} | {wanted}
    counts, since = np.zeros(members, np.int64), np.zeros(members, np.int64)
    position = 0
    for stop in sorted(stops):
        start = max(position, stop - (_FIRST_WINDOW if position == 0 else _WINDOW))
        if request.rule.phases and position:  # the rule needs the counts of its phase, which only its start tells
            start = stop
        _count_through(path, arrays, position, start, counts, request.rows)
        if start < stop:
            _compare_window(path, arrays, start, stop, counts, since, request)
            _count_through(path, arrays, start, stop, counts, request.rows)
        position = stop


def _count_through(
    path: str,
    arrays: tuple[NDArray[Any], NDArray[Any]],
    start: int,
    stop: int,
    counts: NDArray[np.int64],
    rows: Sequence[int],
) -> None:
    """Refuses rows in which a member's samples do not follow each other; `counts` goes on behind them."""
    members = len(rows)
    for first in range(start, stop, _CHUNK_ROWS):
        chosen = arrays[0][first : min(stop, first + _CHUNK_ROWS)].astype(np.int64)
        numbers = arrays[1][first : min(stop, first + _CHUNK_ROWS)]
        if int(chosen.min(initial=0)) < 0 or int(chosen.max(initial=0)) >= members:
            raise FormatError(f"{path}: names a member beyond the {members} there are: made for another blend")
        order = np.argsort(chosen, kind="stable")
        each = np.bincount(chosen, minlength=members)
        rank = np.arange(len(chosen)) - (np.cumsum(each) - each)[chosen[order]]
        if (numbers[order] != counts[chosen[order]] + rank).any():
            raise FormatError(f"{path}: the samples of a member are not counted through: damaged, or no blend")
        counts += each
    short = counts > np.array(rows, np.int64)
    if short.any():
        member = int(np.argmax(short))
        raise FormatError(
            f"{path}: draws {int(counts[member])} samples of member {member}, which has {rows[member]}: made for "
            "another blend"
        )


def _compare_window(
    path: str,
    arrays: tuple[NDArray[Any], NDArray[Any]],
    start: int,
    stop: int,
    counts: NDArray[np.int64],
    since: NDArray[np.int64],
    request: BlendRequest,
) -> None:
    rule = request.rule
    expected, numbers = np.empty(stop - start, np.int16), np.empty(stop - start, np.int64)
    drawn = counts.copy()
    if rule.phases:
        draw_phases([Phase(0, rule.weights), *rule.phases], start, drawn, since, expected, numbers)
    else:
        exhaustive = rule.kind == "exhaustive"
        limits = np.array(request.rows, np.int64) if exhaustive else unlimited(len(request.rows))
        draw(np.array(rule.weights, np.float64), limits, drawn, start, expected, numbers)
    wrong = arrays[0][start:stop] != expected
    if wrong.any():
        row = start + int(np.argmax(wrong))
        raise FormatError(
            f"{path}: sample {row} is of member {arrays[0][row]}, but these weights give member "
            f"{expected[row - start]}: made for other weights or sizes"
        )
