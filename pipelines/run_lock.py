"""Keeps a second run off a corpus that one is working on, and clears away what a run that died left unfinished.

The operating system holds the lock and lets go of it however the run ends, so a dead run never blocks the next. An
object store has no such lock: there, two runs with one recipe write the same bytes, and uploads that were not finished
leave nothing behind.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from gristmill.formats.attempt import is_temporary_name
from gristmill.formats.errors import CorpusError, SettingsError, StorageError
from gristmill.formats.receipts import STAGES_FOLDER
from gristmill.formats.storage import (
    base_name,
    is_local,
    join,
    list_files,
    local_path,
    make_folder,
    remove,
    write_bytes,
)

__all__ = ["working_on"]

_LOCK = "lock"


@contextmanager
def working_on(corpus: str) -> Iterator[None]:
    """Makes the corpus's folder, keeps other runs off it, and removes what an earlier run left half written.

    Args:
        corpus: folder or URL.

    Raises:
        CorpusError: another run is working on it.
        SettingsError: it cannot be written to.
    """
    try:
        make_folder(join(corpus, STAGES_FOLDER))
        probe = join(corpus, STAGES_FOLDER, "probe")
        write_bytes(probe, b"")
        remove(probe)
    except StorageError as error:
        raise SettingsError(f"output {error}") from error
    if not is_local(corpus):
        yield
        return
    with local_path(join(corpus, STAGES_FOLDER, _LOCK)).open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CorpusError(f"{corpus}: another run is working on this corpus; wait for it or stop it") from error
        except OSError:  # a file system without locks
            yield
            return
        for path in list_files(corpus, recursive=True):
            if is_temporary_name(base_name(path)):
                remove(path)
        yield
