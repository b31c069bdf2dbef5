"""What a scan leaves for the deduplication of paragraphs: the keys of those long enough, and the sizes of all.

Two files beside the spills, which go when the run ends: `.lines` with a record per paragraph, in order, and
`.paragraphs` with a key per paragraph that is compared, in sorted runs of a fixed length; so whoever looks at some keys
reads only those, and a scan holds one run in memory. No text crosses a shuffle.
"""

import contextlib
from types import TracebackType
from typing import Self

import numpy as np

from gristmill.formats.dedup_table import ParagraphDedup
from gristmill.formats.fingerprint import digest
from gristmill.formats.storage import FileFacts, file_size, publish
from gristmill.pipelines.job import Job
from gristmill.pipelines.paragraphs import keys_of, paragraphs_of
from gristmill.pipelines.plan import Split
from gristmill.pipelines.records import Batch
from gristmill.pipelines.sorted_keys import read_keys_between

__all__ = [
    "LINE_DTYPE",
    "paragraph_bytes",
    "PARAGRAPH_DTYPE",
    "paragraph_path",
    "ParagraphWriter",
    "read_paragraphs_between",
]

LINE_DTYPE = np.dtype(
    [(name, "<u4") for name in ("record", "place", "characters", "size", "gap", "gap_size")],
)
"""One paragraph: number of its record, which of its paragraphs it is, its code points and bytes, and those between it
and the next one or the end of the text."""

PARAGRAPH_DTYPE = np.dtype([("key", "<u8"), ("more", "<u8"), ("line", "<u4"), ("record", "<u4")])
"""One paragraph that is compared: the two halves of its key, its number in `.lines`, number of its record."""

_RUN = 1 << 20


def paragraph_path(job: Job, split: Split, kind: str) -> str:
    """Path of a file; `kind` is "paragraphs" or "lines"."""
    return job.path(_name(job, split, kind))


def _name(job: Job, split: Split, kind: str) -> str:
    settings = job.recipe.paragraph_dedup
    least = None if settings is None else settings.min_chars
    own = digest({"step": "paragraphs", "split": split.digest, "least": least, "key": job.recipe.dedup_key})
    return f"spill/{job.source_of(split).id}/{split.part:05d}-{own[:12]}.{kind}"


def paragraph_bytes(job: Job, split: Split) -> int:
    """Size of a split's `.paragraphs`, once it is scanned."""
    return file_size(paragraph_path(job, split, "paragraphs"))


def read_paragraphs_between(job: Job, split: Split, partition: int, partitions: int) -> np.ndarray:
    """The keys of a split that are of one partition, [n] of `PARAGRAPH_DTYPE`, by key and line within each run."""
    path = paragraph_path(job, split, "paragraphs")
    total = file_size(path) // PARAGRAPH_DTYPE.itemsize
    return np.concatenate(
        [
            np.empty(0, PARAGRAPH_DTYPE),
            *(
                read_keys_between(
                    path, PARAGRAPH_DTYPE, partition, partitions, first=first, count=min(_RUN, total - first)
                )
                for first in range(0, total, _RUN)
            ),
        ]
    )


class ParagraphWriter:
    """Takes a split's documents batch by batch; a context manager whose files appear when the block ends."""

    def __init__(self, job: Job, split: Split, settings: ParagraphDedup) -> None:
        """Writes nothing yet."""
        self._job = job
        self._least = settings.min_chars
        self._normalized = job.recipe.dedup_key == "normalized"
        self._names = {kind: _name(job, split, kind) for kind in ("lines", "paragraphs")}
        self._lines = 0
        self._held: list[np.ndarray] = []
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            self._files = {
                kind: opening.enter_context(publish(self._job.path(name), scratch=True))
                for kind, name in self._names.items()
            }
            self._closing = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._write(last=True)
        self._closing.__exit__(kind, error, trace)

    def add(self, batch: Batch) -> None:
        """Takes a batch of documents that the rules let through."""
        found = paragraphs_of(batch.texts)
        lines = np.empty(len(found.owners), LINE_DTYPE)
        lines["record"] = np.asarray(batch.records, np.uint32)[found.owners]
        lines["place"] = found.places
        lines["characters"] = found.ends - found.starts
        lines["size"] = found.sizes
        lines["gap"] = found.gaps
        lines["gap_size"] = found.gap_sizes
        self._files["lines"].write(lines)
        compared = found.lengths >= self._least
        keys = np.empty(int(compared.sum()), PARAGRAPH_DTYPE)
        keys["line"] = np.flatnonzero(compared) + self._lines
        keys["record"] = lines["record"][compared]
        both = keys_of(batch.texts, found, compared, normalized=self._normalized)
        keys["key"], keys["more"] = both[:, 0], both[:, 1]
        self._lines += len(lines)
        self._held.append(keys)
        self._write(last=False)

    def facts(self) -> dict[str, FileFacts]:
        """The files by path, once the block has ended."""
        return {self._names[kind]: file.facts() for kind, file in self._files.items()}

    def _write(self, *, last: bool) -> None:
        """Writes the runs that are full, and the rest when it is the last."""
        held = sum(map(len, self._held))
        if not held or not (last or held >= _RUN):
            return
        keys = np.concatenate(self._held)
        stop = held if last else held - held % _RUN
        for start in range(0, stop, _RUN):
            run = keys[start : min(start + _RUN, stop)]
            self._files["paragraphs"].write(run[np.lexsort((run["line"], run["more"], run["key"]))])
        self._held = [keys[stop:].copy()]
