"""Writing `.bin/.idx` pairs: Megatron's bytes, for any documents, in any cut, in bounded memory, both files or none."""

import hashlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats import storage
from gristmill.formats.errors import FormatError, StorageError
from gristmill.formats.indexed import DTYPE_CODES, IndexedDataset
from gristmill.formats.indexed_writer import IndexedWriter, PairFacts, write_indexed

ByHand = Callable[..., tuple[bytes, bytes]]
Documents = list[list[list[int]]]
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "megatron_indexed.json").read_text())

documents_of = st.lists(st.lists(st.lists(st.integers(0, 127), max_size=6), max_size=4), max_size=8)


@pytest.fixture(scope="module")
def oracle() -> ModuleType:
    """The module that makes the golden file; importing it needs neither Megatron nor torch."""
    spec = importlib.util.spec_from_file_location("make_indexed", GOLDEN / "make_indexed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flat(documents: Documents) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, lengths and sequences per document."""
    sequences = [sequence for document in documents for sequence in document]
    return (
        np.array([token for sequence in sequences for token in sequence], np.int64),
        np.array([len(sequence) for sequence in sequences], np.int64),
        np.array([len(document) for document in documents], np.int64),
    )


def write(prefix: str, documents: Documents, dtype: Any, batches: list[int] | None = None) -> PairFacts:
    """Writes documents, cut into batches behind the given numbers of documents."""
    cuts = [0, *sorted(batches or []), len(documents)]
    with write_indexed(prefix, np.dtype(dtype)) as writer:
        for start, end in itertools.pairwise(cuts):
            writer.add(*flat(documents[start:end]))
    assert writer.facts is not None
    return writer.facts


def read_pair(prefix: str) -> tuple[bytes, bytes]:
    return storage.read_bytes(f"{prefix}.idx"), storage.read_bytes(f"{prefix}.bin")


# ------------------------------------------------------------------------------------------------ Megatron's bytes


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if "documents" in case and not case["multimodal"] and "float" not in case["dtype"]],
    ids=lambda case: f"{case['dtype']}-{case['name']}",
)
def test_the_bytes_are_megatrons(case: dict[str, Any], tmp_path: Path) -> None:
    documents: Documents = case["documents"]
    for batches in ([], list(range(len(documents)))):
        write(str(tmp_path / "pair"), documents, case["dtype"], batches)
        idx, bin_ = read_pair(str(tmp_path / "pair"))
        assert idx.hex() == case["idx"]
        assert bin_.hex() == case["bin"]


@pytest.mark.parametrize("case", [case for case in CASES if "sequences" in case], ids=lambda case: case["dtype"])
def test_the_bytes_of_a_large_pair_are_megatrons(case: dict[str, Any], oracle: ModuleType, tmp_path: Path) -> None:
    tokens, lengths, per_document = oracle.large(case["sequences"], case["dtype"])
    with write_indexed(str(tmp_path / "pair"), np.dtype(case["dtype"])) as writer:
        writer.add(tokens, lengths, per_document)
    assert writer.facts is not None
    assert (writer.facts.idx.sha256, writer.facts.bin.sha256) == (case["idx_sha256"], case["bin_sha256"])


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if "documents" in case],
    ids=lambda case: f"{case['dtype']}{'-modes' * case['multimodal']}-{case['name']}",
)
def test_pairs_that_megatron_wrote_are_read_or_refused(case: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "pair.idx").write_bytes(bytes.fromhex(case["idx"]))
    (tmp_path / "pair.bin").write_bytes(bytes.fromhex(case["bin"]))
    documents: Documents = case["documents"]
    if "float" in case["dtype"]:
        with pytest.raises(FormatError, match=rf"holds {case['dtype']} values \(code [67]\); tokens must be integers"):
            IndexedDataset(str(tmp_path / "pair"))
    elif case["multimodal"] and any(documents):
        with pytest.raises(FormatError, match="carries a mode per sequence, so it is multimodal data"):
            IndexedDataset(str(tmp_path / "pair"))
    else:
        pair = IndexedDataset(str(tmp_path / "pair"))
        tokens, lengths, per_document = flat(documents)
        assert pair.dtype == np.dtype(case["dtype"])
        assert np.array_equal(pair.read(0, pair.num_tokens), tokens)
        assert np.array_equal(pair.lengths, lengths)
        assert np.array_equal(np.diff(pair.document_indices), per_document)


