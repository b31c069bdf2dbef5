"""Deduplication of paragraphs: of all that are alike, the one that comes first stays, the others go from their texts.

It follows on that of documents: what was dropped there has no paragraphs any more. First is by the order of sources,
files, records and paragraphs, so what goes never depends on runner or workers. Keys are dealt to partitions by value;
what comes back to a split are numbers of paragraphs, and the encoding of it, which reads the texts a second time,
leaves them out.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from gristmill.formats.storage import read_bytes, read_range, write_bytes
from gristmill.pipelines.copy_samples import Sample, Survivors, paragraph_rejects_path, write_copy_samples
from gristmill.pipelines.dedup import LOSER_DTYPE, kept_records, later_copies, losers_of
from gristmill.pipelines.job import Job
from gristmill.pipelines.paragraph_scan import (
    LINE_DTYPE,
    paragraph_bytes,
    paragraph_path,
    read_paragraphs_between,
)
from gristmill.pipelines.paragraphs import trailing
from gristmill.pipelines.plan import Split, planned_splits
from gristmill.pipelines.records import SAMPLES_PER_REASON
from gristmill.pipelines.scan import RANKED_DTYPE, read_keys

__all__ = [
    "CUT_DTYPE",
    "cut_totals",
    "cuts_path",
    "deal_paragraphs",
    "emptied_path",
    "paragraph_losers",
    "paragraph_partitions",
    "read_cuts",
    "read_emptied",
    "write_cuts",
]

CUT_DTYPE = np.dtype([("record", "<u4"), ("place", "<u4")])
"""One paragraph that goes: number of its record, and which of its paragraphs it is."""

_PARTITION_BYTES = 16 << 20
_LINES = np.uint64(0xFFFFFFFF)
_NONE_LEFT, _MIN_CHARS = "paragraphs.none_left", "paragraphs.min_chars"


def cuts_path(source_id: str, part: int) -> str:
    """Path of a split's list of paragraphs that go, relative to the corpus."""
    return f"clean/{source_id}/{part:05d}.cuts"


def emptied_path(source_id: str, part: int) -> str:
    """Path of a split's list of documents of which too little is left, relative to the corpus."""
    return f"clean/{source_id}/{part:05d}.emptied"


def read_cuts(job: Job, split: Split) -> np.ndarray:
    """The paragraphs of a split that go, [n] of `CUT_DTYPE`, in order; of documents that go on."""
    return np.frombuffer(read_bytes(job.path(cuts_path(job.source_of(split).id, split.part))), CUT_DTYPE)


def read_emptied(job: Job, split: Split) -> np.ndarray:
    """The documents of a split of which too little is left, ascending uint32."""
    return np.frombuffer(read_bytes(job.path(emptied_path(job.source_of(split).id, split.part))), "<u4")


def paragraph_partitions(job: Job, splits: Sequence[Split]) -> int:
    """Into how many partitions keys are dealt, once the splits are scanned, so that each is a few megabytes."""
    return 1 + sum(paragraph_bytes(job, split) for split in splits if job.cuts(split)) // _PARTITION_BYTES


def paragraph_losers(job: Job, splits: Sequence[Split], partitions: int, number: int) -> list[tuple[int, bytes]]:
    """The paragraphs of one partition that go, as `later_copies` gives them; numbers are those in `.lines`.

    Args:
        job: the run.
        splits: the splits, whose drops are written.
        partitions: how many there are.
        number: number of the partition.
    """
    return later_copies(_ranked(job, split, partitions, number).tobytes() for split in splits if job.cuts(split))


