"""What every kind of tokenizer file is turned into before it becomes canonical, and what its config files say.

Each reader hands over a ``tokenizer.json`` text and the marks that its files name. Keeping that small trades some
details of the original (chat templates, BOS habits), which no corpus needs, for one path to the canonical form.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gristmill.formats.errors import MissingExtraError, TokenizerError

__all__ = ["CONFIG_NAMES", "import_transformers", "LoadedTokenizer", "own_marks", "with_declared_tokens"]

CONFIG_NAMES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "config.json",
    "added_tokens.json",
)
"""Files beside a ``tokenizer.json`` that say which token ends a text, and which tokens were added to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTokenizer:
    """A tokenizer as its own files give it.

    Attributes:
        text: a ``tokenizer.json``.
        eos: spelling or id of the end mark that its files name, None where they name none.
        pad: spelling of its padding token, None where its files name none.
        reference: the original's own encoder (text to ids), where there is one to compare with.
    """

    text: str
    eos: str | int | None = None
    pad: str | None = None
    reference: Callable[[str], list[int]] | None = None


def own_marks(files: Mapping[str, bytes], source: str) -> tuple[str | int | None, str | None]:
    """The end mark and the padding token that config files name.

    The first of these that names an end mark counts: ``eos_token`` of tokenizer_config.json and of
    special_tokens_map.json, then a single ``eos_token_id`` of generation_config.json and of config.json. (A list of ids
    says which tokens stop a generation, not which one ends a document.)

    Args:
        files: contents of the config files by name; others are ignored.
        source: names their folder in messages.

    Returns:
        Spelling or id of the end mark, and spelling of the padding token; None for what is not named.

    Raises:
        TokenizerError: a config file is not JSON.
    """
    eos: str | int | None = None
    pad: str | None = None
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        config = _config(files, name, source)
        eos = eos if eos is not None else _spelling(config.get("eos_token"))
        pad = pad if pad is not None else _spelling(config.get("pad_token"))
    for name in ("generation_config.json", "config.json"):
        number = _config(files, name, source).get("eos_token_id")
        number = number[0] if isinstance(number, list) and len(number) == 1 else number
        if eos is None and isinstance(number, int):
            eos = number
    return eos, pad


def with_declared_tokens(text: str, files: Mapping[str, bytes], source: str) -> str:
    """A ``tokenizer.json`` text with the added tokens that only its config files declare.

    Fine-tuned models often add tokens in tokenizer_config.json (`added_tokens_decoder`) or added_tokens.json alone.

    Args:
        text: the tokenizer.json's text; returned as it is when nothing is missing.
        files: contents of the config files by name.
        source: names their folder in messages.

    Raises:
        TokenizerError: a file is not JSON or declares a token without a usable id.
    """
    declared: dict[str, dict[str, Any]] = {}
    decoder = _config(files, "tokenizer_config.json", source).get("added_tokens_decoder")
    for number, token in (decoder or {}).items():
        if not str(number).isdigit() or _spelling(token) is None:
            raise TokenizerError(f"{source}/tokenizer_config.json: added_tokens_decoder[{number!r}] is no added token")
        flags = token if isinstance(token, dict) else {}
        declared[str(_spelling(token))] = {"id": int(number), **flags}
    for token, number in _config(files, "added_tokens.json", source).items():
        if not isinstance(number, int):
            raise TokenizerError(f"{source}/added_tokens.json: {token!r} has {number!r} where its id belongs")
        declared.setdefault(token, {"id": number})
    if not declared:
        return text
    try:
        data = json.loads(text)
        present = {token["content"] for token in data.get("added_tokens") or []} | set(_vocabulary(data["model"]))
    except (ValueError, KeyError, TypeError) as error:
        raise TokenizerError(f"{source}/tokenizer.json: not a tokenizer.json: {error!r}") from error
    missing = {token: flags for token, flags in declared.items() if token not in present}
    if not missing:
        return text
    data["added_tokens"] = [
        *(data.get("added_tokens") or []),
        *(
            {
                "id": flags["id"],
                "content": token,
                "single_word": bool(flags.get("single_word", False)),
                "lstrip": bool(flags.get("lstrip", False)),
                "rstrip": bool(flags.get("rstrip", False)),
                "normalized": bool(flags.get("normalized", not flags.get("special", False))),
                "special": bool(flags.get("special", False)),
            }
            for token, flags in sorted(missing.items(), key=lambda item: int(item[1]["id"]))
        ),
    ]
    return json.dumps(data)


def _vocabulary(model: dict[str, Any]) -> list[str]:
    vocab = model["vocab"]
    return list(vocab) if isinstance(vocab, dict) else [piece for piece, _ in vocab]


def _config(files: Mapping[str, bytes], name: str, source: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        config = json.loads(files[name])
    except ValueError as error:
        raise TokenizerError(f"{source}/{name}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise TokenizerError(f"{source}/{name}: holds a {type(config).__name__} where an object belongs")
    return config


def _spelling(token: object) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def import_transformers(purpose: str) -> Any:
    """The `transformers` module, without its advice to install a framework that no tokenizer needs.

    Raises:
        MissingExtraError: it is not installed.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "prepare", purpose) from error
    return transformers
