"""Near deduplication: shingles, pairs, clusters, and what a corpus keeps."""

import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import DataError, RecipeError
from gristmill.formats.near_table import NearDedup
from gristmill.pipelines.clusters import (
    ROUNDS,
    deal_both,
    deal_larger,
    large_star,
    losers_by_split,
    small_star,
    unfinished,
)
from gristmill.pipelines.dedup import LOSER_DTYPE
from gristmill.pipelines.near_pairs import PAIR_DTYPE, RANKED_BAND_DTYPE, pairs_of_groups
from gristmill.pipelines.near_signatures import Shingles, band_keys, letters, shingles_of

ALONE = 0x80000000


def words(text: str) -> list[str]:
    """The words of a text, one character after the other."""
    table = letters()
    found, word = [], ""
    for character in [*text, " "]:
        letter = int(table[ord(character)])
        if letter in {0} or letter >= ALONE:
            found += [word] if word else []
            found += [character] if letter else []
            word = ""
        else:
            word += chr(letter)
    return found


def shingle_set(text: str, ngram: int) -> set[tuple[str, ...]]:
    listed = words(text)
    return {tuple(listed[place : place + ngram]) for place in range(len(listed) - ngram + 1)}


def jaccard(one: str, other: str, ngram: int) -> float:
    first, second = shingle_set(one, ngram), shingle_set(other, ngram)
    return len(first & second) / len(first | second) if first and second else 0.0


class TestShingles:
    @given(
        texts=st.lists(st.text("ab É7世界ก.,'\n", max_size=40) | st.text(max_size=30), max_size=6),
        ngram=st.integers(1, 4),
    )
    @settings(max_examples=200, deadline=None)
    def test_are_the_distinct_runs_of_words(self, texts: list[str], ngram: int) -> None:
        found = shingles_of(texts, ngram)
        assert found.counts.tolist() == [len(shingle_set(text, ngram)) for text in texts]
        parts = np.split(found.hashes, np.cumsum(found.counts)[:-1]) if texts else []
        for (one, part), (other, twin) in itertools.combinations(zip(texts, parts, strict=True), 2):
            shared = len(np.intersect1d(part, twin))
            assert shared == len(shingle_set(one, ngram) & shingle_set(other, ngram))
        assert all((np.diff(part.astype(np.int64)) > 0).all() for part in parts)

    def test_ignore_case_and_layout(self) -> None:
        one, other = shingles_of(["The  quick, brown FOX\njumps over", "the quick brown fox - jumps  (over)"], 3), 3
        assert one.counts.tolist() == [4, 4]
        assert one.hashes[:4].tolist() == one.hashes[4:].tolist()
        assert other == 3

    def test_of_scripts_without_spaces(self) -> None:
        assert words("你好 world ไทย") == ["你", "好", "world", "ไ", "ท", "ย"]
        assert words("naïve cafe\u0301 x2") == ["naïve", "cafe\u0301", "x2"]

    def test_of_few_words(self) -> None:
        assert shingles_of(["one two three four", "", "one two three four five"], 5).counts.tolist() == [0, 0, 1]


@pytest.mark.parametrize("similarity", [0.5, 0.7, 0.8, 0.9])
def test_pairs_are_found_at_the_rate_that_the_parameters_predict(similarity: float) -> None:
    rng, trials, size = random.Random(5), 400, 300
    shared = round(2 * size * similarity / (1 + similarity))
    for bands, rows in ((14, 8), (20, 5)):
        near = NearDedup(bands=bands, rows=rows)
        parts, counts = [], []
        for _ in range(trials):
            drawn = rng.sample(range(1 << 32), 2 * size - shared)
            parts.append(np.array(sorted(drawn[:size]) + sorted(drawn[size - shared :]), np.uint32))
            counts += [size, size]
        keys = band_keys(Shingles(np.concatenate(parts), np.array(counts)), near)
        found = (keys[::2] == keys[1::2]).any(axis=1).mean()
        predicted = 1 - (1 - similarity**rows) ** bands
        assert abs(found - predicted) < 4 * math.sqrt(predicted * (1 - predicted) / trials) + 0.01


def packed_bands(groups: dict[int, list[int]]) -> bytes:
    records = [(key, rank) for key, ranks in groups.items() for rank in ranks]
    random.Random(2).shuffle(records)
    return np.array(records, RANKED_BAND_DTYPE).tobytes()


