"""Reading `.bin/.idx` pairs: everybody's variants, every kind of damage, any size, any process."""

import os
import pickle
import re
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats import storage
from gristmill.formats.errors import FormatError, StorageError
from gristmill.formats.indexed import (
    DTYPE_CODES,
    HEADER_BYTES,
    IndexedDataset,
    bin_path,
    idx_path,
    pack_header,
)

ByHand = Callable[..., tuple[bytes, bytes]]
Documents = list[list[list[int]]]
THREE: Documents = [[[1, 2, 3], [4, 5]], [], [[9]]]
GIB = 1 << 30

sequences_of = st.lists(st.lists(st.integers(0, 127), max_size=6), max_size=4)
documents_of = st.lists(sequences_of, max_size=5)


def put(folder: Path, idx: bytes, bin_: bytes, name: str = "pair") -> str:
    """Writes a pair and returns its prefix."""
    (folder / f"{name}.idx").write_bytes(idx)
    (folder / f"{name}.bin").write_bytes(bin_)
    return str(folder / name)


def content(pair: IndexedDataset) -> Documents:
    bounds = pair.document_indices
    return [
        [pair.get(sequence).tolist() for sequence in range(int(bounds[place]), int(bounds[place + 1]))]
        for place in range(pair.num_documents)
    ]


# -------------------------------------------------------------------------------------------------- what is read


def test_the_parts_of_a_pair(by_hand: ByHand, tmp_path: Path) -> None:
    prefix = put(tmp_path, *by_hand(THREE))
    pair = IndexedDataset(prefix)
    assert pair.prefix == prefix
    assert (len(pair), pair.num_sequences, pair.num_documents, pair.num_tokens) == (3, 3, 3, 6)
    assert pair.dtype == np.uint16
    assert pair.lengths.tolist() == [3, 2, 1]
    assert pair.lengths.dtype == np.int32
    assert pair.pointers.tolist() == [0, 6, 10]
    assert pair.pointers.dtype == np.int64
    assert pair.document_indices.tolist() == [0, 2, 2, 3]
    assert pair.document_indices.dtype == np.int64
    assert repr(pair) == f"IndexedDataset({prefix!r}, uint16, sequences=3, tokens=6)"
    assert (bin_path(prefix), idx_path(prefix)) == (f"{prefix}.bin", f"{prefix}.idx")
    assert content(pair) == THREE
    for view in (pair.lengths, pair.pointers, pair.document_indices, pair.mapped_tokens):
        assert view is not None
        assert not view.flags.writeable


@settings(max_examples=60, deadline=None)
@given(documents=documents_of, code=st.sampled_from(sorted(DTYPE_CODES)))
def test_any_documents_in_any_dtype_read_back(by_hand: ByHand, documents: Documents, code: int) -> None:
    idx, bin_ = by_hand(documents, code)
    storage.write_bytes("memory://any/pair.idx", idx)
    storage.write_bytes("memory://any/pair.bin", bin_)
    pair = IndexedDataset("memory://any/pair")
    assert pair.dtype == DTYPE_CODES[code]
    assert content(pair) == documents
    assert pair.read(0, pair.num_tokens).tolist() == [token for each in documents for one in each for token in one]


