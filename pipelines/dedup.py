"""Exact deduplication, and what both kinds of it leave: of all documents with one text, the one that ranks first stays.

Rank is the order of the recipe (source, then input file, then position), so the survivor never depends on runner,
workers or the order in which groups arrive. Only packed keys come here; who loses goes back to its split as a list of
record numbers.
"""

from collections.abc import Iterable

import numpy as np

from gristmill.formats.storage import read_bytes, write_bytes
from gristmill.pipelines.job import Job
from gristmill.pipelines.plan import Split
from gristmill.pipelines.scan import RANKED_DTYPE, read_keys

__all__ = ["drops_path", "later_copies", "read_drops", "write_drops"]


def drops_path(source_id: str, part: int) -> str:
    """Path of a split's list of dropped records, relative to the corpus."""
    return f"clean/{source_id}/{part:05d}.drops"


def later_copies(groups: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """Who loses among documents that share a hash.

    Args:
        groups: packed `RANKED_DTYPE` records, in any order and any cut.

    Returns:
        (split number, its losing record numbers as packed ascending uint32), by split number.
    """
    keys = np.frombuffer(b"".join(groups), RANKED_DTYPE)
    order = np.lexsort((keys["rank"], keys["hash"][:, 0], keys["hash"][:, 1]))
    hashes = keys["hash"][order]
    copy = np.zeros(len(keys), bool)
    copy[1:] = (hashes[1:] == hashes[:-1]).all(axis=1)
    losers = np.sort(keys["rank"][order[copy]])
    numbers = (losers >> np.uint64(32)).astype(np.int64)
    records = (losers & np.uint64(0xFFFFFFFF)).astype("<u4")
    splits, starts = np.unique(numbers, return_index=True)
    pieces = np.split(records, starts[1:])
    return [(int(number), piece.tobytes()) for number, piece in zip(splits, pieces, strict=True)] if len(splits) else []


def write_drops(
    job: Job, split: Split, losers: Iterable[bytes], near_losers: Iterable[bytes] = ()
) -> dict[str, object]:
    """Writes a split's list of dropped records.

    Args:
        job: the run.
        split: the split.
        losers: packed uint32 record numbers of copies, in any order and any cut.
        near_losers: those of near duplicates; one that is a copy too counts as that.

    Returns:
        Split number, path, size and digest of the list, how many copies and near duplicates are on it, and how many
        code points and bytes of text they have.
    """
    copies = np.unique(np.frombuffer(b"".join(losers), "<u4"))
    records = np.union1d(copies, np.frombuffer(b"".join(near_losers), "<u4"))
    keys = read_keys(job, job.source_of(split).id, split.part)
    dropped = keys[np.isin(keys["record"], records, assume_unique=True)]
    name = drops_path(job.source_of(split).id, split.part)
    facts = write_bytes(job.path(name), records.tobytes())
    return {
        "number": split.number,
        "source": split.source,
        "part": split.part,
        "copies": len(copies),
        "near": len(records) - len(copies),
        "text": [int(dropped[name].sum(dtype=np.int64)) for name in ("characters", "size")],
        "file": {"path": name, "size": facts.size, "sha256": facts.sha256},
    }


def read_drops(job: Job, split: Split) -> np.ndarray:
    """A split's dropped records, ascending uint32."""
    return np.frombuffer(read_bytes(job.path(drops_path(job.source_of(split).id, split.part))), "<u4")
