"""Spills: the ids of a split's documents in a file of their own, until shards are cut out of them.

A spill is written by whoever encodes: `.tok` holds the ids, each document closed by its EOD, and `.doc` a record per
document. Which of them go on is settled later and listed in `.kept`; so a document that turns out to be a copy costs
its bytes in `.tok` for the length of a run, and nothing is encoded or copied twice. Names hold the digest of what
decided the content: two runs never write different bytes to one name.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from gristmill.formats.clean_settings import CleanSettings
from gristmill.formats.fingerprint import canonical_json, digest
from gristmill.formats.receipts import Receipt, item_receipt_path, valid_receipt
from gristmill.formats.storage import FileFacts, publish, read_bytes, remove, write_bytes
from gristmill.pipelines.carried import carried_id
from gristmill.pipelines.carried_spill import CARRIED_KINDS, lines_of, packed_lines
from gristmill.pipelines.job import Job
from gristmill.pipelines.plan import Split
from gristmill.pipelines.records import SAMPLES_PER_REASON, Batch
from gristmill.tokenize.encode import EncodedBatch

__all__ = [
    "DOCUMENT_DTYPE",
    "early_digest",
    "early_spill",
    "KEPT_DTYPE",
    "read_kept",
    "settle",
    "Settled",
    "spill_path",
    "SPILL_STEP",
    "SpillWriter",
    "token_rejects_path",
]

SPILL_STEP = "spill"
"""What receipts call the encoding of a split while it is scanned."""

DOCUMENT_DTYPE = np.dtype([("record", "<u4"), ("length", "<i4"), ("control_hits", "<u4"), ("eod_in_text", "<u4")])
"""One document of a spill: number of its record, its tokens with the EOD (0 where its text gave none), spellings of
control tokens in the text, EOD ids that the text made."""

KEPT_DTYPE = np.dtype([("start", "<i8"), ("record", "<u4"), ("length", "<i4")])
"""One document that goes on: its first token in the spill, number of its record, its tokens with the EOD."""

_DIGITS = 12


def spill_path(source_id: str, part: int, spill_digest: str, kind: str) -> str:
    """Path of a spill file, relative to the corpus; `kind` is "tok", "doc", "kept" or one of `CARRIED_KINDS`."""
    return f"spill/{source_id}/{part:05d}-{spill_digest[:_DIGITS]}.{kind}"


def token_rejects_path(source_id: str, part: int) -> str:
    """Path of a split's sample of documents that were dropped for their length in tokens, relative to the corpus."""
    return f"rejected/{source_id}/{part:05d}.tokens.jsonl"


def early_digest(job: Job, split: Split) -> str:
    """Digest of what decides a spill that is written while scanning: all documents that the rules let through."""
    return digest(
        {
            "step": SPILL_STEP,
            "split": split.digest,
            "tokenizer": job.tokenizer,
            "control_text": job.recipe.tokenizer.control_text,
        }
    )


def early_spill(job: Job, split: Split) -> Receipt | None:
    """The receipt of a spill that was written while scanning; None where there is none."""
    path = item_receipt_path(job.corpus, SPILL_STEP, job.item(split))
    return valid_receipt(job.corpus, path, early_digest(job, split))


