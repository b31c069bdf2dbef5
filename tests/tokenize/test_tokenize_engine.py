"""Engines: the fast one equals the definition, or the definition is used and the reason told."""

import itertools
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gristmill.formats.errors import InputError, SettingsError, TokenizerError
from gristmill.tokenize.definition import HuggingFaceEngine
from gristmill.tokenize.engine import Engine, choose_engine, load_engine, set_engine_threads
from gristmill.tokenize.fast import FastEngine
from gristmill.tokenize.probe import probe_texts
from gristmill.tokenize.resolved import ResolvedTokenizer

END = "<|endoftext|>"
Resolve = Callable[..., ResolvedTokenizer]


def lists(encoded: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
    ids, offsets = encoded
    assert ids.dtype == np.uint32
    assert offsets.dtype == np.int64
    assert (ids.ndim, offsets.ndim, offsets[0], offsets[-1]) == (1, 1, 0, len(ids))
    return [ids[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]


@pytest.fixture(scope="module")
def engines(byte_bpe: str) -> dict[bool, tuple[HuggingFaceEngine, FastEngine]]:
    """Both engines, without and with control tokens kept."""
    from gristmill.tokenize.canonical import canonical_text, parse_tokenizer
    from gristmill.tokenize.resolved import fingerprint_of

    text = canonical_text(parse_tokenizer(byte_bpe, "x"), "BPE", END)
    resolved = ResolvedTokenizer(
        json_text=text,
        fingerprint=fingerprint_of(text, 0),
        eod_id=0,
        eod_token=END,
        pad_id=None,
        vocabulary=1500,
        dtype="uint16",
        special_tokens=(END, "<|pad|>"),
    )
    return {
        keep: (
            HuggingFaceEngine(resolved, keep_control_tokens=keep),
            FastEngine(resolved, keep_control_tokens=keep),
        )
        for keep in (False, True)
    }


def test_the_definition_is_tokenizers_without_special_tokens(
    byte_bpe: str, engines: dict[bool, tuple[HuggingFaceEngine, FastEngine]], python_sources: list[str]
) -> None:
    texts = [*probe_texts([END]), *python_sources[20:24]]
    tokenizer = Tokenizer.from_str(byte_bpe)
    for keep, (definition, _) in engines.items():
        tokenizer.encode_special_tokens = not keep
        assert lists(definition.encode(texts)) == [
            tokenizer.encode(text, add_special_tokens=False).ids for text in texts
        ]


@given(
    texts=st.lists(st.text(max_size=40) | st.sampled_from([END, f"a{END}", "<|pad|>", "don't  \r\n", "12345"])),
    keep=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_both_engines_agree_on_any_text(
    texts: list[str], keep: bool, engines: dict[bool, tuple[HuggingFaceEngine, FastEngine]]
) -> None:
    definition, fast = engines[keep]
    assert lists(fast.encode_strictly(texts)) == lists(definition.encode(texts))


@given(text=st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_text_comes_back(text: str, byte_bpe: str, engines: dict[bool, tuple[HuggingFaceEngine, FastEngine]]) -> None:
    ids, _ = engines[False][1].encode([text])
    assert Tokenizer.from_str(byte_bpe).decode(ids.tolist()) == text


@pytest.mark.parametrize("keep", [False, True])
def test_control_text_is_harmless_unless_kept(
    keep: bool, engines: dict[bool, tuple[HuggingFaceEngine, FastEngine]]
) -> None:
    texts = [END, f"see {END} in GPT-2", f"ends {END}", "<|pad|>", "<s>x</s>"]
    for engine in engines[keep]:
        counts = [sum(number < 2 for number in ids) for ids in lists(engine.encode(texts))]
        assert counts == ([1, 1, 1, 1, 0] if keep else [0] * 5)


def test_nothing_gives_nothing(engines: dict[bool, tuple[HuggingFaceEngine, FastEngine]]) -> None:
    for engine in engines[False]:
        assert lists(engine.encode([])) == []
        assert lists(engine.encode(["", "", "a", ""]))[0:2] == [[], []]


def test_the_fast_engine_is_chosen_once_proved(
    byte_bpe: str, resolve: Resolve, python_sources: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    for keep in (False, True):
        choice = choose_engine(resolve(byte_bpe), python_sources[:3], keep_control_tokens=keep)
        assert choice.engine.name == "fastokens"
        assert choice.reason.startswith(f"fastokens {choice.engine.version} gave the ids of tokenizers ")
    assert not caplog.records


def test_a_kind_that_the_fast_engine_does_not_know_falls_back_aloud(
    unigram: str, resolve: Resolve, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gristmill.tokenize"):
        choice = choose_engine(resolve(unigram, "</s>"))
    assert choice.engine.name == "tokenizers"
    assert "many times slower than fastokens: `fastokens` cannot load the tokenizer" in choice.reason
    assert choice.reason in caplog.text


def without_space(byte_bpe: str) -> str:
    """The BPE without an entry for the byte of a space, which `tokenizers` then drops and `fastokens` refuses."""
    data = json.loads(byte_bpe)
    model = data["model"]
    model["merges"] = [pair for pair in model["merges"] if "Ġ" not in "".join(pair)]
    kept = sorted((token for token in model["vocab"] if "Ġ" not in token), key=model["vocab"].get)
    model["vocab"] = {token: number for number, token in enumerate(kept)}
    return json.dumps(data)


def test_a_text_that_the_fast_engine_refuses_falls_back_aloud(
    byte_bpe: str, resolve: Resolve, caplog: pytest.LogCaptureFixture
) -> None:
    resolved = resolve(without_space(byte_bpe))
    with caplog.at_level(logging.WARNING, "gristmill.tokenize"):
        choice = choose_engine(resolved)
    assert choice.engine.name == "tokenizers"
    assert "byte 0x20 has no token in vocabulary" in choice.reason
    fast, definition = FastEngine(resolved), HuggingFaceEngine(resolved)
    assert lists(fast.encode(["a b", "c"])) == lists(definition.encode(["a b", "c"]))
    assert caplog.text.count("such batches are encoded with `tokenizers`") == 1
    with pytest.raises(TokenizerError, match=r"`fastokens` refuses a text: .*0x20"):
        fast.encode_strictly(["a b"])


def test_a_difference_falls_back_and_is_shown(
    byte_bpe: str, resolve: Resolve, caplog: pytest.LogCaptureFixture
) -> None:
    # `\h` is a hexadecimal digit to the regular expressions of one library and a blank to those of the other.
    data = json.loads(byte_bpe)
    split = {"type": "Split", "pattern": {"Regex": r"\h+"}, "behavior": "Isolated", "invert": False}
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [split, {**data["pre_tokenizer"], "use_regex": False}],
    }
    resolved = resolve(json.dumps(data))
    with caplog.at_level(logging.WARNING, "gristmill.tokenize"):
        choice = choose_engine(resolved)
    assert choice.engine.name == "tokenizers"
    assert "gives other ids than tokenizers" in choice.reason
    assert "first for a text that begins '" in choice.reason
    assert choice.reason in caplog.text


def test_the_sample_is_compared_too(byte_bpe: str, resolve: Resolve) -> None:
    # A split that treats one rare word alone: no hostile string holds it, the corpus does.
    data = json.loads(byte_bpe)
    split = {"type": "Split", "pattern": {"Regex": r"quern\h"}, "behavior": "Isolated", "invert": False}
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [split, {**data["pre_tokenizer"], "use_regex": False}],
    }
    resolved = resolve(json.dumps(data))
    assert choose_engine(resolved).engine.name == "fastokens"
    assert choose_engine(resolved, ["plain", "one quern stone"]).engine.name == "tokenizers"


@pytest.mark.parametrize("name", ["tokenizers", "fastokens"])
def test_a_worker_loads_what_the_launcher_chose(byte_bpe: str, resolve: Resolve, name: str) -> None:
    resolved = resolve(byte_bpe)
    engine = load_engine(resolved, name)
    assert (engine.name, bool(engine.version)) == (name, True)
    assert lists(load_engine(resolved, name, version=engine.version).encode(["a b"])) == lists(engine.encode(["a b"]))
    assert lists(load_engine(resolved, name, keep_control_tokens=True).encode([END])) == [[0]]
    with pytest.raises(TokenizerError, match=rf"this worker has {name} {engine.version}, the launcher proved 0\.0\.1"):
        load_engine(resolved, name, version="0.0.1")
    with pytest.raises(
        TokenizerError, match="tokenizer engine 'sentencepiece' is unknown: it is one of fastokens, tok"
    ):
        load_engine(resolved, "sentencepiece")


def test_ids_with_gaps_are_encoded_fast_too(byte_bpe: str, resolve: Resolve) -> None:
    data = json.loads(byte_bpe)
    data["model"]["vocab"]["<|far|>"] = 1700
    data["added_tokens"].append({**data["added_tokens"][0], "content": "<|far|>", "id": 1700})
    resolved = resolve(json.dumps(data), "<|far|>")
    assert (resolved.vocabulary, resolved.eod_id) == (1701, 1700)
    choice = choose_engine(resolved, keep_control_tokens=True)
    assert choice.engine.name == "fastokens"
    assert 1700 in lists(choice.engine.encode(["a<|far|>b"]))[0]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["fine", "bad \udc00 end"],
            r"document 1 of the batch holds the lone surrogate U\+DC00 at character 4: it is not",
        ),
        (["\ud800"], r"document 0 .* U\+D800 at character 0"),
        (["fine", None], "document 1 of the batch is null, not text"),
        ([3], "document 0 of the batch is int, not text"),
    ],
)
def test_what_is_not_text_is_named(
    texts: list[str], message: str, engines: dict[bool, tuple[HuggingFaceEngine, FastEngine]]
) -> None:
    for engine in engines[False]:
        with pytest.raises(InputError, match=message):
            engine.encode(texts)


def test_threads_may_share_an_engine(
    engines: dict[bool, tuple[HuggingFaceEngine, FastEngine]], python_sources: list[str]
) -> None:
    engine: Engine = engines[False][1]
    expected = lists(engine.encode(python_sources))
    found: dict[int, list[list[int]]] = {}

    def work(number: int) -> None:
        found[number] = lists(engine.encode(python_sources))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] == expected for number in range(4)] == [True] * 4


