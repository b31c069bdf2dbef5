"""Scans a split: reads it, applies the cleaning rules, and writes down which records go on, with a hash of their text.

The result is a file of packed keys, 28 bytes a document; text goes nowhere. Copies inside the split are resolved here,
so that in the deduplication behind it no key can occur more often than there are splits. A run that tokenizes too lets
the scan encode what it has in hand: with the fast engine that is cheaper than reading, parsing and cleaning everything
a second time, even for text of which a good part turns out to be copies.
"""

import contextlib
from collections import Counter
from typing import Any

import numpy as np

from gristmill.formats.dedup_table import key_identity
from gristmill.formats.fingerprint import digest
from gristmill.formats.receipts import Receipt, item_receipt_path, valid_receipt, write_receipt
from gristmill.formats.storage import FileFacts, publish, read_bytes, remove, write_bytes
from gristmill.pipelines.clean import clean_batch
from gristmill.pipelines.encoders import encoder_of
from gristmill.pipelines.id_file import IdWriter
from gristmill.pipelines.job import IDS_VERSION, Job
from gristmill.pipelines.near_scan import NearWriter
from gristmill.pipelines.paragraph_scan import ParagraphWriter
from gristmill.pipelines.plan import Split
from gristmill.pipelines.raw import read_records
from gristmill.pipelines.records import SAMPLES_PER_REASON, Batch, RecordAccount
from gristmill.pipelines.spill import SPILL_STEP, SpillWriter, early_digest
from gristmill.pipelines.text_keys import text_keys

__all__ = [
    "KEY_DTYPE",
    "keys_path",
    "partition_keys",
    "RANKED_DTYPE",
    "read_keys",
    "rejects_path",
    "scan_receipt",
    "scan_split",
    "split_result",
    "write_rejects",
]

KEY_DTYPE = np.dtype([("hash", "<u8", 2), ("record", "<u4"), ("characters", "<u4"), ("size", "<u4")])
"""One kept document of a split: its key (xxh3_128 of its text, or of the normal form of it), number of its record, its
code points and its bytes in UTF-8."""

RANKED_DTYPE = np.dtype([("hash", "<u8", 2), ("rank", "<u8")])
"""One kept document of a run: the hash, and split number << 32 | record number."""


def keys_path(source_id: str, part: int) -> str:
    """Path of a split's keys, relative to the corpus."""
    return f"clean/{source_id}/{part:05d}.keys"


def rejects_path(source_id: str, part: int) -> str:
    """Path of a split's sample of left-out records, relative to the corpus."""
    return f"rejected/{source_id}/{part:05d}.jsonl"


def scan_split(job: Job, split: Split) -> dict[str, Any]:
    """Scans a split unless its receipt is still valid; see the module.

    Returns:
        The item's result: split, records, kept, dropped, counted and bad, the digests of what was read, code points and
        bytes of the texts read and kept, and the first copies within the split, each with the record that it is of;
        the files and samples that stay, by path.

    Raises:
        InputError: a record is bad and the policy is "fail", or a file is damaged.
        StorageError: a file cannot be read or written.
    """
    source = job.source_of(split)
    near_settings = job.recipe.near_dedup if job.near(split) else None
    paragraph_settings = job.recipe.paragraph_dedup if job.cuts(split) else None
    receipt = scan_receipt(job, split)
    if receipt is not None:
        return _report(split, receipt)
    account = RecordAccount(source.bad_records)
    keys: list[np.ndarray] = []
    read = np.zeros(2, np.int64)

    def file_of(record: int) -> str:
        return split.extents[account.extent_of(record)].relative

    encoder = encoder_of(job) if job.spills_early(split) else None
    spill = None if encoder is None else SpillWriter(job, split, early_digest(job, split))
    near = None if near_settings is None else NearWriter(job, split, near_settings)
    paragraphs = None if paragraph_settings is None else ParagraphWriter(job, split, paragraph_settings)
    ids = IdWriter(job, split) if job.keeps_ids(split) else None
    normalized = source.clean.exact_dedup and job.recipe.dedup_key == "normalized"
    with contextlib.ExitStack() as writing:
        for writer in (spill, near, paragraphs, ids):
            if writer is not None:
                writing.enter_context(writer)
        for batch in read_records(job, split, source, account):
            if spill is not None:
                spill.carry(batch)
            kept = clean_batch(batch, source.clean, account, file_of) if source.clean.enabled else batch
            own = _keys(kept, normalized=normalized)
            read += _size(own) if kept is batch else _text_size(batch)
            if kept.texts:
                keys.append(own)
                if near is not None:
                    near.add(kept)
                if paragraphs is not None:
                    paragraphs.add(kept)
                if ids is not None:
                    ids.add(batch, kept)
                if encoder is not None and spill is not None:
                    spill.add(kept.records, encoder.encode(kept.texts))
    if spill is not None:
        _receive_spill(job, split, account, spill)
    packed = np.concatenate(keys) if keys else np.empty(0, KEY_DTYPE)
    copies: list[list[int]] = []
    if source.clean.exact_dedup:
        every = len(packed)
        packed, copies = _first_of_each(packed)
        if copies:
            account.dropped["exact_duplicate"] += every - len(packed)
    files = {} if near is None else near.finish(packed["record"])
    files |= {} if paragraphs is None else paragraphs.facts()
    files |= {} if ids is None else ids.facts()
    with publish(job.path(keys_path(source.id, split.part))) as publication:
        publication.write(packed)
    files[keys_path(source.id, split.part)] = publication.facts()
    files |= write_rejects(job, split, account)
    result = split_result(split, account, kept=len(packed)) | {
        "text_in": read.tolist(),
        "text_kept": _size(packed).tolist(),
        "copies": copies,
        "tokens": 0 if spill is None else spill.tokens,
    }
    receipt = Receipt(digest=_scan_digest(job, split), files=files, result=result)
    write_receipt(_receipt_path(job, split), receipt)
    return _report(split, receipt)


