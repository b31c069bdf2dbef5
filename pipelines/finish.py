"""Writes the manifest, the commit point of a run, and clears away what only the run itself needed."""

from collections.abc import Sequence
from typing import Any

from gristmill import __version__
from gristmill.formats.dedup_table import dedup_identity
from gristmill.formats.errors import GristmillError
from gristmill.formats.index_set import INDICES_FOLDER, MemberSource, read_set
from gristmill.formats.index_sources import index_sources
from gristmill.formats.manifest import (
    InputEntry,
    Manifest,
    MetadataEntry,
    RecordAddress,
    ShardEntry,
    SourceEntry,
    TokenizerEntry,
    read_manifest,
    write_manifest,
)
from gristmill.formats.metadata import METADATA_KINDS
from gristmill.formats.receipts import STAGES_FOLDER
from gristmill.formats.storage import FileFacts, list_folders, remove_tree
from gristmill.pipelines.account import write_account
from gristmill.pipelines.encoders import TOKENIZER_FOLDER
from gristmill.pipelines.inputs import InputFile
from gristmill.pipelines.job import Job
from gristmill.pipelines.lock_renewal import holds, require_held
from gristmill.pipelines.plan import read_plan
from gristmill.pipelines.stages import require_stage, valid_stage
from gristmill.tokenize.resolved import load_resolved

__all__ = ["finish", "make_manifest", "manifest_is_current", "source_entries"]


def source_entries(job: Job) -> tuple[SourceEntry, ...]:
    """The sources as the manifest has them, from the receipt of the tokenize stage."""
    plan = read_plan(job.corpus)
    stage = require_stage(job, "tokenize").result
    entries = []
    for number, (source, found) in enumerate(zip(job.recipe.sources, stage["sources"], strict=True)):
        inputs = zip(plan.inputs[number], found["inputs"], strict=True)
        entries.append(
            SourceEntry(
                id=source.id,
                weight=source.weight,
                max_epochs=source.max_epochs,
                inputs=tuple(InputEntry(path=file.relative, size=file.size, xxh3=xxh3) for file, xxh3 in inputs),
                documents_in=found["records"],
                documents_kept=found["kept"],
                dropped=found["dropped"],
                counted=found["counted"],
                shards=tuple(_shard(plan.inputs[number], shard) for shard in found["shards"]),
                cleaning=source.clean.identity() | _deduplication(job, number),
            )
        )
    return tuple(entries)


def _deduplication(job: Job, number: int) -> dict[str, Any]:
    """What decides which copies a source loses."""
    recipe = job.recipe
    clean = recipe.sources[number].clean
    return dedup_identity(
        number,
        exact=clean.enabled and clean.exact_dedup,
        key=recipe.dedup_key,
        near=recipe.near_dedup,
        paragraphs=recipe.paragraph_dedup,
    )


def _shard(inputs: tuple[InputFile, ...], found: dict[str, Any]) -> ShardEntry:
    carried = [FileFacts(found[kind]["size"], found[kind]["sha256"]) for kind in METADATA_KINDS if kind in found]
    return ShardEntry(
        path=found["path"],
        tokens=found["tokens"],
        documents=found["documents"],
        eod_tokens=found["eod_tokens"],
        bin=FileFacts(found["bin"]["size"], found["bin"]["sha256"]),
        idx=FileFacts(found["idx"]["size"], found["idx"]["sha256"]),
        rec=FileFacts(found["rec"]["size"], found["rec"]["sha256"]) if "rec" in found else None,
        first=_address(inputs, found["first"]),
        last=_address(inputs, found["last"]),
        meta=MetadataEntry(*carried) if carried else None,
    )


def _address(inputs: tuple[InputFile, ...], place: list[int]) -> RecordAddress:
    file, part, record = place
    return RecordAddress(input=inputs[file].relative, split=part, record=record)


def make_manifest(job: Job) -> Manifest:
    """The manifest that follows from the stages' receipts.

    Raises:
        CorpusError: a stage that it needs is not finished.
    """
    stage = require_stage(job, "tokenize").result
    resolved = load_resolved(job.path(TOKENIZER_FOLDER))
    blended = valid_stage(job, "blend") if job.recipe.index is not None else None
    return Manifest(
        name=job.recipe.name,
        recipe_digest=job.recipe.digest(),
        software=__version__,
        tokenizer=TokenizerEntry(
            fingerprint=resolved.fingerprint,
            engine=stage["engine"],
            engine_version=stage["engine_version"],
            eod_id=resolved.eod_id,
            eod_token=resolved.eod_token,
            pad_id=resolved.pad_id,
            vocabulary=resolved.vocabulary,
        ),
        dtype=resolved.dtype,
        sources=source_entries(job),
        index_set=None if blended is None else blended.result["set"],
    )


def manifest_is_current(job: Job) -> bool:
    """Whether the manifest is there, and says what the finished stages and the job's tokenizer come to."""
    try:
        manifest = read_manifest(job.corpus)
        return manifest.tokenizer.fingerprint == job.tokenizer and manifest == make_manifest(job)
    except GristmillError:
        return False


def finish(job: Job) -> None:
    """Writes the manifest unless it is there already, then removes the spills, and index sets of no use any more.

    Raises:
        CorpusError: the run has lost its place to another, and the manifest is not what this run would write.
    """
    current = manifest_is_current(job)
    if current and not holds(job):  # a late or repeated attempt at what is done
        return
    require_held(job)
    if not current:
        write_account(job)
        write_manifest(job.corpus, make_manifest(job))
    remove_tree(job.path(STAGES_FOLDER, "items", "encode"))  # which vouch for the spills
    remove_tree(job.path("spill"))
    _sweep_sets(job)


def _sweep_sets(job: Job) -> None:
    """Removes index sets that are unfinished or were built for other shards, and the receipts of their items."""
    now = _identities(index_sources(source_entries(job)))
    indexed = valid_stage(job, "index") if job.recipe.index is not None else None
    for name in list_folders(job.path(INDICES_FOLDER)):
        if indexed is not None and name == indexed.result["set"]:
            continue
        folder = job.path(INDICES_FOLDER, name)
        try:
            useful = _identities(read_set(folder).sources) == now
        except GristmillError:
            useful = False
        if not useful:
            remove_tree(folder)
            remove_tree(job.path(STAGES_FOLDER, "items", "index", name))


def _identities(sources: Sequence[MemberSource]) -> list[tuple[str, list[str]]]:
    return [(source.id, [shard.identity for shard in source.shards]) for source in sources]
