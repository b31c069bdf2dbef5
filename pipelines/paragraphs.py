"""The paragraphs of texts: where they lie, their keys, and texts without some of them.

A paragraph is a line, between line feeds, that is not blank. Two are alike when their normal forms are (the same as
those of whole texts, `text_keys.normal_form`) or, if the recipe says so, when they are identical. One that goes takes
the blank lines behind it along; at the end of a document those before it instead, so that a text never ends with gaps
of what is gone.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gristmill.pipelines.text_keys import fold_tables

__all__ = ["keys_of", "Paragraphs", "paragraphs_of", "trailing", "without"]

_FEED = 10


@dataclass(frozen=True, slots=True)
class Paragraphs:
    """The paragraphs of some texts, in order.

    Attributes:
        codes: [characters] uint32: code points of all texts, one after the other.
        stops: [texts] int64: where each text ends in them.
        owners: [paragraphs] int64: number of the text that each is of.
        starts: [paragraphs] int64: where each begins in `codes`.
        ends: [paragraphs] int64: where it ends, before its line feed.
        lengths: [paragraphs] int64: its code points without white space at its ends.
        sizes: [paragraphs] int64: its bytes in UTF-8.
        gap_sizes: [paragraphs] int64: bytes between it and the next one, or the end of its text.
    """

    codes: np.ndarray
    stops: np.ndarray
    owners: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    lengths: np.ndarray
    sizes: np.ndarray
    gap_sizes: np.ndarray

    @property
    def places(self) -> np.ndarray:
        """[paragraphs] int64: which paragraph of its text each is, from 0."""
        firsts = np.searchsorted(self.owners, self.owners)
        return np.arange(len(self.owners)) - firsts

    @property
    def gaps(self) -> np.ndarray:
        """[paragraphs] int64: code points between each and the next one, or the end of its text."""
        behind = self.stops[self.owners]
        same = self.owners[1:] == self.owners[:-1]
        behind[:-1][same] = self.starts[1:][same]
        gaps: np.ndarray = behind - self.ends
        return gaps


def paragraphs_of(texts: Sequence[str]) -> Paragraphs:
    """The paragraphs of texts."""
    from gristmill.pipelines.paragraph_kernels import paragraph_spans

    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    stops = np.cumsum([len(text) for text in texts], dtype=np.int64)
    spans = np.empty((int(np.count_nonzero(codes == _FEED)) + len(texts), 6), np.int64)
    spans = spans[: paragraph_spans(codes, stops, fold_tables()[0], spans)]
    return Paragraphs(codes, stops, *np.ascontiguousarray(spans.T))


def keys_of(texts: Sequence[str], found: Paragraphs, which: np.ndarray, *, normalized: bool) -> np.ndarray:
    """Keys of paragraphs.

    Args:
        texts: the texts.
        found: their paragraphs.
        which: [paragraphs] bool: of which of them.
        normalized: whether normal forms are compared, or paragraphs as they are.

    Returns:
        [chosen, 2] uint64; those of like paragraphs are the same.
    """
    from gristmill.pipelines.paragraph_kernels import paragraph_keys

    table, expansions = fold_tables()
    if normalized:
        composed = [unicodedata.normalize("NFC", text) for text in texts]
        if any(after is not before and after != before for after, before in zip(composed, texts, strict=True)):
            found = paragraphs_of(composed)  # as many, in the same order: no line feed and no letter comes or goes
    keys = np.empty((int(which.sum()), 2), np.uint64)
    paragraph_keys(found.codes, found.starts[which], found.ends[which], table, expansions, normalized, keys)
    return keys


def trailing(owners: np.ndarray, goes: np.ndarray) -> np.ndarray:
    """Which of the paragraphs that go have none that stays behind them in their text.

    Args:
        owners: [paragraphs] number of the text that each is of, ascending.
        goes: [paragraphs] bool.

    Returns:
        [paragraphs] bool.
    """
    stays = np.flatnonzero(~goes)
    last = np.full(int(owners[-1]) + 1 if len(owners) else 0, -1, np.int64)
    np.maximum.at(last, owners[stays], stays)
    behind: np.ndarray = np.arange(len(owners)) > last[owners]
    return behind


def without(texts: Sequence[str], owners: np.ndarray, places: np.ndarray) -> list[str]:
    """Texts without some of their paragraphs.

    Args:
        texts: the texts.
        owners: [removed] number of the text that each paragraph which goes is of.
        places: [removed] which of its paragraphs it is; of each text at least one stays.
    """
    found = paragraphs_of(texts)
    firsts = np.searchsorted(found.owners, np.arange(len(texts)))
    goes = np.zeros(len(found.owners), bool)
    goes[firsts[owners] + places] = True
    at_end = trailing(found.owners, goes)
    begins, ends = found.starts.copy(), found.ends + found.gaps
    begins[1:][at_end[1:]] = found.ends[:-1][at_end[1:]]
    ends[at_end] = found.ends[at_end]
    edges = np.zeros(len(found.codes) + 1, np.int32)
    np.add.at(edges, begins[goes], 1)
    np.add.at(edges, ends[goes], -1)
    stays = np.cumsum(edges[:-1]) == 0
    left = found.codes[stays]
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(stays)])[np.concatenate([[0], found.stops])]
    return [
        left[start:stop].tobytes().decode("utf-32-le", "surrogatepass")
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
