"""One row at a time, for Grain's own pipelines: `MapDataset`, `DataLoader`, worker processes.

Convenient where rows are filtered, mapped or packed one by one, at four to two hundred times the cost per token of
`TokenBatches`, which should be preferred where whole batches do.
"""

import operator
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from gristmill.runtime.fields import FieldOptions, options_or_default
from gristmill.runtime.naming import Naming, check_naming
from gristmill.runtime.raw_rows import RawReader
from gristmill.runtime.streams import Stream, require_stream

__all__ = ["StreamSource"]


class StreamSource:
    """A Grain `RandomAccessDataSource` over the rows of a stream.

    Deterministic, safe to use from many threads, pickles as paths and keys. Worker processes of Grain need the flags of
    `absl` to be parsed: in a program without `absl.app`, call ``absl.flags.FLAGS.mark_as_parsed()`` first.

    Attributes:
        stream: where the rows come from.
        options: how the fields are made.
        naming: whose names they have.

    Examples:
        >>> dataset = grain.MapDataset.source(StreamSource(stream)).batch(8)  # doctest: +SKIP
    """

    def __init__(self, stream: Stream, options: FieldOptions | None = None, naming: Naming = "maxtext") -> None:
        """Opens nothing.

        Args:
            stream: where the rows come from.
            options: how the fields are made; None takes the defaults of `FieldOptions`, whatever the naming.
            naming: ``maxtext`` for the six fields, ``megatron`` for Megatron's names and dtypes.

        Raises:
            SettingsError: the stream does not know what the options need, or there is no such naming.
        """
        require_stream(stream)
        self.stream = stream
        self.options = options_or_default(options)
        self.naming = check_naming(naming)
        self._reader = RawReader(stream, self.options)

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, row: SupportsIndex) -> dict[str, NDArray[Any]]:
        """The fields of a row, fresh: without their first axis what `make_fields`, or `make_megatron_fields`, gives.

        Args:
            row: 0 to ``len(self) - 1``, or negative counted from the end.

        Raises:
            IndexError: the row does not exist.
            GristmillError: the row cannot be read or is not what it must be.
        """
        number = operator.index(row)
        number += len(self) if number < 0 else 0
        stream, options = self.stream, self.options
        raw = self._reader.read(np.array([number]))
        fields = raw.fields(stream.eod_id, options, vocabulary=stream.vocabulary, naming=self.naming)
        return {name: field[0] for name, field in fields.items()}

    def __repr__(self) -> str:
        naming = "" if self.naming == "maxtext" else f", naming={self.naming!r}"
        return f"StreamSource({self.stream!r}, {self.options!r}{naming})"
