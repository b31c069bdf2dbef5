"""Storage: what is published is whole, on a disk, by URL and in memory; every failure names its path."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.formats import storage
from gristmill.formats.attempt import is_temporary_name
from gristmill.formats.errors import StorageError

NOBODY = 65534


@pytest.fixture(params=["path", "file URL", "memory URL"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty folder in each way to name one."""
    if request.param == "path":
        yield str(tmp_path)
    elif request.param == "file URL":
        yield f"file://{tmp_path}"
    else:
        yield f"memory://{tmp_path.name}"
        fsspec.filesystem("memory").store.clear()
        fsspec.filesystem("memory").pseudo_dirs[:] = [""]


# ------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("a/b", True),
        ("/a", True),
        ("", True),
        ("file:///a/b", True),
        ("FILE:///a/b", True),
        ("gs://bucket/a", False),
        ("memory://a", False),
        ("simplecache::gs://bucket/a", False),
        ("C:\\a", True),
        ("a://", False),
        ("1a://b", True),
    ],
)
def test_what_is_local(path: str, local: bool) -> None:
    assert storage.is_local(path) is local


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a/b", "a/b"), ("/a b", "/a b"), ("file:///a/b", "/a/b"), ("FILE:///a", "/a"), ("file://a/b", "a/b")],
)
def test_local_paths(path: str, expected: str) -> None:
    assert storage.local_path(path) == Path(expected)


def test_a_url_of_another_scheme_is_no_local_path() -> None:
    with pytest.raises(StorageError, match=r"^gs://b/a: a local path is needed here, not a URL$"):
        storage.local_path("gs://b/a")


@pytest.mark.parametrize(
    ("base", "parts", "joined"),
    [
        ("a", ("b", "c"), "a/b/c"),
        ("a/", ("b",), "a/b"),
        ("gs://b", ("a", "c.json"), "gs://b/a/c.json"),
        ("memory://", ("a",), "memory://a"),
        ("", ("a",), "a"),
    ],
)
def test_joining(base: str, parts: tuple[str, ...], joined: str) -> None:
    assert storage.join(base, *parts) == joined
    assert storage.base_name(joined) == parts[-1]
    assert storage.relative_to(joined, base) == "/".join(parts)


def test_what_does_not_lie_below_a_folder_stays_as_it_is() -> None:
    assert storage.relative_to("a/bc/d", "a/b") == "a/bc/d"
    assert storage.base_name("gs://b/a/") == "a"


# -------------------------------------------------------------------------------------------------- publishing


def test_a_published_file_reads_back(folder: str) -> None:
    path = storage.join(folder, "deep", "er", "file.bin")
    data = bytes(range(256)) * 10
    facts = storage.write_bytes(path, data)
    assert facts == storage.FileFacts(len(data), hashlib.sha256(data).hexdigest())
    assert storage.read_bytes(path) == data
    assert storage.file_size(path) == len(data)
    assert storage.file_facts(path) == facts
    with storage.open_read(path) as file:
        assert file.read(4) == b"\0\1\2\3"


def test_a_file_appears_when_the_block_ends(folder: str) -> None:
    path = storage.join(folder, "file")
    with storage.publish(path) as publication:
        publication.write(b"first ")
        assert not storage.exists(path)
        publication.write(bytearray(b"second"))
        assert publication.size == 12
        assert publication.path == path
    assert storage.read_bytes(path) == b"first second"
    assert publication.facts() == storage.file_facts(path)
    assert storage.list_files(folder) == [path]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit, OSError, ValueError])
def test_a_block_that_raises_publishes_nothing(folder: str, error: type[BaseException]) -> None:
    path = storage.join(folder, "file")
    with pytest.raises(error, match="mine"), storage.publish(path) as publication:  # noqa: PT012
        publication.write(b"x" * 3_000_000)
        raise error("mine")
    assert storage.list_files(folder, recursive=True) == []


