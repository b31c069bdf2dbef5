"""Pairs read document by document."""

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.documents import DocumentDataset, check_unit, dataset_of_unit
from gristmill.formats.errors import FormatError, SettingsError
from gristmill.formats.indexed import HEADER_BYTES, IndexedDataset, PairFiles, pack_header

ByHand = Callable[..., tuple[bytes, bytes]]


def write(folder: Path, pair: tuple[bytes, bytes]) -> str:
    (folder / "pair.idx").write_bytes(pair[0])
    (folder / "pair.bin").write_bytes(pair[1])
    return str(folder / "pair")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.lists(st.integers(0, 200), max_size=4), max_size=4), max_size=6), st.sampled_from([4, 8]))
def test_a_document_is_its_sequences_joined(
    by_hand: ByHand, tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]], code: int
) -> None:
    prefix = write(tmp_path_factory.mktemp("pair"), by_hand(documents, code))
    pair = DocumentDataset(prefix)
    joined = [list(itertools.chain(*document)) for document in documents]
    assert [pair.get(number).tolist() for number in range(len(pair))] == joined
    assert pair.lengths.dtype == np.int32
    assert pair.num_documents == pair.num_sequences == len(documents)
    assert pair.document_indices.tolist() == list(range(len(documents) + 1))
    again = pickle.loads(pickle.dumps(pair))
    assert again.lengths.tolist() == [len(document) for document in joined]
    pair.close()
    again.close()


def test_a_document_too_long_for_its_length_is_named(tmp_path: Path) -> None:
    length = 2**30 + 1
    index = pack_header(np.dtype("<u1"), 2, 1) + np.array([length, length], "<i4").tobytes()
    index += np.array([0, length], "<i8").tobytes() + np.array([0, 2], "<i8").tobytes()
    (tmp_path / "pair.idx").write_bytes(index)
    with (tmp_path / "pair.bin").open("wb") as file:
        file.truncate(2 * length)
    prefix = str(tmp_path / "pair")
    assert len(dataset_of_unit(prefix, "sequence")) == 2
    with pytest.raises(FormatError, match="document 0 holds 2147483650 tokens; one that is shuffled whole may have at"):
        dataset_of_unit(prefix, "document")


def test_the_unit_is_one_of_two_words() -> None:
    assert (check_unit("sequence"), check_unit("document")) == ("sequence", "document")
    with pytest.raises(SettingsError, match="granularity 'line': it is 'sequence', as in Megatron, or 'document'"):
        check_unit("line")


def test_an_index_may_lie_elsewhere_or_be_at_hand(by_hand: ByHand, tmp_path: Path) -> None:
    index, tokens = by_hand([[[1, 2]], [[3]]], 4)
    (tmp_path / "raw").write_bytes(tokens)
    (tmp_path / "index").write_bytes(index)
    files = [PairFiles(tokens=str(tmp_path / "raw"), index=given) for given in (index, str(tmp_path / "index"))]
    for one in files:
        pair = IndexedDataset("name", files=one)
        assert pair.get(0).tolist() == [1, 2]
        assert pickle.loads(pickle.dumps(pair)).get(1).tolist() == [3]
        pair.close()
    other = PairFiles(tokens=files[0].tokens, index=index, dtype=np.dtype("<u4"))
    pair = IndexedDataset("name", files=other)
    assert {pair.dtype.name, pair.get(1).dtype.name} == {"uint32"}
    pair.close()
    with pytest.raises(FormatError, match="name: index: is for int32 tokens, so it does not fit uint16 ones"):
        IndexedDataset("name", files=PairFiles(tokens=files[0].tokens, index=index, dtype=np.dtype("<u2")))
    with pytest.raises(FormatError, match=f"name: index: 33 bytes are fewer than the header's {HEADER_BYTES}"):
        IndexedDataset("name", files=PairFiles(tokens=files[0].tokens, index=index[:33]))
    with pytest.raises(FormatError, match="gone: token file not found; it was there before"):
        IndexedDataset("name", files=PairFiles(tokens="gone", index=index))
