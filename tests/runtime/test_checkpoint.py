"""Checkpoints: model and data state together through a real Orbax manager, and what is refused."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gristmill.formats.errors import CorpusError, FormatError, SettingsError
from gristmill.runtime import Checkpoints, TokenBatches, open_corpus

G = 8


@pytest.fixture
def batches(blended_corpus: str) -> Iterator[TokenBatches]:
    """Batches of 8 rows over eight devices."""
    sharding = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))
    with TokenBatches(open_corpus(blended_corpus).stream(), G, sharding, prefetch=3) as made:
        yield made


def trained(weights: jax.Array, batches: TokenBatches, steps: int) -> jax.Array:
    """A toy model that remembers the order of what it saw."""
    for _ in range(steps):
        weights = weights * 0.5 + next(batches)["inputs"].sum(axis=1).astype(jnp.float32)
    return weights


def test_model_and_data_come_back_together(tmp_path: Path, batches: TokenBatches) -> None:
    weights = trained(jnp.zeros(G), batches, 5)
    threads = set(threading.enumerate())
    with Checkpoints(tmp_path / "run", keep=2) as checkpoints:
        assert checkpoints.latest is None
        for step in (5, 6, 7):
            checkpoints.save(step, {"weights": weights, "step": jnp.int32(step)}, batches)
            weights = trained(weights, batches, 1)
        checkpoints.save(7, {"weights": weights * 0, "step": jnp.int32(0)}, batches)
        expected = trained(weights, batches, 4)
        checkpoints.wait()
        assert checkpoints.steps == [6, 7]
        template = {"weights": weights * 0, "step": jnp.int32(0)}
        step, model = checkpoints.restore(template, batches)
        assert (step, int(model["step"]), batches.next_sample) == (7, 7, 7 * G)
        np.testing.assert_array_equal(np.asarray(trained(model["weights"], batches, 5)), np.asarray(expected))
        step, model = checkpoints.restore(template, batches, step=6)
        np.testing.assert_array_equal(np.asarray(trained(model["weights"], batches, 6)), np.asarray(expected))
    batches.close()
    assert set(threading.enumerate()) <= threads, "Orbax's threads end with `close`"
    assert [path.name for path in (tmp_path / "run" / "7" / "data").iterdir() if path.suffix != ".txt"] == [
        "state.json"
    ]


def test_restoring_keeps_the_sharding_asked_for(tmp_path: Path, batches: TokenBatches) -> None:
    mesh = jax.make_mesh((8,), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"weights": jnp.arange(16.0)}, batches)
        template = {"weights": jax.device_put(jnp.zeros(16), split)}
        _, model = checkpoints.restore(template, batches)
    assert model["weights"].sharding == split
    np.testing.assert_array_equal(np.asarray(model["weights"]), np.arange(16.0))


def test_a_model_that_does_not_fit_leaves_the_data_where_they_are(tmp_path: Path, batches: TokenBatches) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"weights": jnp.arange(16.0)}, batches)
        expected = [next(batches)["inputs"] for _ in range(3)][-1]
        batches.set_state({**batches.get_state(), "next_sample": 2 * G})
        with pytest.raises(ValueError, match="bias"):
            checkpoints.restore({"bias": jnp.zeros(3)}, batches)
        assert batches.next_sample == 2 * G
        np.testing.assert_array_equal(np.asarray(next(batches)["inputs"]), np.asarray(expected))


def test_batches_are_made_ahead_while_the_model_is_read(tmp_path: Path, batches: TokenBatches) -> None:
    model = {"weights": jnp.arange(16.0)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, model, batches)
        next(batches)
        checkpoints.restore(model, batches)
        assert batches._prefetcher is not None
        assert batches.next_sample == 0


def test_nothing_is_saved_behind_the_newest(tmp_path: Path, batches: TokenBatches) -> None:
    model = {"weights": jnp.arange(16.0)}
    with Checkpoints(tmp_path / "run") as checkpoints:
        for step in (2, 4, 6):
            checkpoints.save(step, model, batches)
            next(batches)
        checkpoints.restore(model, batches, step=2)
        message = (
            r"run: step {} cannot be saved beside later ones that are there \(\[4, 6\]\), of .* Remove them, or save"
        )
        for step in (2, 3):
            with pytest.raises(CorpusError, match=message.format(step)):
                checkpoints.save(step, model, batches)
        assert checkpoints.steps == [2, 4, 6]
        shutil.rmtree(tmp_path / "run" / "4")
        shutil.rmtree(tmp_path / "run" / "6")
    with Checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(3, model, batches)
        checkpoints.wait()
        assert checkpoints.steps == [2, 3]


def save_without_data(folder: Path, item: str) -> None:
    with ocp.CheckpointManager(folder) as manager:
        args: Any = {item: ocp.args.StandardSave({"weights": jnp.zeros(3)})}
        manager.save(4, args=ocp.args.Composite(**args))


@pytest.mark.parametrize("item", ["model", "other"])
def test_a_checkpoint_without_data_state_is_refused(tmp_path: Path, batches: TokenBatches, item: str) -> None:
    save_without_data(tmp_path, item)
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(CorpusError, match="step 4 holds no data state, so it is"):
        checkpoints.restore({"weights": jnp.zeros(3)}, batches)
    assert batches.next_sample == 0


def test_a_checkpoint_of_another_stream_is_refused(tmp_path: Path, batches: TokenBatches, make_corpus: Any) -> None:
    folder = make_corpus(seed=11)
    make_corpus.index(folder)
    model = {"weights": jnp.zeros(3)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, model, batches)
        other = TokenBatches(open_corpus(folder).stream(), G, batches.plan.sharding)
        with other, pytest.raises(CorpusError, match="the data state was saved at row 0 of the stream"):
            checkpoints.restore(model, other)


def test_what_would_not_be_found_again_is_not_saved(tmp_path: Path, batches: TokenBatches) -> None:
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        for step in (3.5, "3", -1):
            with pytest.raises(SettingsError, match=rf"step must be a whole number of at least 0, not {step!r}"):
                checkpoints.save(step, {}, batches)  # type: ignore[arg-type]  # on purpose
        checkpoints.save(np.int64(2), {"weights": jnp.zeros(3)}, batches)  # type: ignore[arg-type]  # is taken
        checkpoints.wait()
        assert checkpoints.steps == [2]
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="file: is a file; checkpoints need a folder"):
        Checkpoints(tmp_path / "file")


@pytest.mark.parametrize(("step", "message"), [(None, "no checkpoint; complete ones are not there"), (3, "of step 3;")])
def test_a_checkpoint_that_is_not_there(tmp_path: Path, batches: TokenBatches, step: int | None, message: str) -> None:
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(CorpusError, match=message):
        checkpoints.restore({}, batches, step)
    with pytest.raises(SettingsError, match="keep must be at least 1 checkpoint, not 0"):
        Checkpoints(tmp_path, keep=0)


def test_an_unfinished_checkpoint_is_not_the_latest(tmp_path: Path, batches: TokenBatches) -> None:
    model = {"weights": jnp.zeros(3)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, model, batches)
        next(batches)
        checkpoints.save(2, model, batches)
    shutil.move(tmp_path / "2", tmp_path / "2.orbax-checkpoint-tmp")
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest == 1
        assert checkpoints.restore(model, batches)[0] == 1
    assert batches.next_sample == 0


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", FormatError, "run/1/data/state.json: the data state is damaged .*; restore an earlier step"),
        ('{"version": 1, "next', FormatError, "run/1/data/state.json: the data state is damaged"),
        ("\xff", FormatError, "run/1/data/state.json: the data state is damaged"),
        ("{}", FormatError, "the data state is {}, not a JSON object"),
        ('{"version": 2}', FormatError, "written by a newer Gristmill"),
    ],
)
def test_a_damaged_data_state_is_named(
    tmp_path: Path, batches: TokenBatches, text: str, error: type[Exception], message: str
) -> None:
    model = {"weights": jnp.zeros(3)}
    with Checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(1, model, batches)
        checkpoints.wait()
        (tmp_path / "run" / "1" / "data" / "state.json").write_text(text, "latin-1")
        with pytest.raises(error, match=message):
            checkpoints.restore(model, batches)
