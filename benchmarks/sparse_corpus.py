"""Corpora of any size that take no room: files with holes, in which only the first sample of a source can be read.

Every file has the size, the header and the ends that the real one would have, so opening such a corpus does what
opening a real one does; index pages read as zeros, which lead every row to that first sample.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SOURCES = 4
TOKENS = 2048  # of a document, and of a sample


def write_sparse_corpus(folder: Path, samples: int, shards: int) -> None:
    """Writes a corpus with an index set for so many training samples.

    Args:
        folder: where; must not hold a corpus yet.
        samples: of the training split, a blend of four sources.
        shards: of all sources together.
    """
    from gristmill.formats.index_set import IndexSettings, SplitRequest, commit_set, plan_members, set_path
    from gristmill.formats.index_sources import index_sources
    from gristmill.formats.manifest import Manifest, TokenizerEntry, write_manifest

    per_shard = -(-(int(samples / SOURCES * 1.01) + 8) // (shards // SOURCES)) + 2
    entries = [_source(folder, f"source{number}", shards // SOURCES, per_shard) for number in range(SOURCES)]
    sources = index_sources(tuple(entries))
    settings = IndexSettings(sequence_length=TOKENS, seed=1234, splits="1", train=SplitRequest(samples=samples))
    target = set_path(str(folder), settings, sources)
    plans = plan_members(settings, sources)
    reports = [_member(target, plan, shards // SOURCES * per_shard * TOKENS) for plan in plans]
    commit_set(target, settings, sources, reports, [_blend(target, settings, reports)])
    tokenizer = TokenizerEntry(
        fingerprint="", engine="", engine_version="", eod_id=0, eod_token="", pad_id=None, vocabulary=60_000
    )
    manifest = Manifest(
        name="sparse",
        recipe_digest="",
        software="",
        tokenizer=tokenizer,
        dtype="uint16",
        sources=tuple(entries),
        index_set=target.rsplit("/", 1)[-1],
    )
    write_manifest(str(folder), manifest)


def _source(folder: Path, name: str, shards: int, documents: int):  # type: ignore[no-untyped-def]  # as manifest.py has it
    from gristmill.formats.indexed import HEADER_BYTES, pack_header
    from gristmill.formats.manifest import RecordAddress, ShardEntry, SourceEntry
    from gristmill.formats.storage import FileFacts

    address = RecordAddress(input="", split=0, record=0)
    entries = []
    (folder / "tokens" / name).mkdir(parents=True)
    for shard in range(shards):
        path = f"tokens/{name}/{name}-{shard:05d}-of-{shards:05d}"
        with open(folder / f"{path}.bin", "wb") as file:
            file.truncate(2 * documents * TOKENS)
        with open(folder / f"{path}.idx", "wb") as file:
            file.write(pack_header(np.dtype("<u2"), documents, documents))
            for place in (0, 1, documents - 1):
                _put(file, HEADER_BYTES + 4 * place, TOKENS, "<i4")
                _put(file, HEADER_BYTES + 4 * documents + 8 * place, 2 * TOKENS * place, "<i8")
            _put(file, HEADER_BYTES + 12 * documents + 8 * documents, documents, "<i8")
        facts = [
            FileFacts((folder / f"{path}.{kind}").stat().st_size, f"{name}{shard}".rjust(64, "0"))
            for kind in ("bin", "idx")
        ]
        entries.append(
            ShardEntry(
                path=path,
                tokens=documents * TOKENS,
                documents=documents,
                eod_tokens=documents,
                bin=facts[0],
                idx=facts[1],
                first=address,
                last=address,
            )
        )
    return SourceEntry(
        id=name,
        weight=1 / SOURCES,
        max_epochs=None,
        inputs=(),
        documents_in=documents * shards,
        documents_kept=documents * shards,
        dropped={},
        counted={},
        shards=tuple(entries),
    )


def _member(target: str, plan, tokens: int):  # type: ignore[no-untyped-def]  # as index_member.py has it
    from dataclasses import replace

    from gristmill.formats.index_member import check_member, expected_report, member_file
    from gristmill.formats.member_store import index_layout

    epochs = check_member(plan, tokens)
    files = {}
    for index, (dtype, shape) in index_layout(plan, epochs).items():
        name = member_file(plan.split, plan.source, index)
        entries = {"document_index": {1: 1}, "sample_index": {2: 1}, "shuffle_index": {}}[index]
        files[name] = _sparse_npy(Path(target, name), np.dtype(dtype), shape, entries)
    return replace(expected_report(plan, epochs), files=files)


def _blend(target: str, settings, reports):  # type: ignore[no-untyped-def]  # as index_blend.py has it
    from gristmill.formats.index_blend import BlendReport, blend_file, blend_rule

    rule = blend_rule(settings, "train", reports)
    files = {}
    for index, dtype in (("dataset_index", np.int16), ("dataset_sample_index", np.int64)):
        name = blend_file("train", index)
        files[name] = _sparse_npy(Path(target, name), np.dtype(dtype), (rule.size,), {})
    return BlendReport(
        split="train", kind=rule.kind, weights=rule.weights, samples=rule.samples, size=rule.size, files=files
    )


def _sparse_npy(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], entries: dict[int, int]):  # type: ignore[no-untyped-def]
    from gristmill.formats.npy import npy_header, npy_size
    from gristmill.formats.storage import FileFacts

    path.parent.mkdir(parents=True, exist_ok=True)
    header, size = npy_header(dtype, shape), npy_size(dtype, shape)
    with open(path, "wb") as file:
        file.write(header)
        for place, value in entries.items():
            _put(file, len(header) + place * dtype.itemsize, value, dtype.str)
        file.truncate(size)
    return FileFacts(size, "0" * 64)


def _put(file, at: int, value: int, dtype: str) -> None:  # type: ignore[no-untyped-def]  # any binary file
    entry: NDArray[np.integer] = np.array([value], dtype)
    file.seek(at)
    file.write(entry.tobytes())
