"""Makes the items of a run fail, die, linger, or be done twice at the same time, in whichever process does them.

The launching process calls `injected`; worker processes take it up by themselves: Python imports a `sitecustomize` that
lies on PYTHONPATH, and that wraps the functions which do items as their modules are imported. What befell which item is
written down in a folder, which also sees to it that a fault that ends a run happens once.
"""

import contextlib
import functools
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = "GRISTMILL_FAULTS"
"""Variable that names the folder in which faults are chosen and written down."""

WORK = {
    "raw": ("copy_split",),
    "scan": ("scan_split",),
    "dedup": ("write_drops",),
    "encode": ("encode_split",),
    "shards": ("assemble_shard",),
    "index": ("index_member", "blend_split"),
}
"""By module of the pipelines, the functions that do an item."""

CALLERS = ("loop", "beam_shell")
"""Modules that have those functions by name."""


class FaultError(RuntimeError):
    """What an item raises that is made to fail."""


class Faults:
    """The folder of one run, or of a run and those that complete it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.once: dict[str, str] = json.loads((folder / "once.json").read_bytes())

    def happened(self) -> Counter[str]:
        """How often each kind of fault befell an item."""
        return Counter(line.split()[0] for line in (self.folder / "log").read_text("ascii").splitlines())

    def note(self, kind: str, name: str) -> None:
        with open(self.folder / "log", "a", encoding="ascii") as log:
            log.write(f"{kind} {name}\n")

    def claims(self, name: str) -> str | None:
        """The fault that befalls the first item of a function, if this is the first and there is one."""
        if name in self.once:
            with contextlib.suppress(FileExistsError):
                (self.folder / name).touch(exist_ok=False)
                return self.once[name]
        return None

    def wrap(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """A function that does what `work` does, as its faults let it."""
        name = work.__name__

        @functools.wraps(work)
        def faulty(*words: Any) -> Any:
            fault = self.claims(name)
            if fault is not None:
                self.note(fault.split()[0], name)
            if fault == "fails before":
                raise FaultError(name)
            if fault == "dies before":
                os.kill(os.getpid(), signal.SIGKILL)
            kind = ("twice", "slow", "whole")[hashlib.sha256(repr(words[1]).encode()).digest()[0] % 3]
            self.note(kind, name)
            result = self.twice(work, words) if kind == "twice" else work(*words)
            if kind == "slow":
                time.sleep(0.05)
            if fault == "fails after":
                raise FaultError(name)
            if fault == "dies after":
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return faulty

    @staticmethod
    def twice(work: Callable[..., Any], words: tuple[Any, ...]) -> Any:
        """Does an item in two threads that begin together; what both give must be the same."""
        results: list[Any] = []
        errors: list[BaseException] = []
        begin = threading.Barrier(2)

        def attempt() -> None:
            begin.wait()
            try:
                results.append(work(*words))
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

        threads = [threading.Thread(target=attempt) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        one, other = (json.dumps(result, sort_keys=True, default=repr) for result in results)
        if one != other:  # the later one may come from the receipt of the earlier, whose keys are sorted
            raise RuntimeError(f"{work.__name__}: two attempts gave {results[0]!r} and {results[1]!r}")
        return results[0]


class _Wrapping(importlib.abc.Loader):
    """Loads a module as its own loader does, and wraps functions in it."""

    def __init__(self, loader: Any, faults: Faults, names: tuple[str, ...]) -> None:
        self._loader, self._faults, self._names = loader, faults, names

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for name in self._names:
            setattr(module, name, self._faults.wrap(getattr(module, name)))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `WORK` as Python does."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        package, _, module = fullname.rpartition(".")
        if package != "gristmill.pipelines" or module not in WORK:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Wrapping(spec.loader, self._faults, WORK[module])
        return spec


def wrap_imports() -> None:
    """Wraps the functions of `WORK` in this process, which has not imported them yet."""
    sys.meta_path.insert(0, _Finder(Faults(Path(os.environ[FOLDER]))))


@contextlib.contextmanager
def injected(folder: Path, once: Mapping[str, str]) -> Iterator[Faults]:
    """Injects faults into this process and those that it starts.

    Args:
        folder: an empty folder.
        once: by function, what befalls the first item that it does: "fails before", "fails after", "dies before" or
            "dies after" its work.
    """
    (folder / "once.json").write_text(json.dumps(dict(once)), "ascii")
    start = f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\n"
    (folder / "sitecustomize.py").write_text(f"{start}import fault_injector\nfault_injector.wrap_imports()\n", "utf-8")
    faults = Faults(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])))
        modules = {name: importlib.import_module(f"gristmill.pipelines.{name}") for name in (*WORK, *CALLERS)}
        for home, names in WORK.items():
            for name in names:
                faulty = faults.wrap(getattr(modules[home], name))
                for module in (home, *CALLERS):
                    patch.setattr(modules[module], name, faulty)
        yield faults
