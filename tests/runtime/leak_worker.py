"""Opens, reads and leaves data in many ways, and looks at what is left of it; started by test_leaks.py.

Imports everything once, and forks a process for each way before JAX has started anything. Each is the leader of a
session of its own, so that whatever it might leave behind could be found.
"""

import gc
import json
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike, NDArray
from orbax.checkpoint.experimental import v1

from gristmill.runtime import Checkpoints, MegatronStream, TokenBatches, open_corpus


def in_use(corpus: str) -> dict[str, int]:
    """What this process holds of the things that must not be left."""
    process = psutil.Process()
    maps = [found.path for found in process.memory_maps(grouped=False)]
    return {
        "files": process.num_fds(),
        "maps of the corpus": sum(path.startswith(corpus) for path in maps),
        "shared memory": sum(path.startswith("/dev/shm") for path in maps),
        "Python threads": threading.active_count(),
        "processes": len(process.children(recursive=True)),
    }


class Faulty:
    """A stream that cannot be read from some row on."""

    def __init__(self, stream: MegatronStream, first_bad: int) -> None:
        self.fingerprint, self.sequence_length = stream.fingerprint, stream.sequence_length
        self.dtype, self.eod_id, self.vocabulary = stream.dtype, stream.eod_id, stream.vocabulary
        self.describe, self._stream, self._first_bad = stream.describe, stream, first_bad

    def __len__(self) -> int:
        return len(self._stream)

    def read(self, rows: ArrayLike) -> NDArray[np.uint16 | np.int32]:
        if np.asarray(rows)[0] >= self._first_bad:
            raise OSError("the disk does not answer")
        return self._stream.read(rows)


class Ways:
    """The ways in which data are left."""

    def __init__(self, corpus: str) -> None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", 8)
        mesh = Mesh(np.array(jax.devices()), ("data",))
        self.corpus, self.sharding = corpus, NamedSharding(mesh, PartitionSpec("data"))
        self.model = {"weights": jax.device_put(jax.numpy.zeros(8), NamedSharding(mesh, PartitionSpec()))}

    def opened(self, **options: Any) -> tuple[MegatronStream, TokenBatches]:
        stream = open_corpus(self.corpus).stream()
        batches = TokenBatches(stream, 8, self.sharding, **{"prefetch": 4, **options})
        next(batches)
        return stream, batches

    def closed(self) -> None:
        stream, batches = self.opened()
        batches.close()
        stream.close()

    def closed_while_nothing_was_taken(self) -> None:
        stream = open_corpus(self.corpus).stream()
        batches = TokenBatches(stream, 8, self.sharding, prefetch=4)
        batches.start_prefetch()
        batches.close()
        stream.close()

    def dropped(self) -> None:
        self.opened()

    def dropped_without_a_thread(self) -> None:
        self.opened(prefetch=0)

    def read_to_the_end(self) -> None:
        stream, batches = self.opened()
        list(batches)
        stream.close()

    def failed_in_the_loop(self) -> None:
        stream, batches = self.opened()
        try:
            with batches:
                raise RuntimeError("from the training step")
        except RuntimeError:
            stream.close()

    def failed_to_read(self) -> None:
        stream = open_corpus(self.corpus).stream()
        batches = TokenBatches(Faulty(stream, 16), 8, self.sharding, prefetch=4)
        try:
            list(batches)
        except OSError:
            stream.close()

    def refused(self) -> None:
        try:
            TokenBatches(open_corpus(self.corpus).stream(), 12, self.sharding)
        except Exception:  # noqa: BLE001 - whatever the message, nothing may be left
            return
        raise AssertionError("12 rows do not fit 8 devices")

    def went_back(self) -> None:
        stream, batches = self.opened()
        for _ in range(3):
            batches.set_state({**batches.get_state(), "next_sample": 8})
            next(batches)
        batches.close()
        stream.close()

    def saved_and_restored(self) -> None:
        stream, batches = self.opened()
        with tempfile.TemporaryDirectory() as folder:
            with Checkpoints(f"{folder}/v0") as checkpoints:
                checkpoints.save(1, self.model, batches)
                next(batches)
                checkpoints.restore(self.model, batches)
            with v1.training.Checkpointer(f"{folder}/v1") as checkpointer:
                checkpointer.save_checkpointables(1, {"model": self.model, "data": batches})
                checkpointer.load_checkpointables(1, {"model": self.model, "data": batches})
        batches.close()
        stream.close()


WAYS = [name for name in vars(Ways) if not name.startswith("_") and name != "opened"]


def _signalled(number: int) -> Callable[[], None]:
    def end() -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    return end


ENDS: dict[str, Callable[[], object]] = {
    "the last line": lambda: None,
    "sys.exit": lambda: sys.exit(3),
    "an error": lambda: 1 / 0,
    "os._exit": lambda: os._exit(4),
    "SIGINT": _signalled(signal.SIGINT),
    "SIGTERM": _signalled(signal.SIGTERM),
    "SIGKILL": _signalled(signal.SIGKILL),
}


def look(corpus: str) -> dict[str, list[dict[str, int]]]:
    """For each way, what is in use before and after going it several times."""
    ways = Ways(corpus)
    found = {}
    for name in WAYS:
        getattr(ways, name)()  # what others keep once and for all, they have now
        gc.collect()
        before = in_use(corpus)
        for _ in range(3):
            getattr(ways, name)()
        gc.collect()
        found[name] = [before, in_use(corpus)]
    return found


def main() -> int:
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")  # JAX has started nothing yet
    corpus, report = sys.argv[1:]
    ends = {}
    for name, end in {"": ENDS["the last line"], **ENDS}.items():
        child = os.fork()
        if child == 0:
            os.setsid()
            if not name:
                Path(report).write_text(json.dumps(look(corpus)), "ascii")
                return 0
            held = Ways(corpus).opened()
            end()
            return len(held) - 2  # alive until here: the interpreter ends with a thread at work
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        left = sum(_session(process) == child for process in psutil.process_iter())
        ends[name] = [code, left]
    print(json.dumps(ends))
    return 0


def _session(process: psutil.Process) -> int:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return -1


if __name__ == "__main__":
    sys.exit(main())
