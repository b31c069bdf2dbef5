"""Which rows of a stream a training step saw, from nothing but the batch sizes that the run was given.

Rows are delivered in the order of their numbers, so a step is a range of them. A batch size that changed at some step
is a second entry; whoever does not know the sizes cannot say which rows a step had, and nobody else has to be asked.
"""

import bisect
import itertools
import re
from dataclasses import dataclass

from gristmill.formats.errors import SettingsError

__all__ = ["BatchSchedule"]

_PHASE = re.compile(r"\s*(\d+)\s*:\s*(\d+)\s*", re.ASCII)
_RULE = 'the rule is STEP:BATCH, separated by commas, for example "0:256,10000:512"'


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """Global batch sizes of a run.

    Attributes:
        phases: (first step, global batch) of each; the first begins at step 0, and steps rise.
    """

    phases: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        steps = [step for step, _ in self.phases]
        if not steps or steps[0] != 0:
            raise SettingsError(f"batch schedule {self}: begins at {f'step {steps[0]}' if steps else 'no step'}, not 0")
        if any(later <= earlier for earlier, later in itertools.pairwise(steps)):
            raise SettingsError(f"batch schedule {self}: its steps must rise; {_RULE}")
        if any(batch < 1 for _, batch in self.phases):
            raise SettingsError(f"batch schedule {self}: a batch has at least 1 row; {_RULE}")

    @classmethod
    def constant(cls, global_batch: int) -> "BatchSchedule":
        """One batch size from the first step to the last.

        Raises:
            SettingsError: it is below 1.
        """
        return cls(((0, global_batch),))

    @classmethod
    def parse(cls, text: str) -> "BatchSchedule":
        """Reads ``"STEP:BATCH,…"``: from that step on, so many rows a step.

        Raises:
            SettingsError: the text breaks a rule; the message names the part.

        Examples:
            >>> BatchSchedule.parse("0:256,10000:512").rows(10000)
            range(2560000, 2560512)
        """
        phases = []
        for part in text.split(","):
            found = _PHASE.fullmatch(part)
            if found is None:
                raise SettingsError(f"batch schedule {text!r}: {part!r} cannot be read; {_RULE}")
            phases.append((int(found[1]), int(found[2])))
        return cls(tuple(phases))

    def first_row(self, step: int) -> int:
        """Number of the first row of a step, counted from 0; so many rows were delivered before it."""
        rows = 0
        for place, (start, batch) in enumerate(self.phases):
            stop = self.phases[place + 1][0] if place + 1 < len(self.phases) else step
            rows += max(0, min(step, stop) - start) * batch
        return rows

    def rows(self, step: int) -> range:
        """The rows of a step.

        Raises:
            SettingsError: the step is below 0.
        """
        if step < 0:
            raise SettingsError(f"step {step}: steps are counted from 0")
        _, batch = self.phases[bisect.bisect_right(self.phases, step, key=lambda phase: phase[0]) - 1]
        first = self.first_row(step)
        return range(first, first + batch)

    def span(self, first: int, stop: int) -> range:
        """The rows of the steps from `first` up to `stop`, the latter not included.

        Raises:
            SettingsError: there is no step in the range.
        """
        if not 0 <= first < stop:
            raise SettingsError(f"steps {first}:{stop}: hold none; the rule is FIRST:STOP with 0 <= FIRST < STOP")
        return range(self.first_row(first), self.first_row(stop))

    def __str__(self) -> str:
        return repr(",".join(f"{step}:{batch}" for step, batch in self.phases))
