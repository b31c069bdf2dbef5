"""What a launch refuses before it asks anyone, and how it chooses and prices; no part of Google's is needed."""

import importlib.util
import re
import time
from typing import Any

import pytest

from gristmill.cli import main
from gristmill.dataflow.checks import option_problems, recipe_problems
from gristmill.dataflow.cost import RunSizes, stage_costs
from gristmill.dataflow.flags import plain_words, template_metadata
from gristmill.dataflow.template_environment import run_environment
from gristmill.dataflow.workers import choose_workers, label_value
from gristmill.formats.errors import SettingsError
from gristmill.formats.recipe import parse_recipe

GIB = 1 << 30
ALL = ("download", "clean", "tokenize", "index", "blend")
RIGHT = {
    "project": "my-project",
    "region": "us-central1",
    "temp_location": "gs://my-bucket/t",
    "sdk_container_image": "host/image:1",
}


def sizes(**changes: Any) -> RunSizes:
    values: dict[str, Any] = {
        "says": "counted",
        "input_bytes": 10**12,
        "splits": 30_000,
        "documents": 10**8,
        "tokens": 4 * 10**11,
        "near_tokens": 0,
        "rule_seconds": 0.0,
        "token_bytes": 2,
        **changes,
    }
    return RunSizes(**values)


def chosen(*given: str, stages: tuple[str, ...] = ALL, **changes: Any) -> dict[str, str]:
    flags = choose_workers(sizes(**changes), stages, given, corpus="c").flags
    return dict(flag.removeprefix("--").partition("=")[::2] for flag in flags if not flag.startswith("--labels"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"project": None}, "--project is needed: the Google Cloud project that pays"),
        ({"region": "us-central1-a"}, "--region us-central1-a: is no region's name"),
        ({"temp_location": "/tmp/x"}, "--temp_location /tmp/x: the service needs a folder on gs://"),
        ({"staging_location": "s3://b/x"}, "--staging_location s3://b/x: the service needs a folder on gs://"),
        ({"sdk_container_image": None}, "--sdk_container_image is needed"),
        ({"service_account_email": "me@example.com"}, "--service_account_email me@example.com: is no service account"),
        ({"subnetwork": "inner"}, "--subnetwork inner: must be written regions/REGION/subnetworks/NAME"),
        (
            {"subnetwork": "regions/europe-west4/subnetworks/s"},
            "--subnetwork regions/europe-west4/subnetworks/s: lies in",
        ),
        (
            {"dataflow_kms_key": "projects/p/locations/global/keyRings/r/cryptoKeys/k"},
            "--dataflow_kms_key projects/p/locations/global/keyRings/r/cryptoKeys/k: lies in global, but the",
        ),
        ({"worker_zone": "us-east1-b"}, "--worker_zone us-east1-b: lies outside --region us-central1"),
        ({"runner": "FlinkRunner"}, "--runner FlinkRunner: `gristmill launch` submits to Dataflow; use"),
        ({"project": "4711"}, "--project 4711: is no project's id, such as my-project; its number or title will"),
        ({"project": "My Project"}, "--project My Project: is no project's id"),
        ({"region": "mars-central1"}, "--region mars-central1: is no region's name, such as us-central1; a zone is"),
        ({"region": "us-middle1"}, "--region us-middle1: is no region's name"),
        ({"job_name": "Web"}, "--job_name Web: is no job's name: lower case letters, digits and -, a letter first"),
        ({"job_name": "web-"}, "--job_name web-: is no job's name"),
        ({"sdk_container_image": "gristmill"}, "--sdk_container_image gristmill: is no image's address with its tag"),
        ({"sdk_container_image": "host/image"}, "--sdk_container_image host/image: is no image's address with its tag"),
        ({"labels": ["team=x", "Team=X"]}, "--labels Team=X: is no KEY=VALUE of lower case letters, digits, _ and -"),
        ({"labels": ["team"]}, "--labels team: is no KEY=VALUE of lower case letters"),
        ({"labels": ['{"team": "x", "Team": "y"}']}, "--labels Team=y: is no KEY=VALUE of lower case letters"),
        ({"labels": ["{team}"]}, "--labels {team}: is no KEY=VALUE of lower case letters"),
        ({"max_num_workers": -3}, "--max_num_workers -3: at least 1 is needed; leave it out to have it chosen"),
        ({"num_workers": 0}, "--num_workers 0: at least 1 is needed"),
        ({"num_workers": 9, "max_num_workers": 7}, "--num_workers 9: more than --max_num_workers 7 lets be started"),
    ],
)
def test_each_wrong_option_is_a_problem_of_its_own(change: dict[str, Any], says: str) -> None:
    here = {
        "subnetwork": "https://www.googleapis.com/compute/v1/projects/p/regions/us-central1/subnetworks/s",
        "dataflow_kms_key": "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k",
        "service_account_email": "workers@p.iam.gserviceaccount.com",
        "worker_zone": "us-central1-b",
        "job_name": "web-2",
        "labels": ["team=data", "empty=", '{"goog-dataflow-provided-template-type": "flex", "team": "x"}'],
        "disk_size_gb": 0,
        "num_workers": 7,
        "max_num_workers": 7,
    }
    assert option_problems({**RIGHT, **here}) == []
    (problem,) = option_problems({**RIGHT, **change})
    assert problem.startswith(says)


