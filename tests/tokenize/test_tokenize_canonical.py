"""The canonical text: same ids as the file, no stealthy settings, the same bytes every time."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from gristmill.formats.errors import TokenizerError
from gristmill.tokenize.canonical import (
    canonical_text,
    check_added_tokens,
    disarm,
    load_definition,
    missing_bytes,
    parse_tokenizer,
    spellable_tokens,
)
from gristmill.tokenize.probe import probe_texts
from gristmill.tokenize.resolved import ResolvedTokenizer

END = "<|endoftext|>"
TEXTS = [*probe_texts([END])[:1500], "def f(x):\n    return x + 1\n" * 30]


def ids(text: str, texts: list[str] = TEXTS, *, keep: bool = False) -> list[list[int]]:
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not keep
    return [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def canonical(text: str, eod: str = END) -> str:
    data = parse_tokenizer(text, "made.json")
    return canonical_text(data, type(Tokenizer.from_str(text).model).__name__, eod).decode("utf-8")


@pytest.fixture
def trapped(byte_bpe: str) -> str:
    """The BPE with truncation, padding and a post-processor that adds BOS and EOS."""
    tokenizer = Tokenizer.from_str(byte_bpe)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(pad_id=1, pad_token="<|pad|>", length=16)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{END} $A {END}", special_tokens=[(END, 0)])
    return str(tokenizer.to_str())


def test_truncation_padding_and_post_processor_are_removed(trapped: str, byte_bpe: str) -> None:
    assert len(Tokenizer.from_str(trapped).encode("a " * 50).ids) == 16, "the trap must be armed"
    text = canonical(trapped)
    data = json.loads(text)
    assert data["truncation"] is data["padding"] is data["post_processor"] is None
    tokenizer = Tokenizer.from_str(text)
    assert tokenizer.encode("a " * 50).ids == Tokenizer.from_str(byte_bpe).encode("a " * 50).ids
    assert tokenizer.encode("").ids == []
    assert text == canonical(byte_bpe)


@pytest.mark.parametrize("kind", ["byte_bpe", "unigram", "word_piece"])
def test_ids_do_not_change(kind: str, request: pytest.FixtureRequest) -> None:
    original = request.getfixturevalue(kind)
    text = canonical(original, "</s>")
    for keep in (False, True):
        assert ids(text, keep=keep) == ids(original, keep=keep)
    assert Tokenizer.from_str(text).get_vocab() == Tokenizer.from_str(original).get_vocab()


def test_bytes_do_not_depend_on_the_order_of_keys_or_on_spacing(trapped: str) -> None:
    data = json.loads(trapped)
    vocab = dict(reversed(list(data["model"]["vocab"].items())))
    shuffled: dict[str, Any] = dict(reversed(list(data.items())))
    shuffled["model"] = dict(reversed(list({**data["model"], "vocab": vocab}.items())))
    shuffled["added_tokens"] = list(reversed(data["added_tokens"]))
    assert canonical(json.dumps(shuffled, indent=3)) == canonical(trapped)


def test_it_is_its_own_canonical_text(byte_bpe: str) -> None:
    once = canonical(byte_bpe)
    assert canonical(once) == once
    assert once.endswith("}\n")
    assert once.count("\n") == 1


def test_a_byte_order_mark_is_no_part_of_it(byte_bpe: str) -> None:
    assert parse_tokenizer(b"\xef\xbb\xbf" + byte_bpe.encode(), "x") == parse_tokenizer(byte_bpe, "x")


def test_the_eod_is_marked_special(byte_bpe: str) -> None:
    data = json.loads(byte_bpe)
    for token in data["added_tokens"]:
        token["special"] = False
    armed = json.dumps(data)
    assert ids(armed, [f"a{END}b"])[0].count(0) == 1
    text = canonical(armed)
    flags = {token["content"]: token["special"] for token in json.loads(text)["added_tokens"]}
    assert flags == {END: True, "<|pad|>": False}
    assert 0 not in ids(text, [f"a{END}b"])[0]


def test_dropout_is_switched_off_aloud(byte_bpe: str, caplog: pytest.LogCaptureFixture) -> None:
    data = json.loads(byte_bpe)
    data["model"]["dropout"] = 0.5
    with caplog.at_level(logging.WARNING, "gristmill.tokenize"):
        text = canonical(json.dumps(data))
    assert text == canonical(byte_bpe)
    assert "dropout of 0.5 was switched off" in caplog.text


def test_merges_of_older_files_are_read(byte_bpe: str) -> None:
    data = json.loads(byte_bpe)
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    del data["model"]["type"]
    assert canonical(json.dumps(data)) == canonical(byte_bpe)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"x\.json: not a tokenizer\.json: "),
        ("[]", "has no `model` object"),
        ('{"model": 3}', "has no `model` object"),
        (b"\xff\xfe", "not a tokenizer.json: 'utf-8'"),
        ("[" * 100_000, "not a tokenizer.json"),
    ],
)
def test_what_is_no_tokenizer_is_named(text: str | bytes, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        parse_tokenizer(text, "x.json")


def test_what_the_library_cannot_load_is_named() -> None:
    with pytest.raises(TokenizerError, match=r"x\.json: the `tokenizers` library cannot load it"):
        load_definition('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}', "x.json")


def test_a_shifted_added_token_is_refused(byte_bpe: str) -> None:
    data = json.loads(byte_bpe)
    data["added_tokens"].append({**data["added_tokens"][0], "content": "<|far|>", "id": 5000})
    with pytest.raises(TokenizerError, match=r"'<\|far\|>' is declared with id 5000, .* gives it 1500"):
        check_added_tokens(data, Tokenizer.from_str(json.dumps(data)), "x.json")


def test_a_lone_surrogate_is_refused(byte_bpe: str) -> None:
    data = json.loads(byte_bpe)
    data["added_tokens"][1]["content"] = "\ud800"
    with pytest.raises(TokenizerError, match="lone surrogate"):
        canonical_text(data, "BPE", END)


def bpe_that_spells_its_end(*, ignore_merges: bool) -> str:
    """A BPE without a pre-tokenizer that makes `</s>` either as a whole word or through merges."""
    letters = ["<", "/", "s", ">", "a", " ", "</", "s>", "x"]
    vocab = {"<unk>": 0, "</s>": 1, **{letter: number for number, letter in enumerate(letters, start=2)}}
    merges = [["<", "/"], ["s", ">"]] + ([] if ignore_merges else [["</", "s>"]])
    end = {"id": 1, "content": "</s>", "special": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "ignore_merges": ignore_merges}
    return json.dumps({"version": "1.0", "added_tokens": [{**end, **flags}], "model": model})


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_a_bpe_that_spells_its_end_is_disarmed(ignore_merges: bool) -> None:
    text = canonical(bpe_that_spells_its_end(ignore_merges=ignore_merges), "</s>")
    assert ids(text, ["</s>"]) == [[1]], "the trap must be armed"
    assert spellable_tokens(Tokenizer.from_str(text), ("</s>",)) == ("</s>",)
    harmless = disarm(text.encode(), ("</s>",))
    # `</`, `s>` keep their ids, and so does everything else.
    assert ids(harmless, ["</s>", "a</s>x", "ax"]) == [[8, 9], [6, 8, 9, 10], [6, 10]]


@pytest.mark.parametrize(
    ("kind", "end", "texts"),
    [
        ("unigram", "</s>", ["</s>", "hello</s>hello", " </s> ", "<s>hello</s>", "</s></s>"]),
        ("word_piece", "[SEP]", ["[SEP]", "a [SEP] b", "[SEP] [SEP]"]),
    ],
)
def test_a_model_that_knows_its_end_is_disarmed(
    kind: str, end: str, texts: list[str], request: pytest.FixtureRequest, resolve: Callable[..., ResolvedTokenizer]
) -> None:
    resolved = resolve(request.getfixturevalue(kind), end)
    assert end in resolved.disarmed_tokens
    armed = ids(resolved.json_text.decode(), texts)
    assert any(resolved.eod_id in made for made in armed), "the trap must be armed"
    harmless = disarm(resolved.json_text, resolved.disarmed_tokens)
    made = ids(harmless, texts)
    assert all(made)
    assert all(resolved.eod_id not in found for found in made)
    plain = ["hello", "a b c", "abc hello def", "", "e\u0301"]
    assert ids(harmless, plain) == ids(resolved.json_text.decode(), plain)


def test_without_such_tokens_nothing_changes(byte_bpe: str) -> None:
    text = canonical(byte_bpe)
    assert spellable_tokens(Tokenizer.from_str(text), (END, "<|pad|>", "x")) == ()
    assert disarm(text.encode(), ()) == text


def test_missing_bytes_are_counted(byte_bpe: str, unigram: str) -> None:
    data = json.loads(byte_bpe)
    assert missing_bytes(data, "BPE") == 0
    assert missing_bytes(json.loads(unigram), "Unigram") == 0
    for symbol in ("Ġ", "Ċ", "Ń"):
        del data["model"]["vocab"][symbol]
    assert missing_bytes(data, "BPE") == 3
