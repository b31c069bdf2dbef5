"""Scanning and exact deduplication against a loop over a dictionary."""

import dataclasses
import json
import random
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.formats.errors import RecipeError
from gristmill.formats.recipe import Recipe, parse_recipe
from gristmill.pipelines import folding
from gristmill.pipelines import plan as plan_module
from gristmill.pipelines import text_keys as text_keys_module
from gristmill.pipelines.dedup import LOSER_DTYPE, later_copies, read_drops, write_drops
from gristmill.pipelines.job import Job, make_job
from gristmill.pipelines.plan import plan_run, write_plan
from gristmill.pipelines.scan import RANKED_DTYPE, partition_keys, read_keys, scan_split
from gristmill.pipelines.stages import close_clean
from gristmill.pipelines.text_keys import normal_form, normal_forms_of, text_keys

Texts = list[list[str]]


def write(folder: Path, sources: Texts, **settings: Any) -> Recipe:
    """A recipe over one JSON lines file per source; `clean<number>` in `settings` is the table of one source."""
    listed = []
    for number, texts in enumerate(sources):
        path = folder / f"s{number}.jsonl"
        path.write_bytes(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts))
        clean = settings.get(f"clean{number}")
        listed.append({"id": f"s{number}", "files": [str(path)]} | ({} if clean is None else {"clean": clean}))
    values = {"name": "test", "output": str(folder / "out"), "tokenizer": {"path": "t.json"}, "sources": listed}
    return parse_recipe(values)


def start(recipe: Recipe) -> Job:
    plan = plan_run(recipe)
    write_plan(recipe.output, plan)
    return make_job(recipe, plan, tokenizer=None, engine=None)


def survivors(job: Job, order: random.Random | None = None) -> dict[int, list[int]]:
    """Records of each source that are left, counted over the source; work is done in the order of `order`."""
    splits = [split for split in plan_module.read_plan(job.corpus).splits if job.scans(split)]
    shuffled = list(splits)
    if order is not None:
        order.shuffle(shuffled)
    scans = {split.number: scan_split(job, split) for split in shuffled}
    dealt: dict[int, list[bytes]] = {}
    for split in shuffled:
        for group, keys in partition_keys(job, split):
            dealt.setdefault(group, []).append(keys)
    losers: dict[int, list[bytes]] = {}
    for dealt_keys in dealt.values():
        for number, records in later_copies(dealt_keys):
            losers.setdefault(number, []).append(records)
    drops = [write_drops(job, split, scans[split.number], losers.get(split.number, [])) for split in shuffled]
    close_clean(job, list(scans.values()), drops)
    found: dict[int, list[int]] = {}
    before: Counter[int] = Counter()
    for split in splits:
        kept = read_keys(job, job.source_of(split).id, split.part)["record"]
        left = np.setdiff1d(kept, read_drops(job, split))
        found.setdefault(split.source, []).extend((left.astype(int) + before[split.source]).tolist())
        before[split.source] += scans[split.number]["records"]
    return found


def normal(text: str) -> str:
    """The definition of a text's normal form."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def oracle(
    sources: Texts, takes_part: list[bool] | None = None, key: Callable[[str], str] = normal
) -> dict[int, list[int]]:
    """Who survives, by a set of the keys met so far."""
    seen: set[str] = set()
    found: dict[int, list[int]] = {}
    for source, texts in enumerate(sources):
        found[source] = []
        for record, text in enumerate(texts):
            if not text or text.isspace():
                continue
            if takes_part is None or takes_part[source]:
                if key(text) in seen:
                    continue
                seen.add(key(text))
            found[source].append(record)
    return found


VARIANTS = [
    "a",
    "b",
    "A",
    "a ",
    "",
    " ",
    "c" * 30,
    "d",
    "é",
    "e\u0301",
    "É",
    "a  b",
    "a\nb",
    "\u3000A\xa0b",
    "ab",
    "ß",
    "SS",
]
DOCUMENTS = st.lists(st.sampled_from(VARIANTS), min_size=1)


@given(
    sources=st.lists(DOCUMENTS, min_size=1, max_size=4),
    key=st.sampled_from(["normalized", "identical"]),
    partitions=st.integers(1, 5),
    seed=st.integers(0, 9),
)
@settings(max_examples=30, deadline=None)
def test_the_first_of_each_text_stays(
    tmp_path_factory: pytest.TempPathFactory, sources: Texts, key: str, partitions: int, seed: int
) -> None:
    before, plan_module.SPLIT_BYTES = plan_module.SPLIT_BYTES, 90
    try:
        recipe = dataclasses.replace(write(tmp_path_factory.mktemp("dedup"), sources), dedup_key=key)
        found = survivors(dataclasses.replace(start(recipe), partitions=partitions), random.Random(seed))
    finally:
        plan_module.SPLIT_BYTES = before
    assert found == oracle(sources, key=normal if key == "normalized" else str)


ODD_CHARACTERS = "aA \t\n\x0b\x1c\x85\xa0\u2003\u3000éÉe\u0301I\u0307ßẞİ\u0131\u017fΣς\ufb01世"


WAYS = {"looked up": 1 << 60, "compiled": -1}


@pytest.fixture(params=sorted(WAYS))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By which of two ways the forms of texts that are not ASCII are made."""
    monkeypatch.setattr(text_keys_module, "_BY_NUMPY", WAYS[request.param])