def test_files_of_this_machine_are_refused_wherever_a_recipe_names_them(workshop: Any) -> None:
    words = workshop.write("words.txt", b"bad\n")
    here = workshop.jsonl("a.jsonl", ["x"])
    values = workshop.values(
        {"files": [here, "gs://bucket/a.jsonl"], "clean": {"bad_words": [words]}}, output="gs://bucket/out"
    )
    assert [problem.split(":")[0] for problem in recipe_problems(parse_recipe(values))] == [
        f"sources[0].files {here}",
        f"sources[0].clean {words}",
    ]
    (problem,) = recipe_problems(parse_recipe(workshop.values({"files": ["gs://bucket/a.jsonl"]})))
    assert problem.startswith(f"output {workshop.folder / 'out'}: workers need a folder on gs://")


@pytest.mark.parametrize(
    "region",
    [
        *("us-central1", "us-east5", "europe-west12", "europe-southwest1", "northamerica-northeast2", "me-central2"),
        *("southamerica-west1", "africa-south1", "asia-northeast3", "australia-southeast2", "us-south1"),
    ],
)
def test_regions_of_the_service_are_taken(region: str) -> None:
    assert option_problems({**RIGHT, "region": region}) == []


def test_the_forms_are_those_of_template_and_dag() -> None:
    metadata: Any = template_metadata()
    (image,) = (entry for entry in metadata["parameters"] if entry["name"] == "sdk_container_image")
    for form in ("gristmill", "host/image", "host/image:1", f"host:5/a/b@sha256:{'0' * 64}", "HOST/image:1"):
        refused = bool(option_problems({**RIGHT, "sdk_container_image": form}))
        assert refused is not bool(re.fullmatch(image["regexes"][0], form)), form
    for label in ("Team=X", "team=x", "team", "team=X y", "1=x", "team="):
        refused = bool(option_problems({**RIGHT, "labels": [label]}))
        try:
            assert run_environment([("--labels", label)], {})
        except SettingsError:
            assert refused, label
        else:
            assert not refused, label


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (["--dry-run"], ["--dry-run"]),
        (["--dry_run"], ["--dry-run"]),
        (["--dry_run=True", "--wait"], ["--dry-run", "--wait"]),
        (["--dry_run", "True", "r.toml"], ["--dry-run", "r.toml"]),
        (["--dry_run=False", "r.toml"], ["r.toml"]),
        (["--force=true", "--wait=false", "--region=x"], ["--force", "--region=x"]),
        (["--dry_run", "r.toml"], ["--dry-run", "r.toml"]),
        (["--stale_after=200", "--save_main_session"], ["--stale-after=200", "--save_main_session"]),
    ],
)
def test_switches_are_read_as_beam_and_templates_write_them(given: list[str], plain: list[str]) -> None:
    assert plain_words(given) == plain


def test_a_switch_is_on_or_off() -> None:
    with pytest.raises(SettingsError, match=r"^--dry_run=perhaps: --dry-run is true or false; give it without a value"):
        plain_words(["--dry_run=perhaps"])


