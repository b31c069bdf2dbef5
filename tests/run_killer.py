"""Runs preparations one after the other and kills them, without warning, while they write a file of their choosing.

Started as a program it imports everything once, reads what to do from standard input as lines of JSON, and forks a
process for each run, so that a run costs no imports. Python tells a hook of every file that is opened or renamed; the
hook counts those of one stage, in all processes together, and ends one process with SIGKILL at a given count, at once
or a moment later. Worker processes have the hook from a `sitecustomize` on PYTHONPATH. A run that is not to be killed
has its renames written down instead, which tells what it made.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VARIABLE = "GRISTMILL_TEST_KILL"
"""Variable that names the folder in which an order and what became of it lie."""

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp$")
_WORKER = re.compile(r"gristmill\.pipelines\.(item_worker|beam_worker)")

STAGES = {
    "download": r"raw/|_stages/items/download/|_stages/download\.json",
    "scan": r"clean/.*\.keys$|_stages/items/scan/",
    "dedup": r"clean/.*\.drops$|_stages/clean\.json",
    "encode": r"spill/|_stages/items/(spill|encode)/",
    "assemble": r"tokens/|_stages/items/assemble/|_stages/tokenize\.json",
    "index": r"indices/.*/(document|sample|shuffle)_index\.npy$|_stages/items/index/|_stages/index\.json",
    "blend": r"indices/.*/(dataset_\w+\.npy|set\.json)$|_stages/blend\.json",
    "manifest": r"report/account\.json|manifest\.json",
}
"""By stage, the files, relative to the corpus, that are written in it alone."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """One run.

    Attributes:
        recipe: path of the recipe.
        output: folder of the corpus.
        options: of `PrepareOptions`.
        split_bytes: what splits aim at.
        stage: in which stage to kill; None writes down the renames.
        number: at which opening or renaming of one of its files.
        delay: seconds to wait then.
        worker: whether a worker process dies; else the launching one.
    """

    recipe: str
    output: str
    options: dict[str, Any]
    split_bytes: int
    stage: str | None = None
    number: int = 1
    delay: float = 0.0
    worker: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a run.

    Attributes:
        code: its exit code, or minus the signal that ended the launching process.
        said: the traceback of its error; empty without one.
        touched: by stage, how many files were opened or renamed by the launching process and by its workers.
        renamed: the files that it made, relative to the corpus.
        died: whether a process was killed as ordered.
    """

    code: int
    said: str
    touched: dict[str, list[int]]
    renamed: list[str]
    died: bool


class _Hook:
    """What a process does when it is told of a file."""

    def __init__(self, folder: Path, *, worker: bool) -> None:
        self._order = Order(**json.loads((folder / "order.json").read_bytes()))
        self._folder, self._worker = folder, worker
        self._patterns = {name: re.compile(pattern) for name, pattern in STAGES.items()}
        self._prefix = os.path.abspath(self._order.output) + "/"

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode = arguments[0], arguments[1]
            if not isinstance(mode, str) or "w" not in mode:
                return
        elif event == "os.rename":
            path = arguments[1]
        else:
            return
        if isinstance(path, str | os.PathLike) and (text := os.path.abspath(os.fspath(path))).startswith(self._prefix):
            self._met(event, _TEMPORARY.sub(r"\1", text.removeprefix(self._prefix)))

    def _met(self, event: str, name: str) -> None:
        stage = next((stage for stage, pattern in self._patterns.items() if pattern.match(name)), None)
        if stage is None:
            return
        order = self._order
        if order.stage is None:
            self._append("met", f"{stage} {int(self._worker)} {name if event == 'os.rename' else ''}\n")
        elif stage == order.stage and self._worker == order.worker and self._due():
            if order.delay:
                threading.Timer(order.delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    def _due(self) -> bool:
        """Counts one more file; whether this process is the one to die now."""
        return self._append("count", "x") >= self._order.number and self._first()

    def _append(self, name: str, text: str) -> int:
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, text.encode())
        size = os.fstat(descriptor).st_size
        os.close(descriptor)
        return size

    def _first(self) -> bool:
        try:
            os.close(os.open(self._folder / "died", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def hook_worker() -> None:
    """Installs the hook in this process if it is a worker of a run; what `sitecustomize` calls."""
    if _WORKER.search(" ".join(sys.orig_argv)):
        sys.addaudithook(_Hook(Path(os.environ[VARIABLE]), worker=True))


def _run(order: Order, folder: Path) -> int:
    """One run, in a process of its own."""
    from gristmill.formats.recipe import read_recipe
    from gristmill.pipelines import plan
    from gristmill.pipelines.workflow import PrepareOptions, prepare

    os.environ[VARIABLE] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    start = f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\n"
    (folder / "sitecustomize.py").write_text(f"{start}import run_killer\nrun_killer.hook_worker()\n", "utf-8")
    sys.addaudithook(_Hook(folder, worker=False))
    plan.SPLIT_BYTES = order.split_bytes
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in order.options.items()
    }
    try:
        prepare(read_recipe(order.recipe, output=order.output), PrepareOptions(quiet=True, **options))
    except BaseException:  # noqa: BLE001 - told to the test
        (folder / "said").write_text(traceback.format_exc(), "utf-8")
        return 1
    return 0


def _serve() -> None:
    from gristmill.pipelines import loop, workflow  # noqa: F401 - so that a fork has them

    if "--beam" in sys.argv:
        from gristmill.pipelines import beam_shell  # noqa: F401 - as above
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        order, folder = Order(**request["order"]), Path(request["folder"])
        (folder / "order.json").write_text(json.dumps(asdict(order)), "utf-8")
        child = os.fork()
        if not child:
            code = 1
            with contextlib.suppress(BaseException):
                code = _run(order, folder)
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


class Killer:
    """The program; runs what it is told to."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process, self._folder, self._runs = process, folder, 0

    def run(self, order: Order) -> Outcome:
        """Does one run and tells of it."""
        self._runs += 1
        folder = self._folder / str(self._runs)
        folder.mkdir()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"order": asdict(order), "folder": str(folder)}) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        met = (folder / "met").read_text("utf-8").splitlines() if (folder / "met").exists() else []
        touched = Counter(tuple(line.split(" ", 2)[:2]) for line in met)
        return Outcome(
            code=code,
            said=(folder / "said").read_text("utf-8") if (folder / "said").exists() else "",
            touched={stage: [touched[stage, "0"], touched[stage, "1"]] for stage in STAGES},
            renamed=[name for line in met if (name := line.split(" ", 2)[2])],
            died=(folder / "died").exists(),
        )


@contextmanager
def killer(folder: Path, *, beam: bool = False) -> Iterator[Killer]:
    """Starts the program.

    Args:
        folder: an empty folder for what it writes down.
        beam: whether runs are on Beam, so that it is imported beforehand.
    """
    words = [sys.executable, "-P", __file__, *(["--beam"] if beam else [])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield Killer(process, folder)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


if __name__ == "__main__":
    _serve()