def test_threads_are_limited_before_the_first_batch(byte_bpe: str, resolve: Resolve) -> None:
    script = """
import sys
from gristmill.tokenize.engine import load_engine, set_engine_threads
from gristmill.tokenize.resolved import load_resolved

def threads():
    return int(next(line for line in open("/proc/self/status") if line.startswith("Threads:")).split()[1])

set_engine_threads(int(sys.argv[2]))
resolved = load_resolved(sys.argv[1])
for name in ("fastokens", "tokenizers"):
    before = threads()
    load_engine(resolved, name).encode(["some text here"] * 500)
    print(threads() - before)
"""
    from gristmill.tokenize.resolved import write_resolved

    resolved = resolve(byte_bpe)
    folder = os.path.dirname(resolved.source)
    write_resolved(resolved, folder)
    started = {}
    for count in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", script, folder, str(count)], capture_output=True, text=True, check=True
        )
        started[count] = [int(line) for line in done.stdout.split()]
    assert started[1] == [0, 0]
    assert started[2][1] == 2
    assert started[2][0] >= 1 or (os.cpu_count() or 1) == 1
    with pytest.raises(SettingsError, match="engine threads: 0, where at least 1 is needed"):
        set_engine_threads(0)


def test_workers_import_no_heavy_library() -> None:
    script = (
        "import sys, time; start = time.perf_counter(); import gristmill.tokenize.encode, gristmill.tokenize.load\n"
        "print(sorted(set(sys.modules) & {'transformers', 'sentencepiece', 'tiktoken', 'huggingface_hub', 'pyarrow',"
        " 'torch', 'jax', 'apache_beam'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