def test_a_block_that_raises_leaves_the_former_file(folder: str) -> None:
    path = storage.join(folder, "file")
    storage.write_bytes(path, b"former")
    with pytest.raises(KeyError), storage.publish(path) as publication:  # noqa: PT012
        publication.write(b"later")
        raise KeyError
    assert storage.read_bytes(path) == b"former"
    assert storage.list_files(folder) == [path]


def test_two_writers_of_one_name_do_not_disturb_each_other(folder: str) -> None:
    path = storage.join(folder, "file")
    first, second = storage.publish(path), storage.publish(path)
    one, other = first.__enter__(), second.__enter__()
    for _ in range(3):
        one.write(b"1" * 700_000)
        other.write(b"2" * 700_000)
    second.__exit__(None, None, None)
    assert storage.read_bytes(path) == b"2" * 2_100_000
    first.__exit__(None, None, None)
    assert storage.read_bytes(path) == b"1" * 2_100_000
    assert storage.list_files(folder) == [path]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="<u2"),
        np.arange(6, dtype=">i4"),
        np.arange(12, dtype=np.int64).reshape(3, 4),
        np.arange(20, dtype=np.int32)[::3],
        np.empty(0, np.uint8),
        np.zeros(2, [("hash", "<u8", 2), ("record", "<u4")]),
        np.frombuffer(b"read only", np.uint8),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_arrays_are_written_as_their_bytes(folder: str, array: np.ndarray) -> None:
    path = storage.join(folder, "array")
    with storage.publish(path) as publication:
        publication.write(array)
    assert storage.read_bytes(path) == array.tobytes()


def test_a_scratch_file_is_as_whole_and_has_no_digest(folder: str) -> None:
    path = storage.join(folder, "file")
    with storage.publish(path, scratch=True) as publication:
        publication.write(b"abc")
        assert not storage.exists(path)
    assert publication.facts() == storage.FileFacts(3, "")
    assert storage.read_bytes(path) == b"abc"
    with pytest.raises(KeyError), storage.publish(path, scratch=True) as publication:  # noqa: PT012
        publication.write(b"other")
        raise KeyError
    assert storage.read_bytes(path) == b"abc"
    assert storage.list_files(folder) == [path]


@given(chunks=st.lists(st.binary(max_size=50), max_size=8))
def test_any_cut_into_writes_gives_the_same_file_and_digest(chunks: list[bytes]) -> None:
    with storage.publish("memory://any/file") as publication:
        for chunk in chunks:
            publication.write(chunk)
    assert storage.read_bytes("memory://any/file") == b"".join(chunks)
    assert publication.facts().sha256 == hashlib.sha256(b"".join(chunks)).hexdigest()


