"""More rows than an index set was built for: inside its arrays, and in extensions that a run goes on into."""

import pickle
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from gristmill.formats.errors import CorpusError, SettingsError
from gristmill.formats.index_extend import extend_index_set
from gristmill.formats.index_set import IndexSet, find_sets, read_set
from gristmill.formats.manifest import read_manifest
from gristmill.runtime import MegatronStream, TokenBatches, open_corpus

Maker = Any
G = 8


def extend(folder: str, name: str, **wanted: Any) -> IndexSet:
    return extend_index_set(folder, read_manifest(folder), read_set(f"{folder}/indices/{name}"), **wanted)


@pytest.fixture
def data() -> Sharding:
    return NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))


def rows(stream: MegatronStream, start: int, stop: int) -> list[list[int]]:
    """Rows, read in both ways, which must agree."""
    found = stream.read(np.arange(start, stop))
    np.testing.assert_array_equal(stream.reader.read_numpy(np.arange(start, stop)), found)
    return [[int(token) for token in row] for row in found]


# Inside the stored arrays


def test_a_single_source_grows_to_its_whole_epochs(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 80})
    name = make_corpus.index(folder, samples=30)
    corpus = open_corpus(folder)
    stored = len(corpus.stream().reader.index.members[0].indices.shuffle_index)
    assert stored > 30
    grown, plain = corpus.stream(samples=stored), corpus.stream()
    assert (len(plain), len(grown), len(corpus.stream(samples=7))) == (30, stored, 7)
    assert grown.fingerprint == plain.fingerprint
    assert rows(grown, 0, 30) == rows(plain, 0, 30)
    assert len(pickle.loads(pickle.dumps(grown))) == stored
    with pytest.raises(IndexError, match=f"row {stored} does not exist"):
        grown.read([stored])
    message = (
        rf"{name}: train: {stored + 1} samples asked for, but the stored indices hold {stored}; `gristmill index .* "
        rf"--extend {name} --num-samples {stored + 1}` goes on behind these rows; `gristmill index .* --seq-length 16 "
        rf"--seed 1234 --split 90,10,0 --num-samples {stored + 1}` builds Megatron's order for that number"
    )
    with pytest.raises(CorpusError, match=message):
        corpus.stream(samples=stored + 1)
    with pytest.raises(SettingsError, match="samples must be at least 1, not 0"):
        corpus.stream(samples=0)


def test_a_blend_grows_by_its_own_rule_without_building_anything(make_corpus: Maker) -> None:
    """The rows of a longer index set in the same epochs are those that the shorter one grows to."""
    folder = make_corpus(documents={"web": 400, "code": 400}, weights={"web": 0.7, "code": 0.3})
    short = make_corpus.index(folder, samples=100)
    longer = make_corpus.index(folder, samples=150, own=False)
    corpus = open_corpus(folder)
    grown, other = corpus.stream(samples=150), corpus.stream(index_set=longer)
    assert grown.fingerprint == corpus.stream(index_set=short).fingerprint == other.fingerprint
    assert grown.reader.index.more is not None
    assert rows(grown, 0, 150) == rows(other, 0, 150)
    assert [grown.describe(row) for row in (99, 101, 149)] == [other.describe(row) for row in (99, 101, 149)]
    again = pickle.loads(pickle.dumps(grown))
    assert rows(again, 90, 150) == rows(grown, 90, 150)
    assert len(list(find_sets(folder))) == 2


def test_what_a_blend_cannot_grow_to_is_said(make_corpus: Maker) -> None:
    folder = make_corpus(documents={"web": 60, "code": 60}, weights={"web": 0.7, "code": 0.3})
    make_corpus.index(folder, samples=100)
    members = open_corpus(folder).stream().reader.index.members
    held = sum(len(member.indices.shuffle_index) for member in members)
    with pytest.raises(
        CorpusError, match=rf"train: {held} samples asked for, of which \d+ would be of source 'web', but"
    ):
        open_corpus(folder).stream(samples=held)
    with pytest.raises(CorpusError, match=r"train: 1000000000000 samples asked for, but the stored indices hold \d+"):
        open_corpus(folder).stream(samples=10**12)


def test_one_pass_without_weights_is_all_there_is(make_corpus: Maker) -> None:
    folder = make_corpus()
    make_corpus.index(folder)
    corpus = open_corpus(folder)
    whole = len(corpus.stream())
    assert len(corpus.stream(samples=whole)) == whole
    message = f"{whole + 1} samples asked for, but the stored indices hold {whole}; `gristmill index .* --seq-length"
    with pytest.raises(CorpusError, match=message) as caught:
        corpus.stream(samples=whole + 1)
    assert "--extend" not in str(caught.value)
    with pytest.raises(CorpusError, match=r"valid: 1000 samples asked for, .*; ask for fewer, or build an index set"):
        corpus.stream("valid", samples=1000)


