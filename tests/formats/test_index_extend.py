"""Extensions of index sets: every old byte stays, what follows is a plain oracle's, and nothing else is accepted."""

import dataclasses
import hashlib
import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.formats.errors import CorpusError, DataError, FormatError, SettingsError
from gristmill.formats.index_extend import extend_index_set
from gristmill.formats.index_extension import plan_extension
from gristmill.formats.index_order import order_history
from gristmill.formats.index_set import IndexSet, find_sets, order_fingerprint, read_set
from gristmill.formats.index_sources import index_sources
from gristmill.formats.schedule import Phase, shares_above_zero

ARRAYS = ("document_index", "sample_index", "shuffle_index")
Corpus = Any  # of the fixture `new_corpus`
NewCorpus = Callable[..., Corpus]
Row = list[tuple[int, int]]  # (member, position of the token in the source) for each token


# The oracle


def oracle_member(
    lengths: list[int], start: int, end: int, blocks: list[tuple[int, bool]], seed: int, length: int, extra: int
) -> list[list[int]]:
    """Every sample of a member in the order in which it is served, each as positions of tokens in the source."""
    first = [0, *itertools.accumulate(lengths)]
    served: list[list[int]] = []
    for number, (epochs, separate) in enumerate(blocks):
        random = np.random.RandomState([seed, number] if number else seed)
        documents: list[int] = []
        for count in (epochs - 1, 1) if separate else (epochs,):
            part = np.array(list(range(start, end)) * count)
            random.shuffle(part)
            documents += part.tolist()
        stream = [position for document in documents for position in range(first[document], first[document + 1])]
        whole = (len(stream) - extra) // length
        cut = ((epochs - 1) * sum(lengths[start:end]) - extra) // length
        numbers: list[int] = []
        for part in (np.arange(cut), np.arange(cut, whole)) if separate else (np.arange(whole),):
            random.shuffle(part)
            numbers += part.tolist()
        served += [stream[sample * length : sample * length + length + extra] for sample in numbers]
    return served


def oracle_blend(phases: list[Phase], samples: int) -> list[tuple[int, int]]:
    members = len(phases[0].weights)
    drawn, found = [0] * members, []
    for sample in range(samples):
        phase = max((one for one in phases if one.from_sample <= sample), key=lambda one: one.from_sample)
        if sample == phase.from_sample:
            since, shares = [0] * members, shares_above_zero(shares_above_zero(phase.weights))
        x = float(max(sample - phase.from_sample, 1))
        lags = [share * x - float(count) if share > 0 else -math.inf for share, count in zip(shares, since)]
        best = lags.index(max(lags))
        found.append((best, drawn[best]))
        drawn[best] += 1
        since[best] += 1
    return found


def oracle_rows(corpus: Corpus, index_set: IndexSet, phases: list[Phase]) -> list[Row]:
    """What the training rows of a set must be, from the blocks in its record and the phases asked for."""
    order, wanted = index_set.order("train"), index_set.settings
    served = [
        oracle_member(
            corpus.lengths[member.source],
            member.start,
            member.end,
            [(block.epochs, block.separate) for block in member.blocks],
            wanted.seed,
            wanted.sequence_length,
            int(wanted.add_extra_token),
        )
        for member in order.members
    ]
    if len(served) == 1:
        drawn = [(0, number) for number in range(order.samples)]
    else:
        drawn = oracle_blend(phases, order.samples)
    return [[(member, token) for token in served[member][number]] for member, number in drawn]


def stored_rows(corpus: Corpus, index_set: IndexSet, rows: int) -> list[Row]:
    """The training rows that the arrays of a set spell."""
    order, extra = index_set.order("train"), int(index_set.settings.add_extra_token)
    opened = [index_set.open_member("train", member.source) for member in order.members]
    blend = index_set.open_blend("train")
    found: list[Row] = []
    for row in range(rows):
        member, number = 0, row
        if blend is not None:
            member, number = int(blend.dataset_index[row]), int(blend.dataset_sample_index[row])
        lengths = corpus.lengths[order.members[member].source]
        first = [0, *itertools.accumulate(lengths)]
        indices = opened[member]
        place = int(indices.shuffle_index[number])
        (begin, offset), (end, last) = indices.sample_index[place].tolist(), indices.sample_index[place + 1].tolist()
        tokens: Row = []
        for entry in range(begin, end + 1):
            document = int(indices.document_index[entry])
            low = offset if entry == begin else 0
            high = last + extra if entry == end else lengths[document]
            tokens += [(member, first[document] + token) for token in range(low, high)]
        found.append(tokens)
    return found


