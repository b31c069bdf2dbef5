"""A `.bin/.idx` pair read document by document: what the format calls a sequence is here a whole document.

Megatron shuffles sequences, so data written sentence by sentence are shuffled sentence by sentence. MaxText's reader
has a mode in which the document is the unit; this is the view of a pair that gives it. It costs a pass over the index
at every opening, and twelve bytes of memory per document.
"""

from typing import Literal

import numpy as np

from gristmill.formats.errors import FormatError, SettingsError
from gristmill.formats.indexed import IndexedDataset, PairFiles

__all__ = ["check_unit", "dataset_of_unit", "DocumentDataset", "Unit"]

Unit = Literal["sequence", "document"]
"""What is shuffled as one: a sequence of the index, as in Megatron, or a whole document."""

_LONGEST = 2**31 - 1


class DocumentDataset(IndexedDataset):
    """A pair whose sequences are its documents; a document without sequences is an empty one."""

    def __init__(self, prefix: str, *, check: Literal["full", "ends"] = "full", files: PairFiles | None = None) -> None:
        """Opens a pair, see `IndexedDataset`.

        Raises:
            FormatError: the pair is damaged, or a document is longer than the order's int32 lengths can say.
        """
        super().__init__(prefix, check=check, files=files)
        edges = np.append(np.asarray(self.pointers) // self.dtype.itemsize, self.num_tokens)
        starts = edges[np.asarray(self.document_indices)]
        lengths = np.diff(starts)
        if len(lengths) and int(lengths.max()) > _LONGEST:
            number = int(np.argmax(lengths))
            self.close()
            raise FormatError(
                f"{prefix}: document {number} holds {lengths[number]} tokens; one that is shuffled whole may have at "
                f"most {_LONGEST}: take sequences as the unit"
            )
        self.lengths = lengths.astype(np.int32)
        self.pointers = starts[:-1] * self.dtype.itemsize
        self.document_indices = np.arange(len(lengths) + 1, dtype=np.int64)


def check_unit(unit: str) -> Unit:
    """The unit that a word names.

    Raises:
        SettingsError: it is neither.
    """
    if unit == "sequence":
        return "sequence"
    if unit == "document":
        return "document"
    raise SettingsError(f"granularity {unit!r}: it is 'sequence', as in Megatron, or 'document'")


def dataset_of_unit(
    prefix: str, unit: Unit, *, check: Literal["full", "ends"] = "full", files: PairFiles | None = None
) -> IndexedDataset:
    """Opens a pair, its sequences being those of the index or the documents; see `IndexedDataset`."""
    return (DocumentDataset if unit == "document" else IndexedDataset)(prefix, check=check, files=files)
