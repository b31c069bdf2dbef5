"""Hands a run to Dataflow, or translates it to what would be handed over.

The translation is Beam's own, stopped before anything is staged, so that it needs neither network nor credentials. A
submission is an executor like that of a local run, but for one thing: it does not wait unless asked to, because what
launches a template must end when the job is submitted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gristmill.dataflow.buckets import first_line, what_failed
from gristmill.dataflow.job_counters import told_counters
from gristmill.formats.errors import DataError, GristmillError, MissingExtraError, SettingsError, StorageError
from gristmill.formats.log import event, tell
from gristmill.pipelines.beam_quiet import quiet
from gristmill.pipelines.beam_runners import worker_error
from gristmill.pipelines.job import Job
from gristmill.pipelines.lock_record import update_holder
from gristmill.pipelines.runners import Executor, RunnerChoice, flag_value

__all__ = ["beam_problems", "DataflowExecutor", "describe_job", "page_of", "pipeline_options"]

_RUNNER = "DataflowRunner"
_LABELS = {"clean": "Near: losers", "index": "Index:", "blend": "Blend:"}
"""By stage, how the labels of its steps begin that need the memory."""
_FLEX_JOB = "/job_object"
"""How the place ends where a Flex Template's launcher has its one job written, for the service to start it at once."""


def pipeline_options(flags: Sequence[str]) -> Any:
    """Beam's options out of words of a command line, for Dataflow.

    Raises:
        MissingExtraError: what Beam needs for Google Cloud is not installed.
    """
    try:
        with quiet():
            import apache_beam.runners.dataflow.internal.apiclient  # noqa: F401 - is it there?
            from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise MissingExtraError("apache-beam[gcp]", "dataflow", "gristmill launch") from error
    return PipelineOptions([*(word for word in flags if word != f"--runner={_RUNNER}"), f"--runner={_RUNNER}"])


def page_of(project: str, region: str, job_id: str) -> str:
    """URL of a job's page."""
    return f"https://console.cloud.google.com/dataflow/jobs/{region}/{job_id}?project={project}"


def beam_problems(options: Any) -> list[str]:
    """What Beam itself finds wrong with options for Dataflow; looks nowhere, as its own validation would.

    Args:
        options: Beam's options.
    """
    from apache_beam.options.pipeline_options import GoogleCloudOptions
    from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

    cloud = options.view_as(GoogleCloudOptions)
    validator = PipelineOptionsValidator(options, DataflowRunner())
    wrong: list[str] = validator.validate_cloud_options(cloud) if validator.is_service_runner() else []
    for name in ("temp_location", "staging_location"):
        if getattr(cloud, name):
            wrong += validator.validate_gcs_path(cloud, name)
    for kind in validator.OPTIONS:
        if kind is not GoogleCloudOptions and hasattr(kind, "validate"):  # which would ask the store
            wrong += options.view_as(kind).validate(validator)
    return wrong


def describe_job(
    job: Job, stages: Sequence[str], flags: Sequence[str], min_ram_bytes: Mapping[str, int], *, write_manifest: bool
) -> tuple[dict[str, Any], Any]:
    """Translates a run to a Dataflow job; stages, submits and asks nothing.

    Args:
        job: the run.
        stages: names out of `STAGES`, in order.
        flags: Beam's options.
        min_ram_bytes: by stage, memory that its workers must have.
        write_manifest: whether to finish the corpus behind them.

    Returns:
        The job as the service's JSON has it, and the pipeline in Beam's portable form that it would run.

    Raises:
        SettingsError: an option breaks a rule of the service.
    """
    options = pipeline_options(flags)
    import apache_beam as beam
    from apache_beam.options.pipeline_options import GoogleCloudOptions, TestOptions
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner
    from apache_beam.runners.dataflow.internal import apiclient
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    cloud = options.view_as(GoogleCloudOptions)
    runner = DataflowRunner()
    if wrong := beam_problems(options):
        raise SettingsError("; ".join(wrong))
    options.view_as(TestOptions).dry_run = True
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=options)  # as the runner's own would look at the buckets
    _build(pipeline, job, stages, min_ram_bytes, write_manifest=write_manifest)
    translated = runner.run_pipeline(pipeline, options).job
    environment = apiclient.Environment(
        packages=[],
        options=options,
        environment_version="8",
        proto_pipeline_staged_url=f"{cloud.staging_location}/pipeline.pb",
        proto_pipeline=translated.proto_pipeline,
    )
    translated.proto.environment = environment.proto
    return json.loads(translated.json()), translated.proto_pipeline


