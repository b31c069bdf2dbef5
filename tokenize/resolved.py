"""A tokenizer as a corpus keeps it: one canonical JSON text plus the few facts that everything else needs.

The launcher resolves a tokenizer once and writes ``tokenizer/tokenizer.json`` and ``tokenizer/facts.json``; workers and
readers load only these. Two files instead of one trade a second read for a ``tokenizer.json`` that any other tool opens
as it is.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gristmill.formats import storage
from gristmill.formats.errors import CorpusError, TokenizerError
from gristmill.formats.fingerprint import digest, pretty_json

__all__ = [
    "fingerprint_of",
    "load_resolved",
    "MEGATRON_UINT16_LIMIT",
    "ResolvedTokenizer",
    "token_dtype",
    "TokenDtype",
    "write_resolved",
]

TokenDtype = Literal["uint16", "int32"]
"""How ids are stored: unsigned 16-bit or signed 32-bit little-endian integers."""

MEGATRON_UINT16_LIMIT = 65_500
"""Vocabularies below this size are stored in 16 bits: Megatron-LM, ``DType.optimal_dtype`` of its indexed dataset."""

_FACTS_VERSION = 1
_JSON_NAME = "tokenizer.json"
_FACTS_NAME = "facts.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTokenizer:
    """A tokenizer ready to encode, with nothing left to look up.

    Attributes:
        json_text: canonical ``tokenizer.json``, UTF-8, without truncation, padding and post-processor.
        fingerprint: see `fingerprint_of`.
        eod_id: id that closes every document; below `vocabulary`.
        eod_token: how the tokenizer spells that id.
        pad_id: the tokenizer's padding id, None where it names none.
        vocabulary: the smallest number above every id (base vocabulary, added tokens and EOD).
        dtype: how ids are stored, by `token_dtype`.
        special_tokens: spellings that stand for control ids, the EOD's among them, in order of id.
        disarmed_tokens: those of them that the bare model would make from text that spells them even when special
            tokens are not matched; the engines take them out of the model's vocabulary, under their ids.
        source: where the tokenizer came from, for messages; never written into a corpus.
    """

    json_text: bytes
    fingerprint: str
    eod_id: int
    eod_token: str
    pad_id: int | None
    vocabulary: int
    dtype: TokenDtype
    special_tokens: tuple[str, ...]
    disarmed_tokens: tuple[str, ...] = ()
    source: str = ""

    def __repr__(self) -> str:
        return (
            f"ResolvedTokenizer({self.fingerprint[:7]}, vocabulary={self.vocabulary}, eod={self.eod_token!r} "
            f"({self.eod_id}), dtype={self.dtype}, source={self.source!r})"
        )


def token_dtype(vocabulary: int) -> TokenDtype:
    """The integer type for ids below `vocabulary`, by Megatron's rule: 16 bits below 65,500, else 32 bits.

    Raises:
        TokenizerError: an id does not fit 32 signed bits.
    """
    if vocabulary < MEGATRON_UINT16_LIMIT:
        return "uint16"
    if vocabulary > 2**31:
        raise TokenizerError(
            f"the tokenizer's largest id is {vocabulary - 1}: ids are stored in 32 signed bits, at most {2**31 - 1}"
        )
    return "int32"


def fingerprint_of(json_text: bytes, eod_id: int) -> str:
    """Identity of what decides the ids: SHA-256 of the canonical JSON of the text's own SHA-256 and the EOD's id."""
    return digest({"eod_id": eod_id, "tokenizer_sha256": hashlib.sha256(json_text).hexdigest()})


def write_resolved(resolved: ResolvedTokenizer, folder: str) -> list[tuple[str, storage.FileFacts]]:
    """Writes ``tokenizer.json`` and ``facts.json`` into a folder; the same tokenizer always gives the same bytes.

    Args:
        resolved: the tokenizer.
        folder: path or URL, usually ``<corpus>/tokenizer``.

    Returns:
        Name and facts of each file, in the order written.
    """
    facts = {
        "version": _FACTS_VERSION,
        "fingerprint": resolved.fingerprint,
        "tokenizer_sha256": hashlib.sha256(resolved.json_text).hexdigest(),
        "eod_id": resolved.eod_id,
        "eod_token": resolved.eod_token,
        "pad_id": resolved.pad_id,
        "vocabulary": resolved.vocabulary,
        "dtype": resolved.dtype,
        "special_tokens": list(resolved.special_tokens),
        "disarmed_tokens": list(resolved.disarmed_tokens),
    }
    return [
        (name, storage.write_bytes(storage.join(folder, name), data))
        for name, data in ((_JSON_NAME, resolved.json_text), (_FACTS_NAME, pretty_json(facts)))
    ]


def load_resolved(folder: str) -> ResolvedTokenizer:
    """Reads back what `write_resolved` wrote and checks that the two files still belong together.

    Args:
        folder: path or URL of the folder that holds both files.

    Raises:
        StorageError: a file is absent or cannot be read.
        CorpusError: ``facts.json`` is damaged or of another version, or ``tokenizer.json`` was changed.
    """
    facts_path = storage.join(folder, _FACTS_NAME)
    json_path = storage.join(folder, _JSON_NAME)
    facts = _read_facts(facts_path)
    json_text = storage.read_bytes(json_path)
    found = hashlib.sha256(json_text).hexdigest()
    if found != facts["tokenizer_sha256"]:
        raise CorpusError(
            f"{json_path}: sha256 {found} where {facts_path} says {facts['tokenizer_sha256']}: the tokenizer was "
            f"changed after the corpus was prepared; restore it or prepare again"
        )
    if fingerprint_of(json_text, facts["eod_id"]) != facts["fingerprint"]:
        raise CorpusError(
            f"{facts_path}: fingerprint {facts['fingerprint']!r} does not follow from the tokenizer and eod_id "
            f"{facts['eod_id']}: the file was changed after the corpus was prepared; restore it or prepare again"
        )
    return ResolvedTokenizer(
        json_text=json_text,
        fingerprint=facts["fingerprint"],
        eod_id=facts["eod_id"],
        eod_token=facts["eod_token"],
        pad_id=facts["pad_id"],
        vocabulary=facts["vocabulary"],
        dtype=facts["dtype"],
        special_tokens=tuple(facts["special_tokens"]),
        disarmed_tokens=tuple(facts["disarmed_tokens"]),
        source=json_path,
    )


def _read_facts(path: str) -> dict[str, Any]:
    try:
        facts = json.loads(storage.read_bytes(path))
    except ValueError as error:
        raise CorpusError(f"{path}: not JSON: {error}") from error
    if not isinstance(facts, dict) or facts.get("version") != _FACTS_VERSION:
        version = facts.get("version") if isinstance(facts, dict) else None
        raise CorpusError(f"{path}: version {version!r} where {_FACTS_VERSION} is known: written by another Gristmill?")
    for key, good in (
        ("fingerprint", isinstance(facts.get("fingerprint"), str)),
        ("tokenizer_sha256", isinstance(facts.get("tokenizer_sha256"), str)),
        ("eod_token", isinstance(facts.get("eod_token"), str)),
        ("dtype", facts.get("dtype") in get_args(TokenDtype)),
        ("vocabulary", _is_count(facts.get("vocabulary"))),
        ("eod_id", _is_count(facts.get("eod_id"))),
        ("pad_id", facts.get("pad_id") is None or _is_count(facts.get("pad_id"))),
        ("special_tokens", _are_strings(facts.get("special_tokens"))),
        ("disarmed_tokens", _are_strings(facts.get("disarmed_tokens"))),
    ):
        if not good:
            raise CorpusError(f"{path}: {key} is {facts.get(key)!r}, which it cannot be: the file is damaged")
    if facts["eod_id"] >= facts["vocabulary"]:
        raise CorpusError(f"{path}: eod_id {facts['eod_id']} is not below the vocabulary {facts['vocabulary']}")
    if facts["dtype"] != token_dtype(facts["vocabulary"]):
        raise CorpusError(f"{path}: dtype {facts['dtype']} does not suit a vocabulary of {facts['vocabulary']}")
    return facts


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
