"""What the field knows of deduplication going wrong, end to end: who goes, who stays, and what is told of it."""

import itertools
import json
import random
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import DataError
from gristmill.formats.verify import verify_corpus
from gristmill.pipelines.scan import KEY_DTYPE

SKIP = {"bad_records": "skip", "max_bad_fraction": 1.0}
LOOSE = {"warn_fraction": 1.0, "max_fraction": 1.0}
WORDS = [
    *("the", "of", "and", "to", "in", "that", "with", "which", "people", "water", "river", "house", "small", "large"),
    *("green", "music", "paper", "engine", "north", "seven", "bridge", "winter", "letter", "garden", "market", "stone"),
    *("animal", "window", "summer", "doctor", "island", "silver", "forest", "question", "weather", "kitchen", "story"),
    *("number", "school", "village", "morning", "picture", "history", "machine", "captain", "evening", "harbour"),
]


@pytest.fixture
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of some tens of kilobytes."""
    monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 40_000)


def english(count: int, seed: int, size: int = 2000) -> list[str]:
    """Unrelated texts of about so many characters."""
    draw = random.Random(seed)
    texts: list[str] = []
    while len(texts) < count:
        sentences: list[str] = []
        while sum(map(len, sentences)) < size:
            sentences.append(" ".join(draw.choices(WORDS, k=draw.randint(6, 14))).capitalize() + ".")
        texts.append(" ".join(sentences))
    return texts


def stubs(count: int) -> list[str]:
    """Functions of two lines that differ in a name."""
    return [
        f"def get_{word}_{number}(self):\n    return self._{word}\n"
        for number, word in zip(range(count), itertools.cycle(WORDS), strict=False)
    ]


def samples(shop: Any, ending: str, output: str = "out") -> list[dict[str, str]]:
    files = sorted((shop.folder / output / "rejected").rglob(f"*.{ending}.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def rates(shop: Any, source: str) -> dict[str, float]:
    account = json.loads((shop.folder / "out" / "report" / "account.json").read_bytes())
    found: dict[str, float] = account["sources"][source]["clean"]["removal_rate"]
    return found


class TestUnrelatedAndAlike:
    """Unrelated texts stay; of those alike in all but case and white space one stays; empty ones hide nothing."""

    ALIKE = (
        "One Text, of which there are copies.",
        "one text, of which there  are copies.\n",
        "ONE TEXT, OF WHICH THERE ARE COPIES. ",
    )

    @pytest.mark.parametrize("turned", [False, True])
    def test_one_of_each_stays_for_any_number_of_workers(self, workshop: Any, small_splits: None, turned: bool) -> None:
        unrelated = english(200, seed=1) + stubs(50)
        files = [
            workshop.jsonl("in/a.jsonl", [*unrelated[:150], self.ALIKE[0], "", " \n"]),
            workshop.jsonl("in/b.jsonl", [*["", "\t"] * 100, self.ALIKE[1], *unrelated[150:], self.ALIKE[2]]),
        ]
        source = {"files": files[::-1] if turned else files}
        dedup: dict[str, Any] = {"near_dedup": {}, "dedup_key": "normalized"}
        workshop.prepare(source, **dedup)
        expected = [*unrelated[:150], self.ALIKE[0], *unrelated[150:]]
        if turned:
            expected = [self.ALIKE[1], *unrelated[150:], *unrelated[:150]]
        assert workshop.texts("s0") == expected
        assert workshop.manifest()["sources"][0]["dropped"] == {"empty": 101, "blank": 101, "exact_duplicate": 2}
        assert rates(workshop, "s0") == {"exact_duplicate": round(2 / 253, 6)}
        told = samples(workshop, "copies")
        (kept,) = {sample["kept"] for sample in told}
        assert kept.startswith("s0/b.jsonl: record 200 of split 0" if turned else "s0/a.jsonl: record ")
        assert {sample["where"].split(":")[0] for sample in told} == ({"a.jsonl", "b.jsonl"} if turned else {"b.jsonl"})
        other = str(workshop.folder / "other")
        workshop.prepare(source, **dedup, options={"max_workers": 4}, output=other)
        assert workshop.tree(other) == workshop.tree()
        workshop.prepare({"files": [str(workshop.folder / "in")]}, **dedup, output=other + "-folder")
        assert (workshop.tree(other + "-folder") == workshop.tree()) is not turned


class TestChain:
    """Texts each of which is like the next, while the last has nothing of the first."""

    def texts(self) -> list[str]:
        words = [f"w{number}" for number in range(500)]
        return [" ".join(words[8 * link : 8 * link + 200]) for link in range(26)]

    def test_the_first_stays_and_the_loss_is_told(self, workshop: Any) -> None:
        source = {"files": [workshop.jsonl("a.jsonl", self.texts() + english(14, seed=2))]}
        with pytest.warns(UserWarning, match=r"'s0': 25 of 40 documents are near duplicates .*warn_fraction = 0\.3"):
            workshop.prepare(source, near_dedup={})
        assert workshop.texts("s0") == [self.texts()[0], *english(14, seed=2)]
        assert workshop.manifest()["sources"][0]["dropped"] == {"near_duplicate": 25}
        assert rates(workshop, "s0") == {"near_duplicate": 0.625}
        told = samples(workshop, "copies")
        assert [sample["kept"] for sample in told] == ["s0/a.jsonl: record 0 of split 0"] * 20
        assert [sample["where"] for sample in told[:2]] == [f"a.jsonl: record {n} of split 0" for n in (1, 2)]
        shared = [max(0, 196 - 8 * link) for link in range(1, 21)]
        assert [sample["found"] for sample in told] == [
            f"similarity {same / (2 * 196 - same):.4f}, threshold 0.7" for same in shared
        ]

    def test_a_source_that_is_one_chain_stops_the_run(self, workshop: Any) -> None:
        source = {"files": [workshop.jsonl("a.jsonl", self.texts())]}
        with pytest.raises(
            DataError, match=r"'s0': 25 of 26 documents are near duplicates .*max_fraction = 0\.8 allows"
        ):
            workshop.prepare(source, near_dedup={})


def grams(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return set(itertools.pairwise(words))


def survivors(sources: list[list[str]], threshold: float) -> list[list[str]]:
    """Who stays: of each text the first, then of each set of texts joined by similar pairs the first."""
    every = [(number, text) for number, texts in enumerate(sources) for text in texts]
    first = [entry for place, entry in enumerate(every) if entry[1] not in [text for _, text in every[:place]]]
    label = list(range(len(first)))
    for one, other in itertools.combinations(range(len(first)), 2):
        left, right = grams(first[one][1]), grams(first[other][1])
        if left and right and len(left & right) / len(left | right) >= threshold:
            low, high = sorted((label[one], label[other]))
            label = [low if entry == high else entry for entry in label]
    return [
        [text for place, (owner, text) in enumerate(first) if owner == number and label[place] == place]
        for number in range(len(sources))
    ]


TEXT = st.lists(st.sampled_from("abcde"), min_size=1, max_size=7).map(" ".join)


@given(st.lists(st.lists(TEXT, min_size=1, max_size=4), min_size=1, max_size=2))
@settings(max_examples=20, deadline=None)
def test_the_survivors_are_those_of_the_definition(new_workshop: Callable[[], Any], sources: list[list[str]]) -> None:
    """With as many bands as this, of one row each, no pair above the threshold is missed."""
    shop = new_workshop()
    listed = [{"files": [shop.jsonl(f"{number}.jsonl", texts)]} for number, texts in enumerate(sources)]
    near = {"ngram": 2, "bands": 64, "rows": 1, "threshold": 0.5, **LOOSE}
    shop.prepare(*listed, near_dedup=near, options={"last": "clean"})
    for number, (texts, expected) in enumerate(zip(sources, survivors(sources, 0.5), strict=True)):
        folder = shop.folder / "out" / "clean" / f"s{number}"
        kept = np.fromfile(folder / "00000.keys", KEY_DTYPE)["record"]
        left = np.setdiff1d(kept, np.fromfile(folder / "00000.drops", "<u4"))
        assert [texts[record] for record in left] == expected


def everything(shop: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Sources with copies, near duplicates and repeated paragraphs within and across them, and the rest of a recipe.

    Those of the first and the last have ids, a few excepted.
    """
    draw = random.Random(7)
    parts = english(60, seed=3, size=150)
    texts = ["\n\n".join(draw.choices(parts, k=draw.randint(1, 5))) for _ in range(150)]
    texts += [text.upper() for text in texts[:20]] + [f"{text} more" for text in texts[20:40]]
    draw.shuffle(texts)
    texts += english(12, seed=4, size=150)
    files = [[shop.write(f"{name}.jsonl", named(name, texts[start::4]))] for start, name in enumerate("abcd")]
    sources: list[dict[str, Any]] = [
        {"files": files[0] + files[1], "id_field": "name"},
        {"files": files[2], "clean": {"min_chars": 200}},
        {"files": files[3], "id_field": "name", "carry": ["number"]},
    ]
    return sources, {"near_dedup": LOOSE, "paragraph_dedup": {"min_chars": 40, **LOOSE}}


