"""Manifests of raw token shards: what they say, and each contradiction by its name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.errors import FormatError, InputError
from gristmill.formats.raw_manifest import find_raw_manifest, read_raw_manifest

WriteRaw = Callable[..., Path]
SHARDS = [[5, 6, 3, 7, 3], [8, 3]]


def test_what_a_manifest_says(write_raw: WriteRaw, tmp_path: Path) -> None:
    path = str(write_raw(tmp_path, SHARDS))
    manifest = read_raw_manifest(path)
    assert (manifest.eod_id, manifest.vocabulary, manifest.dtype) == (3, 1000, np.dtype("<u4"))
    assert [(shard.tokens, shard.eods) for shard in manifest.shards] == [(5, 2), (2, 1)]
    assert [shard.path for shard in manifest.shards] == [
        f"{tmp_path}/shards/shard_0000{number}.bin" for number in (0, 1)
    ]
    assert read_raw_manifest(path, eod_id=3, vocabulary=70_000).vocabulary == 70_000


@pytest.mark.parametrize("shards_dir", ["shards", "data/shards", "."])
@pytest.mark.parametrize("told", ["as it is", "its last part", "nothing"])
def test_shards_are_found_beside_the_manifest(
    write_raw: WriteRaw, tmp_path: Path, shards_dir: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may be named from the manifest's folder, from the one where the writer ran, or not at all."""
    path = write_raw(tmp_path, SHARDS, shards_dir=shards_dir)
    value = json.loads(path.read_text())
    if told == "nothing":
        for shard in value["shards"]:
            shard["path"] = f"{shards_dir}/{shard['path']}"
        del value["shards_dir"]
    elif told == "its last part":
        value["shards_dir"] = f"elsewhere/{shards_dir}"
        if shards_dir == "data/shards":
            (tmp_path / "data" / "shards").rename(tmp_path / "shards")
    path.write_text(json.dumps(value))
    monkeypatch.chdir(tmp_path)
    for name in (str(path), "manifest.json"):
        assert len(read_raw_manifest(name).shards) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"eos_token_id": 1000},
            "eos_token_id 1000 lies outside the vocabulary of 1000 ids; where the vocabulary is la",
        ),
        ({"pad_token_id": 128_002}, "pad_token_id 128002 lies outside the vocabulary of 1000 ids"),
        ({"eos_token_id": None}, "eos_token_id is missing"),
        ({"eos_token_id": "3"}, "eos_token_id is '3'; the rule is an integer of at least 0"),
        ({"vocab_size": True}, "vocab_size is True; the rule is an integer"),
        ({"dtype": "float32"}, "dtype is 'float32'; raw shards hold uint16 or uint32"),
        ({"dtype": None}, "dtype is None"),
        ({"dtype": "uint16"}, r"shard 0, shard_00000\.bin: has 20 bytes, but 5 uint16 tokens take 10"),
        ({"vocab_size": 2**31 + 1}, "a vocabulary of 2147483649 ids does not fit uint32 tokens read as int32"),
        ({"shard_count": 3}, "shard_count is 3, but the shards listed make 2"),
        ({"total_tokens": 8}, "total_tokens is 8, but the shards listed make 7"),
        ({"shards": []}, "shards lists none"),
        ({"shards": {"path": "x"}}, "shards is dict; the rule is a list of objects"),
        ({"shards_dir": "elsewhere"}, r"shard 1, shard_00001\.bin: missing; looked in .*elsewhere, .*, elsewhere"),
    ],
)
def test_contradictions_are_named(write_raw: WriteRaw, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = str(write_raw(tmp_path, SHARDS))
    Path(path).write_text(json.dumps(json.loads(Path(path).read_text()) | changes))
    with pytest.raises(FormatError, match=message) as caught:
        read_raw_manifest(path)
    assert str(caught.value).startswith(f"{path}: the manifest of raw token shards cannot be followed:\n  - ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_tokens": 4}, r"shard 0, shard_00000\.bin: has 20 bytes, but 4 uint32 tokens take 16"),
        ({"n_tokens": None}, "n_tokens is missing"),
        ({"n_tokens": -5}, "n_tokens is -5"),
        ({"n_eos": 6}, "n_eos 6 exceeds n_tokens 5"),
        ({"index": 1}, "index is 1; the shards must be listed in order, from 0"),
        ({"sha256": "abc"}, "sha256 is 'abc'; the rule is 64 hexadecimal digits"),
        ({"path": "shard_00009.bin"}, r"shard 0, shard_00009\.bin: missing; looked in"),
        ({"path": "shard_00001.bin", "n_tokens": 2, "n_eos": 1}, r"shard_00001\.bin is listed 2 times"),
        ({"path": None}, "shard 0: path is None; the rule is the name of a file"),
    ],
)
def test_contradictions_of_one_shard_are_named(
    write_raw: WriteRaw, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write_raw(tmp_path, SHARDS)
    value = json.loads(path.read_text())
    value["shards"][0] |= changes
    path.write_text(json.dumps(value))
    with pytest.raises(FormatError, match=message):
        read_raw_manifest(str(path))


def test_all_contradictions_are_listed_at_once(write_raw: WriteRaw, tmp_path: Path) -> None:
    path = write_raw(tmp_path, SHARDS, vocab_size=3, pad_token_id=9, shard_count=7, total_tokens=1)
    with pytest.raises(FormatError) as caught:
        read_raw_manifest(str(path), eod_id=4)
    assert len(str(caught.value).splitlines()) == 1 + 5
    assert "eos_token_id is 3, but eod_id=4 is asked for; documents are cut at the manifest's" in str(caught.value)


def test_a_larger_vocabulary_of_the_callers_mends_the_known_contradiction(write_raw: WriteRaw, tmp_path: Path) -> None:
    path = str(write_raw(tmp_path, [[5, 128_009]], eod=128_009, vocabulary=128_000, pad_token_id=128_002))
    with pytest.raises(FormatError, match="eos_token_id 128009 lies outside the vocabulary of 128000 ids"):
        read_raw_manifest(path)
    assert read_raw_manifest(path, vocabulary=128_256).eod_id == 128_009


def test_which_paths_name_a_manifest(write_raw: WriteRaw, tmp_path: Path) -> None:
    path = write_raw(tmp_path / "raw", SHARDS)
    assert find_raw_manifest(str(path)) == find_raw_manifest(str(path.parent)) == str(path)
    assert find_raw_manifest(str(tmp_path)) is None
    (tmp_path / "manifest.json").write_text('{"other": 1}')
    assert find_raw_manifest(str(tmp_path)) is None
    with pytest.raises(InputError, match="no manifest of raw token shards: it has no list of shards"):
        find_raw_manifest(str(tmp_path / "manifest.json"))
    (tmp_path / "manifest.json").write_text('{"format": "gristmill-corpus", "shards": []}')
    with pytest.raises(
        InputError, match=r"a corpus that `gristmill prepare` made \('gristmill-corpus'\): open it with"
    ):
        find_raw_manifest(str(tmp_path))
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="no readable JSON"):
        find_raw_manifest(str(tmp_path))
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(FormatError, match="a JSON object is expected"):
        read_raw_manifest(str(tmp_path / "manifest.json"))
