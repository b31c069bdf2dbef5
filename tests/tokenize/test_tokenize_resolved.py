"""What a corpus keeps of its tokenizer: the dtype rule, the two files, and what happens when they are touched."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.errors import CorpusError, StorageError, TokenizerError
from gristmill.tokenize.load import resolve_tokenizer
from gristmill.tokenize.resolved import (
    ResolvedTokenizer,
    fingerprint_of,
    load_resolved,
    token_dtype,
    write_resolved,
)

END = "<|endoftext|>"


@pytest.mark.parametrize(
    ("vocabulary", "dtype"),
    [(1, "uint16"), (65_499, "uint16"), (65_500, "int32"), (65_535, "int32"), (65_536, "int32"), (65_537, "int32")],
)
def test_megatrons_limit_decides_the_dtype(
    vocabulary: int, dtype: str, word_level: Callable[[int], str], tmp_path: Path
) -> None:
    assert token_dtype(vocabulary) == dtype
    if vocabulary > 1:
        path = tmp_path / "words.json"
        path.write_text(word_level(vocabulary))
        resolved = resolve_tokenizer(str(path), "<eos>")
        assert (resolved.vocabulary, resolved.eod_id, resolved.dtype) == (vocabulary, vocabulary - 1, dtype)


def test_ids_beyond_32_signed_bits_are_refused() -> None:
    assert token_dtype(2**31) == "int32"
    with pytest.raises(TokenizerError, match="largest id is 2147483648: ids are stored in 32 signed bits"):
        token_dtype(2**31 + 1)


def test_the_fingerprint_covers_text_and_eod() -> None:
    prints = {fingerprint_of(text, eod) for text in (b"{}", b"{ }") for eod in (0, 1)}
    assert len(prints) == 4
    document = json.dumps(
        {"eod_id": 7, "tokenizer_sha256": hashlib.sha256(b"x").hexdigest()}, sort_keys=True, separators=(",", ":")
    )
    assert fingerprint_of(b"x", 7) == hashlib.sha256(document.encode()).hexdigest()


@pytest.mark.parametrize("folder", ["{tmp}/corpus/tokenizer", "memory://corpus/tokenizer"])
def test_written_and_read_back(
    folder: str, byte_bpe: str, tmp_path: Path, resolve: Callable[..., ResolvedTokenizer]
) -> None:
    resolved = resolve(byte_bpe)
    place = folder.format(tmp=tmp_path)
    written = write_resolved(resolved, place)
    assert [name for name, _ in written] == ["tokenizer.json", "facts.json"]
    assert written[0][1].sha256 == hashlib.sha256(resolved.json_text).hexdigest()
    again = load_resolved(place)
    assert dataclasses.replace(again, source=resolved.source) == resolved
    assert again.source == f"{place}/tokenizer.json"


def test_files_say_nothing_about_where_the_tokenizer_came_from(byte_bpe: str, tmp_path: Path, unigram: str) -> None:
    folders = []
    for name in ("one", "another-place"):
        path = tmp_path / name / "tokenizer.json"
        path.parent.mkdir()
        path.write_text(byte_bpe)
        folder = tmp_path / f"{name}.out"
        write_resolved(resolve_tokenizer(str(path), END), str(folder))
        folders.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert folders[0] == folders[1]
    assert str(tmp_path).encode() not in b"".join(folders[0].values())


def test_repr_is_short(byte_bpe: str, resolve: Callable[..., ResolvedTokenizer]) -> None:
    resolved = resolve(byte_bpe)
    assert repr(resolved).startswith(f"ResolvedTokenizer({resolved.fingerprint[:7]}, vocabulary=1500, eod='{END}' (0)")
    assert len(repr(resolved)) < 400


@pytest.fixture
def written(byte_bpe: str, tmp_path: Path, resolve: Callable[..., ResolvedTokenizer]) -> Path:
    folder = tmp_path / "tokenizer"
    write_resolved(resolve(byte_bpe), str(folder))
    return folder


def test_a_changed_tokenizer_is_refused(written: Path) -> None:
    path = written / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b'"version":"1.0"', b'"version":"1.1"'))
    with pytest.raises(CorpusError, match="the tokenizer was changed after the corpus was prepared"):
        load_resolved(str(written))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2 where 1 is known"),
        ({"eod_id": 1}, "fingerprint .* does not follow from the tokenizer and eod_id 1"),
        ({"fingerprint": "00"}, "fingerprint '00' does not follow"),
        ({"eod_id": 1500}, "eod_id 1500 is not below the vocabulary 1500"),
        ({"eod_id": True}, "eod_id is True, which it cannot be"),
        ({"dtype": "int32"}, "dtype int32 does not suit a vocabulary of 1500"),
        ({"dtype": "uint8"}, "dtype is 'uint8', which it cannot be"),
        ({"special_tokens": [1]}, r"special_tokens is \[1\], which it cannot be"),
        ({"pad_id": "x"}, "pad_id is 'x', which it cannot be"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_changed_facts_are_refused(written: Path, change: dict[str, Any], message: str) -> None:
    path = written / "facts.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CorpusError, match=message):
        load_resolved(str(written))


def test_damaged_or_absent_files_are_named(written: Path) -> None:
    (written / "facts.json").write_text("{")
    with pytest.raises(CorpusError, match=r"facts\.json: not JSON"):
        load_resolved(str(written))
    (written / "facts.json").write_text("[]")
    with pytest.raises(CorpusError, match=r"facts\.json: version None where 1 is known"):
        load_resolved(str(written))
    (written / "facts.json").unlink()
    with pytest.raises(StorageError, match=r"facts\.json: cannot be opened: No such file"):
        load_resolved(str(written))
