"""Every kind of path that a recipe may give, and what is wrong with the others."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tokenizers import Tokenizer

from gristmill.formats.errors import TokenizerError
from gristmill.tokenize.definition import HuggingFaceEngine
from gristmill.tokenize.load import resolve_tokenizer

END = "<|endoftext|>"


def write(folder: Path, **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder


EOS_SAYINGS: list[tuple[dict[str, Any], str]] = [
    ({"tokenizer_config": {"eos_token": "<|pad|>"}}, "<|pad|>"),
    ({"tokenizer_config": {"eos_token": {"content": "<|pad|>", "special": True}}}, "<|pad|>"),
    ({"tokenizer_config": {"eos_token": None}, "special_tokens_map": {"eos_token": END}}, END),
    ({"tokenizer_config": {"eos_token": END}, "special_tokens_map": {"eos_token": "<|pad|>"}}, END),
    ({"special_tokens_map": {"eos_token": {"content": END}}}, END),
    ({"generation_config": {"eos_token_id": 1}, "config": {"eos_token_id": 0}}, "<|pad|>"),
    ({"generation_config": {"eos_token_id": [1]}}, "<|pad|>"),
    ({"config": {"eos_token_id": 0}}, END),
]


@pytest.mark.parametrize(("configs", "expected"), EOS_SAYINGS)
@pytest.mark.parametrize("by", ["folder", "file"])
def test_config_files_say_which_token_is_the_eos(
    configs: dict[str, Any], expected: str, by: str, byte_bpe: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "model", tokenizer=byte_bpe, **configs)
    resolved = resolve_tokenizer(str(folder if by == "folder" else folder / "tokenizer.json"))
    assert resolved.eod_token == expected


@pytest.mark.parametrize("configs", [{}, {"tokenizer_config": {}}, {"generation_config": {"eos_token_id": [0, 1]}}])
def test_where_they_do_not_say_it_is_an_error(configs: dict[str, Any], byte_bpe: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", tokenizer=byte_bpe, **configs)
    with pytest.raises(TokenizerError, match="nothing says which token ends a document"):
        resolve_tokenizer(str(folder))


def test_config_files_beside_a_file_of_another_name_are_not_its_own(byte_bpe: str, tmp_path: Path) -> None:
    write(tmp_path, other=byte_bpe, tokenizer_config={"eos_token": END})
    with pytest.raises(TokenizerError, match="nothing says which token"):
        resolve_tokenizer(str(tmp_path / "other.json"))


def test_the_recipes_eod_wins_over_the_config(byte_bpe: str, tmp_path: Path) -> None:
    folder = write(tmp_path, tokenizer=byte_bpe, tokenizer_config={"eos_token": END, "pad_token": "<|pad|>"})
    resolved = resolve_tokenizer(str(folder), "<|pad|>")
    assert (resolved.eod_token, resolved.pad_id) == ("<|pad|>", 1)
    assert resolve_tokenizer(str(folder), pad=END).pad_id == 0


def test_tokens_that_only_the_config_declares_are_added(byte_bpe: str, tmp_path: Path) -> None:
    decoder = {
        "0": {"content": END, "special": True},
        "1501": {"content": "<|im_end|>", "special": True},
        "1500": {"content": "<|im_start|>", "special": True},
    }
    config = {"added_tokens_decoder": decoder, "eos_token": "<|im_end|>"}
    folder = write(tmp_path, tokenizer=byte_bpe, tokenizer_config=config, added_tokens={"<extra>": 1502})
    resolved = resolve_tokenizer(str(folder))
    assert (resolved.eod_id, resolved.vocabulary) == (1501, 1503)
    assert resolved.special_tokens == (END, "<|pad|>", "<|im_start|>", "<|im_end|>")
    tokenizer = Tokenizer.from_str(resolved.json_text.decode())
    assert tokenizer.encode("a<extra>b", add_special_tokens=False).ids[1] == 1502


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"tokenizer_config": "{"}, r"tokenizer_config\.json: not JSON"),
        ({"tokenizer_config": []}, r"tokenizer_config\.json: holds a list where an object belongs"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": "a"}}}, r"added_tokens_decoder\['x'\] is no added token"),
        ({"added_tokens": {"<extra>": "no"}}, r"added_tokens\.json: '<extra>' has 'no' where its id belongs"),
        ({"added_tokens": {"<extra>": 1600}}, "'<extra>' is declared with id 1600, .* gives it 1500"),
    ],
)
def test_damaged_config_files_are_named(configs: dict[str, Any], message: str, byte_bpe: str, tmp_path: Path) -> None:
    folder = write(tmp_path, tokenizer=byte_bpe, **configs)
    with pytest.raises(TokenizerError, match=message):
        resolve_tokenizer(str(folder), END)


def test_urls_and_relative_paths(byte_bpe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "model", tokenizer=byte_bpe, tokenizer_config={"eos_token": END})
    store = fsspec.filesystem("memory")
    store.put(str(folder), "/bucket/model", recursive=True)
    store.pipe("/bucket/model/model.safetensors", b"\0" * 100)
    expected = resolve_tokenizer(str(folder))
    monkeypatch.chdir(tmp_path)
    for path, base in (
        ("model", None),
        ("./model/tokenizer.json", None),
        ("model", str(tmp_path)),
        ("../model/tokenizer.json", str(tmp_path / "model")),
        (f"file://{folder}", None),
        ("memory://bucket/model", None),
        ("memory://bucket/model/", None),
        ("memory://bucket/model/tokenizer.json", None),
    ):
        found = resolve_tokenizer(path, base_folder=base)
        assert (found.json_text, found.fingerprint, found.source) == (expected.json_text, expected.fingerprint, path)


def test_a_gpt2_pair_is_a_byte_level_bpe(shared_data: Path, tmp_path: Path) -> None:
    names = ("gpt2-tiny-vocab.json", "gpt2-tiny-merges.txt")
    for name in names:
        shutil.copy(shared_data / name, tmp_path / name)
    pair = resolve_tokenizer(str(tmp_path / names[0]), END)
    assert (pair.eod_id, pair.vocabulary, pair.special_tokens) == (4999, 5000, (END,))
    assert resolve_tokenizer(str(tmp_path), END).fingerprint == pair.fingerprint
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path), "/bucket/pair", recursive=True)
    assert resolve_tokenizer(f"memory://bucket/pair/{names[0]}", END).fingerprint == pair.fingerprint
    text = "The mill's wheel  turned\n\tand 42 sacks…"
    ids, _ = HuggingFaceEngine(pair).encode([text])
    assert Tokenizer.from_str(pair.json_text.decode()).decode(ids.tolist()) == text


@pytest.mark.parametrize(
    ("vocabulary", "merges", "message"),
    [
        ("{", "a b", r"vocab\.json or merges\.txt cannot be read"),
        ("[]", "a b", r"vocab\.json must be an object from token to id"),
        ('{"a": "x"}', "a b", r"vocab\.json must be an object from token to id"),
        ('{"a": 0}', "#version: 0.2\na b c\n", r"merges\.txt, line 2: not two tokens: 'a b c'"),
        ('{"a": 0}', "a b\n", r"do not belong together"),
    ],
)
def test_a_damaged_pair_is_named(vocabulary: str, merges: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(vocabulary)
    (tmp_path / "merges.txt").write_text(merges)
    with pytest.raises(TokenizerError, match=message):
        resolve_tokenizer(str(tmp_path), "a")


def test_a_folder_without_a_tokenizer_json_goes_through_transformers(shared_data: Path, tmp_path: Path) -> None:
    shutil.copy(shared_data / "gpt2-tiny-vocab.json", tmp_path / "vocab.json")
    shutil.copy(shared_data / "gpt2-tiny-merges.txt", tmp_path / "merges.txt")
    write(tmp_path, tokenizer_config={"tokenizer_class": "GPT2Tokenizer", "eos_token": END, "model_max_length": 8})
    found = resolve_tokenizer(str(tmp_path))
    plain = resolve_tokenizer(str(shared_data / "gpt2-tiny-vocab.json"), END)
    assert (found.eod_id, found.vocabulary) == (4999, 5000)
    texts = ["", "Hello  world, don't!\n", "x " * 40, f"a {END} b"]
    for ours, theirs in zip(HuggingFaceEngine(found).encode(texts), HuggingFaceEngine(plain).encode(texts)):
        assert ours.tolist() == theirs.tolist()


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "tokenization_own.py").write_text("raise SystemExit('ran')")
    (tmp_path / "own.tiktoken").write_text("IQ== 0\n")
    write(
        tmp_path,
        tokenizer_config={"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}},
    )
    with pytest.raises(TokenizerError, match="transformers cannot load its tokenizer"):
        resolve_tokenizer(str(tmp_path), 0)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "the tokenizer's path is empty"),
        ("absent/tokenizer.json", r"absent/tokenizer\.json: no such tokenizer file or folder \(looked for .*absent"),
        ("/absent/folder", "no such tokenizer file or folder"),
        ("./absent", "no such tokenizer file or folder"),
        ("a/b/c", "no such tokenizer file or folder"),
        ("what is this", "no such tokenizer file or folder"),
        ("memory://absent/tokenizer.json", "memory://absent/tokenizer.json: no such tokenizer file or folder"),
    ],
)
def test_what_is_not_there_is_named(path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TokenizerError, match=message):
        resolve_tokenizer(path)


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\0\1\2\3" * 10)
    with pytest.raises(TokenizerError, match=r"weights\.bin: neither a tokenizer\.json, nor a GPT-2 vocab\.json"):
        resolve_tokenizer(str(tmp_path / "weights.bin"))
    with pytest.raises(TokenizerError, match=r"cannot be told apart \(found: no file of one\)"):
        resolve_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text('{"some": "thing"}')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: .*no `model` object"):
        resolve_tokenizer(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer.json").write_bytes(b'{"\xff": 1}')
    with pytest.raises(TokenizerError, match="not UTF-8"):
        resolve_tokenizer(str(tmp_path / "tokenizer.json"))


def test_bytes_missing_from_the_vocabulary_are_warned_of(shared_data: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gristmill.tokenize"):
        resolve_tokenizer(str(shared_data / "small_tokenizer.json"), 2003)
    assert "162 of the 256 bytes are not in the vocabulary" in caplog.text
