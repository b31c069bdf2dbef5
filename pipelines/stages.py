"""Closes stages: checks that every document is accounted for, then writes the stage's receipt.

A stage is finished when its receipt is there, and the receipt is written by the stage's last step, inside the pipeline,
not by the process that launched it. Totals that do not add up fail the run; nothing is rounded or explained away.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import xxhash

from gristmill.formats.errors import CorpusError, DataError, InputError
from gristmill.formats.fingerprint import digest
from gristmill.formats.metadata import METADATA_KINDS
from gristmill.formats.receipts import (
    STAGES_FOLDER,
    Receipt,
    stage_receipt_path,
    valid_receipt,
    write_receipt,
)
from gristmill.formats.storage import FileFacts, file_facts, is_local, list_files, local_path, relative_to, remove
from gristmill.pipelines.encoders import TOKENIZER_FILES
from gristmill.pipelines.job import Job
from gristmill.pipelines.limits import OVER_LIMIT, cut_reports
from gristmill.pipelines.lock_renewal import require_held
from gristmill.pipelines.loss_alarm import check_near_loss, check_paragraph_loss
from gristmill.pipelines.paragraph_dedup import cut_totals
from gristmill.pipelines.plan import Plan, Split, read_plan
from gristmill.pipelines.raw import copied_files, copies
from gristmill.pipelines.scan import rejects_path
from gristmill.pipelines.shards import shard_item
from gristmill.pipelines.spill import SPILL_STEP, token_rejects_path

__all__ = [
    "close_clean",
    "close_download",
    "close_tokenize",
    "require_stage",
    "Result",
    "sweep",
    "valid_stage",
    "write_stage",
]

_RULES = {
    *("blank", "empty", "exact_duplicate", "language", "max_chars", "max_tokens", "min_chars", "min_tokens"),
    *(
        "near_duplicate",
        "no_tokens",
        "paragraphs",
        "bad_words",
        "c4",
        "contaminated",
        "custom",
        "fineweb",
        "gopher_quality",
    ),
    OVER_LIMIT,
    *("gopher_repetition", "http_status", "not_a_page", "url_lists"),
}
"""Reasons to drop a record that are rules, not faults of the record; a dot and the name of a rule may follow."""

_KEPT_TEXT = ("characters_kept", "bytes_kept")

Result = dict[str, Any]
"""What a stage hands on to the next: a JSON value, kept in its receipt."""


def write_stage(
    job: Job, stage: str, files: dict[str, FileFacts], result: Result, samples: dict[str, FileFacts] | None = None
) -> Result:
    """Writes the receipt of a stage and returns its result.

    Raises:
        CorpusError: the run has lost its place to another.
    """
    require_held(job)
    receipt = Receipt(
        digest=job.stage_digests[stage],
        files=files,
        settings=job.settings[stage],
        result=result,
        samples=samples or {},
    )
    write_receipt(stage_receipt_path(job.corpus, stage), receipt)
    return result


def valid_stage(job: Job, stage: str) -> Receipt | None:
    """The receipt of a stage if it is for this job and its files are there; else None."""
    return valid_receipt(job.corpus, stage_receipt_path(job.corpus, stage), job.stage_digests[stage])


def require_stage(job: Job, stage: str) -> Receipt:
    """The receipt of a stage that must be finished.

    Raises:
        CorpusError: it is not.
    """
    receipt = valid_stage(job, stage)
    if receipt is None:
        raise CorpusError(
            f"{job.corpus}: stage {stage!r} is not finished for this recipe and these inputs; run `gristmill prepare` "
            f"without --from, or with --from {stage}"
        )
    return receipt


def sweep(job: Job, folder: str, keep: Iterable[str]) -> None:
    """Removes the files below a folder of the corpus that this run does not know: leftovers of earlier runs.

    Raises:
        CorpusError: the run has lost its place to another, whose files these may be.
    """
    require_held(job)
    kept = set(keep)
    for path in list_files(job.path(folder), recursive=True):
        if f"{folder}/{relative_to(path, job.path(folder))}" not in kept:
            remove(path)
    if is_local(job.corpus):
        for below, _, _ in os.walk(local_path(job.path(folder)), topdown=False):
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(below)


def _sweep_receipts(job: Job, step: str, items: Iterable[str]) -> None:
    """Removes the receipts of items that this run does not have."""
    folder = f"{STAGES_FOLDER}/items/{step}"
    sweep(job, folder, (f"{folder}/{item}.json" for item in items))


def close_download(job: Job, results: Sequence[Result] = ()) -> Result:
    """Pins the inputs: from here on, what a run reads is written down. Removes copies that no source asks for.

    Args:
        job: the run.
        results: what copying came to, for each split that is copied.

    Raises:
        DataError: a split that was to be copied was not.
    """
    plan = read_plan(job.corpus)
    files = copied_files(job, plan, list(results))
    sweep(job, "raw", files)
    own = (split for split in copies(job, plan) if job.source_of(split).copies is None)
    _sweep_receipts(job, "download", map(job.item, own))
    counts = {
        source.id: {"files": len(files), "bytes": sum(file.size for file in files)}
        for source, files in zip(job.recipe.sources, plan.inputs, strict=True)
    }
    return write_stage(job, "download", files, {"sources": counts})


def close_clean(job: Job, scans: list[Result], drops: list[Result], cuts: Sequence[Result] = ()) -> Result:
    """Adds up what was scanned and dropped, source by source.

    Args:
        job: the run.
        scans: results of `scan_split`.
        drops: results of `write_drops`.
        cuts: results of `write_cuts`, of the splits that lose paragraphs.

    Raises:
        DataError: more records were bad than the source allows, or it would lose more than it may.
    """
    plan = read_plan(job.corpus)
    copies = {drop["number"]: int(drop["copies"]) for drop in drops}
    expected = {split.number for split in plan.splits if job.recipe.sources[split.source].clean.enabled}
    if {scan["number"] for scan in scans} != expected or copies.keys() != expected:
        raise DataError(f"{job.corpus}: {len(scans)} scans and {len(drops)} drop lists for {len(expected)} splits")
    wanted = {split.number for split in plan.splits if job.cuts(split)}
    if {cut["number"] for cut in cuts} != wanted:
        raise DataError(f"{job.corpus}: {len(cuts)} lists of paragraphs for {len(wanted)} splits")
    sources = {}
    for number, source in enumerate(job.recipe.sources):
        own = [scan for scan in scans if scan["source"] == number]
        dropped = _sum(scan["dropped"] for scan in own)
        removed = sum(copies[scan["number"]] for scan in own)
        if removed:
            dropped["exact_duplicate"] = dropped.get("exact_duplicate", 0) + removed
        near = sum(int(drop["near"]) for drop in drops if drop["source"] == number)
        if near:
            dropped["near_duplicate"] = near
            check_near_loss(job, source.id, near, sum(scan["kept"] for scan in own) - removed)
            removed += near
        left = _text_totals(own, [drop for drop in drops if drop["source"] == number])
        emptied, counted, lost = cut_totals(cut for cut in cuts if cut["source"] == number)
        check_paragraph_loss(job, source.id, lost[0], left["characters_kept"])
        totals = {
            "records": sum(scan["records"] for scan in own),
            "kept": sum(scan["kept"] for scan in own) - removed - sum(emptied.values()),
            "bad": sum(scan["bad"] for scan in own),
            "dropped": _sum([dropped, emptied]),
            "counted": _sum([*(scan["counted"] for scan in own), counted]),
            "read": _read_digest(own),
            "text": left
            | {
                f"{unit}_kept": left[f"{unit}_kept"] - lost[place] for place, unit in enumerate(("characters", "bytes"))
            },
        }
        _check_totals(job, source.id, totals)
        _check_bad(source.id, source.max_bad_fraction, totals)
        sources[source.id] = totals
    _sweep_receipts(job, "scan", _items(job, plan, cleaned=True))
    files = _facts(report["files"] for report in (*scans, *drops, *cuts))
    samples = _facts(report["samples"] for report in (*scans, *drops, *cuts))
    of_tokenize = {_path_of_encode(job, split) for split in plan.splits}
    sweep(job, "clean", files)
    sweep(job, "rejected", samples.keys() | of_tokenize)
    return write_stage(job, "clean", files, {"sources": sources}, samples)


def _path_of_encode(job: Job, split: Split) -> str:
    """Path of the sample that the encoding of a split can leave."""
    source = job.source_of(split)
    return (token_rejects_path if source.clean.enabled else rejects_path)(source.id, split.part)


def close_tokenize(job: Job, encodes: list[Result], shards: list[Result]) -> Result:
    """Joins the accounts of cleaning and encoding, and lists the shards.

    Raises:
        DataError: a document is unaccounted for, or too many records were bad.
        InputError: an input changed between its two readings.
    """
    plan = read_plan(job.corpus)
    if {encode["number"] for encode in encodes} != {split.number for split in plan.splits}:
        raise DataError(f"{job.corpus}: {len(encodes)} encoded splits for {len(plan.splits)} planned")
    cleaned = require_stage(job, "clean").result["sources"]
    sources = []
    files: dict[str, FileFacts] = {}
    for number, source in enumerate(job.recipe.sources):
        own = sorted((encode for encode in encodes if encode["source"] == number), key=lambda entry: entry["part"])
        own = cut_reports(job, number, own)
        before = cleaned[source.id] if source.clean.enabled else None
        dropped = _sum([*(encode["dropped"] for encode in own), *([before["dropped"]] if before else [])])
        counted = _sum([*(encode["counted"] for encode in own), *([before["counted"]] if before else [])])
        counted |= {
            name: total for name in ("control_hits", "eod_in_text") if (total := sum(encode[name] for encode in own))
        }
        totals = {
            "records": sum(encode["records"] for encode in own),
            "kept": sum(encode["documents"] for encode in own),
            "bad": sum(encode["bad"] for encode in own),
            "dropped": dropped,
            "counted": counted,
        }
        _check_ends(job, source.id, counted)
        if before and (before["records"], before["read"]) != (totals["records"], _read_digest(own)):
            raise InputError(
                f"source {source.id!r}: {before['records']} records were scanned, but reading again gave "
                f"{totals['records']} or other bytes; an input changed during the run. Start again"
            )
        _check_totals(job, source.id, totals)
        if not before:
            _check_bad(source.id, source.max_bad_fraction, totals)
        own_shards = sorted((shard for shard in shards if shard["source"] == number), key=lambda entry: entry["number"])
        _check_shards(source.id, own_shards, totals["kept"], sum(encode["tokens"] for encode in own))
        for shard in own_shards:
            for kind in ("bin", "idx", "rec", *(kind for kind in METADATA_KINDS if kind in shard)):
                files[f"{shard['path']}.{kind}"] = FileFacts(shard[kind]["size"], shard[kind]["sha256"])
        inputs = _input_digests(plan, number, own)
        placed = [_placed(shard, own) for shard in own_shards]
        sources.append({"id": source.id, **totals, "inputs": inputs, "shards": placed})
    sweep(job, "tokens", files)
    for name in TOKENIZER_FILES:
        files[name] = file_facts(job.path(name))
    _sweep_receipts(job, SPILL_STEP, ())
    _sweep_receipts(job, "encode", _items(job, plan, cleaned=False))
    numbers = Counter(int(shard["source"]) for shard in shards)
    names = ((job.recipe.sources[shard["source"]].id, shard["number"], numbers[shard["source"]]) for shard in shards)
    _sweep_receipts(job, "assemble", (shard_item(*name) for name in names))
    result = {"sources": sources, "engine": job.engine, "engine_version": job.engine_version}
    return write_stage(job, "tokenize", files, result, _facts(encode["samples"] for encode in encodes))


def _text_totals(scans: list[Result], drops: list[Result]) -> dict[str, int]:
    """Code points and bytes of the texts that were read, and of those that are left."""
    totals = {}
    for place, unit in enumerate(("characters", "bytes")):
        totals[f"{unit}_in"] = sum(scan["text_in"][place] for scan in scans)
        passed = sum(scan["text_kept"][place] for scan in scans)
        totals[f"{unit}_kept"] = passed - sum(drop["text"][place] for drop in drops)
    return totals


def _items(job: Job, plan: Plan, *, cleaned: bool) -> Iterable[str]:
    """Names of the splits' items; `cleaned` leaves out those of sources that are not cleaned."""
    for split in plan.splits:
        if job.source_of(split).clean.enabled or not cleaned:
            yield job.item(split)


