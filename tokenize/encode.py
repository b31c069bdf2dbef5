"""Batches of text to ids in the corpus's dtype, each non-empty document closed by exactly one EOD.

This is what a worker runs: everything around the engine's own call is a handful of NumPy passes over the batch. One
call takes 64 to 256 documents, about 1 MB, which bounds memory whatever the file's size; more in a call gains nothing.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.formats.errors import TokenizerError
from gristmill.tokenize.engine import Engine
from gristmill.tokenize.resolved import ResolvedTokenizer, TokenDtype

__all__ = ["ControlCounter", "EncodedBatch", "Encoder", "slices"]

_DTYPES: dict[str, np.dtype[np.integer[Any]]] = {"uint16": np.dtype("<u2"), "int32": np.dtype("<i4")}


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """The ids of a batch of documents.

    Attributes:
        ids: ``[tokens]`` in the corpus's dtype (little-endian uint16 or int32): the documents one after the other, each
            non-empty one closed by one EOD.
        lengths: ``[documents]`` int32: tokens of each input document, its EOD included; 0 where nothing was encoded.
        control_hits: ``[documents]`` uint32: how often each text spells a control token.
        eod_in_text: ``[documents]`` uint32: how many EOD ids each text itself made; 0 unless control tokens are kept or
            the EOD is ordinary text to this tokenizer.
    """

    ids: np.ndarray
    lengths: np.ndarray
    control_hits: np.ndarray
    eod_in_text: np.ndarray


class Encoder:
    """Encodes batches of documents; threads may share one instance.

    Attributes:
        eod_id: closes every non-empty document.
        dtype: of the ids.
    """

    def __init__(
        self, engine: Engine, eod_id: int, dtype: TokenDtype, vocabulary: int, special_tokens: Sequence[str] = ()
    ) -> None:
        """Fixes how documents are closed and stored.

        Args:
            engine: turns texts into ids.
            eod_id: closes every non-empty document.
            dtype: how ids are stored.
            vocabulary: every id must be below it.
            special_tokens: spellings whose occurrences in texts are counted.

        Raises:
            TokenizerError: the EOD is not below the vocabulary, or the vocabulary does not fit the dtype.
        """
        if not 0 <= eod_id < vocabulary:
            raise TokenizerError(f"EOD {eod_id} is outside the vocabulary of {vocabulary}")
        largest = int(np.iinfo(_DTYPES[dtype]).max)
        if vocabulary - 1 > largest:
            raise TokenizerError(f"a vocabulary of {vocabulary} does not fit {dtype}, whose largest id is {largest}")
        self._engine = engine
        self.eod_id = eod_id
        self.dtype = _DTYPES[dtype]
        self._vocabulary = vocabulary
        self._control = ControlCounter(special_tokens)

    @classmethod
    def of(cls, resolved: ResolvedTokenizer, engine: Engine) -> "Encoder":
        """The encoder of a resolved tokenizer."""
        return cls(engine, resolved.eod_id, resolved.dtype, resolved.vocabulary, resolved.special_tokens)

    def encode(self, texts: Any) -> EncodedBatch:
        """Encodes documents.

        Args:
            texts: a list of strings, or an Arrow array of them (`pyarrow.StringArray`, its large and chunked kin).

        Returns:
            Their ids, EOD included, in the order of the documents.

        Raises:
            InputError: a document is null or not text, or holds a lone surrogate.
            TokenizerError: the engine made an id outside the vocabulary.
        """
        documents: list[str] = texts if isinstance(texts, list) else texts.to_pylist()
        found, offsets = self._engine.encode(documents)
        if len(found) and int(found.max()) >= self._vocabulary:
            raise TokenizerError(
                f"{self._engine.name} made the id {int(found.max())}, outside the vocabulary of {self._vocabulary}: "
                f"the tokenizer in use is not the one that the corpus records"
            )
        lengths = np.diff(offsets)
        closed = lengths > 0
        lengths = lengths + closed
        ends = np.cumsum(lengths)[closed] - 1
        ids = np.empty(len(found) + len(ends), self.dtype)
        from_text = np.ones(len(ids), np.bool_)
        from_text[ends] = False
        ids[from_text] = found
        ids[ends] = self.eod_id
        eod_in_text = np.zeros(len(lengths), np.uint32)
        places = np.flatnonzero(ids == self.eod_id)
        if len(places) > len(ends):
            documents_of = np.searchsorted(ends, places[~np.isin(places, ends, assume_unique=True)])
            np.add.at(eod_in_text, np.flatnonzero(closed)[documents_of], 1)
        return EncodedBatch(ids, lengths.astype(np.int32), self._control.count(documents), eod_in_text)


class ControlCounter:
    """Counts spellings of control tokens in texts.

    Spellings that begin alike are looked for by their common beginning, and that only where its rarest character occurs
    (a search for one character is many times faster than for two); the regular expression that counts runs over texts
    in which a beginning was found. A corpus with few hits pays for little more than a pass of `memchr`.
    """

    def __init__(self, special_tokens: Sequence[str]) -> None:
        """Prepares the search; empty spellings are ignored."""
        tokens = sorted({token for token in special_tokens if token}, key=lambda token: (-len(token), token))
        groups: dict[str, list[str]] = {}
        for token in tokens:
            groups.setdefault(token[:2], []).append(token)
        beginnings = sorted(_common_beginning(min(group), max(group)) for group in groups.values())
        self._searches = [(min(beginning, key=_commonness), beginning) for beginning in beginnings]
        self._pattern = re.compile("|".join(re.escape(token) for token in tokens)) if tokens else None

    def count(self, texts: Sequence[str]) -> np.ndarray:
        """How often each text spells a control token; of spellings that overlap, the first and longest counts.

        Returns:
            ``[texts]`` uint32.
        """
        hits = np.zeros(len(texts), np.uint32)
        if self._pattern is None:
            return hits
        for place, text in enumerate(texts):
            for rarest, beginning in self._searches:
                if rarest in text and beginning in text:
                    hits[place] = len(self._pattern.findall(text))
                    break
        return hits


def _common_beginning(first: str, last: str) -> str:
    """What the first and the last of some sorted words, and so all of them, begin with."""
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(character for character, _ in alike)


def _commonness(character: str) -> int:
    """A rough rank of how often a character occurs in text and code."""
    if not character.isascii() or character in "|~^`\\@$%&":
        return 0
    return 1 if character in "<>[]{}#*+=_!?/" else 2


def slices(texts: Sequence[str], *, max_documents: int = 128, max_characters: int = 1_000_000) -> Iterator[slice]:
    """Cuts a list of documents into batches for `Encoder.encode`.

    A batch ends before the document that would take it past a limit; a document longer than the limit is a batch alone.

    Args:
        texts: documents.
        max_documents: most documents in a batch, at least 1.
        max_characters: most characters in a batch.

    Yields:
        Slices of `texts`, in order, which together cover it.
    """
    start = size = 0
    for place, text in enumerate(texts):
        if place > start and (place - start >= max_documents or size + len(text) > max_characters):
            yield slice(start, place)
            start, size = place, 0
        size += len(text)
    if start < len(texts):
        yield slice(start, len(texts))