# Extensions


@pytest.fixture
def extended(make_corpus: Maker) -> tuple[str, str, IndexSet]:
    folder = make_corpus(weights={"web": 0.7, "code": 0.3})
    name = make_corpus.index(folder, samples=100)
    return folder, name, extend(folder, name, samples=500)


def test_an_extension_is_found_by_the_number_of_rows(extended: tuple[str, str, IndexSet]) -> None:
    folder, name, extension = extended
    corpus = open_corpus(folder)
    own, longer = corpus.stream(), corpus.stream(samples=500)
    assert (len(own), len(longer)) == (100, 500)
    assert longer.fingerprint == corpus.stream(index_set=extension.name).fingerprint != own.fingerprint
    assert rows(longer, 0, 100) == rows(own, 0, 100)
    assert longer.history[0].parent == own.fingerprint
    assert longer.history[0].from_sample >= 100
    assert corpus.stream(sequence_length=16).fingerprint == own.fingerprint
    with pytest.raises(CorpusError, match=f"{name}: train: 500 samples asked for"):
        corpus.stream(index_set=name, samples=500)
    second = extend(folder, extension.name, samples=2000)
    assert corpus.stream(samples=2000).fingerprint == corpus.stream(index_set=second.name).fingerprint
    assert corpus.stream(samples=500).fingerprint == longer.fingerprint, "the one that adds the fewest rows"


def test_every_row_of_an_extension_is_whole_documents_text(
    make_corpus: Maker, extended: tuple[str, str, IndexSet]
) -> None:
    folder, _, extension = extended
    stream = open_corpus(folder).stream(index_set=extension.name)
    tokens = rows(stream, 0, 500)
    documents = make_corpus.documents[folder]
    for row in range(0, 500, 7):
        spelt: list[int] = []
        for piece in stream.describe(row):
            shard = int(piece.shard.rsplit("-", 3)[1])
            spelt += documents[piece.source][shard][piece.document][piece.start : piece.stop].tolist()
        assert spelt == tokens[row]
    again = pickle.loads(pickle.dumps(stream))
    assert rows(again, 400, 500) == tokens[400:]


def test_several_extensions_must_be_named(extended: tuple[str, str, IndexSet]) -> None:
    folder, name, first = extended
    other = extend(folder, name, samples=500, from_sample=80, weights={"web": 0.5, "code": 0.5})
    with pytest.raises(
        CorpusError, match=f"Several extensions of {name} hold as many, in different orders: "
    ) as caught:
        open_corpus(folder).stream(samples=500)
    assert first.name in str(caught.value)
    assert other.name in str(caught.value)


def test_a_run_goes_on_into_an_extension(extended: tuple[str, str, IndexSet], data: Sharding) -> None:
    folder, _, extension = extended
    corpus = open_corpus(folder)
    with TokenBatches(corpus.stream(), G, data) as batches:
        for _ in range(12):
            next(batches)
        state = batches.get_state()
        with pytest.raises(StopIteration):
            next(batches)
    assert state["next_sample"] == 96
    longer = corpus.stream(samples=500)
    with TokenBatches(longer, 4 * G, data) as batches:
        batches.set_state(state)
        found = np.asarray(next(batches)["inputs"]).tolist()
        assert found == longer.read(np.arange(96, 96 + 4 * G))[:, :-1].tolist()
        later = batches.get_state()
        assert later["fingerprint"] == longer.fingerprint
    with TokenBatches(corpus.stream(), G, data) as batches, pytest.raises(CorpusError, match="changed_from_row was"):
        batches.set_state(later)
    changed = extend(folder, extension.name, from_sample=120, weights={"web": 0.0, "code": 1.0})
    with TokenBatches(corpus.stream(index_set=changed.name), G, data) as batches:
        batches.set_state(state)
        with pytest.raises(CorpusError, match=r"at row 128 of the stream .* left at row 120"):
            batches.set_state(later)


def test_growth_beyond_an_extension_keeps_its_rows(extended: tuple[str, str, IndexSet]) -> None:
    folder, _, extension = extended
    corpus = open_corpus(folder)
    stream = corpus.stream(index_set=extension.name)
    grown = corpus.stream(index_set=extension.name, samples=510)
    assert grown.fingerprint == stream.fingerprint
    assert rows(grown, 0, 500) == rows(stream, 0, 500)
    assert rows(extended_stream(folder, extension, 510), 0, 510) == rows(grown, 0, 510)


def extended_stream(folder: str, parent: IndexSet, samples: int) -> MegatronStream:
    return open_corpus(folder).stream(index_set=extend(folder, parent.name, samples=samples).name)