def deal_paragraphs(job: Job, split: Split, partitions: int) -> Iterator[tuple[int, bytes, list[tuple[int, bytes]]]]:
    """A split's keys for a shuffle: each key once, by partition, and what goes whatever other splits hold.

    Args:
        job: the run.
        split: the split, whose drops are written.
        partitions: how many there are.

    Yields:
        Number of a partition, packed `RANKED_DTYPE` records, and losers as `later_copies` gives them.
    """
    for number in range(partitions if job.cuts(split) else 0):
        ranked = _ranked(job, split, partitions, number)
        if len(ranked):
            local = later_copies([ranked.tobytes()])
            lost = [np.frombuffer(packed, LOSER_DTYPE)["record"] for _, packed in local]
            firsts = ranked[~np.isin(ranked["rank"] & _LINES, np.concatenate([np.empty(0, "<u4"), *lost]))]
            yield number, firsts.tobytes(), local


def _ranked(job: Job, split: Split, partitions: int, number: int) -> np.ndarray:
    """The keys of a split's documents that are left, of one partition, [n] of `RANKED_DTYPE`."""
    keys = read_paragraphs_between(job, split, number, partitions)
    keys = keys[np.isin(keys["record"], kept_records(job, split))]
    ranked = np.empty(len(keys), RANKED_DTYPE)
    ranked["hash"][:, 0], ranked["hash"][:, 1] = keys["key"], keys["more"]
    ranked["rank"] = (split.number << 32) | keys["line"].astype(np.uint64)
    return ranked


def write_cuts(job: Job, split: Split, groups: Iterable[bytes]) -> dict[str, Any]:
    """Writes which paragraphs of a split go, and which documents with them.

    Args:
        job: the run.
        split: the split.
        groups: packed `LOSER_DTYPE` records by number in `.lines`, in any order and any cut.

    Returns:
        Split number, source and part; how many paragraphs go, how many documents go on without some, and how many do
        not go on, by reason; code points and bytes that go; the files and the sample by path.
    """
    source = job.source_of(split)
    losers = losers_of(groups)
    found = _Verdict(job, split, losers)
    files = {}
    for name, data in (
        (cuts_path(source.id, split.part), found.cuts.tobytes()),
        (emptied_path(source.id, split.part), found.emptied.tobytes()),
    ):
        files[name] = asdict(write_bytes(job.path(name), data))
    return {
        "number": split.number,
        "source": split.source,
        "part": split.part,
        "paragraphs": len(losers),
        "changed": len(np.unique(found.cuts["record"])),
        "dropped": {reason: len(records) for reason, records in found.dropped.items() if len(records)},
        "text": found.text,
        "files": files,
        "samples": write_copy_samples(job, paragraph_rejects_path(source.id, split.part), found.samples()),
    }


