"""The manifest: reads back, is the commit point, and is refused when anything in it contradicts anything else."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import CorpusError, FormatError
from gristmill.formats.manifest import (
    FORMAT,
    MANIFEST_NAME,
    VERSION,
    InputEntry,
    Manifest,
    RecordAddress,
    ShardEntry,
    SourceEntry,
    TokenizerEntry,
    read_manifest,
    write_manifest,
)
from gristmill.formats.storage import FileFacts, file_facts, read_bytes, write_bytes


def shard(path: str, documents: int, tokens: int, itemsize: int = 2) -> ShardEntry:
    return ShardEntry(
        path=path,
        tokens=tokens,
        documents=documents,
        eod_tokens=documents,
        bin=FileFacts(tokens * itemsize, "b" * 64),
        idx=FileFacts(42 + 20 * documents, "c" * 64),
        first=RecordAddress(input="a.jsonl", split=0, record=0),
        last=RecordAddress(input="ä/b.jsonl.gz", split=3, record=17),
    )


def source(name: str, *shards: ShardEntry) -> SourceEntry:
    kept = sum(each.documents for each in shards)
    return SourceEntry(
        id=name,
        weight=0.25,
        max_epochs=None,
        inputs=(
            InputEntry(path="a.jsonl", size=100, xxh3="0" * 32),
            InputEntry(path="ä/b.jsonl.gz", size=7, xxh3="1" * 32),
        ),
        documents_in=kept + 5,
        documents_kept=kept,
        dropped={"empty": 2, "exact_duplicate": 3},
        counted={"control_hits": 4},
        shards=shards,
    )


SHARDS = (shard("tokens/web/web-00000-of-00002", 3, 10), shard("tokens/web/web-00001-of-00002", 1, 4))
GOOD = Manifest(
    name="tiny",
    recipe_digest="a" * 64,
    software="0.1.0",
    tokenizer=TokenizerEntry(
        fingerprint="f" * 64,
        engine="fastokens",
        engine_version="0.3.5",
        eod_id=0,
        eod_token="<|endoftext|>",
        pad_id=None,
        vocabulary=320,
    ),
    dtype="uint16",
    sources=(source("web", *SHARDS), source("math", shard("tokens/math/math-00000-of-00001", 2, 6))),
    index_set="L16-s1234-0123456789ab",
)


@pytest.fixture(params=["local", "memory"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


def test_a_manifest_reads_back(corpus: str) -> None:
    facts = write_manifest(corpus, GOOD)
    assert facts == file_facts(f"{corpus}/{MANIFEST_NAME}")
    manifest = read_manifest(corpus)
    assert manifest == GOOD
    assert (manifest.tokens, manifest.documents) == (20, 6)
    assert manifest.sources[0].tokens == 14
    assert manifest.token_dtype == np.uint16
    assert manifest.source("math") is manifest.sources[1]
    value = json.loads(read_bytes(f"{corpus}/{MANIFEST_NAME}"))
    assert (value["format"], value["version"], value["tokens"], value["documents"]) == (FORMAT, VERSION, 20, 6)


def test_equal_manifests_are_equal_files(corpus: str) -> None:
    other = dataclasses.replace(GOOD, sources=tuple(source(each.id, *each.shards) for each in GOOD.sources))
    reordered = dataclasses.replace(other.sources[0], dropped={"exact_duplicate": 3, "empty": 2})
    other = dataclasses.replace(other, sources=(reordered, other.sources[1]))
    assert write_manifest(f"{corpus}/one", GOOD) == write_manifest(f"{corpus}/other", other)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_sound_manifest_reads_back(data: st.DataObject) -> None:
    sources = []
    for number in range(data.draw(st.integers(0, 3))):
        counts = data.draw(st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 10**9)), max_size=3))
        shards = tuple(
            shard(f"tokens/{number}/{place}", documents, documents + more, 4)
            for place, (documents, more) in enumerate(counts)
        )
        weight = data.draw(st.none() | st.floats(0, 1e300))
        sources.append(dataclasses.replace(source(data.draw(st.text()) + str(number), *shards), weight=weight))
    manifest = dataclasses.replace(
        GOOD,
        dtype="int32",
        name=data.draw(st.text()),
        sources=tuple(sources),
        index_set=data.draw(st.none() | st.text()),
    )
    write_manifest("memory://any/manifest", manifest)
    assert read_manifest("memory://any/manifest") == manifest


def test_a_source_that_is_not_there() -> None:
    with pytest.raises(CorpusError, match=r"source 'code' is not in the corpus; it has \['web', 'math'\]"):
        GOOD.source("code")


def test_a_folder_without_a_manifest_is_no_corpus(corpus: str) -> None:
    with pytest.raises(CorpusError, match=r"/nowhere: no such folder; a corpus is made by `gristmill prepare RECIPE`"):
        read_manifest(f"{corpus}/nowhere")
    write_bytes(f"{corpus}/tokens/web/web-00000-of-00001.bin", b"")
    with pytest.raises(CorpusError, match=r"no manifest\.json, so this is no finished corpus; run `gristmill prepare`"):
        read_manifest(corpus)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "damaged manifest: JSONDecodeError"),
        (b"[]", "damaged manifest: TypeError"),
        (b"{}", "damaged manifest: KeyError: 'format'"),
        (b'{"\xff": 1}', "damaged manifest: UnicodeDecodeError"),
        (b'{"format": "x", "version": 1}', "format 'x'; a corpus manifest says 'gristmill-corpus'"),
        (b'{"format": "gristmill-corpus", "version": 2}', "version 2; this software reads 1"),
        (b'{"format": "gristmill-corpus", "version": 1}', "damaged manifest: KeyError: 'name'"),
    ],
    ids=str,
)
def test_what_is_no_manifest_is_named(corpus: str, data: bytes, message: str) -> None:
    write_bytes(f"{corpus}/{MANIFEST_NAME}", data)
    with pytest.raises(FormatError, match=rf"/manifest\.json: {message}"):
        read_manifest(corpus)


def at(*path: str | int) -> Callable[[Any, Any], None]:
    """Puts a value at a place of the manifest; `...` removes the key."""

    def put(value: Any, new: Any) -> None:
        for step in path[:-1]:
            value = value[step]
        if new is ...:
            del value[path[-1]]
        else:
            value[path[-1]] = new

    return put


SHARD = ("sources", 0, "shards", 0)
CONTRADICTIONS: dict[str, tuple[Callable[[Any, Any], None], Any, str]] = {
    "tokens": (at("tokens"), 21, "says 21 tokens, but its sources hold 20"),
    "documents": (at("documents"), 5, "says 5 documents, but its sources hold 6"),
    "dtype": (at("dtype"), "uint8", "dtype 'uint8'; the rule is uint16 or int32"),
    "wider dtype": (at("dtype"), "int32", r"shard tokens/web/web-00000-of-00002: 10 int32 tokens are not 20 bytes"),
    "EOD": (at("tokenizer", "eod_id"), 320, "EOD id 320 lies outside the vocabulary of 320"),
    "negative EOD": (at("tokenizer", "eod_id"), -1, "EOD id -1 lies outside the vocabulary of 320"),
    "vocabulary": (
        at("tokenizer", "vocabulary"),
        65_537,
        "a vocabulary of 65537 does not fit uint16; its largest id is 65535",
    ),
    "in": (at("sources", 1, "documents_in"), 8, "source 'math': 8 documents in, but 2 kept and 5 dropped"),
    "kept": (at("sources", 1, "documents_kept"), 1, "source 'math': 7 documents in, but 1 kept and 5 dropped"),
    "dropped": (at("sources", 0, "dropped", "empty"), 1, "source 'web': 9 documents in, but 4 kept and 4 dropped"),
    "no shard": (at("sources", 1, "shards"), [], "source 'math': its shards hold 0 documents, but 2 were kept"),
    "same source": (at("sources", 1, "id"), "web", "two of its sources are called 'web'"),
    "same shard": (
        at("sources", 0, "shards", 1, "path"),
        "tokens/web/web-00000-of-00002",
        "two of its shards are called 'tokens/web/web-00000-of-00002'",
    ),
    "bin size": (
        at(*SHARD, "bin", "size"),
        21,
        "shard tokens/web/web-00000-of-00002: 10 uint16 tokens are not 21 bytes",
    ),
    "idx size": (at(*SHARD, "idx", "size"), 101, "the index of 3 documents has 102 bytes, not 101"),
    "too few EODs": (at(*SHARD, "eod_tokens"), 2, "2 EODs in 10 tokens for 3 documents; each document ends with one"),
    "too many EODs": (at(*SHARD, "eod_tokens"), 11, "11 EODs in 10 tokens for 3 documents"),
    "absolute path": (
        at(*SHARD, "path"),
        "/etc/passwd",
        "shard /etc/passwd: lies outside the corpus; the rule is a path",
    ),
    "upward path": (at(*SHARD, "path"), "tokens/../../x", r"shard tokens/\.\./\.\./x: lies outside the corpus"),
    "URL": (at(*SHARD, "path"), "gs://b/x", "shard gs://b/x: lies outside the corpus"),
    "no tokenizer": (at("tokenizer"), ..., "damaged manifest: KeyError: 'tokenizer'"),
    "no vocabulary": (at("tokenizer", "vocabulary"), ..., "damaged manifest: TypeError: .*'vocabulary'"),
    "surplus key": (at("sources", 0, "colour"), "red", "damaged manifest: TypeError: .*'colour'"),
    "no size": (at(*SHARD, "bin", "size"), ..., "damaged manifest: KeyError: 'size'"),
    "no total": (at("tokens"), ..., "damaged manifest: KeyError: 'tokens'"),
    "text for a number": (at("tokenizer", "eod_id"), "0", "damaged manifest: TypeError"),
    "list for counts": (at("sources", 0, "dropped"), [1], "damaged manifest: AttributeError"),
    "text for a size": (at(*SHARD, "bin", "size"), "many", "damaged manifest: ValueError"),
    "null for a source": (at("sources", 0), None, "damaged manifest: TypeError"),
    "number for sources": (at("sources"), 3, "damaged manifest: TypeError"),
    "address": (at(*SHARD, "first"), {}, "damaged manifest: TypeError: .*'input', 'split', and 'record'"),
}


@pytest.mark.parametrize(("put", "new", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_are_refused(tmp_path: Path, put: Callable[[Any, Any], None], new: Any, message: str) -> None:
    write_manifest(str(tmp_path), GOOD)
    value = json.loads((tmp_path / MANIFEST_NAME).read_bytes())
    put(value, new)
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(value))
    with pytest.raises(FormatError, match=rf"^{tmp_path}/manifest\.json: (source '\w+': )?(shard \S+ )?{message}"):
        read_manifest(str(tmp_path))
