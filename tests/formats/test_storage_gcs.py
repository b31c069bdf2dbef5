"""Storage on Google Cloud Storage, against a real server: what a body that raises or a killed process leaves there."""

import gc
import hashlib
import importlib
import os
import signal
import subprocess
import sys
import uuid

import numpy as np
import pytest

from gristmill.formats import storage
from gristmill.formats.errors import StorageError
from gristmill.formats.indexed import IndexedDataset
from gristmill.formats.indexed_writer import write_indexed

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
"""gcsfs hands blocks of some megabytes to aiohttp, which warns of any above one."""

SIZES = [0, 10, 300_000, 5 << 20, 11_000_000]
"""Below, at and above what gcsfs uploads at once (256 KiB) and in one block (5 MiB)."""


@pytest.fixture
def folder(bucket: str) -> str:
    return f"{bucket}/{uuid.uuid4().hex}"


def letters(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_a_published_object_reads_back(folder: str, size: int) -> None:
    path = storage.join(folder, "deep", "object")
    data = letters(size)
    with storage.publish(path) as publication:
        for start in range(0, size, 4_000_000):
            publication.write(data[start : start + 4_000_000])
        assert storage.list_files(folder, recursive=True) == []
    assert publication.facts() == storage.FileFacts(size, hashlib.sha256(data).hexdigest())
    assert storage.file_facts(path) == publication.facts()
    assert storage.file_size(path) == size
    assert storage.read_bytes(path) == data
    assert storage.read_range(path, size // 3, size // 2) == data[size // 3 : size // 3 + size // 2]


@pytest.mark.parametrize("size", SIZES)
def test_a_body_that_raises_publishes_nothing(folder: str, size: int) -> None:
    path = storage.join(folder, "object")
    with pytest.raises(KeyError), storage.publish(path) as publication:  # noqa: PT012
        publication.write(letters(size))
        raise KeyError
    gc.collect()
    assert storage.list_files(folder, recursive=True) == []
    assert not storage.exists(path)


def test_a_body_that_raises_leaves_the_former_object(folder: str) -> None:
    path = storage.join(folder, "object")
    storage.write_bytes(path, b"former")
    with pytest.raises(KeyError), storage.publish(path) as publication:  # noqa: PT012
        publication.write(letters(6_000_000))
        raise KeyError
    gc.collect()
    assert storage.read_bytes(path) == b"former"


@pytest.mark.parametrize("size", SIZES)
def test_a_dropped_upload_is_not_begun_again(folder: str, size: int) -> None:
    """A file of gcsfs that is collected while it counts as open would start another upload."""
    with pytest.raises(KeyError), storage.publish(storage.join(folder, "object")) as publication:  # noqa: PT012
        publication.write(letters(size))
        raise KeyError
    assert publication._raw.closed


def test_two_writers_of_one_name_do_not_disturb_each_other(folder: str) -> None:
    path = storage.join(folder, "object")
    first, second = storage.publish(path), storage.publish(path)
    one, other = first.__enter__(), second.__enter__()
    for _ in range(3):
        one.write(b"1" * 2_000_000)
        other.write(b"2" * 2_000_000)
    second.__exit__(None, None, None)
    assert storage.read_bytes(path) == b"2" * 6_000_000
    first.__exit__(None, None, None)
    assert storage.read_bytes(path) == b"1" * 6_000_000


KILLED = """
import sys
import fsspec.config
fsspec.config.conf["gs"] = {"token": "anon"}
from gristmill.formats.storage import publish
with publish(sys.argv[1]) as publication:
    publication.write(b"x" * 12_000_000)
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_a_killed_writer_leaves_no_object(folder: str) -> None:
    path = storage.join(folder, "object")
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        os.kill(writer.pid, signal.SIGKILL)
    assert storage.list_files(folder, recursive=True) == []
    storage.write_bytes(path, b"whole")
    assert storage.read_bytes(path) == b"whole"


def test_listings_are_sorted_and_begin_as_the_folder_was_given(folder: str) -> None:
    names = ["b", "a/2", "a/10", "a/c/d", "Z", "a.txt"]
    for name in names:
        storage.write_bytes(storage.join(folder, name), name.encode())
    assert storage.list_files(folder) == [storage.join(folder, name) for name in ("Z", "a.txt", "b")]
    assert storage.list_files(folder + "/", recursive=True) == [storage.join(folder, name) for name in sorted(names)]
    assert storage.list_folders(folder) == ["a"]
    assert storage.list_folders(storage.join(folder, "a")) == ["c"]
    assert storage.exists(storage.join(folder, "a"))
    assert not storage.exists(storage.join(folder, "a", "1"))
    storage.remove(storage.join(folder, "b"))
    storage.remove_tree(storage.join(folder, "a"))
    storage.remove_tree(storage.join(folder, "a"))
    assert storage.list_files(folder, recursive=True) == [storage.join(folder, name) for name in ("Z", "a.txt")]


def test_what_another_process_wrote_is_seen(folder: str) -> None:
    """gcsfs keeps listings for ever; a second instance stands for the other process."""
    storage.write_bytes(storage.join(folder, "a"), b"1")
    assert storage.list_files(folder) == [storage.join(folder, "a")]
    other = importlib.import_module("gcsfs.core").GCSFileSystem(token="anon", skip_instance_cache=True)
    other.pipe_file(storage.join(folder, "a"), b"longer")
    other.pipe_file(storage.join(folder, "b"), b"2")
    assert storage.file_size(storage.join(folder, "a")) == 6
    assert storage.exists(storage.join(folder, "b"))
    assert len(storage.list_files(folder)) == 2
    assert storage.read_bytes(storage.join(folder, "a")) == b"longer"


def test_failures_name_the_object(folder: str, bucket: str) -> None:
    path = storage.join(folder, "object")
    storage.write_bytes(path, b"0123456789")
    missing = storage.join(folder, "no")
    with pytest.raises(StorageError, match=f"^{missing}: cannot be opened: No such file, folder or bucket$"):
        storage.read_bytes(missing)
    with pytest.raises(StorageError, match=f"^{missing}: cannot be examined: No such file, folder or bucket$"):
        storage.file_size(missing)
    with pytest.raises(StorageError, match=f"^{missing}: cannot be read: No such file, folder or bucket$"):
        storage.read_range(missing, 0, 1)
    with pytest.raises(StorageError, match="object: 7 bytes came where 8 were asked for at byte 3: cut short"):
        storage.read_range(path, 3, 8)
    with pytest.raises(StorageError, match="object: cannot be read: HttpError: 416"):
        storage.read_range(path, 10, 1)
    assert storage.read_range(path, 10, 0) == b""
    with pytest.raises(
        StorageError, match=r"^gs://no-such-bucket/a: cannot be written: No such file, folder or bucket$"
    ):
        storage.write_bytes("gs://no-such-bucket/a", b"")
    assert storage.list_files("gs://no-such-bucket/a") == []
    assert storage.list_folders("gs://no-such-bucket") == []
    storage.remove(missing)


def test_a_pair_is_written_to_and_read_from_a_bucket(folder: str) -> None:
    prefix = storage.join(folder, "tokens", "pair")
    with write_indexed(prefix, np.dtype("uint16")) as writer:
        writer.add(np.arange(200_000) % 50_000, np.full(1000, 200))
        assert storage.list_files(folder, recursive=True) == []
    pair = IndexedDataset(prefix)
    assert (len(pair), pair.num_documents, pair.num_tokens, pair.mapped_tokens) == (1000, 1000, 200_000, None)
    assert np.array_equal(pair.get(7), np.arange(1400, 1600))
    assert np.array_equal(pair.read(199_990, 10), np.arange(199_990, 200_000) % 50_000)
    part = pair.get(3, 10, 5)
    part[:] = 0  # a copy of one's own, as from a local pair
    assert pair.get(3, 10, 0).tolist() == []
    assert writer.facts is not None
    assert storage.file_facts(f"{prefix}.bin") == writer.facts.bin
    assert storage.file_facts(f"{prefix}.idx") == writer.facts.idx
    pair.close()


def test_a_pair_is_not_published_when_the_body_raises(folder: str) -> None:
    with pytest.raises(KeyError), write_indexed(storage.join(folder, "pair"), np.dtype("int32")) as writer:  # noqa: PT012
        writer.add(np.arange(2_000_000), np.full(1000, 2000))
        raise KeyError
    gc.collect()
    assert storage.list_files(folder, recursive=True) == []