class _Verdict:
    """What becomes of the documents of a split that lose paragraphs.

    Attributes:
        cuts: [n] of `CUT_DTYPE`: paragraphs that go from documents that go on.
        dropped: record numbers of documents of which too little is left, by reason.
        emptied: the same of all reasons, ascending uint32.
        text: code points and bytes that go, of documents that do not go on all.
    """

    def __init__(self, job: Job, split: Split, losers: np.ndarray) -> None:
        self._job, self._split, self._losers = job, split, losers
        self.dropped: dict[str, np.ndarray] = {}
        self.cuts, self.emptied, self.text = np.empty(0, CUT_DTYPE), np.empty(0, "<u4"), [0, 0]
        if not len(losers):
            return
        source = job.source_of(split)
        lines = np.frombuffer(read_bytes(paragraph_path(job, split, "lines")), LINE_DTYPE)
        self._goes = lines[losers["record"]]
        goes = np.zeros(len(lines), bool)
        goes[losers["record"]] = True
        records = np.unique(self._goes["record"])
        theirs = np.isin(lines["record"], records)
        lines, goes = lines[theirs], goes[theirs]
        owners = np.searchsorted(records, lines["record"])
        keys = read_keys(job, source.id, split.part)
        keys = keys[np.searchsorted(keys["record"], records)]
        removed = np.stack(
            [_removed(lines, owners, goes, names) for names in (("characters", "gap"), ("size", "gap_size"))], axis=1
        )
        whole = np.stack([keys["characters"], keys["size"]], axis=1).astype(np.int64)
        none_left = np.bincount(owners, ~goes, len(records)) == 0
        short = ~none_left & (whole[:, 0] - removed[:, 0] < source.clean.min_chars)
        removed[none_left | short] = whole[none_left | short]
        self.dropped = {_NONE_LEFT: records[none_left], _MIN_CHARS: records[short]}
        self.emptied = np.ascontiguousarray(records[none_left | short])
        self.text = [int(total) for total in removed.sum(axis=0)]
        cut = ~np.isin(self._goes["record"], self.emptied)
        self.cuts = np.empty(int(cut.sum()), CUT_DTYPE)
        for name in ("record", "place"):
            self.cuts[name] = self._goes[name][cut]

    def samples(self) -> list[Sample]:
        """The first paragraphs that go, and the first documents of each reason that do not go on."""
        samples = []
        if len(self._losers):
            own = self._split.number << 32
            numbers = list(range(min(SAMPLES_PER_REASON, len(self._losers))))
            reasons = ["paragraphs.removed"] * len(numbers)
            for reason, records in self.dropped.items():
                firsts = np.searchsorted(self._goes["record"], records[:SAMPLES_PER_REASON]).tolist()
                numbers += firsts
                reasons += [reason] * len(firsts)
            survivors = Survivors(self._split, self._losers)
            for reason, number in zip(reasons, numbers, strict=True):
                gone, kept = self._goes[number], survivors.of(int(self._losers["kept"][number]))
                stays = self._line(kept)
                samples.append(
                    Sample(
                        reason,
                        own | int(gone["record"]),
                        (kept >> 32 << 32) | int(stays["record"]),
                        paragraph=int(gone["place"]),
                        kept_paragraph=int(stays["place"]),
                    )
                )
        return samples

    def _line(self, rank: int) -> np.void:
        """What `.lines` of its split says of a paragraph."""
        split = planned_splits(self._job.corpus, self._job.plan_digest)[rank >> 32]
        path = paragraph_path(self._job, split, "lines")
        data = read_range(path, (rank & 0xFFFFFFFF) * LINE_DTYPE.itemsize, LINE_DTYPE.itemsize)
        line: np.void = np.frombuffer(data, LINE_DTYPE)[0]
        return line


def _removed(lines: np.ndarray, owners: np.ndarray, goes: np.ndarray, names: tuple[str, str]) -> np.ndarray:
    """What documents lose with their paragraphs: a paragraph and the gap behind it, or that before it at the end.

    Args:
        lines: [paragraphs] of `LINE_DTYPE`: all of these documents.
        owners: [paragraphs] number of the document, from 0, ascending.
        goes: [paragraphs] bool.
        names: the fields to add up, of paragraphs and of gaps.

    Returns:
        [documents] int64.
    """
    gaps = lines[names[1]].astype(np.int64)
    at_end = trailing(owners, goes)
    gaps[1:][at_end[1:]] = lines[names[1]][:-1][at_end[1:]]
    removed = np.zeros(int(owners[-1]) + 1, np.int64)
    np.add.at(removed, owners[goes], lines[names[0]][goes] + gaps[goes])
    return removed


def cut_totals(reports: Iterable[dict[str, Any]]) -> tuple[dict[str, int], dict[str, int], list[int]]:
    """What the reports of a source's splits come to.

    Args:
        reports: what `write_cuts` reported.

    Returns:
        Documents that do not go on, by reason; counts of paragraphs, characters and documents that changed; code points
        and bytes that go.
    """
    dropped: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    text = [0, 0]
    for report in reports:
        dropped.update(report["dropped"])
        counted["paragraphs.removed"] += report["paragraphs"]
        counted["paragraphs.characters_removed"] += report["text"][0]
        counted["paragraphs.documents_changed"] += report["changed"]
        text = [total + more for total, more in zip(text, report["text"], strict=True)]
    return dict(dropped), {name: count for name, count in counted.items() if count}, text
