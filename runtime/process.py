"""Which process of a training job this is, as far as it can be told without starting JAX.

Only one process of a job writes what all of them built. A job that does not say so has a single process.
"""

import sys

__all__ = ["process_number"]


def process_number(given: int | None = None) -> int:
    """Number of this process among those of the job.

    Args:
        given: what the caller says; None asks JAX where `jax.distributed` is initialised, else it is 0.
    """
    if given is not None:
        return given
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return 0
    return int(jax.process_index())
