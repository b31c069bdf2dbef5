"""The indices of one source in one split: built from token counts, written as three files, reported in a few lines.

A member is the unit of work: it depends on its plan and on the lengths of its source's sequences alone, so members
are built in any order, on any machine, any number of times, and give the same bytes.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gristmill.formats.errors import DataError, SettingsError
from gristmill.formats.index_plan import MemberPlan
from gristmill.formats.index_writer import IndexWriter
from gristmill.formats.indices import (
    EpochPlan,
    KeepArray,
    Lengths,
    MemberIndices,
    build_indices,
    plan_epochs,
    sample_index_dtype,
    shuffle_index_dtype,
)
from gristmill.formats.npy import npy_size, write_npy
from gristmill.formats.storage import FileFacts, join

__all__ = [
    "Block",
    "build_member",
    "check_member",
    "expected_report",
    "make_member",
    "member_epochs",
    "member_file",
    "member_file_sizes",
    "member_layout",
    "MemberReport",
    "parse_member_report",
    "write_member",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Whole epochs of a member that are shuffled by themselves.

    Attributes:
        epochs: passes over the tokens.
        separate: whether the last of them is shuffled apart.
        rows: samples in the block.
        dropped_tokens: tokens at the end of the block before it that are in no sample; fewer than a sample has.
    """

    epochs: int
    separate: bool
    rows: int
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """What became of a member.

    Attributes:
        split: ``train``, ``valid`` or ``test``.
        source: id of the source.
        place: position of the source among all sources.
        start: first sequence of the split, counted over the source's concatenated shards.
        end: one past its last sequence.
        tokens: tokens per epoch.
        epochs: passes over the tokens in the first block.
        separate: whether the last of these epochs is shuffled by itself.
        rows: samples in the stored order, those of all blocks.
        weight: share in a weighted blend, normalised once; None: unweighted.
        left_out: why the member takes no part although it was planned; None: it takes part.
        files: size and digest of each file by its path relative to the set's folder.
        later: blocks that extensions appended.
        joined: 0 for a member from the start, else a number that grows with each extension that brings new members;
            a blend counts members by it first.
    """

    split: str
    source: str
    place: int
    start: int
    end: int
    tokens: int
    epochs: int
    separate: bool
    rows: int
    weight: float | None
    left_out: str | None
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    later: tuple[Block, ...] = ()
    joined: int = 0

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks in their order."""
        first = self.rows - sum(block.rows for block in self.later)
        return (Block(epochs=self.epochs, separate=self.separate, rows=first), *self.later)

    @property
    def entries(self) -> int:
        """Entries of the document index."""
        return sum(block.epochs for block in self.blocks) * (self.end - self.start)


def member_epochs(plan: MemberPlan, tokens: int) -> EpochPlan:
    """The epochs of a planned member whose range holds `tokens` tokens (at least 1)."""
    return plan_epochs(
        tokens=tokens,
        sequence_length=plan.sequence_length,
        samples=plan.samples,
        epochs=plan.epochs,
        add_extra_token=plan.add_extra_token,
        drop_last_partial=plan.drop_last_partial,
    )


def build_member(
    plan: MemberPlan,
    lengths: Lengths | Callable[[], Lengths],
    keep: KeepArray | None = None,
    tokens: int | None = None,
) -> MemberIndices:
    """Builds the indices of a member.

    Args:
        plan: the member, from `plan_members`.
        lengths: [plan.source_sequences] int32 or uint16 tokens of every sequence of the source, shard after shard; or
            what gives them, asked when they are needed so that they are not held meanwhile.
        keep: takes each index as soon as it is finished, see `build_indices`.
        tokens: tokens of the member's sequences, where they are known.

    Returns:
        The indices. A member that may be left out (one unweighted pass of validation or test) and is too short for
        one sample comes back with no samples; `write_member` reports why.

    Raises:
        DataError: the lengths are not those of the planned source; or a member that is needed has no tokens or too
            few for one sample.
        SettingsError: the member would be repeated more often than its `max_epochs`.
    """
    if tokens is None:
        tokens = _member_tokens(plan, lengths() if callable(lengths) else lengths)
    epochs = check_member(plan, tokens)
    if epochs.samples == 0:
        return _without_samples(epochs)
    return build_indices(lambda: _counted(plan, lengths, tokens), plan.start, plan.end, epochs, plan.seed, keep)


def _counted(plan: MemberPlan, lengths: Lengths | Callable[[], Lengths], tokens: int) -> Lengths:
    """The lengths of a member that was planned with some number of tokens."""
    values = lengths() if callable(lengths) else lengths
    found = _member_tokens(plan, values)
    if found != tokens:
        raise DataError(
            f"{plan.split}: source {plan.source!r}: its sequences hold {found} tokens, but held {tokens} a moment ago: "
            "the shards changed; start again"
        )
    return values


def _member_tokens(plan: MemberPlan, lengths: Lengths) -> int:
    """Tokens of a member's sequences.

    Raises:
        DataError: the lengths are not those of the planned source.
    """
    name = f"{plan.split}: source {plan.source!r}"
    if lengths.ndim != 1 or len(lengths) != plan.source_sequences:
        raise DataError(
            f"{name}: lengths of shape {lengths.shape} where the plan counts {plan.source_sequences} sequences: the "
            "shards changed after planning; plan again"
        )
    if lengths.dtype not in {np.dtype(np.int32), np.dtype(np.uint16)}:
        raise DataError(f"{name}: lengths are {lengths.dtype.name}; sequence lengths are int32")
    inside = lengths[plan.start : plan.end]
    if int(inside.min(initial=0)) < 0:
        bad = plan.start + int(np.argmin(inside))
        raise DataError(f"{name}: sequence {bad} has a length of {lengths[bad]} tokens; a length is never negative")
    return int(inside.sum(dtype=np.int64))


def check_member(plan: MemberPlan, tokens: int) -> EpochPlan:
    """The epochs of a member, known to be allowed; no samples for one that is too short and may be left out.

    Args:
        plan: the member.
        tokens: tokens of its sequences.

    Raises:
        DataError: a member that is needed has no tokens or too few for one sample.
        SettingsError: the member would be repeated more often than its `max_epochs`.
    """
    epochs = member_epochs(plan, tokens) if tokens else None
    if epochs is not None and epochs.samples:
        _check_max_epochs(plan, epochs)
        return epochs
    if plan.required:
        raise DataError(
            f"{plan.split}: source {plan.source!r} gives no sample: {_too_short(plan, tokens)}; add data, choose a "
            f"shorter sequence_length or change the share of {plan.split} in splits"
        )
    return EpochPlan(
        tokens=tokens,
        sequence_length=plan.sequence_length,
        add_extra_token=plan.add_extra_token,
        epochs=1,
        separate=False,
        samples=0,
    )


def _too_short(plan: MemberPlan, tokens: int) -> str:
    needed = (plan.sequence_length if plan.drop_last_partial else 1) + int(plan.add_extra_token)
    return (
        f"its {plan.end - plan.start} sequences hold {tokens} tokens, and one sample of length {plan.sequence_length} "
        f"needs {needed}"
    )


def _without_samples(epochs: EpochPlan) -> MemberIndices:
    return MemberIndices(
        plan=epochs,
        document_index=np.empty(0, dtype=np.int32),
        sample_index=np.zeros((1, 2), dtype=np.int32),
        shuffle_index=np.empty(0, dtype=np.uint32),
    )


def _check_max_epochs(plan: MemberPlan, epochs: EpochPlan) -> None:
    if plan.max_epochs is None:
        return
    if plan.draws is None:
        passes, wanted = float(epochs.epochs), f"{epochs.epochs} epochs"
    else:
        drawn = plan.draws * plan.sequence_length
        passes = drawn / epochs.tokens
        wanted = f"{plan.draws} samples of {plan.sequence_length} tokens ({drawn} tokens)"
    if passes > plan.max_epochs:
        raise SettingsError(
            f"{plan.split}: source {plan.source!r} would be repeated too often: {wanted} of its {epochs.tokens} tokens "
            f"are {passes:.4g} passes, above max_epochs = {plan.max_epochs:g}; lower its weight or the number of "
            "samples, add data, or raise max_epochs"
        )


def member_layout(report: MemberReport) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
    """dtype and shape of each index of a member.

    Each block has one row more in the sample index than samples. Between the last row of one and the first of the next
    lies no sample, so a value of the shuffle index can be larger than the number of samples.
    """
    joints = len(report.later)
    return {
        "document_index": (np.int32, (report.entries,)),
        "sample_index": (sample_index_dtype(report.entries, 0), (report.rows + joints + 1, 2)),
        "shuffle_index": (shuffle_index_dtype(report.rows + joints), (report.rows,)),
    }


def member_file_sizes(report: MemberReport) -> dict[str, int]:
    """Bytes that each file of a member must have, by its path relative to the set's folder."""
    if report.left_out is not None:
        return {}
    return {
        member_file(report.split, report.source, index): npy_size(dtype, shape)
        for index, (dtype, shape) in member_layout(report).items()
    }


