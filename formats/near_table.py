"""Reads the `[near_dedup]` table of a recipe: which sources are searched for near duplicates, and by which numbers.

One set of numbers holds for the whole corpus, because documents of different sources are compared with each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.formats.settings_table import SettingsTable

__all__ = ["NearDedup", "read_near_dedup", "read_share", "read_sources"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDedup:
    """How near duplicates are found.

    A pair of documents whose sets of word n-grams have the Jaccard similarity J becomes a candidate with the
    probability ``1 - (1 - J**rows)**bands``, and a candidate counts as a duplicate when its J, computed from the sets
    themselves, reaches `threshold`.

    Attributes:
        ngram: words of a shingle.
        bands: bands of a signature; a pair that agrees in one of them is a candidate.
        rows: hash functions of a band.
        threshold: least Jaccard similarity of a duplicate, above 0 and at most 1.
        seed: of the hash functions.
        warn_fraction: share of a source's documents above which its loss is told.
        max_fraction: share above which the run stops.
        sources: numbers of the sources that take part.
    """

    ngram: int = 5
    bands: int = 14
    rows: int = 8
    threshold: float = 0.7
    seed: int = 1
    warn_fraction: float = 0.3
    max_fraction: float = 0.8
    sources: tuple[int, ...] = ()


def read_near_dedup(table: SettingsTable, ids: Sequence[str], cleaned: Sequence[bool]) -> NearDedup:
    """Reads the table.

    Args:
        table: the table.
        ids: the sources' ids, in the recipe's order.
        cleaned: whether each is cleaned at all.
    """
    usual = NearDedup()

    def whole(name: str, most: int) -> int:
        default: int = getattr(usual, name)
        says = f"an integer from 1 to {most}"
        return table.take(name, int, default, rule=lambda value: 1 <= value <= most, says=says) or default

    seed = table.take(
        "seed", int, usual.seed, rule=lambda value: 0 <= value < 2**32, says="an integer below 4294967296"
    )
    near = NearDedup(
        ngram=whole("ngram", 64),
        bands=whole("bands", 256),
        rows=whole("rows", 64),
        threshold=read_share(table, "threshold", usual.threshold),
        seed=usual.seed if seed is None else seed,
        warn_fraction=read_share(table, "warn_fraction", usual.warn_fraction),
        max_fraction=read_share(table, "max_fraction", usual.max_fraction),
        sources=read_sources(table, ids, cleaned, "near duplicates"),
    )
    table.finish()
    return near


def read_share(table: SettingsTable, name: str, default: float) -> float:
    """A fraction above 0, at most 1."""
    says = "a fraction above 0, at most 1"
    return table.take(name, float, default, rule=lambda value: 0 < value <= 1, says=says) or default


def read_sources(table: SettingsTable, ids: Sequence[str], cleaned: Sequence[bool], loses: str) -> tuple[int, ...]:
    """Numbers of the sources that `sources` of a table names, or of all that are cleaned.

    Args:
        table: the table.
        ids: the sources' ids, in the recipe's order.
        cleaned: whether each is cleaned at all.
        loses: what sources that take part lose, for the message.
    """
    named = table.strings("sources")
    for name in named:
        if name not in ids:
            table.note("sources", f'names "{name}", which is no source; the sources are {", ".join(ids)}')
        elif not cleaned[ids.index(name)]:
            table.note("sources", f'names "{name}", which is not cleaned (clean = false)')
    sources = tuple(number for number, name in enumerate(ids) if cleaned[number] and (not named or name in named))
    if not sources and not named:
        table.note("sources", f"are none: no source is cleaned, so none can lose its {loses}")
    return sources
