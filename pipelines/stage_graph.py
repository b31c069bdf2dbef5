"""The stages of a run as a graph: what each reads and leaves, declared once as data.

The order of a run, which stage a changed setting reaches, what can be left out, the table of `gristmill stages` and the
schedules that it writes all follow from this one list. Who comes before whom is not written down: a stage follows those
that leave what it reads. Nothing else of the room is loaded, so that help can be shown at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["before", "behind", "needs_tokenizer", "Stage", "STAGE_GRAPH", "stage_jobs", "stage_named", "StageJob"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage.

    Attributes:
        name: as in `--from` and `--to`, and of its receipt.
        says: what it does.
        reads: names of what it reads; "inputs" and "tokenizer" come from outside, the rest from stages.
        leaves: names of what it leaves for stages, or for the manifest.
        steps: the steps of which each item leaves a receipt, by what one item is.
        every_source: whether it is about all sources together, and so asks for [index] and no `--source`.
        group: which stages are best one job: they like the same workers, and hand on what need not be read twice.
    """

    name: str
    says: str
    reads: tuple[str, ...]
    leaves: tuple[str, ...]
    steps: tuple[tuple[str, str], ...] = ()
    every_source: bool = False
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageJob:
    """Stages that are run together.

    Attributes:
        name: what the job is called.
        first: value of `--from`.
        last: value of `--to`.
        after: names of the jobs that must be finished just before.
    """

    name: str
    first: str
    last: str
    after: tuple[str, ...]


STAGE_GRAPH = (
    Stage(
        name="download",
        says="pin the inputs, and copy those of sources that ask for it",
        reads=("inputs",),
        leaves=("raw",),
        steps=(("download", "splits"),),
        group="shards",
    ),
    Stage(
        name="clean",
        says="judge every record, and find the copies among them",
        reads=("inputs", "raw"),
        leaves=("clean", "rejected"),
        steps=(("scan", "splits"),),
        group="shards",
    ),
    Stage(
        name="tokenize",
        says="make ids of what is left, and shards of the ids",
        reads=("inputs", "raw", "clean", "tokenizer"),
        leaves=("tokens",),
        steps=(("encode", "splits"), ("assemble", "shards")),
        group="shards",
    ),
    Stage(
        name="index",
        says="build the order of the samples of each source",
        reads=("tokens",),
        leaves=("members",),
        steps=(("index", "members"),),
        every_source=True,
        group="indices",
    ),
    Stage(
        name="blend",
        says="say from which source each sample comes",
        reads=("members",),
        leaves=("blends",),
        every_source=True,
        group="indices",
    ),
)
"""The stages, each behind those whose results it reads."""

_BY_NAME = {stage.name: stage for stage in STAGE_GRAPH}


def stage_named(name: str) -> Stage:
    """The stage of a name.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]


def before(name: str) -> tuple[str, ...]:
    """The stages that must be finished just before one; those before these are left out."""
    stage = _BY_NAME[name]
    giving = [other for other in STAGE_GRAPH if set(other.leaves) & set(stage.reads)]
    reached = {far for other in giving for far in _all_before(other.name)}
    return tuple(other.name for other in giving if other.name not in reached)


def behind(name: str) -> tuple[str, ...]:
    """A stage and all whose results follow from its own, in order."""
    return tuple(stage.name for stage in STAGE_GRAPH if stage.name == name or name in _all_before(stage.name))


def needs_tokenizer(names: Iterable[str]) -> bool:
    """Whether one of some stages makes ids; a run without any leaves no corpus to close with a manifest."""
    return any("tokenizer" in _BY_NAME[name].reads for name in names)


def stage_jobs(*, every_source: bool, grouped: bool) -> tuple[StageJob, ...]:
    """Deals the stages of a run to jobs.

    Args:
        every_source: whether the run has the stages that are about all sources together.
        grouped: whether stages of a group become one job; otherwise each is its own.
    """
    members: dict[str, list[str]] = {}
    for stage in STAGE_GRAPH:
        if every_source or not stage.every_source:
            members.setdefault(stage.group if grouped else stage.name, []).append(stage.name)
    home = {stage: name for name, stages in members.items() for stage in stages}
    return tuple(
        StageJob(
            name=name,
            first=stages[0],
            last=stages[-1],
            after=tuple(
                dict.fromkeys(home[other] for stage in stages for other in before(stage) if home[other] != name)
            ),
        )
        for name, stages in members.items()
    )


def _all_before(name: str) -> set[str]:
    direct = {other.name for other in STAGE_GRAPH if set(other.leaves) & set(_BY_NAME[name].reads)}
    return direct.union(*map(_all_before, direct))
