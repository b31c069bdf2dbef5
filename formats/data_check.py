"""Reads every byte of data made by anyone and lists what is wrong; what opening trusts is gone through here.

A pair has no digest of its own, so a change of tokens that no sampled block meets can be told only by comparing with
an earlier reading: the checksums are written in the form of `sha256sum`, which can compare them too.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from gristmill.formats.data_sources import open_data_sources
from gristmill.formats.data_spec import parse_data_spec
from gristmill.formats.errors import FormatError, GristmillError
from gristmill.formats.indexed import bin_path, idx_path
from gristmill.formats.storage import exists, file_facts, read_bytes, write_bytes
from gristmill.formats.token_shards import TokenShard

__all__ = ["check_data", "read_checksums"]

_BLOCK_TOKENS = 16 << 20


def check_data(
    spec: str, *, eod_id: int | None = None, vocabulary: int | None = None, checksums: str | None = None
) -> list[str]:
    """Everything that is wrong with data, as sentences; empty when they are sound.

    Checked are the index of every pair, every token against the bound of the ids, the last token of every document
    against the EOD, raw shards against their manifest, and every file against the checksums of an earlier reading.

    Args:
        spec: the data, see `gristmill.formats.data_spec`; weights are ignored.
        eod_id: id that every document must end with; None does not look.
        vocabulary: bound of the ids; None takes that of raw shards' manifests, or does not look.
        checksums: file of checksums, as path or URL. Compared with if it is there, else written.

    Raises:
        SettingsError: the line names no data, or the file of checksums is none.
        StorageError: a file cannot be read or written.
    """
    try:
        sources = open_data_sources(
            parse_data_spec(spec), eod_id=eod_id, vocabulary=vocabulary, write=False, identify=True
        )
    except FormatError as error:
        return str(error).splitlines()
    known = read_checksums(checksums) if checksums is not None and exists(checksums) else None
    problems: list[str] = []
    found: dict[str, str] = {}
    for source in sources:
        raw = {shard.path: (manifest, shard) for manifest in source.raw for shard in manifest.shards}
        for shard in source.shards:
            tokens = bin_path(shard.prefix) if shard.files is None else shard.files.tokens
            found[tokens] = file_facts(tokens).sha256
            if tokens in raw:
                manifest, entry = raw[tokens]
                problems += _check_tokens(shard, manifest.eod_id, manifest.vocabulary)
                if entry.sha256 and entry.sha256 != found[tokens]:
                    problems.append(f"{tokens}: sha256 {found[tokens]}, but {manifest.path} says {entry.sha256}")
            else:
                problems += _check_tokens(shard, eod_id, vocabulary)
                found[idx_path(shard.prefix)] = file_facts(idx_path(shard.prefix)).sha256
    if known is None:
        if checksums is not None and not problems:
            write_bytes(checksums, "".join(f"{digest}  {path}\n" for path, digest in found.items()).encode())
        return problems
    return problems + list(_differences(str(checksums), known, found))


def read_checksums(path: str) -> dict[str, str]:
    """Digests by path, from a file in the form of `sha256sum`.

    Raises:
        FormatError: a line is no digest and path.
        StorageError: the file cannot be read.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(read_bytes(path).decode("utf-8", "replace").splitlines(), 1):
        digest, gap, name = line.partition("  ")
        if not gap or len(digest) != 64:
            raise FormatError(
                f"{path}: line {number}: {line[:80]!r} is no checksum; the rule is a SHA-256, two spaces, a path"
            )
        found[name] = digest.lower()
    return found


def _differences(where: str, known: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    for path, digest in found.items():
        if path not in known:
            yield f"{path}: is not in {where}; it was added since, or named otherwise"
        elif known[path] != digest:
            yield f"{path}: sha256 {digest}, but {where} says {known[path]}: its content changed"
    for path in known:
        if path not in found:
            yield f"{path}: is in {where}, but not among the data"


def _check_tokens(shard: TokenShard, eod_id: int | None, vocabulary: int | None) -> Iterator[str]:
    try:
        pair = shard.open()
    except GristmillError as error:
        yield str(error)
        return
    ends = np.unique(np.append(pair.pointers // pair.dtype.itemsize, pair.num_tokens)[pair.document_indices])[1:] - 1
    bound = 2**31 if vocabulary is None else vocabulary
    for start in range(0, pair.num_tokens, _BLOCK_TOKENS):
        block = pair.read(start, min(_BLOCK_TOKENS, pair.num_tokens - start))
        bad = (block < 0) | (block >= bound)
        if bad.any():
            at = int(np.argmax(bad))
            yield (
                f"{shard.prefix}: token {start + at} is {int(block[at])}; ids must be at least 0 and below {bound} "
                f"({int(np.count_nonzero(bad))} of {len(block)} in this block are not)"
            )
        low, high = np.searchsorted(ends, (start, start + len(block)))
        wrong = block[ends[low:high] - start] != eod_id
        if eod_id is not None and wrong.any():
            at = int(np.argmax(wrong))
            last = int(block[int(ends[low + at]) - start])
            yield (
                f"{shard.prefix}: the document that ends at token {int(ends[low + at])} ends with {last}, not with the "
                f"EOD {eod_id} ({int(np.count_nonzero(wrong))} of {len(wrong)} in this block do not)"
            )
    pair.close()
