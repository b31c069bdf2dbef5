"""The process that a local multi-process run starts: Beam's own worker with its log kept to errors.

Run as ``python -m gristmill.pipelines.beam_worker`` by the runner, which passes what it needs in the environment.
"""

import sys

from gristmill.pipelines.beam_quiet import quiet

__all__ = ["main"]


def main() -> None:
    """Runs Beam's worker until the runner closes it."""
    with quiet():
        from apache_beam.runners.worker import sdk_worker_main

        sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    main()