KILLED = """
import sys
from gristmill.formats.storage import publish
with publish(sys.argv[1]) as publication:
    publication.write(b"x" * 3_000_000)
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_a_killed_writer_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "out" / "file"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        os.kill(writer.pid, signal.SIGKILL)
    assert writer.returncode == -signal.SIGKILL
    assert not path.exists()
    (left,) = path.parent.iterdir()
    assert is_temporary_name(left.name)
    storage.write_bytes(str(path), b"whole")
    assert path.read_bytes() == b"whole"


@pytest.mark.parametrize(
    ("name", "temporary"),
    [
        (".a.json.0123456789abcdef0123456789abcdef.tmp", True),
        ("a.json", False),
        (".a.json.tmp", False),
        ("a.json.0123456789abcdef0123456789abcdef.tmp", False),
        (".hidden", False),
    ],
)
def test_names_that_a_dead_writer_leaves(name: str, temporary: bool) -> None:
    assert is_temporary_name(name) is temporary


# ----------------------------------------------------------------------------------------- failures, each named


def test_a_folder_in_the_place_of_a_file_is_named(folder: str) -> None:
    storage.write_bytes(storage.join(folder, "a", "b"), b"")
    with pytest.raises(StorageError, match=r"/a: cannot be (written|opened): "):
        storage.write_bytes(storage.join(folder, "a"), b"x")
    assert storage.list_files(folder, recursive=True) == [storage.join(folder, "a", "b")]


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError, match=r"a/b: cannot be written: (File exists|Not a directory)"):
        storage.write_bytes(str(tmp_path / "a" / "b"), b"x")
    with pytest.raises(StorageError, match=r"/a: cannot be created: File exists"):
        storage.make_folder(str(tmp_path / "a"))


def test_a_missing_file_is_named(folder: str) -> None:
    path = storage.join(folder, "no", "file")
    assert not storage.exists(path)
    for action, attempt in (
        ("opened", storage.open_read),
        ("opened", storage.read_bytes),
        ("opened", storage.file_facts),
        ("examined", storage.file_size),
    ):
        with pytest.raises(StorageError, match=rf"no/file: cannot be {action}: No such file"):
            attempt(path)
    with pytest.raises(StorageError, match=r"no/file: cannot be read: No such file"):
        storage.read_range(path, 0, 1)
    storage.remove(path)
    storage.remove_tree(path)
    assert storage.list_files(path) == []
    assert storage.list_folders(path) == []


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_names_that_no_disk_takes_are_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match=r"cannot be written: (embedded null byte|File name too long)"):
        storage.write_bytes(str(tmp_path / name), b"")


@pytest.mark.parametrize("path", ["nosuch://a/b", "nosuch::memory://a"])
def test_unknown_protocols_are_told(path: str) -> None:
    with pytest.raises(StorageError, match=rf"^{path}: cannot be opened: Protocol not known: nosuch"):
        storage.read_bytes(path)
    with pytest.raises(StorageError, match="Protocol not known: nosuch"), storage.publish(path):
        pass


@contextmanager
def without_privileges() -> Iterator[None]:
    """Runs the block as a user to whom permissions apply."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_denied_permissions_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # relative paths: the folders above are closed to others
    tmp_path.chmod(0o755)
    for name, mode in (("readable", 0o555), ("closed", 0o000)):
        Path(name).mkdir()
        Path(name, "file").write_bytes(b"secret")
        Path(name, "file").chmod(0o000)
        Path(name).chmod(mode)
    attempts: dict[str, Callable[[], object]] = {
        r"readable/new: cannot be written": lambda: storage.write_bytes("readable/new", b""),
        r"readable/deep: cannot be (written|created)": lambda: storage.make_folder("readable/deep"),
        r"readable/file: cannot be opened": lambda: storage.read_bytes("readable/file"),
        r"readable/file: cannot be removed": lambda: storage.remove("readable/file"),
        r"readable/file: cannot be read": lambda: storage.read_range("readable/file", 0, 1),
        r"readable: cannot be removed": lambda: storage.remove_tree("readable"),
        r"closed: cannot be removed": lambda: storage.remove_tree("closed"),
        r"closed/file: cannot be looked up": lambda: storage.exists("closed/file"),
        r"closed/file: cannot be examined": lambda: storage.file_size("closed/file"),
        r"closed: cannot be listed": lambda: storage.list_files("closed"),
        r"closed/deep: cannot be listed": lambda: storage.list_folders("closed/deep"),
        r"^\.: cannot be listed": lambda: storage.list_files(".", recursive=True),
    }
    try:
        for message, attempt in attempts.items():
            with without_privileges(), pytest.raises(StorageError, match=f"{message}: Permission denied"):
                attempt()
    finally:
        for name in ("readable", "closed"):
            Path(name).chmod(0o755)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["closed", "file", "file", "readable"]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    where = tmp_path / "disk"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", where], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield where
    subprocess.run(["umount", where], check=True)


