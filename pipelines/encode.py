"""Encodes a split: reads it again, leaves out what scan and deduplication dropped, and streams token ids to a spill.

A spill is three files: the ids with one EOD behind each document (`.tok`, in the corpus's dtype), the documents'
lengths (`.len`, int32) and the numbers of their records (`.rec`, uint32). Writing the tokens twice, here and in the
shard, costs a few per cent of encoding and buys shards of equal size in a known order without shuffling a token.
"""

import hashlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from gristmill.formats.errors import CorpusError
from gristmill.formats.fingerprint import digest, short
from gristmill.formats.receipts import Receipt, item_receipt_path, valid_receipt, write_receipt
from gristmill.formats.storage import publish
from gristmill.pipelines.dedup import read_drops
from gristmill.pipelines.job import Job
from gristmill.pipelines.plan import Split
from gristmill.pipelines.read import read_split
from gristmill.pipelines.records import Batch, RecordAccount
from gristmill.pipelines.scan import read_keys, split_result, write_rejects
from gristmill.tokenize.encode import Encoder
from gristmill.tokenize.engine import load_engine
from gristmill.tokenize.resolved import load_resolved

__all__ = [
    "encode_split",
    "encoder_of",
    "prime_encoder",
    "spill_path",
    "TOKENIZER_FILES",
    "TOKENIZER_FOLDER",
]

TOKENIZER_FOLDER = "tokenizer"
"""Folder of the tokenizer inside a corpus."""

TOKENIZER_FILES = (f"{TOKENIZER_FOLDER}/tokenizer.json", f"{TOKENIZER_FOLDER}/facts.json")
"""Paths of the tokenizer's files, relative to the corpus."""


def spill_path(source_id: str, part: int, kind: str) -> str:
    """Path of a spill file, relative to the corpus; `kind` is "tok", "len" or "rec"."""
    return f"spill/{source_id}/{part:05d}.{kind}"


_ENCODERS: dict[tuple[str, ...], Encoder] = {}
_LOADING = threading.Lock()


def _encoder_key(job: Job) -> tuple[str, ...]:
    return (job.tokenizer, job.engine, job.engine_version, job.recipe.tokenizer.control_text)


def prime_encoder(job: Job, encoder: Encoder) -> None:
    """Hands the launcher's encoder to `encoder_of`, so that items done in the same process need not load it again."""
    with _LOADING:
        _ENCODERS.clear()
        _ENCODERS[_encoder_key(job)] = encoder


def encoder_of(job: Job) -> Encoder:
    """The job's encoder, loaded once per process and shared by its threads.

    Raises:
        CorpusError: the corpus holds another tokenizer than the run was planned with.
        TokenizerError: the engine is missing here, or of another version than the launcher proved.
    """
    key = _encoder_key(job)
    with _LOADING:
        if key not in _ENCODERS:
            folder = job.path(TOKENIZER_FOLDER)
            resolved = load_resolved(folder)
            if resolved.fingerprint != job.tokenizer:
                raise CorpusError(
                    f"{folder}: holds tokenizer {short(resolved.fingerprint)}, but the run was planned with "
                    f"{short(job.tokenizer)}; another run writes to the same output. Start again"
                )
            keep = job.recipe.tokenizer.control_text == "keep"
            engine = load_engine(resolved, job.engine, keep_control_tokens=keep, version=job.engine_version)
            _ENCODERS.clear()
            _ENCODERS[key] = Encoder.of(resolved, engine)
        return _ENCODERS[key]


def encode_split(job: Job, split: Split) -> dict[str, Any]:
    """Encodes a split unless its receipt is still valid; see the module.

    Returns:
        The item's result: what a scan reports where there was none, and tokens, documents, the longest and the last
        document in tokens, spellings of control tokens, and the digest of what the spill follows from.

    Raises:
        InputError: a record is bad and the policy is "fail", a file is damaged, or it changed since it was scanned.
        StorageError: a file cannot be read or written.
    """
    source = job.source_of(split)
    kept = _kept_records(job, split) if source.clean.enabled else None
    receipt_path = item_receipt_path(job.corpus, "encode", job.item(split))
    item_digest = digest(
        {
            "step": "encode",
            "split": split.digest,
            "tokenizer": job.tokenizer,
            "control_text": job.recipe.tokenizer.control_text,
            "kept": None if kept is None else hashlib.sha256(kept.tobytes()).hexdigest(),
        }
    )
    receipt = valid_receipt(job.corpus, receipt_path, item_digest)
    if receipt is not None:
        return {**receipt.result, "number": split.number, "source": split.source}
    account = RecordAccount("skip" if source.clean.enabled else source.bad_records)
    encoder = encoder_of(job)
    totals = {"tokens": 0, "documents": 0, "longest": 0, "last": 0, "control_hits": 0, "eod_in_text": 0}
    empty = 0
    files = {}
    names = {kind: spill_path(source.id, split.part, kind) for kind in ("tok", "len", "rec")}
    with (
        publish(job.path(names["tok"]), scratch=True) as tokens,
        publish(job.path(names["len"]), scratch=True) as lengths,
        publish(job.path(names["rec"]), scratch=True) as records,
    ):
        for batch in _selected(read_split(split, source, account), kept):
            encoded = encoder.encode(batch.texts)
            numbers = np.asarray(batch.records, "<u4")
            lens = encoded.lengths
            if not lens.all():
                empty += int((lens == 0).sum())
                numbers, lens = numbers[lens > 0], lens[lens > 0]
            tokens.write(encoded.ids)
            lengths.write(np.ascontiguousarray(lens, "<i4"))
            records.write(np.ascontiguousarray(numbers))
            totals["tokens"] += len(encoded.ids)
            totals["documents"] += len(lens)
            totals["control_hits"] += encoded.control_hits
            totals["eod_in_text"] += encoded.eod_in_text
            if len(lens):
                totals["longest"] = max(totals["longest"], int(lens.max()))
                totals["last"] = int(lens[-1])
    for kind, publication in (("tok", tokens), ("len", lengths), ("rec", records)):
        files[names[kind]] = publication.facts()
    result = split_result(split, account, kept=totals["documents"])
    if source.clean.enabled:
        result = {**result, "bad": 0, "dropped": {}, "counted": {}}
    else:
        files |= write_rejects(job, split, account)
    if empty:
        result["dropped"] = {**result["dropped"], "no_tokens": empty}
    result |= totals
    result["spill"] = item_digest
    write_receipt(receipt_path, Receipt(digest=item_digest, files=files, result=result))
    return result


def _kept_records(job: Job, split: Split) -> np.ndarray:
    """Numbers of the records that scan and deduplication left, ascending uint32."""
    kept = read_keys(job, job.source_of(split).id, split.part)["record"]
    drops = read_drops(job, split)
    return np.setdiff1d(kept, drops, assume_unique=True) if len(drops) else np.ascontiguousarray(kept)


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
