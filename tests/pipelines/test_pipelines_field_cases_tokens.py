"""Faults of tokenizers that people met in the field, from the recipe to the shards: EOD, BOS, control text, dtype.

The tests of `tokenize` look at each piece; these prepare a corpus and count what it holds.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from gristmill.formats.errors import GristmillError
from gristmill.formats.indexed import IndexedDataset
from gristmill.runtime import TokenBatches, open_corpus

TEXTS = ["the quick brown fox", "jumps over", "the lazy dog and the document ends here"]
INDEX = {"sequence_length": 4, "epochs": 1, "splits": "1,0,0"}

SetTokenizer = Callable[..., None]


@pytest.fixture
def set_tokenizer(workshop: Any) -> SetTokenizer:
    """Gives the workshop another tokenizer."""

    def use(tokenizer: Tokenizer, folder: str = "other") -> None:
        workshop.tokenizer = Path(workshop.write(f"{folder}/tokenizer.json", tokenizer.to_str().encode()))

    return use


def tokenizer_of(workshop: Any) -> Tokenizer:
    return Tokenizer.from_file(str(workshop.tokenizer))


def word_tokenizer(size: int, *added: str) -> Tokenizer:
    """Exactly `size` words `t0`, `t1`, …, the last of them the EOD, and tokens that are added behind them."""
    vocab = {f"t{number}": number for number in range(size - 1)} | {"<|endoftext|>": size - 1}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    tokenizer.add_tokens(list(added))
    return tokenizer


class TestEnd:
    """The token that ends a document: never guessed, always one id of the vocabulary, told to whoever reads."""

    def prepare(self, workshop: Any, eod: str | int | None) -> None:
        tokenizer = {"path": str(workshop.tokenizer)} | ({} if eod is None else {"eod": eod})
        workshop.prepare({"files": [workshop.jsonl("a.jsonl", TEXTS)]}, tokenizer=tokenizer, index=INDEX)

    @pytest.mark.parametrize(
        ("eod", "says"),
        [
            (None, r"nothing says which token ends a document.*'<\|endoftext\|>' \(0\)"),
            ("</eos>", r"eod '</eos>' is not one token.*'<\|endoftext\|>' \(0\)"),
            ("the quick brown", r"eod 'the quick brown' is not one token of the vocabulary \(as text it makes \d+ ids"),
            (320, r"eod 320 is outside the vocabulary, whose ids go from 0 to \d+.*'<\|endoftext\|>' \(0\)"),
        ],
    )
    def test_that_cannot_be_is_refused_before_any_work(self, workshop: Any, eod: str | int | None, says: str) -> None:
        with pytest.raises(GristmillError, match=says):
            self.prepare(workshop, eod)
        assert not (workshop.folder / "out").exists()

    @pytest.mark.parametrize("eod", ["<|endoftext|>", 0])
    def test_by_spelling_or_id_is_recorded(self, workshop: Any, eod: str | int) -> None:
        self.prepare(workshop, eod)
        assert workshop.manifest()["tokenizer"]["eod_id"] == 0
        assert workshop.texts("s0") == TEXTS
        assert open_corpus(str(workshop.folder / "out")).stream().eod_id == 0

    def test_of_the_tokenizers_own_files(self, workshop: Any) -> None:
        config = {"eos_token": "<|endoftext|>"}
        data = workshop.tokenizer.read_bytes()
        workshop.tokenizer = Path(workshop.write("own/tokenizer.json", data))
        workshop.write("own/tokenizer_config.json", json.dumps(config).encode())
        self.prepare(workshop, None)
        assert workshop.manifest()["tokenizer"]["eod_id"] == 0

    @pytest.mark.parametrize(
        ("eod", "expected"), [("<|end_of_text|>", 2003), ("<|endoftext|>", 2004), (None, None), ("</s>", None)]
    )
    def test_of_a_real_tokenizer(self, workshop: Any, shared_data: Path, eod: str | None, expected: int | None) -> None:
        workshop.tokenizer = shared_data / "small_tokenizer.json"
        if expected is None:
            with pytest.raises(GristmillError, match=r"'<\|end_of_text\|>' \(2003\)"):
                self.prepare(workshop, eod)
            return
        self.prepare(workshop, eod)
        assert [document[-1] for document in workshop.documents("s0")] == [expected] * len(TEXTS)


def test_no_bos_whatever_the_post_processor_adds(workshop: Any, set_tokenizer: SetTokenizer) -> None:
    plain = tokenizer_of(workshop)
    trapped = tokenizer_of(workshop)
    trapped.add_special_tokens(["<s>"])
    begin = trapped.token_to_id("<s>")
    trapped.post_processor = processors.TemplateProcessing(
        single="<s> $A <|endoftext|>", special_tokens=[("<s>", begin), ("<|endoftext|>", 0)]
    )
    assert trapped.encode("hi").ids[0] == begin
    assert trapped.encode("").ids == [begin, 0]
    set_tokenizer(trapped)
    workshop.prepare({"files": [workshop.jsonl("a.jsonl", [TEXTS[0], "", *TEXTS[1:]])]})
    assert workshop.documents("s0") == [[*plain.encode(text, add_special_tokens=False).ids, 0] for text in TEXTS]
    assert workshop.manifest()["sources"][0]["dropped"] == {"empty": 1}


CONTROL = [
    "see <|endoftext|> in GPT-2",
    "<|im_start|>system",
    "<|fim_prefix|>",
    "HTML with <s> and </s>",
    "a document that ends in it <|endoftext|>",
    "<|endoftext|>",
]


@pytest.mark.parametrize("kept", [False, True])
def test_control_text(workshop: Any, set_tokenizer: SetTokenizer, kept: bool) -> None:
    tokenizer = tokenizer_of(workshop)
    tokenizer.add_special_tokens(["<|im_start|>", "<|fim_prefix|>", "<s>", "</s>"])
    set_tokenizer(tokenizer)
    named = {"path": str(workshop.tokenizer), "eod": "<|endoftext|>", "control_text": "keep" if kept else "ordinary"}
    workshop.prepare({"files": [workshop.jsonl("a.jsonl", CONTROL)]}, tokenizer=named, index=INDEX)
    documents = workshop.documents("s0")
    marks = {tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|fim_prefix|>", "<s>", "</s>")}
    made = sum(document.count(0) for document in documents)
    counted = workshop.manifest()["sources"][0]["counted"]
    assert counted["control_hits"] == 7
    if kept:
        assert made == len(CONTROL) + 3
        assert marks <= {token for document in documents for token in document}
        return
    assert made == len(CONTROL)
    assert not marks & {token for document in documents for token in document}
    assert workshop.texts("s0") == CONTROL
    import jax
    from jax.sharding import SingleDeviceSharding

    stream = open_corpus(str(workshop.folder / "out")).stream()
    with TokenBatches(stream, len(stream), SingleDeviceSharding(jax.devices()[0])) as batches:
        batch = next(batches)
    changes = np.asarray(batch["inputs"])[:, :-1] == 0
    segments = np.diff(np.asarray(batch["inputs_segmentation"]), axis=1) == 1
    assert (changes == segments).all(), "a segment ends where a document ends, and nowhere else"


class TestDtype:
    """The smallest that Megatron takes for the ids that there are, added ones and the EOD among them."""

    @pytest.mark.parametrize(
        ("size", "added", "dtype"),
        [
            (65_499, 0, "uint16"),
            (65_500, 0, "int32"),
            (65_535, 0, "int32"),
            (65_536, 0, "int32"),
            (65_537, 0, "int32"),
            (65_490, 9, "uint16"),
            (65_490, 10, "int32"),
            (65_530, 10, "int32"),
        ],
    )
    def test_every_id_survives(
        self, workshop: Any, set_tokenizer: SetTokenizer, size: int, added: int, dtype: str
    ) -> None:
        set_tokenizer(word_tokenizer(size, *(f"<added{number}>" for number in range(added))))
        tokenizer = tokenizer_of(workshop)
        words = ["t0", "t1", f"t{size - 2}", *([f"<added{added - 1}>"] if added else [])]
        workshop.prepare({"files": [workshop.jsonl("a.jsonl", [" ".join(words)])]})
        expected = [tokenizer.token_to_id(word) for word in words] + [size - 1]
        assert workshop.documents("s0") == [expected]
        assert max(workshop.documents("s0")[0]) == size + added - 1
        pair = IndexedDataset(str(workshop.folder / "out" / workshop.manifest()["sources"][0]["shards"][0]["path"]))
        assert (pair.dtype, workshop.manifest()["dtype"]) == (np.dtype(dtype), dtype)
        pair.close()


def test_truncation_and_padding_of_the_file(workshop: Any, set_tokenizer: SetTokenizer) -> None:
    plain = tokenizer_of(workshop)
    trapped = tokenizer_of(workshop)
    trapped.enable_truncation(8)
    trapped.enable_padding(pad_id=0)
    set_tokenizer(trapped)
    documents = [" ".join(["fox"] * count) for count in (5, 50, 500)]
    assert [len(found.ids) for found in tokenizer_of(workshop).encode_batch(documents)] == [8, 8, 8]
    workshop.prepare({"files": [workshop.jsonl("a.jsonl", documents)]})
    assert workshop.documents("s0") == [[*plain.encode(text).ids, 0] for text in documents]
