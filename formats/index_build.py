"""Builds an index set for a prepared corpus, in this process.

The preparation pipeline builds the same members as separate work items; this is for one more set beside those a corpus
has, for another sequence length or seed. Members are built one after the other, which bounds memory by the largest.
"""

from collections.abc import Callable

import numpy as np

from gristmill.formats.errors import CorpusError
from gristmill.formats.index_forecast import check_forecast, forecast_index, range_tokens
from gristmill.formats.index_set import (
    SET_NAME,
    IndexSet,
    IndexSettings,
    MemberPlan,
    MemberSource,
    build_blend,
    build_member,
    commit_set,
    plan_members,
    read_set,
    set_path,
    write_blend,
    write_member,
)
from gristmill.formats.index_sources import index_sources
from gristmill.formats.indexed import IndexedDataset
from gristmill.formats.indices import Lengths
from gristmill.formats.manifest import Manifest
from gristmill.formats.split import SPLITS
from gristmill.formats.storage import exists, join

__all__ = ["build_index_set", "source_lengths"]


def source_lengths(corpus: str, source: MemberSource) -> Lengths:
    """Lengths of all sequences of a source in manifest order, [S], in tokens: uint16 if all fit, else int32.

    Raises:
        CorpusError: a shard holds another number of sequences than recorded.
        FormatError: a shard is damaged.
    """
    lengths: Lengths = np.empty(source.sequences, np.uint16)
    position = 0
    for shard in source.shards:
        pair = IndexedDataset(join(corpus, shard.path))
        if len(pair) != shard.sequences:
            raise CorpusError(f"{pair.prefix}: {len(pair)} sequences, but {shard.sequences} are recorded for it")
        if lengths.dtype == np.uint16 and int(pair.lengths.max(initial=0)) > np.iinfo(np.uint16).max:
            lengths = lengths.astype(np.int32)
        lengths[position : position + len(pair)] = pair.lengths
        position += len(pair)
        pair.close()
    return lengths


def build_index_set(
    corpus: str, manifest: Manifest, settings: IndexSettings, say: Callable[[str], None] | None = None
) -> IndexSet:
    """Builds the index set of a corpus for some settings, or gives the one that is there already.

    Args:
        corpus: folder or URL of the corpus.
        manifest: its manifest.
        settings: what the set is for.
        say: takes a line for each step; None stays silent.

    Raises:
        SettingsError: the settings cannot be followed for these sources, or a member would get no sample or exceed its
            `max_epochs`; found before anything is built.
        DataError: a member is too short for a sample.
        StorageError: a file cannot be read or written.
    """
    sources = index_sources(manifest.sources)
    folder = set_path(corpus, settings, sources)
    if exists(join(folder, SET_NAME)):
        return read_set(folder)
    token_bytes = manifest.token_dtype.itemsize

    def tokens(plan: MemberPlan) -> int:
        return range_tokens(corpus, manifest.source(plan.source), token_bytes, plan.start, plan.end)

    check_forecast(forecast_index(settings, sources, tokens))
    reports = []
    for plan in plan_members(settings, sources):
        report = write_member(folder, plan, build_member(plan, source_lengths(corpus, sources[plan.place])))
        reports.append(report)
        if say is not None:
            say(f"{plan.split} of {plan.source}: {report.rows:,} samples, {report.epochs} epochs")
    blends = []
    for split in SPLITS:
        blend = build_blend(settings, split, [report for report in reports if report.split == split])
        if blend is not None:
            blends.append(write_blend(folder, split, blend))
    return commit_set(folder, settings, sources, reports, blends)
