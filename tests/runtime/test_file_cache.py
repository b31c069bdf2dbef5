"""The cache of the host: one bringer, nothing in use removed, nothing half brought believed, whoever dies."""

import errno
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.errors import FormatError, StorageError
from gristmill.formats.npy import write_npy
from gristmill.runtime.cached_arrays import open_cached_npy
from gristmill.runtime.connections import Connections
from gristmill.runtime.file_cache import CacheFullError, FileCache


def writes(data: bytes, calls: list[str] | None = None) -> Callable[[int], None]:
    def write(descriptor: int) -> None:
        if calls is not None:
            calls.append("brought")
        os.pwrite(descriptor, data, 0)

    return write


def bring(cache: FileCache, key: str, size: int = 100) -> Any:
    return cache.bring(key, size, writes(key[0].encode() * size))


def names(cache: FileCache) -> list[str]:
    return sorted(path.name for path in cache.folder.iterdir() if path.name != "lock")


def test_a_file_is_brought_once(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "deep" / "cache", 1000)
    calls: list[str] = []
    assert cache.find("a", 100) is None
    first, brought = cache.bring("a", 100, writes(b"a" * 100, calls))
    again, brought_again = cache.bring("a", 100, writes(b"a" * 100, calls))
    assert (brought, brought_again, calls) == (True, False, ["brought"])
    assert Path(again.path).read_bytes() == b"a" * 100
    assert os.stat(again.path).st_mode & 0o777 == 0o444
    for one in (first, again):
        one.close()
        one.close()


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 300)
    for key in "abc":
        bring(cache, key)[0].close()
        time.sleep(0.01)
    found = cache.find("a", 100)
    assert found is not None
    found.close()
    bring(cache, "d")[0].close()
    assert names(cache) == ["a", "c", "d"]
    assert cache.held_bytes == 300


def test_a_file_in_use_is_not_removed(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 300)
    held = [bring(cache, key)[0] for key in "abc"]
    with pytest.raises(CacheFullError, match=r"no room for 100 bytes: the cache may hold 300, and all but 0 of"):
        bring(cache, "d")
    held[1].close()
    bring(cache, "d")[0].close()
    assert names(cache) == ["a", "c", "d"]
    with pytest.raises(CacheFullError, match=r"a file of 301 bytes is larger than the cache, which may hold 300"):
        bring(cache, "e", 301)


def test_what_raises_leaves_nothing(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 300)

    def fail(descriptor: int) -> None:
        os.pwrite(descriptor, b"half", 0)
        raise KeyError("why")

    with pytest.raises(KeyError):
        cache.bring("a", 100, fail)
    assert names(cache) == []


def test_a_file_of_another_size_is_brought_anew(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 300)
    bring(cache, "a")[0].close()
    os.chmod(cache.path("a"), 0o644)
    os.truncate(cache.path("a"), 50)
    assert cache.find("a", 100) is None
    assert bring(cache, "a")[1]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/cache: the cache cannot be made: Not a directory; name"):
        FileCache(tmp_path / "file" / "cache", 1)


def _bring_all(folder: str, log: str, keys: str) -> None:
    cache = FileCache(Path(folder), 10_000)

    def write(descriptor: int) -> None:
        with open(log, "a") as file:
            file.write("x")
        time.sleep(0.05)
        os.pwrite(descriptor, b"k" * 100, 0)

    for key in keys:
        found, _ = cache.bring(key, 100, write)
        if Path(found.path).read_bytes() != b"k" * 100:
            os._exit(3)
        found.close()


def _start(target: Callable[..., None], *arguments: str) -> Any:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_four_processes_bring_each_file_once(tmp_path: Path) -> None:
    running = [_start(_bring_all, str(tmp_path / "cache"), str(tmp_path / "log"), "abcd") for _ in range(4)]
    for process in running:
        process.join(30)
        assert process.exitcode == 0
    assert (tmp_path / "log").read_text() == "xxxx"


def _hang(folder: str, ready: str) -> None:
    def write(descriptor: int) -> None:
        Path(ready).touch()
        time.sleep(60)

    FileCache(Path(folder), 10_000).bring("a", 100, write)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_a_dead_bringer_blocks_nobody(tmp_path: Path) -> None:
    process = _start(_hang, str(tmp_path / "cache"), str(tmp_path / "ready"))
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    cache = FileCache(tmp_path / "cache", 10_000)
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(StorageError, match="given up waiting for another process"):
        cache.bring("a", 100, writes(b"a" * 100), stopped)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    found, brought = cache.bring("a", 100, writes(b"a" * 100))
    assert brought
    assert Path(found.path).read_bytes() == b"a" * 100
    found.close()
    os.close(os.open(cache.path("dead") + ".part", os.O_CREAT | os.O_RDWR))
    os.truncate(cache.path("dead") + ".part", 9_950)  # of another dead process: it goes when room is needed
    bring(cache, "b")[0].close()
    assert not Path(cache.path("dead") + ".part").exists()


def test_threads_fill_and_empty_a_small_cache(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 500)
    wrong: list[str] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(60):
            key = "abcdefgh"[random.integers(8)]
            found, _ = bring(cache, key)
            if Path(found.path).read_bytes() != key.encode() * 100:
                wrong.append(key)
            found.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(names(cache)) <= 5
    assert cache.held_bytes <= 500  # told once all are still: a listing may see one that goes and one that follows


def test_a_mapped_array_stays(tmp_path: Path) -> None:
    array = np.arange(20, dtype=np.int32).reshape(10, 2)
    write_npy(str(tmp_path / "a.npy"), array)
    data = (tmp_path / "a.npy").read_bytes()
    cache = FileCache(tmp_path / "cache", len(data) + 50)
    found, _ = cache.bring("a", len(data), writes(data))
    mapped = open_cached_npy(found, "gs://b/a.npy")
    assert found.descriptor == -1
    np.testing.assert_array_equal(mapped, array)
    with pytest.raises(CacheFullError):
        bring(cache, "b")
    del mapped
    bring(cache, "b")[0].close()
    found, _ = FileCache(tmp_path / "other", 1000).bring("x", 100, writes(b"x" * 100))
    with pytest.raises(FormatError, match=r"gs://b/x\.npy: no readable \.npy file of integers"):
        open_cached_npy(found, "gs://b/x.npy")


def test_connections_go_to_whoever_came_first() -> None:
    connections = Connections(4)
    order: list[int] = []
    with connections.turn() as first, connections.turn() as second:
        assert first.call(3) == 3
        assert second.call(5) == 1
        first.hang_up()
        assert first.call(9) == 3  # the connections, while memory of the first call is given back later
        stopped = threading.Event()
        stopped.set()
        assert second.call(1, stopped) == 0

    def work(number: int, began: threading.Event) -> None:
        with connections.turn() as turn:
            began.set()
            assert turn.call(4) > 0
            order.append(number)

    with connections.turn() as holder:
        holder.call(4)
        threads = []
        for number in range(5):
            began = threading.Event()
            threads.append(threading.Thread(target=work, args=(number, began)))
            threads[-1].start()
            began.wait()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)  # no file system of a test machine lacks it
    with pytest.raises(StorageError, match=r"the cache cannot be locked: No locks available; name another folder with"):
        bring(FileCache(tmp_path, 300), "a")
