"""Shows how far a run is: in place on a terminal, in lines elsewhere, as events in a log of JSON lines.

What is shown comes from the receipts that items and stages publish, wherever they run. A thread looks every second
where the corpus lies on this machine, and every quarter of a minute in a store. Whatever goes wrong in it ends the view
and not the run.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from gristmill.formats.errors import GristmillError
from gristmill.formats.exclusive import modified_seconds
from gristmill.formats.index_set import set_name
from gristmill.formats.index_sources import index_sources
from gristmill.formats.log import event, logs_json
from gristmill.formats.receipts import Receipt, read_receipt, stage_receipt_path
from gristmill.formats.split import SPLITS
from gristmill.formats.storage import exists, is_local
from gristmill.pipelines.finish import source_entries
from gristmill.pipelines.job import Job
from gristmill.pipelines.live_view import LiveView, is_terminal
from gristmill.pipelines.plan import Plan
from gristmill.pipelines.raw import copy_receipt
from gristmill.pipelines.receipt_watch import ReceiptWatch
from gristmill.pipelines.run_tally import RunTally, number_text, time_text
from gristmill.pipelines.scan import scan_receipt
from gristmill.pipelines.stage_graph import stage_named

__all__ = ["Progress", "stage_totals"]

_LOCAL_SECONDS = 1.0
_STORE_SECONDS = 15.0
_LINE_SECONDS = 10.0
_PATIENCE_SECONDS = 5.0
_FAILURES = 3
_MOST_SOURCES = 20


class Progress:
    """Follows a run; a context manager around it.

    Args:
        job: the run.
        plan: its plan.
        stages: the stages it will do, in order; none of them has a receipt.
    """

    def __init__(self, job: Job, plan: Plan, stages: Sequence[str]) -> None:
        self._job = job
        self._stages = list(stages)
        self._began = self._stage_began = self._told = time.monotonic()
        units = {step: unit for stage in stages for step, unit in stage_named(stage).steps}
        self._tally = RunTally(job, plan, units)
        self._items = {job.item(split): split for split in plan.splits}
        self._watch = ReceiptWatch(job.corpus, self._earlier)
        self._view: LiveView | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="gristmill-progress", daemon=True)
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.suppress(GristmillError, OSError):
            for step, tally in self._tally.steps.items():
                for source in tally.sources if step != "index" else ():
                    self._watch.follow(step, source)
        if not logs_json() and sys.stderr is not None and is_terminal(sys.stderr):
            self._view = self._opened.enter_context(LiveView(sys.stderr))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_PATIENCE_SECONDS)
        local = is_local(self._job.corpus)
        if not self._thread.is_alive() and (local or kind is None):
            with contextlib.suppress(Exception):  # what is shown is no reason to fail
                self._look(last=local)
                if (self._stages and kind is not None) or self._job.source is not None:
                    self._tell_steps()
        self._opened.close()

    def _follow(self) -> None:
        """Looks again and again until the run ends, or looking fails for good."""
        failures = 0
        seconds = _LOCAL_SECONDS if is_local(self._job.corpus) else _STORE_SECONDS
        while failures < _FAILURES and not self._stop.wait(seconds):
            try:
                self._look()
                failures = 0
            except Exception:  # noqa: BLE001 - whatever it is, the run goes on
                failures += 1
        if self._view is not None and failures:
            self._view.draw([])

    def _look(self, *, last: bool = False) -> None:
        """Takes in what is new, tells of stages that ended, and shows where the run is."""
        while self._stages:
            ended = self._job.source is None and exists(stage_receipt_path(self._job.corpus, self._stages[0]))
            for found in self._watch.look(self._steps(), last=ended or last):
                if self._tally.add(found) and logs_json():
                    facts = {name: found.result[name] for name in _FACTS if name in found.result}
                    event("item", f"{found.step} {found.item}", step=found.step, item=found.item, **facts)
            if not ended:
                break
            self._tell_end(self._stages.pop(0))
            if self._stages[:1] == ["index"]:
                self._follow_index()
        now = time.monotonic()
        if self._view is not None:
            self._view.draw(self._drawing(now))
        elif self._stages and not last and now - self._told >= _LINE_SECONDS:
            self._told = now
            self._tell_steps()

    def _steps(self) -> list[str]:
        """Steps of the stage that is being done; a run for one source leaves no receipts of stages, so of all."""
        stages = self._stages[:1] if self._job.source is None else self._stages
        return [step for stage in stages for step, _ in stage_named(stage).steps]

    def _follow_index(self) -> None:
        settings = self._job.recipe.index
        if settings is not None:
            name = set_name(settings, index_sources(source_entries(self._job)))
            for split in SPLITS:
                self._watch.follow("index", f"{name}/{split}")

    def _earlier(self, step: str, item: str) -> Receipt | None:
        """The receipt of an item that an earlier run did; of steps whose items follow from others it cannot be told."""
        split = self._items.get(item)
        if split is None:
            return None
        if step == "scan":
            return scan_receipt(self._job, split)
        return copy_receipt(self._job, split) if step == "download" else None

    def _drawing(self, now: float) -> list[str]:
        """What a terminal shows: the stage, its steps, and what each source came to."""
        if not self._stages:
            return ["writing the manifest"]
        seconds = now - self._stage_began
        lines = [f"{self._stages[0]}  {time_text(seconds)}"]
        for step in self._steps():
            tally = self._tally.steps[step]
            lines.append(f"  {step}: {tally.line(seconds)}")
            if len(tally.sources) > 1 and tally.total().done:
                own = tally.source_lines()
                lines += [f"    {line}" for line in own[:_MOST_SOURCES]]
                lines += [f"    and {len(own) - _MOST_SOURCES} more sources"] * (len(own) > _MOST_SOURCES)
        return lines

    def _tell_steps(self) -> None:
        """Says in a line per step how far it is, where anything is done of it."""
        now = time.monotonic()
        for step in self._steps():
            tally = self._tally.steps[step]
            seconds = now - self._stage_began
            if tally.total().done or logs_json():
                text = f"  {now - self._began:6.1f} s  {step}: {tally.line(seconds)}"
                event("progress", text, stage=self._stages[0], **(tally.fields(seconds) if logs_json() else {}))

    def _tell_end(self, stage: str) -> None:
        """Says that a stage ended and what it came to, source by source; the next one begins."""
        ended = self._published(stage)
        seconds = round(ended - self._stage_began, 3)
        receipt = read_receipt(stage_receipt_path(self._job.corpus, stage))
        totals = {} if receipt is None else stage_totals(stage, receipt.result)
        text = f"  {ended - self._began:6.1f} s  {stage} is done"
        if len(totals) == 1:
            text += f": {_words(*totals.values())}"
        else:
            text += "".join(f"\n{'':12}{name}: {_words(found)}" for name, found in list(totals.items())[:_MOST_SOURCES])
        event("stage_end", text, stage=stage, seconds=seconds, sources=totals)
        self._stage_began = ended
        self._told = time.monotonic()

    def _published(self, stage: str) -> float:
        """When a stage's receipt was published, as `time.monotonic()` tells time; it is seen some time later."""
        now, seen = time.monotonic(), time.time()
        with contextlib.suppress(GristmillError, OSError, ValueError):
            published = modified_seconds(stage_receipt_path(self._job.corpus, stage))
            if published is not None:  # by a clock that may be another's
                return min(now, max(self._stage_began, now - (seen - published)))
        return now


