"""Prepares a corpus: plans the run, works out what is still to be done, and has it done.

Everything that can be refused is refused before anything is written. Finished stages are recognised by their receipts;
a change of inputs, settings or tokenizer is named, and what it makes stale is withdrawn before the work starts, so that
old output is never served for new input.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gristmill.formats.errors import CorpusError, FormatError, GristmillError, SettingsError, StorageError
from gristmill.formats.fingerprint import pretty_json
from gristmill.formats.log import event
from gristmill.formats.manifest import MANIFEST_NAME
from gristmill.formats.receipts import STAGES_FOLDER
from gristmill.formats.recipe import Recipe
from gristmill.formats.storage import exists, is_local, join, list_files, list_folders, local_path, write_bytes
from gristmill.pipelines.clean import prime_cleaning
from gristmill.pipelines.clean_pins import pin_recipe
from gristmill.pipelines.encoders import TOKENIZER_FOLDER, prime_encoder
from gristmill.pipelines.finish import finish, manifest_is_current
from gristmill.pipelines.index import plan_index
from gristmill.pipelines.job import Job, make_job
from gristmill.pipelines.limits import limited_plan, source_limits
from gristmill.pipelines.lock_options import STALE_SECONDS
from gristmill.pipelines.lock_record import AskService
from gristmill.pipelines.plan import Plan, plan_run, write_plan
from gristmill.pipelines.progress import Progress
from gristmill.pipelines.read import read_split
from gristmill.pipelines.records import RecordAccount
from gristmill.pipelines.run_lock import working_on
from gristmill.pipelines.runners import Executor, RunnerChoice, check_runner, choose_runner
from gristmill.pipelines.stage_graph import needs_tokenizer, stage_named
from gristmill.pipelines.stage_names import STAGES
from gristmill.pipelines.stages import valid_stage
from gristmill.pipelines.stale import close_again, finished_stages, stages_to_run, unfinished
from gristmill.pipelines.streamed_sources import streamed_sources
from gristmill.tokenize.encode import Encoder
from gristmill.tokenize.engine import Engine, choose_engine, set_engine_threads
from gristmill.tokenize.load import resolve_tokenizer
from gristmill.tokenize.resolved import ResolvedTokenizer, write_resolved

__all__ = ["check_options", "Draft", "draft_run", "execute_draft", "prepare", "PrepareOptions", "PrepareResult"]

_SAMPLE_DOCUMENTS = 64
_SAMPLE_CHARS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """What narrows a run and how it is executed.

    Attributes:
        first: first stage to run; all before it must be finished.
        last: last stage to run; None for all that the recipe asks for.
        source: id of the only source to work on, None for all.
        runner: "auto", "loop", or the name of a Beam runner.
        flags: Beam's pipeline options.
        max_workers: most processes of "auto" and "loop"; None leaves the choice to `choose_runner`.
        quiet: whether to print nothing.
        verbose: whether Beam's own log is shown.
        force: whether to do the stages again from `first` on, although they are finished.
        stale_after: seconds of silence after which another run on the output counts as gone.
        ask: asks the service of such a run's job whether it goes on.
        executor: makes what executes the run as chosen.
    """

    first: str = STAGES[0]
    last: str | None = None
    source: str | None = None
    runner: str = "auto"
    flags: tuple[str, ...] = ()
    max_workers: int | None = None
    quiet: bool = False
    verbose: bool = False
    force: bool = False
    stale_after: float = STALE_SECONDS
    ask: AskService | None = None
    executor: Callable[[RunnerChoice], Executor] = Executor


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareResult:
    """What a run did.

    Attributes:
        corpus: folder or URL of the corpus.
        stages: stages that were run; empty when all was finished already.
        finished: whether the corpus has a manifest now.
    """

    corpus: str
    stages: tuple[str, ...]
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A run that is worked out, of which nothing is written yet.

    Attributes:
        plan: inputs and splits, as far as the recipe's limits need them.
        job: what every work item needs to know.
        wanted: the stages up to the last one wanted.
        resolved: the tokenizer; None when the run stops before it is needed.
        engine: the engine that makes the ids; None likewise.
    """

    plan: Plan
    job: Job
    wanted: tuple[str, ...]
    resolved: ResolvedTokenizer | None
    engine: Engine | None

    @property
    def recipe(self) -> Recipe:
        """The recipe, with what it names pinned."""
        return self.job.recipe

    @property
    def complete(self) -> bool:
        """Whether the manifest follows on the last stage."""
        return needs_tokenizer(self.wanted) and self.job.source is None

    def unfinished(self) -> tuple[str, ...]:
        """The wanted stages that have no valid receipt, as an execution would begin with them."""
        return tuple(unfinished(self.job, self.wanted))


