"""Workers for a run, chosen from its stages and sizes; whatever the user gives instead is left as it is.

One process works on each virtual CPU with one thread, since reading and cleaning hold Python's lock. Text stages need
little memory; a member of an index set needs one and a half times its arrays, and near duplicates that hang together in
long chains are solved in one place. So a machine is the smallest on which a process per CPU and the largest arrays that
can be built at the same time fit; where the service places steps by their needs (Dataflow Prime), only those steps ask
for that much.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gristmill import __version__
from gristmill.dataflow.cost import RunSizes

__all__ = ["choose_workers", "label_value", "Workers"]

_GIB = 1 << 30
_PROCESS_BYTES = _GIB  # twice what one process takes in benchmarks/RESULTS.md, "Memory of preparing"
_ARRAY_FACTOR = 1.5
_NEAR_BYTES = 150  # of a document in a chain of near duplicates: 144 were measured, on one of a million
_USABLE = 0.8  # of a machine's memory; the rest is the system's and the service's
_DISK_GB = 50
_ARRAY_STAGES = {"index", "blend"}
_SPLITS_PER_PROCESS = 4  # fewer would leave processors idle while the last ones end
_MOST_WORKERS = 100

_MACHINES = (
    *(("n2-standard-8", 8, 32), ("n2-standard-16", 16, 64), ("n2-highmem-8", 8, 64), ("n2-standard-32", 32, 128)),
    *(("n2-highmem-16", 16, 128), ("n2-highmem-32", 32, 256), ("n2-highmem-64", 64, 512), ("n2-highmem-80", 80, 640)),
)
"""Type, virtual CPUs and GiB of memory, in the order in which they are tried."""

_TEXT_MACHINE, _TEXT_CPUS = "n2-standard-8", 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What a run is executed by.

    Attributes:
        flags: Beam options, those that the user gave left out.
        min_ram_bytes: by stage, memory that a worker must have; only where the service places steps by it, since each
            such need means another set of processes on the workers.
        warnings: what no machine can give.
    """

    flags: tuple[str, ...]
    min_ram_bytes: dict[str, int]
    warnings: tuple[str, ...] = ()


def choose_workers(sizes: RunSizes, stages: Sequence[str], given: Sequence[str], *, corpus: str) -> Workers:
    """Chooses the workers of a run.

    Args:
        sizes: of the run.
        stages: names out of `STAGES`, in order.
        given: Beam options that the user gave, as on a command line.
        corpus: name of the corpus, for a label.
    """
    names = {word.split("=", 1)[0].removeprefix("--") for word in given if word.startswith("--")}
    prime = any("enable_prime" in word for word in given)
    needs = {stage: need for stage, need in _needs(sizes).items() if stage in stages}
    machine, cpus, warnings = _TEXT_MACHINE, _TEXT_CPUS, []
    if needs and not prime:
        machine, cpus, enough = _machine(sizes, stages)
        if not enough and "machine_type" not in names:
            warnings.append(
                f"a step may need {_memory(sizes, stages, cpus) / _GIB:,.0f} GiB on one worker, more than {machine} "
                "has; give a larger --machine_type, or run `--to tokenize` here and `gristmill index` on a machine of "
                "your own"
            )
    text = {"clean", "tokenize"} & set(stages)
    items = sizes.splits if text else max(1, len(sizes.array_bytes))
    per_worker = cpus * _SPLITS_PER_PROCESS if text else cpus
    most = min(_MOST_WORKERS, max(1, -(-items // per_worker)))
    disk = _DISK_GB + (-(-_array_bytes(sizes, cpus) // 10**9) if _ARRAY_STAGES & set(stages) else 0)
    defaults = {
        "machine_type": machine,
        "disk_size_gb": str(disk),
        "max_num_workers": str(most),
        "autoscaling_algorithm": "THROUGHPUT_BASED",
        "number_of_worker_harness_threads": "1",
        "sdk_location": "container",
    }
    if prime:  # which chooses machines itself
        del defaults["machine_type"]
    if "worker_machine_type" in names:
        defaults.pop("machine_type", None)
    flags = [f"--{name}={value}" for name, value in defaults.items() if name not in names]
    if "save_main_session" not in names and "no_save_main_session" not in names:
        flags.append("--no_save_main_session")
    flags.append("--experiments=use_runner_v2")
    labels = {"gristmill": label_value(__version__), "gristmill-corpus": label_value(corpus)}
    flags += [f"--labels={key}={value}" for key, value in labels.items()]
    return Workers(flags=tuple(flags), min_ram_bytes=needs if prime else {}, warnings=tuple(warnings))


def label_value(text: str) -> str:
    """A text as the value of a label: lower case, at most 63 of a-z, 0-9, `_` and `-`."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]


def _needs(sizes: RunSizes) -> dict[str, int]:
    """Memory by stage that one item alone needs, beyond what every process does, in whole GiB so that needs are few."""
    needs = {}
    if sizes.near_documents:
        needs["clean"] = _NEAR_BYTES * sizes.near_documents
    if sizes.array_bytes:
        needs["index"] = needs["blend"] = int(_ARRAY_FACTOR * sizes.array_bytes[0])
    return {stage: -(-(_PROCESS_BYTES + need) // _GIB) * _GIB for stage, need in needs.items()}


def _memory(sizes: RunSizes, stages: Sequence[str], cpus: int) -> int:
    """Bytes that a worker needs while its processes do the largest items that can meet on it."""
    near = _NEAR_BYTES * sizes.near_documents if "clean" in stages else 0
    arrays = _array_bytes(sizes, cpus) if _ARRAY_STAGES & set(stages) else 0
    return cpus * _PROCESS_BYTES + max(near, arrays)


def _array_bytes(sizes: RunSizes, cpus: int) -> int:
    """Bytes of the arrays that a worker's processes build at the same time."""
    return int(_ARRAY_FACTOR * sum(sizes.array_bytes[:cpus]))


def _machine(sizes: RunSizes, stages: Sequence[str]) -> tuple[str, int, bool]:
    """The first machine on which the items fit, its processors, and whether there is one."""
    for name, cpus, memory_gib in _MACHINES:
        if _memory(sizes, stages, cpus) <= _USABLE * memory_gib * _GIB:
            return name, cpus, True
    name, cpus, _ = _MACHINES[-1]
    return name, cpus, False