def named(name: str, texts: list[str]) -> bytes:
    """JSON lines of texts whose records are called `name` and a number, all but every eighth."""
    rows = [
        {"text": text, "number": number} | ({"name": f"{name}{number}"} if number % 8 else {})
        for number, text in enumerate(texts)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def check_ids(shop: Any) -> None:
    """Samples must call documents by ids whose texts are alike, where their sources have ids."""
    rows = [json.loads(line) for name in "abcd" for line in (shop.folder / f"{name}.jsonl").read_text().splitlines()]
    texts = {row["name"]: row["text"] for row in rows if "name" in row}
    pairs: list[tuple[str, str, str]] = []
    for ending in ("copies", "paragraphs"):
        for sample in samples(shop, ending):
            own, kept = sample.get("id"), sample.get("kept_id")
            assert (own or "abd")[0] in "abd", "the source in the middle has no ids"
            assert own is None or own[0] == sample["where"][0]
            assert kept is None or kept[0] == sample["kept"].partition("/")[2][0]
            if own is not None and kept is not None:
                parts = [
                    texts[name].split("\n\n")[int(place.rpartition(" ")[2])] if "paragraph " in place else texts[name]
                    for name, place in ((own, sample["where"]), (kept, sample["kept"]))
                ]
                pairs.append((sample["reason"], *parts))
    for reason, gone, stays in pairs:
        if reason == "near_duplicate":
            assert gone.lower().split()[0] == stays.lower().split()[0]
        else:
            assert gone.casefold().split() == stays.casefold().split()
    assert {reason for reason, _, _ in pairs} == {
        *("exact_duplicate", "near_duplicate"),
        *("paragraphs.removed", "paragraphs.none_left"),
    }


def test_samples_are_verified_and_those_of_another_recipe_gone(workshop: Any) -> None:
    sources, rest = everything(workshop)
    sources.append({"files": [workshop.write("e.jsonl", b'{"text": "a"}\noops\n')], "clean": False, **SKIP})
    sources[0]["clean"] = {"max_tokens": 200, "exact_dedup": False}
    workshop.prepare(*sources, **rest)
    out = workshop.folder / "out"
    files = sorted((out / "rejected").rglob("*.jsonl"))
    assert {path.name.split(".", 1)[1] for path in files} == {
        *("jsonl", "copies.jsonl", "paragraphs.jsonl", "tokens.jsonl"),
    }
    for path in files:
        data = path.read_bytes()
        path.write_bytes(data.replace(b"r", b"R", 1))
        (problem,) = verify_corpus(str(out))
        assert problem.startswith(f"{path}: sha256 ")
        path.unlink()
        (problem,) = verify_corpus(str(out))
        assert problem.startswith(f"{path}: cannot be opened: No such file")
        assert workshop.prepare(*sources, **rest).stages == (), "nobody cleans anew for the sake of a sample"
        path.write_bytes(data)
    assert verify_corpus(str(out)) == []
    workshop.prepare(*sources)
    workshop.prepare(*sources, output=str(workshop.folder / "other"))
    assert workshop.tree() == workshop.tree(workshop.folder / "other")


@pytest.mark.parametrize(
    "way",
    [
        {"max_workers": 4},
        {"last": "clean"},
        pytest.param({"runner": "FnApiRunner"}, marks=pytest.mark.slow),
        pytest.param(
            {"runner": "FnApiRunner", "flags": ("--direct_num_workers=2", "--direct_runner_bundle_repeat=1")},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_every_way_of_running_comes_to_the_same(
    workshop: Any, monkeypatch: pytest.MonkeyPatch, way: dict[str, Any]
) -> None:
    monkeypatch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 9000)
    monkeypatch.setattr("gristmill.pipelines.paragraph_dedup._PARTITION_BYTES", 2000)
    monkeypatch.setattr("gristmill.pipelines.beam_paragraphs._PARTITION_BYTES", 20_000)
    sources, rest = everything(workshop)
    loop, out = workshop.folder / "by-loop", workshop.folder / "out"
    workshop.prepare(*sources, **rest, output=str(loop))
    workshop.prepare(*sources, **rest, options=way)
    if "last" in way:
        shutil.rmtree(out / "rejected")
        (out / "_stages" / "clean.json").unlink()
        workshop.prepare(*sources, **rest)
    tree = workshop.tree()
    assert tree == workshop.tree(loop)
    for stage in ("clean", "tokenize"):
        assert (out / "_stages" / f"{stage}.json").read_bytes() == (loop / "_stages" / f"{stage}.json").read_bytes()
    assert verify_corpus(str(out)) == []
    check_ids(workshop)
    assert {name.partition("/")[0] for name in tree} == {"clean", "manifest.json", "rejected", "tokenizer", "tokens"}
    met = {reason for source in workshop.manifest()["sources"] for reason in source["dropped"]}
    assert {"exact_duplicate", "near_duplicate", "paragraphs.none_left", "paragraphs.min_chars"} <= met
    told = samples(workshop, "paragraphs")
    assert {sample["reason"] for sample in told} == {
        "paragraphs.removed",
        "paragraphs.none_left",
        "paragraphs.min_chars",
    }
