"""Trains a small GPT on a prepared corpus: JAX and optax alone, with what a real run needs around them.

    python examples/train_gpt.py CORPUS --steps 40 --global-batch 16 --checkpoint out/run [--resume]

Parameters are sharded over the mesh axis `fsdp`, rows over `data` and `fsdp`. A step whose loss or gradient is not
finite changes nothing; after five in a row, model and data go back to the last checkpoint together. A fault that was
an accident is gone then. When the same stretch fails again, the run stops and names the rows, since going back once
more would only repeat it.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gristmill.formats.errors import CorpusError, GristmillError, SettingsError
from gristmill.runtime import Batch, Checkpoints, Corpus, MegatronStream, TokenBatches, open_corpus

Tree = Any
Step = Callable[[Tree, Batch], tuple[Tree, dict[str, jax.Array]]]
Loss = Callable[[Tree, Batch], jax.Array]

ROWS = P(("data", "fsdp"))


# ------------------------------------------------------------------------------------------------------------- model


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT:
    """A decoder with rotary positions, RMS norms and tied embeddings; attention stays inside documents."""

    vocabulary: int  # rows of the embedding; ids are smaller
    layers: int
    width: int
    heads: int  # width / heads must be even

    def init(self, key: jax.Array) -> Tree:
        """Fresh parameters, float32; those of all blocks lie in arrays with a leading axis of `layers`."""
        n, w = self.layers, self.width
        shapes = {"qkv": (n, w, 3 * w), "out": (n, w, w), "up": (n, w, 4 * w), "down": (n, 4 * w, w)}
        keys = dict(zip((*shapes, "embed"), jax.random.split(key, len(shapes) + 1), strict=True))
        blocks = {name: 0.02 * jax.random.normal(keys[name], shape) for name, shape in shapes.items()}
        blocks |= {"norm1": jnp.ones((n, w)), "norm2": jnp.ones((n, w))}
        embed = 0.02 * jax.random.normal(keys["embed"], (self.vocabulary, w))
        return {"embed": embed, "blocks": blocks, "norm": jnp.ones(w)}

    def logits(self, params: Tree, batch: Batch) -> jax.Array:
        """float32 [B, L, vocabulary]."""
        segments = batch["inputs_segmentation"]
        together = segments[:, :, None] == segments[:, None, :]
        causal = jnp.tril(jnp.ones((segments.shape[1],) * 2, bool))
        mask = (together & causal)[:, None]  # [B, 1, L, L], for all heads
        turns = rotations(batch["inputs_position"], self.width // self.heads)

        def block(x: jax.Array, layer: Tree) -> tuple[jax.Array, None]:
            heads = (*x.shape[:2], self.heads, self.width // self.heads)
            q, k, v = (part.reshape(heads) for part in jnp.split(rms(x, layer["norm1"]) @ layer["qkv"], 3, axis=-1))
            attended = jax.nn.dot_product_attention(rotate(q, turns), rotate(k, turns), v, mask=mask)
            x = x + attended.reshape(x.shape) @ layer["out"]
            return x + jax.nn.gelu(rms(x, layer["norm2"]) @ layer["up"]) @ layer["down"], None

        x: jax.Array = params["embed"][batch["inputs"]]
        x, _ = jax.lax.scan(block, x, params["blocks"])
        return rms(x, params["norm"]) @ jnp.transpose(params["embed"])

    def loss(self, params: Tree, batch: Batch) -> jax.Array:
        """Mean cross-entropy in nats over the targets that count, `targets_segmentation` not 0."""
        losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(
            self.logits(params, batch), batch["targets"]
        )
        weights = (batch["targets_segmentation"] != 0).astype(losses.dtype)
        return (losses * weights).sum() / jnp.maximum(weights.sum(), 1)


def rms(x: jax.Array, scale: jax.Array) -> jax.Array:
    """`x` divided by its root mean square over the last axis, then scaled."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def rotations(positions: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of the rotary angles, each [B, L, 1, size / 2]."""
    frequencies = 10_000.0 ** (-jnp.arange(0, size, 2) / size)
    angles = positions[:, :, None, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, turns: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotates pairs of features of [B, L, heads, size] by their position."""
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = turns
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


# -------------------------------------------------------------------------------------------------------------- steps


def make_mesh() -> Mesh:
    """All devices as ``(data, fsdp)``, two along `fsdp` where their number is even."""
    fsdp = 2 if jax.device_count() % 2 == 0 else 1
    return jax.make_mesh((jax.device_count() // fsdp, fsdp), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)


def shardings(mesh: Mesh, tree: Tree) -> Tree:
    """For each array, its largest axis split over `fsdp` where that divides it."""

    def of(array: jax.ShapeDtypeStruct) -> NamedSharding:
        spec: list[str | None] = [None] * len(array.shape)
        if spec and max(array.shape) % mesh.shape["fsdp"] == 0 and max(array.shape) > 1:
            spec[int(np.argmax(array.shape))] = "fsdp"
        return NamedSharding(mesh, P(*spec))

    return jax.tree.map(of, tree)


def make_optimizer(steps: int, warmup: int, peak: float) -> optax.GradientTransformation:
    """AdamW with gradients clipped to norm 1, a linear warm-up and a cosine down to a tenth of the peak."""
    rate = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, max(steps, warmup + 1), peak / 10)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, weight_decay=0.1))


def make_step(loss: Loss, optimizer: optax.GradientTransformation) -> Step:
    """A compiled step: (params and opt) and a batch to their successors and metrics; nothing moves unless finite."""

    @partial(jax.jit, donate_argnums=0)
    def step(state: Tree, batch: Batch) -> tuple[Tree, dict[str, jax.Array]]:
        value, gradients = jax.value_and_grad(loss)(state["params"], batch)
        norm = optax.tree.norm(gradients)
        updates, opt = optimizer.update(gradients, state["opt"], state["params"])
        moved = {"params": optax.apply_updates(state["params"], updates), "opt": opt}
        finite = jnp.isfinite(value) & jnp.isfinite(norm)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state)
        return kept, {"loss": value, "gradient_norm": norm, "finite": finite}

    return step


@dataclass(slots=True)
class Guard:
    """Decides when to go back: at the fifth failed step in a row, but never twice to the same checkpoint."""

    patience: int = 5
    failed: int = 0  # steps in a row, until now
    went_back_to: int | None = None  # step of the checkpoint

    def must_go_back(self, finite: bool) -> bool:
        """Counts a step; whether it was one failure too many."""
        self.failed = 0 if finite else self.failed + 1
        return self.failed >= self.patience

    def go_back(self, checkpoints: Checkpoints | None, state: Tree, batches: TokenBatches) -> tuple[int, Tree]:
        """Step and state of the last checkpoint, with the data set to it.

        Raises:
            CorpusError: there is none, or it was gone back to before and the same stretch failed again.
        """
        if checkpoints is not None:
            checkpoints.wait()
        rows = f"rows {batches.next_sample - self.failed * batches.global_batch} to {batches.next_sample - 1}"
        if checkpoints is None or checkpoints.latest is None:
            raise CorpusError(f"{self.failed} steps in a row were not finite ({rows}), and there is no checkpoint")
        if checkpoints.latest == self.went_back_to:
            raise CorpusError(
                f"{self.failed} steps in a row were not finite ({rows}), again after going back to step "
                f"{self.went_back_to}: no accident. Look at these rows with stream.describe, or lower the learning rate"
            )
        self.failed = 0
        self.went_back_to, state = checkpoints.restore(state, batches)
        return self.went_back_to, state


# ---------------------------------------------------------------------------------------------------------- the run


def log_step(path: str | None, batch: Batch, record: dict[str, Any]) -> None:
    """Adds a JSON line with a digest of the global batch, so that runs can be compared; every process must call it."""
    if path is None:
        return
    digest = hashlib.sha256()
    for name in sorted(batch):
        digest.update(np.asarray(multihost_utils.process_allgather(batch[name], tiled=True)).tobytes())
    if jax.process_index() == 0:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({**record, "sha256": digest.hexdigest()}) + "\n")


def mean_loss(loss: Loss, params: Tree, stream: MegatronStream | None, like: TokenBatches, most: int = 4) -> float:
    """Mean loss over the first rows of a stream, at most `most` batches like those of training; NaN without rows."""
    parts = like.plan.sharding.num_devices
    rows = min(like.global_batch, len(stream) // parts * parts if stream is not None else 0)
    if stream is None or rows == 0:
        return float("nan")
    with TokenBatches(stream, rows, like.plan.sharding, options=like.options, prefetch=0) as batches:
        return float(np.mean([float(loss(params, batch)) for _, batch in zip(range(most), batches)]))


def train(
    step: Step,
    evaluate: Callable[[Tree], float],
    state: Tree,
    batches: TokenBatches,
    *,
    start: int,
    stop: int,
    save_every: int,
    checkpoints: Checkpoints | None,
    log: str | None,
) -> tuple[int, Tree]:
    """Trains from step `start` to `stop` or the end of the stream; returns the step reached and the state."""
    guard, at, began = Guard(), start, time.monotonic()
    if checkpoints is not None:
        checkpoints.save(at, state, batches)  # from the first step on, there is something to go back to
    while at < stop:
        first_row = batches.next_sample
        batch = next(batches, None)
        if batch is None:
            print(f"the stream ends at step {at}; {batches.leftover_rows} rows are left over")
            break
        state, metrics = step(state, batch)
        finite, loss = bool(metrics["finite"]), float(metrics["loss"])
        log_step(log, batch, {"step": at, "first_row": first_row, "loss": loss if finite else None})
        at += 1
        if guard.must_go_back(finite):
            at, state = guard.go_back(checkpoints, state, batches)
            print(f"{guard.patience} steps in a row were not finite: back to step {at}, row {batches.next_sample}")
        elif not finite:
            print(f"step {at}: loss {loss}, not finite; skipped")
        elif at % 5 == 0 or at == stop:
            print(f"step {at:5d}  loss {loss:.4f}  {(at - start) / (time.monotonic() - began):.2f} steps/s")
        if finite and at % save_every == 0:
            print(f"step {at:5d}  validation loss {evaluate(state['params']):.4f}")
            if checkpoints is not None:
                checkpoints.save(at, state, batches)
    return at, state


def parse(words: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Trains a small GPT on a prepared corpus.")
    parser.add_argument("corpus", help="folder or URL of a corpus that `gristmill prepare` finished")
    parser.add_argument("--steps", type=int, default=40, help="length of the run, and of the learning rate's schedule")
    parser.add_argument("--stop-after", type=int, metavar="STEP", help="end early, as an interrupted run would")
    parser.add_argument("--global-batch", type=int, default=16, help="rows of a batch over all processes")
    parser.add_argument("--sequence-length", type=int, help="default: the corpus's own")
    parser.add_argument("--seed", type=int, help="of the order of rows; default: the corpus's own")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="where to save model and data together")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--log", metavar="FILE", help="a JSON line for each step, with a digest of its batch")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=5, metavar="STEPS")
    parser.add_argument("--learning-rate", type=float, default=1e-2, metavar="PEAK")
    return parser.parse_args(words)


def open_valid(corpus: Corpus, arguments: argparse.Namespace) -> MegatronStream | None:
    """The validation split, or None where it has no rows."""
    try:
        return corpus.stream("valid", arguments.sequence_length, arguments.seed)
    except CorpusError as error:
        print(f"no validation: {error}")
        return None


def run(arguments: argparse.Namespace) -> tuple[int, Tree]:
    """Opens everything, trains and saves; returns the step reached and the state."""
    if arguments.resume and not arguments.checkpoint:
        raise SettingsError("--resume needs --checkpoint FOLDER, to go on from there")
    corpus, mesh = open_corpus(arguments.corpus), make_mesh()
    stream = corpus.stream("train", arguments.sequence_length, arguments.seed)
    gpt = GPT(
        vocabulary=-(-corpus.manifest.tokenizer.vocabulary // 64) * 64,  # divides evenly over devices
        layers=arguments.layers,
        width=arguments.width,
        heads=arguments.heads,
    )
    optimizer = make_optimizer(arguments.steps, arguments.warmup, arguments.learning_rate)

    def init() -> Tree:
        params = gpt.init(jax.random.key(0))
        return {"params": params, "opt": optimizer.init(params)}

    shapes = jax.eval_shape(init)
    state = jax.jit(init, out_shardings=shardings(mesh, shapes))()
    size = sum(array.size for array in jax.tree.leaves(state["params"]))
    print(f"{size:,} parameters on {dict(mesh.shape)}; {stream!r} of {len(stream):,} rows")
    evaluate = partial(mean_loss, jax.jit(gpt.loss), stream=open_valid(corpus, arguments))
    if arguments.log and jax.process_index() == 0:
        Path(arguments.log).write_text("", encoding="utf-8")
    checkpoints = Checkpoints(arguments.checkpoint) if arguments.checkpoint else None
    try:
        with TokenBatches(stream, arguments.global_batch, NamedSharding(mesh, ROWS)) as batches:
            start = 0
            if arguments.resume and checkpoints is not None:
                start, state = checkpoints.restore(state, batches)
                print(f"resumed at step {start}, row {batches.next_sample}")
            elif checkpoints is not None and checkpoints.latest is not None:
                raise SettingsError(f"{checkpoints.folder} holds checkpoints: pass --resume, or name another folder")
            at, state = train(
                make_step(gpt.loss, optimizer),
                lambda params: evaluate(params, like=batches),
                state,
                batches,
                start=start,
                stop=min(arguments.steps, arguments.stop_after or arguments.steps),
                save_every=arguments.save_every,
                checkpoints=checkpoints,
                log=arguments.log,
            )
            if checkpoints is not None:
                checkpoints.save(at, state, batches)
    finally:
        if checkpoints is not None:
            checkpoints.close()
    return at, state


def main(words: list[str] | None = None) -> int:
    """Runs the example; returns the exit code."""
    try:
        run(parse(words))
    except GristmillError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
