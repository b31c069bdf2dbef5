"""What decides the rows of a split, told in a few values for people: kept beside a state, shown when it is refused.

The fingerprint alone decides whether two streams are the same. A digest cannot say what differs, so these values go
along; they are as short as telling the usual mistakes apart allows, and nothing is ever decided by them.
"""

from typing import Any

from gristmill.formats.fingerprint import ORDER_VERSION, digest, short
from gristmill.formats.index_order import IndexSet, member_value, order_history
from gristmill.formats.split import canonical_split

__all__ = ["order_facts"]

_MOST_SOURCES = 24
"""So many are told one by one: some 2 kB of a state. More are told as one."""


def order_facts(index_set: IndexSet, split: str) -> dict[str, Any]:
    """Length, seed, split, shards, epochs and weights of an order, as small JSON values.

    Raises:
        CorpusError: the split has no samples.
    """
    history = order_history(index_set, split)
    order, settings = index_set.order(split), index_set.settings
    shares = [None] * len(order.members) if order.blend is None else list(order.blend.weights)
    sources: dict[str, Any] = {}
    for member, share in zip(order.members, shares, strict=True):
        value = member_value(index_set.sources, member)
        name = member.source if member.source not in sources else f"{member.source}#{member.place}"
        sources[name] = {"shards": len(value["shards"]), "content": short(digest(value["shards"]))}
        if share is not None:
            sources[name]["weight"] = float(f"{share:.6g}")
        sources[name]["epochs"] = [member.epochs - 1, 1] if member.separate else member.epochs  # shuffled by themselves
    facts = {
        "kind": "megatron",
        "order_version": ORDER_VERSION,
        "sequence_length": settings.sequence_length,
        "seed": settings.seed,
        "split": split,
        "splits": canonical_split(settings.splits),
        "sources": sources if len(sources) <= _MOST_SOURCES else {"count": len(sources), "all": short(digest(sources))},
    }
    if not settings.request(split).drop_last_partial:
        facts["drop_last_partial"] = False
    if history:
        facts["changed_from_row"] = [change.from_sample for change in history]
    return facts
