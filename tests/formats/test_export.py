"""Data given to other programs: every document comes back."""

import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats import export
from gristmill.formats.data_sources import open_data_sources
from gristmill.formats.data_spec import parse_data_spec
from gristmill.formats.errors import CorpusError, FormatError, SettingsError
from gristmill.formats.export import export_pair, export_raw, open_export
from gristmill.formats.indexed import IndexedDataset
from gristmill.formats.indexed_writer import write_indexed
from gristmill.formats.manifest import read_manifest
from gristmill.formats.merge import merge_pairs

WritePair = Callable[..., str]
WriteRaw = Callable[..., Path]


def documents_of(shards: Any) -> list[list[int]]:
    found = []
    for shard in shards:
        pair = shard.open()
        bounds = pair.document_indices.tolist()
        found += [
            list(itertools.chain(*(pair.get(sequence).tolist() for sequence in range(first, stop))))
            for first, stop in itertools.pairwise(bounds)
        ]
        pair.close()
    return found


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.lists(st.integers(4, 200), max_size=9), max_size=6), min_size=1, max_size=4),
    st.integers(1, 30),
    st.sampled_from([1, 4, 1 << 20]),
)
def test_documents_come_back_from_raw_shards(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[list[int]]], shard_tokens: int, block: int
) -> None:
    folder = tmp_path_factory.mktemp("export")
    parts = [*parts, [[]]]
    for number, documents in enumerate(parts):
        with write_indexed(f"{folder}/in/{number}", np.dtype("uint16")) as writer:
            for document in documents:
                writer.add(np.array([*document, 3]), np.array([len(document) + 1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_BLOCK_TOKENS", block)
        value = export_raw(open_export(f"{folder}/in", eod_id=3), f"{folder}/out", shard_tokens=shard_tokens)
    expected = [[*document, 3] for documents in parts for document in documents]
    (source,) = open_data_sources(parse_data_spec(f"{folder}/out"))
    assert documents_of(source.shards) == expected
    starts = np.cumsum([0, *map(len, expected)])[:-1]
    assert value["shard_count"] == len({int(start) // shard_tokens for start in starts})
    assert json.loads((folder / "out" / "manifest.json").read_text()) == value
    for entry in value["shards"]:
        data = (folder / "out" / "shards" / entry["path"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert np.frombuffer(data, "<u4").tolist().count(3) == entry["n_eos"]


def test_a_corpus_is_exported_with_what_it_knows(small_corpus: Path, tmp_path: Path) -> None:
    manifest = read_manifest(str(small_corpus))
    data = open_export(str(small_corpus))
    assert [name for name, _ in data.sources] == ["web", "math"]
    value = export_raw(data, str(tmp_path / "raw"))
    assert (value["eos_token_id"], value["vocab_size"]) == (manifest.tokenizer.eod_id, manifest.tokenizer.vocabulary)
    assert value["tokenizer_name"] == manifest.tokenizer.fingerprint
    assert value["total_tokens"] == manifest.tokens
    assert {name: found["documents"] for name, found in value["sources"].items()} == {
        source.id: source.documents_kept for source in manifest.sources
    }
    (source,) = open_data_sources(parse_data_spec(str(tmp_path / "raw")))
    assert documents_of(source.shards) == documents_of(data.shards)
    facts = export_pair(open_export(str(small_corpus), sources=["math"]), str(tmp_path / "math"))
    merged = merge_pairs([str(small_corpus / "tokens" / "math")], str(tmp_path / "merged"))
    assert facts == merged


def test_raw_shards_become_a_pair_of_int32(write_raw: WriteRaw, tmp_path: Path) -> None:
    write_raw(tmp_path, [[5, 3, 900, 3], [7, 8, 3]])
    facts = export_pair(open_export(str(tmp_path)), str(tmp_path / "pair"))
    pair = IndexedDataset(str(tmp_path / "pair"))
    assert (pair.dtype.name, facts.documents, pair.read(0, 7).tolist()) == ("int32", 3, [5, 3, 900, 3, 7, 8, 3])
    assert not list((tmp_path / "shards").glob("*.idx")), "an export writes nothing beside its input"


def test_pairs_of_several_dtypes_become_int32(write_pair: WritePair, tmp_path: Path) -> None:
    write_pair(tmp_path / "in" / "a", [3, 4])
    write_pair(tmp_path / "in" / "b", [5], dtype="int64")
    write_pair(tmp_path / "same" / "b", [5], dtype="int64")
    export_pair(open_export(f"{tmp_path}/in"), str(tmp_path / "mixed"))
    export_pair(open_export(f"{tmp_path}/same"), str(tmp_path / "one"))
    assert IndexedDataset(str(tmp_path / "mixed")).dtype.name == "int32"
    assert IndexedDataset(str(tmp_path / "one")).dtype.name == "int64"


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("in", {}, "--eod-id is needed: raw shards tell documents apart by nothing else"),
        ("in", {"shard_tokens": 0, "eod_id": 1}, "shards of 0 tokens: at least 1 is needed"),
        ("in,1", {"eod_id": 1}, "in,1: weights say nothing about what is exported"),
        ("in", {"sources": ["web"]}, "--source web: .*in is no corpus, so it has no sources by name"),
        ("in", {"eod_id": 500, "vocabulary": 500}, "eod_id 500 lies outside the vocabulary of 500 ids"),
        ("CORPUS", {"sources": ["books"]}, "--source books: .* has no such source; there are web, math"),
        ("CORPUS", {"eod_id": 7}, "--eod-id 7: the corpus .* says 0; leave the option out"),
        ("CORPUS", {"vocabulary": 7}, "--vocabulary 7: the corpus .* says 303; leave the option out"),
    ],
)
def test_settings_that_cannot_be_followed(
    write_pair: WritePair,
    small_corpus: Path,
    tmp_path: Path,
    data: str,
    options: dict[str, Any],
    message: str,
) -> None:
    write_pair(tmp_path / "in" / "a", [3, 4])
    place = str(small_corpus) if data == "CORPUS" else f"{tmp_path}/{data}"
    shards = {"shard_tokens": options.pop("shard_tokens")} if "shard_tokens" in options else {}
    with pytest.raises(SettingsError, match=message):
        export_raw(open_export(place, **options), str(tmp_path / "out"), **shards)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"eod_id": 2},
            "a: the document that ends at token 2 ends with 1, not with the EOD 2; raw shards could not tell",
        ),
        ({"eod_id": 1, "vocabulary": 5}, r"a: token 0 is \d+; ids must be at least 0 and below 5"),
    ],
)
def test_data_that_raw_shards_cannot_hold(
    write_pair: WritePair, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    write_pair(tmp_path / "in" / "a", [3, 4])
    with pytest.raises(FormatError, match=message):
        export_raw(open_export(f"{tmp_path}/in", **options), str(tmp_path / "out"))
    assert list((tmp_path / "out").rglob("*.*")) == []


def test_nothing_is_overwritten(write_pair: WritePair, tmp_path: Path) -> None:
    prefix = write_pair(tmp_path / "in" / "a", [3, 4])
    data = open_export(prefix, eod_id=1)
    export_raw(data, str(tmp_path / "out"))
    with pytest.raises(SettingsError, match=r"manifest\.json: is there already; remove the folder, or name another"):
        export_raw(data, str(tmp_path / "out"))
    with pytest.raises(SettingsError, match=r"a\.bin: is there already"):
        export_pair(data, prefix)


def test_a_corpus_with_a_changed_shard_is_refused(small_corpus: Path, tmp_path: Path) -> None:
    import shutil

    corpus = shutil.copytree(small_corpus, tmp_path / "corpus")
    shards = [corpus / shard.path for shard in read_manifest(str(corpus)).sources[0].shards]
    for kind in (".bin", ".idx"):
        shutil.copy(shards[1].with_name(shards[1].name + kind), shards[0].with_name(shards[0].name + kind))
    with pytest.raises(CorpusError, match="tokens, but the manifest says"):
        open_export(str(corpus))
