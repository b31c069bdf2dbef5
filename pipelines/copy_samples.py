"""A sample of what deduplication leaves out: which document it was, and which one stays in its place.

A few per split and reason, the first in the order of records, so it is the same for any runner; no text, which nobody
has at hand where copies are decided. Ids are looked up for these few alone. Nothing reads it but people.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gristmill.formats.fingerprint import canonical_json
from gristmill.formats.receipts import item_receipt_path, read_receipt
from gristmill.formats.storage import remove, write_bytes
from gristmill.pipelines.id_file import ids_of, ids_path
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


def write_copy_samples(job: Job, name: str, samples: Sequence[Sample]) -> dict[str, dict[str, Any]]:
    """Writes a sample as JSON lines, or removes that of an earlier run where there is none now.

    Returns:
        Size and digest of the file by its name, as JSON values; empty where there is none.
    """
    if not samples:
        remove(job.path(name))
        return {}
    documents = _Documents(job, samples)
    lines = (canonical_json(_shown(sample, documents)) + b"\n" for sample in samples)
    return {name: asdict(write_bytes(job.path(name), b"".join(lines)))}


def _shown(sample: Sample, documents: "_Documents") -> dict[str, Any]:
    where, kept = documents.place(sample.rank), documents.place(sample.kept, with_source=True)
    if sample.paragraph is not None:
        where = f"{where}, paragraph {sample.paragraph}"
    if sample.kept_paragraph is not None:
        kept = f"{kept}, paragraph {sample.kept_paragraph}"
    shown = {
        "reason": sample.reason,
        "where": where,
        "id": documents.id(sample.rank),
        "kept": kept,
        "kept_id": documents.id(sample.kept),
        "found": sample.found or None,
    }
    return {key: value for key, value in shown.items() if value is not None}


class _Documents:
    """Says of the documents of samples in which file each lies and what it calls itself.

    Of a split of several files the receipt of its scan is read, of one that has ids a few ranges of these.
    """

    def __init__(self, job: Job, samples: Sequence[Sample]) -> None:
        self._job = job
        self._splits = planned_splits(job.corpus, job.plan_digest)
        self._ends: dict[int, list[int]] = {}
        asked: dict[int, list[int]] = {}
        for rank in sorted({rank for sample in samples for rank in (sample.rank, sample.kept)}):
            asked.setdefault(rank >> 32, []).append(rank & _RECORDS)
        self._ids = {number: self._ids_of(self._splits[number], records) for number, records in asked.items()}

    def id(self, rank: int) -> Any:
        """What a document calls itself; None where it does not."""
        return self._ids[rank >> 32].get(rank & _RECORDS)

    def place(self, rank: int, *, with_source: bool = False) -> str:
        """A document in words."""
        split, record = self._splits[rank >> 32], rank & _RECORDS
        extent = split.extents[0]
        if len(split.extents) > 1:
            ends = self._ends_of(split)
            extent = split.extents[next((place for place, end in enumerate(ends) if record < end), 0)]
        where = f"{extent.relative}: record {record} of split {split.part}"
        return f"{self._job.source_of(split).id}/{where}" if with_source else where

    def _ids_of(self, split: Split, records: Sequence[int]) -> dict[int, Any]:
        if not self._job.keeps_ids(split):
            return {}
        return ids_of(self._job.path(ids_path(self._job.source_of(split).id, split.part)), records)

    def _ends_of(self, split: Split) -> list[int]:
        """For each part of a split by file, the number of records up to its end."""
        if split.number not in self._ends:
            receipt = read_receipt(item_receipt_path(self._job.corpus, "scan", self._job.item(split)))
            inputs = [] if receipt is None else receipt.result["inputs"]
            self._ends[split.number] = [int(end) for _, _, end in inputs]
        return self._ends[split.number]
