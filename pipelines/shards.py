"""Plans and assembles shards: which documents of which spills go into which `.bin/.idx` pair, and where they came from.

A document belongs to the shard floor(position of its first token / target), counted over the whole source, so shards
are equal to within a document, keep the input's order, and do not depend on how the input was cut; only the list of
records beside each names splits. Numbers that would be empty, because one document spans them, are closed up.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.formats.errors import DataError, FormatError
from gristmill.formats.fingerprint import digest
from gristmill.formats.indexed_writer import write_indexed
from gristmill.formats.metadata import METADATA_KINDS, write_metadata
from gristmill.formats.origins import Extent, origins_path, write_origins
from gristmill.formats.receipts import (
    Receipt,
    item_receipt_path,
    read_receipt,
    stage_receipt_path,
    valid_receipt,
    write_receipt,
)
from gristmill.formats.storage import read_range
from gristmill.pipelines.carried_spill import lines_of
from gristmill.pipelines.encoders import encoder_of
from gristmill.pipelines.job import Job
from gristmill.pipelines.limits import OVER_LIMIT, cut_reports
from gristmill.pipelines.spill import read_kept

__all__ = ["assemble_shard", "plan_shards", "shard_item", "shard_path", "shard_receipt", "ShardPiece", "ShardPlan"]

_COPY_TOKENS = 1 << 21


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPiece:
    """A spill that a shard takes documents from.

    Attributes:
        part: number of the spill within the source.
        position: tokens of the source before the spill.
        digest: digest of what decides which documents of the spill go on.
        tokens: path of the spill's ids, relative to the corpus.
        taken: how many of its documents are taken; None for all.
        extents: which records of the split are in which input file.
    """

    part: int
    position: int
    digest: str
    tokens: str
    taken: int | None
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """One shard to assemble.

    Attributes:
        source: number of the source.
        number: number of the shard within the source.
        count: shards of the source.
        start: position in the source of the first token that a document of the shard may start at.
        end: position behind the last.
        pieces: spills that hold such documents, in order.
    """

    source: int
    number: int
    count: int
    start: int
    end: int
    pieces: tuple[ShardPiece, ...]

    def decides(self) -> dict[str, Any]:
        """What decides the shard's bytes: all but where the spills lie."""
        pieces = [[piece.part, piece.position, piece.digest, piece.taken, piece.extents] for piece in self.pieces]
        return {"source": self.source, "number": self.number, "of": self.count, "end": self.end, "pieces": pieces}


def shard_path(source_id: str, number: int, count: int) -> str:
    """Prefix of a shard's pair, relative to the corpus."""
    return f"tokens/{source_id}/{source_id}-{number:05d}-of-{count:05d}"


def shard_item(source_id: str, number: int, count: int) -> str:
    """What receipts call the work on a shard."""
    return f"{source_id}/{number:05d}-of-{count:05d}"


def plan_shards(job: Job, reports: list[dict[str, Any]]) -> list[ShardPlan]:
    """Plans the shards of every source.

    Args:
        job: the run.
        reports: results of `encode_split`, in any order.

    Raises:
        DataError: a source has no document left; the message tells the reasons.
    """
    plans: list[ShardPlan] = []
    for source in sorted({int(report["source"]) for report in reports}):
        own = sorted((report for report in reports if report["source"] == source), key=lambda report: report["part"])
        own = cut_reports(job, source, own)
        if not any(report["tokens"] for report in own):
            raise DataError(_nothing_left(job, job.recipe.sources[source].id, own))
        plans.extend(_plan_source(job, source, own))
    return plans


