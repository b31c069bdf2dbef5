"""The Airflow DAG: read, run against stand-ins with the real signatures, and loaded by Airflow itself where it is."""

import ast
import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self

import pytest

from gristmill.cli import main
from gristmill.dataflow.flags import template_metadata
from gristmill.dataflow.template_environment import ENVIRONMENT_FLAGS
from gristmill.pipelines.stage_graph import before
from gristmill.pipelines.stage_names import STAGES

RECIPE = 'gs://bucket/recipes/it\'s {{ 7 * 7 }} {% raw %} "é" $(id).toml'
IMAGE = "us-central1-docker.pkg.dev/p/r/gristmill:0.1.0"
GIVEN = (
    "--project=test-project",
    "--region=us-central1",
    "--temp_location=gs://bucket/tmp",
    "--template=gs://bucket/templates/gristmill.json",
    f"--sdk_container_image={IMAGE}",
    f"--recipe_url={RECIPE}",
)
MORE = (
    *("--no_use_public_ips", "--subnetwork=regions/us-central1/subnetworks/s"),
    *("--service_account_email", "w@p.iam.gserviceaccount.com", "--dataflow_kms_key=projects/p/k"),
    *("--flexrs_goal=COST_OPTIMIZED", "--max_num_workers=7", "--labels=team=data"),
    *("--experiments=a", "--dataflow_service_options=enable_prime"),
)


class Dag:
    """Stands for Airflow's DAG: takes what Airflow takes, and keeps the tasks that are made inside."""

    made: ClassVar[list["Dag"]] = []

    def __init__(
        self,
        *,
        dag_id: str,
        schedule: Any,
        start_date: Any,
        catchup: bool,
        max_active_runs: int,
        default_args: dict[str, Any],
        tags: list[str],
        params: dict[str, Any],
    ) -> None:
        self.dag_id, self.schedule, self.max_active_runs = dag_id, schedule, max_active_runs
        self.default_args, self.params = default_args, params
        self.tasks: dict[str, Operator] = {}
        Dag.made.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Param:
    """Stands for Airflow's Param, which checks the value that it is given by a JSON schema."""

    def __init__(self, default: Any, description: str | None = None, *, type: str, pattern: str = "") -> None:  # noqa: A002
        assert type == "string"
        assert re.search(pattern, default)
        self.value, self.pattern = default, pattern


class Operator:
    """Stands for DataflowStartFlexTemplateOperator, as apache-airflow-providers-google 22.8.0 has it."""

    template_fields: Sequence[str] = ("body", "location", "project_id", "gcp_conn_id")

    def __init__(
        self,
        *,
        task_id: str,
        body: dict[str, Any],
        location: str,
        project_id: str = "",
        gcp_conn_id: str = "google_cloud_default",
        drain_pipeline: bool = False,
        cancel_timeout: int | None = 10 * 60,
        wait_until_finished: bool | None = None,
        impersonation_chain: str | Sequence[str] | None = None,
        deferrable: bool = False,
        append_job_name: bool = True,
        expected_terminal_state: str | None = None,
        poll_sleep: int = 10,
        cancel_on_kill: bool = True,
    ) -> None:
        self.task_id, self.body, self.location, self.project_id = task_id, body, location, project_id
        self.append_job_name, self.behind = append_job_name, set[str]()
        Dag.made[-1].tasks[task_id] = self

    def __rshift__(self, other: Self) -> Self:
        other.behind.add(self.task_id)
        return other


