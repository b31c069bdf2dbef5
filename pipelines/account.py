"""The account of a run: for every source and stage, what came in, what went on, and what was left out by which reason.

It says in one place what the receipts of the stages say in several, and is written with the manifest. Nothing reads it
but people; the totals were checked when the stages were closed.
"""

from typing import Any

from gristmill.formats.fingerprint import pretty_json
from gristmill.formats.storage import write_bytes
from gristmill.pipelines.job import Job
from gristmill.pipelines.stages import require_stage

__all__ = ["ACCOUNT_NAME", "account_of", "write_account"]

ACCOUNT_NAME = "report/account.json"
"""Path of the account inside a corpus."""

_COPIES = ("exact_duplicate", "near_duplicate")


def account_of(job: Job) -> dict[str, Any]:
    """The account, by source and stage, as a JSON value.

    Raises:
        CorpusError: a stage is not finished.
    """
    download, clean, tokenize = (require_stage(job, stage).result for stage in ("download", "clean", "tokenize"))
    account = {}
    for source, encoded in zip(job.recipe.sources, tokenize["sources"], strict=True):
        stages: dict[str, Any] = {"download": dict(download["sources"][source.id])}
        records = encoded["records"]
        if source.clean.enabled:
            found = clean["sources"][source.id]
            stages["clean"] = {
                "documents_in": found["records"],
                "documents_kept": found["kept"],
                **found["text"],
                "bad": found["bad"],
                "dropped": found["dropped"],
                "counted": found["counted"],
                "removal_rate": _removal_rate(found),
            }
            records = found["kept"]
        before = stages["clean"]["dropped"] if source.clean.enabled else {}
        stages["tokenize"] = {
            "documents_in": records,
            "documents_kept": encoded["kept"],
            "dropped": {
                reason: count - before.get(reason, 0)
                for reason, count in encoded["dropped"].items()
                if count != before.get(reason, 0)
            },
            "counted": {
                name: encoded["counted"][name] for name in ("control_hits", "eod_in_text") if name in encoded["counted"]
            },
            "shards": len(encoded["shards"]),
            "tokens": sum(shard["tokens"] for shard in encoded["shards"]),
            "bytes": sum(shard["bin"]["size"] + shard["idx"]["size"] for shard in encoded["shards"]),
        }
        account[source.id] = stages
    return {"sources": account}


def _removal_rate(found: dict[str, Any]) -> dict[str, float]:
    """Shares that deduplication removed, of the documents that broke no rule, and of the characters of those left."""
    dropped, kept = found["dropped"], found["kept"]
    reasons = [reason for reason in dropped if reason in _COPIES or reason.partition(".")[0] == "paragraphs"]
    documents = kept + sum(dropped[reason] for reason in reasons)
    rates = {reason: round(dropped[reason] / documents, 6) for reason in reasons}
    gone = found["counted"].get("paragraphs.characters_removed", 0)
    if gone:
        rates["paragraphs.characters_removed"] = round(gone / (gone + found["text"]["characters_kept"]), 6)
    return rates


def write_account(job: Job) -> None:
    """Writes the account."""
    write_bytes(job.path(ACCOUNT_NAME), pretty_json(account_of(job)))
