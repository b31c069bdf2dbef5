"""Ranges of objects on any fsspec store: in few requests, whole or an error, and never of another version."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import CorpusError, FormatError, StorageError
from gristmill.formats.npy import write_npy
from gristmill.formats.retries import Retries, ShortReadError, is_passing, status_of
from gristmill.runtime.object_storage import ObjectStorage, chosen_mode, object_storage
from gristmill.runtime.remote import RemoteStore
from gristmill.runtime.remote_ranges import GAP_BYTES, fetch_many, open_ends, open_remote_npy
from gristmill.runtime.row_pattern import RowPattern

SIZES = (0, 10, 5000, 300_000)


def content(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    """Objects of `SIZES` bytes in fsspec's store in memory, which knows no version but the time of creation."""
    system = fsspec.filesystem("memory")
    for size in SIZES:
        system.pipe(f"/ranges/{size}", content(size))
    yield [f"memory://ranges/{size}" for size in SIZES]
    system.rm("/ranges", recursive=True)


@pytest.fixture
def asking() -> RemoteStore:
    return RemoteStore(ObjectStorage(retries=Retries(attempts=3, first_seconds=0.01)))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.floats(0, 1), st.floats(0, 1)), max_size=30))
def test_ranges_in_any_order(urls: list[str], asking: RemoteStore, wanted: list[tuple[int, float, float]]) -> None:
    objects = asking.pin(urls)
    which = np.array([number for number, _, _ in wanted], np.int64)
    sizes = np.array(SIZES)[which] if len(which) else which
    begins = np.array([int(at * (size - 1)) for (_, at, _), size in zip(wanted, sizes)], np.int64)
    lengths = np.array(
        [1 + int(share * (size - begin - 1)) for (_, _, share), size, begin in zip(wanted, sizes, begins)], np.int64
    )
    data, places = fetch_many(asking, objects, which, begins, lengths)
    for number, begin, length, place in zip(which, begins, lengths, places):
        assert data[place : place + length].tobytes() == content(SIZES[number])[begin : begin + length]


@pytest.mark.parametrize(("gap", "requests"), [(0, 1), (GAP_BYTES, 1), (GAP_BYTES + 1, 2)])
def test_close_ranges_are_asked_for_together(urls: list[str], asking: RemoteStore, gap: int, requests: int) -> None:
    objects = asking.pin(urls)
    before = asking.requests
    fetch_many(asking, objects, np.array([3, 3]), np.array([100 + gap, 0]), np.array([50, 100]))
    assert asking.requests - before == requests + 1  # and whether the object is still the same


@pytest.mark.parametrize(("begin", "length"), [(-1, 5), (8, 3), (10, 1), (3, 0)])
def test_a_range_beyond_an_object_is_named(urls: list[str], asking: RemoteStore, begin: int, length: int) -> None:
    objects = asking.pin(urls)
    with pytest.raises(CorpusError, match=r"memory://ranges/10: bytes -?\d+ to \d+ are wanted, but there are 10: its"):
        fetch_many(asking, objects, np.array([1, 1]), np.array([0, begin]), np.array([5, length]))


def test_an_object_that_is_replaced_between_two_reads(asking: RemoteStore) -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/replaced/a", b"0123456789")
    (one,) = asking.pin(["memory://replaced/a"])
    assert asking.fetch([one], [2], [5]) == [b"234"]
    system.pipe("/replaced/a", b"abcdefghij")
    with pytest.raises(CorpusError, match=r"replaced/a: replaced while it was in use: 10 bytes of version .*"):
        asking.fetch([one], [2], [5])
    system.rm("/replaced/a")
    with pytest.raises(CorpusError, match="replaced/a: removed while it was in use; put it back"):
        asking.fetch([one], [2], [5])
    with pytest.raises(StorageError, match="replaced/a: cannot be examined: No such file, folder or bucket"):
        asking.pin(["memory://replaced/a"])
    with pytest.raises(StorageError, match="nosuch://a/b: cannot be opened: Protocol not known: nosuch"):
        asking.pin(["nosuch://a/b"])


