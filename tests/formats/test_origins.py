"""Files that say where documents came from: what is written is found again, by small reads, and damage is noticed."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.formats import origins as origins_module
from gristmill.formats.errors import FormatError, StorageError
from gristmill.formats.origins import Extent, OriginFile, origins_path, read_origins, write_origins
from gristmill.formats.storage import file_facts, read_bytes, read_range, write_bytes

SPLITS = st.lists(
    st.lists(st.tuples(st.integers(0, 6), st.lists(st.booleans(), max_size=8)), min_size=1, max_size=4), max_size=5
)
"""Splits of extents, each with the number of its file and, for every record, whether it goes on."""


def write(path: str, splits: list[list[tuple[int, list[bool]]]]) -> list[tuple[int, int, int, int]]:
    """Writes the documents of splits; gives (input, record, split, record within the split) of each."""
    expected = []
    seen: dict[int, int] = {}
    with write_origins(path) as writer:
        for split, parts in enumerate(splits):
            extents, records, start = [], [], 0
            for file, goes_on in parts:
                before = seen.get(file, 0)
                extents.append(Extent(file, start + len(goes_on), before - start))
                for place in np.flatnonzero(goes_on).tolist():
                    records.append(start + place)
                    expected.append((file, before + place, split, start + place))
                seen[file] = before + len(goes_on)
                start += len(goes_on)
            writer.add(split, np.array(records, np.uint32), extents)
    assert writer.facts() == file_facts(path)
    return expected


@given(SPLITS)
def test_every_document_is_found_again(splits: list[list[tuple[int, list[bool]]]]) -> None:
    path = "memory://origins/shard.rec"
    expected = write(path, splits)
    file = OriginFile(path)
    found = [file.place(number) for number in range(len(expected))]
    assert [(one.input, one.record, one.split, one.split_record) for one in found] == expected
    numbers, runs = read_origins(path)
    assert numbers.tolist() == [number for *_, number in expected]
    changes = [place for place, one in enumerate(expected) if not place or one[::2] != expected[place - 1][::2]]
    assert set(changes) <= set(runs["document"].tolist()), "a run has one file and one split"
    for wrong in (-1, len(expected)):
        with pytest.raises(FormatError, match=rf"document {wrong} of {len(expected)}: not the file of this shard"):
            file.place(wrong)


def test_a_place_costs_small_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "shard.rec")
    with write_origins(path) as writer:
        writer.add(0, np.arange(100_000, dtype=np.uint32), [Extent(0, 100_000, 0)])
    read: list[int] = []

    def counted(path: str, start: int, length: int) -> bytes:
        read.append(length)
        return read_range(path, start, length)

    monkeypatch.setattr(origins_module, "read_range", counted)
    file = OriginFile(path)
    assert [file.place(number).record for number in (0, 77_777, 99_999)] == [0, 77_777, 99_999]
    assert read == [24, 24, 4, 4, 4]


def test_a_record_behind_the_last_extent(tmp_path: Path) -> None:
    refused = pytest.raises(FormatError, match=r"shard\.rec: record 5 of split 3, which has 5")
    with refused, write_origins(str(tmp_path / "shard.rec")) as writer:
        writer.add(3, np.array([4, 5], np.uint32), [Extent(0, 5, 0)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda data: data[:20], r"20 bytes are too few; cut short"),
        (lambda data: data[:-1] + b"2", r"ends with b'GMILREC2', not with b'GMILREC1': cut short, or of another"),
        (lambda data: data[4:], r"3 documents in 2 runs do not make 80 bytes; it is damaged"),
        (lambda data: data[:12] + b"\1" + data[13:], r"its runs do not begin at document 0 and go on below 3"),
        (lambda data: data[:36] + b"\3" + data[37:], r"its runs do not begin at document 0 and go on below 3"),
        (lambda data: data[:36] + b"\0" + data[37:], r"its runs do not begin at document 0 and go on below 3"),
    ],
)
def test_damage(tmp_path: Path, cut: object, message: str) -> None:
    path = origins_path(str(tmp_path / "shard"))
    write(path, [[(0, [True])], [(1, [True, True])]])
    write_bytes(path, cut(read_bytes(path)))  # type: ignore[operator]  # a lambda of the list above
    for look in (read_origins, lambda path: OriginFile(path).place(0)):
        with pytest.raises(FormatError, match=message):
            look(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"shard\.rec: cannot be"):
        OriginFile(str(tmp_path / "shard.rec")).place(0)
