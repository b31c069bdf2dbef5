"""The lock of the image and the Flex Template, read and checked without an engine that builds them."""

import argparse
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from gristmill import __version__
from gristmill.dataflow.flags import FLAGS, plain_words
from gristmill.dataflow.launch import add_arguments
from gristmill.dataflow.template import template_files
from gristmill.pipelines.lock_options import LEAST_STALE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dataflow" / "container"
PINNED = re.compile(r"^([a-z0-9][a-z0-9.-]*)==(\S+) --hash=sha256:([0-9a-f]{64})$")
LAUNCHER_ONLY = {
    "--dry-run": "a template that leaves no job counts as failed",
    "--wait": "the job begins when the template's launcher has ended",
    "--verbose": "nobody watches a template's launcher; its log is kept by the service",
}
"""Options that no template offers, each for the reason that it has."""


def locked() -> dict[str, Version]:
    """The versions of the lock by name; every line is one version of one file."""
    lines = (FOLDER / "requirements.lock").read_text("utf-8").splitlines()
    entries = [PINNED.match(line) for line in lines if not line.startswith("#")]
    assert all(entries), "each line pins one version with one checksum"
    return {canonicalize_name(entry[1]): Version(entry[2]) for entry in entries if entry}


def needed(extra: str) -> set[Requirement]:
    found = set()
    for requirement in map(Requirement, importlib.metadata.requires("gristmill") or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            found.add(requirement)
    return found


@pytest.mark.parametrize("extra", ["prepare", "dataflow"])
def test_the_lock_meets_what_the_package_asks_for(extra: str) -> None:
    versions = locked()
    for requirement in needed(extra):
        name = canonicalize_name(requirement.name)
        if name != "gristmill":
            assert name in versions, f"{name} is not in the lock: run dataflow/container/lock"
            assert requirement.specifier.contains(versions[name]), f"{requirement}: run dataflow/container/lock"


def test_the_lock_is_closed() -> None:
    """Whatever a locked distribution asks for is locked, at a version that it takes, so pip can install the lock."""
    versions, looked_at = locked(), 0
    for name, version in versions.items():
        try:
            present = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if Version(present.version) != version:
            continue
        looked_at += 1
        for requirement in map(Requirement, present.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                other = canonicalize_name(requirement.name)
                assert other in versions, f"{name} needs {other}: run dataflow/container/lock"
                assert requirement.specifier.contains(versions[other], prereleases=True), f"{name} needs {requirement}"
    assert looked_at, "nothing of the lock is installed here, so nothing was shown"


def test_the_lock_brings_no_library_of_another_side() -> None:
    assert not {"jax", "grain", "torch", "megatron-core", "pytest", "gristmill"} & set(locked())


def test_the_files_of_the_template_are_what_the_launcher_makes() -> None:
    for name, data in template_files().items():
        assert (FOLDER / name).read_bytes() == data, "python -m gristmill.dataflow.template dataflow/container"
    assert f":{__version__}" in json.loads(template_files()["image_spec.json"])["image"]


def parameters() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "metadata.json").read_bytes())["parameters"]
    return found


def test_the_parameters_are_the_launchers_flags() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    taken = {name for action in parser._actions for name in action.option_strings} - {"--help", "-h"}
    names = {entry["name"] for entry in parameters()}
    assert names - {"sdk_container_image"} == {name[2:].replace("-", "_") for name in taken - set(LAUNCHER_ONLY)}
    assert {flag.name: bool(flag.launcher_only) for flag in FLAGS} == {name: name in LAUNCHER_ONLY for name in taken}


def test_the_launcher_takes_each_parameter_as_the_service_writes_it() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = {
        "recipe": "gs://b/r.toml",
        "output": "gs://bucket/out",
        "from": "clean",
        "to": "index",
        "source": "web",
        "force": "true",
        "stale_after": "600",
    }
    assert set(given) == {entry["name"] for entry in parameters()} - {"sdk_container_image"}
    words = plain_words([f"--{name}={value}" for name, value in given.items()])
    arguments = vars(parser.parse_args(words))
    assert arguments == {
        "recipe": None,
        "recipe_option": "gs://b/r.toml",
        "output": "gs://bucket/out",
        "first": "clean",
        "last": "index",
        "source": "web",
        "force": True,
        "stale_after": "600",
        "dry_run": False,
        "wait": False,
        "verbose": False,
    }
    assert not parser.parse_args(plain_words(["--recipe=gs://b/r.toml", "--force=false"])).force


@pytest.mark.parametrize("given", ["0", "12", "119", "120", "199", "999", "1000", "86400", "0300", "1e3", "-5"])
def test_the_template_takes_the_seconds_that_the_launcher_takes(given: str) -> None:
    (entry,) = (entry for entry in parameters() if entry["name"] == "stale_after")
    plain = given.isdecimal() and not given.startswith("0")
    assert bool(re.fullmatch(entry["regexes"][0], given)) is (plain and int(given) >= LEAST_STALE_SECONDS)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("recipe", "gs://b/recipes/web.toml", "recipes/web.toml"),
        ("output", "gs://bucket/corpora/web", "s3://bucket/corpora/web"),
        ("from", "tokenize", "tokenise"),
        ("to", "blend", "manifest"),
        ("source", "web-2.0", "-web"),
        ("force", "true", "True"),
        ("stale_after", "1800", "60"),
        ("sdk_container_image", "us-central1-docker.pkg.dev/p/r/gristmill:0.1.0", "gristmill"),
    ],
)
def test_each_parameter_is_validated(name: str, right: str, wrong: str) -> None:
    (entry,) = (entry for entry in parameters() if entry["name"] == name)
    (pattern,) = entry["regexes"]
    assert re.fullmatch(pattern, right)
    assert not re.fullmatch(pattern, wrong)
    assert entry["label"]
    assert entry["helpText"].endswith(".")


@pytest.mark.skipif(
    importlib.util.find_spec("google.cloud.dataflow_v1beta3") is None if importlib.util.find_spec("google") else True,
    reason="Google's message types are not installed: pip install 'gristmill[dataflow]'",
)
def test_metadata_and_image_spec_are_messages_of_googles() -> None:
    from google.cloud import dataflow_v1beta3

    metadata = dataflow_v1beta3.TemplateMetadata.from_json((FOLDER / "metadata.json").read_text("utf-8"))
    assert [entry.name for entry in metadata.parameters] == [entry["name"] for entry in parameters()]
    assert not [entry for entry in metadata.parameters if entry.param_type.name == "DEFAULT"]
    spec = json.loads((FOLDER / "image_spec.json").read_text("utf-8"))
    read = dataflow_v1beta3.ContainerSpec.from_json(json.dumps(spec))
    assert read.sdk_info.language.name == "PYTHON"
    assert read.metadata == metadata
    with pytest.raises(Exception, match="no field named"):
        dataflow_v1beta3.ContainerSpec.from_json(json.dumps({**spec, "imagine": 1}))


def test_the_template_launches_with_options_as_the_service_gives_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "dataflow" / "launch_template.py"), "--recipe=gs://x/y.toml", "also.toml"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 2
    assert "name one recipe: `gristmill launch RECIPE …`, or --recipe=RECIPE" in done.stderr
