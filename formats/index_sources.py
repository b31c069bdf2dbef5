"""The sources of a corpus as index sets see them: which bytes they hold, in which order, under which weight.

Builder and reader of an index set must name the same data in the same way, so both take it from here. A shard is
identified by the digests of both its files: the `.bin` says which tokens, the `.idx` where each sequence ends. Reading
no file, this trusts the manifest; `gristmill verify` is what compares it with the bytes.
"""

from collections.abc import Sequence

from gristmill.formats.fingerprint import digest
from gristmill.formats.index_plan import MemberSource, ShardIdentity
from gristmill.formats.manifest import ShardEntry, SourceEntry

__all__ = ["index_sources", "shard_identity"]


def shard_identity(shard: ShardEntry) -> ShardIdentity:
    """A shard of a corpus by content; its path is the one in the manifest, relative to the corpus folder."""
    identity = digest({"bin": shard.bin.sha256, "idx": shard.idx.sha256})
    return ShardIdentity(path=shard.path, identity=identity, sequences=shard.documents)


def index_sources(sources: Sequence[SourceEntry]) -> tuple[MemberSource, ...]:
    """The sources of a manifest, before or after it is written, in its order."""
    return tuple(
        MemberSource(
            id=source.id,
            weight=source.weight,
            max_epochs=source.max_epochs,
            shards=tuple(shard_identity(shard) for shard in source.shards),
        )
        for source in sources
    )
