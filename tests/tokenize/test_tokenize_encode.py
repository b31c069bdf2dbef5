"""Batches to ids: EOD placement against a plain loop, control text, dtype, and what must be refused."""

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gristmill.formats.errors import InputError, TokenizerError
from gristmill.tokenize.encode import ControlCounter, EncodedBatch, Encoder, slices
from gristmill.tokenize.engine import choose_engine, load_engine
from gristmill.tokenize.load import resolve_tokenizer
from gristmill.tokenize.resolved import ResolvedTokenizer, TokenDtype

END = "<|endoftext|>"
Resolve = Callable[..., ResolvedTokenizer]


class Spelled:
    """An engine whose ids are the texts' own numbers: ``"3 4"`` is 3 and 4."""

    name = "spelled"
    version = "1"

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        lists = [[int(number) for number in text.split()] for text in texts]
        offsets = np.cumsum([0, *map(len, lists)]).astype(np.int64)
        return np.array([number for ids in lists for number in ids], np.uint32), offsets


def oracle(lists: list[list[int]], eod: int) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    lengths = []
    for document in lists:
        closed = [*document, eod] if document else []
        ids += closed
        lengths.append(len(closed))
    return ids, lengths


def check_types(batch: EncodedBatch, dtype: TokenDtype) -> None:
    assert batch.ids.dtype == np.dtype({"uint16": "<u2", "int32": "<i4"}[dtype])
    assert batch.lengths.dtype == np.int32
    assert batch.ids.flags.c_contiguous
    assert int(batch.lengths.sum()) == len(batch.ids)


@given(
    lists=st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=12),
    eod=st.integers(0, 99),
    dtype=st.sampled_from(["uint16", "int32"]),
)
@settings(max_examples=300, deadline=None)
def test_one_eod_closes_each_document_that_is_not_empty(lists: list[list[int]], eod: int, dtype: TokenDtype) -> None:
    batch = Encoder(Spelled(), eod, dtype, 100).encode([" ".join(map(str, ids)) for ids in lists])
    check_types(batch, dtype)
    assert (batch.ids.tolist(), batch.lengths.tolist()) == oracle(lists, eod)
    assert batch.eod_in_text.tolist() == [ids.count(eod) for ids in lists]
    assert batch.control_hits.tolist() == [0] * len(lists)


@pytest.mark.parametrize("engine", ["tokenizers", "fastokens"])
@given(texts=st.lists(st.text(max_size=60) | st.sampled_from(["", " ", "\n", END, f"a{END}b"]), max_size=8))
@settings(max_examples=60, deadline=None)
def test_ids_are_the_tokenizers_plus_one_eod(engine: str, texts: list[str], small: ResolvedTokenizer) -> None:
    batch = Encoder.of(small, load_engine(small, engine)).encode(texts)
    tokenizer = Tokenizer.from_str(small.json_text.decode())
    tokenizer.encode_special_tokens = True
    lists = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert (batch.ids.tolist(), batch.lengths.tolist()) == oracle(lists, small.eod_id)
    assert batch.eod_in_text.sum() == 0
    assert batch.control_hits.tolist() == [text.count(END) for text in texts]


@pytest.fixture(scope="module")
def small(byte_bpe: str, tmp_path_factory: pytest.TempPathFactory) -> ResolvedTokenizer:
    path = tmp_path_factory.mktemp("small") / "made.json"
    path.write_text(byte_bpe, encoding="utf-8")
    return resolve_tokenizer(str(path), END)


CONTROL_TEXTS = [
    f"see {END} in GPT-2",
    "<|pad|>system",
    "<p>a <s>b</s></p>",
    f"ends with {END}",
    END,
    f"{END}{END}",
    f"{END[:-1]} {END[1:]}",
]


