"""The indices of one member of adopted data in a folder: three arrays and a record, named by what they were built from.

    <key>-document_index.npy  <key>-sample_index.npy  <key>-shuffle_index.npy  <key>-index.json

The names are those of MaxText's reader; the key is the content address of data, options and rules, 32 digits of it in
the name and all of it in the record, which is written last: arrays without it are unfinished. One folder can hold the
indices of any number of data sets and lengths; nothing in it is ever changed, so nobody needs a lock.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gristmill.formats.errors import FormatError, StorageError
from gristmill.formats.fingerprint import ORDER_VERSION, digest, pretty_json
from gristmill.formats.index_member import build_member
from gristmill.formats.index_plan import MemberPlan, MemberSource
from gristmill.formats.index_writer import IndexWriter
from gristmill.formats.indices import EpochPlan, Lengths, MemberIndices, sample_index_dtype, shuffle_index_dtype
from gristmill.formats.npy import open_npy
from gristmill.formats.storage import base_name, exists, join, read_bytes, write_bytes

__all__ = [
    "build_stored",
    "index_layout",
    "INDICES",
    "load_member",
    "member_facts",
    "member_prefix",
    "MEMBER_STORE_VERSION",
    "refuse_ends",
]

MEMBER_STORE_VERSION = 1
"""Version of the files' form; part of every key."""

INDICES = ("document_index", "sample_index", "shuffle_index")
"""Names of the three arrays."""

_FORMAT = "gristmill-member-index"
_NAME_DIGITS = 32


def member_facts(plan: MemberPlan, epochs: EpochPlan, source: MemberSource) -> dict[str, Any]:
    """All that decides the arrays of a member, as JSON values; their digest is the key.

    The number of samples asked for is not part of it: the epochs stand for it, and are the same for many numbers.
    """
    return {
        "format": _FORMAT,
        "version": MEMBER_STORE_VERSION,
        "order_version": ORDER_VERSION,
        "sequence_length": epochs.sequence_length,
        "seed": plan.seed,
        "add_extra_token": epochs.add_extra_token,
        "start": plan.start,
        "end": plan.end,
        "tokens": epochs.tokens,
        "epochs": epochs.epochs,
        "separate": epochs.separate,
        "samples": epochs.samples,
        "shards": [{"identity": shard.identity, "sequences": shard.sequences} for shard in source.shards],
    }


def member_prefix(folder: str, key: str) -> str:
    """Path or URL of a member's files up to the dash before what each is.

    Args:
        folder: path or URL.
        key: digest of `member_facts`.
    """
    return join(folder, key[:_NAME_DIGITS])


def index_layout(plan: MemberPlan, epochs: EpochPlan) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
    """dtype and shape of each array of a member."""
    entries = epochs.epochs * (plan.end - plan.start)
    return {
        "document_index": (np.int32, (entries,)),
        "sample_index": (sample_index_dtype(entries, 0), (epochs.samples + 1, 2)),
        "shuffle_index": (shuffle_index_dtype(epochs.samples), (epochs.samples,)),
    }


def load_member(folder: str, plan: MemberPlan, epochs: EpochPlan, source: MemberSource) -> MemberIndices | None:
    """The stored indices of a member, checked at both ends; None where there are none.

    Args:
        folder: path or URL.
        plan: the member.
        epochs: how often its tokens are gone through.
        source: its data.

    Raises:
        FormatError: the record or an array is damaged, missing or half-written.
        StorageError: a file cannot be read.
    """
    facts = member_facts(plan, epochs, source)
    key = digest(facts)
    record = f"{member_prefix(folder, key)}-index.json"
    if not exists(record):
        return None
    try:
        stored = json.loads(read_bytes(record))
        damaged = not isinstance(stored, Mapping) or stored["key"] != key
    except (ValueError, KeyError) as error:
        raise FormatError(f"{record}: damaged record of indices ({type(error).__name__}: {error})") from error
    if damaged:
        raise FormatError(f"{record}: the record of other indices")
    prefix = member_prefix(folder, key)
    arrays = {
        index: open_npy(f"{prefix}-{index}.npy", dtype, shape)
        for index, (dtype, shape) in index_layout(plan, epochs).items()
    }
    problem = refuse_ends(arrays, plan, epochs)
    if problem is not None:
        index, message = problem
        raise FormatError(f"{prefix}-{index}.npy: {message}: damaged; build the indices again")
    return MemberIndices(plan=epochs, **arrays)


def refuse_ends(arrays: Mapping[str, NDArray[Any]], plan: MemberPlan, epochs: EpochPlan) -> tuple[str, str] | None:
    """The first array whose first or last row cannot be right, with what is wrong; None where all could be."""
    bounds = (
        ("document_index", arrays["document_index"], plan.start, plan.end, "sequence"),
        ("shuffle_index", arrays["shuffle_index"], 0, epochs.samples, "sample"),
        ("sample_index", arrays["sample_index"][:, 0], 0, len(arrays["document_index"]), "place"),
        ("sample_index", arrays["sample_index"][:, 1], 0, epochs.tokens + 1, "offset"),
    )
    for index, array, low, high, what in bounds:
        for row in (0, len(array) - 1):
            if not low <= int(array[row]) < high:
                return index, f"row {row} holds {what} {array[row]}, outside {low} to {high - 1}"
    return None


def build_stored(
    folder: str,
    plan: MemberPlan,
    epochs: EpochPlan,
    source: MemberSource,
    lengths: Callable[[], Lengths],
    *,
    required: bool = True,
) -> tuple[MemberIndices, StorageError | None]:
    """Builds the indices of a member and writes them, and then the record that makes them count.

    Args:
        folder: path or URL; made where it is missing.
        plan: the member.
        epochs: how often its tokens are gone through.
        source: its data.
        lengths: gives the tokens of every sequence of the source, see `build_member`.
        required: whether not to be able to write is an error.

    Returns:
        The indices, mapped where they lie in local files; and what kept them from being written, or None.

    Raises:
        DataError: the lengths are not those of the plan.
        StorageError: a file cannot be written, and is required.
    """
    facts = member_facts(plan, epochs, source)
    prefix = member_prefix(folder, digest(facts))
    writer = IndexWriter(lambda index: f"{prefix}-{index}.npy", required=required)
    built = build_member(plan, lengths, writer, epochs.tokens)
    if writer.error is not None:
        return built, writer.error
    files = {
        base_name(f"{prefix}-{index}.npy"): {"size": written.size, "sha256": written.sha256}
        for index, written in writer.facts.items()
    }
    try:
        write_bytes(f"{prefix}-index.json", pretty_json({"key": digest(facts), "facts": facts, "files": files}))
    except StorageError as error:
        if required:
            raise
        return built, error
    return built, None
