"""The fast engine: `fastokens`, which hands over flat buffers and makes no Python integers.

It may be used only after `choose_engine` has compared it with the definition. Where it refuses a text, the batch is
encoded by the definition instead: the ids are the same in either case, so only speed is traded.
"""

import importlib.metadata
import json
import logging
import threading
from typing import Any

import numpy as np

from gristmill.formats.errors import MissingExtraError, TokenizerError
from gristmill.tokenize.canonical import disarm
from gristmill.tokenize.definition import HuggingFaceEngine, refuse_bad_text
from gristmill.tokenize.resolved import ResolvedTokenizer

__all__ = ["FastEngine"]

_log = logging.getLogger("gristmill.tokenize")
_HOLE = "\ufffe\uffff{}\uffff\ufffe"


class FastEngine:
    """Encodes with `fastokens`; threads may share one instance.

    Attributes:
        name: ``fastokens``.
        version: of the library.
    """

    name = "fastokens"

    def __init__(self, resolved: ResolvedTokenizer, *, keep_control_tokens: bool = False) -> None:
        """Loads the tokenizer.

        Args:
            resolved: the tokenizer.
            keep_control_tokens: whether text that spells a control token becomes its id.

        Raises:
            MissingExtraError: `fastokens` is not installed.
            TokenizerError: the library does not know this kind of tokenizer.
        """
        try:
            import fastokens
        except ImportError as error:
            raise MissingExtraError("fastokens", "prepare", "fast tokenization") from error
        text = disarm(resolved.json_text, () if keep_control_tokens else resolved.disarmed_tokens)
        try:
            self._tokenizer = _load(fastokens, text)
        except Exception as error:
            raise TokenizerError(f"`fastokens` cannot load the tokenizer: {' '.join(str(error).split())}") from error
        self.version = importlib.metadata.version("fastokens")
        self._split_special_tokens = not keep_control_tokens
        self._resolved = resolved
        self._lock = threading.Lock()
        self._definition: HuggingFaceEngine | None = None

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of texts, one after the other.

        Args:
            texts: any number of strings.

        Returns:
            Flat ids, ``[tokens]`` uint32, and where each text starts and ends in them, ``[len(texts) + 1]`` int64; both
            are read-only views of the library's buffers.

        Raises:
            InputError: a text holds a lone surrogate or is no text.
        """
        try:
            return self.encode_strictly(texts)
        except TokenizerError as error:
            return self._by_definition(error).encode(texts)

    def encode_strictly(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `encode`, with an error instead of the definition's help.

        Raises:
            InputError: a text holds a lone surrogate or is no text.
            TokenizerError: the library refuses a text.
        """
        try:
            ids, offsets = self._tokenizer.encode_batch_flat(
                texts, add_special_tokens=False, split_special_tokens=self._split_special_tokens
            )
        except Exception as error:
            refuse_bad_text(texts, error)
            raise TokenizerError(f"`fastokens` refuses a text: {' '.join(str(error).split())}") from error
        return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<i8")

    def _by_definition(self, error: Exception) -> HuggingFaceEngine:
        with self._lock:
            if self._definition is None:
                _log.warning("%s; such batches are encoded with `tokenizers`", error)
                self._definition = HuggingFaceEngine(self._resolved, keep_control_tokens=not self._split_special_tokens)
            return self._definition


def _load(fastokens: Any, text: str) -> Any:
    """Loads a tokenizer; one whose ids have gaps, which the library does not take, gets entries that no text makes."""
    try:
        return fastokens.Tokenizer.from_json_str(text)
    except Exception:
        filled = _filled(text)
        if filled is None:
            raise
        return fastokens.Tokenizer.from_json_str(filled)


def _filled(text: str) -> str | None:
    """The tokenizer with an entry for every id of its model's vocabulary; None where no id is missing."""
    data = json.loads(text)
    vocab = data["model"]["vocab"]
    if not isinstance(vocab, dict):
        return None
    taken = set(vocab.values())
    missing = [number for number in range(max(taken, default=-1)) if number not in taken]
    if not missing:
        return None
    vocab.update({_HOLE.format(number): number for number in missing})
    return json.dumps(data)
