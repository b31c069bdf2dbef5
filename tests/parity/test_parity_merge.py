"""Merged pairs against what megatron-core's builder makes of the same pairs. Needs the extra `parity`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gristmill.formats.merge import merge_pairs

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # Megatron's own imports warn


@pytest.fixture(scope="module", autouse=True)
def megatron() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'gristmill[parity]'")
    pytest.importorskip("megatron.core", reason="megatron-core is not installed: pip install 'gristmill[parity]'")


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
@pytest.mark.parametrize("sentences", [1, 3])
def test_the_bytes_are_megatrons(tmp_path: Path, write_pair: Callable[..., str], dtype: str, sentences: int) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    random = np.random.default_rng(0)
    prefixes = [
        write_pair(tmp_path / "in" / name, random.integers(0, 30, count), seed=count, dtype=dtype, sentences=sentences)
        for name, count in (("b", 40), ("a", 7), ("c", 1), ("d", 12))
    ]
    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.dtype(dtype).type)
    for prefix in sorted(prefixes):
        builder.add_index(prefix)
    builder.finalize(str(tmp_path / "theirs.idx"))
    merge_pairs([str(tmp_path / "in")], str(tmp_path / "ours"))
    for kind in ("bin", "idx"):
        assert (tmp_path / f"ours.{kind}").read_bytes() == (tmp_path / f"theirs.{kind}").read_bytes(), kind