@contextmanager
def stand_ins(*, version: int) -> Iterator[None]:
    """Modules with the stand-ins in place of Airflow's, laid out as in its second or third version."""
    names: dict[str, dict[str, Any]] = {
        "airflow": {},
        **{f"airflow.providers{rest}": {} for rest in ("", ".google", ".google.cloud", ".google.cloud.operators")},
        "airflow.providers.google.cloud.operators.dataflow": {"DataflowStartFlexTemplateOperator": Operator},
        **(
            {"airflow.sdk": {"DAG": Dag, "Param": Param}}
            if version == 3
            else {"airflow.models": {}, "airflow.models.dag": {"DAG": Dag}, "airflow.models.param": {"Param": Param}}
        ),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, content in names.items():
            module = ModuleType(name)
            module.__path__ = []
            vars(module).update(content)
            patch.setitem(sys.modules, name, module)
        if version == 2:
            patch.setitem(sys.modules, "airflow.sdk", None)  # None hides a module
        yield


def loaded(text: str, *, version: int = 3) -> Dag:
    """The DAG that a file makes."""
    with tempfile.NamedTemporaryFile(suffix=".py") as file, stand_ins(version=version):
        Path(file.name).write_text(text, "utf-8")
        runpy.run_path(file.name)
    return Dag.made[-1]


@pytest.fixture
def local(workshop: Any) -> str:
    path: str = workshop.recipe(
        {"files": ["gs://bucket/a.jsonl"]}, output="gs://bucket/out", index={"sequence_length": 16, "epochs": 1}
    )
    return path


def written(local: str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["stages", local, "--airflow", *GIVEN, *words]) == 0
    return capsys.readouterr().out


def rendered(value: Any, dag: Dag) -> Any:
    """A field as Airflow renders it: what stands in braces becomes the parameter; any other brace is a fault."""
    if isinstance(value, dict):
        return {name: rendered(entry, dag) for name, entry in value.items()}
    if isinstance(value, str):
        match = re.fullmatch(r"\{\{ params\.(\w+) \}\}", value)
        assert match or "{" not in value
        return dag.params[match[1]].value if match else value
    return value


@pytest.mark.parametrize("version", [2, 3])
def test_there_is_a_task_for_each_stage_behind_those_it_waits_for(
    local: str, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    text = written(local, capsys)
    dag = loaded(text, version=version)
    assert {name: task.behind for name, task in dag.tasks.items()} == {name: set(before(name)) for name in STAGES}
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert calls == {"DAG", "DataflowStartFlexTemplateOperator", "Param", "datetime", "task", "timedelta"}
    assert (dag.dag_id, dag.schedule, dag.max_active_runs) == ("gristmill_test", None, 1)
    assert dag.default_args == {"retries": 2, "retry_delay": timedelta(minutes=5)}


def test_a_group_of_stages_can_be_one_task(local: str, capsys: pytest.CaptureFixture[str]) -> None:
    dag = loaded(written(local, capsys, "--by-group"))
    asked = {name: task.body["launchParameter"]["parameters"] for name, task in dag.tasks.items()}
    assert {name: (entry["from"], entry["to"]) for name, entry in asked.items()} == {
        "shards": ("download", "tokenize"),
        "indices": ("index", "blend"),
    }
    assert dag.tasks["indices"].behind == {"shards"}


def test_parameters_are_those_of_the_template_and_pass_its_patterns(
    local: str, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata: Any = template_metadata()
    known = {entry["name"]: entry for entry in metadata["parameters"]}
    dag = loaded(written(local, capsys, "--output=gs://bucket/{{ there }}"))
    for name, task in dag.tasks.items():
        parameters = rendered(task.body, dag)["launchParameter"]["parameters"]
        assert set(parameters) <= set(known)
        assert {entry["name"] for entry in known.values() if not entry["isOptional"]} <= set(parameters)
        for parameter, value in parameters.items():
            assert all(re.fullmatch(pattern, value) for pattern in known[parameter]["regexes"]), parameter
        assert (parameters["from"], parameters["to"]) == (name, name)
        assert parameters["recipe"] == RECIPE
        assert parameters["output"] == "gs://bucket/{{ there }}"
        assert parameters["force"] == "false"
    dag.params["force"].value = "true"  # as somebody does who starts a run by hand
    assert rendered(dag.tasks["clean"].body, dag)["launchParameter"]["parameters"]["force"] == "true"
    patterns = {name: param.pattern for name, param in dag.params.items() if name in known}
    assert patterns == {name: known[name]["regexes"][0] for name in patterns}
    assert (rendered(task.project_id, dag), rendered(task.location, dag)) == ("test-project", "us-central1")


def test_options_of_a_launch_reach_the_runs_environment(local: str, capsys: pytest.CaptureFixture[str]) -> None:
    dag = loaded(written(local, capsys, *MORE))
    for name, task in dag.tasks.items():
        launch = rendered(task.body, dag)["launchParameter"]
        assert launch["environment"] == {
            "additionalExperiments": ["a", "enable_prime"],
            "additionalUserLabels": {"gristmill-corpus": "test", "gristmill-job": name, "team": "data"},
            "flexrsGoal": "FLEXRS_COST_OPTIMIZED",
            "ipConfiguration": "WORKER_IP_PRIVATE",
            "kmsKeyName": "projects/p/k",
            "maxWorkers": 7,
            "serviceAccountEmail": "w@p.iam.gserviceaccount.com",
            "subnetwork": "regions/us-central1/subnetworks/s",
            "tempLocation": "gs://bucket/tmp",
        }
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,52}[a-z0-9])?", launch["jobName"])


def test_the_text_is_the_same_every_time_and_holds_no_secret(
    local: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = written(local, capsys, *MORE)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/a/key.json")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert written(local, capsys, *MORE) == text
    assert "key.json" not in text
    assert "hf_secret" not in text
    assert max(map(len, text.splitlines())) <= 160


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--regin=x",), "--regin: is no option of the run of a Flex Template; did you mean --region?"),
        (("--max_num_workers=many",), "--max_num_workers many: is no number"),
        (("--labels=Team",), "--labels Team: is no KEY=VALUE of lower case letters, digits, _ and -"),
        (("--network={{ n }}",), "--network {{ n }}: Airflow would read this as a template"),
        (("--subnetwork",), "--subnetwork: lacks its value"),
        (("--exit-code",), "--exit-code: a schedule does not look at what is done"),
        (("--recipe_url=gs://b/two\nlines.toml",), "no line of a script can hold this name"),
        (("--output=s3://b/x",), "output s3://b/x: the template takes only"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    local: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert main(["stages", local, "--airflow", *GIVEN, *words]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""


def test_all_that_is_missing_is_told_at_once(local: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stages", local, "--airflow"]) == 2
    said = capsys.readouterr().err
    assert [line.split(" ")[3] for line in said.splitlines() if line.startswith("  - --")] == [
        *("--project", "--region", "--temp_location", "--template", "--sdk_container_image"),
    ]
    assert "copy the recipe to gs:// and name it with --recipe_url" in said


@pytest.mark.skipif(
    importlib.util.find_spec("google.cloud.dataflow_v1beta3") is None if importlib.util.find_spec("google") else True,
    reason="Google's message types are not installed: pip install 'gristmill[dataflow]'",
)
def test_each_run_is_a_message_of_googles(local: str, capsys: pytest.CaptureFixture[str]) -> None:
    from google.cloud import dataflow_v1beta3

    fields = set(dataflow_v1beta3.FlexTemplateRuntimeEnvironment.meta.fields)
    snake = {re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", flag.field) for flag in ENVIRONMENT_FLAGS}
    assert snake <= fields
    dag = loaded(written(local, capsys, *MORE))
    body = {"projectId": "test-project", "location": "us-central1", **rendered(dag.tasks["clean"].body, dag)}
    read = dataflow_v1beta3.LaunchFlexTemplateRequest.from_json(json.dumps(body))
    assert read.launch_parameter.environment.max_workers == 7
    assert read.launch_parameter.environment.ip_configuration.name == "WORKER_IP_PRIVATE"
    assert read.launch_parameter.environment.flexrs_goal.name == "FLEXRS_COST_OPTIMIZED"
    assert read.launch_parameter.parameters["recipe"] == RECIPE


IN_AIRFLOW = """
import json, sys
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    from airflow.models.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
(dag,) = bag.dags.values()
tasks = {}
for task in dag.topological_sort():
    task.render_template_fields({"params": dag.params.dump()})
    tasks[task.task_id] = [sorted(task.upstream_task_ids), task.retries, task.project_id, task.location, task.body]
print("FOUND " + json.dumps([bag.import_errors, tasks]))
"""


def airflow_python() -> str | None:
    """An interpreter that has Airflow and its Google provider."""
    if importlib.util.find_spec("airflow") is not None:
        return sys.executable
    return os.environ.get("GRISTMILL_AIRFLOW")


@pytest.mark.skipif(
    airflow_python() is None,
    reason="needs apache-airflow with the Google and Beam providers, here or in the interpreter that GRISTMILL_AIRFLOW "
    "names",
)
def test_airflow_itself_loads_the_dag_and_renders_its_fields(
    local: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = written(local, capsys, *MORE)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "dag.py").write_text(text, "utf-8")
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [str(airflow_python()), "-c", IN_AIRFLOW, str(tmp_path / "dags")],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "AIRFLOW_HOME": str(tmp_path / "home"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    errors, tasks = json.loads(line.removeprefix("FOUND "))
    assert errors == {}
    dag = loaded(text)
    assert tasks == {
        name: [sorted(task.behind), 2, "test-project", "us-central1", rendered(task.body, dag)]
        for name, task in dag.tasks.items()
    }
