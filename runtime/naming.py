"""Megatron's names for the fields of a batch: tokens, labels, loss mask, position ids, and its dtypes.

A second naming of the same numbers, for training code that comes from there. Full rows differ from the six fields in
name and dtype only; a padded row follows Megatron where the two disagree, so positions and segments run on into the
padding, and the last real token stays among the inputs although nothing is predicted from it.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.errors import SettingsError
from gristmill.runtime.boundaries import cumulative_lengths
from gristmill.runtime.fields import CU_SEQLENS, FieldOptions, check_ids, check_shape, padding_of, segment_starts
from gristmill.runtime.presets import PRESETS

__all__ = ["check_naming", "make_megatron_fields", "MEGATRON_NAMES", "Naming"]

Naming = Literal["maxtext", "megatron"]
"""The names of a batch's fields: the six of `FIELD_NAMES`, or `MEGATRON_NAMES`."""

MEGATRON_NAMES = ("tokens", "labels", "loss_mask", "position_ids")
"""The keys of a batch in Megatron's naming, in the order in which they are made."""


def check_naming(naming: str) -> Naming:
    """The naming of that name.

    Raises:
        SettingsError: there is none.
    """
    if naming not in get_args(Naming):
        raise SettingsError(f"naming must be {' or '.join(map(repr, get_args(Naming)))}, not {naming!r}")
    return naming  # type: ignore[return-value]  # just looked


def make_megatron_fields(
    tokens: NDArray[np.integer],
    eod_id: int,
    options: FieldOptions | None = None,
    *,
    pad_id: int | None = None,
    attention_mask: bool = False,
    vocabulary: int | None = None,
    valid_length: NDArray[np.integer] | None = None,
    rows: NDArray[np.integer] | None = None,
    starts: NDArray[np.bool_] | None = None,
) -> dict[str, NDArray[Any]]:
    """Derives the fields of a batch as Megatron-Core's GPTDataset gives them.

    Args:
        tokens: integer [R, L + 1], L at least 1.
        eod_id: id that closes a document.
        options: what to derive; None takes Megatron's own defaults, ``PRESETS["megatron"]``.
        pad_id: id that pads, where it differs from EOD: labels that equal it have no loss, and inputs and labels that
            equal it become 0. None, as Megatron has it without a pad token: no id pads.
        attention_mask: whether to make the mask too; L * L booleans for each row.
        vocabulary: every id must be smaller; None leaves the ids unchecked but for negative ones.
        valid_length: integer [R], 0 to L: how many positions of each row hold an input with its target; None: all L.
            A padded row holds ``valid_length + 1`` tokens.
        rows: integer [R], numbers of the rows in their stream, for error messages; None numbers them from 0.
        starts: bool [R, L + 1] or [R, L], where documents begin, for ``boundaries="index"``.

    Returns:
        `tokens` and `labels`, int64 [R, L]; `loss_mask`, float32 [R, L], 1 or 0; `position_ids`, int64 [R, L]. With
        `attention_mask`, bool [R, 1, L, L], True where a position (third axis) may not attend to another (fourth). With
        ``options.cu_seqlens``, `cu_seqlens`, int32 [R, L + 1], whose last segment goes on to L and which is L behind
        it, and `max_seqlen`, int32 [R], the longest segment. All fresh.

    Raises:
        DataError: an id is out of range, or a row has more segments than the options allow.
        SettingsError: a shape is wrong, or `starts` is missing.

    References:
        Megatron-Core 0.16.1, `GPTDataset.__getitem__` and `_get_ltor_masks_and_position_ids`. Its cache of the first
        sample's masks, which lets the padding of one sample reach others, is not reproduced.

    Examples:
        >>> made = make_megatron_fields(np.array([[10, 11, 99, 20, 21]]), 99, FieldOptions(eod_mask_loss=True))
        >>> made["labels"].tolist(), made["loss_mask"].tolist(), made["position_ids"].tolist()
        ([[11, 99, 20, 21]], [[1.0, 1.0, 0.0, 1.0]], [[0, 1, 2, 0]])
    """
    options = PRESETS["megatron"] if options is None else options
    shape = check_shape(tokens)
    places = np.arange(shape[1])
    padding = None if valid_length is None else padding_of(np.asarray(valid_length), shape)
    check_ids(tokens, vocabulary, padding, rows)
    check_ids(tokens[:, :1], vocabulary, None, rows)  # there even where no label is
    inputs, labels = tokens[:, :-1].astype(np.int64), tokens[:, 1:].astype(np.int64)
    loss = np.ones(shape, np.float32)
    position = np.broadcast_to(places, shape).copy()
    if options.eod_mask_loss:
        loss[inputs == eod_id] = 0
    if pad_id is not None:
        loss[labels == pad_id] = 0
    made: dict[str, NDArray[Any]] = {}
    segmentation = None
    if options.reset_attention_mask or options.reset_position_ids or options.cu_seqlens:
        beyond = None if valid_length is None else _beyond(np.asarray(valid_length), places, options)
        kept = segment_starts(inputs, eod_id, options, starts=starts, padding=beyond, rows=rows)
        if options.reset_position_ids:
            position -= np.maximum.accumulate(np.where(kept, position, 0), axis=1)
        if options.cu_seqlens:
            made[CU_SEQLENS] = cumulative_lengths(kept, None, shape[1])
            made["max_seqlen"] = np.diff(made[CU_SEQLENS], axis=1).max(axis=1)
        if options.reset_attention_mask:
            segmentation = np.cumsum(kept, axis=1, dtype=np.int32)
    if attention_mask:
        made["attention_mask"] = _attention_mask(places, shape[0], segmentation)
    if padding is not None:
        loss[padding] = 0
        labels[padding] = 0
        inputs[:, 1:][padding[:, :-1]] = 0  # the last token has no label, but is there
    if pad_id is not None:
        inputs[inputs == pad_id] = 0
        labels[labels == pad_id] = 0
    named: dict[str, NDArray[Any]] = dict(zip(MEGATRON_NAMES, (inputs, labels, loss, position)))
    return named | made


def _beyond(valid_length: NDArray[np.integer], places: NDArray[np.int_], options: FieldOptions) -> NDArray[np.bool_]:
    """Where no segment begins: behind the last token when its id says so, from its place on when the index does."""
    last = valid_length[:, None]
    beyond: NDArray[np.bool_] = places >= last if options.boundaries == "index" else places > last + 1
    return beyond


def _attention_mask(places: NDArray[np.int_], rows: int, segmentation: NDArray[np.int32] | None) -> NDArray[np.bool_]:
    mask = np.empty((rows, 1, len(places), len(places)), bool)
    mask[:] = places > places[:, None]
    if segmentation is not None:
        mask |= (segmentation[:, :, None] != segmentation[:, None, :])[:, None]
    return mask
