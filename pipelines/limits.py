"""Cuts sources to their limits: how many splits are worth reading, and which documents are the last to be taken.

Planning looks at a sample of a source and leaves out the splits that its limit will not need, with a margin for what
cleaning and deduplication drop. The cut itself is made where all counts are known, before shards are planned, so it is
exact whatever the sample said: every document of a prefix is in, none behind it.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gristmill.formats.errors import DataError
from gristmill.formats.limits_table import Budget, Limits
from gristmill.formats.recipe import Recipe, SourceSettings
from gristmill.pipelines.estimate import estimate_source
from gristmill.pipelines.inputs import InputFile
from gristmill.pipelines.job import Job
from gristmill.pipelines.plan import Plan, Split, read_plan
from gristmill.pipelines.spill import read_kept

__all__ = ["cut_reports", "limited_plan", "OVER_LIMIT", "source_limits"]

OVER_LIMIT = "over_limit"
"""Reason of documents behind a source's limit."""


def source_limits(recipe: Recipe, number: int) -> Limits:
    """The limits of a source, its share of the recipe's budget among them."""
    own = recipe.sources[number].limits
    share = recipe.budget.share([source.weight for source in recipe.sources], number)
    tokens = [value for value in (own.tokens, share) if value is not None]
    return Limits(documents=own.documents, tokens=min(tokens, default=None), input_bytes=own.input_bytes)


def limited_plan(recipe: Recipe, plan: Plan, count_tokens: Callable[[list[str]], int] | None) -> Plan:
    """The plan without the splits that the sources' limits will not need.

    Args:
        recipe: the recipe.
        plan: all splits.
        count_tokens: tokens of some documents, for the sample; None leaves out no split for a limit of tokens or
            documents.

    Raises:
        InputError: the sample cannot be read.
    """
    splits: list[Split] = []
    cut = []
    for number, source in enumerate(recipe.sources):
        own = [split for split in plan.splits if split.source == number]
        count = _enough(source, source_limits(recipe, number), recipe.budget, plan.inputs[number], own, count_tokens)
        if count < len(own):
            cut.append(number)
        splits += [replace(split, number=len(splits) + place) for place, split in enumerate(own[:count])]
    return replace(plan, splits=tuple(splits), cut=tuple(cut)) if cut else plan


def _enough(
    source: SourceSettings,
    limits: Limits,
    budget: Budget,
    files: Sequence[InputFile],
    splits: Sequence[Split],
    count_tokens: Callable[[list[str]], int] | None,
) -> int:
    """How many of a source's splits, from the first, are read."""
    if not limits.any or not splits:
        return len(splits)
    ends = np.cumsum(_input_bytes(files, splits))
    count = len(ends)
    if limits.input_bytes is not None:
        count = max(1, int(np.searchsorted(ends, limits.input_bytes, side="right")))
    if count_tokens is None or (limits.documents is None and limits.tokens is None):
        return count
    found = estimate_source(source, files, count_tokens)
    for limit, whole in ((limits.documents, found.documents), (limits.tokens, found.tokens)):
        if limit is not None and whole > 0:
            needed = float(ends[-1]) * (1 + budget.margin) * limit / whole
            count = min(count, int(np.searchsorted(ends, needed)) + 2)  # the last that is needed, and one more
    return count


def _input_bytes(files: Sequence[InputFile], splits: Sequence[Split]) -> np.ndarray:
    """[splits] bytes of input of each, as stored; of a table's file by the share of its groups of rows."""
    groups: Counter[int] = Counter()
    for split in splits:
        for extent in split.extents:
            groups[extent.file] = max(groups[extent.file], extent.end)
    return np.array(
        [
            sum(
                files[extent.file].size * (extent.end - extent.start) / max(1, groups[extent.file])
                for extent in split.extents
            )
            for split in splits
        ]
    )


def cut_reports(job: Job, source: int, reports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reports of a source's splits as far as its limits go.

    Args:
        job: the run.
        source: number of the source.
        reports: results of `encode_split`, by part.

    Returns:
        The reports; of a split that the limit falls into, with the counts of the documents before it, of one behind it
        with none. `taken` is how many documents are taken of a split that is cut, and what is left out counts as
        dropped.

    Raises:
        DataError: the source holds less than its share of the budget, or less than its limit though not all of it was
            read.
    """
    limits = source_limits(job.recipe, source)
    if limits.documents is None and limits.tokens is None:
        return list(reports)
    documents_left = math.inf if limits.documents is None else limits.documents
    tokens_left = math.inf if limits.tokens is None else limits.tokens
    cut: list[dict[str, Any]] = []
    full = False
    for report in reports:
        if not full and report["documents"] <= documents_left and report["tokens"] <= tokens_left:
            cut.append(report)
        elif full:
            cut.append(_shortened(report, np.empty(0, np.int64)))
        else:
            lengths = read_kept(job, job.recipe.sources[source].id, report["part"], report["spill"])["length"]
            lengths = lengths.astype(np.int64)
            taken = int(np.searchsorted(np.cumsum(lengths), tokens_left, side="right"))
            cut.append(_shortened(report, lengths[: int(min(taken, documents_left))]))
            full = True
        documents_left -= cut[-1]["documents"]
        tokens_left -= cut[-1]["tokens"]
        full = full or documents_left <= 0 or tokens_left <= 0
    if not full:
        _check_shortfall(job, source, limits, cut)
    return cut


def _shortened(report: dict[str, Any], lengths: np.ndarray) -> dict[str, Any]:
    out = report["documents"] - len(lengths)
    dropped = {**report["dropped"], OVER_LIMIT: out} if out else report["dropped"]
    return {
        **report,
        "tokens": int(lengths.sum()),
        "documents": len(lengths),
        "kept": len(lengths),
        "longest": int(lengths.max(initial=0)),
        "last": int(lengths[-1]) if len(lengths) else 0,
        "taken": len(lengths),
        "dropped": dropped,
    }


def _check_shortfall(job: Job, source: int, limits: Limits, reports: Sequence[dict[str, Any]]) -> None:
    """Refuses a source that fell short of its share, or of its limit for want of reading on."""
    tokens, documents = (sum(report[name] for report in reports) for name in ("tokens", "documents"))
    name = job.recipe.sources[source].id
    wanted = f"{limits.tokens} tokens" if limits.tokens is not None else f"{limits.documents} documents"
    found = f"source {name!r}: {wanted} are wanted, but {tokens} tokens in {documents} documents"
    if source in read_plan(job.corpus).cut and limits.input_bytes is None:
        raise DataError(
            f"{found} came out of the part that a sample said would do; raise budget.margin, now "
            f"{job.recipe.budget.margin:g}, so that more of it is read"
        )
    if job.recipe.budget.tokens is not None and limits.documents is None:
        longest = max((report["longest"] for report in reports), default=0)
        if tokens + longest < (limits.tokens or 0):
            more = "give it more input" if limits.input_bytes is None else "raise its max_bytes"
            raise DataError(f"{found} are all it has; lower budget.tokens or the source's weight, or {more}")
