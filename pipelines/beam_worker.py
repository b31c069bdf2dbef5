"""The process a local multi-process run starts: Beam's own worker, quiet, and never alive longer than its launcher.

Run as ``python -m gristmill.pipelines.beam_worker PID`` by the runner, which passes all else in the environment; PID is
the launcher's. A launcher that is killed cannot close its workers, so each looks every second whether it is still the
child of one.
"""

import os
import sys
import threading
import time

from gristmill.pipelines.beam_quiet import quiet

__all__ = ["main"]

_SECONDS = 1.0


def _end_with(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_SECONDS)
    os._exit(1)  # the main thread waits for a runner that is gone


def main() -> None:
    """Runs Beam's worker until the runner closes it or is gone."""
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    with quiet():
        from apache_beam.runners.worker import sdk_worker_main

        sdk_worker_main.main(sys.argv[:1])


if __name__ == "__main__":
    main()