def array_files(index_set: IndexSet) -> dict[str, NDArray[Any]]:
    return {
        path.relative_to(index_set.folder).as_posix(): np.load(path) for path in Path(index_set.folder).rglob("*.npy")
    }


def tree(index_set: IndexSet) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in Path(index_set.folder).rglob("*")
        if path.is_file()
    }


def check_prefix(parent: IndexSet, extension: IndexSet, *, keep: int | None = None) -> None:
    """Every array of the parent, byte for byte, is the beginning of the extension's; only a blend may be cut before."""
    old, new = array_files(parent), array_files(extension)
    assert old.keys() <= new.keys()
    for name, array in old.items():
        kept = array[:keep] if keep is not None and name.startswith("train/dataset_") else array
        assert new[name].dtype == array.dtype, name
        assert new[name][: len(kept)].tobytes() == kept.tobytes(), name
        if not name.startswith("train/"):
            assert len(new[name]) == len(array), name


# Properties

documents = st.lists(st.integers(1, 12), min_size=4, max_size=25)
weights = st.integers(1, 5).map(float)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(documents, weights), min_size=1, max_size=3), st.integers(2, 9), st.booleans(), st.data())
def test_extensions_begin_with_their_parent_and_go_on_as_the_oracle_says(
    new_corpus: NewCorpus, drawn: list[tuple[list[int], float]], length: int, extra: bool, data: st.DataObject
) -> None:
    lengths = {f"s{number}": counts for number, (counts, _) in enumerate(drawn)}
    own = {f"s{number}": weight for number, (_, weight) in enumerate(drawn)}
    corpus = new_corpus(lengths, own)
    samples = data.draw(st.integers(20, 60))
    index_set = corpus.build(samples, sequence_length=length, add_extra_token=extra)
    phases = [Phase(0, tuple(own.values()))]
    for _ in range(data.draw(st.integers(1, 2))):
        wanted: dict[str, Any] = {"samples": samples + data.draw(st.integers(1, 120))}
        if len(lengths) > 1 and data.draw(st.booleans()):
            start = data.draw(st.integers(1, wanted["samples"] - 1))
            new = data.draw(st.lists(weights, min_size=len(own), max_size=len(own)))
            wanted |= {"from_sample": start, "weights": dict(zip(own, new, strict=True))}
            phases = [phase for phase in phases if phase.from_sample < start] + [Phase(start, tuple(new))]
        parent, samples = index_set, wanted["samples"]
        before = tree(parent)
        index_set = corpus.extend(parent, **wanted)
        assert tree(parent) == before
        assert read_set(index_set.folder) == index_set
        assert (index_set.parent, index_set.order("train").samples) == (parent.key, samples)
        check_prefix(parent, index_set, keep=wanted.get("from_sample"))
        rows = stored_rows(corpus, index_set, samples)
        assert rows == oracle_rows(corpus, index_set, phases)
        check_history(corpus, parent, index_set, wanted.get("from_sample"))


def check_history(corpus: Corpus, parent: IndexSet, extension: IndexSet, changed_from: int | None) -> None:
    old, new = (order_history(one, "train") for one in (parent, extension))
    assert new[: len(old)] == old
    if len(new) == len(old):
        assert changed_from is None
        assert order_fingerprint(extension, "train") == order_fingerprint(parent, "train")
        shared = parent.order("train").samples
    else:
        (change,) = new[len(old) :]
        assert change.parent == order_fingerprint(parent, "train")
        assert order_fingerprint(extension, "train") == change.fingerprint != change.parent
        assert change.from_sample >= min(parent.order("train").samples, changed_from or math.inf)
        assert change.from_sample <= (changed_from or math.inf)
        shared = min(change.from_sample, parent.order("train").samples)
    assert stored_rows(corpus, extension, shared) == stored_rows(corpus, parent, shared)


# Named cases


# Named cases


def lengths_of(**counts: int) -> dict[str, list[int]]:
    return {
        name: np.random.default_rng([*name.encode()]).integers(1, 20, count).tolist() for name, count in counts.items()
    }


