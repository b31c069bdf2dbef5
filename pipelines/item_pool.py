"""Processes of this machine that do items of work: a parallel `map` without Beam.

Parsing JSON and cleaning text hold the interpreter's lock, so threads do not share the cores, and a process that
imports Beam needs seconds to start. These import what their items need and no more. The launcher's main module is not
run again in them, so a script needs no guard; what crosses is the name of a function, its arguments and its result.
"""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self, TypeVar

from gristmill.formats.errors import DataError, SettingsError

__all__ = ["ItemPool", "PoolWorkerGoneError", "usable_cores"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from gristmill.pipelines.item_worker import main; main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[4:])"
)
_ENDS_WITHIN_SECONDS = 5.0


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


class PoolWorkerGoneError(DataError):
    """A worker process ended before its work did."""

    def __init__(self, code: int | None) -> None:
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        super().__init__(
            f"a worker process ended without a word ({how}); if the system killed it for lack of memory, run again "
            "with fewer (--max-workers 1). What is finished stays"
        )


class _Worker:
    """One process and the connection to it."""

    def __init__(self, preload: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):  # a library of this process may have set a time limit for every new socket
            end.settimeout(None)
        with theirs:
            words = [str(theirs.fileno()), str(os.getpid()), json.dumps(sys.path), *preload]
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, *words],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self.connection = Connection(ours.detach())

    def do(self, work: Callable[[_Item], _Result], item: _Item) -> _Result:
        """Has an item done and waits for it; raises what it raised."""
        try:
            self.connection.send((work, item))
            done, value = self.connection.recv()
        except (EOFError, OSError) as error:
            raise PoolWorkerGoneError(self._code()) from error
        if done:
            result: _Result = value
            return result
        raise value

    def _code(self) -> int | None:
        try:
            return self.process.wait(_ENDS_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Ends the process, at once if it works on an item."""
        self.connection.close()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(_ENDS_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class ItemPool:
    """Processes that do items; a context manager that ends them.

    Args:
        workers: how many; None takes one per core.
        preload: modules that the processes import before the first item comes.

    Raises:
        SettingsError: `workers` is below 1.

    Examples:
        >>> with ItemPool(2) as pool:
        ...     pool.map(abs, [-2, -1])
        [2, 1]
    """

    def __init__(self, workers: int | None = None, *, preload: Sequence[str] = ()) -> None:
        if workers is not None and workers < 1:
            raise SettingsError(f"--max-workers {workers}: at least 1 is needed")
        self._count = usable_cores() if workers is None else workers
        self._preload = preload
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            opening.callback(self.close)
            for _ in range(self._count):
                self._workers.append(_Worker(self._preload))
            opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes; may be called twice."""
        while self._workers:
            self._workers.pop().close()

    def map(
        self,
        work: Callable[[_Item], _Result],
        items: Sequence[_Item],
        done: Callable[[_Result], object] | None = None,
    ) -> list[_Result]:
        """Does items, each in whichever process is free, and waits for all.

        Args:
            work: does an item; a function of a module, or a `functools.partial` of one, pickled by name.
            items: what to do.
            done: takes each result as it comes, one at a time.

        Returns:
            The results in the order of the items.

        Raises:
            PoolWorkerGoneError: a process ended before its work did.
            Exception: what an item raised; of several, the first in order. Items that were begun are finished first,
                others are not begun any more.
        """
        results: dict[int, _Result] = {}
        errors: dict[int, Exception] = {}
        waiting = iter(enumerate(items))
        lock = threading.Lock()

        def serve(worker: _Worker) -> None:
            while True:
                with lock:
                    place, item = next(waiting, (-1, None)) if not errors else (-1, None)
                if place < 0:
                    return
                try:
                    result = worker.do(work, item)  # type: ignore[arg-type]  # an item: place says so
                    with lock:
                        results[place] = result
                        if done is not None:
                            done(result)
                except Exception as error:  # noqa: BLE001 - whatever it is, it goes to whoever asked
                    with lock:
                        errors[place] = error
                    return

        threads = [
            threading.Thread(target=serve, args=(worker,), name="gristmill-items", daemon=True)
            for worker in itertools.islice(self._workers, len(items))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[min(errors)]
        return [results[place] for place in range(len(items))]
