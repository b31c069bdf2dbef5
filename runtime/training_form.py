"""The six fields in the form that a trainer takes: its names, labels without loss as -100, masks, one flat axis.

A pure function of a batch, by NumPy for NumPy arrays and by JAX for JAX's, so it goes into a data pipeline or into the
jitted step alike, where it costs nothing that XLA would not fuse. What a trainer means by "labels" differs in one way
that no error ever shows: whether it shifts them itself. Each form says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from gristmill.formats.errors import SettingsError

__all__ = ["to_training", "Trainer", "TRAINERS", "TrainingForm"]

Trainer = Literal["easylm", "huggingface", "megatron", "t5x"]
"""Names of the forms in `TRAINERS`."""

_NEEDED = ("inputs", "targets", "inputs_segmentation", "targets_segmentation", "inputs_position")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingForm:
    """What a trainer's batch is made of: for each array its name there, or None to leave it out.

    Attributes:
        inputs: int32 [B, L], the tokens.
        labels: int32 [B, L], the token to predict at each position; `ignore_id` where there is no loss.
        loss_mask: float32 [B, L], 1 where a position counts in the loss, else 0.
        padding_mask: int32 [B, L], 1 where a position holds a token, 0 in padding. It says nothing of documents.
        positions: int32 [B, L], position of each token within its document.
        segments: int32 [B, L], number of the document within the row, from 1; 0 in padding.
        loss_tokens: int32 scalar, the sum of `loss_mask`: what a loss that is summed is divided by.
        ignore_id: what `labels` hold where there is no loss; None leaves the token there.
        shifted: whether `labels` and `loss_mask` belong to the position that predicts, as nearly every JAX trainer
            wants them. False, for a trainer that compares position i with the label at i + 1: each label stands where
            its token is an input, so the first has none and the last target of a row is not trained on.
    """

    inputs: str | None = "inputs"
    labels: str | None = "labels"
    loss_mask: str | None = "loss_mask"
    padding_mask: str | None = "padding_mask"
    positions: str | None = "positions"
    segments: str | None = "segments"
    loss_tokens: str | None = "loss_tokens"
    ignore_id: int | None = -100
    shifted: bool = True

    def __post_init__(self) -> None:
        names = [name for name in self.names.values() if name is not None]
        again = sorted({name for name in names if names.count(name) > 1})
        if again:
            raise SettingsError(f"two arrays of a training form are called {again[0]!r}; each needs a name of its own")
        if not self.shifted and self.labels is not None and self.ignore_id is None:
            raise SettingsError(
                "shifted=False needs an ignore_id: the first position of a row has no label, and must say so"
            )

    @property
    def names(self) -> dict[str, str | None]:
        """What each array is called."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in {"ignore_id", "shifted"}}


_NOTHING: dict[str, Any] = dict.fromkeys(TrainingForm().names)

TRAINERS: dict[Trainer, TrainingForm] = {
    "easylm": TrainingForm(
        **{**_NOTHING, "inputs": "input_tokens", "labels": "target_tokens", "loss_mask": "loss_masks"}, ignore_id=None
    ),
    "huggingface": TrainingForm(
        **{
            **_NOTHING,
            "inputs": "input_ids",
            "labels": "labels",
            "padding_mask": "attention_mask",
            "positions": "position_ids",
        },
        shifted=False,
    ),
    "megatron": TrainingForm(
        **{
            **_NOTHING,
            "inputs": "tokens",
            "labels": "labels",
            "loss_mask": "loss_mask",
            "positions": "position_ids",
        },
        ignore_id=None,
    ),
    "t5x": TrainingForm(
        **{
            **_NOTHING,
            "inputs": "decoder_input_tokens",
            "labels": "decoder_target_tokens",
            "loss_mask": "decoder_loss_weights",
            "positions": "decoder_positions",
            "segments": "decoder_segment_ids",
        },
        ignore_id=None,
    ),
}
"""The forms of some trainers. MaxText takes the six fields as they are; Hugging Face models shift labels."""


