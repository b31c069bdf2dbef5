"""Exact deduplication, and what both kinds of it leave: of all documents with one text, the one that ranks first stays.

Rank is the order of the recipe (source, then input file, then position), so the survivor never depends on runner,
workers or the order in which groups arrive. Only packed keys come here; who loses goes back to its split as a list of
record numbers, each with the rank of the document that stays.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from gristmill.formats.storage import read_bytes, write_bytes
from gristmill.pipelines.copy_samples import Sample, Survivors, copy_rejects_path, write_copy_samples
from gristmill.pipelines.job import Job
from gristmill.pipelines.near_verify import similarities
from gristmill.pipelines.plan import Split
from gristmill.pipelines.records import SAMPLES_PER_REASON
from gristmill.pipelines.scan import RANKED_DTYPE, read_keys

__all__ = [
    "drops_path",
    "kept_records",
    "later_copies",
    "LOSER_DTYPE",
    "losers_of",
    "packed_losers",
    "read_drops",
    "write_drops",
]

LOSER_DTYPE = np.dtype([("record", "<u4"), ("kept", "<u8")])
"""One that goes: its number within its split, and the rank of the one that stays in its place."""


def drops_path(source_id: str, part: int) -> str:
    """Path of a split's list of dropped records, relative to the corpus."""
    return f"clean/{source_id}/{part:05d}.drops"


def packed_losers(ranks: np.ndarray, kept: np.ndarray) -> list[tuple[int, bytes]]:
    """Those that go, dealt to their splits.

    Args:
        ranks: [losers] uint64, each once.
        kept: [losers] uint64: rank of the one that stays in the place of each.

    Returns:
        (split number, packed `LOSER_DTYPE` records by number), by split number.
    """
    order = np.argsort(ranks)
    losers = np.empty(len(ranks), LOSER_DTYPE)
    losers["record"] = ranks[order] & np.uint64(0xFFFFFFFF)
    losers["kept"] = kept[order]
    splits, starts = np.unique(ranks[order] >> np.uint64(32), return_index=True)
    pieces = np.split(losers, starts[1:]) if len(splits) else []
    return [(int(number), piece.tobytes()) for number, piece in zip(splits, pieces, strict=True)]


def losers_of(groups: Iterable[bytes]) -> np.ndarray:
    """Packed `LOSER_DTYPE` records as one array, by number, each number once with the first that stays for it."""
    losers = np.frombuffer(b"".join(groups), LOSER_DTYPE)
    losers = losers[np.lexsort((losers["kept"], losers["record"]))]
    return losers[np.unique(losers["record"], return_index=True)[1]]


def later_copies(groups: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """Who loses among those that share a hash.

    Args:
        groups: packed `RANKED_DTYPE` records, in any order and any cut.

    Returns:
        (split number, its losers as packed `LOSER_DTYPE` records by number), by split number.
    """
    keys = np.frombuffer(b"".join(groups), RANKED_DTYPE)
    order = np.lexsort((keys["rank"], keys["hash"][:, 0], keys["hash"][:, 1]))
    hashes, ranks = keys["hash"][order], keys["rank"][order]
    copy = np.zeros(len(keys), bool)
    copy[1:] = (hashes[1:] == hashes[:-1]).all(axis=1)
    firsts = np.flatnonzero(~copy)
    return packed_losers(ranks[copy], ranks[firsts[(np.cumsum(~copy) - 1)[copy]]])


def write_drops(
    job: Job, split: Split, scan: dict[str, Any], losers: Iterable[bytes], near_losers: Iterable[bytes] = ()
) -> dict[str, Any]:
    """Writes a split's list of dropped records, and a sample of them that names what stays in their place.

    Args:
        job: the run.
        split: the split.
        scan: what its scan reported.
        losers: packed `LOSER_DTYPE` records of copies, in any order and any cut.
        near_losers: those of near duplicates; one that is a copy too counts as that.

    Returns:
        Split number, how many copies and near duplicates are on the list, how many code points and bytes of text they
        have, the list and the sample by path.
    """
    source_id = job.source_of(split).id
    copies, near = losers_of(losers), losers_of(near_losers)
    near = near[~np.isin(near["record"], copies["record"], assume_unique=True)]
    records = np.union1d(copies["record"], near["record"])
    keys = read_keys(job, source_id, split.part)
    dropped = keys[np.isin(keys["record"], records, assume_unique=True)]
    name = drops_path(source_id, split.part)
    facts = write_bytes(job.path(name), records.tobytes())
    samples = _samples(job, split, scan["copies"], copies, near)
    return {
        "number": split.number,
        "source": split.source,
        "part": split.part,
        "copies": len(copies),
        "near": len(near),
        "text": [int(dropped[name].sum(dtype=np.int64)) for name in ("characters", "size")],
        "files": {name: asdict(facts)},
        "samples": write_copy_samples(job, copy_rejects_path(source_id, split.part), samples),
    }


def _samples(job: Job, split: Split, within: list[list[int]], copies: np.ndarray, near: np.ndarray) -> list[Sample]:
    """The first documents of a split that go as copies, and as near duplicates.

    Args:
        job: the run.
        split: the split.
        within: the first copies of documents of the split itself: record, and that of the document.
        copies: the copies of documents of earlier splits, [n] of `LOSER_DTYPE`.
        near: the near duplicates, likewise.
    """
    own = split.number << 32
    survivors = Survivors(split, copies)
    exact = {record: survivors.of(own | first) for record, first in within}
    exact |= {int(record): int(kept) for record, kept in copies[:SAMPLES_PER_REASON]}
    samples = [Sample("exact_duplicate", own | record, exact[record]) for record in sorted(exact)[:SAMPLES_PER_REASON]]
    near = near[:SAMPLES_PER_REASON]
    alike = similarities(job, near["kept"], near["record"].astype(np.uint64) | np.uint64(own)) if len(near) else ()
    settings = job.recipe.near_dedup
    threshold = 0.0 if settings is None else settings.threshold
    return samples + [
        Sample("near_duplicate", own | int(record), int(kept), f"similarity {similarity:.4f}, threshold {threshold:g}")
        for (record, kept), similarity in zip(near, alike, strict=True)
    ]


def read_drops(job: Job, split: Split) -> np.ndarray:
    """A split's dropped records, ascending uint32."""
    return np.frombuffer(read_bytes(job.path(drops_path(job.source_of(split).id, split.part))), "<u4")


def kept_records(job: Job, split: Split) -> np.ndarray:
    """Numbers of the records that scan and deduplication of documents left, ascending uint32."""
    kept = read_keys(job, job.source_of(split).id, split.part)["record"]
    drops = read_drops(job, split)
    return np.setdiff1d(kept, drops, assume_unique=True) if len(drops) else np.ascontiguousarray(kept)
