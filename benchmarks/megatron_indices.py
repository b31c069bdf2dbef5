"""Times Megatron's compiled index helpers, one task for each line on standard input; run by `bench_indices.py`.

Needs an interpreter with numpy, megatron-core and torch. A line is a JSON list: the task's name and its arguments. The
answer is a line with the CPU-seconds of this thread.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from index_inputs import lengths_of, order_of, weights_of

warnings.filterwarnings("ignore")


def sample_index(sequences: int, sequence_length: int) -> Callable[[], Any]:
    """Sample index of one epoch."""
    from megatron.core.datasets import helpers

    lengths, order = lengths_of(sequences), order_of(sequences)
    tokens = int(lengths.sum())
    return lambda: helpers.build_sample_idx(lengths, order, sequence_length, 1, tokens, True, True)


def blend(members: int, kind: str, rows: int) -> Callable[[], Any]:
    """Weighted blend."""
    from megatron.core.datasets import helpers

    weights = weights_of(members, kind)
    arrays = np.zeros(rows, np.int16), np.zeros(rows, np.int64)
    return lambda: helpers.build_blending_indices(*arrays, weights, members, rows, False)


def exhaustive(members: int, rows: int) -> Callable[[], Any]:
    """Blend that uses every sample once."""
    from megatron.core.datasets import helpers

    sizes = np.full(members, rows // members, np.int64)
    size = int(sizes.sum())
    arrays = np.zeros(size, np.int16), np.zeros(size, np.int64)
    return lambda: helpers.build_exhaustive_blending_indices(*arrays, sizes, members)


def main() -> None:
    """Answers tasks until standard input ends."""
    tasks: dict[str, Callable[..., Callable[[], Any]]] = {
        "sample_index": sample_index,
        "blend": blend,
        "exhaustive": exhaustive,
    }
    prepared: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if line not in prepared:
            prepared = {line: tasks[name](*arguments)}  # one at a time, so that memory is not the question
        began = time.thread_time()
        prepared[line]()
        print(time.thread_time() - began, flush=True)


if __name__ == "__main__":
    main()