def forms_of(texts: list[str]) -> list[bytes]:
    return [bytes(form) for form in normal_forms_of(texts, [text.encode() for text in texts])]


@pytest.mark.usefixtures("way")
@given(
    texts=st.lists(st.text(st.sampled_from(ODD_CHARACTERS) | st.characters(codec="utf-8")), max_size=5),
    piece=st.integers(4, 20),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_normal_forms_are_as_defined(texts: list[str], piece: int) -> None:
    before = text_keys_module._PIECE, folding._PIECE
    text_keys_module._PIECE = folding._PIECE = piece
    try:
        assert forms_of(texts) == [normal(text).encode() for text in texts]
    finally:
        text_keys_module._PIECE, folding._PIECE = before
    assert [normal_form(normal(text)) for text in texts] == [normal(normal(text)).encode() for text in texts]


@pytest.mark.usefixtures("way")
def test_the_normal_forms_of_long_texts() -> None:
    lines = ["Two  Words\n", "\tif x:\r\n\n", "É\u00a0e\u0301 ", "\x00 \x1f\x0e  ", "Straße ŉ ﬁ I\u0307 ", "स्वतन्त्रता "]
    texts = ["".join(random.Random(seed).choices(lines[: 2 + seed], k=40_000)) for seed in range(5)]
    assert forms_of(texts) == [normal(text).encode() for text in texts]


@pytest.mark.usefixtures("way")
def test_every_code_point_is_folded_as_defined() -> None:
    texts = [f"{char}a{char}" for char in map(chr, range(0x110000)) if not 0xD800 <= ord(char) < 0xE000]
    for start in range(0, len(texts), 4096):
        some = texts[start : start + 4096]
        assert forms_of(some) == [normal(text).encode() for text in some]


def test_what_nfc_composes_is_known() -> None:
    pairs = [unicodedata.decomposition(chr(code)).split() for code in range(0x110000)]
    seconds = {chr(int(pair[1], 16)) for pair in pairs if len(pair) == 2 and not pair[0].startswith("<")}
    hangul = {unicodedata.normalize("NFD", chr(code))[-1] for code in range(0xAC00, 0xD7A4)}
    assert folding._composing() >= seconds | hangul


@pytest.mark.parametrize("times", [1, 5000])  # by a call for each, and all in one
def test_keys_do_not_depend_on_who_makes_them(times: int) -> None:
    texts = ["Two  Words" * times, "two words\n" * times, "É" * times, "e\u0301" * times, "other"]
    for normalized, key in ((True, normal), (False, str)):
        keys, sizes = text_keys(texts, normalized=normalized)
        assert keys.tobytes() == b"".join(xxhash.xxh3_128_digest(key(text).encode()) for text in texts)
        assert sizes == [len(text.encode()) for text in texts]


def test_each_kept_text_is_as_it_was(workshop: Any) -> None:
    texts = ["Two  Words\n", "two words", "TWO\tWORDS ", "other"]
    workshop.prepare({"files": workshop.jsonl("a.jsonl", texts)})
    assert workshop.texts("s0") == [texts[0], texts[3]]
    cleaning = workshop.manifest()["sources"][0]["cleaning"]
    assert cleaning["dedup_key"] == {"key": "gristmill-normalized-1", "unicode_tables": unicodedata.unidata_version}
    workshop.prepare({"files": workshop.jsonl("a.jsonl", texts)}, dedup_key="identical")
    assert workshop.texts("s0") == texts
    assert workshop.manifest()["sources"][0]["cleaning"]["dedup_key"] == {"key": "gristmill-identical-1"}


def test_a_recipe_that_compares_nothing_does_not_follow_from_the_key(tmp_path: Path) -> None:
    compares = write(tmp_path, [["a"], ["b"]], clean0=False)
    assert compares.digest() != dataclasses.replace(compares, dedup_key="identical").digest()
    nothing = write(tmp_path, [["a"], ["b"]], clean0=False, clean1={"exact_dedup": False})
    assert nothing.digest() == dataclasses.replace(nothing, dedup_key="identical").digest()


def test_a_key_that_there_is_not(workshop: Any) -> None:
    with pytest.raises(RecipeError, match=r'dedup_key: is "lower"; it must be one of "identical", "normalized"'):
        workshop.prepare({"files": workshop.jsonl("a.jsonl", ["a"])}, dedup_key="lower")


def test_a_source_may_stay_out(tmp_path: Path) -> None:
    sources = [["a", "b"], ["a", "a", "b", " "], ["b", "c", "c"]]
    job = start(write(tmp_path, sources, clean1={"exact_dedup": False}))
    assert survivors(job) == oracle(sources, [True, False, True]) == {0: [0, 1], 1: [0, 1, 2], 2: [1]}


def test_a_source_that_is_not_cleaned_is_not_scanned(tmp_path: Path) -> None:
    job = start(write(tmp_path, [["a", "b"], ["a", "c"]], clean0=False))
    assert survivors(job) == {1: [0, 1]}


def test_hashes_are_of_the_text_and_not_of_the_line(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "a.jsonl").write_bytes(
        b'{"text":"a\\u00e9"}\n{"n":1, "text": "a\xc3\xa9"}\r\n{"text":"\\u0061\\u00E9","x":2}\n'
    )
    (folder / "b.txt").write_bytes("aé".encode())
    values = {
        "name": "test",
        "output": str(folder / "out"),
        "tokenizer": {"path": "t.json"},
        "sources": [{"id": "s", "files": [str(folder / "a.jsonl"), str(folder / "b.txt")]}],
    }
    assert survivors(start(parse_recipe(values))) == {0: [0]}


@given(
    keys=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 5), st.integers(0, 9)), unique=True),
    cuts=st.lists(st.integers(0, 30), max_size=4),
)
def test_later_copies_of_any_cut(keys: list[tuple[int, int, int, int]], cuts: list[int]) -> None:
    places = {(split, record) for _, _, split, record in keys}
    keys = [next(key for key in keys if key[2:] == place) for place in places]
    packed = np.array([((low, high), split << 32 | record) for low, high, split, record in keys], RANKED_DTYPE)
    bounds = sorted({0, len(keys), *(min(cut, len(keys)) for cut in cuts)})
    found = later_copies(packed[a:b].tobytes() for a, b in zip(bounds, bounds[1:] or bounds))
    first: dict[tuple[int, int], tuple[int, int]] = {}
    for low, high, split, record in sorted(keys, key=lambda key: key[2:]):
        first.setdefault((low, high), (split, record))
    expected: dict[int, list[tuple[int, int]]] = {}
    for low, high, split, record in sorted(keys, key=lambda key: key[2:]):
        if first[low, high] != (split, record):
            expected.setdefault(split, []).append((record, first[low, high][0] << 32 | first[low, high][1]))
    assert {split: np.frombuffer(records, LOSER_DTYPE).tolist() for split, records in found} == expected
    assert [split for split, _ in found] == sorted(expected)


