"""Delivery: every layout of a batch on eight devices holds the reference, each part where the sharding says."""

from collections.abc import Sequence

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from gristmill.formats.errors import SettingsError
from gristmill.runtime.delivery import plan_batch

G, L = 16, 32
REFERENCE = np.arange(G * L, dtype=np.int32).reshape(G, L)


def P(*axes: str | tuple[str, ...] | None) -> PartitionSpec:  # noqa: N802 - the name it has everywhere
    return PartitionSpec(*axes)


def mesh(shape: Sequence[int], names: Sequence[str], order: Sequence[int] | None = None) -> Mesh:
    devices = np.array(jax.devices())[: int(np.prod(shape))]
    return Mesh(devices[list(range(len(devices))) if order is None else list(order)].reshape(shape), names)


LAYOUTS = {
    "one axis": lambda: NamedSharding(mesh((8,), ("data",)), P("data")),
    "two axes": lambda: NamedSharding(mesh((4, 2), ("data", "fsdp")), P(("data", "fsdp"))),
    "axes reversed": lambda: NamedSharding(mesh((4, 2), ("data", "fsdp")), P(("fsdp", "data"))),
    "devices permuted": lambda: NamedSharding(mesh((8,), ("data",), [3, 0, 7, 5, 1, 6, 2, 4]), P("data")),
    "tensor axis replicated": lambda: NamedSharding(mesh((2, 4), ("tensor", "data")), P("data")),
    "tensor axis last": lambda: NamedSharding(mesh((2, 2, 2), ("data", "fsdp", "tensor")), P(("data", "fsdp"))),
    "sequence sharded": lambda: NamedSharding(mesh((4, 2), ("data", "context")), P("data", "context")),
    "context outermost": lambda: NamedSharding(mesh((2, 4), ("context", "data")), P("data", "context")),
    "sequence alone": lambda: NamedSharding(mesh((8,), ("context",)), P(None, "context")),
    "replicated": lambda: NamedSharding(mesh((8,), ("data",)), P()),
    "part of the devices": lambda: NamedSharding(mesh((2,), ("data",)), P("data")),
    "one device": lambda: SingleDeviceSharding(jax.devices()[3]),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_part_equals_the_reference(layout: object) -> None:
    assert callable(layout)
    sharding = layout()
    plan = plan_batch(sharding, G, L)
    assert plan.rows.tolist() == list(range(G))
    array = plan.deliver(REFERENCE[plan.rows])
    assert array.shape == (G, L)
    assert array.dtype == np.int32
    assert array.sharding == sharding
    np.testing.assert_array_equal(np.asarray(array), REFERENCE)
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), REFERENCE[shard.index])


@pytest.mark.parametrize(
    ("global_batch", "length", "spec", "message"),
    [
        (
            12,
            L,
            P(("data", "fsdp")),
            r"global_batch 12 with sequence_length 32 does not fit the sharding .*data=4, fsdp=2",
        ),
        (16, 33, P("data", "fsdp"), "global_batch 16 with sequence_length 33 does not fit"),
        (16, L, P("data", None, "fsdp"), "a batch has two dimensions, rows and sequence, but the sharding .* splits 3"),
        (0, L, P("data"), "global_batch must be a whole number of rows of at least 1, not 0"),
        (8.0, L, P("data"), "global_batch must be a whole number of rows of at least 1, not 8.0"),
        (True, L, P("data"), "not True"),
    ],
)
def test_what_cannot_be_divided_is_refused(global_batch: int, length: int, spec: PartitionSpec, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_batch(NamedSharding(mesh((4, 2), ("data", "fsdp")), spec), global_batch, length)


def test_what_is_no_sharding_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"sharding is a Mesh; it must be a jax\.sharding.Sharding"):
        plan_batch(mesh((8,), ("data",)), G, L)  # type: ignore[arg-type]  # that is the mistake
