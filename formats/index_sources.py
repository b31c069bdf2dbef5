"""The sources of a corpus as index sets see them: which bytes they hold, in which order, under which weight.

Builder and reader of an index set must name the same data in the same way, so both take it from here. A shard is
identified by the digests of both its files: the `.bin` says which tokens, the `.idx` where each sequence ends. Reading
no file, this trusts the manifest; `gristmill verify` is what compares it with the bytes.
"""

from collections.abc import Sequence

from gristmill.formats.fingerprint import digest
from gristmill.formats.index_plan import MemberSource, ShardIdentity
from gristmill.formats.manifest import Manifest, ShardEntry

__all__ = ["index_source", "index_sources", "shard_identity"]


def shard_identity(shard: ShardEntry) -> ShardIdentity:
    """A shard of a corpus by content; its path is the one in the manifest, relative to the corpus folder."""
    identity = digest({"bin": shard.bin.sha256, "idx": shard.idx.sha256})
    return ShardIdentity(path=shard.path, identity=identity, sequences=shard.documents)


def index_source(
    source_id: str, weight: float | None, max_epochs: float | None, shards: Sequence[ShardEntry]
) -> MemberSource:
    """One source, before or after its manifest is written.

    Args:
        source_id: its name.
        weight: its share of the training samples, or None.
        max_epochs: how often it may be repeated, or None.
        shards: its shards in order.
    """
    return MemberSource(
        id=source_id,
        weight=weight,
        max_epochs=max_epochs,
        shards=tuple(shard_identity(shard) for shard in shards),
    )


def index_sources(manifest: Manifest) -> tuple[MemberSource, ...]:
    """The sources of a finished corpus, in the order of its manifest."""
    return tuple(
        index_source(source.id, source.weight, source.max_epochs, source.shards) for source in manifest.sources
    )
