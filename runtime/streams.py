"""Streams: numbered rows of tokens whose order was fixed before training, and where each row came from.

A stream is a pure function from row number to tokens; whoever reads it, in whichever order and on how many hosts, gets
the same rows. That is bought by fixing order and size beforehand: nothing is filtered or re-weighted while training.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gristmill.formats.errors import SettingsError
from gristmill.formats.fingerprint import short
from gristmill.formats.index_order import OrderChange
from gristmill.formats.index_plan import LeftOut
from gristmill.runtime.decoder import Decode, open_decoder
from gristmill.runtime.pairs import TokenPairs
from gristmill.runtime.provenance import CorpusProvenance, Origin
from gristmill.runtime.reader import RowReader
from gristmill.runtime.views import Selectable
from gristmill.runtime.window_reader import WindowReader

__all__ = [
    "DocumentStream",
    "MegatronStream",
    "PaddedMegatronStream",
    "ReaderStream",
    "require_stream",
    "RowPiece",
    "Stream",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPiece:
    """A run of tokens of a row that come from one document.

    Attributes:
        column: first token of the row that it fills; it fills ``stop - start``.
        source: name of the source.
        shard: name of the shard: its prefix inside the corpus.
        document: number of the document in the shard.
        start: first token of the document that is taken.
        stop: one past the last.
        origin: the record of an input file that the document was made of; None where the data do not tell.
        text: the tokens decoded, where that was asked for. What begins or ends inside a character has U+FFFD there.
    """

    column: int
    source: str
    shard: str
    document: int
    start: int
    stop: int
    origin: Origin | None = None
    text: str | None = None


@runtime_checkable
class Stream(Protocol):
    """What the rest of the runtime needs of a stream.

    Deterministic: a row holds the same tokens whenever and wherever it is read. Safe to use from many threads. Pickles
    as paths and keys. ``repr`` shows what decides the rows and no path. A stream whose rows go on from those of an
    earlier one may say so in an attribute `history`, as `MegatronStream` has it, and tell people what decides its rows
    in another, `facts`. One that has more than one way behind it says so in `ancestors`, as `StreamView` has it.
    """

    @property
    def fingerprint(self) -> str:
        """Digest of what decides the rows, and of nothing else."""
        ...

    @property
    def sequence_length(self) -> int:
        """L: inputs of a row. A row holds L + 1 tokens."""
        ...

    @property
    def dtype(self) -> np.dtype[np.uint16 | np.int32]:
        """Of what `read` returns."""
        ...

    @property
    def eod_id(self) -> int:
        """Id that closes every document."""
        ...

    @property
    def vocabulary(self) -> int | None:
        """Bound of the ids: every id is smaller; None where it is not known."""
        ...

    def __len__(self) -> int:
        """Number of rows."""
        ...

    def read(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        """Tokens of rows, in the order given.

        Args:
            rows: integers [R], 0 to ``len(self) - 1``.

        Returns:
            [R, L + 1] of `dtype`, always fresh.

        Raises:
            IndexError: a row does not exist.
            GristmillError: the data cannot be read or are not what they must be.
        """
        ...

    def describe(self, row: int) -> tuple[RowPiece, ...]:
        """Where the tokens of a row came from, from left to right.

        Raises:
            IndexError: the row does not exist.
        """
        ...


def require_stream(value: object) -> None:
    """Whether something may be a stream.

    Raises:
        SettingsError: it cannot: it is a corpus, a path or something else without rows.
    """
    missing = [name for name in ("fingerprint", "sequence_length", "read") if not hasattr(value, name)]
    if missing:
        raise SettingsError(
            f"stream is a {type(value).__name__}, which has no {missing[0]}; give a stream, such as "
            'open_corpus(path).stream("train") or open_megatron(...) makes'
        )


@runtime_checkable
class DocumentStream(Stream, Protocol):
    """A stream that also knows where its documents begin, so that no token has to say it.

    `FieldOptions` with ``boundaries="index"`` needs one.
    """

    def read_documents(self, rows: ArrayLike) -> tuple[NDArray[np.uint16 | np.int32], NDArray[np.bool_]]:
        """Tokens of rows, and where another document begins.

        Args:
            rows: as for `Stream.read`, which says what is raised.

        Returns:
            tokens: as `Stream.read` gives them.
            starts: bool [R, L + 1], True where a row goes on with another entry of the order: another document, or
                another sequence where a document has several and the order is by sequence. Column 0 is False. Fresh.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReaderStream(Selectable, ABC):
    """A `DocumentStream` whose rows a reader finds in shards: what all streams over token files share.

    Attributes:
        name: of the corpus.
        split: ``train``, ``valid`` or ``test``.
        fingerprint: digest of what decides the rows.
        eod_id: id that closes every document.
        vocabulary: bound of the ids.
        left_out: the sources that take no part in the split, with the reason.
        reader: what reads the rows.
        history: the changes that led to this order, oldest first: phases of weights and extensions. A state of an
            earlier stream in it is taken up while its rows are the same.
        facts: what decides the rows, as a few JSON values for messages; a state carries them along.
        tokenizer_fingerprint: of the tokenizer that made the ids; None where it is not known.
        provenance: what says where documents came from; None for data that were not prepared by a recipe.
    """

    name: str
    split: str
    fingerprint: str
    eod_id: int
    vocabulary: int | None
    left_out: tuple[LeftOut, ...]
    reader: RowReader | WindowReader
    history: tuple[OrderChange, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_fingerprint: str | None = None
    provenance: CorpusProvenance | None = None

    @property
    def sequence_length(self) -> int:
        """L: inputs of a row. A row holds L + 1 tokens."""
        return self.reader.index.sequence_length

    @property
    def dtype(self) -> np.dtype[np.uint16 | np.int32]:
        """uint16 when every shard of the stream holds uint16, else int32."""
        return self.reader.dtype

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources that take part."""
        return tuple(member.source for member in self.reader.index.members)

    def __len__(self) -> int:
        return len(self.reader)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}, split={self.split!r}, sequence_length={self.sequence_length}, "
            f"fingerprint={short(self.fingerprint)})"
        )

    def read(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        """Tokens of rows; see `Stream.read`."""
        return self.reader.read(rows)

    def read_pairs(self, rows: ArrayLike) -> TokenPairs:
        """Inputs and targets of rows, apart; see `gristmill.runtime.pairs.PairStream.read_pairs`."""
        return self.reader.read_pairs(rows)

    def read_documents(self, rows: ArrayLike) -> tuple[NDArray[np.uint16 | np.int32], NDArray[np.bool_]]:
        """Tokens of rows, and where another document begins; see `DocumentStream.read_documents`."""
        return self.reader.read_documents(rows)

    def describe(
        self, row: int, *, text: bool = False, tokenizer: str | os.PathLike[str] | None = None
    ) -> tuple[RowPiece, ...]:
        """Where the tokens of a row came from, down to the record of an input file where the corpus keeps it.

        Args:
            row: number of the row.
            text: whether to decode the tokens too.
            tokenizer: path or URL of the `tokenizer.json` to decode with; None takes the corpus's own.

        Raises:
            IndexError: the row does not exist.
            SettingsError: text is wanted, but there is no tokenizer.
            GristmillError: a file cannot be read or is not what it must be.
        """
        decode = self._decoder(tokenizer) if text or tokenizer is not None else None
        tokens = self.read([row])[0] if decode is not None else None
        known = self.provenance
        return tuple(
            replace(
                piece,
                origin=None if known is None else known.origin(piece.source, piece.shard, piece.document),
                text=None
                if decode is None or tokens is None
                else decode(tokens[piece.column : piece.column + piece.stop - piece.start].tolist()),
            )
            for piece in self._pieces(row)
        )

    @abstractmethod
    def _pieces(self, row: int) -> list[RowPiece]:
        """Where the tokens of a row lie, from left to right."""

    def _decoder(self, tokenizer: str | os.PathLike[str] | None) -> Decode:
        if tokenizer is not None:
            return open_decoder(tokenizer)
        if self.provenance is None:
            raise SettingsError(
                f"{self!r}: its data name no tokenizer, so ids cannot be shown as text; name the tokenizer.json that "
                "they were made with"
            )
        return self.provenance.decode

    def read_counts(self) -> dict[str, int]:
        """What has been read so far; see `gristmill.runtime.metrics.MeasuredStream`."""
        return self.reader.read_counts()

    def rows_by_source(self, rows: ArrayLike) -> dict[str, int]:
        """How many of some rows come from each source; see `gristmill.runtime.metrics.MeasuredStream`."""
        return self.reader.rows_by_source(rows)

    def waiting_on(self) -> list[tuple[str, float]]:
        """What the reads that are under way are at; see `gristmill.runtime.metrics.MeasuredStream`."""
        return self.reader.waiting_on()

    def close(self) -> None:
        """Closes the files; may be called twice. A later read opens them again."""
        self.reader.close()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MegatronStream(ReaderStream):
    """A `DocumentStream` in Megatron's order: documents, samples and sources shuffled by index arrays.

    Attributes:
        reader: what reads the rows.
    """

    reader: RowReader

    def _pieces(self, row: int) -> list[RowPiece]:
        reader = self.reader
        pieces = reader.pieces([row])
        documents, starts = reader.documents(pieces)
        return [
            RowPiece(
                column=column,
                source=reader.index.members[member].source,
                shard=reader.shards[shard].name,
                document=document,
                start=start,
                stop=start + count,
            )
            for column, member, shard, document, start, count in zip(
                pieces.column.tolist(),
                pieces.member.tolist(),
                pieces.shard.tolist(),
                documents.tolist(),
                starts.tolist(),
                pieces.count.tolist(),
                strict=True,
            )
        ]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PaddedMegatronStream(MegatronStream):
    """A `MegatronStream` that keeps the partial last sample of each source: some rows end in padding, tokens of 0."""

    def valid_length(self, rows: ArrayLike) -> NDArray[np.int64]:
        """How much of each row holds data.

        Args:
            rows: integers [R], 0 to ``len(self) - 1``.

        Returns:
            int64 [R], 0 to L: positions of the row that hold an input with its target. 0 where Megatron's count of
            samples is one too large, so that a row has no target.

        Raises:
            IndexError: a row does not exist.
        """
        return self.reader.held(rows) - 1
