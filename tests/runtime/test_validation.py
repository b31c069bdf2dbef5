"""Validation: sets by name, rounds, and a last batch that is padded so that every row is delivered once."""

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from gristmill.formats.errors import CorpusError, SettingsError
from gristmill.formats.storage import write_bytes
from gristmill.runtime import FieldOptions, TokenBatches, open_corpus
from gristmill.runtime.raw_rows import RawReader
from gristmill.runtime.streams import MegatronStream
from gristmill.runtime.validation import validation_round, validation_streams
from gristmill.runtime.window_stream import WindowStream
from gristmill.runtime.windows import WindowOptions


@pytest.fixture(scope="module")
def valid(blended_corpus: str) -> Any:
    """16 rows: a fixed set in the order of the data."""
    return open_corpus(blended_corpus).windows("valid", options=WindowOptions(shuffle=False))


def padded(stream: Any, global_batch: int, sharding: Any = None, **options: Any) -> TokenBatches:
    sharding = SingleDeviceSharding(jax.devices()[0]) if sharding is None else sharding
    return TokenBatches(stream, global_batch, sharding, last_batch="pad", **options)


# -------------------------------------------------------------------------------------------------- a padded last batch

MESHES = {
    "data": ((8,), ("data",), P("data")),
    "two axes": ((2, 4), ("data", "fsdp"), P(("data", "fsdp"))),
    "replicas": ((2, 4), ("data", "tensor"), P("data")),
    "sequence": ((2, 4), ("data", "context"), P("data", "context")),
}