def test_one_source_gets_a_block_only_behind_what_is_stored(new_corpus: NewCorpus) -> None:
    corpus = new_corpus({"web": [10] * 10})  # training has 9 documents, 90 tokens: 11 samples of 8 in an epoch
    parent = corpus.build(8)
    assert parent.order("train").members[0].rows == 11
    inside = corpus.extend(parent, samples=11)
    assert inside.order("train").members[0].later == ()
    assert inside.history == ()
    assert order_fingerprint(inside, "train") == order_fingerprint(parent, "train")
    beyond = corpus.extend(parent, samples=12)
    (block,) = beyond.order("train").members[0].later
    assert dataclasses.asdict(block) == {"epochs": 1, "separate": False, "rows": 11, "dropped_tokens": 90 - 89}
    assert [change.from_sample for change in beyond.history] == [11]
    again = corpus.extend(beyond, samples=20)
    assert again.order("train").members[0].later == (block,), "22 samples are stored"
    assert again.history == beyond.history
    third = corpus.extend(again, samples=23)
    assert [one.rows for one in third.order("train").members[0].blocks] == [11, 11, 11]
    assert [change.from_sample for change in third.history] == [11, 22]
    assert sorted(found.name for found in find_sets(corpus.folder)) == sorted(
        one.name for one in (parent, inside, beyond, again, third)
    )


def test_the_seed_of_a_block_is_the_seed_and_its_number(new_corpus: NewCorpus) -> None:
    corpus = new_corpus({"web": [10] * 10})
    extension = corpus.extend(corpus.build(8, seed=77), samples=12)
    indices = extension.open_member("train", "web")
    expected = np.arange(9, dtype=np.int32)
    random = np.random.RandomState([77, 1])
    random.shuffle(expected)
    assert indices.document_index[9:].tolist() == expected.tolist()
    numbers = np.arange(11)
    random.shuffle(numbers)
    assert indices.shuffle_index[11:].tolist() == (numbers + 12).tolist()


def test_the_same_extension_from_a_longer_parent_has_the_same_rows_and_fingerprint(new_corpus: NewCorpus) -> None:
    corpus = new_corpus({"web": [10] * 10})
    short, longer = corpus.build(8), corpus.build(10)
    one, other = corpus.extend(short, samples=30), corpus.extend(longer, samples=30)
    assert one.name != other.name
    assert order_fingerprint(one, "train") == order_fingerprint(other, "train")
    for name, array in array_files(one).items():
        assert array.tobytes() == array_files(other)[name].tobytes()


def test_inside_the_stored_arrays_a_blend_is_megatrons_for_the_larger_number(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=300, math=200), {"web": 0.7, "math": 0.3})
    parent, fresh = corpus.build(100), corpus.build(120)
    extension = corpus.extend(parent, samples=120)
    assert extension.key != fresh.key
    assert extension.files == fresh.files
    assert order_fingerprint(extension, "train") == order_fingerprint(fresh, "train")


def test_a_fresh_build_of_the_larger_number_is_another_set_in_another_order(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=60), {})
    parent = corpus.build(40)
    fresh, extension = corpus.build(400), corpus.extend(parent, samples=400)
    assert len({parent.name, fresh.name, extension.name}) == 3
    assert stored_rows(corpus, extension, 40) == stored_rows(corpus, parent, 40)
    assert stored_rows(corpus, fresh, 40) != stored_rows(corpus, parent, 40)


def test_validation_and_test_are_copied(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=300, math=200), {"web": 0.7, "math": 0.3})
    parent = corpus.build(100, splits="6,2,2")
    extension = corpus.extend(parent, samples=1000)
    for split in ("valid", "test"):
        assert extension.order(split) == parent.order(split)
        assert order_fingerprint(extension, split) == order_fingerprint(parent, split)
        assert order_history(extension, split) == ()
    valid = {name: facts for name, facts in extension.files.items() if not name.startswith("train/")}
    assert valid == {name: facts for name, facts in parent.files.items() if not name.startswith("train/")}