def test_rewriting_a_pair_made_by_others_gives_the_same_files(shared_data: Path, tmp_path: Path) -> None:
    original = IndexedDataset(str(shared_data / "openwebtext_text_document"))
    with write_indexed(str(tmp_path / "pair"), original.dtype) as writer:
        for start in range(0, len(original), 37):
            lengths = original.lengths[start : start + 37]
            first = int(original.pointers[start]) // original.dtype.itemsize
            writer.add(original.read(first, int(lengths.sum())), lengths)
    assert (writer.sequences, writer.documents, writer.tokens) == (1000, 1000, 1_361_845)
    for kind in ("bin", "idx"):
        theirs = shared_data / f"openwebtext_text_document.{kind}"
        assert (tmp_path / f"pair.{kind}").read_bytes() == theirs.read_bytes()


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")  # Megatron's own imports warn
@pytest.mark.parametrize("seed", range(20))
def test_the_bytes_are_those_of_megatron_itself(seed: int, oracle: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'gristmill[parity]'")
    pytest.importorskip("megatron.core", reason="megatron-core is not installed: pip install 'gristmill[parity]'")
    from megatron.core.datasets.indexed_dataset import IndexedDataset as Original

    random = np.random.default_rng(seed)
    dtype = oracle.DTYPES[seed % len(oracle.DTYPES)]
    per_document = random.integers(0, 4, int(random.integers(0, 60)))
    lengths = random.integers(0, 30, int(per_document.sum()))
    tokens = random.integers(0, np.iinfo(dtype).max, int(lengths.sum()), dtype=np.int64)
    oracle.write_with_megatron(tmp_path / "theirs", oracle.split_up(tokens, lengths, per_document), dtype)
    with write_indexed(str(tmp_path / "ours"), np.dtype(dtype)) as writer:
        writer.add(tokens, lengths, per_document)
    assert read_pair(str(tmp_path / "ours")) == read_pair(str(tmp_path / "theirs"))
    if len(tokens) == 0:
        return  # Megatron cannot map an empty file
    theirs, ours = Original(str(tmp_path / "ours")), IndexedDataset(str(tmp_path / "theirs"))
    assert np.array_equal(theirs.document_indices, ours.document_indices)
    for sequence in range(len(ours)):
        assert np.array_equal(theirs[sequence], ours.get(sequence))


# --------------------------------------------------------------------------------------------------- any documents


@settings(max_examples=80, deadline=None)
@given(documents=documents_of, code=st.sampled_from(sorted(DTYPE_CODES)), data=st.data())
def test_any_documents_in_any_cut_give_the_bytes_of_the_description(
    by_hand: ByHand, documents: Documents, code: int, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(documents)), max_size=4))
    facts = write("memory://any/written", documents, DTYPE_CODES[code], cuts)
    idx, bin_ = read_pair("memory://any/written")
    assert (idx, bin_) == by_hand(documents, code)
    assert facts == PairFacts(
        tokens=sum(len(sequence) for document in documents for sequence in document),
        sequences=sum(map(len, documents)),
        documents=len(documents),
        bin=storage.FileFacts(len(bin_), hashlib.sha256(bin_).hexdigest()),
        idx=storage.FileFacts(len(idx), hashlib.sha256(idx).hexdigest()),
    )
    pair = IndexedDataset("memory://any/written")
    bounds = pair.document_indices
    read = [[pair.get(one).tolist() for one in range(bounds[k], bounds[k + 1])] for k in range(pair.num_documents)]
    assert read == documents


