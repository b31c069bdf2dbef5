"""A sample of what deduplication leaves out: which document it was, and which one stays in its place.

A few per split and reason, the first in the order of records, so it is the same for any runner; no text, which nobody
has at hand where copies are decided. Nothing reads it but people.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.formats.fingerprint import canonical_json
from gristmill.formats.receipts import item_receipt_path, read_receipt
from gristmill.formats.storage import remove, write_bytes
from gristmill.pipelines.job import Job
from gristmill.pipelines.plan import Split, planned_splits

__all__ = ["copy_rejects_path", "paragraph_rejects_path", "Sample", "Survivors", "write_copy_samples"]

_RECORDS = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Sample:
    """One that goes.

    Attributes:
        reason: what it is dropped as.
        rank: split number << 32 | record number of its document.
        kept: those of the document that stays.
        found: what is to be said of the two, empty for nothing.
        paragraph: number of the paragraph that goes; None where the document does.
        kept_paragraph: number of the paragraph that stays.
    """

    reason: str
    rank: int
    kept: int
    found: str = ""
    paragraph: int | None = None
    kept_paragraph: int | None = None


class Survivors:
    """Finds who stays in the end for a copy whose model may itself be a copy of something earlier."""

    def __init__(self, split: Split, losers: np.ndarray) -> None:
        """Takes the losers of a split, [n] of `LOSER_DTYPE`, by number."""
        self._number = split.number
        self._losers = losers

    def of(self, rank: int) -> int:
        """Rank of what stays in the place of `rank`, which is `rank` itself unless it is one of the losers."""
        if rank >> 32 == self._number:
            place = int(np.searchsorted(self._losers["record"], np.uint32(rank & _RECORDS)))
            if place < len(self._losers) and int(self._losers["record"][place]) == rank & _RECORDS:
                return int(self._losers["kept"][place])
        return rank


def copy_rejects_path(source_id: str, part: int) -> str:
    """Path of a split's sample of dropped copies and near duplicates, relative to the corpus."""
    return f"rejected/{source_id}/{part:05d}.copies.jsonl"


def paragraph_rejects_path(source_id: str, part: int) -> str:
    """Path of a split's sample of paragraphs that were left out, relative to the corpus."""
    return f"rejected/{source_id}/{part:05d}.paragraphs.jsonl"


def write_copy_samples(job: Job, name: str, samples: list[Sample]) -> None:
    """Writes a sample as JSON lines, or removes that of an earlier run where there is none now."""
    if not samples:
        remove(job.path(name))
        return
    places = _Places(job)
    write_bytes(job.path(name), b"".join(canonical_json(_shown(sample, places)) + b"\n" for sample in samples))


def _shown(sample: Sample, places: "_Places") -> dict[str, Any]:
    where, kept = places.of(sample.rank), places.of(sample.kept, with_source=True)
    if sample.paragraph is not None:
        where = f"{where}, paragraph {sample.paragraph}"
    if sample.kept_paragraph is not None:
        kept = f"{kept}, paragraph {sample.kept_paragraph}"
    return {"reason": sample.reason, "where": where, "kept": kept} | ({"found": sample.found} if sample.found else {})


class _Places:
    """Says in which file a document lies, reading the receipt of a split's scan where it is of several files."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._splits = planned_splits(job.corpus, job.plan_digest)
        self._ends: dict[int, list[int]] = {}

    def of(self, rank: int, *, with_source: bool = False) -> str:
        """A document in words."""
        split, record = self._splits[rank >> 32], rank & _RECORDS
        extent = split.extents[0]
        if len(split.extents) > 1:
            ends = self._ends_of(split)
            extent = split.extents[next((place for place, end in enumerate(ends) if record < end), 0)]
        where = f"{extent.relative}: record {record} of split {split.part}"
        return f"{self._job.source_of(split).id}/{where}" if with_source else where

    def _ends_of(self, split: Split) -> list[int]:
        """For each part of a split by file, the number of records up to its end."""
        if split.number not in self._ends:
            receipt = read_receipt(item_receipt_path(self._job.corpus, "scan", self._job.item(split)))
            inputs = [] if receipt is None else receipt.result["inputs"]
            self._ends[split.number] = [int(end) for _, _, end in inputs]
        return self._ends[split.number]
