"""Inputs of the index benchmarks, the same in every process; needs nothing but numpy."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LONGEST = 800  # tokens of a sequence


@lru_cache(maxsize=1)
def lengths_of(sequences: int, longest: int = LONGEST) -> NDArray[np.int32]:
    """Tokens of each sequence, half of `longest` on average."""
    return np.random.default_rng(0).integers(1, longest, sequences).astype(np.int32)


@lru_cache(maxsize=1)
def order_of(sequences: int) -> NDArray[np.int32]:
    """Sequence numbers in a shuffled order."""
    order = np.arange(sequences, dtype=np.int32)
    np.random.default_rng(1).shuffle(order)
    return order


def weights_of(members: int, kind: str) -> NDArray[np.float64]:
    """Weights of a blend, normalised twice as Megatron does: ``random`` or ``equal``."""
    values = np.ones(members)
    if kind == "random":
        values = np.random.default_rng(members).random(members) + 0.01
    once: NDArray[np.float64] = values / np.sum(values)
    twice: NDArray[np.float64] = once / np.sum(once)
    return twice