@pytest.mark.parametrize("engine", ["tokenizers", "fastokens"])
def test_control_text_is_harmless_and_counted(engine: str, small: ResolvedTokenizer) -> None:
    batch = Encoder.of(small, load_engine(small, engine)).encode(CONTROL_TEXTS)
    assert (batch.control_hits.sum(), batch.eod_in_text.sum()) == (6, 0)
    assert int((batch.ids == 0).sum()) == len(CONTROL_TEXTS)
    decoded = Tokenizer.from_str(small.json_text.decode())
    ends = np.cumsum(batch.lengths)
    for text, start, end in zip(CONTROL_TEXTS, [0, *ends], ends):
        assert decoded.decode(batch.ids[start : end - 1].tolist(), skip_special_tokens=False) == text


@pytest.mark.parametrize("engine", ["tokenizers", "fastokens"])
def test_control_text_can_be_kept(engine: str, small: ResolvedTokenizer) -> None:
    batch = Encoder.of(small, load_engine(small, engine, keep_control_tokens=True)).encode(CONTROL_TEXTS)
    assert (batch.control_hits.sum(), batch.eod_in_text.sum()) == (6, 5)
    assert int((batch.ids == 0).sum()) == len(CONTROL_TEXTS) + 5
    assert int((batch.ids == 1).sum()) == 1


@pytest.mark.parametrize(("kind", "end"), [("unigram", "</s>"), ("word_piece", "[SEP]")])
def test_models_that_know_their_end_are_harmless_too(
    kind: str, end: str, resolve: Resolve, request: pytest.FixtureRequest
) -> None:
    resolved = resolve(request.getfixturevalue(kind), end)
    batch = Encoder.of(resolved, choose_engine(resolved).engine).encode([end, f"a {end} b", f"{end} {end}", "a", ""])
    assert (batch.control_hits.sum(), batch.eod_in_text.sum()) == (4, 0)
    assert batch.lengths.tolist()[-1] == 0
    assert int((batch.ids == resolved.eod_id).sum()) == 4


def test_an_eod_that_is_ordinary_text_is_counted(byte_bpe: str, resolve: Resolve) -> None:
    resolved = resolve(byte_bpe, ".")
    batch = Encoder.of(resolved, load_engine(resolved, "fastokens")).encode(["a.b", "a"])
    assert batch.eod_in_text.sum() == 1


def test_a_tokenizer_that_adds_bos_adds_none(word_piece: str, resolve: Resolve) -> None:
    assert Tokenizer.from_str(word_piece).encode("").ids == [1, 1], "the trap must be armed"
    resolved = resolve(word_piece, "[SEP]")
    batch = Encoder.of(resolved, choose_engine(resolved).engine).encode(["a", "", "b a"])
    a, b = (Tokenizer.from_str(word_piece).token_to_id(letter) for letter in "ab")
    assert (batch.ids.tolist(), batch.lengths.tolist()) == ([a, 1, b, a, 1], [2, 0, 3])


def test_truncation_and_padding_of_the_file_do_not_apply(byte_bpe: str, resolve: Resolve) -> None:
    tokenizer = Tokenizer.from_str(byte_bpe)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(pad_id=1, length=16)
    texts = [" ".join(["word"] * count) for count in (5, 50, 500)]
    trapped, clean = resolve(str(tokenizer.to_str())), resolve(byte_bpe)
    assert trapped.fingerprint == clean.fingerprint
    for name in ("tokenizers", "fastokens"):
        batch = Encoder.of(trapped, load_engine(trapped, name)).encode(texts)
        expected = Tokenizer.from_str(byte_bpe).encode_batch(texts, add_special_tokens=False)
        assert batch.lengths.tolist() == [len(encoding.ids) + 1 for encoding in expected]
        assert 1 not in batch.ids


@pytest.mark.parametrize(
    "texts",
    [[""], ["", "   ", "\n", "a", ""], ["a", ""], ["", ""], []],
    ids=lambda texts: repr(texts),
)
def test_empty_documents_have_length_zero(texts: list[str], small: ResolvedTokenizer) -> None:
    batch = Encoder.of(small, load_engine(small, "fastokens")).encode(texts)
    assert [length == 0 for length in batch.lengths.tolist()] == [not text for text in texts]
    assert int((batch.ids == 0).sum()) == sum(bool(text) for text in texts)
    check_types(batch, "uint16")


