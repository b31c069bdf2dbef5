"""What `gristmill inspect` shows, and for which paths."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from gristmill.formats.errors import CorpusError, FormatError, SettingsError
from gristmill.formats.indexed_writer import write_indexed
from gristmill.runtime import inspect as inspect_module
from gristmill.runtime.inspect import LengthCounts, inspect


def test_a_corpus(make_corpus: Any, blended_corpus: str) -> None:
    text = inspect(blended_corpus, documents=2)
    written = make_corpus.documents[blended_corpus]
    lengths = {name: [len(document) for shard in shards for document in shard] for name, shards in written.items()}
    total = sum(map(sum, lengths.values()))
    assert f"{blended_corpus}: corpus 'tiny', finished" in text
    assert f"{total:,} tokens (uint16) in 90 documents; 6 shards of 2 sources" in text
    assert "500 ids, by none 0; EOD is 1 '<eod>'" in text
    for name, weight in (("web", 0.7), ("code", 0.3)):
        assert f"source {name!r}, weight {weight}: {sum(lengths[name]):,} tokens in {len(lengths[name])} docum" in text
        values = lengths[name]
        assert (
            f"tokens of a document: min {min(values)}, median {np.median(values):.10g}, mean {np.mean(values):.1f}, "
            f"max {max(values)}"
        ) in text
        first = written[name][0][0]
        assert f"document 0 of {name}-00000-of-00003, {len(first)} tokens: ids {' '.join(map(str, first[:16]))}" in text
        assert f"document 1 of {name}-00000-of-00003" in text
        assert f"document 2 of {name}-00000-of-00003" not in text
    assert "(the corpus's own)\n  sequence length 16, seed 1234, splits 90,10,0; rows: train 200, valid " in text


def test_documents_are_decoded_with_the_tokenizer_of_the_corpus(make_corpus: Any) -> None:
    folder = make_corpus(documents={"web": 20}, longest=300)
    words = {f"w{number}": number for number in range(500)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    (Path(folder) / "tokenizer").mkdir()
    tokenizer.save(str(Path(folder) / "tokenizer" / "tokenizer.json"))
    document = next(d for shard in make_corpus.documents[folder]["web"] for d in shard)
    decoded = " ".join(f"w{number}" for number in document[:96])
    text = inspect(folder, 1)
    assert f"document 0 of web-00000-of-00003, {len(document)} tokens: '{decoded[:160]}' …" in text
    assert "index sets: none, so no stream can be opened yet" in text
    assert f"tokens: '{decoded[:160]}' …" in inspect(f"{folder}/tokens/web/web-00000-of-00003", 1)
    (Path(folder) / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(CorpusError, match=r"tokenizer/tokenizer\.json: no readable tokenizer"):
        inspect(folder)


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_a_shard_of_a_corpus_by_any_of_its_names(make_corpus: Any, blended_corpus: str, ending: str) -> None:
    text = inspect(f"{blended_corpus}/tokens/web/web-00001-of-00003{ending}")
    tokens = sum(map(len, make_corpus.documents[blended_corpus]["web"][1]))
    assert "web-00001-of-00003: .bin/.idx pair of the corpus 'tiny'\n" in text
    assert f"  {tokens} tokens (uint16) in 20 sequences of 20 documents\n" in text
    assert "EOD is 1 '<eod>'" in text
    assert "documents end with: id 1 (all)" in text
    assert text.count("\n  document ") == 3


def test_a_pair_of_anyone(tmp_path: Path) -> None:
    prefix = str(tmp_path / "pair")
    with write_indexed(prefix, np.dtype("int32")) as writer:
        writer.add(np.array([70000, 2, 3, 4, 5, 6]), np.array([2, 1, 0, 3]), np.array([2, 1, 0, 1]))
    text = inspect(prefix)
    assert "  6 tokens (int32) in 4 sequences of 4 documents\n" in text
    assert "tokens of a document: min 0, median 1.5, mean 1.5, max 3" in text
    assert "documents end with: 2 different ids (all), so no EOD was appended" in text
    assert "document 0, 3 tokens: ids 70000 2 3" in text
    assert "document 1, 0 tokens: ids" in text


def test_an_empty_pair(tmp_path: Path) -> None:
    prefix = str(tmp_path / "pair")
    with write_indexed(prefix, np.dtype("int32")):
        pass
    text = inspect(prefix)
    assert "0 tokens (int32) in 0 sequences of 0 documents" in text
    assert "tokens of a document: none\n  documents end with: nothing" in text


def test_the_real_pair(shared_data: Path) -> None:
    text = inspect(str(shared_data / "openwebtext_text_document"))
    assert "1,361,845 tokens (uint16) in 1,000 sequences of 1,000 documents" in text
    assert "tokens of a document: min 193, median 937.5, mean 1,361.8, max 21,809" in text
    assert "documents end with: id 4999 (all)" in text


def test_many_shards_are_not_all_listed(make_corpus: Any) -> None:
    text = inspect(make_corpus(documents={"web": 40}, shards=20), 0)
    assert "web-00011-of-00020  " in text
    assert "web-00012-of-00020  " not in text
    assert "  … and 8 more shards" in text


@pytest.mark.parametrize(
    ("name", "documents", "error", "message"),
    [
        ("absent", 3, CorpusError, "absent: no such folder"),
        ("", 3, CorpusError, r"no manifest\.json, so this is no finished corpus"),
        ("half", 3, FormatError, r"half\.idx: index file not found"),
        ("absent", -1, SettingsError, "--documents must be at least 0, not -1"),
    ],
)
def test_what_cannot_be_shown(tmp_path: Path, name: str, documents: int, error: type[Exception], message: str) -> None:
    (tmp_path / "half.bin").write_bytes(b"12")
    with pytest.raises(error, match=message):
        inspect(str(tmp_path / name), documents)


def test_the_command_prints_it(blended_corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    inspect_module.add_arguments(parser)
    assert inspect_module.run(parser.parse_args([blended_corpus, "--documents", "1"])) == 0
    assert capsys.readouterr().out == inspect(blended_corpus, 1) + "\n"


@given(st.lists(st.lists(st.integers(0, 50), max_size=20), min_size=1, max_size=4))
def test_counted_lengths_are_exact(parts: list[list[int]]) -> None:
    counted = LengthCounts()
    for part in parts:
        counted.add(np.array(part, np.int64))
    values = [value for part in parts for value in part]
    if values:
        assert str(counted) == (
            f"min {min(values)}, median {np.median(values):.10g}, mean {np.mean(values):.1f}, max {max(values)}"
        )
    else:
        assert str(counted) == "none"