@given(st.dictionaries(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 60), max_size=14, unique=True), max_size=6))
@settings(max_examples=100, deadline=None)
def test_the_pairs_of_groups(groups: dict[int, list[int]]) -> None:
    data = packed_bands(groups)
    pairs = pairs_of_groups([data[:48], data[48:]])
    expected = set()
    for ranks in groups.values():
        ordered = sorted(ranks)
        expected |= {(ordered[0], rank) for rank in ordered[1:]} | set(itertools.pairwise(ordered))
        if len(ordered) <= 8:
            expected |= set(itertools.combinations(ordered, 2))
    assert set(pairs.tolist()) == expected
    assert len(pairs) == len(expected)


def packed_edges(edges: list[tuple[int, int]]) -> bytes:
    ordered = [(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]]
    return np.array(ordered, PAIR_DTYPE).tobytes()


def losers(edges: list[tuple[int, int]]) -> set[int]:
    """Every member of a component but the least, by walking."""
    neighbours: dict[int, set[int]] = {}
    for one, other in edges:
        if one != other:
            neighbours.setdefault(one, set()).add(other)
            neighbours.setdefault(other, set()).add(one)
    lost: set[int] = set()
    seen: set[int] = set()
    for vertex in sorted(neighbours):
        waiting = [vertex] if vertex not in seen else []
        seen.add(vertex)
        while waiting:
            fresh = neighbours[waiting.pop()] - seen
            seen |= fresh
            lost |= fresh
            waiting += fresh
    return lost


def ranks_of(found: list[tuple[int, bytes]]) -> set[int]:
    return {(number << 32) | int(record) for number, data in found for record, _ in np.frombuffer(data, LOSER_DTYPE)}


def dealt(parts: list[bytes], deal: Callable[[bytes, int], list[tuple[int, bytes]]]) -> dict[int, list[bytes]]:
    groups: dict[int, list[bytes]] = {}
    for part in parts:
        for number, data in deal(part, 3):
            groups.setdefault(number, []).append(data)
    return groups


VERTICES = st.integers(0, 3).flatmap(lambda split: st.integers(0, 9).map(lambda record: (split << 32) | record))


class TestClusters:
    @given(st.lists(st.tuples(VERTICES, VERTICES), max_size=40))
    @settings(max_examples=200, deadline=None)
    def test_the_first_of_each_survives(self, edges: list[tuple[int, int]]) -> None:
        assert ranks_of(losers_by_split([packed_edges(edges[::2]), packed_edges(edges[1::2])])) == losers(edges)

    @given(st.lists(st.tuples(VERTICES, VERTICES), max_size=40))
    @settings(max_examples=200, deadline=None)
    def test_rounds_over_partitions_come_to_the_same(self, edges: list[tuple[int, int]]) -> None:
        parts = self.rounds([packed_edges(edges[::2]), packed_edges(edges[1::2])])
        assert self.left(parts) == 0
        groups = dealt(parts, deal_larger)
        assert set().union(*(ranks_of(losers_by_split(group)) for group in groups.values())) == losers(edges)

    def test_a_chain_too_long_for_the_rounds_is_noticed_and_keeps_its_components(self) -> None:
        order = list(range(5000))
        random.Random(1).shuffle(order)
        chain = list(itertools.pairwise(order))
        parts = self.rounds([packed_edges(chain)])
        left = self.left(parts)
        assert ranks_of(losers_by_split(parts)) == set(range(1, 5000))
        whole = set().union(*(ranks_of(losers_by_split(group)) for group in dealt(parts, deal_larger).values()))
        assert (left > 0) or whole == set(range(1, 5000))

    @staticmethod
    def rounds(parts: list[bytes]) -> list[bytes]:
        for _ in range(ROUNDS):
            parts = [large_star(group) for group in dealt(parts, deal_both).values()]
            parts = [small_star(group) for group in dealt(parts, deal_larger).values()]
        return parts

    @staticmethod
    def left(parts: list[bytes]) -> int:
        return sum(unfinished(group) for group in dealt(parts, deal_both).values())


def corpus_texts(seed: int) -> list[list[str]]:
    """Texts of two sources: originals, near copies of them in both, exact copies, short ones."""
    rng = random.Random(seed)
    vocabulary = [f"w{number}" for number in range(3000)]
    originals = [" ".join(rng.choices(vocabulary, k=rng.randint(30, 120))) for _ in range(60)]

    def altered(text: str, changes: int) -> str:
        parts = text.split()
        for _ in range(changes):
            parts[rng.randrange(len(parts))] = rng.choice(vocabulary)
        return " ".join(parts)

    copies = [altered(rng.choice(originals), rng.choice([0, 1, 1, 2, 6])) for _ in range(80)]
    copies += [rng.choice(originals).upper() for _ in range(10)] + ["too short"] * 2 + ["too, short"]
    rng.shuffle(copies)
    return [originals[:40] + copies[:45], originals[40:] + copies[45:]]


