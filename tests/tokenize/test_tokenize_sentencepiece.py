"""SentencePiece models: the ids of `sentencepiece` itself, its control pieces never made from text."""

import logging
from pathlib import Path

import fsspec
import pytest
import sentencepiece

from gristmill.formats.errors import TokenizerError
from gristmill.tokenize.encode import Encoder
from gristmill.tokenize.engine import choose_engine
from gristmill.tokenize.load import resolve_tokenizer
from gristmill.tokenize.probe import probe_texts
from gristmill.tokenize.sentencepiece_model import is_sentencepiece

KINDS = ("bpe", "unigram")


@pytest.fixture(scope="module")
def models(python_sources: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A BPE and a Unigram model of 800 pieces with byte fallback, as Llama 2's, trained on Python sources."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(python_sources[:8]), encoding="utf-8")
    made = {}
    for kind in KINDS:
        (folder / kind).mkdir()
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus),
            model_prefix=str(folder / kind / "tokenizer"),
            model_type=kind,
            vocab_size=800,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            minloglevel=2,
        )
        made[kind] = folder / kind / "tokenizer.model"
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["file", "folder", "url"])
def test_ids_are_sentencepieces_own(
    kind: str, by: str, models: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = str(models[kind] if by == "file" else models[kind].parent)
    if by == "url":
        fsspec.filesystem("memory").put(str(models[kind]), f"/bucket/{kind}/tokenizer.model")
        path = f"memory://bucket/{kind}/tokenizer.model"
    with caplog.at_level(logging.WARNING, "gristmill.tokenize"):
        resolved = resolve_tokenizer(path)
    told = [record.getMessage() for record in caplog.records if "other ids than the original" in record.getMessage()]
    assert len(told) == (kind == "unigram")
    assert (resolved.eod_token, resolved.eod_id, resolved.vocabulary) == ("</s>", 2, 800)
    original = sentencepiece.SentencePieceProcessor(model_file=str(models[kind]))
    engine = choose_engine(resolved).engine
    # `tokenizers` has no Unigram whose text cannot spell a byte piece; that difference is the one that is told.
    hostile = [text for text in probe_texts(resolved.special_tokens) if kind == "bpe" or "<0x0A>" not in text]
    texts = [*hostile, "def f(x):\n    return x  # done </s>\n"]
    ids, offsets = engine.encode(texts)
    for number, text in enumerate(texts):
        assert ids[offsets[number] : offsets[number + 1]].tolist() == original.encode(text), repr(text)


@pytest.mark.parametrize("kind", KINDS)
def test_text_never_makes_control_pieces(kind: str, models: dict[str, Path]) -> None:
    resolved = resolve_tokenizer(str(models[kind]))
    encoder = Encoder.of(resolved, choose_engine(resolved).engine)
    batch = encoder.encode(["</s>", "a </s> b", "<s>x</s>", "", "</s></s>"])
    assert (batch.eod_in_text.sum(), batch.control_hits.sum()) == (0, 6)
    assert int((batch.ids == 2).sum()) == 4
    assert batch.lengths.tolist()[3] == 0


def test_a_difference_is_told(python_sources: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(python_sources[:2]), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "corpus.txt"),
        model_prefix=str(tmp_path / "m"),
        model_type="unigram",
        vocab_size=200,
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )
    with caplog.at_level(logging.WARNING, "gristmill.tokenize"):
        resolve_tokenizer(str(tmp_path / "m.model"))
    assert "the converted tokenizer gives other ids than the original library for" in caplog.text
    assert "hostile texts, first for '" in caplog.text


def test_a_model_without_an_eos_needs_one(python_sources: list[str], tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(python_sources[0], encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "corpus.txt"),
        model_prefix=str(tmp_path / "m"),
        vocab_size=200,
        eos_id=-1,
        pad_id=2,
        user_defined_symbols=["<eod>"],
        minloglevel=2,
    )
    with pytest.raises(TokenizerError, match=r"nothing says which token ends a document .*'<eod>' \(3\)"):
        resolve_tokenizer(str(tmp_path / "m.model"))
    resolved = resolve_tokenizer(str(tmp_path / "m.model"), "<eod>")
    assert (resolved.eod_id, resolved.pad_id) == (3, 2)


def test_a_damaged_model_is_named(models: dict[str, Path], tmp_path: Path) -> None:
    whole = models["bpe"].read_bytes()
    assert is_sentencepiece(whole)
    (tmp_path / "cut.model").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TokenizerError, match=r"cut\.model: not a SentencePiece model, or a damaged one"):
        resolve_tokenizer(str(tmp_path / "cut.model"))
    assert not is_sentencepiece(b"")
    assert not is_sentencepiece(b"IQ== 0\n")
