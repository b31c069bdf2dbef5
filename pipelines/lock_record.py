"""The record of the run that works on a corpus: who it is, where it may be watched, and what tells that it is gone.

It lies beside the receipts, on a disk and in a store alike. A run that dies cannot take its record back, so the record
holds what others need to find that out: the process and its machine, the job of a service, and a sign of life that is
renewed while work goes on. None of it decides a byte of the corpus.
"""

import json
import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gristmill.formats.errors import CorpusError, StorageError
from gristmill.formats.exclusive import modified_seconds
from gristmill.formats.fingerprint import pretty_json
from gristmill.formats.receipts import STAGES_FOLDER
from gristmill.formats.storage import exists, join, read_bytes, write_bytes

__all__ = [
    "as_bytes",
    "AskService",
    "beat_path",
    "claim_path",
    "gone",
    "Holder",
    "HOLDER_NAME",
    "holder_path",
    "new_holder",
    "read_holder",
    "update_holder",
]

HOLDER_NAME = "holder"
"""Name of the record below `_stages/`; other files of the lock begin with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who works on a corpus.

    Attributes:
        run: name of the run, made up anew for each.
        host: name of the launching machine.
        process: number of the launching process.
        birth: when that process began, as the machine's kernel counts; empty where that cannot be told.
        machine: start of the machine's kernel and the namespace in which `process` counts; empty likewise.
        started: when the run began, UTC.
        runner: what executes it, in words.
        outlives: whether its workers go on when the launching process ends; False until a service has its job.
        job: id of the service's job; empty while there is none.
        page: where the job may be watched.
        project: project of the job.
        region: region of the job.
    """

    run: str
    host: str
    process: int
    birth: str
    machine: str
    started: str
    runner: str
    outlives: bool = False
    job: str = ""
    page: str = ""
    project: str = ""
    region: str = ""

    def __str__(self) -> str:
        """Who it is, for messages."""
        job = f", job {self.job} {self.page}".rstrip() if self.job else ""
        return f"started {self.started} by process {self.process} of {self.host} ({self.runner}){job}"


AskService = Callable[[Holder], bool | None]
"""Says whether the job of a record goes on: False when its service says that it ended, None when nobody knows."""


def new_holder(runner: str) -> Holder:
    """The record of a run that this process launches now."""
    return Holder(
        run=uuid.uuid4().hex[:16],
        host=socket.gethostname(),
        process=os.getpid(),
        birth=_birth(os.getpid()),
        machine=_machine(),
        started=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        runner=runner,
    )


def holder_path(corpus: str) -> str:
    """Path of the record."""
    return join(corpus, STAGES_FOLDER, HOLDER_NAME)


def beat_path(corpus: str, run: str) -> str:
    """Path of a run's sign of life, of which only the time counts."""
    return join(corpus, STAGES_FOLDER, f"{HOLDER_NAME}-{run}.beat")


def claim_path(corpus: str, run: str, number: int) -> str:
    """Path of the claim of one who takes a run's place; the first, and others where a claimant died."""
    return join(corpus, STAGES_FOLDER, f"{HOLDER_NAME}-{run}.claim-{number}")


def as_bytes(holder: Holder) -> bytes:
    """The record as its file has it."""
    return pretty_json(asdict(holder))


def read_holder(corpus: str) -> Holder | None:
    """Who works on a corpus; None when nobody does.

    Raises:
        CorpusError: the record is damaged.
    """
    path = holder_path(corpus)
    try:
        data = read_bytes(path)
    except StorageError:
        if not exists(path):
            return None
        data = read_bytes(path)  # it came to be meanwhile, or cannot be read
    try:
        return Holder(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise CorpusError(
            f"{path}: damaged ({type(error).__name__}: {error}), so nobody can tell whether a run works on this "
            "corpus; when none does, remove that file and run again"
        ) from error


def update_holder(corpus: str, run: str, **changes: object) -> None:
    """Writes more into a run's own record; nothing where the record is of another run by now."""
    holder = read_holder(corpus)
    if holder is not None and holder.run == run:
        write_bytes(holder_path(corpus), as_bytes(replace(holder, **changes)))  # type: ignore[arg-type]


def gone(
    corpus: str, holder: Holder, now: float, stale_after: float, ask: AskService | None, *, locked: bool
) -> tuple[str, str]:
    """Whether a run that holds a corpus is gone.

    Args:
        corpus: folder or URL of the corpus.
        holder: its record.
        now: time by the clock of the corpus's disk or store, seconds.
        stale_after: seconds of silence after which nobody waits for it any more.
        ask: asks the service of its job.
        locked: whether this process has the operating system's lock, which the launching process had while it lived.

    Returns:
        Why it is gone, empty if it is not; and the last that was heard of it, for a message.
    """
    silent = max(0.0, now - _last_sign(corpus, holder))
    heard = f"last sign of life {silent:,.0f} s ago"
    running = ask(holder) if ask is not None and holder.job else None
    if running is False:
        return f"its job {holder.job} has ended", heard
    if running:
        return "", f"the service says that its job goes on; {heard}"
    if not holder.outlives:
        if locked:
            return "its process has ended", heard
        if holder.machine and holder.machine == _machine():
            ended = _birth(holder.process) != holder.birth
            return ("its process has ended" if ended else "", heard)
    return (f"nothing was heard of it for {silent:,.0f} s" if silent > stale_after else "", heard)


def _last_sign(corpus: str, holder: Holder) -> float:
    times = (modified_seconds(path) for path in (holder_path(corpus), beat_path(corpus, holder.run)))
    return max((time for time in times if time is not None), default=0.0)


def _birth(process: int) -> str:
    """When a process began, in ticks since the kernel's start; empty where there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text("ascii", "replace").rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return ""


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
