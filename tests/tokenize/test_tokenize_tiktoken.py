"""tiktoken files: the same ids as tiktoken itself, and no guessing of patterns."""

import base64
import importlib
import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import tiktoken

from gristmill.formats.errors import TokenizerError
from gristmill.tokenize.definition import HuggingFaceEngine
from gristmill.tokenize.engine import choose_engine
from gristmill.tokenize.load import resolve_tokenizer
from gristmill.tokenize.probe import probe_texts
from gristmill.tokenize.resolved import ResolvedTokenizer
from gristmill.tokenize.tiktoken_file import is_tiktoken, tiktoken_tokenizer

Ranks = Mapping[bytes, int]


def rank_file(ranks: Ranks) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


def made_ranks(count: int, skipped: int | None = None) -> dict[bytes, int]:
    """Ranks as a training might give them: bytes, then pieces joined from earlier ones."""
    rng = random.Random(count)
    tokens = [bytes([byte]) for byte in range(256)]
    known = set(tokens)
    words = [
        f"{space}{word}".encode()
        for word in ("the", "and", "aaaa", "é", "  ", "12", "'s", "\n\n")
        for space in ("", " ")
    ]
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in known:
                known.add(word[:end])
                tokens.append(word[:end])
    while len(tokens) < min(count, 3000):
        joined = rng.choice(tokens[:400]) + rng.choice(tokens[:400])
        if joined not in known:
            known.add(joined)
            tokens.append(joined)
    tokens += [b"\xff\xff" + number.to_bytes(4, "big") for number in range(count - len(tokens))]  # no text makes these
    numbers = (number for number in range(count + 1) if number != skipped)
    return dict(zip(tokens, numbers, strict=False))


def reference(ranks: Ranks, pattern: str) -> tiktoken.Encoding:
    return tiktoken.Encoding("made", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens={})


def patterns(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, object]]:
    """What the tiktoken library says about its encodings, without fetching their files."""
    module = importlib.import_module("tiktoken_ext.openai_public")
    for name in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
        monkeypatch.setattr(module, name, lambda *_args, **_kwargs: {})
    return {name: make() for name, make in module.ENCODING_CONSTRUCTORS.items()}


def assert_same(resolved: ResolvedTokenizer, encoding: tiktoken.Encoding) -> None:
    rng = random.Random(7)
    texts = [*probe_texts(resolved.special_tokens[:3]), "a" * 2000]
    texts += ["".join(rng.choice(["a", "aa", "b", " ", "the", "é", "1", "\n"]) for _ in range(30)) for _ in range(500)]
    ids, offsets = HuggingFaceEngine(resolved).encode(texts)
    for number, text in enumerate(texts):
        assert ids[offsets[number] : offsets[number + 1]].tolist() == encoding.encode_ordinary(text), repr(text)


COUNTS = {"gpt2": 50_256, "r50k_base": 50_256, "p50k_base": 50_280, "cl100k_base": 100_256, "o200k_base": 199_998}


