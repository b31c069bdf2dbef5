"""What a scan leaves for near deduplication: the shingles of a split's documents and the keys of their bands.

Three files beside the spills, which go when the run ends: `.shingles` with the shingles of one document after the
other, `.near` with a record per document, `.bands` with a record per document and band, by key. So a worker that looks
at some keys, or at some documents, reads only those; text and shingles never cross a shuffle.
"""

import contextlib
from types import TracebackType
from typing import Self

import numpy as np

from gristmill.formats.fingerprint import digest
from gristmill.formats.near_table import NearDedup
from gristmill.formats.storage import FileFacts, publish
from gristmill.pipelines.job import Job
from gristmill.pipelines.near_signatures import band_keys, shingles_of
from gristmill.pipelines.plan import Split
from gristmill.pipelines.records import Batch

__all__ = ["BAND_DTYPE", "NEAR_DTYPE", "near_path", "NearWriter"]

NEAR_DTYPE = np.dtype([("record", "<u4"), ("count", "<u4"), ("start", "<u8")])
"""One document: number of its record, how many shingles it has, and the first of them in `.shingles`."""

_CHUNK = 1 << 18

BAND_DTYPE = np.dtype([("key", "<u8"), ("record", "<u4")])
"""One band of a document: its key, and the number of the document's record."""


def near_path(job: Job, split: Split, kind: str) -> str:
    """Path of a file; `kind` is "shingles", "near" or "bands"."""
    return job.path(_name(job, split, kind))


def _name(job: Job, split: Split, kind: str) -> str:
    own = digest({"step": "near", "split": split.digest, "settings": job.recipe.near_dedup})
    return f"spill/{job.source_of(split).id}/{split.part:05d}-{own[:12]}.{kind}"


class NearWriter:
    """Takes a split's documents batch by batch; a context manager around the scan."""

    def __init__(self, job: Job, split: Split, settings: NearDedup) -> None:
        """Writes nothing yet."""
        self._job = job
        self._settings = settings
        self._names = {kind: _name(job, split, kind) for kind in ("shingles", "near", "bands")}
        self._documents: list[np.ndarray] = []
        self._keys: list[np.ndarray] = []
        self._total = 0
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._shingles = self._closing.enter_context(publish(self._job.path(self._names["shingles"]), scratch=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.__exit__(kind, error, trace)

    def add(self, batch: Batch) -> None:
        """Takes a batch of documents that the rules let through."""
        found = shingles_of(batch.texts, self._settings.ngram)
        documents = np.empty(len(batch.texts), NEAR_DTYPE)
        documents["record"] = batch.records
        documents["count"] = found.counts
        documents["start"] = self._total + np.cumsum(found.counts) - found.counts
        self._shingles.write(np.ascontiguousarray(found.hashes))
        self._total += len(found.hashes)
        self._documents.append(documents)
        self._keys.append(band_keys(found, self._settings))

    def finish(self, kept: np.ndarray) -> dict[str, FileFacts]:
        """Writes down the documents that are left of the split, once the block has ended.

        Args:
            kept: their record numbers, ascending uint32.

        Returns:
            The files by path.
        """
        documents = np.concatenate([np.empty(0, NEAR_DTYPE), *self._documents])
        keys = np.concatenate([np.empty((0, self._settings.bands), np.uint64), *self._keys])
        self._documents, self._keys = [], []
        taken = np.isin(documents["record"], kept, assume_unique=True) & (documents["count"] > 0)
        if not taken.all():
            documents, keys = documents[taken], keys[taken]
        facts = {self._names["shingles"]: self._shingles.facts()}
        with publish(self._job.path(self._names["near"]), scratch=True) as publication:
            publication.write(documents)
        facts[self._names["near"]] = publication.facts()
        flat = keys.reshape(-1)
        order = np.argsort(flat, kind="stable")  # of equal keys, that of the first record comes first
        with publish(self._job.path(self._names["bands"]), scratch=True) as publication:
            for start in range(0, len(order), _CHUNK):  # so that sorted bands never lie in memory as a whole
                some = order[start : start + _CHUNK]
                bands = np.empty(len(some), BAND_DTYPE)
                bands["key"] = flat[some]
                bands["record"] = documents["record"][some // self._settings.bands]
                publication.write(bands)
        facts[self._names["bands"]] = publication.facts()
        return facts
