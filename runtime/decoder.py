"""Turns ids back into text, for people who look at data; no training code needs it."""

import os
from collections.abc import Callable

from gristmill.formats.errors import CorpusError, MissingExtraError
from gristmill.formats.storage import exists, read_bytes

__all__ = ["Decode", "open_decoder"]

Decode = Callable[[list[int]], str]
"""Turns ids into text, control tokens included."""


def open_decoder(path: str | os.PathLike[str]) -> Decode:
    """The decoder of a `tokenizer.json`.

    Args:
        path: path or URL of the file.

    Raises:
        CorpusError: there is no such file, or it is no tokenizer.
        MissingExtraError: the `tokenizers` library is not installed.
    """
    place = os.fspath(path)
    if not exists(place):
        raise CorpusError(f"{place}: no tokenizer there, so ids cannot be shown as text")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError("tokenizers", "train", "showing text") from error
    try:
        tokenizer = Tokenizer.from_str(read_bytes(place).decode("utf-8"))
    except Exception as error:  # the library raises Exception itself
        raise CorpusError(f"{place}: no readable tokenizer: {error}") from error

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False))

    return decode
