"""Copies of token ranges between memory addresses, compiled; what does not fit is noticed, not cut off.

Called some ten times for each batch, where a pass of NumPy's costs more than what it does.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.runtime.raw_memory import copy_bytes, load8, load16, load32, load64, store32
from gristmill.runtime.shards import UINT32_CODE

__all__ = ["copy_pair", "copy_tokens", "first_outside", "item_bytes", "spread_tokens"]

_LARGEST = np.int64(2**31 - 1)


@compiled
def copy_tokens(source: np.int64, code: np.int64, target: np.int64, target_bytes: np.int64, count: np.int64) -> bool:
    """Copies `count` tokens of a dtype code to uint16 or int32; False when one does not fit."""
    if target_bytes == 2 and code != 8:
        return False
    if (code == 8 and target_bytes == 2) or (code == 4 and target_bytes == 4):
        copy_bytes(target, source, count * target_bytes)
    elif code == 8:
        for place in range(count):
            store32(target + 4 * place, np.int32(load16(source + 2 * place)))
    elif code == 3:
        for place in range(count):
            store32(target + 4 * place, np.int32(np.int16(load16(source + 2 * place))))
    elif code == 1:
        for place in range(count):
            store32(target + 4 * place, np.int32(load8(source + place)))
    elif code == 2:
        for place in range(count):
            store32(target + 4 * place, np.int32(np.int8(load8(source + place))))
    elif code == UINT32_CODE:
        for place in range(count):
            token = np.int32(load32(source + 4 * place))
            if token < 0:
                return False
            store32(target + 4 * place, token)
    else:
        for place in range(count):
            value = load64(source + 8 * place)
            if value > _LARGEST or value < -_LARGEST:
                return False
            store32(target + 4 * place, np.int32(value))
    return True


@compiled
def copy_pair(
    source: np.int64,
    code: np.int64,
    column: np.int64,
    length: np.int64,
    inputs: np.int64,
    targets: np.int64,
    target_bytes: np.int64,
    count: np.int64,
) -> bool:
    """Copies `count` tokens that a row of `length` + 1 has from `column` on to its inputs and to its targets.

    The inputs are all but the last, the targets all but the first; they begin at the addresses `inputs` and `targets`.
    Tokens are read from memory once: the second time they are in the cache. False when one does not fit.
    """
    kept = min(count, length - column)
    if kept > 0 and not copy_tokens(source, code, inputs + column * target_bytes, target_bytes, kept):
        return False
    skipped = np.int64(column == 0)
    if count == skipped:
        return True
    source += skipped * item_bytes(code)
    return copy_tokens(source, code, targets + (column + skipped - 1) * target_bytes, target_bytes, count - skipped)


@compiled
def item_bytes(code: np.int64) -> np.int64:
    """Bytes of a token of a dtype code."""
    if code == 5:
        return np.int64(8)
    if code == 4 or code == UINT32_CODE:
        return np.int64(4)
    return np.int64(1) if code <= 2 else np.int64(2)


@compiled
def spread_tokens(
    tokens: NDArray[Any], code: int, counts: NDArray[np.int64], places: NDArray[np.int64], out: NDArray[Any]
) -> bool:
    """Copies runs of tokens that lie one behind the other to places of their own.

    Args:
        tokens: 1-D, C-contiguous, of the dtype that `code` stands for.
        code: see `gristmill.runtime.shards.CODE`.
        counts: int64 [P], tokens of each run.
        places: int64 [P], entry of `out` at which each begins.
        out: uint16 or int32, C-contiguous; filled there.

    Returns:
        Whether all tokens fit.
    """
    source = np.int64(tokens.ctypes.data)
    target_bytes = np.int64(out.itemsize)
    for run in range(len(counts)):
        target = np.int64(out.ctypes.data + places[run] * target_bytes)
        if not copy_tokens(source, np.int64(code), target, target_bytes, counts[run]):
            return False
        source += counts[run] * tokens.itemsize
    return True


@compiled
def first_outside(numbers: NDArray[np.int64], stop: int) -> int:
    """The place of the first number that is not 0 to ``stop - 1``, or -1."""
    for place in range(len(numbers)):
        if numbers[place] < 0 or numbers[place] >= stop:
            return place
    return -1