def test_the_largest_ranks() -> None:
    top = 2**32 - 1
    packed = np.array([((1, 1), top << 32 | top), ((1, 1), top << 32), ((1, 1), 5)], RANKED_DTYPE)
    found = later_copies([packed.tobytes()])
    assert [(split, np.frombuffer(records, LOSER_DTYPE).tolist()) for split, records in found] == [
        (top, [(0, 5), (top, 5)])
    ]


def test_a_scan_that_finds_no_fault_leaves_none_from_before(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    values = {
        "name": "test",
        "output": str(tmp_path / "out"),
        "tokenizer": {"path": "t.json"},
        "sources": [{"id": "s", "files": [str(path)], "bad_records": "skip", "max_bad_fraction": 0.5}],
    }
    path.write_bytes(b'{"text": "a"}\nbad\n')
    survivors(start(parse_recipe(values)))
    rejected = tmp_path / "out" / "rejected" / "s" / "00000.jsonl"
    assert json.loads(rejected.read_bytes())["where"] == "a.jsonl:2"
    path.write_bytes(b'{"text": "a"}\n{"text": "b"}\n')
    survivors(start(parse_recipe(values)))
    assert not rejected.exists()


def test_a_finished_scan_is_not_done_again(tmp_path: Path) -> None:
    job = start(write(tmp_path, [["a", "b"]]))
    first = survivors(job)
    keys = tmp_path / "out" / "clean" / "s0" / "00000.keys"
    before = keys.stat().st_mtime_ns
    assert survivors(job) == first
    assert keys.stat().st_mtime_ns == before
    keys.unlink()
    assert survivors(job) == first
