"""The prefetch thread: works ahead by so much, hands errors on in order, and can always be stopped."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator

import pytest

from gristmill.runtime.prefetch import Prefetcher, _stop_all


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def numbers(stop: int, made: list[int]) -> Generator[int, None, None]:
    for number in range(stop):
        made.append(number)
        yield number


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_works_ahead_by_its_depth_and_keeps_the_order(depth: int) -> None:
    made: list[int] = []
    prefetcher = Prefetcher(numbers(20, made), depth, name="test")
    wait_for(lambda: len(made) == depth)
    time.sleep(0.05)
    assert len(made) == depth, "no more is made than may wait"
    assert [prefetcher.get() for _ in range(20)] == list(range(20))
    for _ in range(2):
        with pytest.raises(StopIteration):
            prefetcher.get()
    prefetcher.close()


def test_an_error_comes_in_its_place() -> None:
    def failing() -> Generator[int, None, None]:
        yield 1
        yield 2
        raise OSError("the disk is gone")

    prefetcher = Prefetcher(failing(), 5, name="test")
    assert [prefetcher.get(), prefetcher.get()] == [1, 2]
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            prefetcher.get()
    prefetcher.close()


def test_close_wakes_a_thread_that_waits_for_room() -> None:
    closed = threading.Event()

    def items() -> Generator[int, None, None]:
        try:
            yield from range(1000)
        finally:
            closed.set()

    prefetcher = Prefetcher(items(), 1, name="test")
    wait_for(lambda: prefetcher._ready.qsize())
    prefetcher.close()
    prefetcher.close()
    assert closed.is_set(), "the generator was closed by its own thread"
    with pytest.raises(StopIteration):
        prefetcher.get()


def test_close_wakes_a_consumer() -> None:
    release = threading.Event()

    def items() -> Generator[int, None, None]:
        release.wait()
        yield 1

    prefetcher = Prefetcher(items(), 1, name="test", close_seconds=0.05)
    ended = threading.Event()

    def consume() -> None:
        with pytest.raises(StopIteration):
            prefetcher.get()
        ended.set()

    consumer = threading.Thread(target=consume)
    consumer.start()
    with pytest.warns(RuntimeWarning, match="test: a read has not come back after 0.05 s"):
        prefetcher.close()
    assert ended.wait(5)
    consumer.join()
    release.set()
    prefetcher._thread.join(5)
    assert not prefetcher._thread.is_alive(), "the stuck thread ends as soon as its read does"


def test_nothing_made_ahead_is_kept_after_close() -> None:
    class Item:
        pass

    living: list[int] = []

    def items() -> Generator[Item, None, None]:
        for _ in range(10):
            living.append(1)
            yield Item()

    prefetcher = Prefetcher(items(), 3, name="test")
    wait_for(lambda: len(living) == 3)
    prefetcher.close()
    gc.collect()
    assert not [found for found in gc.get_objects() if type(found) is Item]  # isinstance would wake dead proxies


def test_at_exit_all_are_stopped_before_any_is_waited_for() -> None:
    both: list[Prefetcher[int]] = []

    def items(other: int) -> Generator[int, None, None]:
        wait_for(lambda: len(both) == 2 and both[other]._stopped)
        yield 1

    both += [Prefetcher(items(1), 1, name="first"), Prefetcher(items(0), 1, name="second")]
    _stop_all()  # one after the other, the first would not come back in time, which is warned of
    assert not any(one._thread.is_alive() for one in both)


FORKED = """
import os, sys, threading
from gristmill.runtime.prefetch import Prefetcher

release = threading.Event()

def items():
    yield 1
    release.wait()
    yield 2

prefetcher = Prefetcher(items(), 1, name="test")
assert prefetcher.get() == 1
child = os.fork()
if child == 0:
    try:
        prefetcher.get()
    except RuntimeError as error:
        print(error)
    prefetcher.close()
    sys.exit(7)  # which runs what is to be done at exit
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
release.set()
print(code, prefetcher.get())
"""


def test_a_forked_process_is_told_that_it_has_no_thread() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED]  # later Pythons advise against it too
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    told, result = done.stdout.splitlines()
    assert told == (
        "test: started before this process was forked, which does not take threads along; open the data anew in each "
        "process"
    )
    assert result == "7 2", "and the other process is none the worse"
    assert not done.stderr


AT_EXIT = """
import sys, threading, time
from gristmill.runtime.prefetch import Prefetcher

def items():
    while True:
        if {stuck}:
            time.sleep(3600)
        yield bytes(1000)

prefetcher = Prefetcher(items(), 2, name="busy", close_seconds=0.2)
if not {stuck}:
    prefetcher.get()
{end}
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)"])
@pytest.mark.parametrize("stuck", [False, True])
def test_the_interpreter_always_ends(end: str, stuck: bool) -> None:
    code = AT_EXIT.format(end=end, stuck=stuck)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert ("a read has not come back" in done.stderr) == stuck
    assert "Traceback" not in done.stderr
