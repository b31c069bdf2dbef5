"""Checks a finished corpus against everything it says of itself, reading every byte.

Opening a corpus trusts sizes and ends so that it costs the same for any size; this is the other side of that trade:
digests, boundaries, ids and counts of all files are gone through, and all that is wrong is listed, not only the first.
"""

import hashlib
import json
from collections.abc import Iterator

import numpy as np

from gristmill.formats.attempt import is_temporary_name
from gristmill.formats.errors import CorpusError, FormatError, GristmillError, StorageError
from gristmill.formats.index_set import INDICES_FOLDER, IndexSet, find_sets
from gristmill.formats.indexed import IndexedDataset
from gristmill.formats.manifest import Manifest, ShardEntry, read_manifest
from gristmill.formats.receipts import STAGES_FOLDER, read_receipt
from gristmill.formats.split import SPLITS
from gristmill.formats.storage import (
    FileFacts,
    base_name,
    file_facts,
    join,
    list_files,
    list_folders,
    read_bytes,
    relative_to,
)

__all__ = ["verify_corpus"]

_READ_TOKENS = 16 << 20


def verify_corpus(folder: str) -> list[str]:
    """Everything that is wrong with a corpus, as sentences; empty when it is sound.

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
    problems += _check_strangers(folder, manifest)
    problems += _check_sets(folder, manifest, checked)
    problems += _check_receipts(folder, checked)
    return problems


def _check_tokenizer(folder: str, manifest: Manifest) -> Iterator[str]:
    json_path, facts_path = join(folder, "tokenizer", "tokenizer.json"), join(folder, "tokenizer", "facts.json")
    try:
        facts = json.loads(read_bytes(facts_path))
        found = hashlib.sha256(read_bytes(json_path)).hexdigest()
        if found != facts["tokenizer_sha256"]:
            yield f"{json_path}: sha256 {found}, but {facts_path} says {facts['tokenizer_sha256']}"
        if facts["fingerprint"] != manifest.tokenizer.fingerprint:
            yield (
                f"{facts_path}: fingerprint {facts['fingerprint']}, but the corpus was made with "
                f"{manifest.tokenizer.fingerprint}"
            )
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
    elif found.sha256 != expected.sha256:
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


def _check_strangers(folder: str, manifest: Manifest) -> Iterator[str]:
    known = {
        f"{shard.path}.{kind}" for source in manifest.sources for shard in source.shards for kind in ("bin", "idx")
    }
    for path in list_files(join(folder, "tokens"), recursive=True):
        name = f"tokens/{relative_to(path, join(folder, 'tokens'))}"
        if name not in known and not is_temporary_name(base_name(path)):
            yield f"{path}: is in no manifest; it is left over from something else and may be removed"


def _check_sets(folder: str, manifest: Manifest, checked: dict[str, FileFacts]) -> Iterator[str]:
    try:
        sets = find_sets(folder)
    except (FormatError, CorpusError, StorageError) as error:
        yield str(error)
        return
    names = {index_set.name for index_set in sets}
    if manifest.index_set is not None and manifest.index_set not in names:
        yield f"{join(folder, INDICES_FOLDER)}: index set {manifest.index_set} of the manifest is missing or unfinished"
    for name in list_folders(join(folder, INDICES_FOLDER)):
        if name not in names:
            yield f"{join(folder, INDICES_FOLDER, name)}: an unfinished index set; build it again or remove it"
    for index_set in sets:
        yield from _check_set(folder, index_set, checked)


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
    """Stage receipts; those of items may name spills, which a finished run removes."""
    for path in list_files(join(folder, STAGES_FOLDER)):
        if not path.endswith(".json") or base_name(path) == "plan.json":
            continue
        try:
            receipt = read_receipt(path)
        except GristmillError as error:
            yield str(error)
            continue
        for name, facts in (receipt.files if receipt is not None else {}).items():
            yield from _compare(folder, name, facts, checked)
