"""The six model fields of a batch of rows, in vectorised NumPy: the definition that every other way must equal.

A row holds L + 1 raw tokens `t`; inputs are ``t[:-1]``, targets ``t[1:]``. Document boundaries are found by EOD value
in the inputs alone, as Megatron does, so only the tokens are needed; the price is that an EOD id inside a document
starts a segment too. Whole batches are computed at once: a few passes over [R, L] arrays instead of a walk per row.
"""

from dataclasses import asdict, dataclass

import numpy as np

from gristmill.formats.errors import DataError, SettingsError
from gristmill.formats.fingerprint import digest, short

__all__ = ["FIELD_NAMES", "FieldOptions", "make_fields", "segment_starts"]

FIELD_NAMES = (
    "inputs",
    "targets",
    "inputs_segmentation",
    "targets_segmentation",
    "inputs_position",
    "targets_position",
)
"""The keys of a batch, in the order in which they are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldOptions:
    """How segments, positions and the loss follow from the tokens.

    Attributes:
        reset_attention_mask: whether `inputs_segmentation` numbers the documents of a row from 1, so that attention
            stays inside each; off, every token of a row has segment 1.
        reset_position_ids: whether `inputs_position` starts at 0 again in each document; off, it counts 0 to L - 1.
        eod_mask_loss: whether positions whose input is EOD are left out of the loss. They predict the first token of
            the next document.
        max_segments_per_sample: d, at least 0. 0 keeps every boundary. Otherwise a boundary is kept only when more
            than ``L // d`` tokens lie between it and the one kept before, which bounds the segments of a row to about
            d; the dropped ones join the document before. A d above ``L / 2`` changes nothing.
    """

    reset_attention_mask: bool = True
    reset_position_ids: bool = True
    eod_mask_loss: bool = False
    max_segments_per_sample: int = 0

    def __post_init__(self) -> None:
        if self.max_segments_per_sample < 0:
            raise SettingsError(
                f"max_segments_per_sample must be at least 0, not {self.max_segments_per_sample}; 0 keeps every segment"
            )

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that differ where the options do."""
        return short(digest(asdict(self)))


def segment_starts(inputs: np.ndarray, eod_id: int, max_segments: int = 0) -> np.ndarray:
    """Where a new segment begins.

    Args:
        inputs: integer [R, L].
        eod_id: id that closes a document; the token after it starts the next segment.
        max_segments: see `FieldOptions.max_segments_per_sample`.

    Returns:
        bool [R, L]; column 0 is always False, since the first segment needs no boundary.
    """
    starts = np.zeros(inputs.shape, bool)
    np.equal(inputs[:, :-1], eod_id, out=starts[:, 1:])
    least = inputs.shape[1] // max_segments if max_segments else 0
    return _merged(starts, least) if least > 1 else starts


def _merged(starts: np.ndarray, least: int) -> np.ndarray:
    """Keeps, from left to right, the starts that lie more than `least` tokens after the last one kept."""
    rows, length = starts.shape
    columns = np.where(starts, np.arange(length), length)
    following = np.full((rows, length + 1), length)  # first start at or after each column, `length` where none is
    following[:, :length] = np.minimum.accumulate(columns[:, ::-1], axis=1)[:, ::-1]
    kept = np.zeros((rows, length + 1), bool)
    here = np.zeros(rows, np.int64)
    every = np.arange(rows)
    while (here < length).any():  # at most length / least rounds, each for all rows
        here = following[every, np.minimum(here + least + 1, length)]
        kept[every, here] = True
    return kept[:, :length]


