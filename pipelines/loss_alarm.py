"""The alarm of deduplication: a source that loses much of itself is told, and one that would lose most stops the run.

A template, a licence or a broken export makes a source look like copies of itself; by shares of what it had before,
that is noticed before it is gone, at the price that a source that really is so must be given other limits by name.
"""

import warnings

from gristmill.formats.dedup_table import ParagraphDedup
from gristmill.formats.errors import DataError
from gristmill.formats.near_table import NearDedup
from gristmill.pipelines.job import Job

__all__ = ["check_near_loss", "check_paragraph_loss"]


def check_near_loss(job: Job, source_id: str, lost: int, documents: int) -> None:
    """Looks at what a source loses to near duplicates.

    Args:
        job: the run.
        source_id: id of the source.
        lost: its documents that go.
        documents: those that it had without exact copies.

    Raises:
        DataError: more go than `near_dedup.max_fraction` allows.
    """
    _check(
        "near_dedup",
        job.recipe.near_dedup,
        lost,
        documents,
        f"source {source_id!r}: {lost} of {documents} documents are near duplicates of earlier ones",
        ": one template for all, perhaps. Raise near_dedup.threshold, leave the source out of near_dedup.sources, or "
        "raise the limit",
    )


def check_paragraph_loss(job: Job, source_id: str, lost: int, characters: int) -> None:
    """Looks at what a source loses with paragraphs.

    Args:
        job: the run.
        source_id: id of the source.
        lost: its code points that go.
        characters: those that it had.

    Raises:
        DataError: more go than `paragraph_dedup.max_fraction` allows.
    """
    _check(
        "paragraph_dedup",
        job.recipe.paragraph_dedup,
        lost,
        characters,
        f"source {source_id!r}: {lost} of {characters} characters are in paragraphs that occurred before",
        ". Raise paragraph_dedup.min_chars, leave the source out of paragraph_dedup.sources, or raise the limit",
    )


def _check(
    table: str, settings: NearDedup | ParagraphDedup | None, lost: int, whole: int, said: str, remedy: str
) -> None:
    """Compares a loss with the shares that a table of the recipe names."""
    if settings is None:
        return
    if lost > settings.max_fraction * whole:
        raise DataError(f"{said}, more than {table}.max_fraction = {settings.max_fraction:g} allows{remedy}")
    if lost > settings.warn_fraction * whole:
        warnings.warn(f"{said}, more than {table}.warn_fraction = {settings.warn_fraction:g}", stacklevel=3)
