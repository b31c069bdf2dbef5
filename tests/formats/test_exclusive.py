"""Files that one of several makes, ages by one clock, and listings with sizes: on the disk and in stores."""

import errno
import os
import threading
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from gristmill.formats.errors import StorageError
from gristmill.formats.exclusive import create_bytes, modified_seconds, sizes_below
from gristmill.formats.storage import read_bytes, write_bytes


@pytest.fixture(params=["local", "memory", "gs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "gs":
        return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


def test_only_the_first_makes_it(folder: str) -> None:
    path = f"{folder}/below/lock"
    assert create_bytes(path, b"first")
    assert not create_bytes(path, b"second")
    assert read_bytes(path) == b"first"


def test_one_of_many_at_once_makes_it(folder: str) -> None:
    if folder.startswith("memory:"):
        pytest.skip("a file system that looks first and then writes, as its module says")
    path, made, start = f"{folder}/lock", [], threading.Barrier(8)

    def make(number: int) -> None:
        start.wait()
        if create_bytes(path, b"%d" % number):
            made.append(b"%d" % number)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [read_bytes(path)]


def test_ages_are_by_the_clock_of_the_place(folder: str) -> None:
    assert modified_seconds(f"{folder}/none") is None
    write_bytes(f"{folder}/a", b"a")
    first = modified_seconds(f"{folder}/a")
    write_bytes(f"{folder}/b", b"b")
    second = modified_seconds(f"{folder}/b")
    assert first is not None
    assert second is not None
    assert 0 <= second - first < 60


def test_sizes_of_all_files_below(folder: str) -> None:
    assert sizes_below(f"{folder}/none") == {}
    for name, size in {"x/a": 3, "x/y/b": 0, "z": 7}.items():
        write_bytes(f"{folder}/{name}", bytes(size))
    assert sizes_below(folder) == {f"{folder}/x/a": 3, f"{folder}/x/y/b": 0, f"{folder}/z": 7}
    assert sizes_below(f"{folder}/x") == {f"{folder}/x/a": 3, f"{folder}/x/y/b": 0}


def test_a_disk_without_links_makes_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert create_bytes(f"{tmp_path}/lock", b"first")
    assert not create_bytes(f"{tmp_path}/lock", b"second")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("lock", b"first")]


REFUSALS = [TypeError("mode"), NotImplementedError(), OSError(errno.ENOSYS, "no"), OSError(errno.EIO, "no")]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_store_that_takes_no_conditions_is_looked_at_first(refusal: Exception) -> None:
    class Plain(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
        protocol = "plain"
        store: ClassVar[dict[str, Any]] = {}

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
            if mode == "create":
                raise refusal
            super().pipe_file(path, value, mode, **options)

    fsspec.register_implementation("plain", Plain, clobber=True)
    if isinstance(refusal, OSError) and refusal.errno == errno.EIO:
        with pytest.raises(StorageError, match="plain://b/lock: cannot be written: no"):
            create_bytes("plain://b/lock", b"first")
        return
    assert create_bytes("plain://b/lock", b"first")
    assert not create_bytes("plain://b/lock", b"second")
    assert read_bytes("plain://b/lock") == b"first"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"file/lock: cannot be written: "):
        create_bytes(f"{tmp_path}/file/lock", b"")