@pytest.fixture
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of some kilobytes."""
    monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 6000)


NEAR: dict[str, Any] = {
    "near_dedup": {"threshold": 0.7, "max_fraction": 1.0, "warn_fraction": 1.0},
    "dedup_key": "identical",  # so that texts in another case are near duplicates and no copies
}


class TestCorpus:
    def fill(self, workshop: Any) -> tuple[list[dict[str, Any]], list[list[str]]]:
        texts = corpus_texts(3)
        sources = [{"files": [workshop.jsonl(f"{name}.jsonl", own)]} for name, own in zip("ab", texts, strict=True)]
        return sources, texts

    def test_who_goes_is_verified_and_who_stays_is_first(self, workshop: Any, small_splits: None) -> None:
        sources, texts = self.fill(workshop)
        workshop.prepare(*sources, **NEAR)
        every = texts[0] + texts[1]
        exact = [text for place, text in enumerate(every) if text not in every[:place]]
        kept = workshop.texts("s0") + workshop.texts("s1")
        assert set(kept) < set(exact)
        for text in set(exact) - set(kept):
            similar = [other for other in exact if other != text and jaccard(text, other, 5) >= 0.7]
            assert similar, "nothing goes unverified"
            assert min(map(exact.index, similar)) < exact.index(text) or len(similar) > 1
        pairs = [(one, other) for one, other in itertools.combinations(kept, 2) if jaccard(one, other, 5) >= 0.9]
        assert len(pairs) <= 1, "of pairs so much alike hardly one in a thousand is missed"
        counts = [source["dropped"] for source in workshop.manifest()["sources"]]
        gone = sum(count.get("near_duplicate", 0) for count in counts)
        assert gone == len(exact) - len(kept) > 40
        assert sum(count["exact_duplicate"] for count in counts) == len(every) - len(exact)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "way",
        [
            {"max_workers": 3},
            {"runner": "FnApiRunner"},
            {"runner": "FnApiRunner", "flags": ("--direct_num_workers=2", "--direct_runner_bundle_repeat=1")},
            {"runner": "DaskRunner", "max_workers": 2},
        ],
    )
    def test_every_way_of_running_comes_to_the_same(
        self, workshop: Any, small_splits: None, way: dict[str, Any]
    ) -> None:
        sources, _ = self.fill(workshop)
        workshop.prepare(*sources, output=str(workshop.folder / "by-loop"), **NEAR)
        workshop.prepare(*sources, options=way, **NEAR)
        assert workshop.tree() == workshop.tree(workshop.folder / "by-loop")
        assert not (workshop.folder / "out" / "spill").exists()

    def test_a_source_may_be_left_out(self, workshop: Any) -> None:
        sources, texts = self.fill(workshop)
        workshop.prepare(*sources, **NEAR | {"near_dedup": NEAR["near_dedup"] | {"sources": ["s1"]}})
        assert workshop.texts("s0") == list(dict.fromkeys(texts[0]))
        assert workshop.manifest()["sources"][1]["dropped"]["near_duplicate"] > 0

    def test_a_source_that_would_lose_most_of_itself(self, workshop: Any) -> None:
        same = " ".join(f"w{number}" for number in range(200))
        source = {"files": [workshop.jsonl("a.jsonl", [f"{same} {number}" for number in range(10)])]}
        with pytest.raises(
            DataError, match=r"'s0': 9 of 10 documents are near duplicates of .*\.max_fraction = 0\.8 allows"
        ):
            workshop.prepare(source, near_dedup={})
        with pytest.raises(DataError, match=r"max_fraction = 0\.2 allows"):  # below what is warned of, too
            workshop.prepare(source, near_dedup={"max_fraction": 0.2, "warn_fraction": 0.95})
        assert not Path(workshop.folder / "out" / "manifest.json").exists()
        with pytest.warns(UserWarning, match=r"9 of 10 documents are near duplicates of .*\.warn_fraction = 0\.3"):
            workshop.prepare(source, near_dedup={"max_fraction": 0.95})
        assert workshop.texts("s0") == [f"{same} 0"]

    def test_mistakes_in_the_recipe(self, workshop: Any) -> None:
        sources, _ = self.fill(workshop)
        sources[1]["clean"] = False
        table = {"bands": 0, "rows": 65, "threshold": 1.5, "seed": -1, "sources": ["s1", "web"], "row": 1}
        with pytest.raises(RecipeError) as caught:
            workshop.prepare(*sources, near_dedup=table)
        said = str(caught.value)
        for words_of_it in ("near_dedup.bands", "near_dedup.rows", "near_dedup.threshold", "near_dedup.seed"):
            assert words_of_it in said
        assert 'names "web", which is no source' in said
        assert 'names "s1", which is not cleaned' in said
        assert "near_dedup.row" in said
