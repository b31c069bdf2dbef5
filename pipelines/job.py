"""The job: what every work item of a run needs to know, small enough to travel with each of them.

A job holds the recipe, the tokenizer's facts and the digest of each stage; inputs and splits lie in the plan file
inside the corpus. A stage's digest covers everything its output follows from, so an unchanged digest means that the
work need not be done again.
"""

from dataclasses import asdict, dataclass
from typing import Any

from gristmill.formats.fingerprint import digest
from gristmill.formats.recipe import Recipe, SourceSettings
from gristmill.formats.storage import join
from gristmill.pipelines.plan import Plan, Split
from gristmill.pipelines.stage_graph import before
from gristmill.pipelines.stage_names import STAGES
from gristmill.tokenize.engine import Engine
from gristmill.tokenize.resolved import ResolvedTokenizer

__all__ = ["IDS_VERSION", "Job", "make_job", "stage_settings"]

IDS_VERSION = 1
"""Version of the ids that a scan keeps, and so of what samples of copies say."""

_CLEAN_VERSION = 1
_TOKENIZE_VERSION = 1
_INDEX_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run.

    Attributes:
        corpus: folder or URL of the corpus.
        recipe: the recipe.
        plan_digest: digest of the plan.
        partitions: into how many groups deduplication keys are dealt.
        input_bytes: bytes of all inputs, as stored; decides no byte of the corpus.
        stage_digests: digest of each stage by name.
        settings: by stage, what its digest covers, as far as it tells a user what changed.
        tokenizer: fingerprint of the tokenizer, empty when the run stops before it is needed.
        engine: name of the engine that makes the ids.
        engine_version: its version, which every worker must have.
        source: number of the only source to work on, None for all.
        encodes_early: whether splits are encoded while they are scanned; no byte of the corpus depends on it.
        run: name of the run in the record of who works on the corpus; empty where nothing keeps others off.
    """

    corpus: str
    recipe: Recipe
    plan_digest: str
    partitions: int
    input_bytes: int
    stage_digests: dict[str, str]
    settings: dict[str, dict[str, Any]]
    tokenizer: str
    engine: str
    engine_version: str
    source: int | None
    encodes_early: bool = False
    run: str = ""

    def source_of(self, split: Split) -> SourceSettings:
        """The source that a split belongs to."""
        return self.recipe.sources[split.source]

    def item(self, split: Split) -> str:
        """What receipts call the work on a split."""
        return f"{self.source_of(split).id}/{split.part:05d}"

    def wants(self, source: int) -> bool:
        """Whether the run works on a source."""
        return self.source is None or self.source == source

    def scans(self, split: Split) -> bool:
        """Whether the run scans a split: it is cleaned at all, and not behind the only source wanted."""
        behind = self.source is not None and split.source > self.source
        return self.recipe.sources[split.source].clean.enabled and not behind

    def spills_early(self, split: Split) -> bool:
        """Whether a split is encoded while it is scanned: not where its texts are known only when all are scanned."""
        return self.encodes_early and self.wants(split.source) and not self.cuts(split)

    def near(self, split: Split) -> bool:
        """Whether a split is searched for near duplicates."""
        settings = self.recipe.near_dedup
        return settings is not None and split.source in settings.sources

    def cuts(self, split: Split) -> bool:
        """Whether a split loses paragraphs that occurred before."""
        settings = self.recipe.paragraph_dedup
        return settings is not None and split.source in settings.sources

    def keeps_ids(self, split: Split) -> bool:
        """Whether the ids of a split's documents are kept, for samples of what deduplication drops to name them."""
        return _keeps_ids(self.recipe, split.source)

    def path(self, *parts: str) -> str:
        """Path of a file of the corpus."""
        return join(self.corpus, *parts)


