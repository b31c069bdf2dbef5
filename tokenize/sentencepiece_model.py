"""A SentencePiece ``.model`` as a ``tokenizer.json``.

`transformers` does the conversion and `sentencepiece` itself is kept as the reference that the result is compared with:
the two libraries treat white space and unknown characters alike only by care. Needing both for one file is the price of
not carrying a third reading of the format.
"""

import importlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gristmill.formats.errors import MissingExtraError, TokenizerError
from gristmill.tokenize.sources import LoadedTokenizer, import_transformers

__all__ = ["check_conversion", "is_sentencepiece", "sentencepiece_tokenizer"]


def is_sentencepiece(data: bytes) -> bool:
    """Whether bytes begin like a SentencePiece model: a message whose first field is a piece with its text."""
    return len(data) > 4 and data[0] == 0x0A and data[2] == 0x0A


def sentencepiece_tokenizer(path: Path, source: str) -> LoadedTokenizer:
    """Converts a model file.

    Args:
        path: the file on this machine.
        source: names it in messages.

    Raises:
        MissingExtraError: `sentencepiece`, `protobuf` or `transformers` is not installed.
        TokenizerError: the file is no SentencePiece model, or the installed libraries cannot convert it.
    """
    processor = _processor(path, source)
    eos, pad = processor.eos_id(), processor.pad_id()
    return LoadedTokenizer(
        text=_convert(path, source),
        eos=processor.id_to_piece(eos) if eos >= 0 else None,
        pad=processor.id_to_piece(pad) if pad >= 0 else None,
        reference=_encoder(processor),
    )


def check_conversion(source: str) -> None:
    """Checks that the message classes of `sentencepiece`, which `transformers` needs, can be imported at all.

    Raises:
        TokenizerError: they were compiled for a newer `protobuf` than the installed one, which Apache Beam holds back.
    """
    try:
        importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    except Exception as error:
        reason = " ".join(str(error).split())
        raise TokenizerError(
            f"{source}: the installed `sentencepiece` and `protobuf` do not fit together ({reason}): "
            f"pip install 'sentencepiece<0.2.3', or give the model's tokenizer.json instead"
        ) from error


def _processor(path: Path, source: str) -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise MissingExtraError("sentencepiece", "prepare", "a SentencePiece model") from error
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    except (RuntimeError, ValueError) as error:
        raise TokenizerError(f"{source}: not a SentencePiece model, or a damaged one: {error}") from error


def _encoder(processor: Any) -> Callable[[str], list[int]]:
    def encode(text: str) -> list[int]:
        return list(processor.encode(text, out_type=int))

    return encode


def _convert(path: Path, source: str) -> str:
    transformers = import_transformers("a SentencePiece model")
    check_conversion(source)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(path, Path(folder) / "tokenizer.model")
        try:
            converted = transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
            return str(converted.backend_tokenizer.to_str())
        except Exception as error:
            raise TokenizerError(f"{source}: cannot be converted: {' '.join(str(error).split())}") from error
