"""Decides which documents of a batch go on, by rules on the text itself.

Rules are named, and a document is counted under the first rule it breaks. No rule here changes a text. Lengths are in
code points, the unit a user sees.
"""

from collections.abc import Callable

from gristmill.formats.recipe import CleanSettings
from gristmill.pipelines.records import Batch, Place, RecordAccount

__all__ = ["clean_batch"]


def clean_batch(batch: Batch, settings: CleanSettings, account: RecordAccount, relative: str) -> Batch:
    """The documents of a batch that break no rule.

    Args:
        batch: the documents.
        settings: the source's rules.
        account: takes the count of every rule.
        relative: what messages call the part of the input that the batch is of.

    Returns:
        `batch` itself when every document passes.
    """
    shortest = settings.min_chars
    longest = settings.max_chars
    reasons: list[str | None] = []
    for text in batch.texts:
        length = len(text)
        if length < shortest:
            reasons.append("min_chars")
        elif longest is not None and length > longest:
            reasons.append("max_chars")
        elif text.isspace():
            reasons.append("blank")
        else:
            reasons.append(None)
    if not any(reasons):
        return batch
    texts, records = [], []
    for text, record, reason in zip(batch.texts, batch.records, reasons, strict=True):
        if reason is None:
            texts.append(text)
            records.append(record)
        else:
            account.drop(reason, _place(relative, record), text)
    return Batch(texts, records)


def _place(relative: str, record: int) -> Callable[[], Place]:
    return lambda: Place(relative, relative, f": record {record} of its split")
