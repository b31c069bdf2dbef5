"""The package as others get it: the archives are built from a copy of the tree, unpacked and used elsewhere.

A checkout works through links and an editable install, which hides a file that was left out of the wheel.
"""

import configparser
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("dataflow", "formats", "pipelines", "runtime", "tokenize")
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "out", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
)

pytestmark = pytest.mark.slow


def run(*command: str, cwd: Path, **extra: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | extra
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("a folder with spaces")
    shutil.copytree(ROOT, folder / "tree", symlinks=True, ignore=LEFT_OUT)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), cwd=folder / "tree")
    (source,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    return source, wheel


@pytest.fixture(scope="module")
def wheel(archives: tuple[Path, Path]) -> Path:
    return archives[1]


@pytest.fixture(scope="module")
def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(opened.read(name).decode("utf-8"))


def test_the_source_archive_carries_what_a_developer_needs(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[0]) as opened:
        names = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
    for wanted in ("Makefile", "CHANGELOG.md", "tests/test_install.py", "docs/architecture.md", "scripts/environment"):
        assert wanted in names
    assert "src/gristmill/formats/errors.py" in names


def test_the_wheel_has_every_module_and_data_file(members: set[str]) -> None:
    for folder in (*ROOMS, "src/gristmill"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and (path.suffix in {".py", ".json"} or path.name in {"py.typed", "README.md"}):
                within = path.relative_to(ROOT / "src") if folder.startswith("src") else path.relative_to(ROOT)
                assert within.as_posix().removeprefix("gristmill/") in {m.removeprefix("gristmill/") for m in members}
    assert {"gristmill/py.typed", "gristmill/formats/README.md"} <= members


def test_the_wheel_has_nothing_else(members: set[str]) -> None:
    tops = {name.split("/")[0] for name in members}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gristmill"}
    assert not [name for name in members if "/tests/" in name or name.endswith((".pyc", ".so"))]
    assert "gristmill/tokenize/__init__.py" not in members


def test_each_extra_brings_only_its_side(metadata: Message) -> None:
    extras = set(metadata.get_all("Provides-Extra") or [])
    preparing = {"prepare", "hub", "languages", "records", "web", "dask", "dataflow"}
    assert extras == preparing | {"train", "parity", "dev", "all"}

    def brought_by(extra: str) -> set[str]:
        found: set[str] = set()
        for item in map(Requirement, metadata.get_all("Requires-Dist") or []):
            if item.marker is None or item.marker.evaluate({"extra": extra}):
                found.add(canonicalize_name(item.name))
                if canonicalize_name(item.name) == "gristmill":
                    for inner in item.extras:
                        found |= brought_by(inner)
        return found

    training, preparing = {"jax", "grain", "orbax-checkpoint", "optax"}, {"apache-beam", "fastokens", "transformers"}
    assert not brought_by("") & (training | preparing)
    assert training <= brought_by("train")
    assert not brought_by("train") & (preparing | {"datasets", "torch"})
    assert preparing <= brought_by("prepare")
    assert not brought_by("prepare") & (training | {"torch"})
    assert not brought_by("dataflow") & (training | {"torch"})
    assert training | preparing <= brought_by("all")
    assert not brought_by("all") & {"torch", "megatron-core"}
    assert not brought_by("dev") & {"torch", "megatron-core"}, "the originals belong to the extra `parity` alone"


def test_torch_is_always_pinned(metadata: Message) -> None:
    for item in map(Requirement, metadata.get_all("Requires-Dist") or []):
        if canonicalize_name(item.name) in {"torch", "megatron-core"}:
            assert str(item.specifier).startswith("=="), f"{item}: unpinned, it may bring gigabytes of another build"


LOOK = """
import importlib, sys
import gristmill
from gristmill.formats import errors
names = sys.argv[2:]
for name in names:
    module = importlib.import_module(name)
    assert module.__file__.startswith(sys.argv[1]), module.__file__
print(gristmill.__version__, gristmill.__file__)
"""


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel was installed by pip, without its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
        "--target", str(folder), str(wheel), cwd=folder,
    )  # fmt: skip
    return folder


def test_every_module_imports_from_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    names = [
        ".".join(path.relative_to(installed).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((installed / "gristmill").rglob("*.py"))
        if path.stem != "__main__"
    ]
    assert "gristmill.formats.storage" in names
    printed = run(sys.executable, "-c", LOOK, str(installed), *names, cwd=tmp_path, PYTHONPATH=str(installed))
    assert str(installed) in printed


def test_the_console_script_answers(installed: Path, tmp_path: Path) -> None:
    (entry_points,) = installed.glob("gristmill-*.dist-info/entry_points.txt")
    parsed = configparser.ConfigParser()
    parsed.read_string(entry_points.read_text("utf-8"))
    assert dict(parsed["console_scripts"]) == {"gristmill": "gristmill.cli:entry"}
    script = installed / "bin" / "gristmill"
    assert "prepare" in run(sys.executable, str(script), "--help", cwd=tmp_path, PYTHONPATH=str(installed))


ONLY_THE_WHEEL = """
import sys
sys.path[:] = [path for path in sys.path if path != {checkout!r}]
sys.meta_path[:] = [finder for finder in sys.meta_path if "gristmill" not in getattr(finder, "__module__", "")]
"""


@pytest.mark.parametrize(
    "runner",
    [
        ("--max-workers", "2"),
        ("--runner", "FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"),
    ],
    ids=["of its own", "of Beam"],
)
def test_worker_processes_need_the_wheel_alone(
    installed: Path, tiny_tokenizer: Path, tmp_path: Path, runner: tuple[str, ...]
) -> None:
    """Every process of the run, workers too, sees the wheel and no checkout; what it works on lies elsewhere again."""
    hook, data, elsewhere = (tmp_path / name for name in ("hook", "data", "elsewhere"))
    for folder in (hook, data, elsewhere):
        folder.mkdir()
    (hook / "sitecustomize.py").write_text(ONLY_THE_WHEEL.format(checkout=str(ROOT / "src")), "utf-8")
    for part in range(2):
        lines = "".join(
            f'{{"text": "The {number}th text of the file, which is English."}}\n' for number in range(40 + part)
        )
        (data / f"{part}.jsonl").write_text(lines, "utf-8")
    recipe = f"""
name = "wheel"
output = "out"
tokenizer = {{path = "{tiny_tokenizer}", eod = "<|endoftext|>"}}
sources = [{{id = "s", files = ["../data/0.jsonl"]}}, {{id = "t", files = ["../data/1.jsonl"]}}]
near_dedup = {{max_fraction = 1.0, warn_fraction = 1.0}}
index = {{sequence_length = 8, samples = 4}}
defaults = {{clean = {{languages = ["en"]}}}}
"""
    (elsewhere / "recipe.toml").write_text(recipe, "utf-8")
    path = os.pathsep.join((str(hook), str(installed)))
    where = run(sys.executable, "-c", "import gristmill; print(gristmill.__file__)", cwd=elsewhere, PYTHONPATH=path)
    assert where.startswith(str(installed))
    words = [sys.executable, "-m", "gristmill", "prepare", "recipe.toml", "--quiet", *runner]
    run(*words, cwd=elsewhere, PYTHONPATH=path)
    assert run(*words[:3], "verify", "out", cwd=elsewhere, PYTHONPATH=path) == "out: sound\n"
    sources = json.loads((elsewhere / "out" / "manifest.json").read_bytes())["sources"]
    assert sources[0]["shards"]
    assert sources[1]["dropped"]["exact_duplicate"] == 40
