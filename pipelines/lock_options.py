"""The option that says how long a silent run is waited for, once for all commands that write into a corpus."""

import argparse
import math

from gristmill.formats.errors import SettingsError

__all__ = ["add_lock_arguments", "LEAST_STALE_SECONDS", "stale_after", "STALE_SECONDS"]

STALE_SECONDS = 1800.0
"""Silence after which a run that nothing else is known of counts as gone, unless an option says otherwise."""

LEAST_STALE_SECONDS = 120.0
"""The least that the option may say: some signs of life of a run that is well, which come once in half a minute."""


def add_lock_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the option."""
    parser.add_argument(
        "--stale-after",
        metavar="SECONDS",
        default=STALE_SECONDS,
        help=f"silence after which another run on the output counts as gone (default: {STALE_SECONDS:g})",
    )


def stale_after(given: float | str) -> float:
    """The option's value in seconds.

    Raises:
        SettingsError: it is no number, or so short that a living run would be taken for dead.
    """
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise SettingsError(
            f"--stale-after {given}: is no number of seconds; give one of {LEAST_STALE_SECONDS:g} or more"
        )
    if seconds < LEAST_STALE_SECONDS:
        raise SettingsError(
            f"--stale-after {given}: runs give signs of life every half minute or so; at least "
            f"{LEAST_STALE_SECONDS:g} seconds are needed"
        )
    return seconds
