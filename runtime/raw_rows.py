"""What fields are made from: the tokens of rows with whatever else their options need to know, read at one go.

The one place where options meet a stream, so that batches and single rows ask for the same things in the same way.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.errors import SettingsError
from gristmill.runtime.compiled_fields import compiled_fields
from gristmill.runtime.fields import FieldOptions
from gristmill.runtime.naming import Naming, make_megatron_fields
from gristmill.runtime.pairs import PairStream
from gristmill.runtime.streams import DocumentStream, Stream

__all__ = ["PaddedStream", "PairedRows", "RawReader", "RawRows"]


@runtime_checkable
class PaddedStream(Stream, Protocol):
    """A stream some of whose rows are shorter than L + 1 tokens and padded at the end."""

    def valid_length(self, rows: ArrayLike) -> NDArray[np.integer]:
        """How much of each row holds data.

        Args:
            rows: integers [R], 0 to ``len(self) - 1``.

        Returns:
            integer [R], 0 to L: positions of the row that hold an input with its target.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRows:
    """Rows as a stream gives them.

    Attributes:
        rows: integer [R], their numbers in the stream.
        tokens: uint16 or int32 [R, L + 1].
        starts: bool [R, L + 1], where documents begin; None unless the options ask the index for it.
        valid_length: integer [R], or None where every row is full.
    """

    rows: NDArray[np.integer]
    tokens: NDArray[np.uint16 | np.int32]
    starts: NDArray[np.bool_] | None
    valid_length: NDArray[np.integer] | None

    @property
    def inputs(self) -> NDArray[np.uint16 | np.int32]:
        """[R, L], a view: all tokens of a row but the last."""
        return self.tokens[:, :-1]

    @property
    def targets(self) -> NDArray[np.uint16 | np.int32]:
        """[R, L], a view: all tokens of a row but the first."""
        return self.tokens[:, 1:]

    def fields(
        self, eod_id: int, options: FieldOptions, *, vocabulary: int | None, naming: Naming = "maxtext"
    ) -> dict[str, NDArray[Any]]:
        """The fields of the rows; see `make_fields` and `make_megatron_fields`, which define them."""
        make = make_megatron_fields if naming == "megatron" else compiled_fields
        return make(
            self.tokens,
            eod_id,
            options,
            vocabulary=vocabulary,
            valid_length=self.valid_length,
            rows=self.rows,
            starts=self.starts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRows:
    """Rows whose inputs and targets were read apart, for those who need nothing else.

    Attributes:
        rows: integer [R], their numbers in the stream.
        inputs: uint16 or int32 [R, L].
        targets: uint16 or int32 [R, L].
        valid_length: integer [R], or None where every row is full.
    """

    rows: NDArray[np.integer]
    inputs: NDArray[np.uint16 | np.int32]
    targets: NDArray[np.uint16 | np.int32]
    valid_length: NDArray[np.integer] | None

    @property
    def tokens(self) -> NDArray[np.uint16 | np.int32]:
        """[R, L + 1], joined anew."""
        return np.concatenate([self.inputs, self.targets[:, -1:]], axis=1)


class RawReader:
    """Reads rows of a stream together with what field options need to know of them.

    Attributes:
        stream: where the rows come from.
        options: how fields will be made.
    """

    def __init__(self, stream: Stream, options: FieldOptions, *, pad: bool = False) -> None:
        """Looks at what the stream knows; reads nothing.

        Args:
            stream: where the rows come from.
            options: how fields will be made.
            pad: whether rows behind the end of the stream are padding, tokens of 0 that hold no data.

        Raises:
            SettingsError: documents are to be told apart by the index, and the stream has none.
        """
        self.stream = stream
        self.options = options
        self._pad = pad
        self._documents = stream if options.boundaries == "index" and isinstance(stream, DocumentStream) else None
        self._padded = stream if isinstance(stream, PaddedStream) else None
        self._pairs = stream if self._documents is None and isinstance(stream, PairStream) else None
        if options.boundaries == "index" and self._documents is None:
            raise SettingsError(
                f'boundaries="index" needs a stream that knows where its documents begin (read_documents), but '
                f'{stream!r} does not; take boundaries="eod", or a stream with an index, such as those of open_corpus '
                "and open_megatron"
            )

    def read(self, rows: NDArray[np.integer]) -> RawRows:
        """Reads rows.

        Args:
            rows: integer [R], 0 to ``len(stream) - 1``, or with `pad` any from 0 on.

        Raises:
            IndexError: a row does not exist.
            GristmillError: as `Stream.read`.
        """
        if self._beyond(rows):
            return self._padded_rows(rows)
        starts = None
        if self._documents is not None:
            tokens, starts = self._documents.read_documents(rows)
        else:
            tokens = self.stream.read(rows)
        return RawRows(rows=rows, tokens=tokens, starts=starts, valid_length=self._valid_length(rows))

    def read_paired(self, rows: NDArray[np.integer]) -> RawRows | PairedRows:
        """Reads rows for one who needs their inputs and targets alone: apart where the stream can, else as `read`.

        Args:
            rows: as for `read`, which says what is raised.
        """
        if self._pairs is None or self._beyond(rows):
            return self.read(rows)
        inputs, targets = self._pairs.read_pairs(rows)
        return PairedRows(rows=rows, inputs=inputs, targets=targets, valid_length=self._valid_length(rows))

    def _beyond(self, rows: NDArray[np.integer]) -> bool:
        """Whether some rows lie behind the end of the stream, as padding."""
        return self._pad and rows.size > 0 and int(rows.max()) >= len(self.stream)

    def _valid_length(self, rows: NDArray[np.integer]) -> NDArray[np.integer] | None:
        return None if self._padded is None else self._padded.valid_length(rows)

    def _padded_rows(self, rows: NDArray[np.integer]) -> RawRows:
        """Rows of which some lie behind the end of the stream."""
        held = rows < len(self.stream)
        found = self.read(rows[held])
        width = found.tokens.shape[1]
        tokens = np.zeros((len(rows), width), found.tokens.dtype)
        tokens[held] = found.tokens
        starts = None if found.starts is None else np.zeros(tokens.shape, np.bool_)
        if starts is not None:
            starts[held] = found.starts
        valid_length = np.zeros(len(rows), np.int64)
        valid_length[held] = width - 1 if found.valid_length is None else found.valid_length
        return RawRows(rows=rows, tokens=tokens, starts=starts, valid_length=valid_length)
