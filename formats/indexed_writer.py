"""Writes Megatron's indexed dataset as a stream: tokens go straight to disk, only lengths are kept, spooled.

Memory stays bounded by one batch whatever the shard's size; the price is that the `.idx` is written in a second step,
when all lengths are known. Both files appear whole, one right after the other, the `.idx` last: a `.bin` without `.idx`
is unfinished.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from gristmill.formats.errors import FormatError, StorageError
from gristmill.formats.indexed import bin_path, idx_path, pack_header
from gristmill.formats.storage import FileFacts, Publication, publish

__all__ = ["IndexedWriter", "PairFacts", "write_indexed"]

_SPOOL_BYTES = 8 << 20
_ROWS = 1 << 18
_LARGEST_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFacts:
    """What a finished pair holds.

    Attributes:
        tokens: tokens in the `.bin`.
        sequences: entries of the index.
        documents: documents.
        bin: size and digest of the `.bin`.
        idx: size and digest of the `.idx`.
    """

    tokens: int
    sequences: int
    documents: int
    bin: FileFacts
    idx: FileFacts


class IndexedWriter:
    """Takes batches of sequences; made by `write_indexed`.

    Attributes:
        tokens: tokens taken so far.
        sequences: sequences taken so far.
        documents: documents taken so far.
        facts: what the pair holds, once the `with` block of `write_indexed` has ended.
    """

    def __init__(self, prefix: str, dtype: np.dtype[np.integer], publication: Publication) -> None:
        self.facts: PairFacts | None = None
        self.tokens = 0
        self.sequences = 0
        self.documents = 0
        self._prefix = prefix
        self._dtype = dtype
        self._bin = publication
        self._lengths = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - closed by close()
        self._per_document = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - closed by close()

    def add(self, tokens: np.ndarray, lengths: np.ndarray, sequences_per_document: np.ndarray | None = None) -> None:
        """Appends sequences.

        Args:
            tokens: 1-D integer array, the sequences' tokens end to end.
            lengths: 1-D integer array [n], tokens of each sequence; 0 is allowed.
            sequences_per_document: 1-D integer array [d] that sums to n; None makes each sequence a document.

        Raises:
            FormatError: the lengths do not add up, or a token or length does not fit its dtype.
        """
        lengths = self._counts(lengths, "lengths")
        total = int(lengths.sum(dtype=np.int64))
        if tokens.ndim != 1 or total != len(tokens):
            raise FormatError(f"{self._prefix}: tokens of shape {tokens.shape} given for lengths that sum to {total}")
        if sequences_per_document is None:
            sequences_per_document = np.ones(len(lengths), np.int32)
        per_document = self._counts(sequences_per_document, "sequences_per_document")
        if int(per_document.sum(dtype=np.int64)) != len(lengths):
            raise FormatError(
                f"{self._prefix}: documents of {int(per_document.sum(dtype=np.int64))} sequences given for "
                f"{len(lengths)} sequences"
            )
        stored = np.ascontiguousarray(self._cast(tokens))
        self._bin.write(stored)
        with self._spooling():
            self._lengths.write(lengths.data)
            self._per_document.write(per_document.data)
        self.tokens += len(tokens)
        self.sequences += len(lengths)
        self.documents += len(per_document)

    def _counts(self, values: np.ndarray, what: str) -> np.ndarray:
        """Checks an array of counts; [n] int32."""
        values = np.asarray(values)
        if values.ndim != 1 or (len(values) and not np.issubdtype(values.dtype, np.integer)):
            raise FormatError(
                f"{self._prefix}: {what} of shape {values.shape} and dtype {values.dtype}; the rule is integers in "
                "one dimension"
            )
        bad = (values < 0) | (values > _LARGEST_COUNT)
        if bad.any():
            raise FormatError(
                f"{self._prefix}: {what} has {int(values[np.argmax(bad)])} at {int(np.argmax(bad))}; the format holds "
                f"0 to {_LARGEST_COUNT}"
            )
        return values.astype("<i4")

    def _cast(self, tokens: np.ndarray) -> np.ndarray:
        if tokens.dtype == self._dtype:
            return tokens
        if not np.issubdtype(tokens.dtype, np.integer):
            raise FormatError(f"{self._prefix}: tokens are {tokens.dtype}; they must be integers")
        limits = np.iinfo(self._dtype)
        if len(tokens) and not limits.min <= int(tokens.min()) <= int(tokens.max()) <= limits.max:
            raise FormatError(
                f"{self._prefix}: token ids {int(tokens.min())} to {int(tokens.max())} do not fit {self._dtype} "
                f"({limits.min} to {limits.max}); choose a wider dtype"
            )
        return tokens.astype(self._dtype)

    def finish(self, index: Publication) -> None:
        """Writes the `.idx` and sets `facts`; called by `write_indexed` when all sequences are there."""
        index.write(pack_header(self._dtype, self.sequences, self.documents))
        for lengths in self._stored(self._lengths):
            index.write(lengths)
        position = 0
        for lengths in self._stored(self._lengths):
            sizes = lengths.astype(np.int64) * self._dtype.itemsize
            ends = np.cumsum(sizes) + position
            index.write((ends - sizes).astype("<i8"))
            position = int(ends[-1])
        index.write(np.zeros(1, "<i8"))
        position = 0
        for counts in self._stored(self._per_document):
            bounds = np.cumsum(counts, dtype=np.int64) + position
            index.write(bounds.astype("<i8"))
            position = int(bounds[-1])
        index.flush()
        self.facts = PairFacts(
            tokens=self.tokens,
            sequences=self.sequences,
            documents=self.documents,
            bin=self._bin.facts(),
            idx=index.facts(),
        )

    def close(self) -> None:
        """Lets go of the spools."""
        for spool in (self._lengths, self._per_document):
            with contextlib.suppress(OSError):  # nothing in them is wanted any more
                spool.close()

    def _stored(self, spool: "tempfile.SpooledTemporaryFile[bytes]") -> Iterator[np.ndarray]:
        with self._spooling():
            spool.seek(0)
        while block := spool.read(4 * _ROWS):
            yield np.frombuffer(block, "<i4")

    @contextmanager
    def _spooling(self) -> Iterator[None]:
        """Names the folder of temporary files when it is full."""
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{tempfile.gettempdir()}: the lengths of {self._prefix} cannot be kept here while it is written: "
                f"{error.strerror}; free some space or point TMPDIR elsewhere"
            ) from error


@contextmanager
def write_indexed(prefix: str, dtype: np.dtype[np.integer]) -> Iterator[IndexedWriter]:
    """Writes one pair; both files appear when the block ends, neither when it raises.

    Args:
        prefix: path or URL without the extension.
        dtype: token dtype to store.

    Yields:
        The writer; its `facts` are set after the block.

    Raises:
        FormatError: the format cannot hold `dtype` or what was added.
        StorageError: a file cannot be written.

    Examples:
        >>> import tempfile
        >>> prefix = tempfile.mkdtemp() + "/pair"
        >>> with write_indexed(prefix, np.dtype("uint16")) as writer:
        ...     writer.add(np.array([1, 2, 3, 4, 5, 9], np.uint16), np.array([5, 1]))
        >>> writer.facts.documents, writer.facts.idx.size
        (2, 82)
    """
    pack_header(dtype, 0, 0)
    with publish(idx_path(prefix)) as index, publish(bin_path(prefix)) as publication:
        writer = IndexedWriter(prefix, np.dtype(dtype).newbyteorder("<"), publication)
        try:
            yield writer
            writer.finish(index)
        finally:
            writer.close()
