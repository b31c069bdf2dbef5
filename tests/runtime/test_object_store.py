"""Streams on an object store: the local corpus's rows by every way, through faults, and never from two versions."""

import json
import os
import pickle
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.errors import CorpusError, GristmillError, SettingsError, StorageError
from gristmill.formats.retries import Retries
from gristmill.formats.storage import list_files, local_path
from gristmill.runtime.corpus import open_corpus
from gristmill.runtime.megatron import open_megatron
from gristmill.runtime.object_storage import ObjectStorage
from gristmill.runtime.remote_ranges import RemoteArray
from gristmill.runtime.windows import open_windows

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
"""Connections that a fault cut off are closed by aiohttp when they are collected."""

QUICK = Retries(attempts=4, first_seconds=0.05)


def fault(kind: str, match: str = "", times: int = 1, status: int = 503) -> Any:
    return sys.modules["fault_proxy"].Fault(kind, match, times, status)


class Stored:
    """A corpus on the disk and in the store."""

    def __init__(self, local: str, store: Any, proxy: Any) -> None:
        self.local, self.store, self.proxy = local, store, proxy
        self.url = f"{store.url}/{Path(local).name}"
        self.upload()
        self.rows = open_corpus(local).stream("train").read(np.arange(150))

    def upload(self) -> None:
        for path in list_files(self.local, recursive=True):
            self.put(path)

    def put(self, path: str, data: bytes | None = None) -> None:
        name = f"{Path(self.local).name}/{local_path(path).relative_to(self.local)}"
        self.store.put(name, local_path(path).read_bytes() if data is None else data)

    def shards(self, ending: str = ".bin") -> list[str]:
        return [path for path in list_files(f"{self.local}/tokens", recursive=True) if path.endswith(ending)]

    def stream(self, **options: Any) -> Any:
        return open_corpus(self.url).stream("train", storage=ObjectStorage(**{"retries": QUICK, **options}))


@pytest.fixture(scope="module")
def stored(make_corpus: Any, store: Any, proxy: Any) -> Stored:
    folder = make_corpus(weights={"web": 0.7, "code": 0.3})
    make_corpus.index(folder, samples=150)
    return Stored(folder, store, proxy)


@pytest.fixture
def calm(stored: Stored) -> Iterator[Stored]:
    stored.proxy.reset()
    yield stored
    stored.proxy.reset()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "gristmill" in thread.name]


def batches(stream: Any, size: int = 10) -> np.ndarray:
    return np.concatenate([stream.read(np.arange(first, first + size)) for first in range(0, 150, size)])