@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize(("fields", "rows"), [("host", 13), ("host", 16), ("host", 3), ("device", 13)])
def test_every_row_is_delivered_once_and_the_rest_is_padding(valid: Any, mesh: Any, fields: Any, rows: int) -> None:
    shape, axes, spec = mesh
    sharding = NamedSharding(Mesh(np.array(jax.devices()).reshape(shape), axes), spec)
    stream = valid.take(rows)
    with padded(stream, 8, sharding, fields=fields) as batches:
        expected_shapes = {name: one.shape for name, one in batches.element_spec.items()}
        expand = jax.jit(batches.expand)
        delivered, real = [], []
        for batch in batches:
            assert {name: array.shape for name, array in batch.items()} == expected_shapes
            delivered.append({name: np.asarray(array) for name, array in expand(batch).items()})
            real.append(batches.real_rows)
        assert sum(real) == rows == batches.next_sample
        assert real == [8] * (rows // 8) + [rows % 8] * (rows % 8 > 0)
        assert batches.leftover_rows == 0
    whole = {name: np.concatenate([batch[name] for batch in delivered]) for name in delivered[0]}
    tokens = stream.read(np.arange(rows))
    assert np.array_equal(whole["inputs"][:rows], tokens[:, :-1])
    assert np.array_equal(whole["targets"][:rows], tokens[:, 1:])
    assert (whole["targets_segmentation"][:rows] == 1).all()
    for name, field in whole.items():
        assert not field[rows:].any(), name


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 16), batch=st.integers(1, 4), hosts=st.sampled_from([1, 2, 4]), data=st.data())
def test_hosts_together_read_each_row_once(valid: Any, rows: int, batch: int, hosts: int, data: st.DataObject) -> None:
    """Each group of devices stands for a host: what it holds of all batches, put together, is the set."""
    stream = valid.take(rows)
    order = data.draw(st.permutations(range(4)))
    devices = np.array(jax.devices())[list(order)]
    found: Counter[tuple[int, ...]] = Counter()
    with padded(stream, 4 * batch, NamedSharding(Mesh(devices, ("data",)), P("data")), prefetch=0) as batches:
        for one in batches:
            for host in range(hosts):
                mine = {device.id for device in devices[host * 4 // hosts : (host + 1) * 4 // hosts]}
                for inputs, loss in zip(
                    one["inputs"].addressable_shards, one["targets_segmentation"].addressable_shards, strict=True
                ):
                    if inputs.device.id in mine:
                        kept = np.asarray(loss.data).any(axis=1)
                        found.update(map(tuple, np.asarray(inputs.data)[kept].tolist()))
    assert found == Counter(map(tuple, stream.read(np.arange(rows))[:, :-1].tolist()))


def test_microbatches_and_index_boundaries_are_padded_too(valid: Any) -> None:
    stream = valid.take(5)
    options = FieldOptions(boundaries="index", cu_seqlens=True)
    with padded(stream, 8, microbatches=2, options=options) as batches:
        batch = next(batches)
    assert batch["inputs"].shape == (2, 4, 16)
    rows = {name: np.asarray(array).reshape(8, -1) for name, array in batch.items()}
    assert not rows["inputs_segmentation"][5:].any()
    assert (rows["inputs_segmentation"][:5] > 0).all()
    assert not rows["cu_seqlens"][5:].any()


def test_partial_windows_and_padded_rows_go_together(blended_corpus: str) -> None:
    options = WindowOptions(shuffle=False, drop_last_partial=False, sources=["web"])
    stream: Any = open_corpus(blended_corpus).windows("valid", options=options)
    with padded(stream, 8) as batches:
        loss = np.concatenate([np.asarray(batch["targets_segmentation"]) for batch in batches])
    held = stream.valid_length(np.arange(len(stream)))
    assert loss.sum(axis=1).tolist() == held.tolist() + [0] * (-len(stream) % 8)
    assert loss.sum() == stream.reader.index.members[0].tokens - 1


@pytest.mark.parametrize("boundaries", ["eod", "index"])
def test_a_host_whose_rows_are_all_padding_reads_nothing(blended_corpus: str, boundaries: Any) -> None:
    corpus = open_corpus(blended_corpus)
    for stream in (corpus.stream("valid").take(3), corpus.windows("valid").take(3)):
        raw = RawReader(stream, FieldOptions(boundaries=boundaries), pad=True).read(np.array([5, 6, 7]))
        assert raw.valid_length is not None
        assert raw.tokens.shape == (3, 17)
        assert not raw.tokens.any()
        assert not raw.valid_length.any()
        assert stream.read_counts()["bytes_read"] == 0
        with pytest.raises(IndexError, match="row 5 does not exist; the stream has 3 rows"):
            RawReader(stream, FieldOptions(boundaries=boundaries)).read(np.array([5]))


def test_losses_are_counted_without_padding(valid: Any) -> None:
    with padded(valid.take(13), 8) as batches:
        for _ in batches:
            pass
        found = batches.metrics()
    assert (found["batches"], found["samples"], found["tokens"]) == (2, 13, 13 * 16)
    assert found["loss_tokens"] == 13 * 16
    assert sum(count for name, count in found.items() if name.startswith("samples/")) == 13


def test_a_state_counts_rows_of_the_stream(valid: Any) -> None:
    stream = valid.take(13)
    with padded(stream, 8) as batches:
        next(batches)
        state = batches.get_state()
        next(batches)
        assert batches.get_state()["next_sample"] == 13
        batches.set_state(state)
        assert int(np.asarray(next(batches)["targets_segmentation"]).any(axis=1).sum()) == 5
    with padded(stream, 5) as other:
        other.set_state(state)
        next(other)
        assert (other.real_rows, other.next_sample) == (5, 13)
        with pytest.raises(StopIteration):
            next(other)


def test_a_set_smaller_than_a_batch_needs_padding(valid: Any) -> None:
    sharding = SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(SettingsError, match=r'global_batch 8 is more than the 3 rows .* with last_batch="pad"'):
        TokenBatches(valid.take(3), 8, sharding)
    with pytest.raises(SettingsError, match="last_batch must be 'drop' or 'pad', not 'keep'"):
        TokenBatches(valid, 8, sharding, last_batch="keep")  # type: ignore[arg-type]  # refused at run time


# --------------------------------------------------------------------------------------------------------------- rounds


def test_rounds_are_the_same(valid: Any) -> None:
    for number in (0, 1, 7):
        found = validation_round(valid, number, rows=6)
        assert found.base_rows(np.arange(6)).tolist() == list(range(6))
        assert found.fingerprint == valid.fingerprint
    assert len(validation_round(valid, 3)) == len(valid)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 16), number=st.integers(0, 100))
def test_rounds_go_on_and_begin_again(valid: Any, rows: int, number: int) -> None:
    found = validation_round(valid, number, rows=rows, rounds="continue")
    expected = [(number * rows + row) % len(valid) for row in range(rows)]
    assert found.base_rows(np.arange(rows)).tolist() == expected
    assert np.array_equal(found.read(np.arange(rows)), valid.read(expected))
    assert found.describe(rows - 1) == valid.describe(expected[-1])
    assert (found.fingerprint == valid.fingerprint) == (expected[0] == 0)


