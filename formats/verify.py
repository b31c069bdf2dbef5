"""Checks a finished corpus against everything it says of itself, reading every byte.

Opening a corpus trusts sizes and ends so that it costs the same for any size; this is the other side of that trade:
digests, boundaries, ids and counts of all files are gone through, and all that is wrong is listed, not only the first.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gristmill.formats.attempt import is_temporary_name
from gristmill.formats.errors import CorpusError, FormatError, GristmillError, StorageError
from gristmill.formats.fingerprint import digest
from gristmill.formats.index_order import source_value
from gristmill.formats.index_set import INDICES_FOLDER, SET_NAME, IndexSet, read_set
from gristmill.formats.index_sources import index_sources
from gristmill.formats.indexed import IndexedDataset
from gristmill.formats.manifest import Manifest, RecordAddress, ShardEntry, SourceEntry, read_manifest
from gristmill.formats.metadata import METADATA_KINDS, metadata_faults
from gristmill.formats.origins import origins_path, read_origins
from gristmill.formats.receipts import STAGES_FOLDER, read_receipt, stage_receipt_path
from gristmill.formats.split import SPLITS
from gristmill.formats.storage import (
    FileFacts,
    base_name,
    exists,
    file_facts,
    join,
    list_files,
    list_folders,
    read_bytes,
    relative_to,
)

__all__ = ["verify_corpus"]

_READ_TOKENS = 16 << 20
_TOKENIZER_FACTS = ("eod_id", "eod_token", "pad_id", "vocabulary")


def verify_corpus(folder: str) -> list[str]:
    """Everything that is wrong with a corpus, as sentences; empty when it is sound.

    Checked are the tokenizer, every shard (digests, every pointer, every token id, every EOD, where every document came
    from, what it carries along), every index set, every receipt with the files it vouches for, and the manifest against
    all of these; in `rejected/` what the receipts of stages name. `report/` and the plan are for people and reruns and
    are not checked.

    Args:
        folder: path or URL of the corpus.

    Raises:
        CorpusError: there is no finished corpus.
        FormatError: its manifest cannot be read.
    """
    manifest = read_manifest(folder)
    problems = list(_check_tokenizer(folder, manifest))
    checked: dict[str, FileFacts] = {}
    for source in manifest.sources:
        for shard in source.shards:
            problems += _check_shard(folder, manifest, shard, checked)
            problems += _check_origins(folder, source, shard, checked)
            problems += _check_metadata(folder, shard, checked)
    problems += _check_strangers(folder, manifest)
    problems += _check_sets(folder, manifest, checked)
    problems += _check_receipts(folder, checked)
    problems += _check_account(folder, manifest)
    return list(dict.fromkeys(problems))


def _check_tokenizer(folder: str, manifest: Manifest) -> Iterator[str]:
    json_path, facts_path = join(folder, "tokenizer", "tokenizer.json"), join(folder, "tokenizer", "facts.json")
    try:
        facts = json.loads(read_bytes(facts_path))
        found = hashlib.sha256(read_bytes(json_path)).hexdigest()
        if found != facts["tokenizer_sha256"]:
            yield f"{json_path}: sha256 {found}, but {facts_path} says {facts['tokenizer_sha256']}"
        if facts["fingerprint"] != digest({"eod_id": facts["eod_id"], "tokenizer_sha256": facts["tokenizer_sha256"]}):
            yield f"{facts_path}: fingerprint {facts['fingerprint']} does not follow from the tokenizer and its EOD id"
        recorded = {name: getattr(manifest.tokenizer, name) for name in ("fingerprint", *_TOKENIZER_FACTS)}
        for name, expected in (recorded | {"dtype": manifest.dtype}).items():
            if facts[name] != expected:
                yield f"{facts_path}: {name} is {facts[name]!r}, but the manifest says {expected!r}"
    except StorageError as error:
        yield str(error)
    except (ValueError, KeyError, TypeError) as error:
        yield f"{facts_path}: damaged: {type(error).__name__}: {error}"


def _facts_of(folder: str, name: str, checked: dict[str, FileFacts]) -> FileFacts:
    if name not in checked:
        checked[name] = file_facts(join(folder, name))
    return checked[name]


def _compare(folder: str, name: str, expected: FileFacts, checked: dict[str, FileFacts]) -> Iterator[str]:
    try:
        found = _facts_of(folder, name, checked)
    except StorageError as error:
        yield str(error)
        return
    if found.size != expected.size:
        yield f"{join(folder, name)}: {found.size} bytes, but {expected.size} are recorded"
    elif expected.sha256 and found.sha256 != expected.sha256:
        yield f"{join(folder, name)}: sha256 {found.sha256}, but {expected.sha256} is recorded; its content changed"


def _check_shard(folder: str, manifest: Manifest, shard: ShardEntry, checked: dict[str, FileFacts]) -> Iterator[str]:
    yield from _compare(folder, f"{shard.path}.bin", shard.bin, checked)
    yield from _compare(folder, f"{shard.path}.idx", shard.idx, checked)
    try:
        pair = IndexedDataset(join(folder, shard.path))
    except GristmillError as error:
        yield str(error)
        return
    try:
        if pair.dtype != manifest.token_dtype:
            yield f"{pair.prefix}: holds {pair.dtype} tokens, but the manifest says {manifest.dtype}"
        for what, found, recorded in (
            ("sequences", len(pair), shard.documents),
            ("documents", pair.num_documents, shard.documents),
            ("tokens", pair.num_tokens, shard.tokens),
        ):
            if found != recorded:
                yield f"{pair.prefix}: {found} {what}, but the manifest says {recorded}"
        yield from _check_tokens(manifest, shard, pair)
    finally:
        pair.close()


def _check_tokens(manifest: Manifest, shard: ShardEntry, pair: IndexedDataset) -> Iterator[str]:
    eod, vocabulary = manifest.tokenizer.eod_id, manifest.tokenizer.vocabulary
    ends = pair.pointers // pair.dtype.itemsize + pair.lengths - 1
    if (pair.lengths == 0).any():
        yield f"{pair.prefix}: document {int(np.argmin(pair.lengths))} is empty; each holds at least its EOD"
        return
    eods = 0
    for start in range(0, pair.num_tokens, _READ_TOKENS):
        tokens = pair.read(start, min(_READ_TOKENS, pair.num_tokens - start))
        bad = (tokens >= vocabulary) | (tokens < 0)
        if bad.any():
            at = int(np.argmax(bad))
            yield f"{pair.prefix}: token {start + at} is {int(tokens[at])}, outside the vocabulary of {vocabulary}"
        eods += int(np.count_nonzero(tokens == eod))
        low, high = np.searchsorted(ends, (start, start + len(tokens)))
        last = tokens[ends[low:high] - start]
        if (last != eod).any():
            at = int(np.argmax(last != eod))
            yield f"{pair.prefix}: document {int(low) + at} ends with token {int(last[at])}, not with the EOD {eod}"
    if eods != shard.eod_tokens:
        yield f"{pair.prefix}: {eods} EOD tokens, but the manifest says {shard.eod_tokens}"


def _check_origins(folder: str, source: SourceEntry, shard: ShardEntry, checked: dict[str, FileFacts]) -> Iterator[str]:
    """Where documents came from: files that there are, records that go up, and the ends that the manifest names."""
    if shard.rec is None:
        return
    name = origins_path(shard.path)
    yield from _compare(folder, name, shard.rec, checked)
    try:
        numbers, runs = read_origins(join(folder, name))
    except GristmillError as error:
        yield str(error)
        return
    if len(numbers) != shard.documents:
        yield f"{join(folder, name)}: {len(numbers)} documents, but the manifest says {shard.documents}"
        return
    run = np.repeat(np.arange(len(runs)), np.diff(runs["document"], append=len(numbers)))
    place = (runs["split"][run].astype(np.int64) << 32) | numbers
    if (np.diff(place) <= 0).any():
        at = int(np.argmax(np.diff(place) <= 0)) + 1
        yield f"{join(folder, name)}: document {at} comes from the record of the one before it, or from an earlier one"
    if (runs["input"] >= len(source.inputs)).any() or (runs["offset"][run] + numbers < 0).any():
        yield (
            f"{join(folder, name)}: names a file beyond the {len(source.inputs)} of source {source.id!r}, or a record "
            "below 0"
        )
        return
    for what, at, recorded in (("first", 0, shard.first), ("last", -1, shard.last)):
        found = RecordAddress(
            input=source.inputs[int(runs["input"][run[at]])].path,
            split=int(runs["split"][run[at]]),
            record=int(numbers[at]),
        )
        if found != recorded:
            yield f"{join(folder, name)}: its {what} document is from {found}, but the manifest says {recorded}"


def _check_metadata(folder: str, shard: ShardEntry, checked: dict[str, FileFacts]) -> Iterator[str]:
    """What was carried along: a line for each document, where the offsets say."""
    if shard.meta is None:
        return
    for kind, facts in zip(METADATA_KINDS, (shard.meta.lines, shard.meta.offsets), strict=True):
        yield from _compare(folder, f"{shard.path}.{kind}", facts, checked)
    try:
        yield from metadata_faults(join(folder, shard.path), shard.documents)
    except StorageError as error:
        yield str(error)


def _check_strangers(folder: str, manifest: Manifest) -> Iterator[str]:
    known = {
        f"{shard.path}.{kind}"
        for source in manifest.sources
        for shard in source.shards
        for kind in (
            *("bin", "idx"),
            *(("rec",) if shard.rec is not None else ()),
            *(METADATA_KINDS if shard.meta is not None else ()),
        )
    }
    for path in list_files(join(folder, "tokens"), recursive=True):
        name = f"tokens/{relative_to(path, join(folder, 'tokens'))}"
        if name not in known and not is_temporary_name(base_name(path)):
            yield f"{path}: is in no manifest; it is left over from something else and may be removed"


def _check_sets(folder: str, manifest: Manifest, checked: dict[str, FileFacts]) -> Iterator[str]:
    indices = join(folder, INDICES_FOLDER)
    names = list_folders(indices)
    if manifest.index_set is not None and manifest.index_set not in names:
        yield f"{join(indices, manifest.index_set)}: this index set is named by the manifest, but it is not there"
    for name in names:
        try:
            if not exists(join(indices, name, SET_NAME)):
                yield f"{join(indices, name)}: an unfinished index set; build it again or remove it"
                continue
            index_set = read_set(join(indices, name))
        except (FormatError, CorpusError, StorageError) as error:
            yield str(error)
            continue
        yield from _check_set(folder, index_set, checked)
        if name == manifest.index_set:
            expected = [source_value(source) for source in index_sources(manifest.sources)]
            if [source_value(source) for source in index_set.sources] != expected:
                yield f"{index_set.folder}: built from other shards or weights than the manifest names; build it again"


def _check_set(folder: str, index_set: IndexSet, checked: dict[str, FileFacts]) -> Iterator[str]:
    below = relative_to(index_set.folder, folder)
    for name, facts in index_set.files.items():
        yield from _compare(folder, f"{below}/{name}", facts, checked)
    for split in (split for split in SPLITS if index_set.order(split).members):
        try:
            index_set.open_blend(split)
            for member in index_set.order(split).members:
                index_set.open_member(split, member.source)
        except GristmillError as error:
            yield str(error)


def _check_receipts(folder: str, checked: dict[str, FileFacts]) -> Iterator[str]:
    """Receipts of stages, and those of items as far as their files are there: spills and older plans' files are not."""
    stages = join(folder, STAGES_FOLDER)
    for path in list_files(stages, recursive=True):
        if not path.endswith(".json") or base_name(path) == "plan.json":
            continue
        try:
            receipt = read_receipt(path)
        except GristmillError as error:
            yield str(error)
            continue
        of_stage = "/" not in relative_to(path, stages)
        vouched = {} if receipt is None else {**receipt.files, **receipt.samples}
        for name, facts in vouched.items():
            if of_stage or exists(join(folder, name)):
                yield from _compare(folder, name, facts, checked)