@pytest.mark.parametrize("where", ["local", "memory"])
def test_parts_of_sequences_and_ranges_across_them(by_hand: ByHand, tmp_path: Path, where: str) -> None:
    folder = str(tmp_path) if where == "local" else f"memory://{tmp_path.name}"
    for name, data in zip(("pair.idx", "pair.bin"), by_hand(THREE), strict=True):
        storage.write_bytes(storage.join(folder, name), data)
    pair = IndexedDataset(storage.join(folder, "pair"))
    assert pair.get(0, 1).tolist() == [2, 3]
    assert pair.get(0, 1, 1).tolist() == [2]
    assert pair.get(0, 3).tolist() == []
    assert pair.get(np.int64(2)).tolist() == [9]  # type: ignore[arg-type]  # NumPy's integers serve as indices
    assert pair.read(2, 3).tolist() == [3, 4, 5]
    assert pair.read(6, 0).tolist() == []
    for tokens in (pair.get(1), pair.read(0, 6)):
        tokens[:] = 0  # a copy of the caller's own
    assert pair.get(1).tolist() == [4, 5]
    assert (pair.mapped_tokens is None) == (where == "memory")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pair: pair.get(3), "sequence 3 does not exist; there are 3"),
        (lambda pair: pair.get(-1), "sequence -1 does not exist; there are 3"),
        (lambda pair: pair.get(0, 4), "sequence 0 has 3 tokens, none at 4 to 3"),
        (lambda pair: pair.get(0, 1, 3), "sequence 0 has 3 tokens, none at 1 to 4"),
        (lambda pair: pair.get(0, -1, 1), "sequence 0 has 3 tokens, none at -1 to 0"),
        (lambda pair: pair.get(0, 2, -1), "sequence 0 has 3 tokens, none at 2 to 1"),
        (lambda pair: pair.read(4, 3), "tokens 4 to 7 do not exist; there are 6"),
        (lambda pair: pair.read(-1, 1), "tokens -1 to 0 do not exist; there are 6"),
        (lambda pair: pair.read(3, -1), "tokens 3 to 2 do not exist; there are 6"),
    ],
)
def test_what_does_not_exist_is_refused(
    by_hand: ByHand, tmp_path: Path, call: Callable[[IndexedDataset], object], message: str
) -> None:
    pair = IndexedDataset(put(tmp_path, *by_hand(THREE)))
    with pytest.raises(IndexError, match=rf"^{re.escape(pair.prefix)}: {re.escape(message)}$"):
        call(pair)


# ------------------------------------------------------------------------------------------- pairs made by others


def count_documents(idx: bytes) -> bytes:
    """The other convention: the header's field holds the number of documents, while one entry more follows."""
    entries = struct.unpack_from("<Q", idx, 26)[0]
    return idx[:26] + struct.pack("<Q", entries - 1) + idx[34:]


@pytest.mark.parametrize("check", ["full", "ends"])
@pytest.mark.parametrize(
    "documents",
    [THREE, [], [[]], [[[1]]], [[[]], [[], [1]]], [[[place]] for place in range(8)], [[[1]] * 8, []]],
    ids=str,
)
def test_both_conventions_of_counting_documents(
    by_hand: ByHand, tmp_path: Path, documents: Documents, check: str
) -> None:
    idx, bin_ = by_hand(documents)
    for name, variant in (("one", idx), ("other", count_documents(idx))):
        pair = IndexedDataset(put(tmp_path, variant, bin_, name), check="full" if check == "full" else "ends")
        assert pair.num_documents == len(documents)
        assert content(pair) == documents


def test_a_pair_made_by_others(shared_data: Path) -> None:
    pair = IndexedDataset(str(shared_data / "openwebtext_text_document"))
    assert (pair.num_documents, len(pair), pair.num_tokens) == (1000, 1000, 1_361_845)
    assert pair.dtype == np.uint16
    lasts = [pair.get(document, int(length) - 1).tolist() for document, length in enumerate(pair.lengths)]
    assert lasts == [[4999]] * 1000
    assert int(np.count_nonzero(pair.read(0, pair.num_tokens) == 4999)) == 1000


# --------------------------------------------------------------------------------------------------------- damage


def change(offset: int, form: str, value: object) -> Callable[[bytes, bytes], tuple[bytes, bytes]]:
    """Damage: a field of the index gets another value."""
    packed = struct.pack(f"<{form}", value)
    return lambda idx, bin_: (idx[:offset] + packed + idx[offset + len(packed) :], bin_)