def _nothing_left(job: Job, source_id: str, reports: list[dict[str, Any]]) -> str:
    """Says why a source has no document left: by which reasons of cleaning, deduplication, lengths and limits."""
    records = sum(report["records"] for report in reports)
    if not records:
        return f"source {source_id!r}: its files hold no record; name other files, or leave the source out"
    cleaned = read_receipt(stage_receipt_path(job.corpus, "clean"))
    dropped: Counter[str] = Counter()
    if cleaned is not None:
        dropped.update(cleaned.result["sources"].get(source_id, {}).get("dropped", {}))
    for report in reports:
        dropped.update(report["dropped"])
    reasons = ", ".join(f"{dropped[name]} {name}" for name in sorted(dropped))
    remedy = "Relax its rules, mend its input, or leave the source out"
    if dropped[OVER_LIMIT]:
        remedy = "The first that is left has more tokens than its limit: raise max_tokens, or budget.tokens"
    return f"source {source_id!r}: no document is left of {records} records read; dropped: {reasons}. {remedy}"


def _plan_source(job: Job, source: int, reports: list[dict[str, Any]]) -> list[ShardPlan]:
    target = job.recipe.target_tokens
    positions = np.cumsum([0, *(report["tokens"] for report in reports)]).tolist()
    pieces: dict[int, list[ShardPiece]] = {}
    for report, position, extents in zip(reports, positions, _extents(reports), strict=False):
        if report["tokens"]:
            piece = ShardPiece(
                part=report["part"],
                position=position,
                digest=report["spill"],
                tokens=report["tokens_at"],
                taken=report.get("taken"),
                extents=extents,
            )
            for number in _numbers(job, source, report, position, target):
                pieces.setdefault(number, []).append(piece)
    return [
        ShardPlan(
            source=source,
            number=closed_up,
            count=len(pieces),
            start=number * target,
            end=(number + 1) * target,
            pieces=tuple(pieces[number]),
        )
        for closed_up, number in enumerate(sorted(pieces))
    ]


def _extents(reports: list[dict[str, Any]]) -> Iterator[tuple[Extent, ...]]:
    """For each split, in order, its parts by file. Records of a file are counted on over the splits it is cut into."""
    records: Counter[int] = Counter()
    for report in reports:
        extents = []
        start = 0
        for file, _, end in report["inputs"]:
            extents.append(Extent(file, end, records[file] - start))
            records[file] += end - start
            start = end
        yield tuple(extents)


