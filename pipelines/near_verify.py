"""Verifies pairs of documents by the Jaccard similarity of their shingles: a band's key only says where to look.

The work on a split reads its own shingles and those of the earlier documents that its own are paired with, the ranges
that are needed and no more.
"""

import numpy as np

from gristmill.formats.storage import read_bytes, read_range
from gristmill.pipelines.job import Job
from gristmill.pipelines.near_pairs import PAIR_DTYPE
from gristmill.pipelines.near_scan import NEAR_DTYPE, near_path
from gristmill.pipelines.plan import Split, planned_splits

__all__ = ["similarities", "verify_pairs"]

_RECORDS = np.uint64(0xFFFFFFFF)
_GAP_SHINGLES = 4096
_SHINGLES = 1 << 23


def verify_pairs(job: Job, packed: "list[bytes]") -> bytes:
    """The pairs whose documents are near duplicates.

    Args:
        job: the run.
        packed: packed `PAIR_DTYPE` records, in any order and any cut, repeats included; their second documents are all
            of one split.

    Returns:
        Those that reach the threshold, packed, by second and first.
    """
    settings = job.recipe.near_dedup
    pairs = np.unique(np.frombuffer(b"".join(packed), PAIR_DTYPE))
    if settings is None or not len(pairs):
        return b""
    edges = pairs[similarities(job, pairs["first"], pairs["second"]) >= settings.threshold]
    return edges[np.lexsort((edges["first"], edges["second"]))].tobytes()


def similarities(job: Job, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The Jaccard similarities of pairs of documents.

    Args:
        job: the run.
        first: [pairs] uint64: rank of one document of each pair.
        second: [pairs] uint64: rank of the other; all are of one split.

    Returns:
        [pairs] float64.
    """
    splits = planned_splits(job.corpus, job.plan_digest)
    others = _Side(job, splits[int(second[0] >> np.uint64(32))], second)
    found = np.empty(len(first))
    owners = first >> np.uint64(32)
    for owner in np.unique(owners):
        ours = owners == owner
        found[ours] = _similarities(_Side(job, splits[int(owner)], first[ours]), others.of(ours))
    return found


def _similarities(first: "_Side", second: "_Side") -> np.ndarray:
    """Jaccard similarities of pairs, some at a time so that their shingles fit into memory."""
    from gristmill.pipelines.near_kernels import shared_counts

    shared = np.empty(len(first.counts), np.int64)
    stops = np.cumsum(first.counts + second.counts)
    start = 0
    while start < len(shared):
        done = int(stops[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(stops, done + _SHINGLES, side="right")))
        some = slice(start, stop)
        shared_counts(*first.shingles(some), *second.shingles(some), shared[some])
        start = stop
    similarities: np.ndarray = shared / (first.counts + second.counts - shared)
    return similarities


class _Side:
    """One side of some pairs: documents of a split, and where their shingles lie.

    Attributes:
        starts: [pairs] first shingle of each document in its split's file.
        counts: [pairs] how many it has.
    """

    def __init__(self, job: Job, split: Split, ranks: np.ndarray) -> None:
        self._path = near_path(job, split, "shingles")
        documents = np.frombuffer(read_bytes(near_path(job, split, "near")), NEAR_DTYPE)
        records = (ranks & _RECORDS).astype(np.uint32)
        documents = documents[np.searchsorted(documents["record"], records)]
        self.starts = documents["start"].astype(np.int64)
        self.counts = documents["count"].astype(np.int64)

    def of(self, pairs: np.ndarray) -> "_Side":
        """The same side of fewer pairs, by a mask."""
        side = object.__new__(_Side)
        side._path, side.starts, side.counts = self._path, self.starts[pairs], self.counts[pairs]
        return side

    def shingles(self, pairs: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Shingles of the documents of some pairs, and where in them each one's are and how many."""
        starts, inverse = np.unique(self.starts[pairs], return_inverse=True)
        counts = np.empty(len(starts), np.int64)
        counts[inverse] = self.counts[pairs]
        stops = starts + counts
        breaks = np.flatnonzero(starts[1:] - stops[:-1] > _GAP_SHINGLES) + 1
        firsts = np.concatenate([np.zeros(1, np.int64), breaks])
        lasts = np.concatenate([breaks, np.full(1, len(starts))]) - 1
        parts = [
            np.frombuffer(read_range(self._path, 4 * begin, 4 * (end - begin)), "<u4")
            for begin, end in zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True)
        ]
        sizes = np.array([len(part) for part in parts])
        moved = np.repeat(np.cumsum(sizes) - sizes - starts[firsts], lasts - firsts + 1)
        return np.concatenate(parts), (starts + moved)[inverse], self.counts[pairs]
