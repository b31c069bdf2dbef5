"""Receipts: small files that say a stage or an item is finished, for which settings, and with what result.

A receipt is written after the files it vouches for. It holds the digest of everything that decided them; a rerun
that arrives at another digest does the work again, one that arrives at the same digest skips it after checking that
the files are still there with their sizes. Content is checked by `gristmill verify`, which reads everything.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from gristmill.formats.errors import FormatError, StorageError
from gristmill.formats.fingerprint import pretty_json
from gristmill.formats.storage import FileFacts, exists, file_size, join, read_bytes, remove, write_bytes

__all__ = [
    "item_receipt_path",
    "read_receipt",
    "Receipt",
    "stage_receipt_path",
    "STAGES_FOLDER",
    "valid_receipt",
    "withdraw",
    "write_receipt",
]

STAGES_FOLDER = "_stages"
"""Folder of the receipts inside a corpus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """That a piece of work is finished.

    Attributes:
        digest: digest of everything that decides the result.
        files: path relative to the corpus folder of each file it vouches for, with size and digest.
        settings: what went into the digest, as far as it helps to say what changed.
        result: counts and other facts that later steps need; JSON values only.
        cleared: whether the files that it vouched for were removed on purpose, as nothing needs them any more.
        samples: the same as `files` of those that people look at and no stage reads; the work stands without them.
    """

    digest: str
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    cleared: bool = False
    samples: Mapping[str, FileFacts] = field(default_factory=dict)

    def facts_below(self, folder: str) -> dict[str, dict[str, Any]]:
        """The files of a folder of the corpus by path, with size and digest as JSON values; `folder` ends in ``/``."""
        return {name: asdict(facts) for name, facts in self.files.items() if name.startswith(folder)}


def stage_receipt_path(corpus: str, stage: str) -> str:
    """Path of a stage's receipt."""
    return join(corpus, STAGES_FOLDER, f"{stage}.json")


def item_receipt_path(corpus: str, step: str, item: str) -> str:
    """Path of an item's receipt; `item` may hold ``/``."""
    return join(corpus, STAGES_FOLDER, "items", step, f"{item}.json")


def write_receipt(path: str, receipt: Receipt) -> None:
    """Publishes a receipt."""
    value = {entry.name: getattr(receipt, entry.name) for entry in fields(receipt)}
    for name in ("cleared", "samples"):
        if not value[name]:
            del value[name]
    write_bytes(path, pretty_json(value))


def read_receipt(path: str) -> Receipt | None:
    """The receipt at `path`, or None when there is none.

    Raises:
        FormatError: the file is no receipt.
    """
    if not exists(path):
        return None
    try:
        value = json.loads(read_bytes(path))
        return Receipt(
            digest=value["digest"],
            files=_facts(value["files"]),
            settings=value["settings"],
            result=value["result"],
            cleared=value.get("cleared", False),
            samples=_facts(value.get("samples", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path}: damaged receipt ({type(error).__name__}: {error}); remove it to redo its work"
        ) from error


def _facts(files: Mapping[str, Any]) -> dict[str, FileFacts]:
    return {name: FileFacts(int(facts["size"]), str(facts["sha256"])) for name, facts in files.items()}


def valid_receipt(corpus: str, path: str, digest: str) -> Receipt | None:
    """The receipt at `path` if it is for `digest` and all its files are there with their sizes; else None.

    A damaged receipt counts as none: its work is done again.
    """
    try:
        receipt = read_receipt(path)
        if receipt is None or receipt.digest != digest:
            return None
        for name, facts in receipt.files.items():
            if file_size(join(corpus, name)) != facts.size:
                return None
    except (FormatError, StorageError):
        return None
    return receipt


def withdraw(path: str) -> None:
    """Removes a receipt before its work is done anew."""
    remove(path)
