"""Splits the documents of a batch into words: where they are, how long, and a hash of each.

Two splitters, named in the recipe and in receipts. "words" (gristmill-words-1) takes for a word a run of letters,
digits, marks and underscores with single joiners inside, an ideograph or kana by itself, or a run of one and the same
other character; "spaces" (white-space-1) is what lies between white space.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gristmill.pipelines.clean_classes import class_table
from gristmill.pipelines.clean_documents import Documents

__all__ = ["REAL_WORD", "split", "Words"]

REAL_WORD = 2
"""Flag of a word that is not of symbols alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The words of a batch, in order.

    Attributes:
        starts: [documents + 1] int64, the first word of each document; those that are dropped have none.
        lengths: [words] int32, code points.
        hashes: [words] uint64.
        kinds: [words] uint8, 1 for a word with a letter, plus 2 for one that is not of symbols alone.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int32]
    hashes: NDArray[np.uint64]
    kinds: NDArray[np.uint8]


def split(documents: Documents, *, by_space: bool) -> Words:
    """The words of the documents that are left."""
    from gristmill.pipelines.clean_kernels import split_words

    codes, starts = documents.codes()
    word_starts = np.empty(len(starts), np.int64)
    # As many as there are characters: the pages that no word reaches are never touched.
    lengths = np.empty(len(codes), np.int32)
    hashes = np.empty(len(codes), np.uint64)
    kinds = np.empty(len(codes), np.uint8)
    split_words(codes, starts, documents.alive, class_table(), by_space, word_starts, lengths, hashes, kinds)
    return Words(starts=word_starts, lengths=lengths, hashes=hashes, kinds=kinds)