@pytest.mark.parametrize("shape", [(1,), (9,), (2000, 2), (70_000,)])
def test_an_array_on_a_store_is_the_array(asking: RemoteStore, tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 1000, shape, dtype=np.int32)
    write_npy(str(tmp_path / "a.npy"), array)
    system = fsspec.filesystem("memory")
    system.pipe("/arrays/a.npy", (tmp_path / "a.npy").read_bytes())
    (file,) = open_ends(asking, asking.pin(["memory://arrays/a.npy"]))
    found: Any = open_remote_npy(file)
    assert (found.shape, found.dtype, len(found)) == (array.shape, array.dtype, len(array))
    before = asking.requests
    np.testing.assert_array_equal(found[0], array[0])
    np.testing.assert_array_equal(found[len(array) - 1], array[-1])
    assert asking.requests == before  # the ends are at hand
    places = np.random.default_rng(1).integers(0, len(array), 50)
    np.testing.assert_array_equal(found[places], array[places])
    np.testing.assert_array_equal(np.asarray(found), array)
    if len(shape) == 2:
        assert found[:, 1][7] == array[7, 1]
        assert len(found[:, 0]) == len(array)
    with pytest.raises(IndexError, match=r"a\.npy: entries"):
        found[np.array([0, len(array)])]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no readable .npy file"),
        (b"\x93NUMPY\x01\x00v\x00{'descr'", "no readable .npy file"),
        (b"half", "no readable .npy file"),
    ],
)
def test_what_is_no_array_is_named(asking: RemoteStore, data: bytes, message: str) -> None:
    fsspec.filesystem("memory").pipe("/arrays/b.npy", data)
    (file,) = open_ends(asking, asking.pin(["memory://arrays/b.npy"]))
    with pytest.raises(FormatError, match=message):
        open_remote_npy(file)


class _StatusError(Exception):
    def __init__(self, **names: Any) -> None:
        super().__init__("a store's own error")
        self.__dict__.update(names)


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (_StatusError(status=503), True),
        (_StatusError(code="429"), True),
        (_StatusError(status_code=500), True),
        (_StatusError(response={"ResponseMetadata": {"HTTPStatusCode": 502}}), True),
        (_StatusError(status=403), False),
        (_StatusError(code=416), False),
        (_StatusError(status=501), False),
        (_StatusError(), False),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (ShortReadError(), True),
        (json.JSONDecodeError("cut off", "{", 1), True),
        (OSError(errno.EPIPE, "broken"), True),
        (OSError(errno.ENOSPC, "full"), False),
        (FileNotFoundError("a"), False),
        (PermissionError("a"), False),
        (ValueError("a"), False),
    ],
    ids=repr,
)
def test_which_errors_may_pass(error: Exception, passing: bool) -> None:
    assert is_passing(error) is passing
    assert status_of(error) is None or 400 <= int(status_of(error) or 0) < 600


def test_waits_double_and_differ() -> None:
    retries = Retries(attempts=7, first_seconds=1.0, most_seconds=8.0)
    found = np.array([list(retries.waits()) for _ in range(200)])
    longest = np.array([1.0, 2.0, 4.0, 8.0, 8.0, 8.0])
    assert found.shape == (200, 6)
    assert (found >= longest / 2).all()
    assert (found <= longest).all()
    assert len(np.unique(found)) > 1000


def test_the_mode_follows_from_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [chosen_mode(ObjectStorage(), needed, 10) for needed in (10, 11)] == ["cache", "ranges"]
    assert chosen_mode(ObjectStorage(mode="cache"), 11, 10) == "cache"
    options = object_storage("auto", tmp_path, 5)
    assert (options.folder, options.limit(0), options.mode) == (tmp_path, 5, "auto")
    assert object_storage(ObjectStorage(mode="ranges", connections=3), cache_bytes=7).connections == 3
    monkeypatch.delenv("GRISTMILL_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ObjectStorage().folder == tmp_path / "gristmill"
    assert ObjectStorage().limit(1000) >= 800
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", str(tmp_path / "named"))
    assert ObjectStorage().folder == tmp_path / "named"


def test_a_pattern_is_seen_after_two_reads() -> None:
    pattern = RowPattern()
    assert not pattern.add(np.array([0, 2]))
    assert pattern.batch(1, 100).tolist() == [3, 4]  # not yet known: what follows
    assert not pattern.add(np.array([8, 10]))
    assert pattern.step == 8
    assert pattern.add([16, 18])
    assert pattern.batch(2, 100).tolist() == [32, 34]
    assert pattern.batch(2, 34).tolist() == [32]
    assert pattern.batch(9, 50).tolist() == []
    for other in ([3, 5], [3, 5], [1, 9], [[1, 2]], [0.5], []):
        assert not pattern.add(other)
        assert pattern.step is None
