"""Entries of a data line, opened as sources."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.data_sources import agreed_ids, open_data_sources
from gristmill.formats.data_spec import parse_data_spec
from gristmill.formats.errors import FormatError, InputError, SettingsError
from gristmill.formats.indexed_writer import write_indexed

WriteRaw = Callable[..., Path]


def write(prefix: Path, lengths: list[int]) -> None:
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with write_indexed(str(prefix), np.dtype("uint16")) as writer:
        writer.add(np.full(sum(lengths), 7, np.uint16), np.array(lengths, np.int64))


@pytest.fixture
def data(tmp_path: Path, write_raw: WriteRaw, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("web/b", "web/a", "code", "empty"):
        write(tmp_path / name, [] if name == "empty" else [3, len(name)])
    write_raw(tmp_path / "raw", [[5, 3], [6, 7, 3]])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_entry_is_a_source(data: Path) -> None:
    sources = open_data_sources(parse_data_spec("web,0.5;idx|web/a:code,0.25;raw,0.25"))
    assert [source.id for source in sources] == ["web", "a", "raw"]
    assert [[shard.prefix for shard in source.shards] for source in sources] == [
        ["web/a", "web/b"],
        ["code", "web/a"],
        ["raw/shards/shard_00000", "raw/shards/shard_00001"],
    ]
    member = sources[2].member_source
    assert (member.weight, member.sequences, [shard.sequences for shard in member.shards]) == (0.25, 2, [1, 1])
    assert [shard.dtype for shard in sources[2].shards] == ["uint32", "uint32"]


def test_names_tell_sources_apart(data: Path) -> None:
    sources = open_data_sources(parse_data_spec("web/a;web;./web/a;raw/manifest.json;raw/"))
    assert [source.id for source in sources] == ["a", "web", "a-2", "raw", "raw-2"]


def test_where_raw_indices_are_kept(data: Path) -> None:
    open_data_sources(parse_data_spec("raw"), cache_folder="cache", write=False)
    assert not (data / "cache").exists()
    open_data_sources(parse_data_spec("raw"), cache_folder="cache")
    open_data_sources(parse_data_spec("named|raw"), cache_folder="cache")
    assert len(list((data / "cache").glob("*.idx"))) == len(list((data / "named").glob("*.idx"))) == 2
    assert not list((data / "raw" / "shards").glob("*.idx"))


def test_the_unit_is_part_of_the_identity(data: Path) -> None:
    entries = parse_data_spec("web;raw")
    sequences = open_data_sources(entries)
    documents = open_data_sources(entries, unit="document")
    for one, other in zip(sequences, documents, strict=True):
        assert [shard.sequences for shard in one.shards] == [shard.sequences for shard in other.shards]
        assert not {shard.identity for shard in one.shards} & {shard.identity for shard in other.shards}


@pytest.mark.parametrize(
    ("spec", "options", "error", "message"),
    [
        ("raw:web", {}, SettingsError, r"raw:web: raw token shards and \.bin/\.idx pairs in one entry"),
        ("raw:raw", {}, SettingsError, "raw:raw: the same raw token shards twice"),
        ("web:web/b", {}, SettingsError, "web/b: named twice"),
        ("empty", {}, InputError, "empty: 1 shards without a single token"),
        ("gone", {}, InputError, r"gone: neither this folder nor gone\.idx exists"),
        ("raw", {"eod_id": 4}, FormatError, "eos_token_id is 3, but eod_id=4 is asked for"),
    ],
)
def test_what_is_refused(data: Path, spec: str, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_data_sources(parse_data_spec(spec), **options)


@pytest.mark.parametrize(
    ("spec", "eod", "vocabulary", "expected"),
    [
        ("web", 7, None, (7, None)),
        ("web", 7, 8, (7, 8)),
        ("raw", None, None, (3, 1000)),
        ("raw", 3, 2000, (3, 2000)),
        ("raw;web", None, None, (3, None)),
    ],
)
def test_ids_that_all_agree_on(
    data: Path, spec: str, eod: int | None, vocabulary: int | None, expected: tuple[int, int | None]
) -> None:
    sources = open_data_sources(parse_data_spec(spec), vocabulary=vocabulary)
    assert agreed_ids(sources, eod, vocabulary) == expected


@pytest.mark.parametrize(
    ("spec", "eod", "vocabulary", "message"),
    [
        ("web", None, None, "eod_id is needed: the id that closes each document"),
        ("web", 7, 7, "eod_id 7 lies outside the vocabulary of 7 ids"),
        ("web", -1, None, "eod_id -1 lies outside the vocabulary"),
        ("raw;other", None, None, "the data end their documents with different ids: 3, 5"),
        ("raw;web", 7, None, "different ids: 3, 7"),
    ],
)
def test_ids_that_contradict(
    data: Path, write_raw: WriteRaw, spec: str, eod: int | None, vocabulary: int | None, message: str
) -> None:
    write_raw(data / "other", [[4, 5]], eod=5)
    sources = open_data_sources(parse_data_spec(spec), vocabulary=vocabulary)
    with pytest.raises(SettingsError, match=message):
        agreed_ids(sources, eod, vocabulary)