LENGTHS, POINTERS, BOUNDS = 34, 34 + 12, 34 + 36
DAMAGE: dict[str, tuple[Callable[[bytes, bytes], tuple[bytes, bytes]], str]] = {
    "empty index": (lambda idx, bin_: (b"", bin_), r"pair\.idx: 0 bytes are fewer than the header's 34: cut short"),
    "cut header": (lambda idx, bin_: (idx[:33], bin_), r"pair\.idx: 33 bytes are fewer than the header's 34"),
    "header alone": (
        lambda idx, bin_: (idx[:34], bin_),
        r"pair\.idx: 34 bytes, but 3 sequences and 3 documents need 102",
    ),
    "other format": (
        lambda idx, bin_: (b"TNTIDX\0\0\0" + idx[9:], bin_),
        r"pair\.idx: starts with b'TNTIDX\\x00\\x00\\x00', not b'MMIDIDX\\x00\\x00': no indexed dataset",
    ),
    "version 2": (change(9, "Q", 2), r"pair\.idx: version 2 of the indexed dataset format; only 1 can be read"),
    "big-endian": (change(9, "Q", 1 << 56), r"pair\.idx: version 72057594037927936 of"),
    "code 0": (change(17, "B", 0), r"pair\.idx: unknown dtype code 0; known are \[1, 2, 3, 4, 5, 8\]"),
    "code 9": (change(17, "B", 9), r"pair\.idx: unknown dtype code 9;"),
    "float64": (change(17, "B", 6), r"pair\.idx: holds float64 values \(code 6\); tokens must be integers"),
    "float32": (change(17, "B", 7), r"pair\.idx: holds float32 values \(code 7\); tokens must be integers"),
    "narrower dtype": (change(17, "B", 1), r"pair\.bin: has 12 bytes, but \S+pair\.idx ends at byte 11;"),
    "wider dtype": (change(17, "B", 4), r"pair\.bin: has 12 bytes, but \S+pair\.idx ends at byte 14;"),
    "more sequences": (
        change(18, "Q", 4),
        r"pair\.idx: 102 bytes, but 4 sequences and 3 documents need 114: cut short",
    ),
    "fewer sequences": (
        change(18, "Q", 2),
        r"pair\.idx: 12 bytes follow the document index; the rule is none: damaged",
    ),
    "sequences beyond reason": (change(18, "Q", 2**64 - 1), r"18446744073709551615 sequences and 3 documents need \d+"),
    "more documents": (
        change(26, "Q", 5),
        r"pair\.idx: 102 bytes, but 3 sequences and 4 documents need 110: cut short",
    ),
    "fewer documents": (change(26, "Q", 2), r"pair\.idx: 16 bytes follow the document index"),
    "no entry": (
        lambda idx, bin_: (idx[:26] + bytes(8) + idx[34:BOUNDS], bin_),
        r"pair\.idx: the document index has no entry; even an empty file has one, 0",
    ),
    "cut by one byte": (lambda idx, bin_: (idx[:-1], bin_), r"pair\.idx: 101 bytes, but .* need 102: cut short"),
    "one byte more": (lambda idx, bin_: (idx + b"\0", bin_), r"pair\.idx: 1 bytes follow the document index"),
    "multimodal": (
        lambda idx, bin_: (idx + b"\0\1\0", bin_),
        r"pair\.idx: carries a mode per sequence, so it is multimodal data; only text can be read",
    ),
    "multimodal of the other convention": (
        lambda idx, bin_: (count_documents(idx) + b"\0\0\0", bin_),
        r"pair\.idx: carries a mode per sequence",
    ),
    "negative length": (
        lambda idx, bin_: change(LENGTHS + 4, "i", -2)(*change(LENGTHS, "i", 7)(idx, bin_)),
        r"pair\.idx: sequence 1 has a negative length \(value -2\); the file is damaged",
    ),
    "longer first": (
        change(LENGTHS, "i", 4),
        r"pair\.idx: sequence 1 has a pointer that is not the sum of the lengths before it \(value 6\); the file is",
    ),
    "longer last": (
        change(LENGTHS + 8, "i", 2),
        r"pair\.bin: has 12 bytes, but \S+pair\.idx ends at byte 14; the two do",
    ),
    "pointer of the first": (change(POINTERS, "q", 2), r"sequence 0 has a pointer that is not the sum .* \(value 2\)"),
    "pointer in the middle": (change(POINTERS + 8, "q", 8), r"sequence 1 has a pointer .* \(value 8\)"),
    "negative pointer": (change(POINTERS + 8, "q", -6), r"sequence 1 has a pointer .* \(value -6\)"),
    "pointer of the last": (
        change(POINTERS + 16, "q", 12),
        r"pair\.bin: has 12 bytes, but \S+pair\.idx ends at byte 14",
    ),
    "first document": (
        change(BOUNDS, "q", 1),
        r"pair\.idx: document index runs from 1 to 3; the rule is 0 to the number of sequences, 3",
    ),
    "last document": (change(BOUNDS + 24, "q", 2), r"pair\.idx: document index runs from 0 to 2; the rule is 0 to"),
    "falling documents": (
        change(BOUNDS + 8, "q", 3),
        r"pair\.idx: document 1 ends before it starts \(value 2\); the file is damaged",
    ),
    "empty tokens": (lambda idx, bin_: (idx, b""), r"pair\.bin: has 0 bytes, but \S+pair\.idx ends at byte 12;"),
    "half a token": (lambda idx, bin_: (idx, bin_[:-1]), r"pair\.bin: 11 bytes are no whole number of uint16 tokens"),
    "a token short": (
        lambda idx, bin_: (idx, bin_[:-2]),
        r"pair\.bin: has 10 bytes, but \S+ ends at byte 12; .* cut short",
    ),
    "a token more": (
        lambda idx, bin_: (idx, bin_ + b"\0\0"),
        r"pair\.bin: has 14 bytes, but \S+pair\.idx ends at byte 12",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_and_named(
    by_hand: ByHand, tmp_path: Path, damage: Callable[[bytes, bytes], tuple[bytes, bytes]], message: str
) -> None:
    prefix = put(tmp_path, *damage(*by_hand(THREE)))
    with pytest.raises(FormatError, match=message) as caught:
        IndexedDataset(prefix)
    assert str(caught.value).startswith(prefix)


@settings(max_examples=150, deadline=None)
@given(documents=documents_of, data=st.data())
def test_a_damaged_index_is_refused_or_reads_without_harm(
    by_hand: ByHand, documents: Documents, data: st.DataObject
) -> None:
    """Any one byte changed: either it is found, or (a dtype of the same size) the tokens are as many as before."""
    idx, bin_ = by_hand(documents)
    place = data.draw(st.integers(0, len(idx) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != idx[place]))
    storage.write_bytes("memory://any/damaged.idx", idx[:place] + bytes([value]) + idx[place + 1 :])
    storage.write_bytes("memory://any/damaged.bin", bin_)
    try:
        pair = IndexedDataset("memory://any/damaged")
    except FormatError:
        return
    assert pair.num_tokens * pair.dtype.itemsize == len(bin_)
    assert [len(pair.get(sequence)) for sequence in range(len(pair))] == pair.lengths.tolist()
    # what a change can pass for: another dtype, documents counted the other way, or a boundary moved between neighbours
    assert place in {17, 26} or place >= HEADER_BYTES + 12 * len(pair)


def test_modes_of_eight_sequences_are_not_taken_for_a_document(by_hand: ByHand, tmp_path: Path) -> None:
    idx, bin_ = by_hand([[[place]] for place in range(8)])
    with pytest.raises(FormatError, match="carries a mode per sequence"):
        IndexedDataset(put(tmp_path, idx + bytes(8), bin_))


@pytest.mark.parametrize(("name", "what"), [("idx", "index"), ("bin", "token")])
def test_a_missing_file_is_named(by_hand: ByHand, tmp_path: Path, name: str, what: str) -> None:
    prefix = put(tmp_path, *by_hand(THREE))
    Path(f"{prefix}.{name}").unlink()
    message = rf"pair\.{name}: {what} file not found; a prefix names both \S+pair\.bin and \S+pair\.idx"
    with pytest.raises(FormatError, match=message):
        IndexedDataset(prefix)


@pytest.mark.parametrize("name", ["idx", "bin"])
def test_a_folder_in_the_place_of_a_file_is_named(by_hand: ByHand, tmp_path: Path, name: str) -> None:
    prefix = put(tmp_path, *by_hand([]))
    Path(f"{prefix}.{name}").unlink()
    Path(f"{prefix}.{name}").mkdir()
    with pytest.raises((FormatError, StorageError), match=rf"pair\.{name}: "):
        IndexedDataset(prefix)


OPEN_ALL = """
import sys
from gristmill.formats.indexed import IndexedDataset
for number in range(int(sys.argv[2])):
    try:
        print(IndexedDataset(sys.argv[1] + "/" + str(number)))
    except Exception as error:
        print(type(error).__name__)
"""


def test_checks_do_not_depend_on_assertions(by_hand: ByHand, tmp_path: Path) -> None:
    """Under `python -O` the same damage is found."""
    idx, bin_ = by_hand(THREE)
    for number, (damage, _) in enumerate(DAMAGE.values()):
        put(tmp_path, *damage(idx, bin_), str(number))
    done = subprocess.run(
        [sys.executable, "-O", "-c", OPEN_ALL, tmp_path, str(len(DAMAGE))], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["FormatError"] * len(DAMAGE)


# -------------------------------------------------------------------------------------------- size, life, processes


def rss_of(path: str) -> int:
    """Resident kilobytes of this process's maps of a file."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(path)
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def many(sequences: int) -> bytes:
    """An index of one-token documents."""
    header = pack_header(np.dtype("uint16"), sequences, sequences)
    numbers = np.arange(sequences + 1, dtype="<i8")
    return header + np.ones(sequences, "<i4").tobytes() + (numbers[:-1] * 2).tobytes() + numbers.tobytes()


def test_opening_reads_no_token_and_with_ends_only_the_ends_of_the_index(tmp_path: Path) -> None:
    prefix = put(tmp_path, many(2_200_000), bytes(4_400_000))
    full = IndexedDataset(prefix)
    assert rss_of(f"{prefix}.bin") == 0
    assert rss_of(f"{prefix}.idx") > 39_000
    full.close()
    ends = IndexedDataset(prefix, check="ends")
    assert rss_of(f"{prefix}.bin") == 0
    assert rss_of(f"{prefix}.idx") < 13_000  # the kernel maps up to 2 MiB around each place that is looked at
    assert ends.get(2_199_999).tolist() == [0]
    assert rss_of(f"{prefix}.bin") > 0


def test_ends_finds_what_can_be_seen_there_and_full_the_rest(by_hand: ByHand, tmp_path: Path) -> None:
    idx, bin_ = by_hand(THREE)
    for name in ("pointer in the middle", "falling documents"):
        prefix = put(tmp_path, *DAMAGE[name][0](idx, bin_))
        assert len(IndexedDataset(prefix, check="ends")) == 3
        with pytest.raises(FormatError, match=DAMAGE[name][1]):
            IndexedDataset(prefix)
    for name in ("last document", "a token short", "pointer of the last", "cut by one byte"):
        with pytest.raises(FormatError, match=DAMAGE[name][1]):
            IndexedDataset(put(tmp_path, *DAMAGE[name][0](idx, bin_)), check="ends")


def sparse(folder: Path, dtype: str, lengths: list[int]) -> str:
    """A pair whose `.bin` is a hole: only its size is there."""
    item = np.dtype(dtype).itemsize
    starts = np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64) * item)])
    idx = pack_header(np.dtype(dtype), len(lengths), len(lengths)) + np.array(lengths, "<i4").tobytes()
    idx += starts[:-1].astype("<i8").tobytes() + np.arange(len(lengths) + 1, dtype="<i8").tobytes()
    prefix = put(folder, idx, b"")
    os.truncate(f"{prefix}.bin", int(starts[-1]))
    return prefix


@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint8"])
def test_tokens_at_and_across_two_and_four_gib(tmp_path: Path, dtype: str) -> None:
    item = np.dtype(dtype).itemsize
    half = (GIB - 8) // item  # sequences end 8, 16, ... bytes before each GiB: none of the marks is a boundary
    prefix = sparse(tmp_path, dtype, [half] * 5 + [64])
    marks = [2 * GIB, 4 * GIB]
    with Path(f"{prefix}.bin").open("r+b") as file:
        for number, mark in enumerate(marks):
            file.seek(mark - 2 * item)
            file.write(np.arange(10 * number + 1, 10 * number + 5, dtype=dtype).tobytes())
    pair = IndexedDataset(prefix)
    assert int(pair.pointers[-1]) == 5 * half * item > 2**32
    for number, mark in enumerate(marks):
        expected = np.arange(10 * number + 1, 10 * number + 5)
        assert np.array_equal(pair.read(mark // item - 2, 4), expected)
        sequence = int(np.searchsorted(pair.pointers, mark, side="right")) - 1
        offset = (mark - int(pair.pointers[sequence])) // item - 2
        assert np.array_equal(pair.get(sequence, offset, 4), expected)
    assert pair.get(5).tolist() == [0] * 64
    assert pair.num_tokens == 5 * half + 64


def test_a_token_file_of_a_terabyte_opens_at_once(tmp_path: Path) -> None:
    try:
        prefix = sparse(tmp_path, "int64", [2**31 - 1] * 64)
    except OSError as error:
        pytest.skip(f"no file of this size can be made here: {error}")
    start = time.monotonic()
    pair = IndexedDataset(prefix)
    assert time.monotonic() - start < 1
    assert pair.num_tokens == 64 * (2**31 - 1)
    assert pair.get(63, 2**31 - 3).tolist() == [0, 0]
    assert len(pickle.dumps(pair)) < 1000


def test_pairs_travel_as_their_prefix(by_hand: ByHand, tmp_path: Path) -> None:
    prefix = put(tmp_path, *DAMAGE["falling documents"][0](*by_hand(THREE)))
    pair = IndexedDataset(prefix, check="ends")
    copy = pickle.loads(pickle.dumps(pair))  # with "full" it would be refused
    assert copy.prefix == prefix
    assert copy.get(1).tolist() == [4, 5]
    pair.close()
    assert pickle.loads(pickle.dumps(pair)).get(0).tolist() == [1, 2, 3]


def test_a_pickled_pair_opens_in_another_process(by_hand: ByHand, tmp_path: Path) -> None:
    (tmp_path / "pickled").write_bytes(pickle.dumps(IndexedDataset(put(tmp_path, *by_hand(THREE)))))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).get(0).tolist())"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "pickled"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[1, 2, 3]\n"


@pytest.mark.parametrize("where", ["local", "memory"])
def test_after_closing_nothing_can_be_read_and_arrays_stay_valid(by_hand: ByHand, tmp_path: Path, where: str) -> None:
    folder = str(tmp_path) if where == "local" else f"memory://{tmp_path.name}"
    for name, data in zip(("pair.idx", "pair.bin"), by_hand(THREE), strict=True):
        storage.write_bytes(storage.join(folder, name), data)
    pair = IndexedDataset(storage.join(folder, "pair"))
    kept = pair.get(0), pair.lengths, pair.document_indices, pair.mapped_tokens
    for _ in range(2):
        pair.close()
    assert kept[0].tolist() == [1, 2, 3]
    assert kept[1].tolist() == [3, 2, 1]
    assert kept[2].tolist() == [0, 2, 2, 3]
    assert kept[3] is None or kept[3].tolist() == [1, 2, 3, 4, 5, 9]
    assert (len(pair), pair.num_documents, pair.num_tokens) == (0, 0, 0)
    with pytest.raises(IndexError, match="sequence 0 does not exist; there are 0"):
        pair.get(0)
    with pytest.raises(IndexError, match="tokens 0 to 3 do not exist; there are 0"):
        pair.read(0, 3)


def test_closed_pairs_hold_no_file_open(by_hand: ByHand, tmp_path: Path) -> None:
    prefix = put(tmp_path, *by_hand(THREE))
    pairs = [IndexedDataset(prefix) for _ in range(10)]
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    for pair in pairs:
        pair.close()
    opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert [path for path in opened if path.startswith(str(tmp_path))] == []
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("dtype", ["uint32", "uint64", "float32", "float64", "bool", "complex64"])
def test_dtypes_without_a_code_are_refused(dtype: str) -> None:
    message = rf"token dtype {dtype} has no code .*; it knows uint8, int8, int16, int32, int64, uint16"
    with pytest.raises(FormatError, match=message):
        pack_header(np.dtype(dtype), 0, 0)