@pytest.mark.skipif(importlib.util.find_spec("apitools") is None, reason="needs the extra `dataflow`")
@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--machine_typ=n2", "--machine_typ: neither gristmill launch nor Beam knows this option; did you mean --mach"),
        ("--dry_rum", "--dry_rum: neither gristmill launch nor Beam knows this option; did you mean --dry-run?"),
        ("--wiat", "--wiat: neither gristmill launch nor Beam knows this option; did you mean --wait?"),
        ("again.toml", "again.toml: belongs to no option; `gristmill launch` takes one recipe"),
    ],
)
def test_a_word_that_nobody_knows_is_refused_with_the_nearest(
    workshop: Any, capsys: pytest.CaptureFixture[str], word: str, says: str
) -> None:
    assert main(["launch", workshop.recipe({"files": ["gs://b/x.jsonl"]}), "--project=my-project", word]) == 2
    assert capsys.readouterr().err.startswith(f"gristmill: {says}")


@pytest.mark.skipif(importlib.util.find_spec("apitools") is None, reason="needs the extra `dataflow`")
def test_all_that_is_wrong_is_told_at_once(workshop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", workshop.recipe({"files": [workshop.jsonl("a.jsonl", ["x"])]})]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gristmill: not launched, for 6 reasons\n")
    assert len([line for line in said.splitlines() if line.startswith("  - ")]) == 6
    assert not (workshop.folder / "out").exists()


