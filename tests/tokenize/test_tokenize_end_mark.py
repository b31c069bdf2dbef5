"""The EOD: asked for, or the tokenizer's own, and never guessed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from gristmill.formats.errors import TokenizerError
from gristmill.tokenize.end_mark import end_candidates, find_eod, find_pad
from gristmill.tokenize.load import resolve_tokenizer
from gristmill.tokenize.resolved import ResolvedTokenizer

END = "<|endoftext|>"


@pytest.fixture
def tokenizer(byte_bpe: str) -> Tokenizer:
    return Tokenizer.from_str(byte_bpe)


def test_by_spelling_by_id_and_by_the_tokenizers_own(tokenizer: Tokenizer) -> None:
    assert find_eod(tokenizer, "<|pad|>", END, "x") == (1, "<|pad|>")
    assert find_eod(tokenizer, 1, END, "x") == (1, "<|pad|>")
    assert find_eod(tokenizer, None, END, "x") == (0, END)
    assert find_eod(tokenizer, None, 0, "x") == (0, END)


@pytest.mark.parametrize(
    ("eod", "message"),
    [
        (None, r"made: nothing says which token ends a document .* never guessed: .* '<\|endoftext\|>' \(0\)$"),
        ("</eos>", r"made: eod '</eos>' is not one token of the vocabulary \(as text it makes \d ids\): .*endoftext"),
        ("the end", r"eod 'the end' is not one token"),
        ("", r"eod '' is not one token"),
        (1500, r"eod 1500 is outside the vocabulary, whose ids go from 0 to 1499; .*endoftext"),
        (-1, r"eod -1 is outside the vocabulary"),
        (True, r"eod must be a token's text or its id, not True"),
        (1.0, r"eod must be a token's text or its id, not 1\.0"),
    ],
)
def test_what_cannot_be_an_eod_is_refused_with_candidates(
    tokenizer: Tokenizer, eod: str | int | None, message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        find_eod(tokenizer, eod, None, "made")


def test_an_own_eos_outside_the_vocabulary_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="made: its own eos '</s>' is not one token"):
        find_eod(tokenizer, None, "</s>", "made")
    with pytest.raises(TokenizerError, match="made: its own eos 2000 is outside the vocabulary"):
        find_eod(tokenizer, None, 2000, "made")


def test_candidates_are_end_marks_only(tokenizer: Tokenizer) -> None:
    marks = ["</s>", "<eos>", "[SEP]", "<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|END|>"]
    marks.append("<\uff5cend▁of▁sentence\uff5c>")
    others = ["<s>", "<unk>", "<|begin_of_text|>", "<append>", "<seen>", "</span>", "weekend", "[end", "<|fim_prefix|>"]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in [*marks, *others]])
    assert [token for token, _ in end_candidates(tokenizer)] == [END, *marks]


def test_many_candidates_are_cut_short(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([f"<|end_{number}|>" for number in range(20)])
    with pytest.raises(TokenizerError, match=r"'<\|end_6\|>' \(1506\) and 13 more$"):
        find_eod(tokenizer, None, None, "x")


def test_a_vocabulary_without_end_marks_says_so(word_level: Callable[[int], str]) -> None:
    tokenizer = Tokenizer.from_str(word_level(5).replace("<eos>", "last"))
    with pytest.raises(TokenizerError, match="no token in it looks like an end marker"):
        find_eod(tokenizer, None, None, "x")


def test_padding(tokenizer: Tokenizer) -> None:
    assert find_pad(tokenizer, None, None, "x") is None
    assert find_pad(tokenizer, None, "<|pad|>", "x") == 1
    assert find_pad(tokenizer, None, "<absent>", "x") is None
    assert find_pad(tokenizer, 0, "<|pad|>", "x") == 0
    with pytest.raises(TokenizerError, match="x: pad '<absent>' is not one token"):
        find_pad(tokenizer, "<absent>", None, "x")


@pytest.mark.parametrize(
    ("eod", "expected"),
    [("<|end_of_text|>", 2003), ("<|endoftext|>", 2004), (2003, 2003), (0, 0)],
)
def test_a_real_vocabulary_without_added_tokens(shared_data: Path, eod: str | int, expected: int) -> None:
    resolved = resolve_tokenizer(str(shared_data / "small_tokenizer.json"), eod)
    assert (resolved.eod_id, resolved.vocabulary, resolved.dtype) == (expected, 2020, "uint16")
    assert resolved.eod_token in resolved.special_tokens


def test_a_real_vocabulary_lists_its_end_marks(shared_data: Path) -> None:
    with pytest.raises(
        TokenizerError, match=r"never guessed.*'<\|end_of_text\|>' \(2003\), '<\|endoftext\|>' \(2004\)"
    ):
        resolve_tokenizer(str(shared_data / "small_tokenizer.json"))


def test_the_eod_counts_among_the_control_spellings(byte_bpe: str, resolve: Callable[..., ResolvedTokenizer]) -> None:
    assert resolve(byte_bpe, "a").special_tokens == (END, "<|pad|>", "a")
    assert resolve(byte_bpe).special_tokens == (END, "<|pad|>")
