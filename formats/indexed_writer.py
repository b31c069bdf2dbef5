"""Writes Megatron's indexed dataset as a stream: tokens go straight to disk, only lengths are kept, spooled.

Memory stays bounded by one batch whatever the shard's size; the price is that the `.idx` is written in a second step,
when all lengths are known. Both files appear whole, the `.idx` last, so a `.bin` without `.idx` is unfinished.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from gristmill.formats.errors import FormatError
from gristmill.formats.indexed import bin_path, idx_path, pack_header
from gristmill.formats.storage import FileFacts, Publication, publish

__all__ = ["IndexedWriter", "PairFacts", "write_indexed"]

_SPOOL_BYTES = 8 << 20
_ROWS = 1 << 18
_LONGEST_SEQUENCE = 2**31 - 1


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
        lengths = np.asarray(lengths)
        if tokens.ndim != 1 or lengths.ndim != 1 or int(lengths.sum(dtype=np.int64)) != len(tokens):
            total = int(lengths.sum(dtype=np.int64))
            raise FormatError(f"{self._prefix}: tokens of shape {tokens.shape} given for lengths that sum to {total}")
        if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= _LONGEST_SEQUENCE:
            raise FormatError(
                f"{self._prefix}: a sequence of {int(lengths.max())} tokens; the format holds 0 to {_LONGEST_SEQUENCE}"
            )
        self._bin.write(np.ascontiguousarray(self._cast(tokens)))
        self._lengths.write(lengths.astype("<i4").tobytes())
        if sequences_per_document is None:
            sequences_per_document = np.ones(len(lengths), np.int64)
        elif int(sequences_per_document.sum()) != len(lengths):
            raise FormatError(
                f"{self._prefix}: documents of {int(sequences_per_document.sum())} sequences given for {len(lengths)}"
            )
        self._per_document.write(sequences_per_document.astype("<i4").tobytes())
        self.tokens += len(tokens)
        self.sequences += len(lengths)
        self.documents += len(sequences_per_document)

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

    def finish(self) -> None:
        """Writes the `.idx` and sets `facts`; called by `write_indexed` once the `.bin` is in place."""
        with publish(idx_path(self._prefix)) as index:
            index.write(pack_header(self._dtype, self.sequences, self.documents))
            for lengths in self._stored(self._lengths):
                index.write(lengths)
            position = 0
            for lengths in self._stored(self._lengths):
                ends = np.cumsum(lengths.astype(np.int64) * self._dtype.itemsize) + position
                index.write((ends - lengths.astype(np.int64) * self._dtype.itemsize).astype("<i8"))
                position = int(ends[-1])
            index.write(np.zeros(1, "<i8"))
            position = 0
            for counts in self._stored(self._per_document):
                bounds = np.cumsum(counts.astype(np.int64)) + position
                index.write(bounds.astype("<i8"))
                position = int(bounds[-1])
        self.facts = PairFacts(
            tokens=self.tokens,
            sequences=self.sequences,
            documents=self.documents,
            bin=self._bin.facts(),
            idx=index.facts(),
        )

    def close(self) -> None:
        """Lets go of the spools."""
        self._lengths.close()
        self._per_document.close()

    @staticmethod
    def _stored(spool: "tempfile.SpooledTemporaryFile[bytes]") -> Iterator[np.ndarray]:
        spool.seek(0)
        while block := spool.read(4 * _ROWS):
            yield np.frombuffer(block, "<i4")


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
    with publish(bin_path(prefix)) as publication:
        writer = IndexedWriter(prefix, np.dtype(dtype).newbyteorder("<"), publication)
        try:
            yield writer
        except BaseException:
            writer.close()
            raise
    try:
        writer.finish()
    finally:
        writer.close()
