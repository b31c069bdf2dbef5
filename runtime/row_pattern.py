"""Which rows are read next, told from those that were read: batches of a training loop lie at equal distances."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["RowPattern"]


class RowPattern:
    """Watches reads. Used by one thread at a time.

    Attributes:
        rows: int64 [R], the last rows read.
        step: how far each lies from the one read in its place before, where all lie equally far ahead; else None.
    """

    def __init__(self) -> None:
        self.rows: NDArray[np.int64] = np.empty(0, np.int64)
        self.step: int | None = None

    def add(self, rows: ArrayLike) -> bool:
        """Takes note of rows that are read now.

        Returns:
            Whether they are those that the pattern said.
        """
        new = np.asarray(rows)
        if new.ndim != 1 or new.dtype.kind not in "iu":  # a read that will fail
            new = np.empty(0, np.int64)
        new = new.astype(np.int64)
        before, self.rows = self.rows, new
        step = None
        if len(new) and len(new) == len(before):
            steps = new - before
            if steps[0] > 0 and (steps == steps[0]).all():
                step = int(steps[0])
        expected = step is not None and step == self.step
        self.step = step
        return expected

    def batch(self, number: int, end: int) -> NDArray[np.int64]:
        """The rows of a later read; of no rows where there is none.

        Without a step they are those behind the last rows, as many at a time as were read.

        Args:
            number: how many reads later, from 1.
            end: number of rows of the stream.
        """
        if not len(self.rows):
            return self.rows
        if self.step is not None:
            found = self.rows + number * self.step
        else:
            count = len(self.rows)
            found = np.arange(count, dtype=np.int64) + int(self.rows.max()) + 1 + (number - 1) * count
        return found[found < end]