def _report(split: Split, receipt: Receipt) -> dict[str, Any]:
    left = {"files": receipt.facts_below("clean/"), "samples": receipt.facts_below("rejected/")}
    return {**receipt.result, "number": split.number, "source": split.source, **left}


def scan_receipt(job: Job, split: Split) -> Receipt | None:
    """The receipt of a split's scan; None where it is not there, or not for this run."""
    return valid_receipt(job.corpus, _receipt_path(job, split), _scan_digest(job, split))


def _receipt_path(job: Job, split: Split) -> str:
    return item_receipt_path(job.corpus, "scan", job.item(split))


def _scan_digest(job: Job, split: Split) -> str:
    recipe = job.recipe
    near = {"near_dedup": recipe.near_dedup} if job.near(split) else {}
    paragraphs = {"paragraphs": recipe.paragraph_dedup} if job.cuts(split) else {}
    compared = bool(paragraphs) or job.source_of(split).clean.exact_dedup
    key = {"dedup_key": key_identity(recipe.dedup_key)} if compared else {}
    ids = {"ids": IDS_VERSION} if job.keeps_ids(split) else {}
    return digest({"step": "scan", "split": split.digest, **near, **paragraphs, **key, **ids})


def _receive_spill(job: Job, split: Split, account: RecordAccount, spill: SpillWriter) -> None:
    """Writes the receipt of a spill that was written while scanning; what was left out is the scan's to tell."""
    result = {**split_result(split, account, kept=0), "bad": 0, "dropped": {}, "counted": {}}
    path = item_receipt_path(job.corpus, SPILL_STEP, job.item(split))
    write_receipt(path, Receipt(digest=early_digest(job, split), files=spill.facts(), result=result))


def write_rejects(job: Job, split: Split, account: RecordAccount) -> dict[str, FileFacts]:
    """Writes a split's sample of left-out records, or removes that of an earlier run where there is none now."""
    name = rejects_path(job.source_of(split).id, split.part)
    if account.samples:
        return {name: write_bytes(job.path(name), account.samples_jsonl())}
    remove(job.path(name))
    return {}


def split_result(split: Split, account: RecordAccount, *, kept: int) -> dict[str, Any]:
    """What an account comes to, as JSON values."""
    return {
        "number": split.number,
        "source": split.source,
        "part": split.part,
        "records": account.records,
        "kept": kept,
        "bad": account.bad,
        "dropped": dict(sorted(Counter(account.dropped).items())),
        "counted": dict(sorted(account.counted.items())),
        "inputs": [list(entry) for entry in account.inputs],
    }


def _keys(batch: Batch, *, normalized: bool) -> np.ndarray:
    packed = np.empty(len(batch.texts), KEY_DTYPE)
    packed["hash"], packed["size"] = text_keys(batch.texts, normalized=normalized)
    packed["record"] = batch.records
    packed["characters"] = list(map(len, batch.texts))
    return packed


def _size(keys: np.ndarray) -> np.ndarray:
    """Code points and bytes of documents, [2] int64."""
    return np.array([keys[name].sum(dtype=np.int64) for name in ("characters", "size")])


def _text_size(batch: Batch) -> np.ndarray:
    """The same of texts that have no keys."""
    return np.array(
        [sum(map(len, batch.texts)), sum(len(text.encode("utf-8", "surrogatepass")) for text in batch.texts)]
    )


def _first_of_each(keys: np.ndarray) -> tuple[np.ndarray, list[list[int]]]:
    """Keys without the later copies, in record order, and the first of those, each with the record that it is of."""
    order = np.lexsort((keys["record"], keys["hash"][:, 0], keys["hash"][:, 1]))
    hashes = keys["hash"][order]
    copy = np.zeros(len(keys), bool)
    copy[1:] = (hashes[1:] == hashes[:-1]).all(axis=1)
    firsts = order[~copy]
    records = keys["record"]
    copies = np.stack([records[order[copy]], records[firsts[(np.cumsum(~copy) - 1)[copy]]]], axis=1)
    copies = copies[np.argsort(copies[:, 0])][:SAMPLES_PER_REASON]
    return keys[np.sort(firsts)], copies.tolist()


def read_keys(job: Job, source_id: str, part: int) -> np.ndarray:
    """The keys of a split, [n] of `KEY_DTYPE`, by record."""
    return np.frombuffer(read_bytes(job.path(keys_path(source_id, part))), KEY_DTYPE)


def partition_keys(job: Job, split: Split) -> list[tuple[int, bytes]]:
    """A split's keys as packed `RANKED_DTYPE` records, dealt to groups by hash; nothing when it takes no part."""
    source = job.source_of(split)
    if not source.clean.exact_dedup:
        return []
    keys = read_keys(job, source.id, split.part)
    ranked = np.empty(len(keys), RANKED_DTYPE)
    ranked["hash"] = keys["hash"]
    ranked["rank"] = (split.number << 32) | keys["record"].astype(np.uint64)
    group = (ranked["hash"][:, 0] % np.uint64(job.partitions)).astype(np.int64)
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(job.partitions + 1))
    ranked = ranked[order]
    return [
        (number, ranked[bounds[number] : bounds[number + 1]].tobytes())
        for number in range(job.partitions)
        if bounds[number] < bounds[number + 1]
    ]
