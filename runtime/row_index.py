"""What decides the tokens of each row: sources with their shards, and the index arrays over them.

Arrays may be mapped files of any size, so nothing here looks into them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.blend import Blend
from gristmill.formats.indices import MemberIndices
from gristmill.runtime.remote_access import RemoteAccess
from gristmill.runtime.shards import Shard

__all__ = ["Member", "RowIndex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One source of a stream.

    Attributes:
        source: its name.
        shards: its shards; their sequences are numbered through in this order.
        indices: document, sample and shuffle index over those numbers.
    """

    source: str
    shards: tuple[Shard, ...]
    indices: MemberIndices


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIndex:
    """Everything that decides which tokens a row holds.

    Attributes:
        members: the sources, as the blend numbers them.
        dataset_index: int16 [>= rows], the member of each row; None for a single member.
        dataset_sample_index: int64 [>= rows], the sample of each row there; None for a single member.
        rows: number of rows, N.
        sequence_length: L.
        extra: 1 when a row holds L + 1 tokens, 0 when it holds L.
        more: the two arrays of a blend go on in these, where more rows are wanted than are stored; or None.
        partial: whether the last samples of a member may hold fewer tokens than a row, which are then followed by 0s.
        access: how files on an object store are read; None where they are local, or read as they always are.
    """

    members: tuple[Member, ...]
    dataset_index: NDArray[np.int16] | None
    dataset_sample_index: NDArray[np.int64] | None
    rows: int
    sequence_length: int
    extra: int
    more: Blend | None = None
    partial: bool = False
    access: RemoteAccess | None = None

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """Every stored array: those of the members in turn, then those of the blend."""
        arrays: list[NDArray[Any]] = []
        for member in self.members:
            arrays += (member.indices.document_index, member.indices.sample_index, member.indices.shuffle_index)
        if self.dataset_index is not None and self.dataset_sample_index is not None:
            arrays += (self.dataset_index, self.dataset_sample_index)
        return arrays
