"""A blend of any length in memory of one size: Megatron's greedy rule for 2**18 samples, which then repeat.

Up to that many samples of a phase of weights it is exactly the stored blend of `gristmill.formats.schedule`. Beyond, a
source's share differs from its weight by less than one sample in 2**18, and in return nothing grows with the number of
samples, nothing is stored, and any sample is found at once.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.blend import Blend, empty_blend
from gristmill.formats.schedule import Phase, count_members, draw_phases, phase_spans

__all__ = ["PERIOD", "PeriodicBlend"]

PERIOD = 1 << 18
"""Samples after which a phase of a blend repeats itself."""


class PeriodicBlend:
    """Which member gives each sample of a blend, and which of its samples. Safe to use from many threads.

    Attributes:
        phases: the weights, by member.
        samples: number of samples.
        members: how many members there are.
    """

    def __init__(self, phases: Sequence[Phase], samples: int) -> None:
        """Draws one period of each phase, or less where the phase is shorter.

        Args:
            phases: by `from_sample`, the first from 0 on; weights by member, normalised twice over those above 0.
            samples: number of samples, of which any may be asked for. A larger one gives the same ones before.
        """
        self.phases, self.samples = tuple(phases), samples
        self.members = len(self.phases[0].weights)
        self._starts = np.array([phase.from_sample for phase in self.phases], np.int64)
        self._drawn: list[Blend] = []
        self._of_period = np.zeros((len(self.phases), self.members), np.int64)
        self._before = np.zeros((len(self.phases) + 1, self.members), np.int64)
        for number, (phase, span) in enumerate(phase_spans(self.phases, samples)):
            drawn = empty_blend(min(span, PERIOD))
            counts = np.zeros(self.members, np.int64)
            draw_phases([Phase(0, phase.weights)], 0, counts, np.zeros_like(counts), *drawn)
            self._drawn.append(drawn)
            self._of_period[number] = counts
            self._before[number + 1] = self._before[number] + self._counts(number, span)

    def __reduce__(self) -> tuple[object, ...]:
        return (PeriodicBlend, (self.phases, self.samples))  # no array is pickled

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Member and sample of each row.

        Args:
            rows: int64 [R], 0 to ``samples - 1``.

        Returns:
            members: int64 [R].
            samples: int64 [R], counted from 0 for each member over the whole blend.
        """
        members = np.empty(len(rows), np.int64)
        samples = np.empty(len(rows), np.int64)
        phases = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(phases).tolist():
            here = phases == number
            dataset_index, dataset_sample_index = self._drawn[number]
            periods, places = np.divmod(rows[here] - self._starts[number], len(dataset_index))
            found = dataset_index[places].astype(np.int64)
            members[here] = found
            samples[here] = (
                self._before[number][found] + periods * self._of_period[number][found] + dataset_sample_index[places]
            )
        return members, samples

    def counts(self) -> NDArray[np.int64]:
        """Samples of each member in the whole blend: int64 [members]."""
        return np.array(self._before[-1])

    def _counts(self, number: int, span: int) -> NDArray[np.int64]:
        dataset_index, _ = self._drawn[number]
        periods, rest = divmod(span, max(1, len(dataset_index)))
        found: NDArray[np.int64] = periods * self._of_period[number] + count_members(dataset_index[:rest], self.members)
        return found
