"""The `gristmill launch` command: checks a run, says what it will cost, and submits it to Google Cloud Dataflow.

Everything that can be refused is refused before anything is written or paid for, all of it at once. `--dry-run` ends
there, with the job as the service would get it.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gristmill.dataflow.cost import RunSizes, run_sizes, stage_costs
from gristmill.dataflow.flags import OWN_FLAGS, add_flags
from gristmill.dataflow.run_checks import check_run, refuse
from gristmill.dataflow.submit import DataflowExecutor, describe_job
from gristmill.dataflow.workers import Workers, choose_workers
from gristmill.formats.errors import SettingsError
from gristmill.formats.log import tell
from gristmill.formats.storage import write_bytes
from gristmill.pipelines.beam_quiet import quiet
from gristmill.pipelines.stage_names import STAGES
from gristmill.pipelines.workflow import Draft, draft_run, execute_draft

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options; what it does not know goes to Beam."""
    parser.add_argument("recipe", nargs="?", help="path or URL of the recipe")
    add_flags(parser)


def run(arguments: argparse.Namespace, beam_flags: list[str]) -> int:
    """Checks the run and submits it; returns the exit code.

    Raises:
        SettingsError: recipe, options, buckets or sizes cannot be followed; nothing was written.
        GristmillError: whatever stops the launch, or the job when it is waited for.
    """
    began = time.monotonic()
    if (arguments.recipe is None) == (arguments.recipe_option is None):
        raise SettingsError("name one recipe: `gristmill launch RECIPE …`, or --recipe=RECIPE")
    path, submits = arguments.recipe or arguments.recipe_option, not arguments.dry_run
    checked = check_run(path, arguments, beam_flags, command="launch", own=OWN_FLAGS, submits=submits)
    recipe, options = checked.recipe, checked.options
    draft = draft_run(recipe, options)
    stages = draft.unfinished() if not options.force else draft.wanted[draft.wanted.index(options.first) :]
    sizes = run_sizes(draft)
    refuse(list(sizes.problems))
    workers = choose_workers(sizes, stages, beam_flags, corpus=recipe.name)
    for line in _summary(draft, stages, sizes, workers):
        tell(line, "estimate")
    flags = (*beam_flags, *workers.flags)
    if arguments.dry_run:
        _dry_run(draft, stages, flags, workers, checked.given)
        return 0
    executor = DataflowExecutor(flags, workers.min_ram_bytes, wait=arguments.wait)
    if not execute_draft(draft, options, executor, began=began).stages:
        executor.leave_nothing()
    return 0


def _dry_run(draft: Draft, stages: Sequence[str], flags: Sequence[str], workers: Workers, given: Any) -> None:
    """Translates the run, and says what the job is."""
    with quiet():
        described, pipeline = describe_job(
            draft.job, stages, flags, workers.min_ram_bytes, write_manifest=draft.complete
        )
    environment = described["environment"]
    pool = environment["workerPools"][0]
    steps = sum(1 for transform in pipeline.components.transforms.values() if not transform.subtransforms)
    tell(f"job {described['name']}: {steps} steps, {pipeline.ByteSize():,} bytes of pipeline")
    tell(f"  image {', '.join(sorted({image['containerImage'] for image in pool['sdkHarnessContainerImages']}))}")
    tell(f"  labels {json.dumps(described.get('labels', {}), sort_keys=True)}")
    tell(f"  experiments {', '.join(sorted(environment['experiments']))}")
    if given["dataflow_job_file"]:
        write_bytes(given["dataflow_job_file"], json.dumps(described, indent=2, sort_keys=True).encode() + b"\n")
        tell(f"  written to {given['dataflow_job_file']}")
    tell("nothing was written or submitted, as --dry-run asks")


def _summary(draft: Draft, stages: Sequence[str], sizes: RunSizes, workers: Workers) -> Iterator[str]:
    """What the run is about, what its stages cost, and what executes it."""
    recipe = draft.recipe
    yield f"corpus {recipe.name!r} -> {recipe.output}"
    yield f"{sizes.input_bytes / 1e9:,.3f} GB of inputs in {sizes.splits:,} splits; counts {sizes.says}"
    yield f"{'stage':10}{'GB read':>12}{'GB written':>12}{'M tokens':>14}{'vCPU-hours':>12}"
    costs = stage_costs(sizes, stages, "" if draft.engine is None else draft.engine.name)
    for cost in costs:
        read, written = cost.read_bytes / 1e9, cost.written_bytes / 1e9
        yield f"{cost.stage:10}{read:12,.3f}{written:12,.3f}{cost.tokens / 1e6:14,.3f}{cost.vcpu_hours:12,.4f}"
    hours = sum(cost.vcpu_hours for cost in costs)
    yield f"{hours:,.4f} vCPU-hours of work; starting workers and waiting for storage come on top"
    done = [stage for stage in STAGES[: len(draft.wanted)] if stage not in stages]
    if done:
        yield f"finished before: {', '.join(done)}"
    yield f"workers: {' '.join(workers.flags)}"
    for stage, need in sorted(workers.min_ram_bytes.items()):
        yield f"  {stage} asks for {need / (1 << 30):,.1f} GiB, where the service places steps by memory"
    for warning in workers.warnings:
        yield f"warning: {warning}"
