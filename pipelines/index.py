"""The index and blend stages: one work item per source and split, then one per split.

What is built is decided by `formats.index_set`; here it is cut into items, each skipped when its receipt is valid.
"""

import dataclasses
from typing import Any

import numpy as np

from gristmill.formats import index_build
from gristmill.formats.errors import CorpusError
from gristmill.formats.index_forecast import check_forecast, forecast_index, range_tokens
from gristmill.formats.index_set import (
    SET_NAME,
    IndexSettings,
    MemberPlan,
    MemberReport,
    MemberSource,
    build_blend,
    commit_set,
    parse_blend_report,
    parse_member_report,
    plan_members,
    set_name,
    set_path,
    write_blend,
)
from gristmill.formats.index_sources import index_sources
from gristmill.formats.receipts import Receipt
from gristmill.formats.split import SPLITS
from gristmill.formats.storage import FileFacts, file_facts, join, relative_to
from gristmill.pipelines.encoders import TOKENIZER_FOLDER
from gristmill.pipelines.finish import source_entries
from gristmill.pipelines.job import Job
from gristmill.pipelines.stages import require_stage, write_stage
from gristmill.tokenize.resolved import load_resolved

__all__ = [
    "blend_split",
    "close_blend",
    "close_index",
    "index_member",
    "index_receipt",
    "plan_index",
]


def _index(job: Job) -> IndexSettings:
    if job.recipe.index is None:
        raise CorpusError(f"{job.corpus}: the recipe has no [index], so there is no index set to build")
    return job.recipe.index


def _sources(job: Job) -> tuple[MemberSource, ...]:
    return index_sources(source_entries(job))


def plan_index(job: Job) -> list[MemberPlan]:
    """The members to build.

    Raises:
        SettingsError: the settings cannot be followed for these sources, or a member would get no sample or exceed its
            `max_epochs`; found before any of them is built.
        DataError: a member is too short for a sample.
    """
    settings, entries = _index(job), {entry.id: entry for entry in source_entries(job)}
    token_bytes = np.dtype(load_resolved(job.path(TOKENIZER_FOLDER)).dtype).itemsize

    def tokens(plan: MemberPlan) -> int:
        return range_tokens(job.corpus, entries[plan.source], token_bytes, plan.start, plan.end)

    sources = index_sources(tuple(entries.values()))
    check_forecast(forecast_index(settings, sources, tokens))
    return list(plan_members(settings, sources))


def index_member(job: Job, plan: MemberPlan) -> dict[str, Any]:
    """Builds and writes the indices of one member unless its receipt is valid.

    Returns:
        The member's report as JSON values.
    """
    settings, sources = _index(job), _sources(job)
    folder = set_path(job.corpus, settings, sources)
    return dataclasses.asdict(index_build.index_member(job.corpus, folder, plan, sources[plan.place]))


def index_receipt(job: Job, plan: MemberPlan) -> Receipt | None:
    """The receipt of a member; None where it is not there, or not for this run."""
    return index_build.member_receipt(job.corpus, set_path(job.corpus, _index(job), _sources(job)), plan)


def _files(job: Job, folder: str, files: Any) -> dict[str, FileFacts]:
    below = relative_to(folder, job.corpus)
    return {f"{below}/{name}": facts for name, facts in files.items()}


def close_index(job: Job, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Writes the receipt of the index stage."""
    settings, sources = _index(job), _sources(job)
    folder = set_path(job.corpus, settings, sources)
    reports = [parse_member_report(result) for result in results]
    reports.sort(key=lambda report: (SPLITS.index(report.split), report.place))
    files: dict[str, FileFacts] = {}
    for report in reports:
        files |= _files(job, folder, report.files)
    members = [dataclasses.asdict(report) for report in reports]
    return write_stage(job, "index", files, {"set": set_name(settings, sources), "members": members})


def _reports(job: Job) -> list[MemberReport]:
    return [parse_member_report(result) for result in require_stage(job, "index").result["members"]]


def blend_split(job: Job, split: str) -> dict[str, Any] | None:
    """Builds and writes the blend of one split; None where a single source takes part."""
    settings, sources = _index(job), _sources(job)
    blend = build_blend(settings, split, [report for report in _reports(job) if report.split == split])
    if blend is None:
        return None
    return dataclasses.asdict(write_blend(set_path(job.corpus, settings, sources), split, blend))


def close_blend(job: Job, results: list[dict[str, Any] | None]) -> dict[str, Any]:
    """Commits the index set and writes the receipt of the blend stage."""
    settings, sources = _index(job), _sources(job)
    folder = set_path(job.corpus, settings, sources)
    blends = [parse_blend_report(result) for result in results if result is not None]
    index_set = commit_set(folder, settings, sources, _reports(job), blends)
    files = {**index_set.files, SET_NAME: file_facts(join(folder, SET_NAME))}
    samples = {split: index_set.order(split).samples for split in SPLITS}
    return write_stage(job, "blend", _files(job, folder, files), {"set": index_set.name, "samples": samples})
