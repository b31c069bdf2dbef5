"""Tells how far a job on Dataflow is, by the counters that its workers keep and the service adds up.

The launcher asks now and then, and once more at the end. A question that fails is passed over: the job goes on, and its
page tells the rest.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from gristmill.formats.log import event
from gristmill.pipelines.run_tally import number_text
from gristmill.pipelines.stage_names import STAGES

__all__ = ["counter_totals", "stage_line", "told_counters"]

_NAMESPACE = "gristmill"
_SECONDS = 30.0
_WORDS = {"documents_in": "documents", "documents_kept": "kept", "dropped": "dropped", "bytes_in": "bytes of text"}


@contextlib.contextmanager
def told_counters(result: Any, *, seconds: float = _SECONDS) -> Iterator[None]:
    """Tells of a job's counters inside the block, where they changed, and at its end.

    Args:
        result: what Beam gave for the job.
        seconds: between questions.
    """
    began = time.monotonic()
    stop = threading.Event()
    told: dict[str, str] = {}

    def look() -> None:
        with contextlib.suppress(Exception):  # whatever the service or its client raise; the job is another thing
            for stage, counts in counter_totals(result).items():
                line = stage_line(counts)
                if told.get(stage) != line:
                    told[stage] = line
                    text = f"  {time.monotonic() - began:6.0f} s  {stage}: {line}"
                    event("progress", text, stage=stage, counters=dict(sorted(counts.items())))

    def follow() -> None:
        while not stop.wait(seconds):
            look()

    thread = threading.Thread(target=follow, name="gristmill-counters", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(seconds)
        look()


def counter_totals(result: Any) -> dict[str, Counter[str]]:
    """The counters of a job, by stage and by what is counted, all sources together.

    Args:
        result: what Beam gave for the job.
    """
    from apache_beam.metrics import MetricsFilter

    totals: dict[str, Counter[str]] = {}
    for entry in result.metrics().query(MetricsFilter().with_namespace(_NAMESPACE))["counters"]:
        stage, _, rest = str(entry.key.metric.name).partition("/")
        what = rest.partition("/")[2].partition("/")[0]
        value = entry.committed if entry.committed is not None else entry.attempted
        totals.setdefault(stage, Counter())[what] += int(value or 0)
    return {stage: totals[stage] for stage in STAGES if stage in totals}


def stage_line(counts: Mapping[str, int]) -> str:
    """The counters of a stage in words."""
    items = [(name.removesuffix("_items"), count) for name, count in counts.items() if name.endswith("_items")]
    parts = [f"{count:,} items of {name}" for name, count in sorted(items)]
    parts += [f"{number_text(counts[name])} {words}" for name, words in _WORDS.items() if counts.get(name)]
    tokens = counts.get("tokens") or counts.get("tokens_made")
    parts += [f"{number_text(tokens)} tokens"] if tokens else []
    return ", ".join(parts)
