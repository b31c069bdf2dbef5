"""The blend of adopted data: from a folder named for it, from a cache, or new.

Where several folders could have it they are asked in MaxText's order: the pair made beforehand, then the cache. A pair
that does not fit is named and passed over, so a stale one costs a build and never an order.
"""

import warnings
from collections.abc import Sequence

import numpy as np

from gristmill.formats.adopted_plan import OrderPlan
from gristmill.formats.blend import greedy_blend, normalise, unrequested_size
from gristmill.formats.blend_store import BlendRequest, find_blend, load_blend, save_blend
from gristmill.formats.caches import Caches, warn_unwritten
from gristmill.formats.errors import CorpusError, DataError, FormatError, StorageError
from gristmill.formats.index_blend import BlendIndices, BlendRule, blend_rule, build_blend, taking_part
from gristmill.formats.index_member import MemberReport

__all__ = ["blend_of_members", "blend_request", "new_blend"]


def blend_request(plan: OrderPlan, reports: Sequence[MemberReport]) -> BlendRequest | None:
    """What the blend of a plan's members must be; None for fewer than two.

    Raises:
        DataError: a blend by weights that nobody sized would hold nothing.
    """
    split = plan.request.split
    members = taking_part(split, reports)
    if len(members) < 2:
        return None
    rows = tuple(report.rows for report in members)
    if plan.unsized is None:
        rule = blend_rule(plan.settings, split, members)
    else:
        weights = normalise(normalise([plan.unsized[report.place] for report in members]).tolist()).tolist()
        size = unrequested_size(rows, weights)
        if size < 1:
            raise DataError(f"{split}: a blend by these weights would be empty: a member has too few samples")
        rule = BlendRule(kind="weighted", weights=tuple(weights), samples=size, size=size)
    return BlendRequest(split=split, rule=rule, rows=rows)


def blend_of_members(
    plan: OrderPlan, reports: Sequence[MemberReport], caches: Caches
) -> tuple[BlendIndices | None, tuple[str, BlendRequest] | None]:
    """The blend of a plan's members: from the folder named for it, from the cache, or new.

    Returns:
        The blend, None for fewer than two members; and where it lies, None for one in memory.

    Raises:
        CorpusError: foreign indices are required and none fit.
        DataError: a member would be asked for more samples than it has.
        SettingsError: a member of a weighted blend would get no sample.
        StorageError: a folder cannot be listed.

    Warns:
        UserWarning: a pair cannot be used, or the blend cannot be written.
    """
    request = blend_request(plan, reports)
    if request is None:
        return None, None
    reasons: list[str] = []
    for folder, foreign in ((caches.blend_index, True), (caches.blend_folder, caches.foreign != "ignore")):
        if folder is None:
            continue
        found, why = _look(folder, request, foreign=foreign)
        if found is not None:
            return found, (folder, request)
        if folder == caches.blend_index and not why:
            why = [f"{folder}: holds no dataset_index.npy and dataset_sample_index.npy"]
        reasons += why
    if caches.foreign == "require":
        raise CorpusError(f"{request.split}: a stored blend is required, but none fits: {'; '.join(reasons) or 'none'}")
    for reason in reasons:
        warnings.warn(f"{request.split}: a stored blend is not used: {reason}", stacklevel=2)
    blend = new_blend(plan, reports, request)
    if not caches.write or caches.blend_folder is None:
        return blend, None
    try:
        save_blend(caches.blend_folder, request, blend)
        kept = load_blend(caches.blend_folder, request)
    except (FormatError, StorageError) as error:
        warn_unwritten("the blend", error, "blend_cache_dir")
        return blend, None
    return kept or blend, None if kept is None else (caches.blend_folder, request)


def _look(folder: str, request: BlendRequest, *, foreign: bool) -> tuple[BlendIndices | None, list[str]]:
    if foreign:
        return find_blend(folder, request)
    try:
        return load_blend(folder, request), []
    except FormatError as error:
        return None, [str(error)]


def new_blend(plan: OrderPlan, reports: Sequence[MemberReport], request: BlendRequest) -> BlendIndices:
    """Builds the blend that is requested of a plan's members.

    Raises:
        DataError: a member would be asked for more samples than it has.
        SettingsError: a member of a weighted blend would get no sample.
    """
    if plan.unsized is None:
        blend = build_blend(plan.settings, request.split, reports)
        if blend is None:
            raise DataError(f"{request.split}: nothing to blend")
        return blend
    return request.indices(*greedy_blend(np.array(request.rule.weights), request.rule.size))