@pytest.mark.parametrize("size", [65_499, 65_500, 65_535, 65_536, 65_537])
def test_every_id_survives_its_dtype(size: int, word_level: Callable[[int], str], resolve: Resolve) -> None:
    resolved = resolve(word_level(size), "<eos>")
    batch = Encoder.of(resolved, choose_engine(resolved).engine).encode([f"t0 t{size - 2}", "t1"])
    check_types(batch, resolved.dtype)
    assert batch.ids.dtype == (np.uint16 if size < 65_500 else np.int32)
    assert batch.ids.tolist() == [0, size - 2, size - 1, 1, size - 1]


def test_added_tokens_count_for_the_dtype(word_level: Callable[[int], str], resolve: Resolve) -> None:
    tokenizer = Tokenizer.from_str(word_level(65_530))
    tokenizer.add_tokens([f"<extra{number}>" for number in range(10)])
    resolved = resolve(str(tokenizer.to_str()), "<eos>")
    assert (resolved.vocabulary, resolved.dtype) == (65_540, "int32")
    batch = Encoder.of(resolved, choose_engine(resolved).engine).encode(["t1 <extra9>"])
    assert batch.ids.tolist() == [1, 65_539, 65_529]


@pytest.mark.parametrize(
    ("kind", "wrap"),
    [
        ("string", lambda texts: pa.array(texts, pa.string())),
        ("large string", lambda texts: pa.array(texts, pa.large_string())),
        ("slice", lambda texts: pa.array(["x", *texts, "y"], pa.string()).slice(1, len(texts))),
        ("chunked", lambda texts: pa.chunked_array([texts[:1], texts[1:]], pa.string())),
    ],
)
def test_arrow_arrays_are_taken(kind: str, wrap: Callable[[list[str]], object], small: ResolvedTokenizer) -> None:
    encoder = Encoder.of(small, load_engine(small, "fastokens"))
    texts = ["one", "", "two  three", "čtyři 五 🙂"]
    expected, found = encoder.encode(texts), encoder.encode(wrap(texts))
    assert found.ids.tolist() == expected.ids.tolist(), kind
    assert found.lengths.tolist() == expected.lengths.tolist()
    with pytest.raises(InputError, match="document 1 of the batch is null, not text"):
        encoder.encode(pa.array(["a", None]))


def test_a_lone_surrogate_is_named(small: ResolvedTokenizer) -> None:
    for name in ("tokenizers", "fastokens"):
        with pytest.raises(InputError, match=r"document 2 .* lone surrogate U\+D83D at character 1"):
            Encoder.of(small, load_engine(small, name)).encode(["", "a", "b\ud83d"])


def test_ids_outside_the_vocabulary_are_refused() -> None:
    encoder = Encoder(Spelled(), 0, "uint16", 10)
    assert encoder.encode(["9"]).ids.tolist() == [9, 0]
    with pytest.raises(
        TokenizerError, match="spelled made the id 10, outside the vocabulary of 10: the tokenizer in use"
    ):
        encoder.encode(["1 2", "10"])


