"""Puts the batches of many small files together: every call behind costs as much for one text as for a hundred.

A batch that is large as it is stays as it is, and none grows beyond about a million characters by this, which is as
much as is read of a large file at once.
"""

from collections.abc import Iterable, Iterator

from gristmill.pipelines.records import Batch

__all__ = ["join_batches"]

_JOINED_CHARS = 1 << 20


def join_batches(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same texts in fewer batches, where files are small.

    Args:
        batches: batches in order, all with addresses or none, and so with what is carried.
    """
    held: list[Batch] = []
    characters = 0
    for batch in batches:
        size = sum(map(len, batch.texts))
        if held and characters + size > _JOINED_CHARS:
            yield _joined(held)
            held, characters = [], 0
        held.append(batch)
        characters += size
    if held:
        yield _joined(held)


def _joined(batches: list[Batch]) -> Batch:
    first = batches[0]
    if len(batches) == 1:
        return first
    return Batch(
        [text for batch in batches for text in batch.texts],
        [record for batch in batches for record in batch.records],
        None if first.addresses is None else [one for batch in batches for one in batch.addresses or ()],
        None if first.carried is None else [one for batch in batches for one in batch.carried or ()],
    )
