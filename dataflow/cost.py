"""What a run will cost, stage by stage: bytes read, tokens made, hours of a virtual CPU.

Documents and tokens come from the corpus that is there or from a sample of the inputs; processor time from rates that
were measured on virtual CPUs of an AMD EPYC (benchmarks/RESULTS.md names the scripts). They are rates of the work
itself: starting workers, waiting for storage and idle processors at the end of a stage come on top. Money is left to
the price list of the day and region.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.formats.index_forecast import forecast_index
from gristmill.pipelines.outlook import counts_of
from gristmill.pipelines.workflow import Draft

__all__ = ["run_sizes", "RunSizes", "stage_costs", "StageCost"]

_NANO = 1e-9
_TOKENIZE = {"fastokens": 25.8, "tokenizers": 846.0}
"""Nanoseconds per token by engine: 2.29 s, with reading and writing, and 75.13 s for the 88.8 M tokens of
`bench_prepare.py`, "gristmill, plain loop, clean = false" and "loop with tokenizers.encode_batch_fast"."""

_CLEAN = 3.9
"""Nanoseconds per token: what exact deduplication adds in the same table, 0.35 s for 88.8 M tokens."""

_READ = 8.0
"""Nanoseconds per token of another reading, which cleaning needs where it runs alone: about a third of `_TOKENIZE`."""

_NEAR = 52.0
"""Nanoseconds per token: 0.022 s per MB of text in `bench_near.py`, at `_TOKEN_MB`."""

_RULES = {
    "gopher_repetition": 0.0297,
    "gopher_quality": 0.0187,
    "c4": 0.0065,
    "fineweb": 0.0054,
    "languages": 0.0377,
}
"""Seconds per MB of text of the steps of cleaning that cost most (`bench_clean.py`); the others are within `_CLEAN`."""

_TOKEN_MB = 2.36e-6
"""MB of text in a token of `bench_prepare.py`: 210 MB in 88.8 M tokens."""

_INDEX = 490.0
"""Nanoseconds per document and epoch: 9.8 s for 20 M sequences, the blend included (`bench_indices.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSizes:
    """How large a run is.

    Attributes:
        says: where the counts are from.
        input_bytes: bytes of all inputs, as stored.
        splits: work items of reading.
        documents: documents kept.
        tokens: tokens in them, EODs included.
        near_tokens: tokens of the sources that are searched for near duplicates.
        near_documents: documents of these.
        rule_seconds: processor seconds that the steps of cleaning take.
        token_bytes: bytes of a token.
        array_bytes: sizes of the index arrays of each member, the largest first.
        rows: documents of all members, as often as they are gone through.
        problems: what would stop the index stage.
    """

    says: str
    input_bytes: int
    splits: int
    documents: int
    tokens: int
    near_tokens: int
    rule_seconds: float
    token_bytes: int
    near_documents: int = 0
    array_bytes: tuple[int, ...] = ()
    rows: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What a stage costs.

    Attributes:
        stage: its name.
        read_bytes: bytes read.
        written_bytes: bytes written.
        tokens: tokens gone through.
        vcpu_hours: hours of one virtual CPU.
    """

    stage: str
    read_bytes: int
    written_bytes: int
    tokens: int
    vcpu_hours: float


def run_sizes(draft: Draft) -> RunSizes:
    """Counts or estimates what a run is about; reads a sample of the inputs where there is no corpus yet.

    Raises:
        DataError: the sample of an input cannot be read.
        StorageError: a file cannot be read.
    """
    recipe = draft.recipe
    counts = counts_of(recipe)
    arrays: list[int] = []
    rows, problems = 0, []
    if recipe.index is not None and "index" in draft.wanted:
        forecast = forecast_index(recipe.index, counts.sources, counts.of_member)
        members = [member for split in forecast.splits for member in split.members]
        arrays = sorted((member.file_bytes for member in members), reverse=True)
        rows = sum((member.plan.end - member.plan.start) * member.report.epochs for member in members)
        problems = [str(problem) for problem in forecast.problems]
    near = () if recipe.near_dedup is None else recipe.near_dedup.sources
    return RunSizes(
        says=counts.says,
        input_bytes=draft.plan.input_bytes,
        splits=len(draft.plan.splits),
        documents=sum(counts.documents),
        tokens=sum(counts.tokens),
        near_tokens=sum(counts.tokens[number] for number in near),
        near_documents=sum(counts.documents[number] for number in near),
        rule_seconds=sum(
            tokens * _TOKEN_MB * sum(_RULES.get(step, 0.0) for step in source.clean.steps())
            for source, tokens in zip(recipe.sources, counts.tokens, strict=True)
        ),
        token_bytes=counts.token_bytes,
        array_bytes=tuple(arrays),
        rows=rows,
        problems=tuple(problems),
    )


def stage_costs(sizes: RunSizes, stages: Sequence[str], engine: str) -> tuple[StageCost, ...]:
    """Prices the stages of a run.

    Args:
        sizes: of the run.
        stages: names out of `STAGES`, in order.
        engine: name of the engine that makes the ids; a run that needs none has an empty one.
    """
    shards, arrays, hour = sizes.tokens * sizes.token_bytes, sum(sizes.array_bytes), 3600.0
    early = "tokenize" in stages and engine == "fastokens"  # then the inputs are read once, while they are cleaned
    priced = {
        "download": (0, 0, 0, 0.0),
        "clean": (
            sizes.input_bytes,
            0,
            sizes.tokens,
            sizes.tokens * (_CLEAN + (0.0 if early else _READ))
            + sizes.near_tokens * _NEAR
            + sizes.rule_seconds / _NANO,
        ),
        "tokenize": (
            shards if early and "clean" in stages else sizes.input_bytes,
            shards,
            sizes.tokens,
            sizes.tokens * _TOKENIZE.get(engine, _TOKENIZE["tokenizers"]),
        ),
        "index": (sizes.documents * 20, arrays, 0, sizes.rows * _INDEX),
        "blend": (0, 0, 0, 0.0),
    }
    return tuple(
        StageCost(stage=stage, read_bytes=read, written_bytes=written, tokens=tokens, vcpu_hours=work * _NANO / hour)
        for stage in stages
        for read, written, tokens, work in (priced[stage],)
    )
