"""Global arrays are the same however they are made, and the way that is not public is left where it differs."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from gristmill.runtime import array_entry
from gristmill.runtime.array_entry import ArrayEntry

SHAPE = (8, 6)


def sharding_of(*spec: Any) -> NamedSharding:
    return NamedSharding(jax.make_mesh((2, 2, 2), ("a", "b", "c")), PartitionSpec(*spec))


def entry_of(sharding: Sharding) -> ArrayEntry:
    parts: Any = sharding.addressable_devices_indices_map(SHAPE)
    return ArrayEntry(SHAPE, sharding, parts)


def check(array: jax.Array, values: np.ndarray, sharding: Sharding) -> None:
    public = jax.make_array_from_callback(SHAPE, sharding, lambda index: values[index])
    assert array.aval == public.aval
    assert array.sharding == public.sharding
    assert array.committed
    for one, other in zip(array.addressable_shards, public.addressable_shards, strict=True):
        assert (one.device, one.index) == (other.device, other.index)
        np.testing.assert_array_equal(np.asarray(one.data), np.asarray(other.data))


@pytest.mark.parametrize("spec", [(), ("a",), (("c", "a"), "b"), (None, "b"), ("b", None)])
@pytest.mark.parametrize("dtype", ["uint16", "int32", "float32"])
def test_arrays_are_those_of_the_public_way(spec: tuple[Any, ...], dtype: str) -> None:
    sharding = sharding_of(*spec)
    entry = entry_of(sharding)
    for number in range(3):
        values = (np.arange(48).reshape(SHAPE) + number).astype(dtype)
        check(entry.make(values), values, sharding)


def test_one_device() -> None:
    sharding = SingleDeviceSharding(jax.devices()[3])
    entry = entry_of(sharding)
    for number in range(3):
        values = np.full(SHAPE, number, np.uint16)
        check(entry.make(values), values, sharding)


def other_values(aval: Any, sharding: Any, pieces: Any, devices: Any, committed: bool) -> jax.Array:
    return jax.make_array_from_callback(aval.shape, sharding, lambda index: np.zeros(aval.shape, aval.dtype)[index])


def other_sharding(aval: Any, sharding: Any, pieces: Any, devices: Any, committed: bool) -> jax.Array:
    array: jax.Array = jax.device_put(np.ones(aval.shape, aval.dtype), devices[0])
    return array


def refusal(*arguments: Any) -> jax.Array:
    raise TypeError("takes other arguments")


@pytest.mark.parametrize("put", [other_values, other_sharding, refusal, None])
def test_a_direct_way_that_differs_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, put: Callable[..., jax.Array] | None
) -> None:
    monkeypatch.setattr(array_entry, "_direct_put", lambda: put)
    sharding = sharding_of("a", "b")
    entry = entry_of(sharding)
    values = np.ones(SHAPE, np.int32)
    for _ in range(3):
        check(entry.make(values), values, sharding)


def test_numbers_that_jax_narrows_are_left_to_it() -> None:
    sharding = sharding_of("a")
    entry = entry_of(sharding)
    for _ in range(2):
        with pytest.warns(UserWarning, match="truncated to dtype int32"):
            assert entry.make(np.ones(SHAPE, np.int64)).dtype == np.int32