@pytest.mark.parametrize(
    ("eod", "dtype", "vocabulary", "message"),
    [
        (10, "uint16", 10, "EOD 10 is outside the vocabulary of 10"),
        (-1, "uint16", 10, "EOD -1 is outside the vocabulary of 10"),
        (0, "uint16", 65_537, "a vocabulary of 65537 does not fit uint16, whose largest id is 65535"),
    ],
)
def test_settings_that_cannot_be_are_refused(eod: int, dtype: TokenDtype, vocabulary: int, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        Encoder(Spelled(), eod, dtype, vocabulary)


SPELLINGS = ["</s>", "<s>", "<|end|>", "<|end_of_text|>", "<|", "[SEP]", "é|", "x"]


@given(
    texts=st.lists(st.lists(st.sampled_from([*SPELLINGS, "<", "|", ">", "s", "a ", "<|end", "[", "é"])).map("".join)),
    tokens=st.lists(st.sampled_from(SPELLINGS), unique=True),
)
@settings(max_examples=300, deadline=None)
def test_control_spellings_are_counted(texts: list[str], tokens: list[str]) -> None:
    longest_first = sorted(tokens, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first))) if tokens else re.compile(r"(?!)")
    assert ControlCounter([*tokens, ""]).count(texts).tolist() == [len(pattern.findall(text)) for text in texts]


@given(lengths=st.lists(st.integers(0, 30)), most=st.integers(1, 8), characters=st.integers(1, 40))
def test_slices_cover_the_documents_within_the_limits(lengths: list[int], most: int, characters: int) -> None:
    texts = ["x" * length for length in lengths]
    cuts = list(slices(texts, max_documents=most, max_characters=characters))
    assert [text for cut in cuts for text in texts[cut]] == texts
    for cut, after in zip(cuts, [*cuts[1:], None]):
        batch = texts[cut]
        assert 1 <= len(batch) <= most
        assert len(batch) == 1 or sum(map(len, batch)) <= characters
        if after is not None:
            assert len(batch) == most or sum(map(len, batch)) + len(texts[after][0]) > characters


def test_a_corpus_made_by_others_is_made_again(shared_data: Path) -> None:
    """Decodes Megatron's own documents and encodes them again: the same bytes, document for document."""
    prefix = shared_data / "openwebtext_text_document"
    index = prefix.with_suffix(".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    code, count = struct.unpack_from("<BQ", index, 17)
    lengths = np.frombuffer(index, "<i4", count, 34)
    tokens = np.fromfile(prefix.with_suffix(".bin"), "<u2")
    assert (code, count, len(tokens)) == (8, 1000, lengths.sum())
    resolved = resolve_tokenizer(str(shared_data / "gpt2-tiny-vocab.json"), END)
    assert (resolved.eod_id, resolved.dtype) == (4999, "uint16")
    ends = np.cumsum(lengths)
    documents = [tokens[end - length : end - 1].tolist() for end, length in zip(ends, lengths)]
    texts = Tokenizer.from_str(resolved.json_text.decode()).decode_batch(documents, skip_special_tokens=False)
    choice = choose_engine(resolved, texts[:20])
    assert choice.engine.name == "fastokens"
    encoder = Encoder.of(resolved, choice.engine)
    batches = [encoder.encode(texts[cut]) for cut in slices(texts)]
    assert np.array_equal(np.concatenate([batch.lengths for batch in batches]), lengths)
    assert np.array_equal(np.concatenate([batch.ids for batch in batches]), tokens)


@pytest.mark.parametrize(
    "text", ["a" * 1_000_000, "0a" * 500_000, " " * 1_000_000 + "x", "世" * 300_000], ids=["a", "0a", "space", "cjk"]
)
@pytest.mark.parametrize("split", [True, False], ids=["split", "unsplit"])
def test_long_runs_come_whole_and_keep_their_ids(split: bool, text: str, byte_bpe: str, resolve: Resolve) -> None:
    """Documents without a boundary, with and without a pre-tokenizer that splits: whole, and the definition's ids."""
    data = json.loads(byte_bpe)
    data["pre_tokenizer"]["use_regex"] = split
    resolved = resolve(json.dumps(data))
    fast = Encoder.of(resolved, load_engine(resolved, "fastokens")).encode([text])
    slow = Encoder.of(resolved, load_engine(resolved, "tokenizers")).encode([text])
    assert np.array_equal(fast.ids, slow.ids)
    decoded = Tokenizer.from_str(resolved.json_text.decode()).decode(fast.ids[:-1].tolist())
    assert decoded == text
