"""Without an optional library: one sentence that names it and the extra, or the fall-back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece

END = "<|endoftext|>"

SCRIPT = """
import json, logging, sys
for name in json.loads(sys.argv[2]):
    sys.modules[name] = None  # what Python itself does for a module that cannot be imported
from gristmill.formats.errors import GristmillError
from gristmill.tokenize.engine import choose_engine, load_engine
from gristmill.tokenize.load import resolve_tokenizer
try:
    resolved = resolve_tokenizer(sys.argv[1], sys.argv[3])
    print(choose_engine(resolved).engine.name)
    load_engine(resolved, "fastokens")
except GristmillError as error:
    print(type(error).__name__, error, sep=": ")
"""


def without(path: Path | str, *modules: str, eod: str = END) -> tuple[list[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), json.dumps(modules), eod], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines(), done.stderr


@pytest.fixture(scope="module")
def model(python_sources: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "corpus.txt").write_text(python_sources[0], encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus.txt"), model_prefix=str(folder / "m"), vocab_size=200, minloglevel=2
    )
    return folder / "m.model"


def test_without_fastokens_the_definition_is_used_aloud(byte_bpe: str, tmp_path: Path) -> None:
    (tmp_path / "made.json").write_text(byte_bpe, encoding="utf-8")
    lines, told = without(tmp_path / "made.json", "fastokens")
    message = "fast tokenization needs `fastokens`, which is not installed: pip install 'gristmill[prepare]'"
    assert lines == ["tokenizers", f"MissingExtraError: {message}"]
    assert message in told


@pytest.mark.parametrize("module", ["sentencepiece", "transformers"])
def test_without_what_a_sentencepiece_model_needs(module: str, model: Path) -> None:
    lines, _ = without(model, module, eod="</s>")
    message = f"a SentencePiece model needs `{module}`, which is not installed: pip install 'gristmill[prepare]'"
    assert lines == [f"MissingExtraError: {message}"]


def test_with_messages_that_protobuf_cannot_load(model: Path) -> None:
    lines, _ = without(model, "sentencepiece.sentencepiece_model_pb2", eod="</s>")
    assert len(lines) == 1
    assert f"TokenizerError: {model}: the installed `sentencepiece` and `protobuf` do not fit together (" in lines[0]
    assert lines[0].endswith("pip install 'sentencepiece<0.2.3', or give the model's tokenizer.json instead")


def test_without_the_hubs_library() -> None:
    lines, _ = without("some/model", "huggingface_hub")
    message = "the tokenizer 'some/model' of the hub needs `huggingface_hub`, which is not installed"
    assert lines == [f"MissingExtraError: {message}: pip install 'gristmill[prepare]'"]