def prepare(recipe: Recipe, options: PrepareOptions | None = None) -> PrepareResult:
    """Prepares a corpus from a recipe, or completes one that was begun.

    Args:
        recipe: what to prepare.
        options: what narrows the run.

    Raises:
        SettingsError: recipe, options or tokenizer cannot be followed; nothing was written.
        DataError: an input or a total is wrong; what was finished before stays for the next run.
        StorageError: a file cannot be read or written.
    """
    options = options or PrepareOptions()
    began = time.monotonic()
    say = _silent if options.quiet else _say
    wanted = check_options(recipe, options)
    check_runner(options.runner, options.flags, say)
    _check_output(recipe.output)
    recipe = pin_recipe(recipe)
    prime_cleaning(recipe)
    plan = plan_run(recipe)
    choice = choose_runner(
        options.runner, options.flags, plan.input_bytes, len(plan.splits), max_workers=options.max_workers
    )
    set_engine_threads(choice.engine_threads)
    files, splits = sum(map(len, plan.inputs)), len(plan.splits)
    say(
        f"{recipe.name}: {files} input files, {plan.input_bytes / 1e6:.1f} MB, {splits} splits -> {recipe.output}",
        "plan",
        output=recipe.output,
        input_files=files,
        input_bytes=plan.input_bytes,
        splits=splits,
    )
    with options.executor(choice) as executor:
        return execute_draft(_draft(recipe, plan, options, wanted), options, executor, began=began)


def check_options(recipe: Recipe, options: PrepareOptions) -> list[str]:
    """The stages up to the last one wanted, where stages and source are such as the recipe has.

    Raises:
        SettingsError: they are not.
    """
    _source_number(recipe, options.source)
    return _wanted_stages(recipe, options)


def draft_run(recipe: Recipe, options: PrepareOptions, *, writes: bool = True) -> Draft:
    """Works a run out, as `prepare` does before it writes anything.

    Args:
        recipe: what to prepare.
        options: what narrows the run.
        writes: whether the output must take files; a look at a run needs no more than to read there.

    Raises:
        SettingsError: recipe, options or tokenizer cannot be followed.
        DataError: the sample of an input cannot be read.
        StorageError: a file cannot be listed or read.
    """
    wanted = check_options(recipe, options)
    _check_output(recipe.output, writes=writes)
    recipe = pin_recipe(recipe)
    prime_cleaning(recipe)
    return _draft(recipe, plan_run(recipe), options, wanted)


def _draft(recipe: Recipe, plan: Plan, options: PrepareOptions, wanted: Sequence[str]) -> Draft:
    """Chooses the encoder of a planned run and puts its job together."""
    say = _silent if options.quiet else _say
    for line in streamed_sources(recipe.sources, plan.inputs):
        say(line)
    source = _source_number(recipe, options.source)
    resolved, engine = None, None
    if needs_tokenizer(wanted):
        resolved = resolve_tokenizer(recipe.tokenizer.path, recipe.tokenizer.eod)
        engine = _engine(recipe, plan, resolved)
    plan = _limited(recipe, plan, resolved, engine, say)
    job = make_job(recipe, plan, tokenizer=resolved, engine=engine, source=source)
    return Draft(plan=plan, job=job, wanted=tuple(wanted), resolved=resolved, engine=engine)


