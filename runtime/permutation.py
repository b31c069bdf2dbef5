"""A shuffle that is computed, not stored: where a number goes, in constant time and no memory, for any size and epoch.

A Feistel network permutes the numbers of as many bits as the size needs; a result that is not below the size goes
through it again until one is, which is still a permutation and takes less than two rounds on average. An index array
costs a read from memory for each row and its size on disk; this costs some arithmetic, and cannot equal the order of
Megatron, which is stored. `shuffle_numpy` is the definition, `shuffle` the same in compiled code.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.formats.fingerprint import canonical_json

__all__ = ["key_of", "LARGEST", "shuffle", "shuffle_numpy"]

LARGEST = 2**62
"""Sizes are at most this."""

_ROUNDS = 8
_FEWEST_BITS = 10  # fewer mix too little in eight rounds; a smaller size only walks longer
_GAMMA, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _64, _1 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(64), np.uint64(1)
_POWERS = np.int64(1) << np.arange(63, dtype=np.int64)
_TURNS = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * _GAMMA


def key_of(value: object) -> int:
    """A key that any JSON value stands for: 0 to 2**64 - 1."""
    return int.from_bytes(hashlib.sha256(canonical_json(value)).digest()[:8], "little")


def shuffle_numpy(
    samples: NDArray[np.int64], groups: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """The numbers that stand at some places of a sequence of shuffles, one for each epoch.

    Args:
        samples: int64 [R], at least 0. Place ``samples % size`` of epoch ``samples // size``.
        groups: int64 [R], the group of each.
        sizes: int64 [G], how many numbers each group has: 1 to `LARGEST`.
        keys: uint64 [G], what decides the shuffles of each group.

    Returns:
        int64 [R], 0 to ``size - 1``. In every epoch each number stands at one place.

    References:
        Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, for walking the cycle; Steele, Lea and
        Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, for the function that mixes.
    """
    size = sizes[groups]
    epochs, found = np.divmod(samples, size)
    bits = np.maximum(np.searchsorted(_POWERS, size), _FEWEST_BITS)
    right = (bits - bits // 2).astype(np.uint64)
    left = (bits // 2).astype(np.uint64)
    epoch_keys = _mixed(keys[groups] + (epochs.astype(np.uint64) + _1) * _GAMMA)
    walking = np.arange(len(samples))
    while len(walking):
        number, low, high = found[walking].astype(np.uint64), right[walking], left[walking]
        above, below = number >> low, number & ((_1 << low) - _1)
        for turn in range(_ROUNDS):
            key = _mixed(epoch_keys[walking] + _TURNS[turn])
            if turn % 2 == 0:
                above ^= _mixed(below + key) >> (_64 - high)
            else:
                below ^= _mixed(above + key) >> (_64 - low)
        found[walking] = ((above << low) | below).astype(np.int64)
        walking = walking[found[walking] >= size[walking]]
    return found


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    return value ^ (value >> _31)


@compiled
def _mix(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    return value ^ (value >> _31)


@compiled
def shuffle(
    samples: NDArray[np.int64], groups: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """`shuffle_numpy`, compiled."""
    found = np.empty(len(samples), np.int64)
    turns = np.zeros(_ROUNDS, np.uint64)
    known_group, known_epoch = np.int64(-1), np.int64(-1)
    high = low = np.uint64(_1)
    for row in range(len(samples)):
        group = groups[row]
        size = sizes[group]
        epoch = samples[row] // size
        if group != known_group or epoch != known_epoch:  # rows of a batch are nearly always of one epoch
            known_group, known_epoch = group, epoch
            bits = np.uint64(0)
            while np.int64(1) << np.int64(bits) < size:
                bits += _1
            bits = max(bits, np.uint64(_FEWEST_BITS))
            high = bits // np.uint64(2)
            low = bits - high
            key = _mix(keys[group] + (np.uint64(epoch) + _1) * _GAMMA)
            for turn in range(_ROUNDS):
                turns[turn] = _mix(key + _TURNS[turn])
        number = np.uint64(samples[row] - epoch * size)
        while True:
            above, below = number >> low, number & ((_1 << low) - _1)
            for turn in range(0, _ROUNDS, 2):
                above ^= _mix(below + turns[turn]) >> (_64 - high)
                below ^= _mix(above + turns[turn + 1]) >> (_64 - low)
            number = (above << low) | below
            if number < np.uint64(size):
                break
        found[row] = np.int64(number)
    return found
