"""What an index set will be, worked out from token counts before anything is built.

Everything that can be wrong with a member (too short, repeated too often, never drawn) follows from counts and weights,
so it is found for all members at once before the first array is made, instead of when that member's turn comes. Token
counts of part of a source are read off the pointers of one or two shards, a few bytes for any size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gristmill.formats.blend import empty_blend
from gristmill.formats.errors import DataError, GristmillError, SettingsError
from gristmill.formats.index_blend import (
    BlendReport,
    BlendRule,
    blend_file_sizes,
    blend_rule,
    check_each_is_drawn,
    taking_part,
)
from gristmill.formats.index_member import MemberReport, check_member, expected_report, member_epochs, member_file_sizes
from gristmill.formats.index_plan import IndexSettings, LeftOut, MemberPlan, MemberSource, plan_members
from gristmill.formats.indexed import HEADER_BYTES
from gristmill.formats.manifest import SourceEntry
from gristmill.formats.schedule import Phase, draw_phases
from gristmill.formats.split import SPLITS
from gristmill.formats.storage import join, read_range

__all__ = ["check_forecast", "forecast_index", "IndexForecast", "MemberForecast", "range_tokens", "SplitForecast"]

_FIRST_ROWS, _MOST_ROWS = 1 << 12, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberForecast:
    """What a member will be.

    Attributes:
        plan: what it is needed for.
        report: what its report will say, without files.
        samples: most samples that the split takes from it.
        file_bytes: size of its three arrays.
    """

    plan: MemberPlan
    report: MemberReport
    samples: int
    file_bytes: int

    @property
    def passes(self) -> float:
        """How often the split goes through the member's tokens."""
        return self.samples * self.plan.sequence_length / max(1, self.report.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitForecast:
    """What a split will be.

    Attributes:
        split: ``train``, ``valid`` or ``test``.
        samples: number of samples.
        members: the members that take part, in order; without those that have no sample although they must.
        rule: how they are blended; None where a single one or none takes part.
        left_out: the sources that take no part, with the reason.
        file_bytes: size of the blend's two arrays.
    """

    split: str
    samples: int
    members: tuple[MemberForecast, ...]
    rule: BlendRule | None
    left_out: tuple[LeftOut, ...]
    file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexForecast:
    """What an index set will be.

    Attributes:
        splits: one forecast for each split.
        problems: what would stop the build, each by itself.
    """

    splits: tuple[SplitForecast, ...]
    problems: tuple[GristmillError, ...]

    @property
    def file_bytes(self) -> int:
        """Size of all arrays."""
        return sum(split.file_bytes + sum(member.file_bytes for member in split.members) for split in self.splits)


def forecast_index(
    settings: IndexSettings, sources: Sequence[MemberSource], tokens: Callable[[MemberPlan], int]
) -> IndexForecast:
    """Works out what an index set will be.

    Args:
        settings: what is wanted.
        sources: the sources in manifest order.
        tokens: tokens of the sequences of a member.

    Raises:
        SettingsError: the settings cannot be followed whatever the token counts.
        DataError: samples or epochs are asked of a split in which no source has a sequence.
    """
    plans = plan_members(settings, sources)
    splits: list[SplitForecast] = []
    problems: list[GristmillError] = []
    for split in SPLITS:
        left_out = [entry for entry in plans.left_out if entry.split == split]
        reports: list[MemberReport] = []
        known: dict[str, MemberPlan] = {}
        complete = True
        for plan in plans.split(split):
            count = tokens(plan)
            try:
                report = expected_report(plan, check_member(plan, count))
            except SettingsError as error:  # too many passes: still worth showing
                problems.append(error)
                report = expected_report(plan, member_epochs(plan, count))
            except DataError as error:
                problems.append(error)
                complete = False
                continue
            known[plan.source] = plan
            reports.append(report)
            if report.left_out is not None:
                left_out.append(LeftOut(split, plan.source, report.left_out, plan.place))
        members = taking_part(split, reports)
        rule = blend_rule(settings, split, members) if len(members) > 1 else None
        if complete and rule is not None:
            problems += _undrawn(split, [known[member.source] for member in members], rule)
        left_out.sort(key=lambda entry: entry.place)
        splits.append(_split(settings, split, members, known, rule, left_out))
    return IndexForecast(splits=tuple(splits), problems=tuple(problems))


def _split(
    settings: IndexSettings,
    split: str,
    members: Sequence[MemberReport],
    known: dict[str, MemberPlan],
    rule: BlendRule | None,
    left_out: Sequence[LeftOut],
) -> SplitForecast:
    wanted = settings.request(split).samples
    samples, file_bytes = 0, 0
    if rule is not None:
        samples = rule.samples
        blend = BlendReport(split=split, kind=rule.kind, weights=rule.weights, samples=samples, size=rule.size)
        file_bytes = sum(blend_file_sizes(blend).values())
    elif members:
        samples = members[0].rows if wanted is None else wanted
    drawn = [known[member.source].draws for member in members]
    if rule is not None and rule.kind != "weighted":
        drawn = [min(member.rows, round(samples * share)) for member, share in zip(members, rule.weights, strict=True)]
    return SplitForecast(
        split=split,
        samples=samples,
        members=tuple(
            MemberForecast(
                plan=known[member.source],
                report=member,
                samples=samples if count is None else min(count, samples),
                file_bytes=sum(member_file_sizes(member).values()),
            )
            for member, count in zip(members, drawn, strict=True)
        ),
        rule=rule,
        left_out=tuple(left_out),
        file_bytes=file_bytes,
    )


def _undrawn(split: str, members: Sequence[MemberPlan], rule: BlendRule) -> list[GristmillError]:
    """The error of a weighted blend in which a member gets no sample; draws only until each has one."""
    if rule.kind != "weighted":
        return []
    counts, since = np.zeros(len(members), dtype=np.int64), np.zeros(len(members), dtype=np.int64)
    first, width = 0, _FIRST_ROWS
    while first < rule.samples and not counts.all():
        width = min(width, rule.samples - first)
        draw_phases([Phase(0, rule.weights), *rule.phases], first, counts, since, *empty_blend(width))
        first, width = first + width, min(4 * width, _MOST_ROWS)
    try:
        check_each_is_drawn(split, members, rule, counts)
    except SettingsError as error:
        return [error]
    return []


def check_forecast(forecast: IndexForecast) -> None:
    """Refuses an index set that could not be built, with everything that is wrong.

    Raises:
        SettingsError, DataError: something is; of the kind of the first problem.
    """
    if len(forecast.problems) == 1:
        raise forecast.problems[0]
    if forecast.problems:
        kind = SettingsError if isinstance(forecast.problems[0], SettingsError) else DataError
        listed = "\n".join(f"  - {problem}" for problem in forecast.problems)
        raise kind(f"the index set cannot be built, for {len(forecast.problems)} reasons:\n{listed}")


def range_tokens(corpus: str, source: SourceEntry, token_bytes: int, start: int, end: int) -> int:
    """Tokens of a run of a source's sequences.

    Reads the manifest's counts, and at most two pointers from the index files of the shards that are cut.

    Args:
        corpus: folder or URL of the corpus.
        source: the source; each of its documents is a sequence.
        token_bytes: bytes of a token.
        start: first sequence, counted over the shards in order.
        end: one past the last.

    Raises:
        StorageError: a file cannot be read.
    """
    return _tokens_before(corpus, source, token_bytes, end) - _tokens_before(corpus, source, token_bytes, start)


def _tokens_before(corpus: str, source: SourceEntry, token_bytes: int, sequence: int) -> int:
    tokens = 0
    for shard in source.shards:
        if sequence < shard.documents:
            if sequence == 0:
                return tokens
            at = HEADER_BYTES + 4 * shard.documents + 8 * sequence
            pointer = int.from_bytes(read_range(join(corpus, f"{shard.path}.idx"), at, 8), "little", signed=True)
            return tokens + pointer // token_bytes
        tokens += shard.tokens
        sequence -= shard.documents
    return tokens
