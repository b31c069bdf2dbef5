"""Reads what a recipe says of deduplication beyond which sources take part: the key of a text, and `[paragraph_dedup]`.

Both hold for the whole corpus, because texts of different sources are compared with each other.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gristmill.formats.near_table import NearDedup, read_near_dedup, read_share, read_sources
from gristmill.formats.settings_table import SettingsTable

__all__ = ["dedup_identity", "key_identity", "ParagraphDedup", "read_dedup", "TEXT_KEYS"]

TEXT_KEYS = {"identical": "gristmill-identical-1", "normalized": "gristmill-normalized-1"}
"""What `dedup_key` may say, and the version of what each makes of a text before it is hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParagraphDedup:
    """How paragraphs that occurred before are left out.

    Attributes:
        min_chars: shortest paragraph that is compared, in code points without white space at its ends.
        warn_fraction: share of a source's characters above which its loss is told.
        max_fraction: share above which the run stops.
        sources: numbers of the sources that take part.
    """

    min_chars: int = 100
    warn_fraction: float = 0.3
    max_fraction: float = 0.8
    sources: tuple[int, ...] = ()


def key_identity(key: str) -> dict[str, Any]:
    """What the keys of texts follow from, as JSON values; `key` is one of `TEXT_KEYS`."""
    found = {"key": TEXT_KEYS[key]}
    return found | ({"unicode_tables": unicodedata.unidata_version} if key == "normalized" else {})


def dedup_identity(
    number: int, *, exact: bool, key: str, near: NearDedup | None, paragraphs: ParagraphDedup | None
) -> dict[str, Any]:
    """What decides which copies a source loses, as JSON values.

    Args:
        number: number of the source.
        exact: whether it loses exact copies.
        key: what is compared, one of `TEXT_KEYS`.
        near: how near duplicates are found; None for not at all.
        paragraphs: how repeated paragraphs are found; None for not at all.
    """
    found: dict[str, Any] = {}
    if paragraphs is not None and number in paragraphs.sources:
        found["paragraph_dedup"] = {"version": 1, "settings": _deciding(paragraphs)}
    if found or exact:
        found["dedup_key"] = key_identity(key)
    if near is not None and number in near.sources:
        found["near_dedup"] = {"version": 1, "settings": _deciding(near)}
    return found


def _deciding(settings: NearDedup | ParagraphDedup) -> dict[str, Any]:
    """Settings without the alarms, and without the sources, which the others say themselves."""
    names = ("warn_fraction", "max_fraction", "sources")
    return {name: value for name, value in asdict(settings).items() if name not in names}


def read_dedup(
    top: SettingsTable, ids: Sequence[str], cleaned: Sequence[bool]
) -> tuple[NearDedup | None, ParagraphDedup | None, str]:
    """Reads `[near_dedup]`, `[paragraph_dedup]` and `dedup_key` of a recipe.

    Args:
        top: the recipe's own table.
        ids: the sources' ids, in the recipe's order.
        cleaned: whether each is cleaned at all.
    """
    near, paragraphs = None, None
    if top.has("near_dedup"):
        near = read_near_dedup(top.table("near_dedup"), ids, cleaned)
    if top.has("paragraph_dedup"):
        paragraphs = _paragraph_dedup(top.table("paragraph_dedup"), ids, cleaned)
    return near, paragraphs, top.choice("dedup_key", tuple(TEXT_KEYS), "normalized")


def _paragraph_dedup(table: SettingsTable, ids: Sequence[str], cleaned: Sequence[bool]) -> ParagraphDedup:
    usual = ParagraphDedup()

    says = "a number of characters, 1 or more"
    settings = ParagraphDedup(
        min_chars=table.take("min_chars", int, usual.min_chars, rule=lambda value: value > 0, says=says)
        or usual.min_chars,
        warn_fraction=read_share(table, "warn_fraction", usual.warn_fraction),
        max_fraction=read_share(table, "max_fraction", usual.max_fraction),
        sources=read_sources(table, ids, cleaned, "repeated paragraphs"),
    )
    table.finish()
    return settings
