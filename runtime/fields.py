"""The six model fields of a batch of rows, in vectorised NumPy: the definition that every other way must equal.

A row holds L + 1 raw tokens `t`; inputs are ``t[:-1]``, targets ``t[1:]``. Documents are told apart by EOD value in the
inputs alone, as Megatron does, so only the tokens are needed, and an EOD id inside a document starts a segment too; or
by where the index says that they begin, which only streams with an index know. Whole batches are computed at once: a
few passes over [R, L] arrays instead of a walk per row.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.errors import DataError, SettingsError
from gristmill.formats.fingerprint import digest, short
from gristmill.runtime.boundaries import OverLimit, cumulative_lengths, eod_starts, keep_starts, segment_bound
from gristmill.runtime.whole_number import whole_number

__all__ = [
    "Boundaries",
    "check_ids",
    "check_shape",
    "CU_SEQLENS",
    "FIELD_NAMES",
    "FieldOptions",
    "ids_fit",
    "make_fields",
    "options_or_default",
    "padding_of",
    "segment_starts",
]

FIELD_NAMES = (
    "inputs",
    "targets",
    "inputs_segmentation",
    "targets_segmentation",
    "inputs_position",
    "targets_position",
)
"""The keys of a batch, in the order in which they are made."""

CU_SEQLENS = "cu_seqlens"
"""One more key, where `FieldOptions.cu_seqlens` asks for it."""

Boundaries = Literal["eod", "index"]
"""What tells documents apart: EOD ids among the inputs, or the index that the rows were made from."""

_SWITCHES = ("reset_attention_mask", "reset_position_ids", "eod_mask_loss", CU_SEQLENS)
_FIRST = ("reset_attention_mask", "reset_position_ids", "eod_mask_loss", "max_segments_per_sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldOptions:
    """How segments, positions and the loss follow from the tokens.

    Attributes:
        reset_attention_mask: whether `inputs_segmentation` numbers the documents of a row from 1, so that attention
            stays inside each; off, every token of a row has segment 1.
        reset_position_ids: whether `inputs_position` starts at 0 again in each document; off, it counts 0 to L - 1.
        eod_mask_loss: whether positions whose input is EOD are left out of the loss. They predict the first token of
            the next document. By the id, whatever `boundaries` says.
        max_segments_per_sample: d, at least 0. 0 keeps every boundary. Otherwise a boundary is kept only when more
            than ``L // d`` tokens lie between it and the one kept before, which bounds the segments of a row to about
            d; the dropped ones join the document before. A d above ``L / 2`` changes nothing.
        boundaries: ``eod``: a document begins behind each EOD among the inputs. ``index``: where the row goes on with
            another entry of the index, whatever the tokens; needs a `DocumentStream`.
        segment_limit: most segments of a row, counted after `max_segments_per_sample` has merged; 0: any number.
        over_limit: of a row with more segments than `segment_limit`: ``error`` refuses it, ``merge`` joins the last
            ones to one, so that ``segment_limit`` remain.
        cu_seqlens: whether a batch also holds `cu_seqlens`, see `gristmill.runtime.boundaries.cumulative_lengths`. Its
            size is fixed by `segments`, so a small `segment_limit` keeps it small.
    """

    reset_attention_mask: bool = True
    reset_position_ids: bool = True
    eod_mask_loss: bool = False
    max_segments_per_sample: int = 0
    boundaries: Boundaries = "eod"
    segment_limit: int = 0
    over_limit: OverLimit = "error"
    cu_seqlens: bool = False

    def __post_init__(self) -> None:
        for name in _SWITCHES:  # the text "false" would be true
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{name} must be True or False, not {getattr(self, name)!r}")
        for name in ("max_segments_per_sample", "segment_limit"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.max_segments_per_sample < 0:
            raise SettingsError(
                f"max_segments_per_sample must be at least 0, not {self.max_segments_per_sample}; 0 keeps every segment"
            )
        if self.segment_limit < 0:
            raise SettingsError(f"segment_limit must be at least 0, not {self.segment_limit}; 0 sets no limit")
        for name, kind in (("boundaries", Boundaries), ("over_limit", OverLimit)):
            if getattr(self, name) not in get_args(kind):
                choices = " or ".join(repr(choice) for choice in get_args(kind))
                raise SettingsError(f"{name} must be {choices}, not {getattr(self, name)!r}")

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that differ where the options make other fields."""
        values = asdict(self)
        defaults = {field.name: field.default for field in fields(self)}
        told = {
            name: value
            for name, value in values.items()
            if name in _FIRST or (name != CU_SEQLENS and value != defaults[name])  # options that came later
        }
        return short(digest(told))

    @property
    def names(self) -> tuple[str, ...]:
        """The keys of a batch made with these options."""
        return (*FIELD_NAMES, CU_SEQLENS) if self.cu_seqlens else FIELD_NAMES

    def segments(self, sequence_length: int) -> int:
        """K: most segments that a row of L inputs can have; `cu_seqlens` has K + 1 entries for each row."""
        return segment_bound(sequence_length, self.max_segments_per_sample, self.segment_limit)


