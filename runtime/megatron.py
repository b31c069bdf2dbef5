"""Streams over data that anyone made: `.bin/.idx` pairs, folders of them, raw token shards, in Megatron's order.

Nothing is converted. Indices come from a cache folder or are built at once, the same on every host; only one process
writes them down, and none waits for another. What a start costs is one pass over the index files of the data, the
price of noticing when they changed; tokens are not read.
"""

import os.path
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from gristmill.formats.adopted_order import AdoptedOrder, StoredMember, order_of
from gristmill.formats.adopted_plan import OrderRequest, plan_order
from gristmill.formats.blend_store import BlendRequest, find_blend
from gristmill.formats.caches import Caches, ForeignCaches
from gristmill.formats.data_sources import DataSource, agreed_ids, open_data_sources
from gristmill.formats.data_spec import DataEntry
from gristmill.formats.documents import Unit, check_unit
from gristmill.formats.errors import CorpusError, GristmillError
from gristmill.formats.index_blend import BlendIndices
from gristmill.formats.index_order import order_fingerprint, order_history
from gristmill.formats.indices import MemberIndices
from gristmill.formats.order_facts import order_facts
from gristmill.runtime.adopted_data import absolute_entry, entries_of, folder_of, phases_of, shards_of, warn_without_eod
from gristmill.runtime.backends import Backend
from gristmill.runtime.object_storage import ObjectStorage, StorageMode, object_storage
from gristmill.runtime.presets import Parity, order_departures, warn_departures
from gristmill.runtime.process import process_number
from gristmill.runtime.reader import RowReader
from gristmill.runtime.remote_access import RemoteAccess, open_access
from gristmill.runtime.row_index import Member, RowIndex
from gristmill.runtime.streams import MegatronStream, PaddedMegatronStream
from gristmill.runtime.whole_number import whole_number, whole_or_none

__all__ = ["open_megatron"]


