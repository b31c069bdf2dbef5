"""The engine that defines the ids: the Hugging Face `tokenizers` library, asked for no special tokens.

It makes a Python integer per token on the way and needs some 95 bytes of memory per character of the batch (measured
with version 0.23: 2.8 GB for a document of 30 MB, in linear time), which is what being the definition costs; the faster
engine needs neither.
"""

import importlib.metadata
import itertools
from collections.abc import Sequence

import numpy as np

from gristmill.formats.errors import InputError, TokenizerError
from gristmill.tokenize.canonical import disarm, load_definition
from gristmill.tokenize.resolved import ResolvedTokenizer

__all__ = ["HuggingFaceEngine", "refuse_bad_text"]


class HuggingFaceEngine:
    """Encodes with `tokenizers`; threads may share one instance.

    Attributes:
        name: ``tokenizers``.
        version: of the library.
    """

    name = "tokenizers"

    def __init__(self, resolved: ResolvedTokenizer, *, keep_control_tokens: bool = False) -> None:
        """Loads the tokenizer.

        Args:
            resolved: the tokenizer.
            keep_control_tokens: whether text that spells a control token becomes its id.

        Raises:
            TokenizerError: the library cannot load it.
        """
        text = disarm(resolved.json_text, () if keep_control_tokens else resolved.disarmed_tokens)
        self._tokenizer = load_definition(text, resolved.source or "the tokenizer")
        self._tokenizer.encode_special_tokens = not keep_control_tokens
        self.version = importlib.metadata.version("tokenizers")

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of texts, one after the other.

        Args:
            texts: any number of strings.

        Returns:
            Flat ids, ``[tokens]`` uint32, and where each text starts and ends in them, ``[len(texts) + 1]`` int64.

        Raises:
            InputError: a text holds a lone surrogate or is no text.
            TokenizerError: the library fails on a text.
        """
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:
            refuse_bad_text(texts, error)
            raise TokenizerError(f"`tokenizers` failed on a batch of {len(texts)} texts: {error}") from error
        lists = [encoding.ids for encoding in encodings]
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(ids) for ids in lists], out=offsets[1:])
        ids = np.fromiter(itertools.chain.from_iterable(lists), np.uint32, int(offsets[-1]))
        return ids, offsets


def refuse_bad_text(texts: Sequence[object], error: Exception) -> None:
    """Names the text that no engine can encode, if there is one; called after an engine has failed.

    Raises:
        InputError: a text is not a string, or holds a lone surrogate: half of a UTF-16 pair, absent from UTF-8.
    """
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"document {number} of the batch is {'null' if text is None else type(text).__name__}, not text"
            ) from error
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as found:
            raise InputError(
                f"document {number} of the batch holds the lone surrogate U+{ord(text[found.start]):04X} at character "
                f"{found.start}: it is not valid Unicode text and cannot be tokenized; repair or drop the document"
            ) from error