def _facts(listed: Iterable[dict[str, dict[str, Any]]]) -> dict[str, FileFacts]:
    """The files that reports name, by path."""
    return {name: FileFacts(**facts) for files in listed for name, facts in files.items()}


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def _check_totals(job: Job, source_id: str, totals: Result) -> None:
    dropped = sum(totals["dropped"].values())
    if totals["records"] != totals["kept"] + dropped:
        raise DataError(
            f"{job.corpus}: source {source_id!r}: {totals['records']} records came in, but {totals['kept']} were kept "
            f"and {dropped} dropped; this must add up. Remove {job.path('_stages')} and run again"
        )


def _check_ends(job: Job, source_id: str, counted: dict[str, int]) -> None:
    """Refuses texts that spell the EOD although control text is to be ordinary: readers would see false documents."""
    found = counted.get("eod_in_text", 0)
    if found and job.recipe.tokenizer.control_text != "keep":
        raise DataError(
            f"source {source_id!r}: {found} tokens inside its documents equal the EOD, which this tokenizer makes of "
            'ordinary text; set tokenizer.eod to a token that no text spells, or control_text = "keep" to accept it'
        )


def _is_rule(reason: str) -> bool:
    return reason.partition(".")[0] in _RULES


def _check_bad(source_id: str, limit: float, totals: Result) -> None:
    records, bad = totals["records"], totals["bad"]
    if bad > limit * records:
        faults = ((reason, count) for reason, count in totals["dropped"].items() if not _is_rule(reason))
        reasons = ", ".join(f"{count} {reason}" for reason, count in faults)
        raise DataError(
            f"source {source_id!r}: {bad} of {records} records are bad ({reasons}), more than max_bad_fraction = "
            f"{limit:g} allows; see rejected/{source_id}/, mend the input, or raise the limit"
        )


