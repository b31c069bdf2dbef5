"""Delivery: every layout of a batch on eight devices holds the reference, each part where the sharding says."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from gristmill.formats.errors import SettingsError
from gristmill.runtime.delivery import BatchPlan, plan_batch, zigzag_columns

G, L = 16, 32
REFERENCE = np.arange(G * L, dtype=np.int32).reshape(G, L)


def P(*axes: str | tuple[str, ...] | None) -> PartitionSpec:  # noqa: N802 - the name it has everywhere
    return PartitionSpec(*axes)


def mesh(shape: Sequence[int], names: Sequence[str], order: Sequence[int] | None = None) -> Mesh:
    devices = np.array(jax.devices())[: int(np.prod(shape))]
    return Mesh(devices[list(range(len(devices))) if order is None else list(order)].reshape(shape), names)


LAYOUTS: dict[str, Callable[[], Sharding]] = {
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


IN_ORDER = np.arange(L)
ZIGZAG = {
    1: IN_ORDER,
    2: np.concatenate([np.r_[0:8], np.r_[24:32], np.r_[8:16], np.r_[16:24]]),
    8: np.array([[2 * i, 2 * i + 1, 30 - 2 * i, 31 - 2 * i] for i in range(8)]).ravel(),
}
"""By the number of parts, written out: each part gets a chunk from the front and its counterpart from the back."""


def check(plan: BatchPlan, sharding: Sharding, expected: np.ndarray) -> None:
    """Delivers the reference and compares the whole and each part with what is expected."""
    array = plan.deliver(REFERENCE[plan.rows])
    assert array.shape == plan.shape == expected.shape
    assert array.dtype == np.int32
    assert array.sharding == plan.sharding == sharding
    np.testing.assert_array_equal(np.asarray(array), expected)
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])
    per_row = plan.deliver(REFERENCE[plan.rows, 0])
    assert (per_row.shape, per_row.sharding) == (plan.row_shape, plan.row_sharding)
    for shard in per_row.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), REFERENCE[:, 0].reshape(plan.row_shape)[shard.index])


@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_part_equals_the_reference(layout: Callable[[], Sharding], zigzag: bool) -> None:
    sharding = layout()
    plan = plan_batch(sharding, G, L, zigzag=zigzag)
    assert plan.rows.tolist() == list(range(G))
    columns = ZIGZAG[L // sharding.shard_shape((G, L))[1]] if zigzag else IN_ORDER
    check(plan, sharding, REFERENCE[:, columns])


@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_part_of_microbatches_equals_the_reference(
    layout: Callable[[], Sharding], groups: int, zigzag: bool
) -> None:
    sharding = layout()
    plan = plan_batch(sharding, G, L, microbatches=groups, zigzag=zigzag)
    assert plan.rows.tolist() == list(range(G))
    columns = ZIGZAG[L // sharding.shard_shape((G, L))[1]] if zigzag else IN_ORDER
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, P(None, *sharding.spec))
    check(plan, sharding, REFERENCE[:, columns].reshape(groups, G // groups, L))


@given(parts=st.integers(1, 16), chunk=st.integers(1, 8))
def test_zigzag_is_a_permutation_that_shares_the_work_evenly(parts: int, chunk: int) -> None:
    length = 2 * parts * chunk
    columns = zigzag_columns(length, parts)
    assert columns.dtype == np.int64
    assert sorted(columns.tolist()) == list(range(length))
    np.testing.assert_array_equal(columns[np.argsort(columns)], np.arange(length))
    assert len(set(columns.reshape(parts, -1).sum(axis=1).tolist())) == 1, "column i attends to i + 1 columns"


@pytest.mark.parametrize(
    ("global_batch", "length", "spec", "options", "message"),
    [
        (
            12,
            L,
            P(("data", "fsdp")),
            {},
            r"global_batch 12 with sequence_length 32 does not fit the sharding .*data=4, fsdp=2",
        ),
        (16, 33, P("data", "fsdp"), {}, "global_batch 16 with sequence_length 33 does not fit"),
        (16, L, P("data", None, "fsdp"), {}, "a batch has two dimensions, rows and sequence, but .* splits 3"),
        (0, L, P("data"), {}, "global_batch must be a whole number of rows of at least 1, not 0"),
        (8.0, L, P("data"), {}, "global_batch must be a whole number of rows of at least 1, not 8.0"),
        (True, L, P("data"), {}, "not True"),
        (16, L, P("data"), {"microbatches": 3}, "16 cannot be cut into 3 microbatches: it must be a multiple"),
        (16, L, P("data"), {"microbatches": 8}, "16 in 8 microbatches with sequence_length 32 does not fit the shard"),
        (16, L, P("data"), {"microbatches": 0}, "microbatches must be a whole number of at least 1, or None, not 0"),
        (16, L, P("data"), {"microbatches": True}, "not True"),
        (16, L, P(None, "data", "fsdp"), {"microbatches": 2}, "a batch has two dimensions, rows and sequence"),
        (
            16,
            36,
            P(None, "data"),
            {"zigzag": True},
            "length 36 cannot be dealt out in zig-zag over 4 parts .* of 8, two",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(
    global_batch: int, length: int, spec: PartitionSpec, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_batch(NamedSharding(mesh((4, 2), ("data", "fsdp")), spec), global_batch, length, **options)


def test_what_is_no_sharding_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"sharding is a Mesh; it must be a jax\.sharding.Sharding"):
        plan_batch(mesh((8,), ("data",)), G, L)  # type: ignore[arg-type]  # that is the mistake


@pytest.mark.parametrize("microbatches", [None, 4])
@pytest.mark.parametrize("split", [False, True])
def test_another_number_of_values_lies_as_the_rows_do(microbatches: int | None, split: bool) -> None:
    sharding = NamedSharding(mesh((2, 2), ("data", "context")), P("data", "context"))
    plan = plan_batch(sharding, G, L, microbatches=microbatches, zigzag=True)
    values = np.arange(G * 6, dtype=np.int32).reshape(G, 6)
    narrow = plan.of_width(6, split=split)
    array = narrow.deliver(values)
    assert array.shape == narrow.shape == (*plan.row_shape, 6)
    assert array.sharding == narrow.sharding
    np.testing.assert_array_equal(np.asarray(array).reshape(G, 6), values)
    assert {shard.data.shape[-1] for shard in array.addressable_shards} == {3 if split else 6}