def test_new_weights_and_a_source_that_joins_behind_the_others(new_corpus: NewCorpus) -> None:
    lengths = lengths_of(early=200, web=300, late=200)
    corpus = new_corpus(lengths, {"early": 0.0, "web": 1.0, "late": 3.0})
    parent = corpus.build(200)
    assert [member.source for member in parent.order("train").members] == ["web", "late"]
    change = {"early": 1.0, "web": 1.0, "late": 0.0}
    extension = corpus.extend(parent, samples=300, from_sample=150, weights=change)
    order = extension.order("train")
    assert [(member.source, member.place, member.joined) for member in order.members] == [
        ("web", 1, 0),
        ("late", 2, 0),
        ("early", 0, 1),
    ]
    assert extension.settings.schedule == (Phase(150, (1.0, 1.0, 0.0)),)
    assert [entry.source for entry in order.left_out] == []
    phases = [Phase(0, (1.0, 3.0, 0.0)), Phase(150, (1.0, 0.0, 1.0))]
    assert stored_rows(corpus, extension, 300) == oracle_rows(corpus, extension, phases)
    assert [found.from_sample for found in extension.history] == [150]
    again = corpus.extend(extension, from_sample=250, weights={"early": 0.0, "web": 0.0, "late": 1.0})
    assert [member.source for member in again.order("train").members] == ["web", "late", "early"]
    rows = stored_rows(corpus, again, 300)
    assert rows == oracle_rows(corpus, again, [*phases, Phase(250, (0.0, 1.0, 0.0))])
    assert rows[:250] == stored_rows(corpus, extension, 250)


def test_a_source_that_was_not_in_the_corpus_joins(new_corpus: NewCorpus) -> None:
    lengths = lengths_of(web=300, math=200)
    corpus = new_corpus({"web": lengths["web"]})
    parent = corpus.build(200, splits="8,2")
    corpus.lengths = {"math": lengths["math"], "web": lengths["web"]}
    corpus.manifest = corpus.write(corpus.lengths, {})
    extension = corpus.extend(parent, samples=300, from_sample=100, weights={"web": 1.0, "math": 1.0})
    assert [source.id for source in extension.sources] == ["web", "math"]
    assert [source.weight for source in extension.sources] == [1.0, 0.0]
    phases = [Phase(0, (1.0, 0.0)), Phase(100, (0.5, 0.5))]
    rows = stored_rows(corpus, extension, 300)
    assert rows == oracle_rows(corpus, extension, phases)
    assert rows[:100] == stored_rows(corpus, parent, 100)
    check_prefix(parent, extension)
    (left_out,) = extension.order("valid").left_out
    assert (left_out.source, left_out.reason) == ("math", "an extension brought it into the training order alone")


def test_a_change_of_weights_that_needs_no_block_is_the_schedule_of_a_recipe(
    new_corpus: NewCorpus,
) -> None:
    corpus = new_corpus(lengths_of(web=300, math=300), {"web": 1.0, "math": 1.0})
    planned = corpus.build(100, schedule=(Phase(60, (1.0, 3.0)),))
    changed = corpus.extend(corpus.build(100), from_sample=60, weights={"web": 1.0, "math": 3.0})
    assert order_history(changed, "train") == order_history(planned, "train")
    assert stored_rows(corpus, changed, 100) == stored_rows(corpus, planned, 100)


def test_later_phases_of_the_parent_give_way_to_new_weights(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=300, math=300), {"web": 1.0, "math": 1.0})
    parent = corpus.build(100, schedule=(Phase(40, (1.0, 3.0)), Phase(80, (3.0, 1.0))))
    changed = corpus.extend(parent, from_sample=60, weights={"web": 1.0, "math": 0.0})
    assert changed.settings.schedule == (Phase(40, (1.0, 3.0)), Phase(60, (1.0, 0.0)))
    assert [change.from_sample for change in changed.history] == [40, 80, 60]
    phases = [Phase(0, (1.0, 1.0)), Phase(40, (1.0, 3.0)), Phase(60, (1.0, 0.0))]
    assert stored_rows(corpus, changed, 100) == oracle_rows(corpus, changed, phases)


def test_new_weights_behind_the_end_also_go_on_with_the_old_ones(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=20, math=20), {"web": 1.0, "math": 1.0})
    parent = corpus.build(20)
    extension = corpus.extend(parent, samples=400, from_sample=300, weights={"web": 1.0, "math": 9.0})
    (change,) = extension.history
    assert 20 <= change.from_sample < 300
    assert change.change["weights_from"] == 300
    phases = [Phase(0, (1.0, 1.0)), Phase(300, (1.0, 9.0))]
    assert stored_rows(corpus, extension, 400) == oracle_rows(corpus, extension, phases)


def test_an_extension_that_is_there_is_given_back(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=30), {})
    parent = corpus.build(20)
    said: list[str] = []
    first = extend_index_set(corpus.folder, corpus.manifest, parent, samples=200, say=said.append)
    assert "epochs behind" in said[0]
    assert "tokens between them are dropped" in said[0]
    before = tree(first)
    stamps = [path.stat().st_mtime_ns for path in Path(first.folder).rglob("*.npy")]
    assert corpus.extend(parent, samples=200) == first
    assert tree(first) == before
    assert [path.stat().st_mtime_ns for path in Path(first.folder).rglob("*.npy")] == stamps


