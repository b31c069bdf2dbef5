"""One row at a time, for Grain's own pipelines: `MapDataset`, `DataLoader`, worker processes.

Convenient where rows are filtered, mapped or packed one by one, at four to two hundred times the cost per token of
`TokenBatches`, which should be preferred where whole batches do.
"""

import operator
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.fields import FieldOptions, make_fields
from gristmill.runtime.streams import Stream

__all__ = ["StreamSource"]


class StreamSource:
    """A Grain `RandomAccessDataSource` over the rows of a stream.

    Deterministic, safe to use from many threads, pickles as paths and keys. Worker processes of Grain need the flags of
    `absl` to be parsed: in a program without `absl.app`, call ``absl.flags.FLAGS.mark_as_parsed()`` first.

    Attributes:
        stream: where the rows come from.
        options: how the fields are made.

    Examples:
        >>> dataset = grain.MapDataset.source(StreamSource(stream)).batch(8)  # doctest: +SKIP
    """

    def __init__(self, stream: Stream, options: FieldOptions | None = None) -> None:
        """Opens nothing.

        Args:
            stream: where the rows come from.
            options: how the fields are made; None takes the defaults of `FieldOptions`.
        """
        self.stream = stream
        self.options = FieldOptions() if options is None else options

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, row: SupportsIndex) -> dict[str, NDArray[np.int32]]:
        """The six fields of a row, each int32 [L] and fresh.

        Args:
            row: 0 to ``len(self) - 1``, or negative counted from the end.

        Raises:
            IndexError: the row does not exist.
            GristmillError: the row cannot be read or is not what it must be.
        """
        number = operator.index(row)
        number += len(self) if number < 0 else 0
        stream = self.stream
        rows = np.array([number])
        fields = make_fields(stream.read(rows), stream.eod_id, self.options, vocabulary=stream.vocabulary, rows=rows)
        return {name: field[0] for name, field in fields.items()}

    def __repr__(self) -> str:
        return f"StreamSource({self.stream!r}, {self.options!r})"