@pytest.mark.parametrize("mode", ["cache", "ranges"])
def test_rows_are_those_of_the_local_corpus(calm: Stored, tmp_path: Path, mode: str) -> None:
    stream = calm.stream(mode=mode, cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(batches(stream), calm.rows)
    some = np.random.default_rng(0).permutation(150)[:40]
    np.testing.assert_array_equal(stream.read(some), calm.rows[some])
    np.testing.assert_array_equal(stream.reader.read_numpy(some), calm.rows[some])
    local = open_corpus(calm.local).stream("train")
    np.testing.assert_array_equal(stream.read_documents(some)[1], local.read_documents(some)[1])
    assert stream.fingerprint == local.fingerprint
    assert [piece.shard for piece in stream.describe(7)] == [piece.shard for piece in local.describe(7)]
    counts = stream.read_counts()
    assert counts["bytes_fetched"] > 0
    assert counts["store_retries"] == 0
    again = pickle.loads(pickle.dumps(stream))
    np.testing.assert_array_equal(again.read(some), calm.rows[some])
    assert len(pickle.dumps(stream)) < 4000
    for one in (stream, again):
        one.close()
    assert threads() == []


def test_the_cache_is_filled_once_and_used_again(calm: Stored, tmp_path: Path) -> None:
    stream = calm.stream(mode="cache", cache_dir=tmp_path)
    batches(stream)
    first = stream.read_counts()
    stream.close()
    calm.proxy.reset()
    again = calm.stream(mode="cache", cache_dir=tmp_path)
    np.testing.assert_array_equal(batches(again), calm.rows)
    assert again.read_counts()["bytes_fetched"] == again.read_counts()["cache_misses"] == 0
    assert again.read_counts()["cache_hits"] > 0
    assert not [target for target, _ in calm.proxy.targets if ".bin" in target or ".idx" in target or ".npy" in target]
    assert first["cache_misses"] == 12 + 8  # three shards of two sources, and the index arrays
    again.close()


def test_shards_come_in_the_order_of_their_first_use(calm: Stored, tmp_path: Path) -> None:
    stream = calm.stream(mode="cache", cache_dir=tmp_path, connections=1)
    stream.read([3])
    order = stream.reader._walk.shards(np.arange(3, 150))[0].tolist()
    stream.read([4])  # the look-ahead goes on
    for _ in range(500):
        if stream.reader._ahead.done:
            break
        threading.Event().wait(0.01)
    came = [target.split("/o/")[1] for target, _ in calm.proxy.targets if "alt=media" in target and ".bin" in target]
    names = [stream.reader.shards[number].name for number in order]
    assert [next(name for name in names if f"{name}." in target) for target in came] == names
    stream.close()
    assert threads() == []


SEVERAL = """
import json, sys
import numpy as np
import fsspec.config
fsspec.config.conf["gs"] = {"token": "anon"}
from gristmill.runtime.corpus import open_corpus
stream = open_corpus(sys.argv[1]).stream("train", storage="cache", cache_dir=sys.argv[2])
rows = np.concatenate([stream.read(np.arange(first, first + 10)) for first in range(0, 150, 10)])
print(json.dumps([int(rows.astype(np.int64).sum()), stream.read_counts()]))
stream.close()
"""


@pytest.mark.slow
def test_four_processes_download_each_file_once(calm: Stored, tmp_path: Path) -> None:
    calm.proxy.reset(latency=0.02)
    environment = {**os.environ, **calm.store.environment, "STORAGE_EMULATOR_HOST": calm.proxy.address}
    command = [sys.executable, "-c", SEVERAL, calm.url, str(tmp_path)]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    found = []
    for process in running:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        found.append(json.loads(out))
    assert {total for total, _ in found} == {int(calm.rows.astype(np.int64).sum())}
    assert sum(counts["cache_misses"] for _, counts in found) == 20
    media = Counter(target for target in calm.proxy.targets if "alt=media" in target[0] and ".json" not in target[0])
    assert set(media.values()) == {1}
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("mode", ["cache", "ranges"])
@pytest.mark.parametrize(
    "faults",
    [
        [("status", ".bin?alt", 1, 503), ("status", ".bin?alt", 1, 429)],
        [("drop", ".bin?alt", 1), ("drop", "index.npy?alt", 1)],
        [("cut", ".bin?alt", 1), ("short", ".idx?alt", 2), ("short", ".bin?alt", 2), ("short", "index.npy", 2)],
    ],
    ids=["busy", "dropped", "short"],
)
def test_passing_faults_change_nothing(calm: Stored, tmp_path: Path, mode: str, faults: list[Any]) -> None:
    calm.proxy.reset(*(fault(*one) for one in faults), latency=0.002)
    stream = calm.stream(mode=mode, cache_dir=tmp_path)
    np.testing.assert_array_equal(batches(stream), calm.rows)
    assert not [one for one in calm.proxy.faults if one.times]
    if faults[0][0] == "cut":
        assert stream.read_counts()["store_retries"] >= 4
    stream.close()
    assert threads() == []


@pytest.mark.parametrize("mode", ["cache", "ranges"])
def test_lasting_faults_name_the_object(calm: Stored, tmp_path: Path, mode: str) -> None:
    stream = calm.stream(mode=mode, cache_dir=tmp_path, retries=Retries(attempts=2, first_seconds=0.01))
    calm.proxy.reset(fault("short", ".bin?alt", 10_000))
    with pytest.raises(StorageError, match=r"\.bin: bytes \d+ to \d+ cannot be read: ShortReadError: .* \(2 attempts"):
        batches(stream)
    calm.proxy.reset()
    np.testing.assert_array_equal(batches(stream), calm.rows)
    calm.proxy.reset(fault("status", ".idx?alt", 10_000, 403))
    other = calm.stream(mode=mode, cache_dir=tmp_path / "other")
    with pytest.raises(StorageError, match=r"\.idx: bytes .* cannot be read: OSError: Forbidden"):
        batches(other)
    for one in (stream, other):
        one.close()
    assert threads() == []


def test_a_silent_store_is_told_after_a_while(calm: Stored, tmp_path: Path) -> None:
    quick = {"timeout_seconds": 0.2, "retries": Retries(attempts=2, first_seconds=0.01)}
    stream = calm.stream(mode="ranges", **quick)
    calm.proxy.reset(fault("hang", ".idx?alt", 10_000))
    with pytest.raises(StorageError, match=r"FSTimeoutError .2 attempts in"):
        stream.read([0])
    stream.close()


@pytest.mark.parametrize("kind", ["replaced", "removed"])
@pytest.mark.parametrize("mode", ["cache", "ranges"])
def test_an_object_that_changes_is_an_error(
    make_corpus: Any, store: Any, proxy: Any, tmp_path: Path, mode: str, kind: str
) -> None:
    folder = make_corpus(weights={"web": 0.7, "code": 0.3}, documents={"web": 12, "code": 12}, shards=1)
    make_corpus.index(folder, samples=20)
    proxy.reset()
    own = Stored.__new__(Stored)
    own.local, own.store, own.proxy, own.url = folder, store, proxy, f"{store.url}/{Path(folder).name}"
    own.upload()
    stream = own.stream(mode=mode, cache_dir=tmp_path)
    if mode == "ranges":
        stream.read([0])
    for path in own.shards():
        data = local_path(path).read_bytes()
        if kind == "replaced":
            own.put(path, data[::-1])
        else:
            store.remove(f"{Path(folder).name}/{local_path(path).relative_to(folder)}")
    wanted = {
        ("cache", "replaced"): r"\.bin: what came has the sha256 \w+, but the manifest says \w+: damaged or replaced",
        ("cache", "removed"): r"\.bin: removed while it was in use",
        ("ranges", "replaced"): r"\.bin: replaced while it was in use: \d+ bytes of version \d+ when it was pinned",
        ("ranges", "removed"): r"\.bin: removed while it was in use",
    }[mode, kind]
    with pytest.raises(GristmillError, match=wanted):
        stream.read(np.arange(20))
    stream.close()
    assert not list(tmp_path.glob("*.part"))


def test_damage_on_the_way_is_noticed_in_the_cache(calm: Stored, tmp_path: Path) -> None:
    stream = calm.stream(mode="cache", cache_dir=tmp_path)
    calm.proxy.reset(fault("flip", ".bin?alt", 10_000))
    with pytest.raises(CorpusError, match=r"\.bin: what came has the sha256"):
        batches(stream)
    calm.proxy.reset()
    np.testing.assert_array_equal(batches(stream), calm.rows)  # asked for again, it came as it is
    stream.close()


def test_auto_takes_the_cache_where_everything_fits(calm: Stored, tmp_path: Path) -> None:
    size = sum(local_path(path).stat().st_size for path in (*calm.shards(), *calm.shards(".idx")))
    fits = calm.stream(cache_dir=tmp_path / "large", cache_bytes=10 * size)
    small = calm.stream(cache_dir=tmp_path / "small", cache_bytes=size)  # the index arrays are not in it
    assert (fits.reader.index.access.mode, small.reader.index.access.mode) == ("cache", "ranges")
    assert fits.reader.index.access.needed_bytes > size
    np.testing.assert_array_equal(batches(small), calm.rows)
    for one in (fits, small):
        one.close()


def test_a_cache_smaller_than_the_data_stays_small(make_corpus: Any, store: Any, proxy: Any, tmp_path: Path) -> None:
    folder = make_corpus(documents={"web": 200}, shards=20)
    make_corpus.index(folder, samples=150)
    proxy.reset()
    own = Stored(folder, store, proxy)
    pair = max(local_path(path).stat().st_size + local_path(f"{path[:-4]}.idx").stat().st_size for path in own.shards())
    arrays = sum(
        local_path(path).stat().st_size for path in list_files(f"{folder}/indices", recursive=True) if "train" in path
    )
    limit = arrays + 10 * pair
    stream = own.stream(mode="cache", cache_dir=tmp_path, cache_bytes=limit, connections=4)
    for first in range(0, 150, 5):
        np.testing.assert_array_equal(stream.read(np.arange(first, first + 5)), own.rows[first : first + 5])
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limit
    assert stream.read_counts()["cache_misses"] > 40
    stream.close()
    assert threads() == []
    tiny = own.stream(mode="cache", cache_dir=tmp_path / "tiny", cache_bytes=arrays + pair // 2, connections=4)
    with pytest.raises(StorageError, match=r"no room for .* raise cache_bytes"):
        tiny.read(np.arange(5))
    tiny.close()


def test_a_loop_reads_ahead_by_ranges(calm: Stored) -> None:
    """Once the reads show a pattern, most find their rows at hand; requests are shared by several batches."""
    stream = calm.stream(mode="ranges")
    for first in range(0, 60, 3):
        np.testing.assert_array_equal(stream.read(np.arange(first, first + 3)), calm.rows[first : first + 3])
    before = stream.read_counts()["store_requests"]
    for first in range(0, 60, 3):  # backwards there is none
        np.testing.assert_array_equal(
            stream.read(np.arange(57 - first, 60 - first)), calm.rows[57 - first : 60 - first]
        )
    assert stream.read_counts()["store_requests"] - before > 1.5 * before
    stream.close()
    assert threads() == []


def test_ranges_leave_no_file_anywhere(calm: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", str(tmp_path / "never"))
    stream = calm.stream(mode="ranges")
    batches(stream)
    stream.close()
    assert not list(tmp_path.iterdir())


def test_a_stream_that_is_dropped_ends_its_threads(calm: Stored, tmp_path: Path) -> None:
    for mode in ("cache", "ranges"):
        stream = calm.stream(mode=mode, cache_dir=tmp_path, connections=2)
        for first in (0, 10, 20):
            stream.read(np.arange(first, first + 10))
        del stream
    for _ in range(300):
        if not threads():
            break
        threading.Event().wait(0.01)
    assert threads() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "disk"}, "storage 'disk': it is 'auto', 'cache', 'ranges'"),
        ({"cache_dir": "gs://a/b"}, "cache_dir 'gs://a/b' is a URL; the cache is a folder of this host"),
        ({"cache_bytes": 0}, "cache_bytes must be at least 1, not 0"),
        ({"cache_bytes": "5G"}, "cache_bytes must be a whole number, not '5G'"),
        ({"connections": 0}, "connections must be at least 1, not 0"),
        ({"ahead_bytes": 5}, "ahead_bytes must be at least 1048576, not 5"),
        ({"timeout_seconds": 0}, "timeout_seconds must be above 0, not 0"),
        ({"retries": Retries(attempts=0)}, "attempts must be at least 1, not 0"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ObjectStorage(**options)


@pytest.mark.parametrize("mode", ["cache", "ranges"])
def test_windows_on_a_store_are_those_of_the_disk(calm: Stored, tmp_path: Path, mode: str) -> None:
    local = open_corpus(calm.local).windows("train", samples=100)
    stream = open_corpus(calm.url).windows("train", samples=100, storage=mode, cache_dir=tmp_path)  # type: ignore[arg-type]
    assert stream.fingerprint == local.fingerprint
    for first in range(0, 100, 10):
        rows = np.arange(first, first + 10)
        np.testing.assert_array_equal(stream.read(rows), local.read(rows))
    np.testing.assert_array_equal(stream.read_documents([5, 3])[1], local.read_documents([5, 3])[1])
    again = pickle.loads(pickle.dumps(stream))
    np.testing.assert_array_equal(again.read([1, 99]), local.read([1, 99]))
    for one in (stream, again):
        one.close()
    assert threads() == []


@pytest.mark.parametrize("mode", ["cache", "ranges"])
@pytest.mark.parametrize("unit", ["sequence", "document"])
def test_anyones_data_on_a_store(store: Any, proxy: Any, tmp_path: Path, write_pair: Any, mode: str, unit: str) -> None:
    proxy.reset()
    name = f"pairs-{mode}-{unit}"
    for number, dtype in enumerate(("uint16", "int32")):
        write_pair(tmp_path / name / f"p{number}", range(1, 60), seed=number, sentences=3, dtype=dtype)
    for path in (tmp_path / name).iterdir():
        store.put(f"{name}/{path.name}", path.read_bytes())
    options: dict[str, Any] = {"sequence_length": 16, "eod_id": 1, "samples": 150, "granularity": unit}
    local = open_megatron(str(tmp_path / name), **options)
    cache = ObjectStorage(mode=mode, cache_dir=tmp_path / "cache", retries=QUICK)  # type: ignore[arg-type]
    urls: dict[str, Any] = {"cache_dir": f"{store.url}/{name}-indices", "storage": cache}
    for stored in (False, True):  # built, then found on the store
        stream = open_megatron(f"{store.url}/{name}", **options, **urls)
        np.testing.assert_array_equal(batches(stream), local.read(np.arange(150)))
        again = pickle.loads(pickle.dumps(stream))
        np.testing.assert_array_equal(again.read([149, 0]), local.read([149, 0]))
        if stored and mode == "ranges":
            array: Any = stream.reader.index.members[0].indices.document_index
            assert isinstance(array, RemoteArray)
        for one in (stream, again):
            one.close()
    windows = open_windows(f"{store.url}/{name}", sequence_length=16, eod_id=1, granularity=unit, storage=cache)
    expected = open_windows(str(tmp_path / name), sequence_length=16, eod_id=1, granularity=unit)
    np.testing.assert_array_equal(windows.read(np.arange(len(expected))), expected.read(np.arange(len(expected))))
    windows.close()
    assert threads() == []