@pytest.mark.parametrize("chunk", [1000, 700_000, 3_000_000])
def test_a_full_disk_is_told_and_nothing_is_left(full_disk: Path, chunk: int) -> None:
    storage.write_bytes(str(full_disk / "small"), b"fits")

    def fill() -> None:
        with storage.publish(str(full_disk / "large")) as publication:
            for _ in range(3_000_000 // chunk):
                publication.write(bytes(chunk))

    says = r"disk/large: cannot be written: No space left on device, 0\.\d MB are free; free some space"
    with pytest.raises(StorageError, match=says):
        fill()
    assert [path.name for path in full_disk.iterdir()] == ["small"]
    storage.write_bytes(str(full_disk / "again"), bytes(500_000))


LIMITED = """
import resource, signal, sys
from gristmill.formats.errors import StorageError
from gristmill.formats.storage import publish
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with publish(sys.argv[1]) as publication:
        for _ in range(300):
            publication.write(bytes(1000))
except StorageError as error:
    print(error)
"""


def test_a_refused_write_is_told_when_it_comes_with_the_last_flush(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path / "file"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"{tmp_path}/file: cannot be written: File too large; raise the limit on the size of")
    assert done.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------- ranges and listings


@pytest.mark.parametrize(("start", "length"), [(0, 10), (3, 4), (9, 1), (0, 0), (10, 0), (500, 0)])
def test_ranges(folder: str, start: int, length: int) -> None:
    path = storage.join(folder, "file")
    storage.write_bytes(path, b"0123456789")
    assert storage.read_range(path, start, length) == b"0123456789"[start : start + length]


@pytest.mark.parametrize(("start", "length", "came"), [(0, 11, 10), (5, 6, 5), (10, 1, 0), (99, 3, 0)])
def test_a_range_beyond_the_end_is_told(folder: str, start: int, length: int, came: int) -> None:
    path = storage.join(folder, "file")
    storage.write_bytes(path, b"0123456789")
    message = rf"file: {came} bytes came where {length} were asked for at byte {start}: cut short\?$"
    with pytest.raises(StorageError, match=message):
        storage.read_range(path, start, length)


def test_listings_are_sorted_and_begin_as_the_folder_was_given(folder: str) -> None:
    names = ["b", "a/2", "a/10", "a/c/d", "Z", "ä", "a.txt"]
    for name in names:
        storage.write_bytes(storage.join(folder, name), b"")
    here = ["Z", "a.txt", "b", "ä"]
    assert storage.list_files(folder) == [storage.join(folder, name) for name in here]
    every = sorted(names)
    assert storage.list_files(folder, recursive=True) == [storage.join(folder, name) for name in every]
    assert storage.list_folders(folder) == ["a"]
    assert storage.list_folders(storage.join(folder, "a")) == ["c"]
    assert storage.list_files(storage.join(folder, "b")) == []
    assert storage.exists(storage.join(folder, "a", "c"))


def test_removing(folder: str) -> None:
    for name in ("a/1", "a/b/2", "ab"):
        storage.write_bytes(storage.join(folder, name), b"")
    storage.remove(storage.join(folder, "a", "1"))
    assert storage.list_files(folder, recursive=True) == [storage.join(folder, name) for name in ("a/b/2", "ab")]
    storage.remove_tree(storage.join(folder, "a"))
    assert storage.list_files(folder, recursive=True) == [storage.join(folder, "ab")]


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").write_bytes(b"")
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "folder").symlink_to(other)
    (tree / "file").symlink_to(other / "kept")
    (tree / "broken").symlink_to(tmp_path / "nowhere")
    assert storage.list_files(str(tree), recursive=True) == [f"{tree}/file"]
    storage.remove_tree(str(tree))
    assert not tree.exists()
    assert (other / "kept").exists()


def test_a_folder_that_is_a_link_is_emptied_and_stays(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "web").mkdir(parents=True)
    (scratch / "web" / "00000.tok").write_bytes(b"")
    (tmp_path / "spill").symlink_to(scratch)
    storage.remove_tree(str(tmp_path / "spill"))
    assert (tmp_path / "spill").is_symlink()
    assert list(scratch.iterdir()) == []
    storage.write_bytes(str(tmp_path / "spill" / "web" / "00001.tok"), b"x")
    assert (scratch / "web" / "00001.tok").read_bytes() == b"x"


def test_making_a_folder_is_no_matter_of_order(folder: str) -> None:
    for _ in range(2):
        storage.make_folder(storage.join(folder, "a", "b"))
    storage.write_bytes(storage.join(folder, "a", "b", "c"), b"")
    assert storage.list_folders(folder) == ["a"]
