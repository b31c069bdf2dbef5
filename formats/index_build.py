"""Builds an index set for a prepared corpus, in this process.

The preparation pipeline builds the same members as separate work items; this is for one more set beside those a corpus
has, for another sequence length or seed. Both go through `index_member`, which leaves a receipt for each member, so a
build that was stopped goes on where it stopped, whichever of the two began it.
"""

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from gristmill.formats.errors import CorpusError, SettingsError
from gristmill.formats.fingerprint import digest
from gristmill.formats.index_forecast import check_forecast, forecast_index, range_tokens
from gristmill.formats.index_member import make_member
from gristmill.formats.index_set import (
    SET_NAME,
    IndexSet,
    IndexSettings,
    MemberPlan,
    MemberReport,
    MemberSource,
    build_blend,
    commit_set,
    parse_member_report,
    plan_members,
    read_set,
    set_path,
    write_blend,
)
from gristmill.formats.index_sources import index_sources
from gristmill.formats.indexed import IndexedDataset
from gristmill.formats.indices import Lengths
from gristmill.formats.manifest import Manifest
from gristmill.formats.receipts import Receipt, item_receipt_path, valid_receipt, write_receipt
from gristmill.formats.split import SPLITS
from gristmill.formats.storage import base_name, exists, join, relative_to
from gristmill.formats.token_shards import joined_lengths

__all__ = ["build_index_set", "index_member", "member_receipt", "source_lengths", "source_tokens"]


def source_lengths(corpus: str, source: MemberSource) -> Lengths:
    """Lengths of all sequences of a source in manifest order, [S], in tokens: uint16 if all fit, else int32.

    Raises:
        CorpusError: a shard holds another number of sequences than recorded.
        FormatError: a shard is damaged.
    """
    return joined_lengths(source.sequences, _pairs(corpus, source))


def source_tokens(corpus: str, source: MemberSource, start: int, end: int) -> int:
    """Tokens of the sequences ``start`` to ``end`` of a source, counted without holding their lengths.

    Raises:
        CorpusError: a shard holds another number of sequences than recorded.
        FormatError: a shard is damaged.
    """
    tokens = first = 0
    for pair in _pairs(corpus, source):
        low, high = max(start - first, 0), max(end - first, 0)
        tokens += int(pair.lengths[low:high].sum(dtype=np.int64))
        first += len(pair)
        pair.close()
    return tokens


def _pairs(corpus: str, source: MemberSource) -> Iterator[IndexedDataset]:
    for shard in source.shards:
        pair = IndexedDataset(join(corpus, shard.path))
        if len(pair) != shard.sequences:
            raise CorpusError(f"{pair.prefix}: {len(pair)} sequences, but {shard.sequences} are recorded for it")
        yield pair


def index_member(corpus: str, set_folder: str, plan: MemberPlan, source: MemberSource) -> MemberReport:
    """Builds and writes the indices of one member of an index set, unless its receipt says that they are there.

    Args:
        corpus: folder or URL of the corpus.
        set_folder: folder or URL of the index set in it.
        plan: the member.
        source: its data.

    Raises:
        CorpusError: a shard holds another number of sequences than recorded.
        DataError: the member is too short for a sample.
        FormatError: a shard is damaged.
        StorageError: a file cannot be read or written.
    """
    receipt = member_receipt(corpus, set_folder, plan)
    if receipt is not None:
        return parse_member_report(receipt.result)
    tokens = source_tokens(corpus, source, plan.start, plan.end)
    report = make_member(set_folder, plan, partial(source_lengths, corpus, source), tokens)
    below = relative_to(set_folder, corpus)
    files = {f"{below}/{file}": facts for file, facts in report.files.items()}
    receipt = Receipt(digest=_digest(set_folder, plan), files=files, result=dataclasses.asdict(report))
    write_receipt(_receipt_path(corpus, set_folder, plan), receipt)
    return report


def member_receipt(corpus: str, set_folder: str, plan: MemberPlan) -> Receipt | None:
    """The receipt of a member of an index set; None where it is not there, or not for this plan."""
    return valid_receipt(corpus, _receipt_path(corpus, set_folder, plan), _digest(set_folder, plan))


def _receipt_path(corpus: str, set_folder: str, plan: MemberPlan) -> str:
    return item_receipt_path(corpus, "index", f"{base_name(set_folder)}/{plan.split}/{plan.source}")


def _digest(set_folder: str, plan: MemberPlan) -> str:
    return digest({"step": "index", "set": base_name(set_folder), "plan": plan})


def build_index_set(
    corpus: str,
    manifest: Manifest,
    settings: IndexSettings,
    say: Callable[[str], None] | None = None,
    *,
    workers: int = 1,
) -> IndexSet:
    """Builds the index set of a corpus for some settings, or gives the one that is there already.

    Members that an earlier build finished are not built again.

    Args:
        corpus: folder or URL of the corpus.
        manifest: its manifest.
        settings: what the set is for.
        say: takes a line for each step; None stays silent.
        workers: threads, each of which builds one member at a time. What takes long releases the interpreter lock, so
            they run side by side; memory is that of the largest members built at the same time.

    Raises:
        SettingsError: the settings cannot be followed for these sources, or a member would get no sample or exceed its
            `max_epochs`; found before anything is built. Or `workers` is below 1.
        DataError: a member is too short for a sample.
        StorageError: a file cannot be read or written.
    """
    if workers < 1:
        raise SettingsError(f"{workers} workers: at least 1 is needed")
    sources = index_sources(manifest.sources)
    folder = set_path(corpus, settings, sources)
    if exists(join(folder, SET_NAME)):
        return read_set(folder)
    token_bytes = manifest.token_dtype.itemsize

    def tokens(plan: MemberPlan) -> int:
        return range_tokens(corpus, manifest.source(plan.source), token_bytes, plan.start, plan.end)

    check_forecast(forecast_index(settings, sources, tokens))

    def build(plan: MemberPlan) -> MemberReport:
        report = index_member(corpus, folder, plan, sources[plan.place])
        if say is not None:
            say(f"{plan.split} of {plan.source}: {report.rows:,} samples, {report.epochs} epochs")
        return report

    pool = ThreadPoolExecutor(workers, thread_name_prefix="gristmill-index")
    try:
        reports = list(pool.map(build, plan_members(settings, sources)))
    finally:
        pool.shutdown(cancel_futures=True)
    blends = []
    for split in SPLITS:
        blend = build_blend(settings, split, [report for report in reports if report.split == split])
        if blend is not None:
            blends.append(write_blend(folder, split, blend))
    return commit_set(folder, settings, sources, reports, blends)