def test_an_extension_outlives_its_parent(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=30, math=30), {"web": 1.0, "math": 2.0})
    parent = corpus.build(20)
    extension = corpus.extend(parent, samples=200)
    expected = stored_rows(corpus, extension, 200)
    shutil.rmtree(parent.folder)
    assert read_set(extension.folder) == extension
    assert stored_rows(corpus, read_set(extension.folder), 200) == expected
    assert corpus.extend(extension, samples=300).order("train").samples == 300


# What is refused


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({}, "has 100 samples already: ask for more, or for other weights from some sample on"),
        ({"samples": 100}, "has 100 samples already"),
        ({"samples": 99}, "99 samples are fewer than the 100 of the index set that is extended"),
        ({"from_sample": 5}, "new weights need a sample from which they hold, and the reverse: weights is missing"),
        ({"weights": {"web": 1.0}}, "and the reverse: from_sample is missing"),
        ({"from_sample": 0, "weights": {"web": 1.0, "math": 1.0}}, "from sample 0 on: the rule is 1 to 99, inside the"),
        ({"from_sample": 100, "weights": {"web": 1.0, "math": 1.0}}, "from sample 100 on: the rule is 1 to 99"),
        ({"from_sample": 5, "weights": {"web": 1.0}}, "weights: none for 'math', which takes part so far; write 0"),
        ({"from_sample": 5, "weights": {"web": 1.0, "maths": 1.0}}, "there is no source 'maths'; the corpus has 'web'"),
        ({"from_sample": 5, "weights": {"web": 0.0, "math": 0.0}}, "weights from sample 5 on: all 3 weights are 0"),
        ({"from_sample": 5, "weights": {"web": -1.0, "math": 1.0}}, "weight -1.0 of member 0 is negative"),
        ({"from_sample": 5, "weights": {"web": math.nan, "math": 1.0}}, "weight nan of member 0 is not a finite"),
        (
            {"from_sample": 5, "weights": {"web": 1.0, "math": 1.0, "empty": 1.0}},
            "give training none of the 1 sequences of source 'empty', so it has nothing to join with",
        ),
        ({"samples": 10_000}, "source 'web' would be repeated too often: .* above max_epochs = 3"),
    ],
)
def test_extensions_that_cannot_be_are_refused(wanted: dict[str, Any], message: str, new_corpus: NewCorpus) -> None:
    lengths = lengths_of(web=300, math=60) | {"empty": [30]}
    corpus = new_corpus(lengths, {"web": 3.0, "math": 1.0, "empty": 0.0}, max_epochs=3.0)
    parent = corpus.build(100, splits="1,1")
    with pytest.raises(SettingsError, match=message):
        corpus.extend(parent, **wanted)
    assert [found.name for found in find_sets(corpus.folder)] == [parent.name]


def test_an_order_without_weights_has_nothing_to_go_on_with(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=30, math=30))
    for parent in (corpus.build(None), corpus.build(20)):
        with pytest.raises(SettingsError, match="has no weights to go on with; build a new index set instead"):
            corpus.extend(parent, samples=1000)


def test_a_single_source_has_nothing_to_weigh(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=30))
    with pytest.raises(SettingsError, match="a single source takes part, so there is nothing to weigh"):
        corpus.extend(corpus.build(20), from_sample=5, weights={"web": 2.0})


def test_a_source_that_joins_must_have_a_sample_and_get_one(new_corpus: NewCorpus) -> None:
    corpus = new_corpus({**lengths_of(web=60), "tiny": [1, 2, 1]}, {"web": 1.0, "tiny": 0.0})
    parent = corpus.build(40, splits="1", sequence_length=8)
    extension = corpus.extend(parent, from_sample=30, weights={"web": 1.0, "tiny": 1.0})
    assert extension.order("train").members[1].epochs > 1
    with pytest.raises(SettingsError, match="source 'tiny' would get none of the 40 samples at its shares"):
        corpus.extend(parent, from_sample=39, weights={"web": 1.0, "tiny": 1e-9})
    empty = new_corpus({**lengths_of(web=60), "none": [0, 0]}, {"web": 1.0, "none": 0.0})
    with pytest.raises(DataError, match="source 'none' gives no sample: its 2 sequences hold 0 tokens"):
        empty.extend(empty.build(40, splits="1"), from_sample=30, weights={"web": 1.0, "none": 1.0})


