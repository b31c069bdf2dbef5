"""tiktoken's rank files (one base64 token and its rank a line) as a ``tokenizer.json``.

A rank file holds neither the pattern that splits text nor the control tokens; both belong to a named encoding. The name
is read from the file's own name, because a wrong pattern gives plausible ids that are silently wrong:

    file name                                     pattern                      control tokens
    gpt2, r50k_base, p50k_base, p50k_edit         GPT-2's                      as the tiktoken library numbers them
    cl100k_base                                   cl100k's                     as the tiktoken library numbers them
    o200k_base, o200k_harmony                     o200k's                      as the tiktoken library numbers them
    llama3, llama-3, or any name with 128,000     cl100k's, as Meta's code     256 from the number of ranks on
    ranks (Meta's `tokenizer.model`)

A suffix after a ``.`` or ``-`` is ignored (``cl100k_base.tiktoken``, ``llama3-8b.model``). tiktoken joins whichever
neighbours make the lowest rank, so each way of splitting a token into two becomes a merge of that token's rank: more
merges than the training found, and the same ids as tiktoken for every text.
"""

import base64
import binascii
import json
import re
from pathlib import PurePosixPath
from typing import Any

from tokenizers import pre_tokenizers

from gristmill.formats.errors import TokenizerError
from gristmill.tokenize.sources import LoadedTokenizer

__all__ = ["is_tiktoken", "tiktoken_tokenizer"]

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END = "<|endoftext|>"
_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_O200K_TOKENS = {_END: 199999, "<|endofprompt|>": 200018}
_HARMONY = {
    "<|startoftext|>": 199998,
    "<|return|>": 200002,
    "<|constrain|>": 200003,
    "<|channel|>": 200005,
    "<|start|>": 200006,
    "<|end|>": 200007,
    "<|message|>": 200008,
    "<|call|>": 200012,
}
_ENCODINGS: dict[str, tuple[int, str | None, dict[str, int]]] = {
    # Number of ranks, pattern (None is GPT-2's, which `tokenizers` has built in), control tokens.
    "gpt2": (50_256, None, {_END: 50256}),
    "r50k_base": (50_256, None, {_END: 50256}),
    "p50k_base": (50_280, None, {_END: 50256}),
    "p50k_edit": (50_280, None, {_END: 50256, **{token: 50281 + place for place, token in enumerate(_FIM)}}),
    "cl100k_base": (
        100_256,
        _CL100K,
        {_END: 100257, **{token: 100258 + place for place, token in enumerate(_FIM)}, "<|endofprompt|>": 100276},
    ),
    "o200k_base": (199_998, _O200K, _O200K_TOKENS),
    "o200k_harmony": (199_998, _O200K, {**_O200K_TOKENS, **_HARMONY}),
}
_HARMONY_END = 201088
_LLAMA3_RANKS = 128_000
_LLAMA3_NAMED = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
)
_LLAMA3_CONTROL = 256
_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n?")


def is_tiktoken(data: bytes) -> bool:
    """Whether bytes look like a rank file: the first lines are base64, a space and a number."""
    head = data[:4096].splitlines(keepends=True)
    whole = head if len(data) <= 4096 else head[:-1]
    return bool(whole) and all(_LINE.fullmatch(line) for line in whole if line.strip())


def tiktoken_tokenizer(data: bytes, name: str, source: str) -> LoadedTokenizer:
    """A rank file as a byte-level BPE with its encoding's pattern and control tokens.

    Args:
        data: the file's bytes.
        name: the file's name, which tells the encoding.
        source: names the file in messages.

    Raises:
        TokenizerError: a line is damaged, ranks collide, or the encoding is not known.
    """
    ranks = _read_ranks(data, source)
    pattern, control, end = _encoding(name, ranks, source)
    symbols = _byte_symbols()
    spelled = {token: "".join(symbols[byte] for byte in token) for token in ranks}
    vocab = {spelled[token]: rank for token, rank in ranks.items()}
    taken = set(ranks.values())
    clash = next((token for token, number in control.items() if number in taken), None)
    if clash is not None:
        raise TokenizerError(
            f"{source}: id {control[clash]} is {clash!r} in this encoding, but the file gives it to other bytes: it is "
            f"another encoding than its name says"
        )
    named = {number: token for token, number in control.items()}
    added = {
        number: named.get(number, f"<|reserved_{number}|>")
        for number in range(max(max(taken), *named) + 1)
        if number not in taken
    }
    vocab.update({token: number for number, token in added.items()})
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = _byte_level(use_regex=pattern is None)
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [_added_token(number, token) for number, token in sorted(added.items())],
        "normalizer": None,
        "pre_tokenizer": byte_level if pattern is None else {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": vocab,
            "merges": [[spelled[left], spelled[right]] for left, right in _merges(ranks)],
        },
    }
    return LoadedTokenizer(text=json.dumps(tokenizer), eos=end)


def _read_ranks(data: bytes, source: str) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(f"{source}, line {number}: not a base64 token and a rank: {line[:40]!r}") from error
    if len(set(ranks.values())) != len(ranks):
        raise TokenizerError(f"{source}: two tokens share a rank, so their ids would be the same")
    return ranks


def _encoding(name: str, ranks: dict[bytes, int], source: str) -> tuple[str | None, dict[str, int], str]:
    """Pattern, control tokens and end mark of the encoding that a file's name tells."""
    stem = re.split(r"[.\-]", PurePosixPath(name).name.lower().replace("llama-3", "llama3"))[0]
    if stem in _ENCODINGS:
        expected, pattern, control = _ENCODINGS[stem]
        if len(ranks) != expected:
            raise TokenizerError(
                f"{source}: {len(ranks)} ranks where {stem} has {expected}: cut short, or another encoding than its "
                f"name says"
            )
        if stem == "o200k_harmony":
            taken = set(control.values())
            reserved = {
                f"<|reserved_{number}|>": number for number in range(200_000, _HARMONY_END) if number not in taken
            }
            control = {**control, **reserved}
        return pattern, control, _END
    if stem == "llama3" or len(ranks) == _LLAMA3_RANKS:
        unnamed = (f"<|reserved_special_token_{2 + place}|>" for place in range(_LLAMA3_CONTROL - len(_LLAMA3_NAMED)))
        numbered = {token: len(ranks) + place for place, token in enumerate([*_LLAMA3_NAMED, *unnamed])}
        return _CL100K, numbered, "<|end_of_text|>"
    raise TokenizerError(
        f"{source}: a tiktoken file with {len(ranks)} ranks, but its name does not say which encoding it is, and the "
        f"file holds no split pattern: name it after one ({', '.join([*_ENCODINGS, 'llama3'])}) or give the model's "
        f"tokenizer.json instead"
    )


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    found = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = ranks.get(token[:cut]), ranks.get(token[cut:])
            if left is not None and right is not None:
                found.append((rank, left, right, token, cut))
    found.sort(key=lambda merge: merge[:3])
    return [(token[:cut], token[cut:]) for _, _, _, token, cut in found]


def _byte_symbols() -> list[str]:
    """The printable character that a byte-level BPE writes for each byte, by GPT-2's rule.

    Printable Latin-1 characters stand for themselves, the other bytes in ascending order for U+0100 and on.
    """
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    others = iter(sorted(symbol for symbol in alphabet if ord(symbol) > 255))
    return [chr(byte) if chr(byte) in alphabet else next(others) for byte in range(256)]


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _added_token(number: int, token: str) -> dict[str, Any]:
    return {
        "id": number,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
