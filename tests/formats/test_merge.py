"""Many pairs made one: the bytes that one writer would have written, whatever the number of parts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats import merge
from gristmill.formats.errors import FormatError, InputError, SettingsError
from gristmill.formats.indexed import IndexedDataset
from gristmill.formats.merge import merge_pairs

WritePair = Callable[..., str]
ByHand = Callable[..., tuple[bytes, bytes]]


def write(folder: Path, name: str, pair: tuple[bytes, bytes]) -> None:
    (folder / f"{name}.idx").write_bytes(pair[0])
    (folder / f"{name}.bin").write_bytes(pair[1])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.lists(st.lists(st.integers(0, 200), max_size=4), max_size=3), max_size=4), min_size=1, max_size=4
    ),
    st.sampled_from([1, 4, 8]),
    st.sampled_from([1, 3, 1 << 20]),
)
def test_the_parts_joined_are_one_pair_written_at_once(
    by_hand: ByHand,
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[list[list[list[int]]]],
    code: int,
    block: int,
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    for number, documents in enumerate(parts):
        write(folder, f"part{number}", by_hand(documents, code))
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "_BLOCK_TOKENS", block)
        facts = merge_pairs([str(folder)], str(folder / "out" / "whole"), said.append)
    joined = [document for documents in parts for document in documents]
    expected = by_hand(joined, code)
    assert (folder / "out" / "whole.idx").read_bytes() == expected[0]
    assert (folder / "out" / "whole.bin").read_bytes() == expected[1]
    sequences = [sequence for document in joined for sequence in document]
    assert (facts.tokens, facts.sequences, facts.documents) == (sum(map(len, sequences)), len(sequences), len(joined))
    assert len(said) == len(parts)


def test_the_order_is_that_of_the_names(tmp_path: Path, write_pair: WritePair) -> None:
    for name, seed in (("b", 1), ("a", 2), ("c", 3)):
        write_pair(tmp_path / "in" / name, [3, 4], seed=seed)
    first = merge_pairs([str(tmp_path / "in" / name) for name in "bca"], str(tmp_path / "x"))
    second = merge_pairs([str(tmp_path / "in")], str(tmp_path / "y"))
    assert first == second
    pair = IndexedDataset(str(tmp_path / "x"))
    np.testing.assert_array_equal(pair.read(0, 7), IndexedDataset(str(tmp_path / "in" / "a")).read(0, 7))


@pytest.mark.parametrize(
    ("paths", "output", "error", "message"),
    [
        (["a", "wide"], "out", FormatError, "wide: holds int32 tokens, but .*a holds uint16; only pairs of one dtype"),
        (["a", "a"], "out", SettingsError, "a: named twice"),
        (["a"], "b", SettingsError, r"b\.bin: is there already; remove it, or name another output"),
        (["none"], "out", InputError, "none: neither this folder nor"),
        (["cut"], "out", FormatError, r"cut\.bin: has 12 bytes, but .*cut\.idx ends at byte 14"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, write_pair: WritePair, paths: list[str], output: str, error: type[Exception], message: str
) -> None:
    for name in ("a", "b", "cut"):
        write_pair(tmp_path / name, [3, 4])
    write_pair(tmp_path / "wide", [3, 4], dtype="int32")
    (tmp_path / "cut.bin").write_bytes((tmp_path / "cut.bin").read_bytes()[:-2])
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(error, match=message):
        merge_pairs([str(tmp_path / path) for path in paths], str(tmp_path / output))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_merge_that_dies_leaves_nothing(
    tmp_path: Path, write_pair: WritePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        write_pair(tmp_path / name, [3, 4])

    def stop(text: str) -> None:
        if text.startswith("2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_pairs([str(tmp_path)], str(tmp_path / "out" / "whole"), stop)
    assert list((tmp_path / "out").iterdir()) == []
