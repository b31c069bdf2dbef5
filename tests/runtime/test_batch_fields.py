"""What batches hold by the options: fields made on host or devices, boundaries from the index, Megatron's naming."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.errors import SettingsError
from gristmill.runtime import FieldOptions, MegatronStream, RowPiece, StreamSource, TokenBatches, open_corpus
from gristmill.runtime.fields import make_fields
from gristmill.runtime.naming import make_megatron_fields
from gristmill.runtime.raw_rows import PaddedStream
from gristmill.runtime.streams import DocumentStream, Stream

G, L = 8, 16


def sharding_of(*axes: str | None, shape: tuple[int, ...], names: tuple[str, ...]) -> Sharding:
    mesh = jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))
    return NamedSharding(mesh, PartitionSpec(*axes))


DATA: dict[str, Any] = {"shape": (8,), "names": ("data",)}
CONTEXT: dict[str, Any] = {"shape": (2, 4), "names": ("data", "context")}


@pytest.fixture(scope="module")
def stream(blended_corpus: str) -> MegatronStream:
    """200 rows of 16 tokens."""
    return open_corpus(blended_corpus).stream()


class Plain:
    """The same rows from a stream that knows nothing but tokens."""

    def __init__(self, stream: MegatronStream) -> None:
        self._stream = stream
        self.fingerprint, self.sequence_length = stream.fingerprint, stream.sequence_length
        self.dtype, self.eod_id, self.vocabulary = stream.dtype, stream.eod_id, stream.vocabulary

    def __len__(self) -> int:
        return len(self._stream)

    def __repr__(self) -> str:
        return "Plain()"

    def read(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        return self._stream.read(rows)

    def describe(self, row: int) -> tuple[RowPiece, ...]:
        return self._stream.describe(row)


class Short(Plain):
    """The same rows, each fourth padded: row 4 n holds n % 17 positions."""

    def valid_length(self, rows: ArrayLike) -> NDArray[np.integer]:
        numbers = np.asarray(rows)
        return np.where(numbers % 4 == 0, numbers // 4 % (L + 1), L)


OPTIONS = {
    "defaults": FieldOptions(),
    "merged": FieldOptions(max_segments_per_sample=4, eod_mask_loss=True),
    "index": FieldOptions(boundaries="index", cu_seqlens=True),
}
LAYOUTS: dict[str, tuple[Callable[[], Sharding], dict[str, Any]]] = {
    "batch": (lambda: sharding_of("data", **DATA), {}),
    "sequence": (lambda: sharding_of("data", "context", **CONTEXT), {}),
    "zig-zag": (lambda: sharding_of("data", "context", shape=(2, 2), names=("data", "context")), {"zigzag": True}),
    "microbatches": (lambda: sharding_of("data", "context", **CONTEXT), {"microbatches": 2}),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_device_fields_are_the_host_fields(stream: MegatronStream, layout: str, options: FieldOptions) -> None:
    """Compiled ahead from `element_spec`, `expand` gives what ``fields="host"`` delivers."""
    make_sharding, how = LAYOUTS[layout]
    with (
        TokenBatches(stream, G, make_sharding(), options=options, **how) as host,
        TokenBatches(stream, G, make_sharding(), options=options, fields="device", **how) as device,
    ):
        step = jax.jit(device.expand).lower(device.element_spec).compile()
        for expected, batch in itertools.islice(zip(host, device), 4):
            assert batch.keys() == device.element_spec.keys()
            for name, spec in device.element_spec.items():
                assert (batch[name].shape, batch[name].dtype) == (spec.shape, spec.dtype)
                assert batch[name].sharding.is_equivalent_to(spec.sharding, batch[name].ndim)
            assert batch["inputs"].dtype == stream.dtype == np.uint16
            fields = step(batch)
            assert fields.keys() == expected.keys() == host.element_spec.keys()
            for name, spec in host.element_spec.items():
                assert (expected[name].shape, expected[name].dtype) == (spec.shape, spec.dtype)
                assert (fields[name].shape, fields[name].dtype) == (spec.shape, spec.dtype)
                np.testing.assert_array_equal(np.asarray(fields[name]), np.asarray(expected[name]))
        assert host.get_state() == device.get_state(), "a run may change over at any row"


def test_host_fields_need_no_expanding(stream: MegatronStream) -> None:
    with TokenBatches(stream, G, sharding_of("data", **DATA)) as batches:
        batch = next(batches)
        expanded = batches.expand(batch)
    assert expanded.keys() == batch.keys()
    assert all(expanded[name] is batch[name] for name in batch)


def pieces_of(stream: MegatronStream, row: int) -> list[int]:
    """Segments of a row from where its tokens came from: the definition, by provenance."""
    segments = np.zeros(L + 1, int)
    for number, piece in enumerate(stream.describe(row), 1):
        segments[piece.column : piece.column + piece.stop - piece.start] = number
    return [int(number) for number in segments[:L]]


def test_boundaries_from_the_index_are_where_documents_begin(stream: MegatronStream) -> None:
    assert isinstance(stream, DocumentStream)
    options = FieldOptions(boundaries="index")
    expected = [pieces_of(stream, row) for row in range(24)]
    with TokenBatches(stream, G, sharding_of("data", **DATA), options=options) as batches:
        found = [np.asarray(batch["inputs_segmentation"]) for batch in itertools.islice(batches, 3)]
    assert np.concatenate(found).tolist() == expected
    source = StreamSource(stream, options)
    assert [source[row]["inputs_segmentation"].tolist() for row in range(24)] == expected


def test_the_index_and_eods_agree_where_each_document_ends_with_one(stream: MegatronStream) -> None:
    tokens, starts = stream.read_documents(np.arange(200))
    by_index = make_fields(tokens, stream.eod_id, FieldOptions(boundaries="index"), starts=starts)
    by_eod = make_fields(tokens, stream.eod_id)
    for name, field in by_eod.items():
        np.testing.assert_array_equal(by_index[name], field)


def test_a_stream_without_an_index_is_refused(stream: MegatronStream) -> None:
    plain = Plain(stream)
    assert isinstance(plain, Stream)
    message = r'boundaries="index" needs a stream that knows where its documents begin .*, but Plain\(\) does not'
    with pytest.raises(SettingsError, match=message):
        TokenBatches(plain, G, sharding_of("data", **DATA), options=FieldOptions(boundaries="index"))
    with pytest.raises(SettingsError, match=message):
        StreamSource(plain, FieldOptions(boundaries="index"))
    with TokenBatches(plain, G, sharding_of("data", **DATA)) as batches:
        assert next(batches)["inputs"].shape == (G, L)


@pytest.mark.parametrize("place", ["host", "device", "tokens"])
def test_short_rows_are_padded_by_length(stream: MegatronStream, place: Any) -> None:
    short = Short(stream)
    assert isinstance(short, PaddedStream)
    rows = np.arange(3 * G)
    valid = short.valid_length(rows)
    expected = make_fields(stream.read(rows), stream.eod_id, valid_length=valid)
    sharding = sharding_of("data", **DATA) if place == "tokens" else sharding_of("data", "context", **CONTEXT)
    with TokenBatches(short, G, sharding, fields=place) as batches:
        for number, batch in enumerate(itertools.islice(batches, 3)):
            fields = jax.jit(batches.expand)(batch)
            for name, array in fields.items():
                np.testing.assert_array_equal(np.asarray(array), expected[name][number * G : (number + 1) * G])
        assert batches.metrics()["loss_tokens"] == int(valid.sum())
    source = StreamSource(short)
    assert source[4]["inputs_segmentation"].tolist() == [1] + [0] * 15


def test_megatrons_naming(stream: MegatronStream) -> None:
    options = FieldOptions(reset_attention_mask=False, eod_mask_loss=True, cu_seqlens=True)
    expected = make_megatron_fields(stream.read(np.arange(G)), stream.eod_id, options)
    source = StreamSource(stream, options, naming="megatron")
    assert repr(source).endswith(", naming='megatron')")
    with TokenBatches(stream, G, sharding_of("data", **DATA), options=options, naming="megatron") as batches:
        spec = batches.element_spec
        batch = next(batches)
    assert batch.keys() == spec.keys() == expected.keys() == source[0].keys()
    for name, field in expected.items():
        assert batch[name].dtype == spec[name].dtype == (np.float32 if name == "loss_mask" else np.int32)
        assert batch[name].shape == spec[name].shape
        np.testing.assert_array_equal(np.asarray(batch[name]), field)
        np.testing.assert_array_equal(source[3][name], field[3])
        assert source[3][name].dtype == field.dtype


def test_the_six_fields_stay_the_default_of_a_source(stream: MegatronStream) -> None:
    assert "naming" not in repr(StreamSource(stream))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fields": "tpu"}, "fields must be one of 'host', 'device', 'tokens', not 'tpu'"),
        ({"naming": "nemo"}, "naming must be 'maxtext' or 'megatron', not 'nemo'"),
        ({"naming": "megatron", "fields": "device"}, "naming='megatron' goes with fields=\"host\""),
    ],
)
def test_what_there_is_not_is_refused(stream: MegatronStream, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TokenBatches(stream, G, sharding_of("data", **DATA), **arguments)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_padded_last_batch_is_the_same_from_both(stream: MegatronStream, options: FieldOptions) -> None:
    """200 rows in batches of 48: the last one holds 8 rows and 40 of padding."""
    sharding = LAYOUTS["sequence"][0]()
    arguments: dict[str, Any] = {"options": options, "last_batch": "pad"}
    with (
        TokenBatches(stream, 48, sharding, **arguments) as host,
        TokenBatches(stream, 48, sharding, fields="device", **arguments) as device,
    ):
        for batches in (host, device):
            batches.set_state({**batches.get_state(), "next_sample": 192})
        expected, fields = next(host), jax.jit(device.expand)(next(device))
        assert host.get_state() == device.get_state()
    for name, array in expected.items():
        np.testing.assert_array_equal(np.asarray(fields[name]), np.asarray(array))
        assert not np.asarray(array)[8:].any()
    assert np.asarray(expected["inputs_segmentation"])[:8].all()
