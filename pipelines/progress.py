"""Shows how far a local run is, by counting the receipts that items leave behind.

A watcher works the same on every runner, which metrics do not: the local runners report them only at the end. It reads
folder listings once a second and nothing else.
"""

import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TextIO

from gristmill.formats.storage import is_local, local_path
from gristmill.pipelines.job import Job

__all__ = ["Progress"]

_SECONDS = 0.5
_WORDS = {
    "download": "splits copied",
    "scan": "splits scanned",
    "encode": "splits encoded",
    "assemble": "shards written",
    "index": "indices built",
}


class Progress:
    """Prints a line whenever a step has got further; a context manager around a run.

    Args:
        job: the run.
        expected: items by step, where the number is known beforehand.
        stream: where to print; None takes standard error.
    """

    def __init__(self, job: Job, expected: Mapping[str, int], stream: TextIO | None = None) -> None:
        self._job = job
        self._expected = expected
        self._stream = stream or sys.stderr
        self._shown: dict[str, int] = {}
        self._start = time.monotonic()
        self._began = time.time()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gristmill-progress", daemon=True)

    def __enter__(self) -> Self:
        if is_local(self._job.corpus):
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
            self._look()

    def _watch(self) -> None:
        while not self._stop.wait(_SECONDS):
            self._look()

    def _look(self) -> None:
        for step, words in _WORDS.items():
            folder = local_path(self._job.path("_stages", "items", step))
            try:
                fresh = sum(1 for path in folder.rglob("*.json") if _age(path.stat().st_mtime, self._began))
            except FileNotFoundError:  # a receipt of an earlier plan was removed meanwhile
                continue
            if fresh > self._shown.get(step, 0):  # receipts of spills go when the run ends
                self._shown[step] = fresh
                total = f" of {self._expected[step]}" if step in self._expected else ""
                seconds = time.monotonic() - self._start
                print(f"  {seconds:6.1f} s  {fresh}{total} {words}", file=self._stream, flush=True)


def _age(modified: float, began: float) -> bool:
    """Whether a file is of this run."""
    return modified >= began - 0.01