def options_or_default(options: FieldOptions | None) -> FieldOptions:
    """The options given, or the defaults.

    Raises:
        SettingsError: they are something else.
    """
    if options is None:
        return FieldOptions()
    if not isinstance(options, FieldOptions):
        raise SettingsError(f"options are {options!r:.80}; give FieldOptions(...), or None for the defaults")
    return options


def segment_starts(
    inputs: NDArray[np.integer],
    eod_id: int,
    options: FieldOptions,
    *,
    starts: NDArray[np.bool_] | None = None,
    padding: NDArray[np.bool_] | None = None,
    rows: NDArray[np.integer] | None = None,
) -> NDArray[np.bool_]:
    """Where a new segment begins, as the options say.

    Args:
        inputs: integer [R, L].
        eod_id: id that closes a document; the token after it starts the next segment.
        options: what counts, and what is kept.
        starts: bool [R, L] or [R, L + 1], where the index says that documents begin; for ``boundaries="index"``.
        padding: bool [R, L], positions that hold nothing; no segment begins there. None: none.
        rows: integer [R], numbers of the rows in their stream, for error messages; None numbers them from 0.

    Returns:
        bool [R, L], fresh; column 0 is always False, since the first segment needs no boundary.

    Raises:
        SettingsError: `starts` is needed and missing, or has another shape.
        DataError: a row has more segments than the options allow.
    """
    if options.boundaries == "index":
        found = _from_index(starts, inputs.shape)
    else:
        found = eod_starts(inputs, eod_id)
    if padding is not None:
        found &= ~padding
    return keep_starts(found, options.max_segments_per_sample, options.segment_limit, options.over_limit, rows)


