"""The documents of a batch on their way through the cleaning steps.

Steps mark what goes and replace what changes; nothing is counted here, so that the same steps can run again when the
input is read a second time. Compiled rules work on all code points of the batch in one array, made once and made anew
only when a text has changed.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Documents"]


class Documents:
    """Texts, and what became of each.

    Attributes:
        texts: the texts as they are now.
        addresses: where each text comes from, None where that is not known.
        alive: [documents] bool, which have broken no rule.
        verdicts: reason and what was found, by number of the document that broke a rule.
        counted: what steps count besides: texts repaired, masked and the like.
    """

    def __init__(self, texts: Sequence[str], addresses: "Sequence[str | None] | None" = None) -> None:
        """Takes texts, none of them empty."""
        self.texts = list(texts)
        self.addresses = addresses
        self.alive: NDArray[np.bool_] = np.ones(len(self.texts), bool)
        self.verdicts: dict[int, tuple[str, str]] = {}
        self.counted: Counter[str] = Counter()
        self._codes: NDArray[np.uint32] | None = None
        self._starts: NDArray[np.int64] = np.zeros(1, np.int64)

    def numbers(self) -> list[int]:
        """Numbers of the documents that have broken no rule, ascending."""
        return [int(number) for number in np.flatnonzero(self.alive)]

    def drop(self, number: int, reason: str, found: str = "") -> None:
        """Marks a document that breaks a rule; `found` is the value that does, for the sample."""
        self.alive[number] = False
        self.verdicts[number] = (reason, found)

    def replace(self, number: int, text: str) -> None:
        """Puts another text in a document's place."""
        self.texts[number] = text
        self._codes = None

    def codes(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """All code points, [characters] uint32, and where each document starts, [documents + 1] int64."""
        if self._codes is None:
            data = "".join(self.texts).encode("utf-32-le", "surrogatepass")
            self._codes = np.frombuffer(data, np.uint32)
            self._starts = np.zeros(len(self.texts) + 1, np.int64)
            np.cumsum([len(text) for text in self.texts], out=self._starts[1:])
        return self._codes, self._starts

    def replace_codes(self, codes: NDArray[np.uint32], starts: NDArray[np.int64], changed: Iterable[int]) -> None:
        """Puts new texts in the place of all, given as `codes` gives them; only those in `changed` differ.

        A document that is no longer alive may have any text.
        """
        for number in changed:
            self.texts[number] = (
                codes[starts[number] : starts[number + 1]].tobytes().decode("utf-32-le", "surrogatepass")
            )
        self._codes, self._starts = codes, starts
