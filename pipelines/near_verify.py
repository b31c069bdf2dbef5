"""Verifies pairs of documents by the Jaccard similarity of their shingles: a band's key only says where to look.

The work on a split reads its own shingles and those of the earlier documents that its own are paired with, the ranges
that are needed and no more.
"""

import numpy as np

from gristmill.formats.storage import read_bytes, read_range
from gristmill.pipelines.job import Job
from gristmill.pipelines.near_pairs import PAIR_DTYPE
from gristmill.pipelines.near_scan import NEAR_DTYPE, near_path
from gristmill.pipelines.plan import Split, read_plan

__all__ = ["verify_pairs"]

_RECORDS = np.uint64(0xFFFFFFFF)
_GAP_SHINGLES = 4096
_PAIRS = 1 << 16


def verify_pairs(job: Job, number: int, packed: "list[bytes]") -> bytes:
    """The pairs whose documents are near duplicates.

    Args:
        job: the run.
        number: number of the split of every pair's second document.
        packed: packed `PAIR_DTYPE` records, in any order and any cut, repeats included.

    Returns:
        Those that reach the threshold, packed, by second and first.
    """
    settings = job.recipe.near_dedup
    pairs = np.unique(np.frombuffer(b"".join(packed), PAIR_DTYPE))
    if settings is None or not len(pairs):
        return b""
    splits = read_plan(job.corpus).splits
    found = []
    owners = pairs["first"] >> np.uint64(32)
    for owner in np.unique(owners):
        ours = pairs[owners == owner]
        for start in range(0, len(ours), _PAIRS):
            some = ours[start : start + _PAIRS]
            similar = _similarities(job, splits[int(owner)], splits[number], some) >= settings.threshold
            found.append(some[similar])
    edges = np.concatenate(found)
    return edges[np.lexsort((edges["first"], edges["second"]))].tobytes()


def _similarities(job: Job, first: Split, second: Split, pairs: np.ndarray) -> np.ndarray:
    from gristmill.pipelines.near_kernels import shared_counts

    one, one_starts, one_counts = _shingles(job, first, (pairs["first"] & _RECORDS).astype(np.uint32))
    other, other_starts, other_counts = _shingles(job, second, (pairs["second"] & _RECORDS).astype(np.uint32))
    shared = np.empty(len(pairs), np.int64)
    shared_counts(one, one_starts, one_counts, other, other_starts, other_counts, shared)
    similarities: np.ndarray = shared / (one_counts + other_counts - shared)
    return similarities


def _shingles(job: Job, split: Split, records: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The shingles of records of a split: of all that are named, and where each one's are and how many."""
    documents = np.frombuffer(read_bytes(near_path(job, split, "near")), NEAR_DTYPE)
    wanted, inverse = np.unique(records, return_inverse=True)
    documents = documents[np.searchsorted(documents["record"], wanted)]
    starts = documents["start"].astype(np.int64)
    counts = documents["count"].astype(np.int64)
    stops = starts + counts
    breaks = np.flatnonzero(starts[1:] - stops[:-1] > _GAP_SHINGLES) + 1
    firsts = np.concatenate([np.zeros(1, np.int64), breaks])
    lasts = np.concatenate([breaks, np.full(1, len(documents))]) - 1
    path = near_path(job, split, "shingles")
    parts = [
        np.frombuffer(read_range(path, 4 * begin, 4 * (end - begin)), "<u4")
        for begin, end in zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True)
    ]
    sizes = np.array([len(part) for part in parts])
    moved = np.repeat(np.cumsum(sizes) - sizes - starts[firsts], lasts - firsts + 1)
    return np.concatenate(parts), (starts + moved)[inverse], counts[inverse]
