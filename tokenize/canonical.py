"""The one text of a tokenizer: what changes ids by stealth is removed, and the bytes are the same every time.

A ``tokenizer.json`` may carry truncation, padding, a post-processor that adds BOS, and BPE dropout; all four apply by
default and none belongs into a corpus. Working on the JSON itself, rather than on what one version of the `tokenizers`
library writes, trades a little care about its shape for bytes that do not change with that library.
"""

import json
import logging
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

from gristmill.formats.errors import TokenizerError

__all__ = [
    "canonical_text",
    "check_added_tokens",
    "disarm",
    "load_definition",
    "missing_bytes",
    "parse_tokenizer",
    "spellable_tokens",
]

_log = logging.getLogger("gristmill.tokenize")
_TOP_KEYS = (
    "version",
    "truncation",
    "padding",
    "added_tokens",
    "normalizer",
    "pre_tokenizer",
    "post_processor",
    "decoder",
)
_PLACEHOLDER = "\uffff\ufffe{}\ufffe\uffff"


def parse_tokenizer(text: str | bytes, source: str) -> dict[str, Any]:
    """The object that a ``tokenizer.json`` holds.

    Args:
        text: the file's text; bytes are UTF-8, with or without a byte order mark.
        source: names the file in messages.

    Raises:
        TokenizerError: the text is no JSON, or no tokenizer.
    """
    try:
        data = json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{source}: not a tokenizer.json: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise TokenizerError(f"{source}: not a tokenizer.json: it has no `model` object")
    return data


def load_definition(text: str, source: str) -> Tokenizer:
    """Loads a tokenizer with the `tokenizers` library, truncation and padding switched off.

    Raises:
        TokenizerError: the library cannot read it.
    """
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:
        raise TokenizerError(
            f"{source}: the `tokenizers` library cannot load it: {' '.join(str(error).split())}"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def check_added_tokens(data: dict[str, Any], tokenizer: Tokenizer, source: str) -> None:
    """Checks that the `tokenizers` library gives every added token the id that its file states; it may shift them.

    Args:
        data: the parsed ``tokenizer.json``.
        tokenizer: the same, loaded.
        source: names the file in messages.

    Raises:
        TokenizerError: an added token is malformed or got another id.
    """
    for token in data.get("added_tokens") or []:
        found = tokenizer.token_to_id(token["content"])
        if found != token["id"]:
            raise TokenizerError(
                f"{source}: the added token {token['content']!r} is declared with id {token['id']}, but the "
                f"`tokenizers` library gives it {found}: ids of added tokens must follow the model's vocabulary "
                f"without a gap, or the token must stand in `model.vocab` under its id"
            )


def canonical_text(data: dict[str, Any], model_type: str, eod_token: str) -> bytes:
    """Canonical bytes of a tokenizer.

    Truncation, padding, post-processor and BPE dropout are null; the EOD's added token, where there is one, is marked
    special, so that text which spells it can be made harmless; added tokens and the model's vocabulary stand in order
    of id (where `tokenizers` reads a list, the list's order is kept); merges are pairs; other keys are sorted.

    Args:
        data: the parsed ``tokenizer.json``; not changed.
        model_type: ``BPE``, ``Unigram``, ``WordPiece`` or ``WordLevel``; old files do not state it.
        eod_token: spelling of the EOD.

    Returns:
        UTF-8 JSON in one line, with a final newline.

    Raises:
        TokenizerError: the tokenizer holds text that has no UTF-8 form.
    """
    added = [
        _ordered({**token, "special": bool(token.get("special")) or token["content"] == eod_token})
        for token in data.get("added_tokens") or []
    ]
    cleaned = {
        **{key: _ordered(data.get(key)) for key in _TOP_KEYS},
        "version": data.get("version", "1.0"),
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "model": _canonical_model(data["model"], model_type),
    }
    return _dump(cleaned)


def _dump(data: dict[str, Any]) -> bytes:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode("utf-8") + b"\n"
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the tokenizer's JSON holds a lone surrogate, which no text can contain: {error}"
        ) from error


def _ordered(value: Any) -> Any:
    """The same JSON value with the keys of each object sorted, `type` first (it says how the others are read)."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value, key=lambda key: (key != "type", key))}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


def _canonical_model(model: dict[str, Any], model_type: str) -> dict[str, Any]:
    vocab, merges = model.get("vocab"), model.get("merges")
    rest = {key: value for key, value in model.items() if key not in {"vocab", "merges", "type"}}
    if rest.get("dropout"):
        _log.warning("the tokenizer's BPE dropout of %s was switched off: ids must not be random", rest["dropout"])
        rest["dropout"] = None
    cleaned = {"type": model_type, **_ordered(rest)}
    cleaned["vocab"] = (
        dict(sorted(vocab.items(), key=lambda item: (item[1], item[0]))) if isinstance(vocab, dict) else vocab
    )
    if merges is not None:
        cleaned["merges"] = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    return cleaned


def spellable_tokens(tokenizer: Tokenizer, special_tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Special tokens whose ids the model makes from their spelling although special tokens are not matched.

    A Unigram or word-level model finds ``</s>`` in its own vocabulary, and so does a BPE with merges that lead there
    or with `ignore_merges`. Tokens of one character are left alone: they are text.

    Args:
        tokenizer: the definition; its `encode_special_tokens` is set.
        special_tokens: the spellings to try.
    """
    tokenizer.encode_special_tokens = True
    tokens = [token for token in dict.fromkeys(special_tokens) if len(token) > 1]
    shapes = ("{0}", " {0}", "a{0}", "{0}a", "a {0} a", "{0}{0}", "\n{0}\n")
    texts = [shape.replace("{0}", token) for token in tokens for shape in shapes]
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    made = [
        {number for encoding in encodings[start : start + len(shapes)] for number in encoding.ids}
        for start in range(0, len(texts), len(shapes))
    ]
    return tuple(token for token, ids in zip(tokens, made, strict=True) if tokenizer.token_to_id(token) in ids)


def disarm(json_text: bytes, tokens: tuple[str, ...]) -> str:
    """The text of the same tokenizer in which the model cannot make `tokens` from text; every other id stays.

    Each token gives its place in the vocabulary to a placeholder made of noncharacters, leaves the added tokens, and
    takes along the merges that make or use it. Without tokens the text is returned as it is.

    Args:
        json_text: canonical text.
        tokens: spellings in the model's vocabulary.
    """
    if not tokens:
        return json_text.decode("utf-8")
    data = json.loads(json_text)
    model = data["model"]
    names = {token: _PLACEHOLDER.format(place) for place, token in enumerate(tokens)}
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] not in names]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(token, token): number for token, number in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
    if "merges" in model:
        prefix = len(model.get("continuing_subword_prefix") or "")
        model["merges"] = [
            [left, right]
            for left, right in model["merges"]
            if not (left in names or right in names or left + right[prefix:] in names)
        ]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return _dump(data).decode("utf-8")


def missing_bytes(data: dict[str, Any], model_type: str) -> int:
    """How many of the 256 bytes a byte-level BPE has no entry for: text with such a byte loses it without a word."""
    model = data["model"]
    if model_type != "BPE" or model.get("unk_token") or model.get("byte_fallback"):
        return 0
    if '"ByteLevel"' not in json.dumps(data.get("pre_tokenizer")):
        return 0
    return sum(symbol not in model["vocab"] for symbol in pre_tokenizers.ByteLevel.alphabet())
