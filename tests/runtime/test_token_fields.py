"""Batches of whole rows: the six fields of the host on every mesh that keeps rows whole, from half the bytes."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from gristmill.formats.errors import SettingsError
from gristmill.runtime import FieldOptions, MegatronStream, TokenBatches, open_corpus
from gristmill.runtime.delivery import plan_batch
from gristmill.runtime.device_fields import DeviceFields
from gristmill.runtime.raw_rows import RawReader

G, L = 8, 16


def sharding_of(*axes: str | tuple[str, ...] | None, names: str, shape: tuple[int, ...]) -> Sharding:
    kinds = (AxisType.Auto,) * len(shape)
    devices = jax.devices()[: int(np.prod(shape))]
    return NamedSharding(jax.make_mesh(shape, tuple(names), axis_types=kinds, devices=devices), PartitionSpec(*axes))


LAYOUTS: dict[str, tuple[Callable[[], Sharding], dict[str, Any]]] = {
    "one device": (lambda: SingleDeviceSharding(jax.devices()[2]), {"microbatches": 2}),
    "two axes of rows": (lambda: sharding_of(("f", "d"), names="df", shape=(4, 2)), {}),
    "a tensor axis outermost": (lambda: sharding_of("d", names="td", shape=(2, 4)), {"microbatches": 2}),
    "a context axis of one": (lambda: sharding_of("d", "c", names="dc", shape=(4, 1)), {}),
    "replicas alone": (lambda: sharding_of(names="t", shape=(8,)), {}),
}
OPTIONS = {
    "defaults": FieldOptions(eod_mask_loss=True),
    "index": FieldOptions(boundaries="index", cu_seqlens=True, max_segments_per_sample=4),
}


@pytest.fixture(scope="module")
def stream(blended_corpus: str) -> MegatronStream:
    """200 rows of 16 tokens."""
    return open_corpus(blended_corpus).stream()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_fields_are_those_of_the_host(stream: MegatronStream, layout: str, options: FieldOptions) -> None:
    """Compiled ahead from `element_spec`; up to the last batch of all, which is filled up with padding."""
    make_sharding, how = LAYOUTS[layout]
    how = {"options": options, "last_batch": "pad", **how}
    with (
        TokenBatches(stream, 24, make_sharding(), **how) as host,
        TokenBatches(stream, 24, make_sharding(), fields="tokens", **how) as tokens,
    ):
        spec = tokens.element_spec
        assert set(spec) == {"tokens", "valid_length"} | ({"cu_seqlens"} if options.cu_seqlens else set())
        assert (spec["tokens"].shape, spec["tokens"].dtype) == ((*tokens.plan.row_shape, L + 1), np.uint16)
        step = jax.jit(tokens.expand).lower(spec).compile()
        count = 0
        for expected, batch in zip(host, tokens, strict=True):
            assert batch.keys() == spec.keys()
            for name, array in batch.items():
                assert (array.shape, array.dtype) == (spec[name].shape, spec[name].dtype)
                assert array.sharding.is_equivalent_to(spec[name].sharding, array.ndim)
            fields = step(batch)
            assert fields.keys() == expected.keys()
            for name, field in expected.items():
                np.testing.assert_array_equal(np.asarray(fields[name]), np.asarray(field), name)
                assert fields[name].sharding.is_equivalent_to(field.sharding, field.ndim)
                assert fields[name].dtype == field.dtype
            assert host.get_state() == tokens.get_state(), "a run may change over at any row"
            count += 1
        assert (count, tokens.real_rows) == (9, 8)
        assert host.metrics()["loss_tokens"] == tokens.metrics()["loss_tokens"]


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_batches_may_be_donated(stream: MegatronStream, devices: int, prefetch: int) -> None:
    sharding = sharding_of("d", names="d", shape=(devices,))
    with TokenBatches(stream, G, sharding, fields="tokens", prefetch=prefetch) as batches:

        def step(batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return batch["tokens"] ^ jnp.uint16(0xFFFF), batches.expand(batch)["targets"]

        donating = jax.jit(step, donate_argnums=0)
        for number, batch in enumerate(itertools.islice(batches, 6)):
            flipped, targets = donating(batch)
            assert batch["tokens"].is_deleted()
            rows = stream.read(np.arange(number * G, (number + 1) * G))
            np.testing.assert_array_equal(np.asarray(flipped), rows ^ 0xFFFF)
            np.testing.assert_array_equal(np.asarray(targets), rows[:, 1:])


@pytest.mark.parametrize("microbatches", [None, 4])
@pytest.mark.parametrize("kind", ["single", "named"])
def test_one_device_takes_rows_as_they_lie(stream: MegatronStream, kind: str, microbatches: int | None) -> None:
    """On a device that shares the host's memory, what was gathered is the array: nothing is copied."""
    one = SingleDeviceSharding(jax.devices()[0])
    sharding = one if kind == "single" else sharding_of("d", names="d", shape=(1,))
    options = FieldOptions()
    plan = plan_batch(sharding, G, L, microbatches=microbatches)
    fields = DeviceFields(plan, options, eod_id=1, vocabulary=500, dtype=stream.dtype, place="tokens")
    reader = RawReader(stream, options)
    for first in (0, G, 2 * G):
        raw = reader.read(first + plan.rows)
        batch = fields.deliver(raw)
        assert batch["tokens"].unsafe_buffer_pointer() == raw.tokens.ctypes.data
        np.testing.assert_array_equal(np.asarray(batch["tokens"]).reshape(G, L + 1), raw.tokens)


@pytest.mark.parametrize(
    ("axes", "arguments", "message"),
    [
        (("d", "c"), {}, r'cannot split the sequence over devices; take fields="device"'),
        ((None, ("d", "c")), {}, r'cannot split the sequence over devices; take fields="device"'),
        (("d",), {"zigzag": True}, r'cannot put columns in zig-zag order; take fields="device"'),
        (("d",), {"naming": "megatron"}, r'naming=\'megatron\' goes with fields="host": with fields="tokens", expand'),
    ],
)
def test_what_whole_rows_cannot_do_is_refused(
    stream: MegatronStream, axes: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        TokenBatches(stream, G, sharding_of(*axes, names="dc", shape=(2, 2)), fields="tokens", **arguments)


def test_a_batch_without_its_tokens_is_refused(stream: MegatronStream) -> None:
    sharding = sharding_of("d", names="d", shape=(8,))
    with (
        TokenBatches(stream, G, sharding, fields="device") as device,
        TokenBatches(stream, G, sharding, fields="tokens") as tokens,
        pytest.raises(SettingsError, match="the batch has no tokens: expand takes what these batches yield"),
    ):
        tokens.expand(next(device))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [FieldOptions(), FieldOptions(reset_attention_mask=False)], ids=["resets", "none"])
def test_rows_that_are_never_short_come_alone(stream: MegatronStream, layout: str, options: FieldOptions) -> None:
    make_sharding, how = LAYOUTS[layout]
    with (
        TokenBatches(stream, 24, make_sharding(), options=options, **how) as host,
        TokenBatches(stream, 24, make_sharding(), options=options, fields="tokens", **how) as tokens,
    ):
        assert set(tokens.element_spec) == {"tokens"}
        fields = jax.jit(tokens.expand)(next(tokens))
        for name, field in next(host).items():
            np.testing.assert_array_equal(np.asarray(fields[name]), np.asarray(field), name)
            assert fields[name].sharding.is_equivalent_to(field.sharding, field.ndim)