def to_training(
    batch: Mapping[str, Any], form: TrainingForm | Trainer | None = None, *, flat: bool = False
) -> dict[str, Any]:
    """A batch of the six fields in the form that a trainer takes.

    Args:
        batch: the six fields, each int32 [B, L], or [k, B, L] in microbatches, as NumPy or JAX arrays, also inside jit;
            of ``fields="device"`` what `TokenBatches.expand` gives. Other arrays in it are left out. With
            ``shifted=False``, the columns must be in their natural order, not in zig-zag.
        form: names and conventions, or the name of a trainer in `TRAINERS`; None takes the defaults of `TrainingForm`.
        flat: whether to join rows to one axis, [B * L] (or [k, B * L]). Segments are then numbered apart in each row,
            so that no document is taken for one of another row: ``row * L + segment``; padding stays 0.

    Returns:
        The arrays that the form names, of the same kind as those given, by their names.

    Raises:
        SettingsError: a field is missing, or there is no trainer of that name.

    Examples:
        >>> from gristmill.runtime.fields import FieldOptions, make_fields
        >>> batch = make_fields(np.array([[10, 11, 99, 20, 21]]), 99, FieldOptions(eod_mask_loss=True))
        >>> made = to_training(batch, TrainingForm(labels="targets"))
        >>> made["targets"].tolist(), made["loss_mask"].tolist(), int(made["loss_tokens"])
        ([[11, 99, -100, 21]], [[1.0, 1.0, 0.0, 1.0]], 3)
        >>> to_training(batch, "huggingface")["labels"].tolist()
        [[-100, 11, 99, -100]]
    """
    form = _form_of(form)
    missing = [name for name in _NEEDED if name not in batch]
    if missing:
        raise SettingsError(
            f'the batch has no {", ".join(missing)}; to_training takes the six fields: with naming="maxtext", and with '
            'fields="device" what batches.expand makes of a batch'
        )
    xp = _library([batch[name] for name in _NEEDED])
    inputs, segments = batch["inputs"], batch["inputs_segmentation"]
    labels, counts = batch["targets"], batch["targets_segmentation"] != 0
    if not form.shifted:
        labels = xp.concatenate([xp.zeros_like(labels[..., :1]), labels[..., :-1]], axis=-1)
        counts = xp.concatenate([xp.zeros_like(counts[..., :1]), counts[..., :-1]], axis=-1)
    if form.ignore_id is not None:
        labels = xp.where(counts, labels, xp.asarray(form.ignore_id, labels.dtype))
    if flat:
        rows = xp.arange(segments.shape[-2], dtype=segments.dtype)[:, None]
        segments = xp.where(segments != 0, segments + rows * segments.shape[-1], segments)
    made = {
        "inputs": inputs,
        "labels": labels,
        "loss_mask": counts.astype(np.float32),
        "padding_mask": (batch["inputs_segmentation"] != 0).astype(np.int32),
        "positions": batch["inputs_position"],
        "segments": segments,
    }
    if flat:
        made = {name: array.reshape(*array.shape[:-2], -1) for name, array in made.items()}
    made["loss_tokens"] = counts.sum(dtype=np.int32)
    return {named: made[name] for name, named in form.names.items() if named is not None}


def _form_of(form: TrainingForm | str | None) -> TrainingForm:
    if form is None:
        return TrainingForm()
    if isinstance(form, TrainingForm):
        return form
    if form not in get_args(Trainer):
        raise SettingsError(
            f"form must be a TrainingForm or one of {', '.join(map(repr, get_args(Trainer)))}, not {form!r}; MaxText "
            "takes the six fields as they are"
        )
    return TRAINERS[form]  # type: ignore[index]  # just looked


def _library(arrays: list[Any]) -> Any:
    """NumPy for NumPy's arrays, else JAX."""
    if all(isinstance(array, np.ndarray) for array in arrays):
        return np
    import jax.numpy as jnp

    return jnp
