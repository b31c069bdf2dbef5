"""Adds up what the items of a run came to, by step and source, and says it in lines and as JSON values.

Rates are means since the stage began, over what this run did itself, so that they do not jump with every item; in the
first second there is too little to tell one from. The time left is what the rest of the step takes at that rate; what
other steps will take nobody knows yet.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gristmill.pipelines.job import Job
from gristmill.pipelines.plan import Plan, Split
from gristmill.pipelines.raw import copies
from gristmill.pipelines.receipt_watch import FoundItem

__all__ = ["number_text", "RunTally", "SourceTally", "StepTally", "time_text"]

_REASONS = 3
_LEAST_SECONDS = 1.0  # what was done in less says nothing of what will be


@dataclass(slots=True)
class SourceTally:
    """What the items of a step and a source came to so far.

    Attributes:
        expected: items there are to do; None where that is not known yet.
        total_bytes: bytes of input that they read, as stored; 0 where a step reads none.
        items: names of those that are done.
        earlier: how many of these an earlier run did.
        read_bytes: bytes of input of those that are done.
        own_bytes: of those that this run did.
        records: records that came in.
        tokens: tokens made.
        own_tokens: of those that this run made.
        rejected: records left out, by reason.
    """

    expected: int | None = None
    total_bytes: int = 0
    items: set[str] = field(default_factory=set)
    earlier: int = 0
    read_bytes: int = 0
    own_bytes: int = 0
    records: int = 0
    tokens: int = 0
    own_tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    @property
    def done(self) -> int:
        """Items that are done."""
        return len(self.items)

    def add(self, found: FoundItem, input_bytes: int, *, makes: bool = True) -> bool:
        """Adds an item; False where it was added before. `makes` says whether its tokens were made by it."""
        if found.item in self.items:
            return False
        self.items.add(found.item)
        account = found.result.get("account", found.result)
        tokens = int(found.result.get("tokens", 0))
        self.earlier += found.earlier
        self.read_bytes += input_bytes
        self.records += int(account.get("records", 0))
        self.tokens += tokens
        self.rejected.update(account.get("dropped", {}))
        if not found.earlier:
            self.own_bytes += input_bytes
            self.own_tokens += tokens if makes else 0
        return True


@dataclass(slots=True)
class StepTally:
    """The tallies of a step by source.

    Attributes:
        step: its name.
        unit: what one item is, in the plural.
        sources: tallies by the source's id.
    """

    step: str
    unit: str
    sources: dict[str, SourceTally] = field(default_factory=dict)

    def total(self) -> SourceTally:
        """All sources together."""
        total = SourceTally(expected=0)
        for source in self.sources.values():
            total.items |= source.items
            total.expected = (
                None if total.expected is None or source.expected is None else total.expected + source.expected
            )
            for name in ("total_bytes", "earlier", "read_bytes", "own_bytes", "records", "tokens", "own_tokens"):
                setattr(total, name, getattr(total, name) + getattr(source, name))
            total.rejected.update(source.rejected)
        return total

    def seconds_left(self, seconds: float) -> float | None:
        """What the rest takes at the rate so far; None where there is none to go by."""
        total = self.total()
        own = total.done - total.earlier
        if total.expected is None or own <= 0 or seconds < _LEAST_SECONDS:
            return None
        if total.own_bytes and total.total_bytes:
            return max(0.0, (total.total_bytes - total.read_bytes) * seconds / total.own_bytes)
        return max(0.0, (total.expected - total.done) * seconds / own)

    def line(self, seconds: float) -> str:
        """The step in a line: items, rates, what was left out, time left."""
        total = self.total()
        parts = [_items(total, self.unit)]
        if seconds >= _LEAST_SECONDS and total.own_bytes:
            parts.append(f"{total.own_bytes / 1e6 / seconds:,.1f} MB/s")
        if seconds >= _LEAST_SECONDS and total.own_tokens:
            parts.append(f"{number_text(total.own_tokens / seconds)} tokens/s")
        if total.rejected:
            parts.append(_rejected(total.rejected))
        left = self.seconds_left(seconds)
        if left is not None and total.done != total.expected:
            parts.append(f"{time_text(left)} left")
        return ", ".join(parts)

    def source_lines(self) -> list[str]:
        """A line for each source, those that are not finished first."""
        ordered = sorted(self.sources.items(), key=lambda entry: entry[1].done == entry[1].expected)
        width = max((len(name) for name in self.sources), default=0)
        lines = []
        for name, source in ordered:
            parts = [_items(source, self.unit)]
            if source.tokens:
                parts.append(f"{number_text(source.tokens)} tokens")
            if source.rejected:
                parts.append(_rejected(source.rejected))
            lines.append(f"{name:{width}}  {', '.join(parts)}")
        return lines

    def fields(self, seconds: float) -> dict[str, Any]:
        """The step as JSON values."""
        total = self.total()
        left = self.seconds_left(seconds)
        told = seconds >= _LEAST_SECONDS
        return {
            "step": self.step,
            **_fields(total),
            "seconds": round(seconds, 3),
            "bytes_per_second": round(total.own_bytes / seconds) if told else None,
            "tokens_per_second": round(total.own_tokens / seconds) if told else None,
            "seconds_left": None if left is None else round(left),
            "sources": {name: _fields(source) for name, source in self.sources.items()},
        }


class RunTally:
    """The tallies of a run.

    Args:
        job: the run.
        plan: its plan.
        units: by step, what one item is.
    """

    def __init__(self, job: Job, plan: Plan, units: Mapping[str, str]) -> None:
        self.steps = {step: StepTally(step=step, unit=unit) for step, unit in units.items()}
        self._bytes: dict[tuple[str, str], int] = {}
        self._encoded: set[str] = set()  # items whose tokens the scan makes
        weights = _split_bytes(plan)
        copied = {split.number for split in copies(job, plan)}
        for split in plan.splits:
            reads = {
                "download": split.number in copied,
                "scan": job.scans(split),
                "encode": job.wants(split.source),
            }
            source = job.source_of(split)
            for step in reads.keys() & self.steps.keys():
                if reads[step]:
                    once = step == "encode" and source.clean.enabled and job.spills_early(split)  # the scan read it
                    self._expect(step, source.id, job.item(split), 0 if once else weights[split.number])
                    self._encoded |= {job.item(split)} if once else set()
        for step in self.steps.keys() & {"assemble", "index"}:
            for number, source in enumerate(job.recipe.sources):
                if job.wants(number):
                    self.steps[step].sources[source.id] = SourceTally()

    def _expect(self, step: str, source: str, item: str, size: int) -> None:
        tally = self.steps[step].sources.setdefault(source, SourceTally(expected=0))
        tally.expected = (tally.expected or 0) + 1
        tally.total_bytes += size
        self._bytes[step, item] = size

    def add(self, found: FoundItem) -> bool:
        """Adds an item; False where it is none of this run's, or was added before."""
        first, _, name = found.item.partition("/")
        source = found.item.rpartition("/")[2] if found.step == "index" else first
        tally = self.steps[found.step].sources.get(source)
        if tally is None:
            return False
        if found.step == "assemble":  # a shard's name says how many there are
            tally.expected = int(name.rpartition("-")[2])
        elif found.step != "index" and (found.step, found.item) not in self._bytes:
            return False
        makes = found.step != "encode" or found.item not in self._encoded
        return tally.add(found, self._bytes.get((found.step, found.item), 0), makes=makes)