def _from_index(starts: NDArray[np.bool_] | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    if starts is None:
        raise SettingsError(
            'boundaries="index" needs `starts`, where the index says that documents begin; a stream gives them with '
            'read_documents. Pass them, or take boundaries="eod"'
        )
    rows, length = shape
    if starts.dtype != bool or starts.shape not in {(rows, length), (rows, length + 1)}:
        raise SettingsError(
            f"starts are {starts.dtype} of shape {starts.shape}; the rule is bool of shape ({rows}, {length}) or "
            f"({rows}, {length + 1}), one for each token"
        )
    found = starts[:, :length].copy()
    found[:, :1] = False
    return found


def make_fields(
    tokens: NDArray[np.integer],
    eod_id: int,
    options: FieldOptions | None = None,
    *,
    vocabulary: int | None = None,
    valid_length: NDArray[np.integer] | None = None,
    rows: NDArray[np.integer] | None = None,
    starts: NDArray[np.bool_] | None = None,
) -> dict[str, NDArray[Any]]:
    """Derives the six fields of a batch.

    Definition, for position i of a row with inputs x and targets y:

    - a segment starts at i > 0 where ``x[i-1] == eod_id``, or where ``starts[i]`` (merged as the options say);
    - `inputs_segmentation` is 1 + the number of starts up to i, or 1;
    - `inputs_position` is i minus the last start, or i; `targets_position` is the same;
    - `targets_segmentation` is 0 where the position has no part in the loss, else 1;
    - from `valid_length` on, every field is 0: padding is by length, never by id, and no segment starts there.

    Args:
        tokens: integer [R, L + 1], L at least 1.
        eod_id: id that closes a document.
        options: what to derive; None takes the defaults of `FieldOptions`.
        vocabulary: every id must be smaller; None leaves the ids unchecked but for negative ones.
        valid_length: integer [R], 0 to L: how many positions of each row hold an input with its target; None: all L.
        rows: integer [R], numbers of the rows in their stream, for error messages; None numbers them from 0.
        starts: bool [R, L + 1] or [R, L], where documents begin, for ``boundaries="index"``; column 0 is not looked at.

    Returns:
        The arrays of `FIELD_NAMES`, int32 [R, L], fresh; `targets_position` is the same array as `inputs_position`.
        Where the options ask for it, `cu_seqlens` too: int32 [R, K + 1], the segments kept, whatever is reset.

    Raises:
        DataError: an id is negative or not below `vocabulary`, or a row has more segments than the options allow; the
            message names the row.
        SettingsError: a shape is wrong, or `starts` is missing.

    References:
        Megatron-Core 0.16.1, `_get_ltor_masks_and_position_ids`: both resets on and `eod_mask_loss` mean the same.

    Examples:
        >>> fields = make_fields(np.array([[10, 11, 99, 20, 21]], np.uint16), 99)
        >>> fields["inputs_segmentation"].tolist(), fields["inputs_position"].tolist()
        ([[1, 1, 1, 2]], [[0, 1, 2, 0]])
    """
    options = FieldOptions() if options is None else options
    shape = check_shape(tokens)
    padding = None if valid_length is None else padding_of(np.asarray(valid_length), shape)
    check_ids(tokens, vocabulary, padding, rows)
    inputs = tokens[:, :-1].astype(np.int32)
    targets = tokens[:, 1:].astype(np.int32)
    segmentation = np.ones(shape, np.int32)
    position = np.empty(shape, np.int32)
    position[:] = np.arange(shape[1], dtype=np.int32)
    made: dict[str, NDArray[Any]] = {}
    if options.reset_attention_mask or options.reset_position_ids or options.cu_seqlens:
        kept = segment_starts(inputs, eod_id, options, starts=starts, padding=padding, rows=rows)
        if options.reset_attention_mask:
            np.cumsum(kept, axis=1, dtype=np.int32, out=segmentation)
            segmentation += 1
        if options.reset_position_ids:
            position -= np.maximum.accumulate(np.where(kept, position, 0), axis=1)
        if options.cu_seqlens:
            made[CU_SEQLENS] = cumulative_lengths(kept, valid_length, options.segments(shape[1]))
    if options.eod_mask_loss:
        loss = (inputs != eod_id).astype(np.int32)
    else:
        loss = np.ones(shape, np.int32)
    if padding is not None:
        for field in (inputs, targets, segmentation, loss, position):
            field[padding] = 0
    return dict(zip(FIELD_NAMES, (inputs, targets, segmentation, loss, position, position))) | made


def check_shape(tokens: NDArray[np.integer]) -> tuple[int, int]:
    """The shape (R, L) of the fields of rows.

    Raises:
        SettingsError: the tokens are not [R, L + 1] with L at least 1.
    """
    if tokens.ndim != 2 or tokens.shape[1] < 2:
        raise SettingsError(f"tokens have the shape {tokens.shape}; the rule is [rows, L + 1] with L at least 1")
    return tokens.shape[0], tokens.shape[1] - 1


def padding_of(valid_length: NDArray[np.integer], shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Which positions of rows hold nothing.

    Args:
        valid_length: integer [R], 0 to L.
        shape: (R, L).

    Returns:
        bool [R, L].

    Raises:
        SettingsError: the lengths are no integers of that shape and range.
    """
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
    mask: NDArray[np.bool_] = np.arange(length) >= valid_length[:, None]
    return mask


def ids_fit(tokens: NDArray[np.integer], vocabulary: int | None) -> bool:
    """Whether ids, of any shape, are in range, padding included; see `check_ids`.

    At most one reduction over unsigned tokens, two over signed ones.
    """
    bound, holds = _id_bound(vocabulary), np.iinfo(tokens.dtype)
    if not tokens.size or (holds.min == 0 and holds.max < bound):
        return True
    return int(tokens.max()) < bound and (holds.min == 0 or int(tokens.min()) >= 0)


def _id_bound(vocabulary: int | None) -> int:
    return np.iinfo(np.int32).max + 1 if vocabulary is None else vocabulary


def check_ids(
    tokens: NDArray[np.integer],
    vocabulary: int | None,
    padding: NDArray[np.bool_] | None = None,
    rows: NDArray[np.integer] | None = None,
) -> None:
    """Compares the ids of rows with the bound of the vocabulary.

    Where is looked up only once something is wrong.

    Args:
        tokens: integer [R, L + 1].
        vocabulary: every id must be smaller; None takes what int32 holds.
        padding: bool [R, L], positions that hold neither input nor target and are not looked at; None: none.
        rows: integer [R], numbers of the rows in their stream, for the message; None numbers them from 0.

    Raises:
        DataError: an id is negative or not below the bound; the message names row, place and id.
    """
    if ids_fit(tokens, vocabulary):
        return
    bound = _id_bound(vocabulary)
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
