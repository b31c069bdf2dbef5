"""Which id closes a document: asked for by name or number, else the tokenizer's own, and never guessed.

A wrong EOD is silent and costs whole corpora, so where nothing says which token it is the answer is an error that
lists what the vocabulary offers. That trades a default that is mostly right for one that cannot be wrong.
"""

import re

from tokenizers import Tokenizer

from gristmill.formats.errors import TokenizerError

__all__ = ["end_candidates", "find_eod", "find_pad"]

_END_MARK = re.compile(r"</s>|[<\[].*(?<![a-z])(?:end(?:of\w*)?|eo[sdtm]|sep|stop|return)(?![a-z]).*[>\]]", re.I | re.S)
_MOST_LISTED = 8


def end_candidates(tokenizer: Tokenizer) -> list[tuple[str, int]]:
    """Tokens that look like end markers, with their ids: bracketed and naming an end; added tokens come first."""
    added = [(token.content, number) for number, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    base = sorted(tokenizer.get_vocab(with_added_tokens=False).items(), key=lambda item: item[1])
    found: dict[str, int] = {}
    for token, number in [*added, *base]:
        if _END_MARK.fullmatch(token):
            found.setdefault(token, number)
    return list(found.items())


def find_eod(tokenizer: Tokenizer, eod: str | int | None, own: str | int | None, source: str) -> tuple[int, str]:
    """The EOD's id and spelling.

    Args:
        tokenizer: the definition.
        eod: what the recipe asks for: a spelling, an id, or None for the tokenizer's own.
        own: what the tokenizer's own files name, None where they name nothing.
        source: names the tokenizer in messages.

    Raises:
        TokenizerError: the spelling is not one token, the id is outside the vocabulary, or nothing names an EOD.
    """
    if isinstance(eod, bool) or not isinstance(eod, str | int | None):
        raise TokenizerError(f"{source}: eod must be a token's text or its id, not {eod!r}")
    wanted = own if eod is None else eod
    if wanted is None:
        raise TokenizerError(
            f"{source}: nothing says which token ends a document (no eos in the tokenizer's files), and it is never "
            f"guessed: set `eod` to a token's text or id; {_listed(tokenizer)}"
        )
    named = "its own eos" if eod is None else "eod"
    return _find(tokenizer, wanted, f"{source}: {named} {wanted!r}")


def find_pad(tokenizer: Tokenizer, pad: str | int | None, own: str | None, source: str) -> int | None:
    """The padding id: as asked for, else the tokenizer's own where it is in the vocabulary, else None.

    Raises:
        TokenizerError: what was asked for is not in the vocabulary.
    """
    if pad is not None:
        return _find(tokenizer, pad, f"{source}: pad {pad!r}")[0]
    found = None if own is None else tokenizer.token_to_id(own)
    return None if found is None else int(found)


def _find(tokenizer: Tokenizer, wanted: str | int, subject: str) -> tuple[int, str]:
    if isinstance(wanted, str):
        number = tokenizer.token_to_id(wanted)
        if number is None:
            pieces = tokenizer.encode(wanted, add_special_tokens=False).ids
            raise TokenizerError(
                f"{subject} is not one token of the vocabulary (as text it makes {len(pieces)} ids): give a token that "
                f"is in it; {_listed(tokenizer)}"
            )
        return int(number), wanted
    token = tokenizer.id_to_token(wanted) if wanted >= 0 else None
    if token is None:
        largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        raise TokenizerError(
            f"{subject} is outside the vocabulary, whose ids go from 0 to {largest}; {_listed(tokenizer)}"
        )
    return wanted, str(token)


def _listed(tokenizer: Tokenizer) -> str:
    candidates = end_candidates(tokenizer)
    if not candidates:
        return "no token in it looks like an end marker"
    shown = ", ".join(f"{token!r} ({number})" for token, number in candidates[:_MOST_LISTED])
    more = f" and {len(candidates) - _MOST_LISTED} more" if len(candidates) > _MOST_LISTED else ""
    return f"tokens that look like end markers: {shown}{more}"