def execute_draft(draft: Draft, options: PrepareOptions, executor: Executor, *, began: float) -> PrepareResult:
    """Works out what is left to do of a run and has it done.

    Args:
        draft: the run.
        options: what narrows the run.
        executor: what executes it; one that does not wait has only handed the work on when this returns.
        began: `time.monotonic()` when the run began.

    Raises:
        GristmillError: whatever stops the run.
    """
    say = _silent if options.quiet else _say
    plan, job, wanted, complete = draft.plan, draft.job, draft.wanted, draft.complete
    recipe, resolved, engine = draft.recipe, draft.resolved, draft.engine
    with working_on(job.corpus, runner=executor.says, stale_after=options.stale_after, ask=options.ask, say=say) as run:
        job = replace(job, run=run)
        if "index" in wanted and valid_stage(job, "tokenize") and not valid_stage(job, "index"):
            with contextlib.suppress(CorpusError, FormatError, StorageError):  # which the run itself mends or names
                plan_index(job)  # refuses what the token counts do not allow, before anything is withdrawn
        before = finished_stages(job, wanted) if options.force and job.source is not None else {}
        todo = stages_to_run(job, wanted, options.first, say, force=options.force)
        current = manifest_is_current(job) and not exists(job.path("spill"))
        if not todo and (current or not complete):
            says = f"nothing to do: {recipe.output} is finished for this recipe, these inputs and this tokenizer"
            say(says, "nothing_to_do", output=recipe.output)
            return PrepareResult(corpus=job.corpus, stages=(), finished=complete)
        write_plan(job.corpus, plan)
        if resolved is not None and engine is not None:
            write_resolved(resolved, job.path(TOKENIZER_FOLDER))
            prime_encoder(job, Encoder.of(resolved, engine))
        if not todo:
            say("every stage is finished; the manifest is written anew")
            finish(job)
            return PrepareResult(corpus=job.corpus, stages=(), finished=True)
        job = replace(job, encodes_early=_encodes_early(todo, engine))
        engine_says = f"; ids by {engine.name} {engine.version}" if engine else ""
        say(f"stages {', '.join(todo)} on {executor.says}{engine_says}", "run", stages=list(todo), runner=executor.says)
        watched = not options.quiet and executor.waits and not executor.tells
        with Progress(job, plan, todo) if watched else contextlib.nullcontext():
            executor.execute(job, todo, write_manifest=complete, verbose=options.verbose)
        if not executor.waits:
            return PrepareResult(corpus=job.corpus, stages=tuple(todo), finished=False)
        if executor.outlives:
            _require_done(job, todo, executor.says, complete=complete)
        if before:
            close_again(job, todo, before, say)
        seconds = time.monotonic() - began
        _report(job, plan, executor.says, todo, seconds)
    say(f"done in {seconds:.1f} s", "done", seconds=round(seconds, 3), output=job.corpus)
    return PrepareResult(corpus=job.corpus, stages=tuple(todo), finished=complete)


def _say(text: str, name: str = "note", **fields: Any) -> None:
    event(name, text, **fields)


def _silent(_: str, __: str = "", **___: object) -> None:
    """Says nothing."""


def _source_number(recipe: Recipe, source: str | None) -> int | None:
    if source is None:
        return None
    ids = [entry.id for entry in recipe.sources]
    if source not in ids:
        raise SettingsError(f"--source {source}: the recipe has no such source; it has {', '.join(ids)}")
    return ids.index(source)


def _wanted_stages(recipe: Recipe, options: PrepareOptions) -> list[str]:
    """The stages up to the last one wanted."""
    last = options.last or STAGES[-1]
    for name, stage in (("--from", options.first), ("--to", last)):
        if stage not in STAGES:
            raise SettingsError(f"{name} {stage}: no such stage; the stages are {', '.join(STAGES)}")
    if STAGES.index(options.first) > STAGES.index(last):
        raise SettingsError(f"--from {options.first} --to {last}: the first stage lies behind the last")
    stages = list(STAGES[: STAGES.index(last) + 1])
    if recipe.index is None or options.source is not None:
        if options.last is not None and stage_named(options.last).every_source:
            why = "the recipe has no [index]" if recipe.index is None else "an index set needs every source"
            raise SettingsError(f"--to {options.last}: {why}")
        stages = [stage for stage in stages if not stage_named(stage).every_source]
    if options.first not in stages:
        raise SettingsError(f"--from {options.first}: the run ends before it, with {stages[-1]}")
    return stages