def _check_account(folder: str, manifest: Manifest) -> Iterator[str]:
    """Compares the manifest with the receipt that its counts were taken from."""
    path = stage_receipt_path(folder, "tokenize")
    try:
        receipt = read_receipt(path)
        if receipt is None:
            return
        found = {source["id"]: _account(source) for source in receipt.result["sources"]}
    except FormatError:  # told by the check of the receipts
        return
    except (KeyError, TypeError) as error:
        yield f"{path}: damaged: {type(error).__name__}: {error}"
        return
    for source in manifest.sources:
        expected = found.get(source.id, {})
        for name, value in _recorded(source).items():
            if value != expected.get(name):
                yield f"{path}: source {source.id!r}: {name} {expected.get(name)}, but the manifest says {value}"


def _account(source: Mapping[str, Any]) -> dict[str, Any]:
    """What a stage's result says of a source, under the manifest's names."""
    shards = {shard["path"]: [shard["tokens"], shard["documents"], shard["eod_tokens"]] for shard in source["shards"]}
    return {
        "documents_in": source["records"],
        "documents_kept": source["kept"],
        "dropped": source["dropped"],
        "counted": source["counted"],
        **shards,
    }


def _recorded(source: SourceEntry) -> dict[str, Any]:
    shards = {shard.path: [shard.tokens, shard.documents, shard.eod_tokens] for shard in source.shards}
    return {
        "documents_in": source.documents_in,
        "documents_kept": source.documents_kept,
        "dropped": dict(source.dropped),
        "counted": dict(source.counted),
        **shards,
    }