def _split_bytes(plan: Plan) -> dict[int, int]:
    """Bytes of input that each split reads, as stored; of tables by their share of the groups of rows."""
    groups: dict[tuple[int, int], int] = {}
    for split in plan.splits:
        for extent in split.extents:
            key = (split.source, extent.file)
            groups[key] = max(groups.get(key, 0), extent.end)
    return {split.number: sum(_extent_bytes(plan, split, groups)) for split in plan.splits}


def _extent_bytes(plan: Plan, split: Split, groups: Mapping[tuple[int, int], int]) -> list[int]:
    found = []
    for extent in split.extents:
        size = plan.inputs[split.source][extent.file].size
        if not extent.whole and size:
            size = size * (extent.end - extent.start) // max(1, groups[split.source, extent.file])
        found.append(size)
    return found


def _fields(tally: SourceTally) -> dict[str, Any]:
    return {
        "done": tally.done,
        "of": tally.expected,
        "earlier": tally.earlier,
        "input_bytes": tally.read_bytes,
        "records": tally.records,
        "tokens": tally.tokens,
        "rejected": dict(sorted(tally.rejected.items())),
    }


def _items(tally: SourceTally, unit: str) -> str:
    of = "" if tally.expected is None else f" of {tally.expected:,}"
    return f"{tally.done:,}{of} {unit}"


def _rejected(rejected: Counter[str]) -> str:
    most = sorted(rejected.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = [f"{count:,} {reason}" for reason, count in most[:_REASONS]]
    other = sum(count for _, count in most[_REASONS:])
    return f"{sum(rejected.values()):,} rejected ({', '.join(shown + [f'{other:,} other'] * bool(other))})"


def number_text(value: float) -> str:
    """A number in three digits: ``950``, ``12.3 k``, ``4.56 M``."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"


def time_text(seconds: float) -> str:
    """A span of time in its largest two units: ``45 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
