"""Items done in processes: order of results, errors, and that nothing is left behind."""

import os
import socket
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from gristmill.formats.errors import InputError, SettingsError
from gristmill.pipelines.item_pool import ItemPool, PoolWorkerGoneError


def slow_square(number: int) -> tuple[int, int]:
    """The square, late for small numbers, and who computed it."""
    time.sleep(0.05 if number < 2 else 0)
    return number * number, os.getpid()


def refuse_odd(folder: str, number: int) -> int:
    """Leaves a file for each number; odd ones are refused."""
    Path(folder, str(number)).touch()
    time.sleep(0.05 * (number == 1))
    if number % 2:
        raise InputError(f"a.jsonl:{number}: odd")
    return number


class UnsendableError(Exception):
    """Cannot be made of its message alone."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


def raise_unsendable(_: object) -> None:
    """Raises it."""
    raise UnsendableError(1, 2)


def die(_: object) -> None:
    """Ends the process."""
    os._exit(3)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the processes import this module, as they import Gristmill's."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
    for function in (slow_square, refuse_odd, raise_unsendable, die):
        monkeypatch.setattr(function, "__module__", Path(__file__).stem)
    monkeypatch.setitem(sys.modules, Path(__file__).stem, sys.modules[__name__])


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "item_worker" in " ".join(child.cmdline())]


def test_results_keep_the_order_of_the_items(here: None) -> None:
    seen: list[tuple[int, int]] = []
    with ItemPool(3) as pool:
        found = pool.map(slow_square, range(20), done=seen.append)
        again = pool.map(slow_square, [5])
        assert pool.map(slow_square, []) == []
        assert len(children()) == 3
    assert [square for square, _ in found] == [number * number for number in range(20)]
    assert sorted(seen) == sorted(found)
    workers = {worker for _, worker in found}
    assert os.getpid() not in workers
    assert 1 < len(workers) <= 3
    assert again[0][1] in workers
    assert children() == []


def test_of_several_errors_the_first_in_order_is_raised(here: None, tmp_path: Path) -> None:
    with ItemPool(2) as pool:
        with pytest.raises(InputError, match=r"a\.jsonl:1: odd") as caught:
            pool.map(partial(refuse_odd, str(tmp_path)), [1, 3, *range(4, 40)])
        assert "in refuse_odd" in caught.value.__notes__[0]
        assert len(list(tmp_path.iterdir())) < 5, "no item is begun after an error"
        assert pool.map(partial(refuse_odd, str(tmp_path)), [2]) == [2], "the pool lives on"


def test_an_error_that_cannot_be_sent_is_told_of(here: None) -> None:
    with ItemPool(1) as pool, pytest.raises(RuntimeError, match=r"(?s)cannot be sent:.*UnsendableError: 1 and 2"):
        pool.map(raise_unsendable, [0])


def test_a_time_limit_for_new_sockets_is_none_of_the_pools() -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.05)  # as Google's client libraries set one
    try:
        with ItemPool(1) as pool:
            assert pool.map(time.sleep, [0.3]) == [None]
    finally:
        socket.setdefaulttimeout(before)


def test_a_process_that_dies(here: None) -> None:
    with ItemPool(2) as pool, pytest.raises(PoolWorkerGoneError, match=r"without a word \(exit code 3\); if the"):
        pool.map(die, [0])
    assert children() == []


def test_no_processes() -> None:
    with pytest.raises(SettingsError, match="--max-workers 0: at least 1 is needed"):
        ItemPool(0)


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from gristmill.pipelines.item_pool import ItemPool
            print("once")
            with ItemPool(2) as pool:
                print(pool.map(abs, [-1, -2, -3]))
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("once\n[1, 2, 3]\n", "")


def test_an_interrupt_ends_the_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, threading, time
            from gristmill.pipelines.item_pool import ItemPool
            with ItemPool(2) as pool:
                print(*[worker.process.pid for worker in pool._workers], flush=True)
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
                pool.map(time.sleep, [60, 60])
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=30)
    assert "KeyboardInterrupt" in done.stderr
    assert not any(psutil.pid_exists(int(pid)) for pid in done.stdout.split())
