"""Streams go to other processes as paths and keys: a few kilobytes, however large the corpus is."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.runtime.corpus import open_corpus
from gristmill.runtime.megatron import open_megatron
from gristmill.runtime.source import StreamSource
from gristmill.runtime.streams import MegatronStream

MOST_BYTES = 4096


def open_prepared(folder: str, tmp_path: Path) -> MegatronStream:
    return open_corpus(folder).stream("train")


def open_adopted(folder: str, tmp_path: Path) -> MegatronStream:
    return open_megatron(
        ";".join(f"{folder}/tokens/{name},1" for name in ("code", "web")),
        sequence_length=16,
        eod_id=1,
        samples=100,
        cache_dir=tmp_path / "cache",
    )


@pytest.mark.parametrize("how", [open_prepared, open_adopted])
def test_a_pickle_does_not_grow_with_the_corpus(make_corpus: Any, tmp_path: Path, how: Any) -> None:
    sizes = []
    for documents, samples in ((60, 100), (6000, 30_000)):
        folder = make_corpus(documents={"web": documents, "code": documents}, weights={"web": 0.5, "code": 0.5})
        make_corpus.index(folder, samples=samples)
        stream = how(folder, tmp_path / str(documents))
        stream.read(np.arange(50))  # what is open stays behind
        for thing in (stream, StreamSource(stream)):
            data = pickle.dumps(thing)
            assert len(data) < MOST_BYTES
            assert b"numpy" not in data, "no array is in it"
        sizes.append(len(pickle.dumps(stream)))
        again = pickle.loads(pickle.dumps(stream))
        np.testing.assert_array_equal(again.read([3, 1]), stream.read([3, 1]))
        assert again.fingerprint == stream.fingerprint
        stream.close()
    assert abs(sizes[1] - sizes[0]) < 200


def test_a_pickle_opens_in_another_process_and_folder(blended_corpus: str, tmp_path: Path) -> None:
    stream = open_corpus(blended_corpus).stream("train")
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).read([5, 7]).sum())"
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(stream), cwd=tmp_path, capture_output=True, check=True
    )
    assert int(done.stdout) == int(stream.read([5, 7]).sum())
