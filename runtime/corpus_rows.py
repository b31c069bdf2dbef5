"""The rows of a corpus: from its manifest and an index set to what decides each row, opened, built or opened again.

Apart from how an index set is chosen, which is `gristmill.runtime.corpus`. What opens rows again in another process
takes paths and keys alone, so it can be pickled with a stream.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.corpus_order import order_in_memory
from gristmill.formats.errors import CorpusError, StorageError
from gristmill.formats.index_blend import BlendIndices, grow_blend
from gristmill.formats.index_build import build_index_set
from gristmill.formats.index_order import IndexSet, order_fingerprint, source_value
from gristmill.formats.index_plan import IndexSettings
from gristmill.formats.index_set import INDICES_FOLDER, SET_NAME, read_set, set_path
from gristmill.formats.index_sources import index_sources
from gristmill.formats.indexed import bin_path, idx_path
from gristmill.formats.indices import MemberIndices
from gristmill.formats.manifest import Manifest, SourceEntry, read_manifest
from gristmill.formats.storage import FileFacts, base_name, exists, is_local, join
from gristmill.runtime.object_storage import ObjectStorage
from gristmill.runtime.remote_access import RemoteAccess
from gristmill.runtime.row_index import Member, RowIndex
from gristmill.runtime.shards import Shard

__all__ = [
    "build_rows",
    "foreign_source",
    "open_rows",
    "reopen_built_rows",
    "reopen_rows",
    "shard_facts",
    "source_shards",
    "TooFewError",
]


def foreign_source(manifest: Manifest, index_set: IndexSet) -> str | None:
    """The first source of an index set that is not in the corpus, or in it with other shards."""
    present = {source.id: source_value(source)["shards"] for source in index_sources(manifest.sources)}
    return next((one.id for one in index_set.sources if present.get(one.id) != source_value(one)["shards"]), None)


class TooFewError(CorpusError):
    """An index set holds fewer rows than are wanted."""

    def __init__(self, message: str, samples: int) -> None:
        super().__init__(message)
        self.samples = samples


def _more(
    index_set: IndexSet, split: str, blend: BlendIndices | None, samples: int
) -> tuple[NDArray[np.int16], NDArray[np.int64]] | None:
    """The rows of a blend behind the stored ones, where so many are wanted.

    Raises:
        TooFewError: the set does not hold so many.
    """
    order = index_set.order(split)
    where = f"{index_set.folder}: {split}"
    if blend is None:
        held = order.members[0].rows
        if samples > held:
            raise TooFewError(f"{where}: {samples} samples asked for, but the stored indices hold {held}", samples)
        return None
    if samples <= len(blend.dataset_index):
        return None
    try:
        return grow_blend(split, blend, order.members, samples)
    except CorpusError as error:
        raise TooFewError(f"{index_set.folder}: {error}", samples) from error


def open_rows(
    folder: str,
    manifest: Manifest,
    index_set: IndexSet,
    split: str,
    samples: int | None = None,
    storage: ObjectStorage | None = None,
) -> RowIndex:
    """Opens the arrays of a split.

    Args:
        folder: of the corpus, a path or URL.
        manifest: its manifest.
        index_set: an index set of it.
        split: ``train``, ``valid`` or ``test``.
        samples: number of rows; None takes that of the index set.
        storage: how files on an object store are read; None takes the defaults.

    Raises:
        CorpusError: the set was built from other shards or without the extra token.
        TooFewError: the stored arrays do not reach so far.
        FormatError: an array is damaged.
    """
    foreign = foreign_source(manifest, index_set)
    if foreign is not None:
        raise CorpusError(
            f"{index_set.folder}: built from other shards of source {foreign!r} than {folder} holds now; build the "
            "indices again: `gristmill prepare` on the recipe does it"
        )
    if not index_set.settings.add_extra_token:
        raise CorpusError(
            f"{index_set.folder}: built without the extra token, so the last input of a row has no target; build an "
            "index set with it"
        )
    order = index_set.order(split)
    order.require_samples()
    files: dict[str, FileFacts] = {}
    for report in (*order.members, *(() if order.blend is None else (order.blend,))):
        files |= {join(index_set.folder, name): facts for name, facts in report.files.items()}
    access = _access(folder, manifest, [report.source for report in order.members], files, storage)
    with nullcontext() if access is None else access.arrays():
        blend = index_set.open_blend(split)
        more = None if samples is None else _more(index_set, split, blend, samples)
        members = {report.source: index_set.open_member(split, report.source) for report in order.members}
    rows = order.samples if samples is None else samples
    return _index(folder, manifest, index_set.settings, split, members, blend, rows, more, access)


def _access(
    folder: str,
    manifest: Manifest,
    sources: Sequence[str],
    files: Mapping[str, FileFacts],
    storage: ObjectStorage | None,
) -> RemoteAccess | None:
    """How sources and index files of a corpus on an object store are read; None for a local one."""
    if is_local(folder):
        return None
    entries = [manifest.source(source) for source in sources]
    shards = [shard for entry in entries for shard in source_shards(folder, manifest, entry)]
    facts = {**files, **shard_facts(folder, entries)}
    return RemoteAccess(ObjectStorage() if storage is None else storage, shards, facts, list(files))


def shard_facts(folder: str, sources: Sequence[SourceEntry]) -> dict[str, FileFacts]:
    """Size and digest of every file of the shards of sources, by path or URL."""
    facts: dict[str, FileFacts] = {}
    for shard in (shard for source in sources for shard in source.shards):
        prefix = join(folder, shard.path)
        facts |= {bin_path(prefix): shard.bin, idx_path(prefix): shard.idx}
    return facts


def _index(
    folder: str,
    manifest: Manifest,
    settings: IndexSettings,
    split: str,
    members: Mapping[str, MemberIndices],
    blend: BlendIndices | None,
    rows: int,
    more: tuple[NDArray[np.int16], NDArray[np.int64]] | None = None,
    access: RemoteAccess | None = None,
) -> RowIndex:
    return RowIndex(
        members=tuple(
            Member(source=source, shards=source_shards(folder, manifest, manifest.source(source)), indices=indices)
            for source, indices in members.items()
        ),
        dataset_index=None if blend is None else blend.dataset_index,
        dataset_sample_index=None if blend is None else blend.dataset_sample_index,
        rows=rows,
        more=more,
        sequence_length=settings.sequence_length,
        extra=int(settings.add_extra_token),
        partial=not settings.request(split).drop_last_partial,
        access=access,
    )


def source_shards(folder: str, manifest: Manifest, source: SourceEntry) -> tuple[Shard, ...]:
    """The shards of a source as readers open them."""
    return tuple(
        Shard(
            prefix=join(folder, shard.path),
            name=shard.path,
            dtype=manifest.dtype,
            sequences=shard.documents,
            tokens=shard.tokens,
        )
        for shard in source.shards
    )


def reopen_rows(
    folder: str, name: str, split: str, fingerprint: str, samples: int | None, storage: ObjectStorage | None = None
) -> RowIndex:
    """Opens the index of a stream that was opened before, in this process or another."""
    index_set = read_set(join(folder, INDICES_FOLDER, name))
    if order_fingerprint(index_set, split) != fingerprint:
        raise CorpusError(f"{folder}: {split}: prepared anew since the stream was opened; open the corpus again")
    return open_rows(folder, read_manifest(folder), index_set, split, samples, storage)


def build_rows(
    folder: str,
    manifest: Manifest,
    settings: IndexSettings,
    split: str,
    *,
    write: bool,
    storage: ObjectStorage | None = None,
) -> tuple[IndexSet, RowIndex]:
    """An index set for some settings: the one that is there by now, else a new one, written or in memory."""
    if write:
        try:
            built = build_index_set(folder, manifest, settings)
            built.order(split).require_samples()
            return built, open_rows(folder, manifest, built, split, storage=storage)
        except StorageError as error:
            warnings.warn(
                f"the index set cannot be kept: {error}; it is in memory and will be built at every start: make "
                f"{join(folder, INDICES_FOLDER)} writable, or run `gristmill index` where it is",
                stacklevel=3,
            )
    order = order_in_memory(folder, manifest, settings, split)
    members = {member.report.source: member.indices for member in order.members}
    rows = order.index_set.order(split).samples
    access = _access(folder, manifest, list(members), {}, storage)
    index = _index(folder, manifest, settings, split, members, order.blend, rows, access=access)
    return order.index_set, index


def reopen_built_rows(
    folder: str, settings: IndexSettings, split: str, fingerprint: str, storage: ObjectStorage | None = None
) -> RowIndex:
    """Opens the index of a stream whose index set was built for it, from the disk where it is there by now."""
    manifest = read_manifest(folder)
    stored = set_path(folder, settings, index_sources(manifest.sources))
    if exists(join(stored, SET_NAME)):
        return reopen_rows(folder, base_name(stored), split, fingerprint, None, storage)
    found, index = build_rows(folder, manifest, settings, split, write=False, storage=storage)
    if order_fingerprint(found, split) != fingerprint:
        raise CorpusError(f"{folder}: {split}: prepared anew since the stream was opened; open the corpus again")
    return index