def open_megatron(
    spec: str | os.PathLike[str] | Sequence[DataEntry],
    *,
    sequence_length: int,
    eod_id: int | None = None,
    seed: int = 1234,
    samples: int | None = None,
    epochs: int | None = None,
    schedule: Mapping[int, Sequence[float]] | None = None,
    split: str = "train",
    splits: str | None = None,
    granularity: str = "sequence",
    vocabulary: int | None = None,
    surplus: float = 0.005,
    drop_last_partial: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
    blend_cache_dir: str | os.PathLike[str] | None = None,
    blend_index_dir: str | os.PathLike[str] | None = None,
    foreign_caches: ForeignCaches = "use",
    parity: Parity | None = None,
    process_index: int | None = None,
    max_open_shards: int | None = None,
    backend: Backend = "auto",
    storage: StorageMode | ObjectStorage = "auto",
) -> MegatronStream:
    """Opens data by prefix, folder, manifest of raw shards, or a line of several, as one stream in Megatron's order.

    The rows are those of Megatron's GPTDataset (one entry) or BlendedDataset (several) for the same data, length, seed,
    split and number of samples; with ``granularity="document"`` those of MaxText's reader with `mmap_split_sentences`.

    Args:
        spec: the data: ``"[index_folder|]path[:path...][,weight][;...]"``, see `gristmill.formats.data_spec`; a path
            object; or entries.
        sequence_length: L; a row holds one token more.
        eod_id: id that closes a document; None only for raw shards, whose manifest names it.
        seed: of every shuffle.
        samples: number of rows; None takes whole passes.
        epochs: passes over the data where `samples` is None; None is one.
        schedule: later weights of the training split: for each sample from which they hold, one weight for each entry.
            The blend begins anew there, see `gristmill.formats.schedule`; up to the first, those of `spec` hold.
        split: ``train``, ``valid`` or ``test``.
        splits: proportions of the three, for example ``"969,30,1"``; None gives `split` all of the data.
        granularity: ``sequence`` shuffles the sequences of an index, ``document`` whole documents, where some have
            several sequences.
        vocabulary: bound of the ids; rows with another id are refused when fields are made. None: unknown, or that of
            raw shards' manifests.
        surplus: share that a weighted member is built for beyond its target.
        drop_last_partial: whether the tokens behind the last whole row of an entry are left out. Without (Megatron's
            ``drop_last_partial_validation_sequence=False``; for ``valid`` and ``test`` alone) they are one more row,
            padded at its end, and the stream has a `valid_length`.
        cache_dir: folder or URL that keeps indices; None keeps none. An index folder in `spec` goes before it.
        blend_cache_dir: folder that keeps the blend; None takes `cache_dir`.
        blend_index_dir: folder of a blend made beforehand, as `gristmill blend` writes it; goes before
            `blend_cache_dir`.
        foreign_caches: ``use`` takes indices that Megatron or MaxText left in these folders when they fit, ``ignore``
            does not look for them, ``require`` refuses to build new ones.
        parity: warn of each setting of the order that departs from what a program, ``megatron`` or ``maxtext``, does
            with nothing set: its seed, granularity and surplus. Changes no row. For the fields, see `parity_options`.
        process_index: number of this process; 0 writes what it built. None takes JAX's, or 0.
        max_open_shards: how many shards are kept open; None takes `gristmill.runtime.shards.default_open_limit`.
        backend: how local files are read: ``mmap`` through maps, ``pread`` by ranged reads, ``auto`` by ranged reads on
            network and user-space file systems only.
        storage: how files on an object store are read: ``cache``, ``ranges`` or ``auto``, or all options, the folder of
            the cache among them (`cache_dir` here keeps indices); see `ObjectStorage`.

    Raises:
        SettingsError: an argument breaks a rule.
        InputError: a path leads to no data.
        DataError: the data are too few for what is asked.
        FormatError: a file is damaged, or contradicts its manifest.
        CorpusError: the split has no rows, or stored indices are required and none fit.
        StorageError: a file cannot be read.

    Warns:
        UserWarning: a setting departs from those of `parity`; no document ends with `eod_id`; stored indices are
            damaged or do not fit; new ones cannot be kept.
    """
    if parity is not None:
        warn_departures(parity, order_departures(parity, seed=seed, granularity=granularity, surplus=surplus))
    eod_id, vocabulary = whole_or_none("eod_id", eod_id), whole_or_none("vocabulary", vocabulary)
    opening = _Opening(
        entries=tuple(absolute_entry(entry) for entry in entries_of(spec)),
        request=OrderRequest(
            sequence_length=whole_number("sequence_length", sequence_length),
            seed=whole_number("seed", seed),
            split=split,
            splits=splits,
            samples=whole_or_none("samples", samples),
            epochs=whole_or_none("epochs", epochs),
            surplus=surplus,
            drop_last_partial=drop_last_partial,
            schedule=phases_of(schedule),
        ),
        unit=check_unit(granularity),
        eod_id=eod_id,
        vocabulary=vocabulary,
        caches=Caches(
            folder=folder_of(cache_dir),
            blend_cache=folder_of(blend_cache_dir),
            blend_index=folder_of(blend_index_dir),
            foreign=foreign_caches,
            write=process_number(process_index) == 0,
        ),
        storage=object_storage(storage),
    )
    sources = opening.sources()
    eod, bound = agreed_ids(sources, eod_id, vocabulary)
    warn_without_eod(sources, eod)
    access = opening.access(sources)
    with nullcontext() if access is None else access.arrays():
        order = order_of(plan_order(sources, opening.request), opening.caches)
    fingerprint = order_fingerprint(order.index_set, split)
    reopen = replace(opening, fingerprint=fingerprint, stored=_stored(order))
    index = replace(_row_index(order, opening.request), access=access)
    reader = RowReader(reopen, index=index, max_open_shards=max_open_shards, backend=backend)
    kind = MegatronStream if drop_last_partial else PaddedMegatronStream
    return kind(
        name=", ".join(source.id for source in sources),
        split=split,
        fingerprint=fingerprint,
        eod_id=eod,
        vocabulary=bound,
        left_out=order.index_set.order(split).left_out,
        reader=reader,
        history=order_history(order.index_set, split),
        facts=order_facts(order.index_set, split),
    )


