"""Ends a worker process with its launcher: one that is killed cannot close its workers, so each looks for itself."""

import os
import threading
import time

__all__ = ["end_with"]

_SECONDS = 1.0


def end_with(launcher: int) -> None:
    """Starts to look every second whether this process is still the child of its launcher, and ends it when not.

    Args:
        launcher: the launcher's process id.
    """
    threading.Thread(target=_watch, args=(launcher,), name="gristmill-launcher-watch", daemon=True).start()


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_SECONDS)
    os._exit(1)  # the main thread may wait for a launcher that is gone
