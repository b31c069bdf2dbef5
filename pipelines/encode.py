"""Encodes a split: turns the documents that scan and deduplication left into a spill of token ids, and counts them.

Where the scan encoded them already, as it does when one run cleans and tokenizes with the fast engine, all that is
left to do is to list who goes on. Otherwise the input is read a second time, and what was dropped is not encoded; so
are sources that lose paragraphs, whose texts are known only now.
"""

import bisect
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gristmill.formats.fingerprint import digest
from gristmill.formats.receipts import Receipt, item_receipt_path, valid_receipt, write_receipt
from gristmill.formats.storage import FileFacts
from gristmill.pipelines.clean import clean_again
from gristmill.pipelines.dedup import kept_records
from gristmill.pipelines.encoders import encoder_of
from gristmill.pipelines.job import Job
from gristmill.pipelines.paragraph_dedup import read_cuts, read_emptied
from gristmill.pipelines.paragraphs import without
from gristmill.pipelines.plan import Split
from gristmill.pipelines.raw import read_records
from gristmill.pipelines.records import Batch, RecordAccount
from gristmill.pipelines.scan import split_result, write_rejects
from gristmill.pipelines.spill import SpillWriter, early_digest, early_spill, settle, spill_path

__all__ = ["encode_receipt", "encode_split"]


def encode_split(job: Job, split: Split) -> dict[str, Any]:
    """Encodes a split unless its receipt is still valid; see the module.

    Returns:
        The item's result: what a scan reports where there was none, and tokens, documents, the longest and the last
        document in tokens, spellings of control tokens, the digest of what the spill follows from, the path of its
        ids, and the samples of what was left out by path.

    Raises:
        InputError: a record is bad and the policy is "fail", a file is damaged, or it changed since it was scanned.
        StorageError: a file cannot be read or written.
    """
    source = job.source_of(split)
    kept, cuts = _kept_records(job, split), _cuts(job, split)
    receipt_path = item_receipt_path(job.corpus, "encode", job.item(split))
    item_digest = _encode_digest(job, split, kept, cuts)
    receipt = valid_receipt(job.corpus, receipt_path, item_digest)
    if receipt is not None:
        return _report(split, receipt)
    early = early_spill(job, split) if source.clean.enabled and cuts is None else None
    if early is None:
        result, files = _spill(job, split, kept, cuts, item_digest)
        spill_digest = item_digest
    else:
        result, files = dict(early.result), dict(early.files)
        spill_digest = early_digest(job, split)
    ends = [int(end) for _, _, end in result["inputs"]]

    def file_of(record: int) -> str:
        return split.extents[bisect.bisect_right(ends, record)].relative

    documents = spill_path(source.id, split.part, spill_digest, "doc")
    settled = settle(job, split, documents, kept, item_digest, file_of)
    result["dropped"] = {**result["dropped"], **settled.dropped}
    result |= settled.totals
    result["kept"] = settled.totals["documents"]
    result["spill"] = item_digest
    result["tokens_at"] = spill_path(source.id, split.part, spill_digest, "tok")
    receipt = Receipt(digest=item_digest, files={**files, **settled.files}, result=result)
    write_receipt(receipt_path, receipt)
    return _report(split, receipt)


def _report(split: Split, receipt: Receipt) -> dict[str, Any]:
    left = {"samples": receipt.facts_below("rejected/")}
    return {**receipt.result, "number": split.number, "source": split.source, **left}


def encode_receipt(job: Job, split: Split) -> Receipt | None:
    """The receipt of a split's encoding; None where it is not there, or not for what scan and deduplication left."""
    item_digest = _encode_digest(job, split, _kept_records(job, split), _cuts(job, split))
    return valid_receipt(job.corpus, item_receipt_path(job.corpus, "encode", job.item(split)), item_digest)


def _encode_digest(job: Job, split: Split, kept: np.ndarray | None, cuts: np.ndarray | None) -> str:
    return digest(
        {
            "step": "encode",
            "split": split.digest,
            "tokenizer": job.tokenizer,
            "control_text": job.recipe.tokenizer.control_text,
            "kept": None if kept is None else hashlib.sha256(kept.tobytes()).hexdigest(),
            **({} if cuts is None else {"cuts": hashlib.sha256(cuts.tobytes()).hexdigest()}),
        }
    )


def _spill(
    job: Job, split: Split, kept: np.ndarray | None, cuts: np.ndarray | None, item_digest: str
) -> tuple[dict[str, Any], dict[str, FileFacts]]:
    """Reads a split and writes its spill; gives the account of the reading and the files."""
    source = job.source_of(split)
    account = RecordAccount("skip" if source.clean.enabled else source.bad_records)
    encoder = encoder_of(job)
    with SpillWriter(job, split, item_digest) as spill:
        for batch in _selected(_carrying(spill, read_records(job, split, source, account)), kept):
            if source.clean.enabled:
                batch = clean_again(batch, source.clean)
            if cuts is not None and len(cuts):
                batch = _cut(batch, cuts)
            spill.add(batch.records, encoder.encode(batch.texts))
    files = spill.facts()
    result = split_result(split, account, kept=0)
    if source.clean.enabled:
        result = {**result, "bad": 0, "dropped": {}, "counted": {}}
    else:
        files |= write_rejects(job, split, account)
    return result, files


def _kept_records(job: Job, split: Split) -> np.ndarray | None:
    """Numbers of the records that scan and deduplication left, ascending uint32; None where nothing is cleaned."""
    if not job.source_of(split).clean.enabled:
        return None
    kept = kept_records(job, split)
    emptied = read_emptied(job, split) if job.cuts(split) else np.empty(0, "<u4")
    return np.setdiff1d(kept, emptied, assume_unique=True) if len(emptied) else kept


def _cuts(job: Job, split: Split) -> np.ndarray | None:
    """The paragraphs that go, [n] of `CUT_DTYPE`; None where none are looked for."""
    return read_cuts(job, split) if job.cuts(split) else None


def _cut(batch: Batch, cuts: np.ndarray) -> Batch:
    """A batch without the paragraphs that go."""
    records = np.asarray(batch.records, np.uint32)
    low, high = np.searchsorted(cuts["record"], (records[0], records[-1] + 1))
    cuts = cuts[low:high]
    if not len(cuts):
        return batch
    changed = np.unique(np.searchsorted(records, cuts["record"]))
    owners = np.searchsorted(records[changed], cuts["record"])
    texts = list(batch.texts)
    fewer = without([texts[number] for number in changed], owners, cuts["place"].astype(np.int64))
    for number, text in zip(changed.tolist(), fewer, strict=True):
        texts[number] = text
    return Batch(texts, batch.records)


def _carrying(spill: SpillWriter, batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches, of which the spill keeps what they carry along."""
    for batch in batches:
        spill.carry(batch)
        yield batch


def _selected(batches: Iterator[Batch], kept: np.ndarray | None) -> Iterator[Batch]:
    """The batches without the records that are not in `kept`; empty ones are left out."""
    for batch in batches:
        if kept is None:
            yield batch
            continue
        numbers = np.asarray(batch.records, np.uint32)
        low = np.searchsorted(kept, numbers[0])
        high = np.searchsorted(kept, numbers[-1], side="right")
        if high - low == len(numbers):
            yield batch
            continue
        mask = np.isin(numbers, kept[low:high], assume_unique=True)
        if mask.any():
            yield Batch(list(itertools.compress(batch.texts, mask)), numbers[mask].tolist())
