"""Pairs of documents that may be near duplicates: those that share the key of a band.

Keys are dealt to partitions by their value, so each partition is a range of every split's sorted bands. A key that very
many documents share, boilerplate for example, would make pairs without end; so each split sends at most four documents
of a key, the others are paired with its first, and in a large group each document is paired with the first and with its
neighbour only. Who is first is decided by rank: the recipe's order of sources, files and records.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from gristmill.formats.storage import file_size, read_bytes
from gristmill.pipelines.job import Job
from gristmill.pipelines.near_scan import BAND_DTYPE, near_path
from gristmill.pipelines.plan import Split
from gristmill.pipelines.sorted_keys import key_bounds, read_keys_between

__all__ = [
    "distinct_pairs",
    "local_pairs",
    "near_partitions",
    "PAIR_DTYPE",
    "pairs_by_split",
    "pairs_of_groups",
    "partition_bands",
    "partition_pairs",
    "RANKED_BAND_DTYPE",
]

RANKED_BAND_DTYPE = np.dtype([("key", "<u8"), ("rank", "<u8")])
"""One band of a document of the run: its key, and split number << 32 | record number."""

PAIR_DTYPE = np.dtype([("first", "<u8"), ("second", "<u8")])
"""Two documents of the run by their ranks; the first has the lower."""

_OF_A_SPLIT = 4
_ALL_PAIRS = 8
_PARTITION_BYTES = 16 << 20


def _places(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For sorted keys, where the run of each begins and which place it has in it."""
    begins = np.ones(len(keys), bool)
    begins[1:] = keys[1:] != keys[:-1]
    starts = np.flatnonzero(begins)
    runs = np.cumsum(begins) - 1
    return starts[runs], np.arange(len(keys)) - starts[runs]


def _ranked(bands: np.ndarray, split: Split) -> np.ndarray:
    ranked = np.empty(len(bands), RANKED_BAND_DTYPE)
    ranked["key"] = bands["key"]
    ranked["rank"] = (split.number << 32) | bands["record"].astype(np.uint64)
    return ranked


def _paired(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    pairs = np.empty(len(first), PAIR_DTYPE)
    pairs["first"] = first
    pairs["second"] = second
    return pairs


def _reduced(ranked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of a split's bands, by key and rank: those to send, and the pairs made of the others."""
    first, place = _places(ranked["key"])
    sent = place < _OF_A_SPLIT
    return ranked[sent], _paired(ranked["rank"][first[~sent]], ranked["rank"][~sent])


def _distinct(pairs: np.ndarray) -> np.ndarray:
    order = np.lexsort((pairs["first"], pairs["second"]))
    pairs = pairs[order]
    new = np.ones(len(pairs), bool)
    new[1:] = pairs[1:] != pairs[:-1]
    return pairs[new]


def pairs_of_groups(bands: Iterable[bytes]) -> np.ndarray:
    """The pairs of documents that share a key.

    Args:
        bands: packed `RANKED_BAND_DTYPE` records, in any order and any cut; all of a key are among them.

    Returns:
        Distinct pairs of `PAIR_DTYPE`, by second and first.
    """
    ranked = np.frombuffer(b"".join(bands), RANKED_BAND_DTYPE)
    ranked = ranked[np.lexsort((ranked["rank"], ranked["key"]))]
    ranks = ranked["rank"]
    first, place = _places(ranked["key"])
    sizes = np.bincount(first, minlength=len(ranked))[first]
    later = place > 0
    found = [
        _paired(ranks[first[later]], ranks[later]),
        _paired(ranks[np.flatnonzero(later) - 1], ranks[later]),
    ]
    for distance in range(2, _ALL_PAIRS):
        far = (place >= distance) & (sizes <= _ALL_PAIRS)
        found.append(_paired(ranks[np.flatnonzero(far) - distance], ranks[far]))
    return _distinct(np.concatenate(found))


def distinct_pairs(packed: Sequence[bytes]) -> bytes:
    """Packed `PAIR_DTYPE` records without repeats, by second and first."""
    return _distinct(np.frombuffer(b"".join(packed), PAIR_DTYPE)).tobytes()


def pairs_by_split(pairs: np.ndarray) -> list[tuple[int, bytes]]:
    """Pairs, packed, by the number of the split of their second document."""
    pairs = _distinct(pairs)
    numbers, starts = np.unique(pairs["second"] >> np.uint64(32), return_index=True)
    pieces = np.split(pairs, starts[1:]) if len(numbers) else []
    return [(int(number), piece.tobytes()) for number, piece in zip(numbers, pieces, strict=True)]


def _bands(job: Job, split: Split) -> np.ndarray:
    path = near_path(job, split, "bands")
    return np.frombuffer(read_bytes(path), BAND_DTYPE)


def near_partitions(job: Job, splits: Sequence[Split]) -> int:
    """Into how many partitions keys are dealt, once the splits are scanned, so that each is a few megabytes."""
    sizes = (file_size(near_path(job, split, "bands")) for split in splits if job.near(split))
    return 1 + sum(sizes) // _PARTITION_BYTES


def partition_bands(job: Job, split: Split, partitions: int) -> list[tuple[int, bytes]]:
    """A split's bands as packed `RANKED_BAND_DTYPE` records, by partition; nothing when it takes no part."""
    if not job.near(split):
        return []
    sent, _ = _reduced(_ranked(_bands(job, split), split))
    bounds = np.searchsorted(sent["key"], key_bounds(partitions)[1:-1])
    pieces = np.split(sent, bounds)
    return [(number, piece.tobytes()) for number, piece in enumerate(pieces) if len(piece)]


def local_pairs(job: Job, split: Split) -> list[tuple[int, bytes]]:
    """The pairs of a split's bands that `partition_bands` does not send, by split."""
    if not job.near(split):
        return []
    _, pairs = _reduced(_ranked(_bands(job, split), split))
    return pairs_by_split(pairs)


def partition_pairs(job: Job, splits: Sequence[Split], partitions: int, number: int) -> list[tuple[int, bytes]]:
    """The pairs of one partition, read from the splits' files: what `partition_bands` and a shuffle give together.

    Args:
        job: the run.
        splits: the splits that were scanned.
        partitions: how many there are.
        number: number of the partition.

    Returns:
        (split number, packed distinct pairs), pairs that `local_pairs` would give included.
    """
    sent, pairs = [], []
    for split in splits:
        if job.near(split):
            path = near_path(job, split, "bands")
            count = file_size(path) // BAND_DTYPE.itemsize
            own, rest = _reduced(_ranked(read_keys_between(path, BAND_DTYPE, number, partitions, count=count), split))
            sent.append(own.tobytes())
            pairs.append(rest)
    return pairs_by_split(np.concatenate([pairs_of_groups(sent), *pairs]))