def _check_shards(source_id: str, shards: list[Result], documents: int, tokens: int) -> None:
    held = (sum(shard["documents"] for shard in shards), sum(shard["tokens"] for shard in shards))
    if held != (documents, tokens):
        raise DataError(
            f"source {source_id!r}: shards hold {held[0]} documents and {held[1]} tokens, but {documents} and {tokens} "
            "were encoded"
        )


def _read_digest(items: list[Result]) -> str:
    """Digest of all that a source's items read."""
    return digest([item["inputs"] for item in sorted(items, key=lambda item: item["part"])])


def _placed(shard: Result, encodes: list[Result]) -> Result:
    """A shard whose first and last document are given as input file, split and record."""
    found = dict(shard)
    for name in ("first", "last"):
        part, record = shard[name]
        inputs = encodes[part]["inputs"]
        found[name] = [next(file for file, _, end in inputs if record < end), part, record]
    return found


def _input_digests(plan: Plan, source: int, encodes: list[Result]) -> list[str]:
    """For each input file, the digest over the digests of its extents."""
    parts: list[list[str]] = [[] for _ in plan.inputs[source]]
    for encode in encodes:
        for file, hexdigest, _ in encode["inputs"]:
            parts[file].append(hexdigest)
    return [xxhash.xxh3_128_hexdigest("".join(part).encode("ascii")) for part in parts]