def test_rounds_of_rows_that_are_left(valid: Any) -> None:
    view = valid.skip_range(2, 4)
    found = validation_round(view, 3, rows=5, rounds="continue")
    assert np.array_equal(found.read(np.arange(5)), view.read([1, 2, 3, 4, 5]))
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again.read([4]), found.read([4]))
    with pytest.raises(SettingsError, match="is a round of validation, of which nothing can be skipped"):
        found.skip_range(0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"number": -1}, "number of a round must be a whole number of at least 0, not -1"),
        ({"rows": 0}, "rows of a round must be a whole number of at least 1, not 0"),
        ({"rows": 17}, "a round of 17 rows is longer than the set, which has 16: WindowStream"),
        ({"rounds": "random"}, "rounds must be 'same' or 'continue', not 'random'"),
        ({"number": 1.5}, "number of a round must be a whole number of at least 0, not 1.5"),
    ],
)
def test_rounds_that_cannot_be_are_named(valid: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        validation_round(valid, **arguments)


# --------------------------------------------------------------------------------------------------------- sets by name


@pytest.mark.parametrize("split", ["valid", "train"])
def test_each_source_is_a_set(blended_corpus: str, split: str) -> None:
    corpus = open_corpus(blended_corpus)
    found = validation_streams(corpus, split)
    assert list(found) == ["web", "code"]
    members = {member.source: member for member in corpus.choose_index_set(None, None, None).order(split).members}
    for source, stream in found.items():
        assert isinstance(stream, MegatronStream)
        assert (stream.sources, len(stream)) == ((source,), members[source].rows)
        assert {piece.source for row in range(len(stream)) for piece in stream.describe(row)} == {source}
        again = pickle.loads(pickle.dumps(stream))
        assert np.array_equal(again.read([0, 1]), stream.read([0, 1]))
    assert found["web"].fingerprint != found["code"].fingerprint
    whole = corpus.stream(split)
    rows = Counter(map(tuple, whole.read(np.arange(len(whole))).tolist()))
    alone = Counter(tuple(row) for one in found.values() for row in one.read(np.arange(len(one))).tolist())
    assert rows <= alone
    if split == "valid":
        assert rows == alone


def test_each_source_is_a_set_of_windows(blended_corpus: str) -> None:
    corpus = open_corpus(blended_corpus)
    found = validation_streams(corpus, sequence_length=8, windows=WindowOptions(shuffle=False))
    assert list(found) == ["web", "code"]
    for source, stream in found.items():
        assert isinstance(stream, WindowStream)
        assert stream.windows == {source: len(stream)}
    whole = corpus.windows("valid", 8)
    assert sum(map(len, found.values())) == len(whole)


@pytest.mark.parametrize("windows", [None, WindowOptions()], ids=["index set", "windows"])
def test_sets_on_an_object_store_share_a_cache(blended_corpus: str, tmp_path: Path, windows: Any) -> None:
    url = f"memory://{tmp_path.name}"
    for path in Path(blended_corpus).rglob("*.*"):
        write_bytes(f"{url}/{path.relative_to(blended_corpus)}", path.read_bytes())
    corpus = open_corpus(url)
    cache = {"storage": "cache", "cache_dir": tmp_path / "cache", "cache_bytes": 10**8}
    local = validation_streams(open_corpus(blended_corpus), windows=windows)
    sets = validation_streams(corpus, windows=windows, **cache)  # type: ignore[arg-type]  # one dict for all three
    assert sets.keys() == local.keys() == {"web", "code"}
    for name, stream in sets.items():
        rows = np.arange(len(stream))
        assert np.array_equal(stream.read(rows), local[name].read(rows))
        assert stream.read_counts()["cache_misses"] > 0
        stream.close()
    assert any((tmp_path / "cache").rglob("*"))
    with pytest.raises(SettingsError, match="cache_bytes must be at least 1, not 0"):
        validation_streams(corpus, windows=windows, cache_bytes=0)
    fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


def test_a_split_without_rows_has_no_set(blended_corpus: str) -> None:
    with pytest.raises(CorpusError, match="test: the index set holds no samples of this split"):
        validation_streams(open_corpus(blended_corpus), "test")