def _check_output(output: str, *, writes: bool = True) -> None:
    """Refuses an output that holds something else, or that `writes` are wanted to and not allowed; writes nothing."""
    try:
        known = exists(join(output, MANIFEST_NAME)) or exists(join(output, STAGES_FOLDER))
        present = [] if known else list_files(output) + [join(output, name) for name in list_folders(output)]
    except StorageError as error:
        raise SettingsError(f"output {error}") from error
    if present:
        raise SettingsError(
            f"output {output}: holds {present[0]} but no corpus; give an empty or new folder, so that nothing of "
            "yours is overwritten"
        )
    if is_local(output):
        folder = os.path.abspath(local_path(output))
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        if not os.path.isdir(folder):
            raise SettingsError(f"output {output}: {folder} is no folder")
        if writes and not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise SettingsError(f"output {output}: {folder} may not be written to")


def _engine(recipe: Recipe, plan: Plan, resolved: ResolvedTokenizer) -> Engine:
    """The engine that proved itself on a probe and a sample of the corpus."""
    keep = recipe.tokenizer.control_text == "keep"
    return choose_engine(resolved, _sample(recipe, plan), keep_control_tokens=keep).engine


def _limited(
    recipe: Recipe,
    plan: Plan,
    resolved: ResolvedTokenizer | None,
    engine: Engine | None,
    say: Callable[[str], None],
) -> Plan:
    """The plan as far as the recipe's limits need it; the sample is the same whatever stages are run."""
    if not any(source_limits(recipe, number).any for number in range(len(recipe.sources))):
        return plan
    if resolved is None or engine is None:
        resolved = resolve_tokenizer(recipe.tokenizer.path, recipe.tokenizer.eod)
        engine = _engine(recipe, plan, resolved)
    encoder = Encoder.of(resolved, engine)
    limited = limited_plan(recipe, plan, lambda texts: int(encoder.encode(texts).lengths.sum()))
    if limited is not plan:
        say(f"for the limits of the recipe, {len(limited.splits)} of {len(plan.splits)} splits are read")
    return limited


def _encodes_early(todo: Sequence[str], engine: Engine | None) -> bool:
    """Whether the scan encodes too: the fast engine costs less than a second reading, the definition a lot more."""
    return engine is not None and engine.name == "fastokens" and {"clean", "tokenize"} <= set(todo)


def _sample(recipe: Recipe, plan: Plan) -> list[str]:
    """A few documents of each source, for the engines to agree on; a fault in them is met again by the run itself."""
    texts: list[str] = []
    for number, source in enumerate(recipe.sources):
        split = next((split for split in plan.splits if split.source == number), None)
        if split is None:
            continue
        try:
            batch = next(read_split(split, source, RecordAccount("skip")), None)
        except GristmillError:
            continue
        if batch is not None:
            texts += [text[:_SAMPLE_CHARS] for text in batch.texts[:_SAMPLE_DOCUMENTS]]
    return texts


def _require_done(job: Job, stages: Sequence[str], runner: str, *, complete: bool) -> None:
    """Refuses to call a run done whose workers were elsewhere and left nothing here."""
    lacking = None
    if complete:
        lacking = None if exists(job.path(MANIFEST_NAME)) else f"no {MANIFEST_NAME}"
    elif job.source is None and valid_stage(job, stages[-1]) is None:
        lacking = f"no receipt of stage {stages[-1]}"
    if lacking is not None:
        raise CorpusError(
            f"{job.corpus}: {runner} says that the job is done, but there is {lacking}; its workers must write to the "
            "place that is named here, so look into their log, then run again"
        )


def _report(job: Job, plan: Plan, runner: str, stages: Sequence[str], seconds: float) -> None:
    """Writes where inputs lay, how the run was executed and how long it took; no part of the corpus's identity."""
    inputs = [
        {"source": source.id, "relative": file.relative, "path": file.path, "checksum": file.checksum}
        for source, files in zip(job.recipe.sources, plan.inputs, strict=True)
        for file in files
    ]
    value = {"runner": runner, "stages": list(stages), "seconds": round(seconds, 3), "inputs": inputs}
    write_bytes(job.path("report", "run.json"), pretty_json(value))
