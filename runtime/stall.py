"""Says what a training loop waits for when a batch does not come: after a while, then ever more seldom.

The thread that waits looks itself, so there is no thread more; it cannot end the wait, since a read that hangs in the
operating system cannot be ended, but whoever reads the log knows which file to look at.
"""

import logging
from dataclasses import dataclass

from gristmill.formats.errors import SettingsError
from gristmill.runtime.metrics import MeasuredStream

__all__ = ["check_stall_seconds", "StallReports"]

_log = logging.getLogger(__name__)


def check_stall_seconds(seconds: float) -> float:
    """The time after which a wait is reported.

    Raises:
        SettingsError: it is not above 0.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise SettingsError(f"stall_seconds must be above 0, not {seconds!r}; float('inf') reports nothing")
    return seconds


@dataclass(frozen=True, slots=True)
class StallReports:
    """Logs a warning when one wait goes on: after some seconds, and again whenever it is twice as old.

    Attributes:
        stream: where the rows come from; a `MeasuredStream` where it can say what it waits for.
        rows: the rows that are waited for.
        seconds: after how many to report first, above 0.
    """

    stream: object
    rows: range
    seconds: float

    def report(self, waited_seconds: float) -> float:
        """Reports a wait.

        Args:
            waited_seconds: how long it has been.

        Returns:
            How many more seconds to wait before the next report.
        """
        reads = self.stream.waiting_on() if isinstance(self.stream, MeasuredStream) else []
        places = "; ".join(f"{what} (for {since:.0f} s)" for what, since in reads)
        _log.warning(
            "waiting since %.0f s for rows %d to %d of %r: %s",
            waited_seconds,
            self.rows.start,
            self.rows.stop - 1,
            self.stream,
            places or "no read is under way, so the fields are being made or handed to the devices",
        )
        return waited_seconds
