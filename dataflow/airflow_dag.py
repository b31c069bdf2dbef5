"""An Airflow DAG of Dataflow Flex Template jobs, as the text of a Python file, out of the graph of stages.

What can hold any letter (the recipe's URL, the output) reaches a task as a parameter of the DAG, never as text of a
field that Airflow renders, so a name with braces stays a name. The file reads nothing but Airflow, knows Airflow 2 and
3, and holds no credential: those are the connection's.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gristmill.dataflow.flags import template_metadata
from gristmill.dataflow.workers import label_value
from gristmill.pipelines.stage_graph import StageJob

__all__ = ["airflow_dag", "DagPlan"]

_NAME_LETTERS = 54  # of the 63 that a job's name may have; Airflow adds nine
_HEAD = '''\
"""Prepares a corpus on Google Cloud Dataflow, a job for each task; written by `gristmill stages RECIPE --airflow`.

The same recipe and options give the same text, so write it anew rather than change it. Credentials are those of the
connection `google_cloud_default`. What is finished and unchanged is skipped, so a task that is run again goes on where
its job ended. Two runs must not work on one corpus, so there is one at a time.

Needs apache-airflow-providers-google and what its Dataflow part asks for, apache-airflow-providers-apache-beam.
"""

from datetime import datetime, timedelta, timezone

from airflow.providers.google.cloud.operators.dataflow import DataflowStartFlexTemplateOperator

try:
    from airflow.sdk import DAG, Param
except ImportError:  # Airflow 2
    from airflow.models.dag import DAG
    from airflow.models.param import Param
'''
_TASK = '''\
def task(name, first, last, job_name):
    """The task that runs the stages from `first` to `last` as one job."""
    labels = {**ENVIRONMENT["additionalUserLabels"], "gristmill-job": name}
    return DataflowStartFlexTemplateOperator(
        task_id=name,
        project_id="{{ params.project }}",
        location="{{ params.region }}",
        body={
            "launchParameter": {
                "jobName": job_name,
                "containerSpecGcsPath": "{{ params.template }}",
                "parameters": {**PARAMETERS, "from": first, "to": last},
                "environment": {**ENVIRONMENT, "additionalUserLabels": labels},
            }
        },
        append_job_name=True,
    )
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class DagPlan:
    """What a DAG is made of.

    Attributes:
        corpus: name of the corpus.
        jobs: the tasks, in order.
        project: the project that pays.
        region: where the workers run.
        template: URL of the Flex Template's file.
        parameters: of the template, but for the stages, by name.
        environment: of each run of the template, with its labels.
    """

    corpus: str
    jobs: tuple[StageJob, ...]
    project: str
    region: str
    template: str
    parameters: dict[str, str]
    environment: dict[str, Any]


def airflow_dag(plan: DagPlan) -> str:
    """The text of a DAG's file; the same plan gives the same text."""
    return "\n".join(_parts(plan))


def _parts(plan: DagPlan) -> Iterator[str]:
    yield _HEAD
    yield "PARAMETERS = {"
    for name in plan.parameters:
        yield f'    {_text(name)}: "{{{{ params.{name} }}}}",'
    yield "}"
    yield "ENVIRONMENT = {"
    for name, value in plan.environment.items():
        yield f"    {_text(name)}: {_text(value)},"
    yield "}\n\n"
    yield _TASK
    yield ""
    yield "with DAG("
    yield f"    dag_id={_text(_dag_id(plan.corpus))},"
    yield "    schedule=None,"
    yield "    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),"
    yield "    catchup=False,"
    yield "    max_active_runs=1,"
    yield '    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},'
    yield '    tags=["gristmill"],'
    yield "    params={"
    yield from (f"        {line}" for line in _params(plan))
    yield "    },"
    yield "):"
    for job in plan.jobs:
        name = _job_name(plan.corpus, job.name)
        yield f"    {job.name} = task({_text(job.name)}, {_text(job.first)}, {_text(job.last)}, {_text(name)})"
    for job in plan.jobs:
        for earlier in job.after:
            yield f"    {earlier} >> {job.name}"
    yield ""


def _params(plan: DagPlan) -> Iterator[str]:
    """The parameters of the DAG, those of the template with the template's own patterns."""
    metadata: Any = template_metadata()
    known = {entry["name"]: entry for entry in metadata["parameters"]}
    for name, value in (("project", plan.project), ("region", plan.region), ("template", plan.template)):
        yield f'{_text(name)}: Param({_text(value)}, type="string"),'
    for name, value in plan.parameters.items():
        yield f"{_text(name)}: Param("
        yield f"    {_text(value)},"
        yield f"    description={_text(known[name]['helpText'])},"
        yield '    type="string",'
        yield f"    pattern={_text(known[name]['regexes'][0])},"
        yield "),"


def _text(value: Any) -> str:
    """A literal of strings, whole numbers, lists and dictionaries; of these, JSON's form is Python's as well."""
    return json.dumps(value, ensure_ascii=False)


def _dag_id(corpus: str) -> str:
    return f"gristmill_{corpus}"[:200]


def _job_name(corpus: str, job: str) -> str:
    """A job's name: lower case letters, digits and dashes, a letter first and no dash last."""
    middle = re.sub(r"[^a-z0-9]+", "-", label_value(corpus)).strip("-")
    room = _NAME_LETTERS - len(f"gristmill--{job}")
    return f"gristmill-{middle[:room].strip('-')}-{job}"
