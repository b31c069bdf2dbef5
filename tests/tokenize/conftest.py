"""Small tokenizers of every kind, made once for the tests of this folder."""

import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from gristmill.tokenize.load import resolve_tokenizer
from gristmill.tokenize.resolved import ResolvedTokenizer

END = "<|endoftext|>"


def _python_sources(count: int) -> list[str]:
    folder = Path(sysconfig.get_path("stdlib"))
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))[:count]]


@pytest.fixture(scope="session")
def python_sources() -> list[str]:
    """The texts of sixty modules of the standard library."""
    return _python_sources(60)


@pytest.fixture(scope="session")
def byte_bpe(python_sources: list[str]) -> str:
    """A byte-level BPE of 1,500 entries with GPT-2's split, `<|endoftext|>` = 0 and `<|pad|>` = 1, as JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=[END, "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(python_sources[:12], trainer)
    return str(tokenizer.to_str())


@pytest.fixture(scope="session")
def unigram() -> str:
    """A Unigram tokenizer whose own vocabulary holds `</s>` = 2 with the best score of all, as JSON."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁", -3.0), ("▁hello", -4.0), ("hello", -4.5)]
    pieces += [(letter, -5.0 - place / 100) for place, letter in enumerate("abcdefghijklmnopqrstuvwxyz</>|")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return str(tokenizer.to_str())


@pytest.fixture(scope="session")
def word_piece() -> str:
    """A WordPiece tokenizer that splits at white space only, with `[SEP]` = 1 in its vocabulary, as JSON."""
    vocab = ["[UNK]", "[SEP]", *"abcdes[]", *(f"##{letter}" for letter in "abcdeps[]SEP")]
    numbered = {token: number for number, token in enumerate(dict.fromkeys(vocab))}
    tokenizer = Tokenizer(models.WordPiece(numbered, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[UNK]", "[SEP]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[SEP] $A [SEP]", special_tokens=[("[SEP]", numbered["[SEP]"])]
    )
    return str(tokenizer.to_str())


@pytest.fixture(scope="session")
def word_level() -> Callable[[int], str]:
    """Makes a word-level tokenizer with exactly so many ids (`t0`, `t1`, …, and `<eos>` as the last), as JSON."""

    def make(size: int) -> str:
        vocab = {f"t{number}": number for number in range(size - 1)} | {"<eos>": size - 1}
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="t0"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
        return str(tokenizer.to_str())

    return make


@pytest.fixture
def resolve(tmp_path: Path) -> Callable[..., ResolvedTokenizer]:
    """Resolves a tokenizer.json text through a file of the test's own folder."""

    def make(text: str, eod: str | int | None = END) -> ResolvedTokenizer:
        path = tmp_path / "made.json"
        path.write_text(text, encoding="utf-8")
        return resolve_tokenizer(str(path), eod)

    return make
