"""Device fields: equal to the NumPy definition bit for bit, on every layout, and no device asks another."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src.sharding_impls import GSPMDSharding  # which no public function makes, but jitted ones give out
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from gristmill.formats.errors import DataError, SettingsError
from gristmill.runtime.delivery import BatchPlan, plan_batch
from gristmill.runtime.device_fields import DeviceFields
from gristmill.runtime.fields import FIELD_NAMES, FieldOptions, make_fields
from gristmill.runtime.raw_rows import RawRows

G, L, EOD = 8, 32, 3
COLLECTIVE = re.compile(r"all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all|collective-broadcast")


def P(*axes: str | tuple[str, ...] | None) -> PartitionSpec:  # noqa: N802 - the name it has everywhere
    return PartitionSpec(*axes)


def mesh(shape: Sequence[int], names: Sequence[str], kind: AxisType = AxisType.Auto) -> Mesh:
    return jax.make_mesh(
        tuple(shape), tuple(names), axis_types=(kind,) * len(shape), devices=jax.devices()[: int(np.prod(shape))]
    )


def named(shape: Sequence[int], names: Sequence[str], spec: PartitionSpec, kind: AxisType = AxisType.Auto) -> Sharding:
    return NamedSharding(mesh(shape, names, kind), spec)


LAYOUTS: dict[str, tuple[Callable[[], Sharding], dict[str, Any]]] = {
    "one device": (lambda: SingleDeviceSharding(jax.devices()[3]), {}),
    "batch": (lambda: named((8,), ("data",), P("data")), {}),
    "explicit axes": (lambda: named((4, 2), ("data", "context"), P("data", "context"), AxisType.Explicit), {}),
    "replicas": (lambda: named((2, 4), ("tensor", "data"), P("data")), {}),
    "replicated": (lambda: named((4,), ("data",), P()), {}),
    "sequence": (lambda: named((2, 4), ("data", "context"), P("data", "context")), {}),
    "sequence alone": (lambda: named((8,), ("context",), P(None, "context")), {}),
    "sequence over two axes": (lambda: named((2, 2, 2), ("data", "a", "b"), P("data", ("b", "a"))), {}),
    "context outermost, tensor": (lambda: named((2, 2, 2), ("context", "data", "t"), P("data", "context")), {}),
    "zig-zag": (lambda: named((2, 4), ("data", "context"), P("data", "context")), {"zigzag": True}),
    "zig-zag alone": (lambda: named((2,), ("context",), P(None, "context"), AxisType.Explicit), {"zigzag": True}),
    "microbatches": (lambda: named((2, 2), ("data", "context"), P("data", "context")), {"microbatches": 4}),
    "microbatches, zig-zag": (
        lambda: named((2, 4), ("data", "context"), P("data", "context")),
        {"microbatches": 2, "zigzag": True},
    ),
    "whole rows, one device": (lambda: SingleDeviceSharding(jax.devices()[3]), {"place": "tokens"}),
    "whole rows": (lambda: named((4, 2), ("data", "fsdp"), P(("fsdp", "data"))), {"place": "tokens"}),
    "whole rows, replicas": (
        lambda: named((2, 4), ("tensor", "data"), P("data"), AxisType.Explicit),
        {"place": "tokens"},
    ),
    "whole rows, context of one": (lambda: named((8, 1), ("data", "c"), P("data", "c")), {"place": "tokens"}),
    "whole rows, microbatches": (
        lambda: named((2, 2), ("data", "tensor"), P("data")),
        {"place": "tokens", "microbatches": 4},
    ),
}

OPTIONS: dict[str, FieldOptions] = {
    "both resets": FieldOptions(),
    "segments alone": FieldOptions(reset_position_ids=False, eod_mask_loss=True),
    "positions alone": FieldOptions(reset_attention_mask=False),
    "nothing": FieldOptions(reset_attention_mask=False, reset_position_ids=False, eod_mask_loss=True),
    "nothing but lengths": FieldOptions(reset_attention_mask=False, reset_position_ids=False, cu_seqlens=True),
    "merged": FieldOptions(max_segments_per_sample=5),
    "index": FieldOptions(boundaries="index", eod_mask_loss=True),
    "index, limited": FieldOptions(boundaries="index", segment_limit=3, over_limit="merge", cu_seqlens=True),
    "everything": FieldOptions(
        boundaries="index", max_segments_per_sample=8, segment_limit=4, over_limit="merge", reset_position_ids=False
    ),
}


def device_fields(layout: str, options: FieldOptions, dtype: Any = np.uint16) -> DeviceFields:
    sharding, how = LAYOUTS[layout]
    place = how.get("place", "device")
    plan = plan_batch(sharding(), G, L, **{name: value for name, value in how.items() if name != "place"})
    return DeviceFields(plan, options, eod_id=EOD, vocabulary=60_000, dtype=np.dtype(dtype), place=place)


def reference(plan: BatchPlan, raw: RawRows, options: FieldOptions) -> dict[str, np.ndarray]:
    """The NumPy fields, in the shape and order in which the plan delivers."""
    made = make_fields(raw.tokens, EOD, options, valid_length=raw.valid_length, starts=raw.starts)
    for name in FIELD_NAMES:
        columns = made[name] if plan.columns is None else made[name][:, plan.columns]
        made[name] = columns.reshape(plan.shape)
    if "cu_seqlens" in made:
        made["cu_seqlens"] = made["cu_seqlens"].reshape(*plan.row_shape, -1)
    return made


def check(every: Sequence[DeviceFields], raw: RawRows) -> None:
    """Delivers the rows for several options and compares what one compiled function makes of all of them."""
    batches = [fields.deliver(raw) for fields in every]
    for fields, batch in zip(every, batches, strict=True):
        assert batch.keys() == fields.spec.keys()
        for name, array in batch.items():
            spec = fields.spec[name]
            assert (array.shape, array.dtype) == (spec.shape, spec.dtype), name
            assert array.sharding.is_equivalent_to(spec.sharding, array.ndim), name
    for fields, expanded in zip(every, compiled(every)(batches), strict=True):
        expected = reference(fields.plan, raw, fields.options)
        assert set(expanded) == set(fields.options.names)
        for name, array in expanded.items():
            assert array.dtype == np.int32
            np.testing.assert_array_equal(np.asarray(array), expected[name], err_msg=f"{name}, {fields.options}")
            if name in FIELD_NAMES:
                assert array.sharding.is_equivalent_to(fields.plan.sharding, array.ndim), name


COMPILED: dict[str, Any] = {}


def compiled(every: Sequence[DeviceFields]) -> Any:
    """Their `expand`s as one compiled function, kept where the same layout and options come again."""
    key = repr([(fields.plan, fields.options, fields.spec) for fields in every])
    if key not in COMPILED:
        together = jax.jit(lambda batches: [fields.expand(batch) for fields, batch in zip(every, batches)])
        COMPILED[key] = together.lower([fields.spec for fields in every]).compile()
    return COMPILED[key]


def rows_of(seed: int, eods: float, dtype: Any, *, padded: bool) -> RawRows:
    """Rows with some share of EOD, random starts, and short rows if wanted."""
    random = np.random.default_rng(seed)
    tokens = np.where(random.random((G, L + 1)) < eods, EOD, random.integers(0, 50_000, (G, L + 1)))
    valid = random.integers(0, L + 1, G) if padded else None
    return RawRows(
        rows=np.arange(G),
        tokens=tokens.astype(dtype),
        starts=random.random((G, L + 1)) < eods,
        valid_length=valid,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_equals_the_definition(layout: str) -> None:
    every = [device_fields(layout, options) for options in OPTIONS.values()]
    for seed, (eods, padded) in enumerate([(0.0, False), (0.2, True), (0.5, False), (1.0, True)]):
        check(every, rows_of(seed, eods, np.uint16, padded=padded))


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["one device", "sequence", "zig-zag", "whole rows"]),
    st.builds(
        FieldOptions,
        reset_attention_mask=st.booleans(),
        reset_position_ids=st.booleans(),
        eod_mask_loss=st.booleans(),
        max_segments_per_sample=st.sampled_from([0, 4, 16, 32]),
        boundaries=st.sampled_from(["eod", "index"]),
        segment_limit=st.sampled_from([0, 1, 2, 6]),
        over_limit=st.just("merge"),
        cu_seqlens=st.booleans(),
    ),
    st.lists(
        st.tuples(st.integers(0, 2**32), st.sampled_from([0, 0.1, 0.4, 0.9]), st.booleans()), min_size=1, max_size=3
    ),
    st.sampled_from([np.uint16, np.int32]),
)
def test_every_option_equals_the_definition(
    layout: str, options: FieldOptions, drawn: list[tuple[int, float, bool]], dtype: Any
) -> None:
    fields = device_fields(layout, options, dtype)
    for seed, eods, padded in drawn:
        check([fields], rows_of(seed, eods, dtype, padded=padded))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_device_asks_another(layout: str) -> None:
    """Compiled before any row is there, `expand` holds no collective operation, whatever the options."""
    text = compiled([device_fields(layout, options) for options in OPTIONS.values()]).as_text()
    assert "ENTRY" in text
    assert not COLLECTIVE.search(text)


def test_fields_made_without_carries_would_ask() -> None:
    """What the test above looks for is there when a split sequence is scanned without being told what lies before."""
    fields = device_fields("sequence", FieldOptions())

    def expand(batch: dict[str, jax.Array]) -> jax.Array:
        return jnp.cumsum(batch["inputs"] == EOD, axis=1)

    text = jax.jit(expand, out_shardings=fields.plan.sharding).lower(fields.spec).compile().as_text()
    assert text is not None
    assert COLLECTIVE.search(text)


ARRAYS = {
    "tokens alone": ("batch", FieldOptions(eod_mask_loss=True), {}),
    "a carry for each part": ("sequence", FieldOptions(), {"segment_carry": (G, 4), "position_carry": (G, 4)}),
    "one carry": ("sequence", FieldOptions(reset_attention_mask=False), {"position_carry": (G, 4)}),
    "two parts for each device": ("zig-zag", FieldOptions(reset_position_ids=False), {"segment_carry": (G, 8)}),
    "microbatches": ("microbatches", FieldOptions(reset_position_ids=False), {"segment_carry": (4, G // 4, 2)}),
    "no reset": (
        "sequence",
        FieldOptions(reset_attention_mask=False, reset_position_ids=False, boundaries="index"),
        {},
    ),
    "merged": ("sequence", FieldOptions(max_segments_per_sample=4), {"cu_seqlens": (G, 5)}),
    "a merge that does nothing": ("batch", FieldOptions(max_segments_per_sample=L), {}),
    "index": ("batch", FieldOptions(boundaries="index"), {"cu_seqlens": (G, L + 1)}),
    "index, limited": ("sequence", FieldOptions(boundaries="index", segment_limit=6), {"cu_seqlens": (G, 7)}),
    "a limit": ("batch", FieldOptions(segment_limit=6), {"cu_seqlens": (G, 7)}),
    "a limit that is none": ("batch", FieldOptions(segment_limit=L), {}),
    "whole rows": ("whole rows", FieldOptions(), {}),
    "whole rows in microbatches": (
        "whole rows, microbatches",
        FieldOptions(boundaries="index", segment_limit=6),
        {"cu_seqlens": (4, G // 4, 7)},
    ),
    "asked for": ("batch", FieldOptions(cu_seqlens=True, segment_limit=9), {"cu_seqlens": (G, 10)}),
}


@pytest.mark.parametrize(("layout", "options", "more"), ARRAYS.values(), ids=ARRAYS)
def test_only_what_is_needed_is_sent(layout: str, options: FieldOptions, more: dict[str, tuple[int, ...]]) -> None:
    fields = device_fields(layout, options)
    shape = fields.plan.shape
    expected = {"inputs": (shape, "uint16"), "targets": (shape, "uint16"), "valid_length": (shape[:-1], "int32")}
    if layout.startswith("whole rows"):
        del expected["inputs"], expected["targets"]
        expected["tokens"] = (*shape[:-1], L + 1), "uint16"
    expected |= {name: (size, "int32") for name, size in more.items()}
    assert {name: (spec.shape, spec.dtype.name) for name, spec in fields.spec.items()} == expected


def test_a_batch_without_an_array_is_refused() -> None:
    fields = device_fields("sequence", FieldOptions())
    batch = fields.deliver(rows_of(0, 0.1, np.uint16, padded=False))
    del batch["segment_carry"], batch["valid_length"]
    with pytest.raises(SettingsError, match="the batch has no segment_carry, valid_length: expand takes what"):
        fields.expand(batch)


def test_rows_are_checked_on_the_host() -> None:
    fields = device_fields("batch", FieldOptions(boundaries="index", segment_limit=2))
    raw = rows_of(0, 0.9, np.uint16, padded=False)
    with pytest.raises(DataError, match=r"row 0: has \d+ segments, but segment_limit is 2"):
        fields.deliver(raw)
    raw.tokens[5, 9] = 60_001
    with pytest.raises(DataError, match="row 5: token 9 is 60001, but ids run from 0 to 59999"):
        fields.deliver(raw)


def test_a_sharding_without_named_axes_is_refused() -> None:
    sharding = GSPMDSharding.get_replicated(jax.devices())
    with pytest.raises(SettingsError, match=r'fields="device" needs a NamedSharding or a .*, not a GSPMDSharding'):
        DeviceFields(plan_batch(sharding, G, L), FieldOptions(), eod_id=EOD, vocabulary=None, dtype=np.dtype(np.int32))