def member_file(split: str, source: str, index: str) -> str:
    """Path of an index of a member relative to the set's folder."""
    return join(split, source, f"{index}.npy")


def write_member(set_folder: str, plan: MemberPlan, indices: MemberIndices) -> MemberReport:
    """Writes the three files ``<split>/<source>/{document,sample,shuffle}_index.npy``, each whole or not at all.

    A member without samples writes nothing and is reported as left out.

    Args:
        set_folder: path or URL of the index set's folder.
        plan: the member.
        indices: what `build_member` made of it.

    Raises:
        StorageError: a file cannot be written.
    """
    files: dict[str, FileFacts] = {}
    if indices.samples:
        arrays: tuple[tuple[str, NDArray[Any]], ...] = (
            ("document_index", indices.document_index),
            ("sample_index", indices.sample_index),
            ("shuffle_index", indices.shuffle_index),
        )
        for index, array in arrays:
            name = member_file(plan.split, plan.source, index)
            files[name] = write_npy(join(set_folder, name), array)
    return dataclasses.replace(expected_report(plan, indices.plan), files=files)


def make_member(set_folder: str, plan: MemberPlan, lengths: Callable[[], Lengths], tokens: int) -> MemberReport:
    """`build_member` and `write_member` at once, in no more memory than the files take.

    Args:
        set_folder: path or URL of the index set's folder.
        plan: the member.
        lengths: gives what `build_member` takes.
        tokens: tokens of the member's sequences.

    Raises:
        DataError, SettingsError: see `build_member`.
        StorageError: a file cannot be written.
    """
    writer = IndexWriter(lambda index: join(set_folder, member_file(plan.split, plan.source, index)))
    epochs = build_member(plan, lengths, writer, tokens).plan
    files = {member_file(plan.split, plan.source, index): facts for index, facts in writer.facts.items()}
    return dataclasses.replace(expected_report(plan, epochs), files=files)


def expected_report(plan: MemberPlan, epochs: EpochPlan) -> MemberReport:
    """What the report of a member will say, but for its files.

    Args:
        plan: the member.
        epochs: from `check_member`.
    """
    return MemberReport(
        split=plan.split,
        source=plan.source,
        place=plan.place,
        start=plan.start,
        end=plan.end,
        tokens=epochs.tokens,
        epochs=epochs.epochs,
        separate=epochs.separate,
        rows=epochs.samples,
        weight=plan.weight,
        left_out=None if epochs.samples else _too_short(plan, epochs.tokens),
    )


def parse_member_report(value: Mapping[str, Any]) -> MemberReport:
    """A report from its JSON form (``dataclasses.asdict`` of it).

    Raises:
        KeyError, TypeError, ValueError: the value is no report.
    """
    files = {name: FileFacts(int(facts["size"]), str(facts["sha256"])) for name, facts in value["files"].items()}
    later = tuple(Block(**block) for block in value.get("later", ()))
    return MemberReport(**{**value, "files": files, "later": later})
