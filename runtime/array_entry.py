"""From pieces in host memory to a global `jax.Array`, batch after batch, with what does not change worked out once.

`jax.make_array_from_callback` derives which device holds what anew for each array, and checks each piece: some twenty
microseconds, with cold caches three times as many, where the transfer itself takes three. What it ends in is a function
of JAX's own that takes pieces and devices. It is not public, so it is used only after it has proved itself: the first
array of a kind is made both ways, and any difference, or no such function, means the public way for all that follow.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

__all__ = ["ArrayEntry"]

_Index = tuple[slice, ...]

_Put = Callable[[Any, Sharding, Sequence[NDArray[np.generic]], Sequence[jax.Device], bool], jax.Array]


def _direct_put() -> _Put | None:
    """JAX's function that puts pieces onto devices: aval, sharding, pieces, devices, whether they stay there."""
    try:
        from jax._src.lib import xla_client  # type: ignore[attr-defined]  # not exported
    except ImportError:
        return None
    return getattr(xla_client, "batched_device_put", None)


class ArrayEntry:
    """Makes global arrays of one shape, dtype and sharding. Safe to use from many threads."""

    def __init__(self, shape: tuple[int, ...], sharding: Sharding, parts: Mapping[jax.Device, _Index]) -> None:
        """Moves nothing.

        Args:
            shape: of a global array.
            sharding: how it lies on the devices of all processes.
            parts: for each device of this process, which part of what `make` is given it gets.
        """
        self._shape = shape
        self._sharding = sharding
        self._devices = list(parts)
        self._parts = list(parts.values())
        self._by_index = {
            _key(index): parts[device] for device, index in sharding.addressable_devices_indices_map(shape).items()
        }
        self._put: _Put | None = None  # once it has proved itself
        self._tried = not parts  # a process without a device has nothing to put
        self._aval: Any = None

    def make(self, local: NDArray[np.generic]) -> jax.Array:
        """A global array.

        Args:
            local: what this process has of it, always of one dtype. JAX may keep the memory (on CPU it does), so it
                must never be written again.
        """
        if self._put is not None:
            return self._put(self._aval, self._sharding, [local[part] for part in self._parts], self._devices, True)
        array = jax.make_array_from_callback(
            self._shape, self._sharding, lambda index: local[self._by_index[_key(index)]], dtype=local.dtype
        )
        if not self._tried:
            self._try_direct(local, array)
        return array

    def _try_direct(self, local: NDArray[np.generic], array: jax.Array) -> None:
        """Makes an array the direct way, too, and goes on with that where it is the same."""
        self._tried = True
        put = _direct_put()
        if put is None or array.dtype != local.dtype:  # JAX narrows 64-bit numbers, which is left to it
            return
        try:
            found = put(array.aval, self._sharding, [local[part] for part in self._parts], self._devices, True)
            if _same(found, array):
                self._aval, self._put = array.aval, put
        except Exception:  # noqa: BLE001 - whatever another JAX may raise: the public way is at hand
            return


def _same(one: jax.Array, other: jax.Array) -> bool:
    """Whether two arrays are alike in all that a training step can see of them."""
    if type(one) is not type(other) or one.aval != other.aval or one.committed != other.committed:
        return False
    if one.sharding != other.sharding or one.weak_type != other.weak_type:
        return False
    shards, others = one.addressable_shards, other.addressable_shards
    return len(shards) == len(others) and all(
        a.device == b.device and a.index == b.index and np.array_equal(np.asarray(a.data), np.asarray(b.data))
        for a, b in zip(shards, others)
    )


def _key(index: _Index | None) -> tuple[tuple[int | None, int | None], ...]:
    """An index as a value that can be looked up; slices cannot before Python 3.12."""
    return () if index is None else tuple((part.start, part.stop) for part in index)