_FACTS = ("records", "kept", "bad", "dropped", "tokens", "documents", "path")
"""What of an item's result is logged."""


def stage_totals(stage: str, result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a stage came to, by source, or by split of the order: the counts of its receipt by name.

    Args:
        stage: name of the stage.
        result: of its receipt.
    """
    if stage == "download":
        return {name: dict(found) for name, found in result["sources"].items()}
    if stage == "clean":
        return {
            name: {"documents": found["records"], "kept": found["kept"], "rejected": found["dropped"]}
            for name, found in result["sources"].items()
        }
    if stage == "tokenize":
        return {
            found["id"]: {
                "documents": found["kept"],
                "tokens": sum(shard["tokens"] for shard in found["shards"]),
                "shards": len(found["shards"]),
            }
            for found in result["sources"]
        }
    samples: dict[str, dict[str, Any]] = {}
    if stage == "index":
        for member in result["members"]:
            own = samples.setdefault(member["split"], {"members": 0})
            own["members"] += 1
    if stage == "blend":
        samples = {split: {"samples": count} for split, count in result["samples"].items()}
    return samples


def _words(totals: Mapping[str, Any]) -> str:
    """The same in words."""
    parts = []
    for name, value in totals.items():
        if isinstance(value, Mapping):
            most = sorted(value.items(), key=lambda entry: (-entry[1], entry[0]))
            parts += [f"{sum(value.values()):,} {name} ({', '.join(f'{n:,} {reason}' for reason, n in most)})"] * bool(
                most
            )
        elif name == "bytes":
            parts.append(f"{value / 1e6:,.1f} MB")
        elif name == "tokens":
            parts.append(f"{number_text(value)} tokens")
        else:
            parts.append(f"{value:,} {name.removesuffix('s') if value == 1 else name}")
    return ", ".join(parts)