@pytest.mark.parametrize("name", ["gpt2", "p50k_base", "cl100k_base", "o200k_base"])
def test_named_encodings_give_tiktokens_ids(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = patterns(monkeypatch)[name]
    ranks = made_ranks(COUNTS[name], skipped=50_256 if name == "p50k_base" else None)
    path = tmp_path / f"{name}.tiktoken"
    path.write_bytes(rank_file(ranks))
    resolved = resolve_tokenizer(str(path))
    control = known["special_tokens"]
    assert isinstance(control, dict)
    assert resolved.eod_id == control["<|endoftext|>"]
    vocab = json.loads(resolved.json_text)["model"]["vocab"]
    assert {token: vocab[token] for token in control} == control
    assert resolved.vocabulary == max(*control.values(), *ranks.values()) + 1
    assert resolved.disarmed_tokens == ()
    assert_same(resolved, reference(ranks, str(known["pat_str"])))


def test_the_encodings_are_the_ones_that_tiktoken_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, known in patterns(monkeypatch).items():
        base = "o200k_base" if name == "o200k_harmony" else name.replace("edit", "base")
        ranks = {number.to_bytes(3, "big"): number for number in range(COUNTS[base])}
        if base == "p50k_base":
            ranks = {token: rank + (rank >= 50_256) for token, rank in ranks.items()}
        loaded = tiktoken_tokenizer(rank_file(ranks), f"{name}.tiktoken", name)
        control = known["special_tokens"]
        assert isinstance(control, dict)
        added = {token["content"]: token["id"] for token in json.loads(loaded.text)["added_tokens"]}
        control.pop("<|reserved_200018|>", None)  # tiktoken's second spelling of the id of <|endofprompt|>
        assert control.items() <= added.items(), name
        assert all(token.startswith("<|reserved_") for token in added.keys() - control.keys()), name


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize("name", ["llama3.tiktoken", "Llama-3-8B.model"])
def test_llama_3_is_known_by_its_name(name: str, tmp_path: Path) -> None:
    ranks = made_ranks(900)
    path = tmp_path / name
    path.write_bytes(rank_file(ranks))
    resolved = resolve_tokenizer(str(path))
    assert (resolved.eod_token, resolved.eod_id, resolved.vocabulary) == ("<|end_of_text|>", 901, 900 + 256)
    assert resolved.special_tokens[0] == "<|begin_of_text|>"
    assert resolved.special_tokens[9:12] == ("<|eot_id|>", "<|python_tag|>", "<|image|>")
    assert resolved.special_tokens[-1] == "<|reserved_special_token_245|>"
    assert_same(resolved, reference(ranks, LLAMA3))
    assert choose_engine(resolved).engine.name == "fastokens"


def test_llama_3_is_known_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(rank_file(made_ranks(128_000)))
    for path in (tmp_path, tmp_path / "tokenizer.model"):
        resolved = resolve_tokenizer(str(path))
        assert (resolved.eod_id, resolved.vocabulary, resolved.dtype) == (128_001, 128_256, "int32")


@pytest.mark.parametrize("name", ["tokenizer.model", "own.tiktoken", "cl100k.tiktoken"])
def test_an_unknown_encoding_is_refused_with_the_remedy(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(rank_file(made_ranks(900)))
    message = r"900 ranks, but its name does not say which encoding .* name it after one \(gpt2, .*llama3\) or give"
    with pytest.raises(TokenizerError, match=message):
        resolve_tokenizer(str(tmp_path / name))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"IQ== 0\nIg== one\n", r"line 2: not a base64 token and a rank: b'Ig== one'"),
        (b"IQ== 0\n\nI 1\n", r"line 3: not a base64 token and a rank"),
        (b"IQ== 0\nIg== 0\n", "two tokens share a rank"),
    ],
)
def test_damaged_lines_are_named(data: bytes, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        tiktoken_tokenizer(data, "llama3.tiktoken", "x")


def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cl100k_base.tiktoken").write_bytes(rank_file(made_ranks(900)))
    with pytest.raises(TokenizerError, match="900 ranks where cl100k_base has 100256: cut short, or another encoding"):
        resolve_tokenizer(str(tmp_path / "cl100k_base.tiktoken"))
    ranks = made_ranks(50_280)
    with pytest.raises(TokenizerError, match=r"id 50256 is '<\|endoftext\|>' in this encoding, but the file gives it"):
        tiktoken_tokenizer(rank_file(ranks), "p50k_base.tiktoken", "x")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"IQ== 0\nIg== 1\n", True),
        (b"IQ== 0\r\nIg== 1", True),
        (rank_file({bytes([a, b]): a * 256 + b for a in range(20) for b in range(256)}), True),
        (b"", False),
        (b"hello world\n", False),
        (b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02", False),
        (b'{"a": 1}', False),
    ],
)
def test_files_are_told_apart_by_their_lines(data: bytes, expected: bool) -> None:
    assert is_tiktoken(data) is expected
