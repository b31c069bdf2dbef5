"""Signs of life of a run, given by whoever works for it, and the end of work for a run that lost its place.

A launcher may be gone long before its job ends, so every process that does an item renews the sign while it works, at
most once in half a minute. An item begins only while the record names its run; receipts of stages and the manifest are
written only then. A late worker of a run whose place was taken may still finish the item at hand: that is the price of
not asking before every write, and it writes the bytes that the item has under any run of the same recipe.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gristmill.formats.errors import CorpusError, StorageError
from gristmill.formats.exclusive import modified_seconds
from gristmill.formats.storage import is_local, remove, write_bytes
from gristmill.pipelines.job import Job
from gristmill.pipelines.lock_record import beat_path, read_holder

__all__ = ["holds", "RENEW_SECONDS", "renewing", "require_held", "while_held"]

RENEW_SECONDS = 30.0
"""A process renews its run's sign of life no more often than this."""

_CHECK_SECONDS = 10.0
_Result = TypeVar("_Result")


class _Renewal:
    """Renews the sign of life of one run from this process while somebody works for it here."""

    def __init__(self, corpus: str, run: str) -> None:
        self._corpus = corpus
        self._run = run
        self._path = beat_path(corpus, run)
        self._lock = threading.Lock()
        self._workers = 0
        self._stop = threading.Event()
        self._renewed = time.monotonic()
        self._seen: float | None = None
        self.checked = float("-inf")

    def begin(self) -> None:
        """One more works for the run."""
        with self._lock:
            self._workers += 1
            if self._workers == 1:
                self._stop = threading.Event()
                waits = max(0.0, RENEW_SECONDS - (time.monotonic() - self._renewed))
                threading.Thread(
                    target=self._go_on, args=(self._stop, waits), name="gristmill-renewal", daemon=True
                ).start()

    def end(self) -> None:
        """One less does."""
        with self._lock:
            self._workers -= 1
            if not self._workers:
                self._stop.set()

    def _go_on(self, stop: threading.Event, waits: float) -> None:
        while not stop.wait(waits):
            # A store that does not answer now may do so in half a minute, and a damaged record is for others to name.
            with contextlib.suppress(StorageError, CorpusError):
                self._renew()
            self._renewed = time.monotonic()
            waits = RENEW_SECONDS * (1 + random.random())  # workers that began together drift apart

    def _renew(self) -> None:
        """Renews the sign of a run that goes on, unless another process did since this one last looked.

        The run may be released meanwhile, by another process too: its record goes before its sign does, so whoever
        finds no record behind the sign that it wrote takes that away again.
        """
        found = modified_seconds(self._path)
        if (found is None or found == self._seen) and self._goes_on():
            write_bytes(self._path, b"")
            found = modified_seconds(self._path)
            if not self._goes_on():
                remove(self._path)
        self._seen = found

    def _goes_on(self) -> bool:
        holder = read_holder(self._corpus)
        return holder is not None and holder.run == self._run


_RENEWALS: dict[tuple[str, str], _Renewal] = {}
_MAKING = threading.Lock()


def _renewal(corpus: str, run: str) -> _Renewal:
    with _MAKING:
        return _RENEWALS.setdefault((corpus, run), _Renewal(corpus, run))


@contextmanager
def renewing(corpus: str, run: str) -> Iterator[None]:
    """Renews a run's sign of life while the block goes on.

    Args:
        corpus: folder or URL of the corpus.
        run: name of the run.
    """
    renewal = _renewal(corpus, run)
    renewal.begin()
    try:
        yield
    finally:
        renewal.end()


def holds(job: Job) -> bool:
    """Whether the record of a job's corpus names its run; a job without a run has nothing to hold."""
    if not job.run:
        return True
    holder = read_holder(job.corpus)
    return holder is not None and holder.run == job.run


def require_held(job: Job) -> None:
    """Stops what works for a run that has lost its place.

    Raises:
        CorpusError: another run works on the corpus now, or none does.
    """
    if holds(job):
        return
    holder = read_holder(job.corpus)
    by = "has ended or was given up" if holder is None else f"was taken for dead, and another took its place: {holder}"
    raise CorpusError(f"{job.corpus}: run {job.run} {by}; its late workers write nothing more")


def while_held(work: Callable[[Job, Any], _Result], job: Job, item: Any) -> _Result:
    """Does an item for a run that holds its corpus, and renews its sign of life meanwhile.

    Args:
        work: does an item.
        job: the run.
        item: what to do.

    Raises:
        CorpusError: the run has lost its place.
    """
    if not job.run:
        return work(job, item)
    renewal = _renewal(job.corpus, job.run)
    if is_local(job.corpus) or time.monotonic() - renewal.checked > _CHECK_SECONDS:
        require_held(job)
        renewal.checked = time.monotonic()
    with renewing(job.corpus, job.run):
        return work(job, item)
