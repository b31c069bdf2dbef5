"""A launch on Dataflow from the first check to the same corpus, with everything of Google's on this machine.

The levels: what is refused before anything is asked; translation without a network; translation and staging into a
store; submission through to the end; and the staged pipeline itself, run by a worker process.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gristmill.cli import main
from gristmill.dataflow.job_state import asks_dataflow
from gristmill.pipelines.lock_record import Holder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("apitools") is None,
        reason="Beam's part for Google Cloud is absent, so no launch is tested: pip install 'gristmill[dataflow]'",
    ),
]

IMAGE = "us-docker.pkg.dev/test-project/tools/gristmill:1"
PLACES = (
    *("--project=test-project", "--region=us-central1", "--temp_location=gs://test-bucket/tmp"),
    f"--sdk_container_image={IMAGE}",
)
GIVEN = (
    *("--machine_type=n2-highmem-4", "--disk_size_gb=77", "--max_num_workers=7", "--labels=team=data"),
    *("--service_account_email=worker@test-project.iam.gserviceaccount.com", "--no_use_public_ips"),
    *("--subnetwork=regions/us-central1/subnetworks/inner", "--experiments=min_cpu_platform=Intel Ice Lake"),
    *("--dataflow_kms_key=projects/p/locations/us-central1/keyRings/r/cryptoKeys/k", "--flexrs_goal=COST_OPTIMIZED"),
    "--dataflow_service_options=enable_preflight_validation=false",
)
STEPS = (
    "Clean: scan",
    "Clean: by hash",
    "Tokenize: encode",
    "Tokenize: assemble",
    "Index: build",
    "Blend: build",
    "Manifest",
)
REPLAY = """
import sys
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms import environments
with open(sys.argv[1], "rb") as file:
    pipeline = beam_runner_api_pb2.Pipeline.FromString(file.read())
command = sys.executable + " -m apache_beam.runners.worker.sdk_worker_main"
worker = environments.SubprocessSDKEnvironment.from_command_string(command).to_runner_api(None)
for environment in pipeline.components.environments.values():
    assert environment.urn == "beam:env:docker:v1", environment.urn
    environment.urn, environment.payload = worker.urn, worker.payload
    del environment.dependencies[:]
FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([])).wait_until_finish()
"""


def _service() -> ModuleType:
    path = Path(__file__).parents[1] / "dataflow_service.py"
    spec = importlib.util.spec_from_file_location("dataflow_service", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text(number: int) -> str:
    """A document; every tenth is nearly the one before it, and some share their last paragraph with others."""
    if number % 10 == 9:
        return text(number - 1) + " again"
    words = " ".join(f"w{(number * 7 + place * place) % 97}" for place in range(20 + number % 9))
    shared = f"\nParagraph {number % 4}, which more than one document ends with."
    return words + shared if number % 6 == 0 else words


@pytest.fixture(scope="module")
def cloud(store: Any, new_workshop: Any) -> Iterator[Any]:
    """A workshop whose recipe reads from the store and writes there, and a Dataflow to launch it on."""
    module, workshop = _service(), new_workshop()
    store.put("in/a.jsonl", "\n".join(json.dumps({"text": text(number)}) for number in range(150)).encode())
    store.put("in/b.jsonl", b'{"text": "another source"}\n' * 3 + b'{"text": "of four lines"}')
    recipe = workshop.recipe(
        {"id": "a", "files": [f"{store.url}/in/a.jsonl"], "weight": 0.7, "materialize": True},
        {"id": "b", "files": [f"{store.url}/in/b.jsonl"], "weight": 0.3},
        name="Two.Sources",
        output=f"{store.url}/out",
        shards={"target_tokens": 4000},
        near_dedup={},
        paragraph_dedup={"min_chars": 30},
        index={"sequence_length": 16, "samples": 40, "splits": "80,10,10"},
    )
    with module.running() as service:
        key = module.key_file(service, workshop.folder)
        environment = {
            **store.environment,
            "GOOGLE_APPLICATION_CREDENTIALS": str(key),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER": f"{service.address}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM": f"{service.address}/",
        }

        def launch(*words: str, **more: str) -> Any:
            return workshop.cli("launch", *words, timeout=300, **{**environment, **more})

        yield SimpleNamespace(
            store=store, service=service, recipe=recipe, launch=launch, environment=environment, key=key,
            workshop=workshop, secret=module.SECRET,
        )  # fmt: skip


COUNTED = (
    ("tokenize/web/tokens", "s9", 2_000_000),
    ("tokenize/web/encode_items", "s8", 2),
    ("tokenize/web/assemble_items", "s9", 2),
    ("tokenize/web/documents_kept", "s9", 1490),
    ("clean/web/scan_items", "s4", 2),
    ("clean/code/scan_items", "s4", 1),
    ("clean/web/documents_in", "s4", 1400),
    ("clean/code/documents_in", "s4", 100),
    ("clean/web/dropped/min_chars", "s4", 9),
    ("clean/web/dropped/exact_duplicate", "s4", 3),
)


@pytest.fixture(scope="module")
def dry(cloud: Any) -> Any:
    """A dry run with a Dataflow that nobody can reach, and the job that it wrote."""
    path = cloud.workshop.folder / "dry.json"
    before = cloud.store.names("")
    cloud.service.lacks.add("iam.serviceAccounts.actAs")
    done = cloud.launch(cloud.recipe, *PLACES, *GIVEN, "--dry_run=True", f"--dataflow_job_file={path}")
    cloud.service.lacks.clear()
    assert done.returncode == 0, done.stderr
    assert cloud.store.names("") == before, "a dry run writes nothing"
    return SimpleNamespace(said=done.stdout, told=done.stderr, job=json.loads(path.read_bytes()))


@pytest.fixture(scope="module")
def submitted(cloud: Any, dry: Any) -> Any:
    """A launch that waited for its end, and the job as the service got it."""
    cloud.service.metrics = [
        {
            "name": {"origin": "user", "name": name, "context": {"namespace": "gristmill", "step": step, **tentative}},
            "scalar": count + len(tentative),
        }
        for name, step, count in COUNTED
        for tentative in ({}, {"tentative": "true"})  # the service gives each twice
    ]
    cloud.service.work = lambda job: replay(cloud, job)
    try:
        done = cloud.launch(cloud.recipe, *PLACES, f"--dataflow_endpoint={cloud.service.address}", "--wait")
    finally:
        cloud.service.work = None
    assert done.returncode == 0, done.stderr
    assert len(cloud.service.jobs) == 1
    return SimpleNamespace(said=done.stdout, told=done.stderr, job=cloud.service.jobs[0])


@pytest.fixture(scope="module")
def local(cloud: Any) -> str:
    """The corpus that this machine makes of the recipe, in the store; its name there."""
    output = f"{cloud.store.url}/local"
    done = cloud.workshop.cli("prepare", cloud.recipe, "--runner=loop", "--output", output, **cloud.environment)
    assert done.returncode == 0, done.stderr
    return "local"


def pool(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["environment"]["workerPools"][0]
    return found


def staged(cloud: Any, job: dict[str, Any]) -> bytes:
    """The pipeline that a job names, out of the store."""
    url = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
    return held(cloud, url.removeprefix("gs://test-bucket/"))


def held(cloud: Any, name: str) -> bytes:
    """An object of the store."""
    name = urllib.parse.quote(name, safe="")
    with urllib.request.urlopen(f"{cloud.store.address}/storage/v1/b/test-bucket/o/{name}?alt=media") as answer:
        data: bytes = answer.read()
        return data


def replay(cloud: Any, job: dict[str, Any]) -> None:
    """Runs the pipeline that a job names, with a worker process in place of those in containers."""
    pipeline = cloud.workshop.folder / "pipeline.pb"
    pipeline.write_bytes(staged(cloud, job))
    subprocess.run(
        [sys.executable, "-c", REPLAY, str(pipeline)],
        env={**os.environ, **cloud.environment},
        check=True,
        timeout=300,
    )


def test_a_dry_run_prices_each_stage(dry: Any) -> None:
    rows = [line.split() for line in dry.said.splitlines()]
    priced = {row[0]: row for row in rows if row and row[0] in {"download", "clean", "tokenize", "index", "blend"}}
    assert list(priced) == ["download", "clean", "tokenize", "index", "blend"]
    assert all(len(row) == 5 for row in priced.values())
    assert "estimated from 2 input files" in dry.said
    assert "fine: gs://test-bucket: lies in US-CENTRAL1" in dry.told


def test_permissions_are_looked_at(dry: Any) -> None:
    told = dry.told.splitlines()
    assert "fine: project test-project: you may dataflow.jobs.create and dataflow.jobs.get" in told
    account = "service account worker@test-project.iam.gserviceaccount.com"
    assert f"warning: {account}: you lack iam.serviceAccounts.actAs, which a launch needs" in told


def test_what_the_user_gives_reaches_the_job(dry: Any) -> None:
    job, environment, workers = dry.job, dry.job["environment"], pool(dry.job)
    assert job["type"] == "JOB_TYPE_BATCH"
    assert workers["machineType"] == "n2-highmem-4"
    assert workers["diskSizeGb"] == 77
    assert workers["autoscalingSettings"]["maxNumWorkers"] == 7
    assert workers["ipConfiguration"] == "WORKER_IP_PRIVATE"
    assert workers["subnetwork"] == "regions/us-central1/subnetworks/inner"
    assert environment["serviceAccountEmail"] == "worker@test-project.iam.gserviceaccount.com"
    assert environment["serviceKmsKeyName"] == "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"
    assert environment["flexResourceSchedulingGoal"] == "FLEXRS_COST_OPTIMIZED"
    assert "min_cpu_platform=Intel Ice Lake" in environment["experiments"]
    assert "enable_preflight_validation=false" in environment["serviceOptions"]
    assert job["labels"]["team"] == "data"


def test_what_the_user_leaves_open_is_chosen(submitted: Any) -> None:
    environment, workers = submitted.job["environment"], pool(submitted.job)
    assert workers["machineType"] == "n2-standard-8"
    assert workers["diskSizeGb"] == 51
    assert workers["numThreadsPerWorker"] == 1
    assert workers["autoscalingSettings"] == {"algorithm": 2, "maxNumWorkers": 1}, "2 is BASIC"
    assert workers["workerHarnessContainerImage"] == IMAGE
    (image,) = workers["sdkHarnessContainerImages"]
    assert image["containerImage"] == IMAGE
    assert image["useSingleCorePerContainer"] is True
    assert {"use_runner_v2", "use_multiple_sdk_containers"} <= set(environment["experiments"])
    assert submitted.job["labels"] == {"gristmill": "0-1-0", "gristmill-corpus": "two-sources"}


def test_a_dry_run_says_the_job_that_is_submitted(dry: Any, submitted: Any) -> None:
    def shape(value: Any) -> Any:
        return sorted(value) if isinstance(value, dict) else type(value).__name__

    assert set(submitted.job) <= set(dry.job) | {"clientRequestId"}
    left_open = {name for name in pool(submitted.job) if name != "packages"}
    assert left_open <= set(pool(dry.job)), "nothing is in the job that a dry run does not show"
    ours, theirs = pool(dry.job)["sdkHarnessContainerImages"], pool(submitted.job)["sdkHarnessContainerImages"]
    assert [shape(image) for image in ours] == [shape(image) for image in theirs]
    assert [image["capabilities"] for image in ours] == [image["capabilities"] for image in theirs]


def test_the_page_of_the_job_is_printed(submitted: Any) -> None:
    url = "https://console.cloud.google.com/dataflow/jobs/us-central1/job-0?project=test-project"
    assert f"job job-0 {url}" in submitted.said.splitlines()


def test_the_service_is_asked_with_the_default_credentials_and_the_job_holds_none(
    cloud: Any, submitted: Any, dry: Any
) -> None:
    assert cloud.service.authorised == [f"Bearer {cloud.secret}"]
    key = json.loads(cloud.key.read_text("utf-8"))
    secrets = [cloud.secret, key["private_key_id"], key["private_key"].split("\n")[1], str(cloud.key)]
    pipeline = staged(cloud, submitted.job).decode("latin-1")
    for text in (json.dumps(submitted.job), json.dumps(dry.job), pipeline, submitted.said, submitted.told, dry.said):
        assert not [secret for secret in secrets if secret in text]


def test_who_waits_is_told_what_the_workers_counted(submitted: Any) -> None:
    told = [line.split(" s  ", 1)[1] for line in submitted.told.splitlines() if line.startswith("  ")]
    assert told == [
        "clean: 3 items of scan, 1.5 k documents, 12 dropped",
        "tokenize: 2 items of assemble, 2 items of encode, 1.49 k kept, 2 M tokens",
    ]


def test_the_staged_pipeline_has_every_step(cloud: Any, submitted: Any) -> None:
    from apache_beam.portability.api import beam_runner_api_pb2

    pipeline = beam_runner_api_pb2.Pipeline.FromString(staged(cloud, submitted.job))
    names = {transform.unique_name for transform in pipeline.components.transforms.values()}
    assert set(STEPS) <= names


def test_the_staged_pipeline_gives_the_corpus_of_this_machine(cloud: Any, submitted: Any, local: str) -> None:
    found = cloud.store.tree("out")
    assert found == cloud.store.tree(local)
    manifest = json.loads(cloud.store.content("out/manifest.json"))
    source = manifest["sources"][0]
    assert source["dropped"]["near_duplicate"], "near duplicates were searched for"
    assert source["counted"]["paragraphs.removed"], "paragraphs were searched for"
    assert [name for name in found if name.startswith("raw/")], "the source was copied"
    assert "done in " in submitted.told
    assert not cloud.store.names("out/_stages/holder"), "the last step ended the run's hold"


def test_a_template_of_a_finished_corpus_leaves_a_job_without_work(cloud: Any, local: str) -> None:
    """The service takes a launcher that leaves no job for one that failed."""
    from apache_beam.portability.api import beam_runner_api_pb2

    before = cloud.store.names(f"{local}/")
    place = "launches/1/job_object"
    done = cloud.launch(
        f"--recipe={cloud.recipe}", *PLACES, f"--output={cloud.store.url}/{local}",
        f"--template_location={cloud.store.url}/{place}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "nothing to do: " in done.stderr
    pipeline = beam_runner_api_pb2.Pipeline.FromString(staged(cloud, json.loads(held(cloud, place))))
    steps = [step for step in pipeline.components.transforms.values() if not step.subtransforms]
    names = {step.unique_name.split("/")[0] for step in steps}
    assert names == {"Nothing to do"}
    assert cloud.store.names(f"{local}/") == before
    assert not cloud.store.names("out/_stages/holder"), "the last step ended the run's hold"


def test_another_launch_is_refused_while_the_job_goes_on(cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    output = f"--output={cloud.store.url}/held"
    flags = [*PLACES, f"--dataflow_endpoint={cloud.service.address}"]
    monkeypatch.setattr(cloud.service, "state", "JOB_STATE_RUNNING")
    first = cloud.launch(cloud.recipe, *flags, output)
    assert first.returncode == 0, first.stderr
    number = len(cloud.service.jobs) - 1
    holder = Holder(**json.loads(cloud.store.content("held/_stages/holder")))
    page = f"https://console.cloud.google.com/dataflow/jobs/us-central1/job-{number}?project=test-project"
    assert (holder.job, holder.page, holder.outlives) == (f"job-{number}", page, True)

    second = cloud.launch(cloud.recipe, *flags, output)
    assert second.returncode == 1
    last = second.stderr.splitlines()[-1]
    assert last.startswith(f"gristmill: {cloud.store.url}/held: another run is working on this corpus; wait for it or")
    assert f"(Google Cloud Dataflow), job job-{number} {page}; the service says that its job goes on; " in last
    assert len(cloud.service.jobs) == number + 1

    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    ask = asks_dataflow(flags)
    for state, expected in {
        "RUNNING": True, "PENDING": True, "CANCELLING": True, "DONE": False, "FAILED": False, "CANCELLED": False,
        "UNKNOWN": None,
    }.items():  # fmt: skip
        monkeypatch.setattr(cloud.service, "state", f"JOB_STATE_{state}")
        assert ask(holder) is expected, state
    assert ask(replace(holder, job="job-4711")) is None, "a job that nobody knows"
    assert asks_dataflow([*PLACES, "--dataflow_endpoint=http://localhost:1"])(holder) is None, "no answer"


class OutOfRetriesError(Exception):
    """An error as urllib3 has it, which requests puts into one of its own."""

    def __init__(self, reason: Exception) -> None:
        super().__init__("Max retries exceeded")
        self.reason = reason


def launched(cloud: Any, patch: pytest.MonkeyPatch, run_pipeline: Callable[..., Any], output: str) -> int:
    """Launches in this process, with something in place of what hands a pipeline over; gives the exit code."""
    for name, value in cloud.environment.items():
        patch.setenv(name, value)
    patch.setattr("apache_beam.runners.dataflow.dataflow_runner.DataflowRunner.run_pipeline", run_pipeline)
    return main(["launch", cloud.recipe, *PLACES, "--wait", "--to=clean", f"--output={output}"])


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (
            OSError(OutOfRetriesError(ConnectionRefusedError(111, "Connection refused"))),
            1,
            "no job was submitted: Dataflow at https://dataflow.googleapis.com, or the store that it is staged to, d",
        ),
        (
            ValueError("Pipeline has validations errors: \nMissing required option: project."),
            2,
            "no job was submitted: Beam stopped with ValueError: Pipeline has validations errors: Missing required opt",
        ),
        (KeyboardInterrupt(), 130, "interrupted; what is finished stays, and a rerun goes on from there"),
    ],
    ids=["no-answer", "invalid", "interrupted"],
)
def test_a_job_that_nobody_has_taken_holds_no_output(
    cloud: Any,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    says: str,
) -> None:
    holders: list[Holder] = []

    def refuse(*_: object, **__: object) -> None:
        holders.append(Holder(**json.loads(cloud.store.content("unsent/_stages/holder"))))
        raise error

    assert launched(cloud, monkeypatch, refuse, f"{bucket}/unsent") == code
    told = capsys.readouterr().err
    assert told.splitlines()[-1].startswith(f"gristmill: {says}")
    assert code != 1 or " does not answer: Connection refused; mend the network or --dataflow_endpoint, and run" in told
    assert "Traceback" not in told
    assert not holders[-1].outlives, "a launcher that is killed here is known as dead by its machine at once"
    assert not cloud.store.names("unsent/_stages/holder")


@pytest.mark.parametrize("ended", [True, False])
def test_a_job_that_cannot_be_watched_keeps_its_output(
    cloud: Any, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, ended: bool
) -> None:
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException

    class Sent:
        def job_id(self) -> str:
            return "job-99"

        def wait_until_finish(self) -> None:
            if ended:
                raise DataflowRuntimeException("Dataflow pipeline failed. State: FAILED", self)
            raise AssertionError("Job did not reach to a terminal state")

    assert launched(cloud, monkeypatch, lambda *_, **__: Sent(), f"{bucket}/unwatched{ended}") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    if ended:
        assert last == "gristmill: job job-99 failed: Dataflow pipeline failed. State: FAILED"
        assert not cloud.store.names(f"unwatched{ended}/_stages/holder")
    else:
        assert last.startswith(
            "gristmill: job job-99 cannot be watched any more: Job did not reach to a terminal state;"
        )
        holder = Holder(**json.loads(cloud.store.content(f"unwatched{ended}/_stages/holder")))
        assert (holder.job, holder.outlives) == ("job-99", True)


def test_a_template_is_staged_without_asking_the_service(cloud: Any) -> None:
    before = len(cloud.service.jobs)
    template = f"{cloud.store.url}/templates/job"
    done = cloud.launch(
        f"--recipe={cloud.recipe}", *PLACES, "--runner=DataflowRunner", f"--output={cloud.store.url}/templated",
        f"--template_location={template}", "--job_name=templated",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"template {template}" in done.stderr
    assert "templates/job" in cloud.store.names("")
    assert len(cloud.service.jobs) == before


def test_memory_is_asked_for_only_where_the_service_places_by_it(cloud: Any) -> None:
    path = cloud.workshop.folder / "prime.json"
    done = cloud.launch(
        cloud.recipe,
        *PLACES,
        f"--output={cloud.store.url}/prime",
        "--dataflow_service_options=enable_prime",
        "--dry-run",
        f"--dataflow_job_file={path}",
    )
    assert done.returncode == 0, done.stderr
    for stage in ("blend", "clean", "index"):
        assert f"{stage} asks for 2.0 GiB" in done.stdout
    workers = pool(json.loads(path.read_bytes()))
    assert "machineType" not in workers
    assert len(workers["sdkHarnessContainerImages"]) == 2


def test_a_refusal_of_the_service_is_one_sentence(cloud: Any) -> None:
    cloud.service.refuses = "the caller does not have permission"
    try:
        done = cloud.launch(
            cloud.recipe, *PLACES, f"--output={cloud.store.url}/refused", f"--dataflow_endpoint={cloud.service.address}"
        )
    finally:
        cloud.service.refuses = ""
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("gristmill: Dataflow refused the job: ")
    assert last.endswith("the caller does not have permission")


def test_buckets_that_are_not_there_are_named_before_anything_is_read(cloud: Any) -> None:
    recipe = cloud.workshop.folder / "elsewhere.toml"
    text = Path(cloud.recipe).read_text("utf-8").replace("test-bucket/in/b.jsonl", "no-such-inputs/in/b.jsonl")
    recipe.write_text(text, "utf-8")
    done = cloud.launch(str(recipe), *PLACES[:2], "--temp_location=gs://no-such-bucket/tmp", PLACES[3], "--dry-run")
    assert done.returncode == 2
    for name in ("no-such-bucket", "no-such-inputs"):
        assert f"  - gs://{name}: there is no such bucket; make it, or mend its name" in done.stderr
    assert done.stdout == ""


def test_what_is_far_from_the_workers_or_cannot_be_seen_is_told(cloud: Any) -> None:
    nobody = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER": "http://127.0.0.1:9/"}
    done = cloud.launch(cloud.recipe, PLACES[0], "--region=europe-west4", *PLACES[2:], "--dry-run", **nobody)
    assert done.returncode == 0, done.stderr
    assert "warning: gs://test-bucket: lies in US-CENTRAL1, the workers in europe-west4" in done.stderr
    assert "note: project test-project: permissions cannot be looked at from here: " in done.stderr


def test_prepare_takes_the_same_options_and_its_record_names_the_job(cloud: Any) -> None:
    before = len(cloud.service.jobs)
    holders: list[Holder] = []

    def wait_for_the_name(_: object) -> None:
        patience = time.monotonic() + 60
        while time.monotonic() < patience and not (holders and holders[-1].job):
            holders.append(Holder(**json.loads(cloud.store.content("prepared/_stages/holder"))))
            time.sleep(0.1)

    cloud.service.work = wait_for_the_name
    try:
        done = cloud.workshop.cli(
            "prepare",
            cloud.recipe,
            "--runner=DataflowRunner",
            *PLACES,
            *("--sdk_location=container", "--no_save_main_session", "--max_num_workers=3"),
            f"--dataflow_endpoint={cloud.service.address}",
            f"--output={cloud.store.url}/prepared",
            timeout=300,
            **cloud.environment,
        )
    finally:
        cloud.service.work = None
    page = f"https://console.cloud.google.com/dataflow/jobs/us-central1/job-{before}?project=test-project"
    named = (holders[-1].job, holders[-1].page, holders[-1].project, holders[-1].region, holders[-1].outlives)
    assert named == (f"job-{before}", page, "test-project", "us-central1", True)
    assert f"job job-{before} {page}" in done.stderr.splitlines()
    assert done.returncode == 1, "a job that is done has left a manifest"
    assert done.stderr.splitlines()[-1].startswith(
        f"gristmill: {cloud.store.url}/prepared: Google Cloud Dataflow says that the job is done, but there is no "
        "manifest.json; "
    )
    assert not cloud.store.names("prepared/_stages/holder"), "the job has ended, so nothing holds the output"
    (job,) = cloud.service.jobs[before:]
    assert pool(job)["autoscalingSettings"]["maxNumWorkers"] == 3
    assert pool(job)["workerHarnessContainerImage"] == IMAGE