@pytest.mark.skipif(importlib.util.find_spec("apitools") is None, reason="needs the extra `dataflow`")
@pytest.mark.parametrize("command", [("launch",), ("launch", "--dry-run"), ("prepare", "--runner=DataflowRunner")])
def test_every_option_is_looked_at_before_anything_else(
    workshop: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def look(*_: object, **__: object) -> None:
        raise AssertionError("something was looked at")

    for place in ("run_checks.find_credentials", "run_checks.bucket_findings", "launch.draft_run"):
        monkeypatch.setattr(f"gristmill.dataflow.{place}", look)
    recipe = workshop.recipe({"files": [workshop.jsonl("a.jsonl", ["x"])]})
    wrong = ("--project=4711", "--region=mars-central1", "--temp_location=/tmp/t", "--sdk_container_image=gristmill")
    more = ("--labels=Team=X", "--max_num_workers=-3", "--job_name=Web", "--stale-after=1", "--to=nowhere")
    assert main([command[0], recipe, *command[1:], *wrong, *more]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("gristmill: not launched, for 11 reasons\n")
    for name in ("project", "region", "temp_location", "sdk_container_image", "labels", "max_num_workers", "job_name"):
        assert f"  - --{name} " in said.err
    for start in ("--stale-after 1: ", "--to nowhere: ", "output ", "sources[0].files "):
        assert f"  - {start}" in said.err
    if command[0] == "launch":
        assert main([command[0], recipe, *command[1:], *wrong, "--runner=FlinkRunner"]) == 2
        assert "  - --runner FlinkRunner: `gristmill launch` submits to Dataflow;" in capsys.readouterr().err
    # a recipe that lies elsewhere is not even read
    assert main([command[0], "gs://no-such-bucket/r.toml", *command[1:], *wrong]) == 2
    assert capsys.readouterr().err.startswith("gristmill: not launched, for 4 reasons\n")


@pytest.mark.skipif(importlib.util.find_spec("apitools") is None, reason="needs the extra `dataflow`")
@pytest.mark.parametrize("runner", ["DataflowRunner", "dataflow", "apache_beam.runners.DataflowRunner"])
def test_prepare_on_dataflow_refuses_what_lies_here(
    workshop: Any, capsys: pytest.CaptureFixture[str], runner: str
) -> None:
    here = workshop.jsonl("a.jsonl", ["x"])
    recipe = workshop.recipe({"files": [here]})
    flags = [f"--{name}={value}" for name, value in RIGHT.items()]
    flags[-1] = "--sdk_container_image=host/image:1"
    assert main(["prepare", recipe, f"--runner={runner}", *flags, "--max-workers=2"]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()[1:]] == [
        "  - --max-workers 2",
        f"  - output {workshop.folder / 'out'}",
        f"  - sources[0].files {here}",
    ]
    assert not (workshop.folder / "out").exists()


@pytest.mark.skipif(importlib.util.find_spec("apitools") is None, reason="needs the extra `dataflow`")
@pytest.mark.parametrize("word", ["--dry_run=True", "--dry_run", "--dry-run"])
def test_prepare_sends_who_would_try_it_dry_to_launch(
    workshop: Any, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    recipe = workshop.recipe({"files": [workshop.jsonl("a.jsonl", ["x"])]})
    for runner in ("DataflowRunner", "FnApiRunner"):
        assert main(["prepare", recipe, f"--runner={runner}", word]) == 2
        said = capsys.readouterr().err
        assert said.startswith(
            f"gristmill: {word.split('=')[0]}: only a launch can be tried dry; use `gristmill launch"
        )
    assert not (workshop.folder / "out").exists()


@pytest.mark.skipif(importlib.util.find_spec("apitools") is None, reason="needs the extra `dataflow`")
@pytest.mark.parametrize("command", [("launch",), ("launch", "--dry_run=True"), ("prepare", "--runner=DataflowRunner")])
def test_without_credentials_or_network_there_is_one_sentence_in_seconds(
    workshop: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError

    def none(**_: object) -> None:
        raise DefaultCredentialsError("nowhere.")

    monkeypatch.setattr("google.auth.default", none)
    monkeypatch.setattr("gristmill.dataflow.buckets._PATIENCE_SECONDS", 1)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    recipe = workshop.recipe({"files": ["gs://bucket-of-mine/a.jsonl"]}, output="gs://bucket-of-mine/out")
    words = [command[0], recipe, *command[1:], *(f"--{name}={value}" for name, value in RIGHT.items())]
    began = time.monotonic()
    assert main(words) == 2
    *before, last = capsys.readouterr().err.splitlines()
    no_answer = (
        "gristmill: not launched: gs://bucket-of-mine: no answer in 1 s: Connection refused; mend the network, or "
        "STORAGE_EMULATOR_HOST where that is set"
    )
    remedy = "run `gcloud auth application-default login`, or have GOOGLE_APPLICATION_CREDENTIALS name a key"
    if "--dry_run=True" in command:
        assert before == [
            f"note: buckets and permissions were not looked at, for want of credentials; {remedy}",
        ]
        assert last == no_answer
    else:
        assert before == []
        assert last == f"gristmill: not launched: no credentials of Google Cloud: nowhere; {remedy}"
    monkeypatch.setattr("google.auth.default", lambda **_: (AnonymousCredentials(), None))
    for path in (recipe, "gs://bucket-of-mine/recipe.toml"):
        assert main([command[0], path, *words[2:]]) == 2
        assert capsys.readouterr().err.splitlines() == [no_answer]
    assert time.monotonic() - began < 30


@pytest.mark.skipif(importlib.util.find_spec("apitools") is not None, reason="the extra `dataflow` is installed")
def test_without_its_extra_the_launch_names_it(workshop: Any) -> None:
    done = workshop.cli("launch", workshop.recipe({"files": ["gs://b/x.jsonl"]}), "--project=p")
    assert done.returncode == 2
    assert "pip install 'gristmill[dataflow]'" in done.stderr


def test_text_stages_get_many_small_workers() -> None:
    flags = chosen(stages=("clean", "tokenize"))
    assert flags["machine_type"] == "n2-standard-8"
    assert flags["disk_size_gb"] == "50"
    assert flags["max_num_workers"] == "100"
    assert flags["number_of_worker_harness_threads"] == "1"
    assert chosen(stages=("clean",), splits=33)["max_num_workers"] == "2"
    assert chosen(stages=("clean",), splits=1)["max_num_workers"] == "1"


@pytest.mark.parametrize(
    ("gib", "machine"), [(1, "n2-standard-8"), (20, "n2-standard-16"), (28, "n2-highmem-8"), (200, "n2-highmem-64")]
)
def test_the_machine_is_the_smallest_that_holds_the_arrays(gib: int, machine: str) -> None:
    assert chosen(array_bytes=(gib * GIB,))["machine_type"] == machine
    assert chosen(array_bytes=(gib * GIB,), stages=("clean", "tokenize"))["machine_type"] == "n2-standard-8"


def test_arrays_that_fit_nowhere_are_told() -> None:
    (warning,) = choose_workers(sizes(array_bytes=(400 * GIB,)), ALL, (), corpus="c").warnings
    assert warning.startswith("a step may need 680 GiB on one worker, more than n2-highmem-80 has")
    assert not choose_workers(sizes(array_bytes=(400 * GIB,)), ALL, ("--machine_type=m1-x",), corpus="c").warnings


def test_what_is_given_is_not_chosen_again() -> None:
    given = ("--machine_type=e2-standard-2", "--max_num_workers", "3", "--save_main_session")
    flags = chosen(*given)
    assert not {"machine_type", "max_num_workers", "no_save_main_session"} & set(flags)
    assert "machine_type" not in chosen("--worker_machine_type=e2-standard-2")


def test_memory_is_asked_for_with_prime_alone() -> None:
    large = sizes(array_bytes=(10 * GIB, 5 * GIB))
    assert choose_workers(large, ALL, (), corpus="c").min_ram_bytes == {}
    prime = choose_workers(large, ALL, ("--dataflow_service_options=enable_prime",), corpus="c")
    assert prime.min_ram_bytes == {"index": 16 * GIB, "blend": 16 * GIB}
    assert not [flag for flag in prime.flags if flag.startswith("--machine_type")]
    only = choose_workers(large, ("index",), ("--experiments=enable_prime",), corpus="c")
    assert only.min_ram_bytes == {"index": 16 * GIB}


def test_chains_of_near_duplicates_are_given_room() -> None:
    many = sizes(near_documents=2 * 10**8)  # 28 GiB at 150 bytes each
    prime = choose_workers(many, ALL, ("--experiments=enable_prime",), corpus="c")
    assert prime.min_ram_bytes == {"clean": 29 * GIB}
    assert chosen(near_documents=2 * 10**8)["machine_type"] == "n2-standard-16"
    assert chosen(near_documents=2 * 10**8)["disk_size_gb"] == "50"
    assert chosen(near_documents=2 * 10**8, stages=("index",))["machine_type"] == "n2-standard-8"
    assert chosen(near_documents=10**6)["machine_type"] == "n2-standard-8"


@pytest.mark.parametrize(("text", "value"), [("Web.Code 2", "web-code-2"), ("é" * 70, "-" * 63), ("a_b-c9", "a_b-c9")])
def test_labels_are_what_the_service_takes(text: str, value: str) -> None:
    assert label_value(text) == value


def test_prices_follow_the_measured_rates() -> None:
    tokens = 88_800_000
    fast = {cost.stage: cost for cost in stage_costs(sizes(tokens=tokens), ALL, "fastokens")}
    slow = {cost.stage: cost for cost in stage_costs(sizes(tokens=tokens), ALL, "tokenizers")}
    assert fast["tokenize"].vcpu_hours * 3600 == pytest.approx(2.29, rel=0.01)  # a table's figure, of three digits
    assert slow["tokenize"].vcpu_hours * 3600 == pytest.approx(75.13, rel=0.01)
    assert fast["clean"].vcpu_hours * 3600 == pytest.approx(0.35, rel=0.02)
    assert slow["clean"].vcpu_hours > fast["clean"].vcpu_hours, "with the slow engine the inputs are read once more"
    assert fast["tokenize"].written_bytes == 2 * tokens
    near = {cost.stage: cost for cost in stage_costs(sizes(tokens=tokens, near_tokens=tokens), ALL, "fastokens")}
    assert near["clean"].vcpu_hours * 3600 == pytest.approx(0.35 + 210 * 0.022, rel=0.02)
    ruled = {cost.stage: cost for cost in stage_costs(sizes(tokens=tokens, rule_seconds=36.0), ALL, "fastokens")}
    assert ruled["clean"].vcpu_hours - fast["clean"].vcpu_hours == pytest.approx(0.01)
    rows = {cost.stage: cost for cost in stage_costs(sizes(rows=20_000_000), ALL, "fastokens")}
    assert rows["index"].vcpu_hours * 3600 == pytest.approx(9.8)


def test_only_the_stages_of_the_run_are_priced() -> None:
    assert [cost.stage for cost in stage_costs(sizes(), ("index", "blend"), "fastokens")] == ["index", "blend"]
