"""How an engine that turns texts into flat ids is chosen, and loaded again by the workers.

The Hugging Face `tokenizers` library is the definition. `fastokens` gives the same ids at a small part of the cost, and
is used only after both have encoded a probe of hostile strings, and a sample of the corpus, to the same ids. Proving it
at every start trades a fraction of a second for not having to trust a version number.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gristmill.formats.errors import MissingExtraError, SettingsError, TokenizerError
from gristmill.tokenize.definition import HuggingFaceEngine
from gristmill.tokenize.fast import FastEngine
from gristmill.tokenize.probe import first_difference, probe_texts
from gristmill.tokenize.resolved import ResolvedTokenizer

__all__ = [
    "choose_engine",
    "Engine",
    "EngineChoice",
    "load_engine",
    "set_engine_threads",
]

_log = logging.getLogger("gristmill.tokenize")
_SAMPLE_CHARACTERS = 1_000_000
_SHOWN_CHARACTERS = 40


class Engine(Protocol):
    """Turns texts into ids, without special tokens.

    Deterministic, and safe to share between threads, which it lets run while it works. Not picklable: a worker loads
    its own with `load_engine`.

    Attributes:
        name: the library's name.
        version: the library's version.
    """

    name: str
    version: str

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Flat ids ``[tokens]`` uint32, and offsets ``[len(texts) + 1]`` int64 of each text in them."""
        ...


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine and why it was chosen.

    Attributes:
        engine: ready to encode.
        reason: one sentence for logs and reports.
    """

    engine: Engine
    reason: str


def choose_engine(
    resolved: ResolvedTokenizer, sample_texts: Sequence[str] = (), keep_control_tokens: bool = False
) -> EngineChoice:
    """The fastest engine that gives the definition's ids; a fall-back to the definition is logged as a warning.

    Args:
        resolved: the tokenizer.
        sample_texts: texts of the corpus to compare on besides the probe; the first million characters are used.
        keep_control_tokens: whether text that spells a control token becomes its id.

    Raises:
        TokenizerError: the definition itself cannot load the tokenizer.
        InputError: a sample text is not valid Unicode.
    """
    definition = HuggingFaceEngine(resolved, keep_control_tokens=keep_control_tokens)
    texts = [*probe_texts(resolved.special_tokens), *_bounded(sample_texts)]
    try:
        fast = FastEngine(resolved, keep_control_tokens=keep_control_tokens)
        encoded = fast.encode_strictly(texts)
    except (MissingExtraError, TokenizerError) as error:
        return _fall_back(definition, str(error))
    difference = first_difference(definition.encode(texts), encoded)
    if difference is None:
        proof = f"fastokens {fast.version} gave the ids of tokenizers {definition.version} on {len(texts)} texts"
        return EngineChoice(fast, proof)
    number, by_definition, by_fast = difference
    shown = texts[number][:_SHOWN_CHARACTERS]
    return _fall_back(
        definition,
        f"fastokens {fast.version} gives other ids than tokenizers {definition.version}, first for a text that begins "
        f"{shown!a}: {by_fast[:8]} instead of {by_definition[:8]}",
    )


def load_engine(
    resolved: ResolvedTokenizer, name: str, *, keep_control_tokens: bool = False, version: str | None = None
) -> Engine:
    """Loads, in a worker, the engine that the launcher chose.

    Args:
        resolved: the tokenizer.
        name: ``tokenizers`` or ``fastokens``.
        keep_control_tokens: as the launcher had it.
        version: the launcher's version of the library; None accepts any.

    Raises:
        TokenizerError: the name is unknown, or this machine has another version of the library.
        MissingExtraError: the library is not installed here.
    """
    engines: dict[str, type[HuggingFaceEngine | FastEngine]] = {
        engine.name: engine for engine in (HuggingFaceEngine, FastEngine)
    }
    if name not in engines:
        raise TokenizerError(f"tokenizer engine {name!r} is unknown: it is one of {', '.join(sorted(engines))}")
    engine = engines[name](resolved, keep_control_tokens=keep_control_tokens)
    if version is not None and engine.version != version:
        raise TokenizerError(
            f"this worker has {name} {engine.version}, the launcher proved {version}: install the same version on both"
        )
    return engine


def set_engine_threads(count: int) -> None:
    """Says over how many threads the engines of this process spread one call.

    Both libraries read this when they first encode, so it must come before that. With 1 a call stays on the thread that
    makes it, which costs least, and calls from several threads run side by side: the choice wherever bundles run
    concurrently. With more, all calls of the process share one pool of so many threads (`fastokens` takes at most one
    per core).

    Args:
        count: at least 1.

    Raises:
        SettingsError: the count is below 1.
    """
    if count < 1:
        raise SettingsError(f"engine threads: {count}, where at least 1 is needed")
    os.environ["FASTOKENS_BPE_THREADS"] = str(count)
    os.environ["RAYON_NUM_THREADS"] = str(count)
    os.environ["TOKENIZERS_PARALLELISM"] = "false" if count == 1 else "true"


def _fall_back(definition: HuggingFaceEngine, why: str) -> EngineChoice:
    reason = f"encoding with tokenizers {definition.version}, many times slower than fastokens: {why}"
    _log.warning("%s", reason)
    return EngineChoice(definition, reason)


def _bounded(texts: Sequence[str]) -> list[str]:
    chosen: list[str] = []
    left = _SAMPLE_CHARACTERS
    for text in texts:
        if left <= 0:
            break
        chosen.append(text[:left])
        left -= len(text)
    return chosen