def _numbers(job: Job, source: int, report: dict[str, Any], position: int, target: int) -> list[int]:
    """Numbers of the shards, before closing up, that a spill has documents for."""
    if report["longest"] <= target:
        last = position + report["tokens"] - report["last"]
        return list(range(position // target, last // target + 1))
    kept = read_kept(job, job.recipe.sources[source].id, report["part"], report["spill"])[: report.get("taken")]
    lengths = kept["length"].astype(np.int64)
    starts = position + np.cumsum(lengths) - lengths
    return [int(number) for number in np.unique(starts // target)]


def assemble_shard(job: Job, plan: ShardPlan) -> dict[str, Any]:
    """Copies a shard's documents out of the spills into a pair, and lists their records, unless its receipt is valid.

    Returns:
        The shard as the manifest has it, plus source and number.

    Raises:
        FormatError: the pair does not hold one EOD per document though no text can spell it.
        StorageError: a file cannot be read or written.
    """
    source_id = job.recipe.sources[plan.source].id
    receipt = shard_receipt(job, plan)
    if receipt is not None:
        return {**receipt.result, "source": plan.source}
    encoder = encoder_of(job)
    name = shard_path(source_id, plan.number, plan.count)
    eods = 0
    ends: list[tuple[int, int]] = []
    rec_name = origins_path(name)
    carrying = (
        contextlib.nullcontext() if job.recipe.sources[plan.source].carry is None else write_metadata(job.path(name))
    )
    with (
        write_origins(job.path(rec_name)) as origins,
        carrying as metadata,
        write_indexed(job.path(name), encoder.dtype) as writer,
    ):
        for piece in plan.pieces:
            kept = read_kept(job, source_id, piece.part, piece.digest)[: piece.taken]
            lengths = kept["length"].astype(np.int64)
            starts = piece.position + np.cumsum(lengths) - lengths
            low, high = (int(bound) for bound in np.searchsorted(starts, (plan.start, plan.end)))
            if low == high:
                continue
            kept = kept[low:high]
            ends += [(piece.part, int(kept["record"][at])) for at in (0, -1)]
            origins.add(piece.part, kept["record"], piece.extents)
            for first, last in _runs(kept):
                ids = _read_run(job.path(piece.tokens), kept[first:last], encoder.dtype)
                eods += int(np.count_nonzero(ids == encoder.eod_id))
                writer.add(ids, kept["length"][first:last].astype(np.int64))
            if metadata is not None:
                for lines in lines_of(job.path(piece.tokens), kept["record"]):
                    metadata.add(lines)
    facts = writer.facts
    if facts is None or (eods < facts.documents):
        raise FormatError(f"{name}: {eods} EODs for {writer.documents} documents; each must end with one")
    rec = origins.facts()
    result = {
        "number": plan.number,
        "path": name,
        "tokens": facts.tokens,
        "documents": facts.documents,
        "eod_tokens": eods,
        "bin": {"size": facts.bin.size, "sha256": facts.bin.sha256},
        "idx": {"size": facts.idx.size, "sha256": facts.idx.sha256},
        "rec": {"size": rec.size, "sha256": rec.sha256},
        "first": list(ends[0]),
        "last": list(ends[-1]),
    }
    files = {f"{name}.bin": facts.bin, f"{name}.idx": facts.idx, rec_name: rec}
    if metadata is not None:
        for kind, found in zip(METADATA_KINDS, metadata.facts(), strict=True):
            files[f"{name}.{kind}"] = found
            result[kind] = {"size": found.size, "sha256": found.sha256}
    write_receipt(_receipt_path(job, plan), Receipt(digest=_shard_digest(job, plan), files=files, result=result))
    return {**result, "source": plan.source}


def shard_receipt(job: Job, plan: ShardPlan) -> Receipt | None:
    """The receipt of a shard; None where it is not there, or not for these documents."""
    return valid_receipt(job.corpus, _receipt_path(job, plan), _shard_digest(job, plan))


def _receipt_path(job: Job, plan: ShardPlan) -> str:
    source_id = job.recipe.sources[plan.source].id
    return item_receipt_path(job.corpus, "assemble", shard_item(source_id, plan.number, plan.count))


def _shard_digest(job: Job, plan: ShardPlan) -> str:
    return digest({"step": "assemble", "tokenizer": job.tokenizer, "plan": plan.decides()})


def _runs(kept: np.ndarray) -> list[tuple[int, int]]:
    """Cuts documents into runs that span about `_COPY_TOKENS` tokens of the spill, at least one document each."""
    stops = kept["start"] + kept["length"]
    runs = []
    first = 0
    while first < len(kept):
        last = int(np.searchsorted(stops, int(kept["start"][first]) + _COPY_TOKENS, side="right"))
        last = max(first + 1, last)
        runs.append((first, last))
        first = last
    return runs


def _read_run(path: str, kept: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """The ids of some documents of a spill, one after the other; what lies between them is read and left out."""
    begin = int(kept["start"][0])
    span = int(kept["start"][-1]) + int(kept["length"][-1]) - begin
    ids = np.frombuffer(read_range(path, begin * dtype.itemsize, span * dtype.itemsize), dtype)
    starts = kept["start"].astype(np.int64) - begin
    stops = starts + kept["length"]
    gaps = np.flatnonzero(starts[1:] != stops[:-1])
    if not len(gaps):
        return ids
    begins, ends = np.append(0, starts[1:][gaps]), np.append(stops[gaps], span)
    return np.concatenate([ids[first:last] for first, last in zip(begins.tolist(), ends.tolist(), strict=True)])
