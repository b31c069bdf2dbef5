"""Joins many `.bin/.idx` pairs to one, as Megatron's merge tool does, and the `gristmill merge` command.

Tokens are copied in blocks and index entries in runs, so memory is bounded by one input's index whatever the sizes; in
return each index is gone through three times. The result is byte for byte what Megatron's builder makes of the same
pairs in the same order.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.errors import FormatError, SettingsError
from gristmill.formats.indexed import bin_path, idx_path, pack_header
from gristmill.formats.indexed_writer import PairFacts
from gristmill.formats.log import tell
from gristmill.formats.storage import Publication, exists, publish
from gristmill.formats.token_shards import TokenShard, examine_pair, find_prefixes

__all__ = ["add_arguments", "merge_pairs", "refuse_existing", "run", "write_joined"]

_BLOCK_TOKENS = 4 << 20


def merge_pairs(paths: Sequence[str], output: str, say: Callable[[str], None] | None = None) -> PairFacts:
    """Joins pairs of one dtype, in the order of their whole paths by code point.

    Args:
        paths: prefixes of pairs, or folders of them.
        output: prefix of the result, as path or URL; there must be none yet.
        say: takes a line for each pair; None stays silent.

    Returns:
        What the result holds.

    Raises:
        InputError: a path leads to no pair.
        SettingsError: a pair is named twice, or the result is there already.
        FormatError: a pair is damaged, or dtypes differ.
        StorageError: a file cannot be read or written.
    """
    refuse_existing(output)
    shards = [examine_pair(prefix, identify=False) for prefix in find_prefixes(paths)]
    for shard in shards:
        if shard.dtype != shards[0].dtype:
            raise FormatError(
                f"{shard.prefix}: holds {shard.dtype} tokens, but {shards[0].prefix} holds {shards[0].dtype}; only "
                "pairs of one dtype are merged: `gristmill export --format megatron` joins those of several"
            )
    return write_joined(shards, output, np.dtype(shards[0].dtype), say)


def refuse_existing(output: str) -> None:
    """Refuses a pair that is there.

    Raises:
        SettingsError: one of its files exists.
    """
    for path in (bin_path(output), idx_path(output)):
        if exists(path):
            raise SettingsError(f"{path}: is there already; remove it, or name another output")


def write_joined(
    shards: Sequence[TokenShard],
    output: str,
    dtype: np.dtype[np.integer],
    say: Callable[[str], None] | None = None,
) -> PairFacts:
    """Writes one pair of the sequences and documents of shards, in order.

    Args:
        shards: what to join; their sequences must be those of the index.
        output: prefix of the pair.
        dtype: of the tokens written; each token must fit.
        say: takes a line for each shard.

    Raises:
        FormatError: a shard is damaged, or holds a token that does not fit.
        StorageError: a file cannot be read or written.
    """
    counts = [0, 0]
    with publish(idx_path(output)) as index, publish(bin_path(output)) as tokens:
        for number, shard in enumerate(shards, 1):
            documents = _copy_tokens(shard, dtype, tokens)
            counts[0] += shard.sequences
            counts[1] += documents
            if say is not None:
                say(f"{number} of {len(shards)}: {shard.name}, {shard.tokens:,} tokens in {documents:,} documents")
        tokens.flush()
        index.write(pack_header(dtype, counts[0], counts[1]))
        for part in _index_parts(shards, dtype.itemsize):
            index.write(part)
        index.flush()
    return PairFacts(
        tokens=tokens.size // dtype.itemsize,
        sequences=counts[0],
        documents=counts[1],
        bin=tokens.facts(),
        idx=index.facts(),
    )


def _copy_tokens(shard: TokenShard, dtype: np.dtype[np.integer], tokens: Publication) -> int:
    """Appends a shard's tokens; gives its number of documents."""
    pair = shard.open()
    limits = np.iinfo(dtype)
    for start in range(0, pair.num_tokens, _BLOCK_TOKENS):
        block = pair.read(start, min(_BLOCK_TOKENS, pair.num_tokens - start))
        if not np.can_cast(block.dtype, dtype):
            bad = (block < limits.min) | (block > limits.max)
            if bad.any():
                place = int(np.argmax(bad))
                pair.close()
                raise FormatError(
                    f"{shard.prefix}: token {start + place} is {int(block[place])}, which does not fit {dtype.name}"
                )
        tokens.write(block.astype(dtype, copy=False))
    documents = pair.num_documents
    pair.close()
    return documents


def _index_parts(shards: Sequence[TokenShard], itemsize: int) -> Iterator[NDArray[np.integer]]:
    """Everything behind the header of the joined index."""
    for shard in shards:
        pair = shard.open()
        yield pair.lengths.astype("<i4")
        pair.close()
    position = 0
    for shard in shards:
        pair = shard.open()
        ends = np.cumsum(pair.lengths, dtype=np.int64) + position
        yield ((ends - pair.lengths) * itemsize).astype("<i8")
        position = int(ends[-1]) if len(ends) else position
        pair.close()
    yield np.zeros(1, "<i8")
    first = 0
    for shard in shards:
        pair = shard.open()
        yield (pair.document_indices[1:] + first).astype("<i8")
        first += len(pair)
        pair.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gristmill merge`; the names are those of Megatron's tool."""
    parser.add_argument(
        "--input", nargs="+", required=True, metavar="PATH", help="folders of .bin/.idx pairs, or their prefixes"
    )
    parser.add_argument("--output-prefix", required=True, metavar="PREFIX", help="path or URL of the result")


def run(arguments: argparse.Namespace) -> int:
    """Merges; returns the exit code."""
    facts = merge_pairs(arguments.input, arguments.output_prefix, partial(tell, name="pair"))
    tell(
        f"{arguments.output_prefix}: {facts.tokens:,} tokens in {facts.sequences:,} sequences of {facts.documents:,} "
        "documents",
        "merged",
        file=arguments.output_prefix,
        tokens=facts.tokens,
        sequences=facts.sequences,
        documents=facts.documents,
    )
    return 0
