"""Indices of raw token shards: right, made once, never served for other tokens."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats import raw_index
from gristmill.formats.errors import FormatError
from gristmill.formats.indexed import IndexedDataset, PairFiles
from gristmill.formats.raw_index import index_raw_shards, scan_raw_shard
from gristmill.formats.raw_manifest import RawManifest, read_raw_manifest

WriteRaw = Callable[..., Path]


def documents(tokens: list[int], eod: int) -> list[list[int]]:
    """The documents, from the text of the rule."""
    found: list[list[int]] = [[]]
    for token in tokens:
        found[-1].append(token)
        if token == eod:
            found.append([])
    return found if found[-1] else found[:-1]


def opened(manifest: RawManifest, folder: str | None = None, *, write: bool = True) -> list[IndexedDataset]:
    files = [files for _, files in index_raw_shards(manifest, folder, write=write)]
    return [IndexedDataset(one.tokens, files=one) for one in files]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 5), max_size=20), min_size=1, max_size=3),
    st.sampled_from(["uint16", "uint32"]),
    st.sampled_from([4, 12, 1 << 20]),
)
def test_documents_end_where_the_eos_is(
    write_raw: WriteRaw,
    tmp_path_factory: pytest.TempPathFactory,
    shards: list[list[int]],
    dtype: str,
    block: int,
) -> None:
    manifest = read_raw_manifest(str(write_raw(tmp_path_factory.mktemp("raw"), shards, dtype=dtype)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_index, "_READ_BYTES", block)
        pairs = opened(manifest)
    for pair, tokens in zip(pairs, shards, strict=True):
        assert pair.dtype.name == dtype
        assert [pair.get(number).tolist() for number in range(len(pair))] == documents(tokens, 3)
        pair.close()


def test_a_raw_file_with_its_index_is_a_pair_like_any_other(write_raw: WriteRaw, tmp_path: Path) -> None:
    manifest = read_raw_manifest(str(write_raw(tmp_path, [[5, 3, 900_000, 7, 3]], vocabulary=1_000_000)))
    index_raw_shards(manifest)
    before = {path.name: path.read_bytes() for path in (tmp_path / "shards").iterdir()}
    assert sorted(before) == ["shard_00000.bin", "shard_00000.idx", "shard_00000.idx.json"]
    pair = IndexedDataset(str(tmp_path / "shards" / "shard_00000"))
    assert (pair.dtype, pair.get(1).tolist()) == (np.dtype(np.int32), [900_000, 7, 3])
    index_raw_shards(manifest)
    assert {path.name: path.read_bytes() for path in (tmp_path / "shards").iterdir()} == before


@pytest.mark.parametrize("beside", [True, False])
def test_an_index_is_made_once_and_again_when_anything_changed(
    write_raw: WriteRaw, tmp_path: Path, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[str] = []

    def counting(path: str, dtype: np.dtype[np.integer], eod_id: int) -> raw_index.RawFacts:
        scans.append(path)
        return scan_raw_shard(path, dtype, eod_id)

    monkeypatch.setattr(raw_index, "scan_raw_shard", counting)
    folder = None if beside else str(tmp_path / "cache")

    def lengths(**changes: object) -> list[list[int]]:
        path = str(write_raw(tmp_path, [[5, 3, 7, 8, 3], [9, 3]], **{"sha256": None, **changes}))
        return [pair.lengths.tolist() for pair in opened(read_raw_manifest(path), folder)]

    assert lengths() == lengths() == [[2, 3], [2]]
    assert len(scans) == 2
    times = (tmp_path / "shards" / "shard_00000.bin").stat()
    assert lengths(eod=8) == [[4, 1], [2]]
    assert len(scans) == 4
    path = write_raw(tmp_path, [[5, 3, 7, 3, 8], [9, 3]])  # as many tokens, and as many EOS
    os.utime(tmp_path / "shards" / "shard_00000.bin", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [pair.lengths.tolist() for pair in opened(read_raw_manifest(str(path)), folder)] == [[2, 2, 1], [2]]
    index = Path(str(index_raw_shards(read_raw_manifest(str(path)), folder)[1][1].index))
    damaged = bytearray(index.read_bytes())
    damaged[34] ^= 1
    index.write_bytes(damaged)
    done = len(scans)
    assert [pair.lengths.tolist() for pair in opened(read_raw_manifest(str(path)), folder)] == [[2, 2, 1], [2]]
    assert scans[done:] == [f"{tmp_path}/shards/shard_00001.bin"]
    Path(f"{index}.json").write_text("{}")
    assert [pair.lengths.tolist() for pair in opened(read_raw_manifest(str(path)), folder)] == [[2, 2, 1], [2]]
    assert len(scans) == done + 2


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "sha256",
            "0" * 64,
            r"shard_00000\.bin: sha256 is \w{64}, but .*manifest\.json says 0{64}: changed or damaged",
        ),
        ("n_eos", 1, r"shard_00000\.bin: holds the EOS 3 2 times, but .*manifest\.json says 1"),
    ],
)
@pytest.mark.parametrize("indexed_before", [False, True])
def test_what_only_a_pass_over_the_tokens_can_tell(
    write_raw: WriteRaw, tmp_path: Path, field: str, value: object, message: str, indexed_before: bool
) -> None:
    path = write_raw(tmp_path, [[5, 3, 7, 8, 3]])
    if indexed_before:
        index_raw_shards(read_raw_manifest(str(path)))
    changed = json.loads(path.read_text())
    changed["shards"][0][field] = value
    path.write_text(json.dumps(changed))
    with pytest.raises(FormatError, match=message):
        index_raw_shards(read_raw_manifest(str(path)))


@pytest.mark.parametrize("indexed_before", [False, True])
def test_an_id_outside_the_vocabulary_is_named(write_raw: WriteRaw, tmp_path: Path, indexed_before: bool) -> None:
    path = str(write_raw(tmp_path, [[5, 3, 999, 3]]))
    if indexed_before:
        index_raw_shards(read_raw_manifest(path))
    with pytest.raises(FormatError, match="holds the id 999, but ids must be below 999; another vocabulary or dtype"):
        index_raw_shards(read_raw_manifest(path, vocabulary=999))


def test_ids_beyond_int32_are_refused_even_without_a_vocabulary(write_raw: WriteRaw, tmp_path: Path) -> None:
    path = str(write_raw(tmp_path, [[2**31, 3]], vocabulary=None))
    with pytest.raises(FormatError, match="holds the id 2147483648, but ids must be below 2147483648"):
        index_raw_shards(read_raw_manifest(path))


def test_an_index_of_somebody_elses_is_not_overwritten(write_raw: WriteRaw, tmp_path: Path) -> None:
    manifest = read_raw_manifest(str(write_raw(tmp_path, [[5, 3]])))
    index = tmp_path / "shards" / "shard_00000.idx"
    index.write_bytes(b"another")
    with pytest.raises(FormatError, match=r"shard_00000\.idx: an index that is not that of .* and was not made here"):
        index_raw_shards(manifest)
    assert index.read_bytes() == b"another"
    assert len(index_raw_shards(manifest, str(tmp_path / "cache"))) == 1
    index.write_bytes(scan_raw_shard(manifest.shards[0].path, manifest.dtype, 3).index)
    assert index_raw_shards(manifest)[0][1].index == str(index)


def test_where_nothing_may_be_written_the_index_stays_in_memory(write_raw: WriteRaw, tmp_path: Path) -> None:
    manifest = read_raw_manifest(str(write_raw(tmp_path, [[5, 3]])))
    assert isinstance(index_raw_shards(manifest, write=False)[0][1].index, bytes)
    assert not (tmp_path / "shards" / "shard_00000.idx").exists()
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="kept in memory and made anew at every start: name a folder that can be wri"):
        _, files = index_raw_shards(manifest, str(tmp_path / "file" / "cache"))[0]
    assert isinstance(files, PairFiles)
    assert IndexedDataset("raw", files=files).get(0).tolist() == [5, 3]