class SpillWriter:
    """Writes `.tok` and `.doc` of a split, batch by batch, and what its records carry along; a context manager whose
    files appear when the block ends.

    Attributes:
        names: path of each file relative to the corpus, by kind.
        tokens: how many were added so far.
    """

    def __init__(self, job: Job, split: Split, spill_digest: str) -> None:
        """Names the files; `spill_digest` covers all that decides them."""
        source = job.source_of(split)
        kinds = ("tok", "doc") if source.carry is None else ("tok", "doc", *CARRIED_KINDS)
        self.names = {kind: spill_path(source.id, split.part, spill_digest, kind) for kind in kinds}
        self.tokens = 0
        self._job = job
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            self._files = {
                kind: opening.enter_context(publish(self._job.path(name), scratch=True))
                for kind, name in self.names.items()
            }
            self._closing = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.__exit__(kind, error, trace)

    def add(self, records: "list[int] | range | np.ndarray", encoded: EncodedBatch) -> None:
        """Appends a batch.

        Args:
            records: number of each document's record, ascending, one per document of the batch.
            encoded: their ids.
        """
        documents = np.empty(len(encoded.lengths), DOCUMENT_DTYPE)
        documents["record"] = records
        documents["length"] = encoded.lengths
        documents["control_hits"] = encoded.control_hits
        documents["eod_in_text"] = encoded.eod_in_text
        self.tokens += len(encoded.ids)
        self._files["tok"].write(encoded.ids)
        self._files["doc"].write(documents)

    def carry(self, batch: Batch) -> None:
        """Keeps what the records of a batch carry along, as they were read; later it is taken for those that go on."""
        if batch.carried is not None:
            lines, places = packed_lines(batch.records, batch.carried)
            self._files["meta"].write(lines)
            self._files["place"].write(places)

    def facts(self) -> dict[str, FileFacts]:
        """The files by path, once the block has ended."""
        return {self.names[kind]: file.facts() for kind, file in self._files.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of a spill's documents.

    Attributes:
        totals: tokens, documents, longest, last (tokens of the last document), control_hits and eod_in_text of the
            documents that go on.
        dropped: documents that do not, by reason: their text gave no token, or too few or too many.
        files: the file that lists them, and a sample of what was dropped for its length, by path.
    """

    totals: dict[str, int]
    dropped: dict[str, int]
    files: dict[str, FileFacts]


def settle(
    job: Job,
    split: Split,
    documents_name: str,
    kept: np.ndarray | None,
    spill_digest: str,
    file_of: Callable[[int], str],
) -> Settled:
    """Lists the documents of a spill that go on.

    Args:
        job: the run.
        split: the split.
        documents_name: path of the spill's `.doc`, relative to the corpus.
        kept: record numbers that go on, ascending uint32; None for all.
        spill_digest: digest of what decides the list.
        file_of: gives what messages call the file that a record was read from.
    """
    documents = np.frombuffer(read_bytes(job.path(documents_name)), DOCUMENT_DTYPE)
    lengths = documents["length"].astype(np.int64)
    goes_on = np.ones(len(documents), bool) if kept is None else np.isin(documents["record"], kept, assume_unique=True)
    source = job.source_of(split)
    dropped: dict[str, int] = {}
    samples: list[dict[str, Any]] = []
    for reason, breaks, limit in _length_rules(lengths, source.clean):
        losers = np.flatnonzero(goes_on & breaks)
        if len(losers):
            dropped[reason] = len(losers)
            goes_on[losers] = False
            if reason != "no_tokens":
                shown = documents["record"][losers[:SAMPLES_PER_REASON]]
                ids = _ids(job.path(documents_name), shown) if source.carry is not None else itertools.repeat(None)
                samples += (
                    {
                        "reason": reason,
                        "where": f"{file_of(record)}: record {record} of its split",
                        "value": f"{length} tokens",
                        "found": f"{length} {limit}",
                    }
                    | ({} if own_id is None else {"id": own_id})
                    for record, length, own_id in zip(shown.tolist(), (lengths[losers] - 1).tolist(), ids, strict=False)
                )
    listed = np.empty(int(goes_on.sum()), KEPT_DTYPE)
    listed["start"] = (np.cumsum(lengths) - lengths)[goes_on]
    listed["record"] = documents["record"][goes_on]
    listed["length"] = lengths[goes_on]
    name = spill_path(source.id, split.part, spill_digest, "kept")
    with publish(job.path(name), scratch=True) as publication:
        publication.write(listed)
    totals: dict[str, Any] = {
        "tokens": lengths[goes_on].sum(),
        "documents": len(listed),
        "longest": listed["length"].max(initial=0),
        "last": listed["length"][-1] if len(listed) else 0,
        "control_hits": documents["control_hits"][goes_on].sum(),
        "eod_in_text": documents["eod_in_text"][goes_on].sum(),
    }
    files = {name: publication.facts(), **_write_samples(job, split, samples)}
    return Settled(totals={key: int(value) for key, value in totals.items()}, dropped=dropped, files=files)


def _length_rules(lengths: np.ndarray, clean: CleanSettings) -> Iterator[tuple[str, np.ndarray, str]]:
    """Each rule on lengths in tokens with the EOD, which documents break it, [documents] bool, and how it is told."""
    yield "no_tokens", lengths == 0, ""
    if clean.enabled and clean.min_tokens:
        yield "min_tokens", lengths - 1 < clean.min_tokens, f"< {clean.min_tokens}"
    if clean.enabled and clean.max_tokens is not None:
        yield "max_tokens", lengths - 1 > clean.max_tokens, f"> {clean.max_tokens}"


def _ids(documents: str, records: np.ndarray) -> Iterator[Any]:
    """The ids that some records carry; None for one without."""
    lines = lines_of(f"{documents.removesuffix('.doc')}.tok", records)
    return (carried_id(line) for run in lines for line in run)


def _write_samples(job: Job, split: Split, samples: list[dict[str, Any]]) -> dict[str, FileFacts]:
    """Writes the sample of what was dropped for its length in tokens, or removes that of an earlier run."""
    name = token_rejects_path(job.source_of(split).id, split.part)
    if samples:
        return {name: write_bytes(job.path(name), b"".join(canonical_json(sample) + b"\n" for sample in samples))}
    remove(job.path(name))
    return {}


def read_kept(job: Job, source_id: str, part: int, spill_digest: str) -> np.ndarray:
    """The documents of a split that go on, [n] of `KEPT_DTYPE`, in order."""
    return np.frombuffer(read_bytes(job.path(spill_path(source_id, part, spill_digest, "kept"))), KEPT_DTYPE)
