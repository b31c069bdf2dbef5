"""Asks Dataflow whether the job of another run on the same output goes on.

The job's own client and this launch's own credentials and endpoint are used: what a record in a bucket says decides no
more than which project, region and job is asked about. Whoever may not see that job learns nothing, and is left with
the run's silence.
"""

from collections.abc import Sequence

from gristmill.dataflow.submit import pipeline_options
from gristmill.formats.errors import SettingsError
from gristmill.pipelines.beam_quiet import quiet
from gristmill.pipelines.lock_record import AskService, Holder

__all__ = ["asks_dataflow"]

_ENDED = ("DONE", "FAILED", "CANCELLED", "DRAINED", "UPDATED")
_PREFIX = "JOB_STATE_"


def asks_dataflow(flags: Sequence[str]) -> AskService:
    """What asks Dataflow about the job of a record.

    Args:
        flags: Beam's options of this run, for credentials and endpoint.
    """

    def ask(holder: Holder) -> bool | None:
        try:
            state = _state(flags, holder)
        except Exception:  # noqa: BLE001 - no library, no credentials, no such job, no answer: nobody knows
            return None
        return None if state == "UNKNOWN" else state not in _ENDED

    return ask


def _state(flags: Sequence[str], holder: Holder) -> str:
    if not (holder.job and holder.project and holder.region):
        raise SettingsError("the record names no job")
    options = pipeline_options(flags)
    from apache_beam.options.pipeline_options import GoogleCloudOptions
    from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient

    cloud = options.view_as(GoogleCloudOptions)
    cloud.project, cloud.region = holder.project, holder.region
    with quiet():
        ask = getattr(DataflowApplicationClient.get_job, "__wrapped__", DataflowApplicationClient.get_job)
        job = ask(DataflowApplicationClient(options), holder.job)  # without Beam's minutes of trying again
    return str(job.current_state.name).removeprefix(_PREFIX)