def test_without_counts_each_sequence_is_a_document(by_hand: ByHand, tmp_path: Path) -> None:
    with write_indexed(str(tmp_path / "pair"), np.dtype("uint16")) as writer:
        writer.add(np.array([1, 2, 3]), np.array([2, 0, 1]))
        writer.add(np.array([], np.int32), np.array([], np.int32))
        writer.add(np.array([4]), np.array([1]))
    assert read_pair(str(tmp_path / "pair")) == by_hand([[[1, 2]], [[]], [[3]], [[4]]])


@pytest.mark.parametrize("given_as", [">u2", "<u2", "int8", "uint64", "int64", ">i8"])
def test_tokens_of_any_integer_dtype_are_stored_in_the_pairs(by_hand: ByHand, tmp_path: Path, given_as: str) -> None:
    with write_indexed(str(tmp_path / "pair"), np.dtype("int32")) as writer:
        writer.add(np.array([1, 2, 127], given_as), np.array([3], ">i8"))
        writer.add(np.arange(10).astype(given_as)[::3], np.array([4], np.uint8))
    assert read_pair(str(tmp_path / "pair")) == by_hand([[[1, 2, 127]], [[0, 3, 6, 9]]], 4)


# ------------------------------------------------------------------------------------------------- what is refused

REFUSED: dict[str, tuple[list[Any], str]] = {
    "too few tokens": ([[1, 2], [3]], r"tokens of shape \(2,\) given for lengths that sum to 3"),
    "too many tokens": ([[1, 2], [1]], r"tokens of shape \(2,\) given for lengths that sum to 1"),
    "a matrix of tokens": ([[[1, 2]], [2]], r"tokens of shape \(1, 2\) given for lengths that sum to 2"),
    "a matrix of lengths": ([[1, 2], [[2]]], r"lengths of shape \(1, 1\) and dtype int64; the rule is integers in one"),
    "fractions of lengths": ([[1, 2], [1.5, 0.5]], r"lengths of shape \(2,\) and dtype float64; the rule is integers"),
    "a negative length": ([[1, 2], [3, -1]], r"lengths has -1 at 1; the format holds 0 to 2147483647"),
    "a length beyond 31 bits": ([[1], [2**31, 1]], r"lengths has 2147483648 at 0; the format holds 0 to 2147483647"),
    "fractions of tokens": ([[1.0], [1]], r"tokens are float64; they must be integers"),
    "truth for tokens": ([[True], [1]], r"tokens are bool; they must be integers"),
    "an id too large": (
        [[1, 65536], [2]],
        r"token ids 1 to 65536 do not fit uint16 \(0 to 65535\); choose a wider dtype",
    ),
    "a negative id": ([[-1, 5], [2]], r"token ids -1 to 5 do not fit uint16 \(0 to 65535\); choose a wider dtype"),
    "documents of too few": ([[1, 2], [1, 1], [1]], r"documents of 1 sequences given for 2 sequences"),
    "documents of too many": ([[1, 2], [1, 1], [1, 2]], r"documents of 3 sequences given for 2 sequences"),
    "a negative document": ([[1, 2], [1, 1], [3, -1]], r"sequences_per_document has -1 at 1; the format holds 0 to"),
    "fractions of documents": ([[1], [1], [1.0]], r"sequences_per_document of shape \(1,\) and dtype float64"),
}


