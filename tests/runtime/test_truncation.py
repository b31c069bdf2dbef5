"""A file that is cut short while it is in use is an error that names it, on both back-ends; put back, reading goes on.

Where this fails, a map is touched beyond its file, and the signal for that ends the test run.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.errors import FormatError
from gristmill.runtime.backends import Backend
from gristmill.runtime.corpus import open_corpus
from gristmill.runtime.reader import RowReader

BACKENDS = pytest.mark.parametrize("backend", ["mmap", "pread"])


@pytest.fixture(scope="module")
def folder(make_corpus: Any) -> Path:
    corpus = make_corpus(documents={"web": 1500, "code": 600}, weights={"web": 0.7, "code": 0.3}, longest=30)
    make_corpus.index(corpus, samples=1500)
    return Path(corpus)


def reader_of(folder: Path, backend: Backend) -> RowReader:
    index = open_corpus(folder).stream("train").reader.index
    return RowReader(lambda: index, backend=backend)


@BACKENDS
@pytest.mark.parametrize("name", ["tokens/web/web-00001-of-00003.bin", "tokens/web/web-00001-of-00003.idx"])
@pytest.mark.parametrize("kept", [0, 5000], ids=["all", "end"])
def test_a_shard_is_cut_short(folder: Path, backend: Backend, name: str, kept: int) -> None:
    reader = reader_of(folder, backend)
    rows = np.arange(len(reader))
    expected = reader.read(rows)
    path = folder / name
    content = path.read_bytes()
    assert len(content) > kept
    try:
        with path.open("r+b") as file:
            file.truncate(kept)
        for read in (reader.read, reader.read_numpy, reader.read_documents):
            with pytest.raises(FormatError, match=rf"{path.name}: (has|ends at byte) {kept}.* cut short while it"):
                read(rows)
    finally:
        path.write_bytes(content)
    np.testing.assert_array_equal(reader.read(rows), expected)
    reader.close()


@BACKENDS
@pytest.mark.parametrize("name", ["train/web/document_index.npy", "train/dataset_index.npy"])
def test_an_index_is_cut_short(folder: Path, backend: Backend, name: str) -> None:
    reader = reader_of(folder, backend)
    rows = np.arange(len(reader))
    expected = reader.read(rows)
    (path,) = (folder / "indices").glob(f"*/{name}")
    content = path.read_bytes()
    try:
        with path.open("r+b") as file:
            file.truncate(200)
        time.sleep(1.05)  # a map of an index is looked at once a second
        with pytest.raises(FormatError, match=rf"{path.name}: (has|ends at byte) 200.* cut short while it was in use"):
            reader.read(rows)
    finally:
        path.write_bytes(content)
    time.sleep(1.05)
    np.testing.assert_array_equal(reader.read(rows), expected)
    reader.close()


@BACKENDS
def test_a_file_that_is_replaced_is_read_as_it_was(folder: Path, backend: Backend) -> None:
    """What is published is renamed into place, so the file that is open stays whole."""
    reader = reader_of(folder, backend)
    rows = np.arange(len(reader))
    expected = reader.read(rows)
    path = folder / "tokens/code/code-00000-of-00003.bin"
    content = path.read_bytes()
    path.rename(path.with_suffix(".old"))
    try:
        path.write_bytes(b"")
        np.testing.assert_array_equal(reader.read(rows), expected)
    finally:
        path.with_suffix(".old").rename(path)
    assert path.read_bytes() == content
    reader.close()


@BACKENDS
@pytest.mark.parametrize("pointer", [-(2**62), 2**40], ids=["before the file", "behind it"])
def test_an_index_that_points_beyond_its_file_is_named(folder: Path, backend: Backend, pointer: int) -> None:
    path = folder / "tokens/web/web-00001-of-00003.idx"
    content = path.read_bytes()
    (sequences,) = np.frombuffer(content, "<i8", 1, 18)
    begin = 34 + 4 * int(sequences) + 8 * 5  # of the pointer of sequence 5
    path.write_bytes(content[:begin] + np.int64(pointer).tobytes() + content[begin + 8 :])
    reader = reader_of(folder, backend)
    try:
        with pytest.raises(FormatError, match=r"web-00001-of-00003.*: tokens .* the index of the pair is damaged"):
            reader.read(np.arange(len(reader)))
    finally:
        path.write_bytes(content)
        reader.close()
