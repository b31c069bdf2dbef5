"""The process a local multi-process run starts: Beam's own worker, quiet, and never alive longer than its launcher.

Run as ``python -m gristmill.pipelines.beam_worker PID`` by the runner, which passes all else in the environment; PID is
the launcher's.
"""

import os
import sys

from gristmill.formats.log import inherit_log
from gristmill.pipelines.beam_quiet import quiet
from gristmill.pipelines.launcher_watch import end_with

__all__ = ["main"]


def main() -> None:
    """Runs Beam's worker until the runner closes it or is gone."""
    end_with(int(sys.argv[1]))
    inherit_log()
    with quiet():
        from apache_beam.runners.worker import sdk_worker_main

        sdk_worker_main.main(sys.argv[:1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of a run that was stopped may be inside a library, which would abort where Python ends them


if __name__ == "__main__":
    main()