@dataclass(frozen=True, slots=True)
class _StoredOrder:
    """Where all arrays of an order lie."""

    members: tuple[StoredMember, ...]
    blend: tuple[str, BlendRequest] | None
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """All that a stream was opened with; called, it opens the same rows in this process or another.

    Where the indices were kept, the other process only maps them; otherwise it builds them once more.
    """

    entries: tuple[DataEntry, ...]
    request: OrderRequest
    unit: Unit
    eod_id: int | None
    vocabulary: int | None
    caches: Caches
    storage: ObjectStorage = field(default_factory=ObjectStorage)
    fingerprint: str = ""
    stored: _StoredOrder | None = None

    def sources(self, *, identify: bool = True) -> list[DataSource]:
        return open_data_sources(
            self.entries,
            unit=self.unit,
            eod_id=self.eod_id,
            vocabulary=self.vocabulary,
            cache_folder=self.caches.folder,
            write=self.caches.write,
            identify=identify,
        )

    def access(self, sources: Sequence[DataSource]) -> RemoteAccess | None:
        """How their files are read; None where all are local."""
        return open_access(self.storage, [shard for source in sources for shard in shards_of(source)])

    def __call__(self) -> RowIndex:
        if self.stored is not None:
            try:
                return self._map(self.stored)
            except GristmillError:
                pass  # gone meanwhile: found out, or told properly, below
        sources = self.sources()
        access = self.access(sources)
        with nullcontext() if access is None else access.arrays():
            order = order_of(plan_order(sources, self.request), replace(self.caches, write=False))
        if order_fingerprint(order.index_set, self.request.split) != self.fingerprint:
            raise CorpusError(
                f"{self.entries[0].paths[0]}: the data changed since the stream was opened; open it again"
            )
        return replace(_row_index(order, self.request), access=access)

    def _map(self, stored: _StoredOrder) -> RowIndex:
        sources = self.sources(identify=False)
        access = self.access(sources)
        blend = None
        with nullcontext() if access is None else access.arrays():
            members = tuple(_member(sources[one.plan.place], one.open()) for one in stored.members)
            if stored.blend is not None:
                folder, request = stored.blend
                blend, _ = find_blend(folder, request)
                if blend is None:
                    raise CorpusError(f"{folder}: the blend is gone")
        return replace(_index_of(members, blend, stored.samples, self.request), access=access)


def _stored(order: AdoptedOrder) -> _StoredOrder | None:
    """Where an order's arrays lie; None when one of them is in memory alone."""
    stored = [member.stored for member in order.members if member.stored is not None]
    if len(stored) < len(order.members) or (order.blend is not None and order.stored_blend is None):
        return None
    (split,) = order.index_set.orders
    return _StoredOrder(tuple(stored), order.stored_blend, split.samples)


def _row_index(order: AdoptedOrder, request: OrderRequest) -> RowIndex:
    members = tuple(_member(order.sources[member.report.place], member.indices) for member in order.members)
    (split,) = order.index_set.orders
    return _index_of(members, order.blend, split.samples, request)


def _index_of(members: tuple[Member, ...], blend: BlendIndices | None, rows: int, request: OrderRequest) -> RowIndex:
    return RowIndex(
        members=members,
        dataset_index=None if blend is None else blend.dataset_index,
        dataset_sample_index=None if blend is None else blend.dataset_sample_index,
        rows=rows,
        sequence_length=request.sequence_length,
        extra=1,
        partial=not request.drop_last_partial,
    )


def _member(source: DataSource, indices: MemberIndices) -> Member:
    return Member(source=source.id, shards=shards_of(source), indices=indices)
