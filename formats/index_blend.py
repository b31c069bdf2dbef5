"""The blend of one split: which member gives each sample, built from the members' reports and written as two files.

A split of a single member has no blend: its own shuffle index is the order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.blend import Blend, blend_size, draw, empty_blend, normalise
from gristmill.formats.errors import CorpusError, DataError, FormatError, SettingsError
from gristmill.formats.index_member import MemberReport
from gristmill.formats.index_plan import IndexSettings, MemberPlan
from gristmill.formats.npy import npy_size, open_npy, write_npy
from gristmill.formats.schedule import (
    Phase,
    draw_phases,
    drawn_before,
    parse_phases,
    phase_of_members,
    shares_above_zero,
)
from gristmill.formats.storage import FileFacts, join

__all__ = [
    "blend_file",
    "blend_file_sizes",
    "blend_rule",
    "BlendIndices",
    "BlendReport",
    "BlendRule",
    "build_blend",
    "check_each_is_drawn",
    "check_enough",
    "grow_blend",
    "open_blend_files",
    "parse_blend_report",
    "taking_part",
    "weighted_rule",
    "write_blend",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendIndices:
    """The two indices of a blended split.

    Attributes:
        kind: ``weighted`` (by given weights), ``proportional`` (by the members' lengths, a part of them) or
            ``exhaustive`` (every sample once).
        weights: [members] shares that the rule was applied to.
        phases: later phases with other weights, each [members], normalised likewise; 0 draws nothing meanwhile.
        samples: samples of the split; the arrays may be longer.
        dataset_index: [size] int16, the member of each sample, counted over the members that take part.
        dataset_sample_index: [size] int64, the sample's number inside its member.
    """

    kind: str
    weights: tuple[float, ...]
    phases: tuple[Phase, ...]
    samples: int
    dataset_index: NDArray[np.int16]
    dataset_sample_index: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendReport:
    """What a blended split is.

    Attributes:
        split: the split.
        kind: see `BlendIndices`.
        weights: [members] shares that the rule was applied to.
        samples: samples of the split.
        size: length of the stored arrays.
        phases: later phases with other weights, see `BlendIndices`.
        files: size and digest of each file by its path relative to the set's folder.
    """

    split: str
    kind: str
    weights: tuple[float, ...]
    samples: int
    size: int
    phases: tuple[Phase, ...] = ()
    files: Mapping[str, FileFacts] = field(default_factory=dict)

    @property
    def all_phases(self) -> list[Phase]:
        """Every phase, the first included."""
        return [Phase(0, self.weights), *self.phases]


def taking_part(split: str, reports: Iterable[MemberReport]) -> list[MemberReport]:
    """The members of a split that have samples, in the order in which a blend counts them from 0.

    That is the order of the sources; members that an extension brought come behind those that were there.
    """
    chosen = [report for report in reports if report.split == split and report.left_out is None]
    return sorted(chosen, key=lambda report: (report.joined, report.place))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendRule:
    """How the members of a split are blended.

    Attributes:
        kind: see `BlendIndices`.
        weights: [members] shares that the rule is applied to.
        samples: samples of the split.
        size: length of the arrays; for a weighted blend Megatron's sum of ceilings, which can exceed `samples`. With
            phases, only the last one is rounded up so.
        phases: later phases with other weights, see `BlendIndices`.
    """

    kind: str
    weights: tuple[float, ...]
    samples: int
    size: int
    phases: tuple[Phase, ...] = ()


def blend_rule(settings: IndexSettings, split: str, members: Sequence[MemberReport]) -> BlendRule:
    """How at least two members of a split are blended.

    Args:
        settings: of the index set.
        split: the split.
        members: those that take part, in order.
    """
    rows = [member.rows for member in members]
    samples = settings.request(split).samples
    shares = [member.weight for member in members if member.weight is not None]
    if samples is None:
        exhaustive = np.array(rows, dtype=np.int64) / np.float64(sum(rows))
        return BlendRule(kind="exhaustive", weights=tuple(exhaustive.tolist()), samples=sum(rows), size=sum(rows))
    if len(shares) == len(members):
        places = [member.place for member in members]
        phases = [Phase(0, tuple(shares))]
        phases += [phase_of_members(split, phase, places) for phase in settings.phases(split)]
        return weighted_rule(phases, samples)
    size = min(samples, sum(rows))
    return BlendRule(kind="proportional", weights=tuple(normalise(rows).tolist()), samples=size, size=size)


def weighted_rule(phases: Sequence[Phase], samples: int) -> BlendRule:
    """The rule of a blend by weights.

    Args:
        phases: by `from_sample`, the first from 0 on; weights by member, normalised once over those above 0.
        samples: samples of the split.
    """
    first, *later = (Phase(phase.from_sample, tuple(shares_above_zero(phase.weights))) for phase in phases)
    begun = phases[-1].from_sample
    size = begun + blend_size(samples - begun, phases[-1].weights)
    return BlendRule(kind="weighted", weights=first.weights, samples=min(samples, size), size=size, phases=tuple(later))


def build_blend(settings: IndexSettings, split: str, reports: Iterable[MemberReport]) -> BlendIndices | None:
    """Builds the blend of a split.

    Args:
        settings: of the index set.
        split: the split.
        reports: reports of the split's members, in any order; those of other splits are ignored.

    Returns:
        The blend, or None when fewer than two members take part.

    Raises:
        SettingsError: a member of a weighted blend would get no sample.
        DataError: a member would be asked for more samples than it has.
    """
    members = taking_part(split, reports)
    if len(members) < 2:
        return None
    rule = blend_rule(settings, split, members)
    counts = np.zeros(len(members), dtype=np.int64)
    dataset_index, dataset_sample_index = empty_blend(rule.size)
    if rule.kind == "exhaustive":
        limits = np.array([member.rows for member in members], dtype=np.int64)
        weights = np.array(rule.weights, dtype=np.float64)
        draw(weights, limits, counts, 0, dataset_index, dataset_sample_index)
    else:
        phases, since = [Phase(0, rule.weights), *rule.phases], np.zeros(len(members), dtype=np.int64)
        for rows in (slice(0, rule.samples), slice(rule.samples, rule.size)):
            draw_phases(phases, rows.start, counts, since, dataset_index[rows], dataset_sample_index[rows])
            if rule.kind == "weighted" and rows.start == 0:
                check_each_is_drawn(split, members, rule, counts)
    check_enough(split, members, counts)
    return BlendIndices(
        kind=rule.kind,
        weights=rule.weights,
        phases=rule.phases,
        samples=rule.samples,
        dataset_index=dataset_index,
        dataset_sample_index=dataset_sample_index,
    )


def check_each_is_drawn(
    split: str, members: Sequence[MemberReport | MemberPlan], rule: BlendRule, counts: NDArray[np.int64]
) -> None:
    """Refuses a weighted blend in which a member gets no sample.

    Args:
        split: the split.
        members: those that take part, in order.
        rule: how they are blended.
        counts: [members] samples drawn from each.

    Raises:
        SettingsError: a count is 0; the message names the sources.
    """
    for member, weight, count in zip(members, rule.weights, counts, strict=True):
        if count == 0:
            share = f"its share of {weight:.3g}" if not rule.phases else "its shares in the schedule"
            raise SettingsError(
                f"{split}: source {member.source!r} would get none of the {rule.samples} samples at {share}: raise its "
                "weight or the number of samples, or give it weight 0 to leave it out"
            )


def check_enough(split: str, members: Sequence[MemberReport], counts: NDArray[np.int64]) -> None:
    """Refuses a blend that draws more samples from a member than it has.

    Raises:
        DataError: a count is above the member's `rows`; the message names the source.
    """
    for member, count in zip(members, counts, strict=True):
        if count > member.rows:
            raise DataError(
                f"{split}: the blend asks source {member.source!r} for {count} samples, but {member.rows} were built: "
                "its indices belong to other weights or another number of samples; build them again"
            )


def grow_blend(split: str, blend: BlendIndices, members: Sequence[MemberReport], samples: int) -> Blend:
    """The rows of a blend behind the stored ones, by the same rule, as far as the members' samples reach.

    Args:
        split: the split.
        blend: as stored.
        members: those that take part, in order.
        samples: samples wanted of the split, more than are stored.

    Returns:
        dataset_index and dataset_sample_index from the stored length up to `samples`.

    Raises:
        CorpusError: a member has not enough samples, or the blend has used up all of them.
    """
    stored = len(blend.dataset_index)
    held = sum(member.rows for member in members)
    if blend.kind == "exhaustive" or samples > held:
        raise CorpusError(f"{split}: {samples} samples asked for, but the stored indices hold {held}")
    phases = [Phase(0, blend.weights), *blend.phases]
    begun = max(phase.from_sample for phase in phases if phase.from_sample < stored)
    counts = drawn_before(blend.dataset_index, blend.dataset_sample_index, stored, len(members))
    since = counts - drawn_before(blend.dataset_index, blend.dataset_sample_index, begun, len(members))
    tail = empty_blend(samples - stored)
    draw_phases(phases, stored, counts, since, *tail)
    for member, count in zip(members, counts, strict=True):
        if count > member.rows:
            raise CorpusError(
                f"{split}: {samples} samples asked for, of which {count} would be of source {member.source!r}, but its "
                f"stored indices hold {member.rows}"
            )
    return tail


def write_blend(set_folder: str, split: str, blend: BlendIndices) -> BlendReport:
    """Writes ``<split>/{dataset_index,dataset_sample_index}.npy``, each whole or not at all.

    Args:
        set_folder: path or URL of the index set's folder.
        split: the split.
        blend: what `build_blend` made.

    Raises:
        StorageError: a file cannot be written.
    """
    arrays: tuple[tuple[str, NDArray[Any]], ...] = (
        ("dataset_index", blend.dataset_index),
        ("dataset_sample_index", blend.dataset_sample_index),
    )
    files: dict[str, FileFacts] = {}
    for index, array in arrays:
        name = blend_file(split, index)
        files[name] = write_npy(join(set_folder, name), array)
    return BlendReport(
        split=split,
        kind=blend.kind,
        weights=blend.weights,
        samples=blend.samples,
        size=len(blend.dataset_index),
        phases=blend.phases,
        files=files,
    )


def blend_file(split: str, index: str) -> str:
    """Path of an index of a blend relative to the set's folder."""
    return join(split, f"{index}.npy")


def blend_file_sizes(report: BlendReport) -> dict[str, int]:
    """Bytes that each file of a blend must have, by its path relative to the set's folder."""
    return {
        blend_file(report.split, "dataset_index"): npy_size(np.int16, (report.size,)),
        blend_file(report.split, "dataset_sample_index"): npy_size(np.int64, (report.size,)),
    }


def open_blend_files(set_folder: str, report: BlendReport, members: Sequence[MemberReport]) -> BlendIndices:
    """Opens the files of a blend and checks dtype, shape, size and both ends of every array.

    Args:
        set_folder: path or URL of the index set's folder.
        report: the blend, as recorded.
        members: the members that take part, in order.

    Returns:
        The blend, memory-mapped from local files, read into memory from elsewhere.

    Raises:
        FormatError: a file is missing, cut short, or does not fit the record.
    """
    paths = [join(set_folder, blend_file(report.split, index)) for index in ("dataset_index", "dataset_sample_index")]
    dataset_index = open_npy(paths[0], np.int16, (report.size,))
    dataset_sample_index = open_npy(paths[1], np.int64, (report.size,))
    for row in (0, report.size - 1):
        member, sample = int(dataset_index[row]), int(dataset_sample_index[row])
        if not 0 <= member < len(members):
            raise FormatError(
                f"{paths[0]}: row {row} names member {member}, but there are 0 to {len(members) - 1}: damaged; build "
                "the indices again"
            )
        if not 0 <= sample < members[member].rows:
            raise FormatError(
                f"{paths[1]}: row {row} names sample {sample} of member {member}, which has {members[member].rows}: "
                "damaged; build the indices again"
            )
    return BlendIndices(
        kind=report.kind,
        weights=report.weights,
        phases=report.phases,
        samples=report.samples,
        dataset_index=dataset_index,
        dataset_sample_index=dataset_sample_index,
    )


def parse_blend_report(value: Mapping[str, Any]) -> BlendReport:
    """A report from its JSON form (``dataclasses.asdict`` of it).

    Raises:
        KeyError, TypeError, ValueError: the value is no report.
    """
    files = {name: FileFacts(int(facts["size"]), str(facts["sha256"])) for name, facts in value["files"].items()}
    weights = tuple(float(weight) for weight in value["weights"])
    return BlendReport(**{**value, "files": files, "weights": weights, "phases": parse_phases(value.get("phases", ()))})
