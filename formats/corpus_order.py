"""An order for a prepared corpus that has no index set for it yet: which settings, and the arrays in memory.

A corpus says how many tokens its own order was made for; another sequence length asks for as many. Who may write builds
an index set; everybody else builds the arrays of the split that is wanted, which are the same, and keeps them.
"""

import dataclasses

from gristmill.formats.adopted_order import AdoptedOrder, order_of
from gristmill.formats.adopted_plan import OrderPlan, OrderRequest
from gristmill.formats.caches import Caches
from gristmill.formats.data_sources import DataSource
from gristmill.formats.data_spec import DataEntry
from gristmill.formats.index_plan import IndexSettings, SplitRequest, plan_members
from gristmill.formats.index_sources import index_sources, shard_identity
from gristmill.formats.manifest import Manifest, SourceEntry
from gristmill.formats.recipe import DEFAULT_SEED, DEFAULT_SPLITS
from gristmill.formats.storage import join
from gristmill.formats.token_shards import TokenShard

__all__ = ["order_in_memory", "settings_like"]


def settings_like(
    own: IndexSettings | None, *, sequence_length: int, seed: int | None, split: str, samples: int | None
) -> IndexSettings:
    """Settings for another length, seed or size of a corpus.

    Args:
        own: settings of the corpus's own order: splits, and as many tokens of each, rounded up to whole samples; or
            as many epochs. None takes Megatron's splits and one pass.
        sequence_length: tokens per sample.
        seed: of the order; None takes that of `own`, else Megatron's.
        split: the split that `samples` is about.
        samples: number of samples of that split; None leaves it at what `own` says.

    Raises:
        SettingsError: a value is out of range.
    """
    base = own or IndexSettings(sequence_length=sequence_length, seed=DEFAULT_SEED, splits=DEFAULT_SPLITS)

    def resized(count: int) -> int:
        return -(-count * base.sequence_length // max(1, sequence_length))  # an impossible length is refused below

    def request(name: str) -> SplitRequest:
        wanted = base.request(name)
        if name == split and samples is not None:
            return dataclasses.replace(wanted, samples=samples, epochs=None)
        return wanted if wanted.samples is None else dataclasses.replace(wanted, samples=resized(wanted.samples))

    return dataclasses.replace(
        base,
        sequence_length=sequence_length,
        seed=base.seed if seed is None else seed,
        train=request("train"),
        valid=request("valid"),
        test=request("test"),
        schedule=tuple(dataclasses.replace(phase, from_sample=resized(phase.from_sample)) for phase in base.schedule),
    )


def order_in_memory(folder: str, manifest: Manifest, settings: IndexSettings, split: str) -> AdoptedOrder:
    """The order of a split of a corpus, built in memory; equal to that of an index set for the same settings.

    Args:
        folder: path or URL of the corpus.
        manifest: its manifest.
        settings: what an index set would be built for.
        split: ``train``, ``valid`` or ``test``.

    Raises:
        SettingsError: the settings cannot be followed for these sources.
        DataError: a member has too few tokens for one sample.
        CorpusError: the split has no samples, or a shard is not the one that the manifest names.
    """
    plan = plan_members(settings, index_sources(manifest.sources))
    request = OrderRequest(
        sequence_length=settings.sequence_length,
        seed=settings.seed,
        split=split,
        splits=settings.splits,
        samples=settings.request(split).samples,
        drop_last_partial=settings.request(split).drop_last_partial,
    )
    order = OrderPlan(
        request=request,
        settings=settings,
        sources=tuple(_data_source(folder, manifest, source) for source in manifest.sources),
        members=plan.split(split),
        left_out=tuple(entry for entry in plan.left_out if entry.split == split),
        unsized=None,
    )
    return order_of(order, Caches())


def _data_source(folder: str, manifest: Manifest, source: SourceEntry) -> DataSource:
    shards = tuple(
        TokenShard(
            prefix=join(folder, shard.path),
            dtype=manifest.dtype,
            tokens=shard.tokens,
            sequences=shard.documents,
            identity=shard_identity(shard).identity,
        )
        for shard in source.shards
    )
    entry = DataEntry(paths=tuple(shard.prefix for shard in shards), weight=source.weight)
    return DataSource(id=source.id, entry=entry, shards=shards, raw=())