def make_fields(
    tokens: np.ndarray,
    eod_id: int,
    options: FieldOptions | None = None,
    *,
    vocabulary: int | None = None,
    valid_length: np.ndarray | None = None,
    rows: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Derives the six fields of a batch.

    Definition, for position i of a row with inputs x and targets y:

    - a segment starts at i > 0 where ``x[i-1] == eod_id`` (merged as the options say);
    - `inputs_segmentation` is 1 + the number of starts up to i, or 1;
    - `inputs_position` is i minus the last start, or i; `targets_position` is the same;
    - `targets_segmentation` is 0 where the position has no part in the loss, else 1;
    - from `valid_length` on, every field is 0: padding is by length, never by id.

    Args:
        tokens: integer [R, L + 1], L at least 1.
        eod_id: id that closes a document.
        options: what to derive; None takes the defaults of `FieldOptions`.
        vocabulary: every id must be smaller; None leaves the ids unchecked but for negative ones.
        valid_length: integer [R], 0 to L: how many positions of each row hold an input with its target; None: all L.
        rows: integer [R], numbers of the rows in their stream, for error messages; None numbers them from 0.

    Returns:
        The arrays of `FIELD_NAMES`, int32 [R, L], fresh; `targets_position` is the same array as `inputs_position`.

    Raises:
        DataError: an id is negative or not below `vocabulary`; the message names row, place and id.
        SettingsError: a shape is wrong.

    References:
        Megatron-Core 0.16.1, `_get_ltor_masks_and_position_ids`: both resets on and `eod_mask_loss` mean the same.

    Examples:
        >>> fields = make_fields(np.array([[10, 11, 99, 20, 21]], np.uint16), 99)
        >>> fields["inputs_segmentation"].tolist(), fields["inputs_position"].tolist()
        ([[1, 1, 1, 2]], [[0, 1, 2, 0]])
    """
    options = FieldOptions() if options is None else options
    if tokens.ndim != 2 or tokens.shape[1] < 2:
        raise SettingsError(f"tokens have the shape {tokens.shape}; the rule is [rows, L + 1] with L at least 1")
    shape = (tokens.shape[0], tokens.shape[1] - 1)
    padding = None if valid_length is None else _padding(np.asarray(valid_length), shape)
    _check_ids(tokens, vocabulary, padding, rows)
    inputs = tokens[:, :-1].astype(np.int32)
    targets = tokens[:, 1:].astype(np.int32)
    segmentation = np.ones(shape, np.int32)
    position = np.empty(shape, np.int32)
    position[:] = np.arange(shape[1], dtype=np.int32)
    if options.reset_attention_mask or options.reset_position_ids:
        starts = segment_starts(inputs, eod_id, options.max_segments_per_sample)
        if options.reset_attention_mask:
            np.cumsum(starts, axis=1, dtype=np.int32, out=segmentation)
            segmentation += 1
        if options.reset_position_ids:
            position -= np.maximum.accumulate(np.where(starts, position, 0), axis=1)
    if options.eod_mask_loss:
        loss = (inputs != eod_id).astype(np.int32)
    else:
        loss = np.ones(shape, np.int32)
    if padding is not None:
        for field in (inputs, targets, segmentation, loss, position):
            field[padding] = 0
    return dict(zip(FIELD_NAMES, (inputs, targets, segmentation, loss, position, position)))


def _padding(valid_length: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    rows, length = shape
    if valid_length.shape != (rows,) or not np.issubdtype(valid_length.dtype, np.integer):
        raise SettingsError(
            f"valid_length is {valid_length.dtype} of shape {valid_length.shape}; the rule is integers of shape "
            f"({rows},), one for each row"
        )
    if rows and not 0 <= int(valid_length.min()) <= int(valid_length.max()) <= length:
        raise SettingsError(
            f"valid_length runs from {int(valid_length.min())} to {int(valid_length.max())}; the rule is 0 to {length}"
        )
    mask: np.ndarray = np.arange(length) >= valid_length[:, None]
    return mask


def _check_ids(tokens: np.ndarray, vocabulary: int | None, padding: np.ndarray | None, rows: np.ndarray | None) -> None:
    """Two reductions over the tokens; where is looked up only once something is wrong."""
    bound = np.iinfo(np.int32).max + 1 if vocabulary is None else vocabulary
    if not tokens.size or (int(tokens.max()) < bound and int(tokens.min()) >= 0):
        return
    wrong = (tokens >= bound) | (tokens < 0)
    if padding is not None:  # a padded position holds neither input nor target
        used = np.zeros(tokens.shape, bool)
        used[:, :-1] |= ~padding
        used[:, 1:] |= ~padding
        wrong &= used
        if not wrong.any():
            return
    row, place = (int(number) for number in np.argwhere(wrong)[0])
    name = row if rows is None else int(rows[row])
    rule = f"ids run from 0 to {bound - 1}" + ("" if vocabulary is None else f" (vocabulary of {vocabulary})")
    raise DataError(
        f"row {name}: token {place} is {int(tokens[row, place])}, but {rule}: the tokens were made with another "
        "tokenizer, or the shard is damaged"
    )
