"""Opening a stream looks at the ends of its index arrays, whatever their size, and at nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.runtime.corpus import open_corpus


def touched_bytes(folder: str) -> int:
    """How much of the files below a folder this process has in its address space, by the kernel's own account."""
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        pytest.skip("the system does not say which parts of a map were touched")
    total, inside = 0, False
    for line in lines:
        first, _, rest = line.partition(" ")
        if not first.endswith(":"):  # "7f… r--s 00000000 fe:00 1234   /path"
            inside = folder in rest
        elif inside and first == "Rss:":
            total += int(rest.split()[0]) << 10
    return total


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_opening_reads_no_array(make_corpus: Any, backend: Any) -> None:
    folder = make_corpus(weights={"web": 0.6, "code": 0.4})
    make_corpus.index(folder, samples=3_000_000)
    arrays = sorted(Path(folder).glob("indices/*/train/**/*.npy"))
    assert len(arrays) == 8
    total = sum(path.stat().st_size for path in arrays)
    assert total > 70_000_000
    stream = open_corpus(folder).stream("train", backend=backend)
    tokens = stream.read(np.array([0, 1_500_000, 2_999_999]))
    assert 0 < touched_bytes(f"{folder}/indices") < total // 3, "the kernel maps up to 2 MiB around a place touched"
    assert sum(int(array.sum()) for array in stream.reader.index.arrays) > 0
    assert touched_bytes(f"{folder}/indices") > total * 2 // 3, "reading all of them is noticed"
    assert tokens.shape == (3, 17)
    stream.close()