class DataflowExecutor(Executor):
    """Executes stages by submitting them as one job.

    Attributes:
        job_id: of the job; None before it is submitted, and for a template.
    """

    def __init__(
        self, flags: Sequence[str], min_ram_bytes: Mapping[str, int], *, wait: bool, answers: bool = True
    ) -> None:
        """Submits nothing yet.

        Args:
            flags: Beam's options.
            min_ram_bytes: by stage, memory that its workers must have.
            wait: whether to stay until the job has ended; a template is no job, and not waited for.
            answers: whether the job's page is what the command answers, and not only told.
        """
        super().__init__(
            RunnerChoice(runner=_RUNNER, flags=tuple(flags), engine_threads=1, says="Google Cloud Dataflow")
        )
        self._flags = tuple(flags)
        self._min_ram_bytes = dict(min_ram_bytes)
        self._wait = wait and flag_value(flags, "template_location") is None
        self._answers = answers
        self.job_id: str | None = None

    @property
    def waits(self) -> bool:
        """Whether the stages are done when `execute` returns."""
        return self._wait

    @property
    def tells(self) -> bool:
        """Whether `execute` tells by itself how far it is: the service's counters say more than files in a store."""
        return True

    def execute(self, job: Job, stages: Sequence[str], *, write_manifest: bool, verbose: bool = False) -> None:
        """Submits the stages, says where to watch them, and waits if asked to.

        Raises:
            SettingsError: the service or Beam refuses the job.
            StorageError: the service does not answer.
            GristmillError: what a worker raised, when the job was waited for.
        """
        options = pipeline_options(self._flags)
        from apache_beam.options.pipeline_options import GoogleCloudOptions
        from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException

        cloud = options.view_as(GoogleCloudOptions)
        classic = bool(cloud.template_location) and not cloud.template_location.endswith(_FLEX_JOB)
        if classic:  # any number of jobs may be made of it, whenever, and none of them is this run
            job = replace(job, run="")
        with quiet(verbose=verbose):
            result = _submit(options, job, stages, self._min_ram_bytes, write_manifest=write_manifest)
        if cloud.template_location:
            if not classic:  # the service makes a job of it at once, whose id is told to nobody here
                update_holder(job.corpus, job.run, outlives=True)
            event("template", f"template {cloud.template_location}", template=cloud.template_location)
            return
        self.job_id = str(result.job_id())
        page = page_of(cloud.project, cloud.region, self.job_id)
        named = {"job": self.job_id, "page": page, "project": cloud.project, "region": cloud.region}
        update_holder(job.corpus, job.run, outlives=True, **named)
        (tell if self._answers else _note)(f"job {self.job_id} {page}", "submitted", job=self.job_id, page=page)
        if self._wait:
            try:
                with quiet(verbose=verbose), told_counters(result):
                    state = str(result.wait_until_finish())
            except Exception as error:  # whatever the service makes of a worker's error, and its client of a network's
                own = worker_error(error)
                if own is None and not isinstance(error, DataflowRuntimeException):
                    raise StorageError(
                        f"job {self.job_id} cannot be watched any more: {first_line(error) or type(error).__name__}; "
                        f"it goes on by itself, see {page}"
                    ) from error
                update_holder(job.corpus, job.run, outlives=False)
                raise own or DataError(f"job {self.job_id} failed: {error}") from error
            update_holder(job.corpus, job.run, outlives=False)
            if state != "DONE":
                raise DataError(
                    f"job {self.job_id} ended as {state}; its page says why, and a rerun goes on from there"
                )

    def leave_nothing(self) -> None:
        """Leaves a job without work where a Flex Template's launcher must leave one; elsewhere does nothing.

        To the service, a launcher that ends without a job has failed, so a scheduler would take what is finished for a
        failure.
        """
        options = pipeline_options(self._flags)
        import apache_beam as beam
        from apache_beam.options.pipeline_options import GoogleCloudOptions

        place = options.view_as(GoogleCloudOptions).template_location
        if place and place.endswith(_FLEX_JOB):
            with quiet():
                pipeline = beam.Pipeline(options=options)
                _ = pipeline | "Nothing to do" >> beam.Create([0])
                pipeline.run()
            event("template", f"template {place}, which does nothing", template=place)


def _note(text: str, name: str, **fields: Any) -> None:
    event(name, text, **fields)


def _submit(
    options: Any, job: Job, stages: Sequence[str], min_ram_bytes: Mapping[str, int], *, write_manifest: bool
) -> Any:
    """Builds a pipeline and hands it over; gives what Beam gave for the job.

    Raises:
        SettingsError: the service or Beam refuses the job.
        StorageError: the service does not answer.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import GoogleCloudOptions
    from google.api_core.exceptions import GoogleAPICallError, GoogleAPIError
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

    try:
        pipeline = beam.Pipeline(options=options)
        _build(pipeline, job, stages, min_ram_bytes, write_manifest=write_manifest)
        return pipeline.run()
    except GristmillError:
        raise
    except GoogleAPICallError as error:
        raise SettingsError(f"Dataflow refused the job: {error.message}") from error
    except DefaultCredentialsError as error:
        raise SettingsError(
            f"no job was submitted, for want of credentials: {first_line(error)}; run `gcloud auth application-default "
            "login`, or have GOOGLE_APPLICATION_CREDENTIALS name a key"
        ) from error
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        endpoint = options.view_as(GoogleCloudOptions).dataflow_endpoint
        raise StorageError(
            f"no job was submitted: Dataflow at {endpoint}, or the store that it is staged to, does not answer: "
            f"{what_failed(error) or type(error).__name__}; mend the network or --dataflow_endpoint, and run this again"
        ) from error
    except Exception as error:  # whatever Beam raises before there is a job
        said = " ".join(str(error).split()).rstrip(".")
        raise SettingsError(
            f"no job was submitted: Beam stopped with {type(error).__name__}: {said}; mend the option that it speaks "
            "of, or see where by --debug"
        ) from error


def _build(
    pipeline: Any, job: Job, stages: Sequence[str], min_ram_bytes: Mapping[str, int], *, write_manifest: bool
) -> None:
    """Adds the stages of a run to a pipeline, with what they need of their workers."""
    from apache_beam.pipeline import PipelineVisitor
    from apache_beam.transforms.resources import parse_resource_hints

    from gristmill.pipelines.beam_shell import build_pipeline

    build_pipeline(pipeline, job, stages, write_manifest=write_manifest)
    hints = {_LABELS[stage]: parse_resource_hints({"min_ram": f"{need}B"}) for stage, need in min_ram_bytes.items()}

    class Hints(PipelineVisitor):  # type: ignore[misc]  # Beam ships no types
        def enter_composite_transform(self, node: Any) -> None:
            self.visit_transform(node)

        def visit_transform(self, node: Any) -> None:
            for label, hint in hints.items():
                if node.full_label.startswith(label):
                    node.resource_hints.update(hint)

    if hints:
        pipeline.visit(Hints())
