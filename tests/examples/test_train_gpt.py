"""The training example: the loss falls, a resumed run sees the same batches, and the guard goes back or stops."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding

from gristmill.formats.errors import CorpusError
from gristmill.runtime import Checkpoints, TokenBatches, open_corpus

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_gpt.py"


def load(name: str, path: Path) -> ModuleType:
    """A module by its file: neither examples nor the other tests are packages."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


corpora = load("runtime_corpora", ROOT / "tests" / "runtime" / "conftest.py")  # sets up eight devices, too
example = load("train_gpt", SCRIPT)

SMALL = ["--global-batch", "8", "--layers", "1", "--width", "16", "--heads", "2", "--save-every", "4"]


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Keeps compiled steps for the runs of this file, most of whose time would go into compiling them again."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.2,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield {name.upper(): str(value) for name, value in settings.items()}
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One source of text that repeats itself; 240 rows of 16 tokens."""
    make = corpora.CorpusMaker(lambda: tmp_path_factory.mktemp("corpus"))
    folder: str = make(documents={"web": 60}, vocabulary=40)
    make.index(folder, samples=240)
    return folder


def logged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_resumed_run_is_the_unbroken_one(
    corpus: str, tmp_path: Path, compiled: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken, resumed = (tmp_path / f"{name}.jsonl" for name in ("whole", "broken", "resumed"))
    arguments = [corpus, "--steps", "30", *SMALL]
    assert example.main([*arguments, "--log", str(whole)]) == 0
    expected = logged(whole)
    assert [entry["step"] for entry in expected] == list(range(30))
    assert [entry["first_row"] for entry in expected] == list(range(0, 240, 8))
    losses = [entry["loss"] for entry in expected]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1, "the model learns something"
    assert "validation loss" in capsys.readouterr().out

    run = ["--checkpoint", str(tmp_path / "run")]
    assert example.main([*arguments, *run, "--stop-after", "13", "--log", str(broken)]) == 0
    assert logged(broken) == expected[:13]
    flags = "--xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), *arguments, *run, "--resume", "--log", str(resumed)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **compiled},
    )
    assert done.returncode == 0, done.stderr
    assert "resumed at step 13, row 104" in done.stdout
    again = logged(resumed)
    assert [entry["sha256"] for entry in again] == [entry["sha256"] for entry in expected[13:]]
    np.testing.assert_allclose([entry["loss"] for entry in again], losses[13:], rtol=1e-6)


def test_it_ends_with_the_stream(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main([corpus, "--steps", "99", *SMALL[2:], "--global-batch", "64"]) == 0
    assert "the stream ends at step 3; 48 rows are left over" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--resume"], 2, "--resume needs --checkpoint FOLDER"),
        (["--checkpoint", "{run}"], 2, "holds checkpoints: pass --resume, or name another folder"),
        (["--checkpoint", "{run}", "--resume"], 1, "the checkpoint of step 4 holds no data state"),
        (["--checkpoint", "{none}", "--resume"], 1, "no checkpoint; complete ones are not there at all"),
        (["--global-batch", "12"], 2, "global_batch 12 with sequence_length 16 does not fit the sharding"),
        (["--sequence-length", "64"], 1, "no index set for sequence length 64"),
    ],
)
def test_what_it_refuses(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        items: dict[str, Any] = {"model": ocp.args.StandardSave({"weights": jnp.zeros(3)})}
        manager.save(4, args=ocp.args.Composite(**items))
    folders = {"run": tmp_path / "run", "none": tmp_path / "none"}
    arguments = [corpus, "--steps", "2", *SMALL, *(word.format(**folders) for word in words)]
    assert example.main(arguments) == code
    assert message in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------- the guard


class Model:
    """A model small enough to train in a test; `bad` is a step whose loss is not a number."""

    def __init__(self) -> None:
        mesh = example.make_mesh()
        self.gpt = example.GPT(vocabulary=64, layers=1, width=16, heads=2)
        self.optimizer = example.make_optimizer(30, 3, 1e-2)
        self.good = example.make_step(self.gpt.loss, self.optimizer)
        self.bad = example.make_step(self.not_a_number, self.optimizer)
        self.sharding = NamedSharding(mesh, example.ROWS)
        self.init = jax.jit(self.fresh, out_shardings=example.shardings(mesh, jax.eval_shape(self.fresh)))

    def fresh(self) -> Any:
        params = self.gpt.init(jax.random.key(0))
        return {"params": params, "opt": self.optimizer.init(params)}

    def not_a_number(self, params: Any, batch: Any) -> jax.Array:
        value: jax.Array = self.gpt.loss(params, batch) * jnp.nan
        return value


class Rig:
    """A model with fresh parameters, batches and checkpoints of its own."""

    def __init__(self, model: Model, corpus: str, folder: Path) -> None:
        self.gpt, self.optimizer, self.good, self.bad = model.gpt, model.optimizer, model.good, model.bad
        self.batches = TokenBatches(open_corpus(corpus).stream(), 8, model.sharding)
        self.checkpoints = Checkpoints(folder)
        self.log = folder.with_suffix(".jsonl")
        self.state = model.init()

    def train(self, step: Callable[..., Any], stop: int, checkpoints: bool = True) -> Any:
        return example.train(
            step,
            lambda params: 0.0,
            self.state,
            self.batches,
            start=0,
            stop=stop,
            save_every=4,
            checkpoints=self.checkpoints if checkpoints else None,
            log=str(self.log),
        )


@pytest.fixture(scope="module")
def model() -> Model:
    """One model for all tests, so that it is compiled once."""
    return Model()


@pytest.fixture
def rig(model: Model, corpus: str, tmp_path: Path) -> Iterator[Rig]:
    """A rig that is closed afterwards."""
    made = Rig(model, corpus, tmp_path / "rig")
    yield made
    made.batches.close()
    made.checkpoints.close()


def copied(tree: Any) -> Any:
    return jax.tree.map(lambda array: np.array(array), tree)


def test_a_step_that_is_not_finite_changes_nothing(rig: Rig) -> None:
    state, _ = rig.good(rig.state, next(rig.batches))
    before = copied(state)
    state, metrics = rig.bad(state, next(rig.batches))
    assert not metrics["finite"]
    assert np.isnan(metrics["loss"])
    jax.tree.map(np.testing.assert_array_equal, copied(state), before)
    state, metrics = rig.good(state, next(rig.batches))
    assert metrics["finite"]
    assert not np.array_equal(np.array(state["params"]["embed"]), before["params"]["embed"])


def test_four_failures_in_a_row_are_skipped(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    calls = iter(range(100))

    def step(state: Any, batch: Any) -> Any:
        return (rig.bad if 2 <= next(calls) < 6 else rig.good)(state, batch)

    at, _ = rig.train(step, 10)
    assert at == 10
    assert rig.batches.next_sample == 80
    assert [entry["loss"] is None for entry in logged(rig.log)] == [False] * 2 + [True] * 4 + [False] * 4
    assert capsys.readouterr().out.count("not finite; skipped") == 4


def test_after_an_accident_model_and_data_go_back_together(rig: Rig, model: Model, corpus: str, tmp_path: Path) -> None:
    other = Rig(model, corpus, tmp_path / "other")
    _, expected = other.train(other.good, 14)
    calls = iter(range(100))

    def step(state: Any, batch: Any) -> Any:
        return (rig.bad if 6 <= next(calls) < 11 else rig.good)(state, batch)

    at, state = rig.train(step, 14)
    assert (at, rig.batches.next_sample) == (14, 14 * 8)
    jax.tree.map(np.testing.assert_array_equal, copied(state), copied(expected))
    steps = [entry["step"] for entry in logged(rig.log)]
    assert steps == [*range(11), *range(4, 14)], (
        "five failures from step 6 on, then again from the checkpoint of step 4"
    )
    digests = {entry["step"]: entry["sha256"] for entry in logged(other.log)}
    assert [entry["sha256"] for entry in logged(rig.log)] == [digests[step] for step in steps]
    other.batches.close()
    other.checkpoints.close()


def test_two_accidents_are_survived_when_a_checkpoint_lies_between(rig: Rig) -> None:
    calls = iter(range(100))

    def step(state: Any, batch: Any) -> Any:
        number = next(calls)
        return (rig.bad if 6 <= number < 11 or 17 <= number < 22 else rig.good)(state, batch)

    at, _ = rig.train(step, 20)
    assert at == 20
    assert [entry["step"] for entry in logged(rig.log)] == [*range(11), *range(4, 15), *range(8, 20)]


def test_rows_that_always_fail_stop_the_run_and_are_named(rig: Rig) -> None:
    scales = np.random.default_rng(0).integers(1, 2**20, 16, np.int32)  # a row's dot product with them is its mark
    marks = jnp.asarray(rig.batches.stream.read(np.arange(48, 88))[:, :-1].astype(np.int32) @ scales)

    def loss(params: Any, batch: Any) -> jax.Array:
        found = jnp.isin(batch["inputs"] @ scales, marks).any()
        value: jax.Array = rig.gpt.loss(params, batch) * jnp.where(found, jnp.nan, 1.0)
        return value

    with pytest.raises(CorpusError, match=r"rows 48 to 87\), again after going back to step 4: no accident\. Look at"):
        rig.train(example.make_step(loss, rig.optimizer), 20)
    assert len(logged(rig.log)) == 11 + 7


@pytest.mark.parametrize("saved", [False, True])
def test_without_a_checkpoint_there_is_no_way_back(rig: Rig, saved: bool) -> None:
    message = "rows 0 to 39" + (r"\), again after going back to step 0" if saved else r"\), and there is no checkpoint")
    with pytest.raises(CorpusError, match=message):
        rig.train(rig.bad, 20, checkpoints=saved)
    assert len(logged(rig.log)) == (10 if saved else 5)


# ----------------------------------------------------------------------------------------------------------- the model


def test_attention_stays_inside_documents_and_looks_only_back(rig: Rig) -> None:
    params = jax.tree.map(jnp.asarray, copied(rig.state["params"]))
    segments = np.array([[1, 1, 1, 2, 2, 2, 2, 3]])
    positions = np.array([[0, 1, 2, 0, 1, 2, 3, 0]])
    tokens = np.random.default_rng(0).integers(0, 40, (1, 8))
    run = jax.jit(partial(rig.gpt.logits, params))

    def logits(changed: np.ndarray) -> np.ndarray:
        batch = {"inputs": changed, "inputs_segmentation": segments, "inputs_position": positions}
        result: np.ndarray = np.array(run({name: jnp.asarray(value) for name, value in batch.items()}))[0]
        return result

    before = logits(tokens)
    for place in range(8):
        changed = tokens.copy()
        changed[0, place] += 1
        differs = np.abs(logits(changed) - before).max(axis=-1) > 0
        reach = (segments[0] == segments[0, place]) & (np.arange(8) >= place)
        assert differs.tolist() == reach.tolist()


def test_only_targets_that_count_are_in_the_loss(rig: Rig) -> None:
    batch = {name: jnp.asarray(np.asarray(array)) for name, array in next(rig.batches).items()}
    params = copied(rig.state["params"])
    weights = np.zeros((8, 16), np.int32)
    weights[2, :5] = 1
    part = {**batch, "targets_segmentation": jnp.asarray(weights)}
    changed = {**part, "targets": jnp.where(weights == 1, batch["targets"], 0)}
    assert float(rig.gpt.loss(params, part)) == float(rig.gpt.loss(params, changed))
    assert float(rig.gpt.loss(params, part)) != float(rig.gpt.loss(params, batch))
    nothing = {**batch, "targets_segmentation": jnp.zeros((8, 16), jnp.int32)}
    assert float(rig.gpt.loss(params, nothing)) == 0.0