def make_job(
    recipe: Recipe,
    plan: Plan,
    *,
    tokenizer: ResolvedTokenizer | None,
    engine: Engine | None,
    source: int | None = None,
) -> Job:
    """Puts a job together and works out the digest of each stage.

    Args:
        recipe: the recipe.
        plan: its inputs and splits.
        tokenizer: the tokenizer; None when the run stops before it is needed.
        engine: the engine that makes the ids; None likewise.
        source: number of the only source to work on, None for all.
    """
    fingerprint = "" if tokenizer is None else tokenizer.fingerprint
    settings = stage_settings(recipe, plan, fingerprint)
    digests: dict[str, str] = {}
    for stage in STAGES:
        above = "".join(digests[name] for name in before(stage))
        digests[stage] = digest({"stage": stage, "above": above, "settings": settings[stage]})
    copied = [
        [split.reading, recipe.sources[split.source].copies]
        for split in plan.splits
        if recipe.sources[split.source].materialize
    ]
    if copied:  # which no later stage's work depends on
        settings["download"]["copies"] = digest(copied)
        digests["download"] = digest({"above": digests["download"], "copies": copied})
    return Job(
        corpus=recipe.output,
        recipe=recipe,
        plan_digest=plan.digest(),
        partitions=plan.partitions,
        input_bytes=plan.input_bytes,
        stage_digests=digests,
        settings=settings,
        tokenizer=fingerprint,
        engine="" if engine is None else engine.name,
        engine_version="" if engine is None else engine.version,
        source=source,
    )


def stage_settings(recipe: Recipe, plan: Plan, tokenizer: str) -> dict[str, dict[str, Any]]:
    """What each stage's output follows from, beyond the stages before it."""
    inputs = {
        source.id: digest([[file.relative, file.size, file.checksum] for file in files])
        for source, files in zip(recipe.sources, plan.inputs, strict=True)
    }
    index = None
    if recipe.index is not None:
        ids = [source.id for source in recipe.sources]
        schedule = {  # by name, so that what changed in it can be told
            f"phase_{number}": {
                "from_sample": phase.from_sample,
                "weights": dict(zip(ids, phase.weights, strict=True)),
            }
            for number, phase in enumerate(recipe.index.schedule, 1)
        }
        index = {**asdict(recipe.index), "schedule": schedule}
    named = {source.id: IDS_VERSION for number, source in enumerate(recipe.sources) if _keeps_ids(recipe, number)}
    return {
        "download": {"inputs": inputs, "sources": [source.id for source in recipe.sources]},
        "clean": {
            "version": _CLEAN_VERSION,
            "plan": plan.digest(),
            "sources": {source.id: source.identity() for source in recipe.sources},
            **({} if recipe.near_dedup is None else {"near_dedup": asdict(recipe.near_dedup)}),
            **({} if recipe.paragraph_dedup is None else {"paragraph_dedup": asdict(recipe.paragraph_dedup)}),
            "dedup_key": recipe.key_identity(),
            **({"ids": named} if named else {}),
        },
        "tokenize": {
            "version": _TOKENIZE_VERSION,
            "tokenizer": tokenizer,
            "control_text": recipe.tokenizer.control_text,
            "target_tokens": recipe.target_tokens,
            "limits": {source.id: asdict(source.limits) for source in recipe.sources if source.limits.any},
            **({} if recipe.budget.tokens is None else {"budget": _budget(recipe)}),
        },
        "index": {
            "version": _INDEX_VERSION,
            "index": index,
            "mixture": {source.id: [source.weight, source.max_epochs] for source in recipe.sources},
        },
        "blend": {},
    }


def _keeps_ids(recipe: Recipe, number: int) -> bool:
    """Whether a source has ids, and can lose documents or paragraphs to others."""
    source = recipe.sources[number]
    named = source.carry is not None and source.carry.id_field is not None
    compared = any(
        settings is not None and number in settings.sources for settings in (recipe.near_dedup, recipe.paragraph_dedup)
    )
    return named and source.clean.enabled and (source.clean.exact_dedup or compared)


def _budget(recipe: Recipe) -> dict[str, Any]:
    """The budget with the weights that it is dealt by."""
    return {**asdict(recipe.budget), "weights": [source.weight for source in recipe.sources]}