def test_an_order_of_other_shards_does_not_go_on(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=30))
    parent = corpus.build(20)
    corpus.manifest = corpus.write(lengths_of(web=31), {})
    with pytest.raises(CorpusError, match="built from other shards of source 'web' than the corpus holds now"):
        corpus.extend(parent, samples=200)


@pytest.mark.parametrize("name", ["train/math/document_index.npy", "valid/web/shuffle_index.npy"])
def test_a_damaged_parent_is_not_built_upon(name: str, new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=300, math=3000), {"web": 1.0, "math": 1.0})
    parent = corpus.build(100)
    path = Path(parent.folder) / name
    data = bytearray(path.read_bytes())
    data[140] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=rf"{name}: sha256 .* is recorded: damaged, so nothing can be built on it"):
        corpus.extend(parent, samples=110)
    assert len(find_sets(corpus.folder)) == 1


def test_integers_that_would_have_to_grow_are_refused(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=30))
    parent = corpus.build(20)
    with pytest.raises(SettingsError, match="more than its stored indices can number without being rewritten"):
        plan_extension(parent, index_sources(corpus.manifest.sources), samples=10**10)


# The record


EDITS: list[tuple[Callable[[Any], object], str]] = [
    (lambda value: value.update(parent="0" * 64), "the key [0-9a-f]{12} is not that of the settings and sources"),
    (lambda value: value.update(parent=None), "instead of|was planned but not built"),
    (lambda value: value["history"][0].pop("change"), "KeyError: 'change'"),
    (lambda value: value["members"][0].update(rows=5), "rows of its blocks .* instead of"),
    (lambda value: value["members"][0].update(place=1), "recorded at place 1, where it is not"),
    (lambda value: value["members"][0].update(start=1), "start 1 instead of 0"),
    (lambda value: value["members"][0]["later"][0].update(rows=5), "rows of its blocks .* instead of"),
    (lambda value: value["members"][0]["later"][0].update(dropped_tokens=99), "dropped tokens .* instead of"),
    (lambda value: value["members"][0]["later"].pop(), "rows of its blocks .* instead of"),
    (lambda value: value["members"][0]["files"].popitem(), "files .* instead of"),
    (lambda value: value["members"].append(value["members"][0]), "two reports of one member"),
    (lambda value: value["blends"][0].update(samples=7), "samples 7 instead of 200"),
    (lambda value: value["blends"][0].update(size=7), "files .* instead of"),
    (lambda value: value["blends"][0]["weights"].pop(), "weights of its phases .* instead of"),
    (lambda value: value["blends"].pop(0), "2 sources take part, so the split needs a blend and has none"),
    (lambda value: value["settings"]["requests"]["train"].update(samples=10**6), "samples 200 instead of 1000000"),
    (lambda value: value["splits"][0].update(samples=7), "the summary of the splits contradicts the reports"),
    (lambda value: value["splits"][0].update(left_out=[{"source": "x", "reason": "y"}]), "KeyError: 'x'"),
]


@pytest.mark.parametrize(("change", "message"), EDITS)
def test_a_damaged_record_of_an_extension_is_never_accepted(
    change: Callable[[Any], object], message: str, new_corpus: NewCorpus
) -> None:
    corpus = new_corpus(lengths_of(web=30, math=30), {"web": 1.0, "math": 2.0})
    extension = corpus.extend(corpus.build(20), samples=200)
    path = Path(extension.folder) / "set.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    with pytest.raises(FormatError, match=rf"set\.json: .*({message})"):
        read_set(extension.folder)


def test_an_extension_says_where_it_comes_from(new_corpus: NewCorpus) -> None:
    corpus = new_corpus(lengths_of(web=30, math=30), {"web": 1.0, "math": 2.0})
    parent = corpus.build(20)
    extension = corpus.extend(parent, samples=200)
    value = json.loads((Path(extension.folder) / "set.json").read_text())
    assert value["parent"] == parent.key
    (link,) = value["history"]
    assert link["parent"] == order_fingerprint(parent, "train")
    assert link["from_sample"] == extension.history[0].from_sample
    assert link["change"].keys() == {"blocks"}
    fresh = json.loads((Path(parent.folder) / "set.json").read_text())
    assert (fresh["parent"], fresh["history"]) == (None, [])
