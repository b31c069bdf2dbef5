"""Keeps a second run off a corpus that one is working on, and clears away what a run that died left unfinished.

A record that only one of several runs can make says who works on a corpus, on a disk and in a store alike; on a disk
the operating system's lock is held as well, since it tells at once that a process has ended. A run that is gone is
followed by the next: its own machine, its service or its silence says so. Two that come for one place are settled by a
claim that only one can make, so the record is written over by no more than one.
"""

import contextlib
import fcntl
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from fsspec.asyn import AsyncFileSystem

from gristmill.formats.attempt import is_temporary_name
from gristmill.formats.errors import CorpusError, SettingsError, StorageError
from gristmill.formats.exclusive import create_bytes, modified_seconds
from gristmill.formats.receipts import STAGES_FOLDER
from gristmill.formats.storage import (
    base_name,
    is_local,
    join,
    list_files,
    local_path,
    make_folder,
    remote,
    remove,
    write_bytes,
)
from gristmill.pipelines.lock_options import STALE_SECONDS
from gristmill.pipelines.lock_record import (
    AskService,
    Holder,
    as_bytes,
    beat_path,
    claim_path,
    gone,
    holder_path,
    new_holder,
    read_holder,
)
from gristmill.pipelines.lock_renewal import renewing

__all__ = ["release", "working_on"]

_LOCK = "lock"
_NAMED_WITHIN_SECONDS = 2.0


@contextmanager
def working_on(
    corpus: str,
    *,
    runner: str = "gristmill",
    stale_after: float = STALE_SECONDS,
    ask: AskService | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> Iterator[str]:
    """Makes the corpus's folder, keeps other runs off it, and removes what an earlier run left half written.

    The hold ends with the block, however that ends, but for a run that outlives its launcher (see `Holder`): that one
    ends it itself, with `release`. Until a service has taken its job, no run outlives its launcher.

    Args:
        corpus: folder or URL.
        runner: what executes the run, for whoever is kept off.
        stale_after: seconds of silence after which an earlier run counts as gone.
        ask: asks the service of an earlier run's job.
        say: is told of an earlier run whose place this one takes.

    Yields:
        The name of the run.

    Raises:
        CorpusError: another run is working on it.
        SettingsError: it cannot be written to.
    """
    try:
        make_folder(join(corpus, STAGES_FOLDER))
        probe = join(corpus, STAGES_FOLDER, "probe")
        write_bytes(probe, b"")
        now = modified_seconds(probe) or 0.0
        remove(probe)
    except StorageError as error:
        raise SettingsError(f"output {error}") from error
    own = new_holder(runner)
    with contextlib.ExitStack() as held:
        locked = _lock(corpus, held)
        _take(corpus, own, lambda other: gone(corpus, other, now, stale_after, ask, locked=locked), stale_after, say)
        try:
            with renewing(corpus, own.run):
                _clear(corpus)
                yield own.run
        except BaseException:
            with contextlib.suppress(StorageError):  # what stopped the run is what is to be told
                _release_unless_outlived(corpus, own.run)
            raise
        _release_unless_outlived(corpus, own.run)


def release(corpus: str, run: str) -> None:
    """Ends a run's hold of a corpus; nothing where it has none. May be done again, and by any process.

    Args:
        corpus: folder or URL of the corpus.
        run: name of the run.
    """
    holder = read_holder(corpus) if run else None
    if holder is not None and holder.run == run:
        remove(holder_path(corpus))
        remove(beat_path(corpus, run))


def _release_unless_outlived(corpus: str, run: str) -> None:
    holder = read_holder(corpus)
    if holder is not None and holder.run == run and not holder.outlives:
        release(corpus, run)


def _lock(corpus: str, held: contextlib.ExitStack) -> bool:
    """Takes the operating system's lock of a local corpus until `held` ends; False where there is no such lock.

    Raises:
        CorpusError: a run of a living process has it.
    """
    if not is_local(corpus):
        return False
    lock: IO[Any] = held.enter_context(local_path(join(corpus, STAGES_FOLDER, _LOCK)).open("ab"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _refusal(corpus, _read_soon(corpus), "its process is alive") from error
    except OSError:  # a file system without locks
        return False
    return True


def _read_soon(corpus: str) -> Holder | None:
    """The record of a run that has the lock, which it writes a moment after it took that."""
    patience = time.monotonic() + _NAMED_WITHIN_SECONDS
    while (holder := read_holder(corpus)) is None and time.monotonic() < patience:
        time.sleep(0.02)
    return holder


def _refusal(corpus: str, holder: Holder | None, heard: str) -> CorpusError:
    who = "" if holder is None else f": {holder}; {heard}"
    return CorpusError(f"{corpus}: another run is working on this corpus; wait for it or stop it{who}")


def _take(
    corpus: str,
    own: Holder,
    is_gone: Callable[[Holder], tuple[str, str]],
    stale_after: float,
    say: Callable[[str], object],
) -> None:
    """Writes this run's record, in place of one of a run that is gone.

    Raises:
        CorpusError: a run that is not gone has the place, or another one takes it at this moment.
    """
    while not create_bytes(holder_path(corpus), as_bytes(own)):
        other = read_holder(corpus)
        if other is None:  # it ended meanwhile
            continue
        if other.run == own.run:  # made, though the answer was lost on the way
            return
        why, heard = is_gone(other)
        if not why:
            raise _refusal(corpus, other, heard)
        if _replace(corpus, other, own, stale_after):
            say(f"{corpus}: a run before this one is gone ({other}): {why}; this run goes on in its place")
            return


def _replace(corpus: str, other: Holder, own: Holder, stale_after: float) -> bool:
    """Puts this run's record in place of that of a run that is gone; False where the place has changed meanwhile.

    Raises:
        CorpusError: another one does so at this moment.
    """
    for number in itertools.count(1):
        claim = claim_path(corpus, other.run, number)
        if create_bytes(claim, own.run.encode()):
            break
        made = modified_seconds(claim)
        if made is None:  # who made it is done
            return False
        mark = join(corpus, STAGES_FOLDER, f"probe-{own.run}")
        write_bytes(mark, b"")
        now = modified_seconds(mark) or made
        remove(mark)
        if now - made <= stale_after:
            raise CorpusError(
                f"{corpus}: another run takes the place of one that is gone ({other}) at this moment; it is the one to "
                "wait for"
            )
    holder = read_holder(corpus)
    unchanged = holder is not None and holder.run == other.run
    if unchanged:
        write_bytes(holder_path(corpus), as_bytes(own))
        remove(beat_path(corpus, other.run))
    for before in range(1, number + 1):
        remove(claim_path(corpus, other.run, before))
    return unchanged


def _clear(corpus: str) -> None:
    """Removes what attempts of dead runs left half written; an upload to an object store leaves nothing."""
    if not is_local(corpus) and isinstance(remote(corpus)[0], AsyncFileSystem):
        return
    for path in list_files(corpus, recursive=True):
        if is_temporary_name(base_name(path)):
            remove(path)
