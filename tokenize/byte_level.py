"""GPT-2's pair of files, ``vocab.json`` and ``merges.txt``, as a ``tokenizer.json``.

This is what Megatron's `--vocab-file` and `--merge-file` name. The pair says nothing about splitting or control tokens:
it is read as GPT-2 reads it, with ``<|endoftext|>`` as a control token where the vocabulary has it. A pair of another
family would get other ids; such models ship a ``tokenizer.json``, which is the better input anyway.
"""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gristmill.formats.errors import TokenizerError
from gristmill.tokenize.sources import LoadedTokenizer

__all__ = ["vocabulary_and_merges"]

_CONTROL = "<|endoftext|>"


def vocabulary_and_merges(vocabulary: bytes, merges: bytes, source: str) -> LoadedTokenizer:
    """Builds the byte-level BPE of a GPT-2 pair.

    Args:
        vocabulary: contents of ``vocab.json``: an object from token to id.
        merges: contents of ``merges.txt``: two tokens a line, an optional first line ``#version …``.
        source: names the pair in messages.

    Raises:
        TokenizerError: a file is damaged, or the two do not belong together.
    """
    try:
        vocab = json.loads(vocabulary)
        lines = merges.decode("utf-8").split("\n")
    except ValueError as error:
        raise TokenizerError(f"{source}: vocab.json or merges.txt cannot be read: {error}") from error
    if not isinstance(vocab, dict) or not all(isinstance(number, int) for number in vocab.values()):
        raise TokenizerError(f"{source}: vocab.json must be an object from token to id")
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\r")
        if not text or (number == 1 and text.startswith("#version")):
            continue
        left, _, right = text.partition(" ")
        if not left or not right or " " in right:
            raise TokenizerError(f"{source}: merges.txt, line {number}: not two tokens: {text[:40]!r}")
        pairs.append((left, right))
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    except Exception as error:
        raise TokenizerError(f"{source}: vocab.json and merges.txt do not belong together: {error}") from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if _CONTROL in vocab:
        tokenizer.add_special_tokens([AddedToken(_CONTROL, normalized=False, special=True)])
    return LoadedTokenizer(text=tokenizer.to_str())