@pytest.mark.parametrize(("arrays", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    by_hand: ByHand, tmp_path: Path, arrays: list[Any], message: str
) -> None:
    prefix = str(tmp_path / "pair")
    with write_indexed(prefix, np.dtype("uint16")) as writer:
        writer.add(np.array([7]), np.array([1]))
        with pytest.raises(FormatError, match=f"^{prefix}: {message}"):
            writer.add(*map(np.array, arrays))
        writer.add(np.array([8, 9]), np.array([2]))
    assert read_pair(prefix) == by_hand([[[7]], [[8, 9]]])


@pytest.mark.parametrize("dtype", ["float32", "uint32", "uint64", "bool"])
def test_dtypes_without_a_code_are_refused_before_anything_is_written(tmp_path: Path, dtype: str) -> None:
    with (
        pytest.raises(FormatError, match=f"token dtype {dtype} has no code"),
        write_indexed(str(tmp_path / "deep" / "pair"), np.dtype(dtype)),
    ):
        pytest.fail("the block must not be reached")
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------- both or none


@pytest.mark.parametrize("where", ["local", "memory"])
def test_both_files_appear_when_the_block_ends(tmp_path: Path, where: str) -> None:
    folder = str(tmp_path) if where == "local" else f"memory://{tmp_path.name}"
    with write_indexed(storage.join(folder, "pair"), np.dtype("uint16")) as writer:
        writer.add(np.arange(5), np.array([5]))
        assert not storage.exists(storage.join(folder, "pair.bin"))
        assert not storage.exists(storage.join(folder, "pair.idx"))
        assert writer.facts is None
    assert storage.list_files(folder) == [storage.join(folder, name) for name in ("pair.bin", "pair.idx")]


@pytest.mark.parametrize("where", ["local", "memory"])
def test_neither_file_appears_when_the_block_raises(tmp_path: Path, where: str) -> None:
    folder = str(tmp_path) if where == "local" else f"memory://{tmp_path.name}"
    with pytest.raises(KeyError), write_indexed(storage.join(folder, "pair"), np.dtype("uint16")) as writer:  # noqa: PT012
        writer.add(np.arange(5), np.array([5]))
        raise KeyError
    assert storage.list_files(folder) == []


def test_a_former_pair_stays_when_the_block_raises(by_hand: ByHand, tmp_path: Path) -> None:
    prefix = str(tmp_path / "pair")
    write(prefix, [[[1, 2]]], "uint16")
    with pytest.raises(KeyError), write_indexed(prefix, np.dtype("int32")) as writer:  # noqa: PT012
        writer.add(np.arange(5), np.array([5]))
        raise KeyError
    assert read_pair(prefix) == by_hand([[[1, 2]]])


def test_the_index_is_not_left_without_its_tokens_or_the_reverse(tmp_path: Path) -> None:
    """A folder in the place of either file: the other one does not appear without it, except tokens without index."""
    (tmp_path / "pair.bin").mkdir()
    with pytest.raises(StorageError, match=r"pair\.bin: cannot be written: Is a directory"):
        write(str(tmp_path / "pair"), [[[1]]], "uint16")
    assert [path.name for path in tmp_path.iterdir()] == ["pair.bin"]


KILLED = """
import sys
import numpy as np
from gristmill.formats.indexed_writer import write_indexed
with write_indexed(sys.argv[1], np.dtype("uint16")) as writer:
    for _ in range(10):
        writer.add(np.zeros(500_000, np.uint16), np.full(5000, 100))
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_a_killed_writer_leaves_neither_file(tmp_path: Path) -> None:
    prefix = str(tmp_path / "pair")
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, prefix], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        os.kill(writer.pid, signal.SIGKILL)
    assert not storage.exists(f"{prefix}.bin")
    assert not storage.exists(f"{prefix}.idx")
    with pytest.raises(FormatError, match="index file not found"):
        IndexedDataset(prefix)
    write(prefix, [[[1]]], "uint16")
    assert IndexedDataset(prefix).get(0).tolist() == [1]


def mounted(where: Path, size: str) -> bool:
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("documents", [600_000, 60_000])
def test_a_full_disk_leaves_neither_file(tmp_path: Path, documents: int) -> None:
    """The disk is full while the tokens are written, or, as the index is ten times larger, only behind them."""
    disk = tmp_path / "disk"
    if not mounted(disk, "1m"):
        pytest.skip("a small file system cannot be mounted here")
    try:
        with pytest.raises(StorageError, match=r"pair\.(bin|idx): cannot be written: No space left on device"):
            write_many(str(disk / "pair"), documents)
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def write_many(prefix: str, documents: int) -> None:
    with write_indexed(prefix, np.dtype("uint16")) as writer:
        for _ in range(10):
            writer.add(np.zeros(documents // 10, np.uint16), np.ones(documents // 10, np.int32))


def test_a_full_folder_of_temporary_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "scratch"
    if not mounted(disk, "64k"):
        pytest.skip("a small file system cannot be mounted here")
    try:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        message = f"^{disk}: the lengths of {tmp_path}/pair cannot be kept here .*: No space left on device; free some"
        with pytest.raises(StorageError, match=message):
            write_many(str(tmp_path / "pair"), 3_000_000)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch"]
    finally:
        subprocess.run(["umount", disk], check=True)


# ----------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    "lengths",
    [
        [2**31 - 1, 1, 1],
        [2**30, 2**30 - 1, 1, 5],
        [2**31 - 1, 2**31 - 1, 3, 2**31 - 1, 7],
        [1] * 300_000 + [2**31 - 1, 1],
    ],
    ids=["31 bits", "boundary", "beyond 32 bits", "second block"],
)
@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_pointers_do_not_overflow(tmp_path: Path, lengths: list[int], dtype: str) -> None:
    """The index alone: gigabytes of tokens are only counted."""
    path = str(tmp_path / "pair.idx")
    with storage.publish(str(tmp_path / "pair.bin")) as tokens, storage.publish(path) as index:
        writer = IndexedWriter(str(tmp_path / "pair"), np.dtype(dtype), tokens)
        writer._lengths.write(np.array(lengths, "<i4").tobytes())
        writer._per_document.write(np.ones(len(lengths), "<i4").tobytes())
        writer.sequences = writer.documents = len(lengths)
        writer.finish(index)
        writer.close()
    os.truncate(tmp_path / "pair.bin", sum(lengths) * np.dtype(dtype).itemsize)
    pair = IndexedDataset(str(tmp_path / "pair"))  # compares every pointer with the sum of the lengths before it
    assert pair.num_tokens == sum(lengths)
    assert int(pair.pointers[-1]) == sum(lengths[:-1]) * np.dtype(dtype).itemsize
    assert int(pair.document_indices[-1]) == len(lengths)


MEASURED = """
import resource, sys, time
import numpy as np
from gristmill.formats.indexed_writer import write_indexed
tokens, lengths = np.arange(100_000, dtype=np.uint16), np.full(50_000, 2)
def write(batches, prefix):
    with write_indexed(prefix, np.dtype("uint16")) as writer:
        for _ in range(batches):
            writer.add(tokens, lengths)
write(1, sys.argv[1] + "small")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write(100, sys.argv[1] + "large")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_number_of_documents(tmp_path: Path) -> None:
    """Five million documents of two tokens: 20 MB of tokens, 120 MB of index."""
    done = subprocess.run([sys.executable, "-c", MEASURED, f"{tmp_path}/"], capture_output=True, text=True, check=True)
    assert (tmp_path / "large.idx").stat().st_size == 42 + 20 * 5_000_000
    assert int(done.stdout) < 40_000, "kilobytes more than for fifty thousand"
    pair = IndexedDataset(str(tmp_path / "large"))  # compares every pointer and document
    assert (len(pair), pair.num_documents, pair.num_tokens) == (5_000_000, 5_000_000, 10_000_000)
    pair.close()


def test_nothing_of_a_writer_stays_in_memory_stores(tmp_path: Path) -> None:
    folder = f"memory://{tmp_path.name}"
    write(f"{folder}/pair", [[[1]]], "uint16")
    names = [name for name in fsspec.filesystem("memory").store if tmp_path.name in name]
    assert names == [f"/{tmp_path.name}/pair.bin", f"/{tmp_path.name}/pair.idx"]
