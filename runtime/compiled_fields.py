"""The six fields of a batch in one compiled pass: what `gristmill.runtime.fields.make_fields` defines, for batches.

NumPy goes over the batch once for each step of the definition; here every field is written once, segment by segment,
from the list of where segments begin. Arrays are fresh and aligned, so that JAX takes them as they lie where devices
share the host's memory.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.compiled import compiled
from gristmill.runtime.fields import CU_SEQLENS, FIELD_NAMES, FieldOptions, check_ids, check_shape, padding_of
from gristmill.runtime.pairs import aligned_arrays
from gristmill.runtime.segment_lengths import listed_starts, segment_lengths

__all__ = ["compiled_fields"]


def compiled_fields(
    tokens: NDArray[np.uint16 | np.int32],
    eod_id: int,
    options: FieldOptions,
    *,
    vocabulary: int | None,
    valid_length: NDArray[np.integer] | None,
    rows: NDArray[np.integer],
    starts: NDArray[np.bool_] | None,
) -> dict[str, NDArray[Any]]:
    """The fields of rows; arguments, results and errors as `make_fields` has them.

    With ``boundaries="index"``, `starts` must be given. No array is another, `targets_position` included.
    """
    shape = check_shape(tokens)
    valid = np.full(shape[0], shape[1], np.int64) if valid_length is None else np.asarray(valid_length)
    padding = None if valid_length is None else padding_of(valid, shape)
    check_ids(tokens, vocabulary, padding, rows)
    if options.reset_attention_mask or options.reset_position_ids or options.cu_seqlens:
        listed = listed_starts(tokens, eod_id, starts if options.boundaries == "index" else None)
        lengths = segment_lengths(listed, rows, shape[1], valid_length, options)
    else:  # one segment, as far as anybody can see
        lengths = np.stack([np.zeros_like(valid), valid], axis=1).astype(np.int32)
    fields = aligned_arrays(len(FIELD_NAMES), shape, np.dtype(np.int32))
    _fill(
        tokens,
        lengths,
        valid.astype(np.int64),
        eod_id,
        options.eod_mask_loss,
        options.reset_attention_mask,
        options.reset_position_ids,
        *fields,
    )
    return dict(zip(FIELD_NAMES, fields)) | ({CU_SEQLENS: lengths} if options.cu_seqlens else {})


@compiled
def _fill(
    tokens: NDArray[Any],
    lengths: NDArray[np.int32],
    valid: NDArray[np.int64],
    eod_id: int,
    mask_eod: bool,
    number_segments: bool,
    count_anew: bool,
    inputs: NDArray[np.int32],
    targets: NDArray[np.int32],
    segmentation: NDArray[np.int32],
    loss: NDArray[np.int32],
    position: NDArray[np.int32],
    targets_position: NDArray[np.int32],
) -> None:
    """Writes the fields of rows whose segments are known."""
    length = inputs.shape[1]
    for row in range(len(inputs)):
        held = valid[row]
        for column in range(held):
            inputs[row, column] = tokens[row, column]
            targets[row, column] = tokens[row, column + 1]
            loss[row, column] = not mask_eod or tokens[row, column] != eod_id
        start, segment = 0, 0
        while start < held:
            stop = lengths[row, segment + 1]
            number = segment + 1 if number_segments else 1
            first = start if count_anew else 0
            for column in range(start, stop):
                segmentation[row, column] = number
                position[row, column] = column - first
                targets_position[row, column] = column - first
            start = stop
            segment += 1
        for column in range(held, length):
            inputs[row, column] = 0
            targets[row, column] = 0
            loss[row, column] = 0
            segmentation[row, column] = 0
            position[row, column] = 0
            targets_position[row, column] = 0
