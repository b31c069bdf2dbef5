"""Estimates of what a source will give: near the truth for every format, from a small part of the input."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from gristmill.formats.errors import InputError
from gristmill.formats.recipe import parse_recipe
from gristmill.formats.storage import open_read
from gristmill.pipelines import estimate
from gristmill.pipelines.estimate import SourceEstimate, estimate_source
from gristmill.pipelines.inputs import InputFile, find_inputs

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog"]


@cache
def make_texts(count: int, seed: int = 0, longest: int = 120) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, size)) for size in random.integers(5, longest, count)]


def words_of(texts: list[str]) -> int:
    """Stands for a tokenizer: a token for each word, and one EOD for each document."""
    return sum(len(text.split()) + 1 for text in texts)


@pytest.fixture
def estimated(workshop: Any) -> Callable[..., SourceEstimate]:
    def estimate_files(files: str, **settings: Any) -> SourceEstimate:
        recipe = parse_recipe(workshop.values({"files": str(workshop.folder / files), **settings}))
        source = recipe.sources[0]
        found = find_inputs(source, "sources[0]", checksums=False)
        assert {file.checksum for file in found} == {""}
        return estimate_source(source, found, words_of)

    return estimate_files


def near(found: SourceEstimate, texts: list[str], by: float = 0.1) -> None:
    assert found.documents == pytest.approx(len(texts), rel=by)
    assert found.tokens == pytest.approx(words_of(texts), rel=by)


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what is read from files from here on."""
    sizes: list[int] = []

    class Counted:
        def __init__(self, raw: Any) -> None:
            self._raw = raw

        def read(self, size: int = -1) -> bytes:
            data: bytes = self._raw.read(size)
            sizes.append(len(data))
            return data

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self._raw.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._raw, name)

    for module in (estimate, __import__("gristmill.pipelines.lines", fromlist=["lines"])):
        monkeypatch.setattr(module, "open_read", lambda path: Counted(open_read(path)))
    return sizes


PACKS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


@pytest.mark.parametrize("suffix", PACKS)
@pytest.mark.parametrize("count", [50, 12_000])
def test_json_lines(count: int, suffix: str, workshop: Any, estimated: Callable[..., SourceEstimate]) -> None:
    texts = make_texts(count)
    for number in range(3):
        workshop.jsonl(f"in/{number}.jsonl{suffix}", texts[number::3], pack=PACKS[suffix])
    found = estimated("in", clean=False)
    near(found, texts, 0.0 if count == 50 else 0.1)
    assert found.sampled <= count


def test_a_large_input_is_read_in_a_few_places_only(
    workshop: Any, estimated: Callable[..., SourceEstimate], read_bytes: list[int]
) -> None:
    texts = make_texts(12_000, longest=600)
    path = workshop.jsonl("a.jsonl", texts)
    near(estimated("a.jsonl", clean=False), texts)
    assert sum(read_bytes) < 9 << 20 < Path(path).stat().st_size


def test_a_large_compressed_input_is_read_at_its_beginning_only(
    workshop: Any, estimated: Callable[..., SourceEstimate], read_bytes: list[int]
) -> None:
    texts = make_texts(12_000, longest=600)
    path = workshop.jsonl("a.jsonl.gz", texts, pack=gzip.compress)
    near(estimated("a.jsonl.gz", clean=False), texts)
    assert sum(read_bytes) < 1 << 20 < Path(path).stat().st_size


@pytest.mark.parametrize("count", [40, 20_000])
def test_parquet(count: int, workshop: Any, estimated: Callable[..., SourceEstimate]) -> None:
    texts = make_texts(count)
    (workshop.folder / "in").mkdir()
    for number in range(2):
        table = pa.table({"text": texts[number::2], "other": list(range(len(texts[number::2])))})
        pq.write_table(table, workshop.folder / "in" / f"{number}.parquet", row_group_size=3000)
    near(estimated("in", clean=False), texts, 0.0 if count == 40 else 0.1)


def test_lines_of_text(workshop: Any, estimated: Callable[..., SourceEstimate]) -> None:
    texts = make_texts(12_000)
    workshop.write("a.txt", "".join(f"{text}\n" for text in texts).encode())
    near(estimated("a.txt", document="line", clean=False), texts)


@pytest.mark.parametrize("name", ["a.txt", "a.py", "a.txt.gz"])
def test_files_that_are_documents(name: str, workshop: Any, estimated: Callable[..., SourceEstimate]) -> None:
    texts = [*make_texts(200, longest=400)]
    if not name.endswith(".gz"):
        texts[100] = " ".join(make_texts(3000))  # longer than what is read of a file
    pack = gzip.compress if name.endswith(".gz") else bytes
    for number, text in enumerate(texts):
        workshop.write(f"in/{number:03d}-{name}", pack(text.encode()))
    found = estimated("in", clean=False)
    assert found.documents == 200
    assert found.tokens == pytest.approx(words_of(texts), rel=0.35)
    assert found.sampled == 32


def test_a_beginning_is_not_cut_inside_a_character(workshop: Any, estimated: Callable[..., SourceEstimate]) -> None:
    text = "naïve 日本語 😀 " * 60_000
    for number in range(4):
        workshop.write(f"in/{number}.txt", (" " * number + text).encode())
    found = estimated("in", clean=False)
    assert found.documents == 4
    assert found.tokens == pytest.approx(4 * words_of([text]), rel=0.05)


def test_formats_of_one_source_are_added_up(workshop: Any, estimated: Callable[..., SourceEstimate]) -> None:
    texts = make_texts(300)
    workshop.jsonl("in/a.jsonl", texts[:100])
    workshop.jsonl("in/b.jsonl.gz", texts[100:200], pack=gzip.compress)
    pq.write_table(pa.table({"text": texts[200:]}), workshop.folder / "in" / "c.parquet")
    found = estimated("in", clean=False)
    assert (found.documents, found.tokens) == (300, words_of(texts))


def test_cleaning_and_bad_records_are_counted(workshop: Any, estimated: Callable[..., SourceEstimate]) -> None:
    texts = make_texts(9000)
    lines = [*texts[:1], *(text for kept in texts[1:] for text in (kept, "x"))]
    path = Path(workshop.jsonl("a.jsonl", lines))
    path.write_bytes(path.read_bytes().replace(b'{"text": "x"}\n', b'{"text": "x"}\n{"text": 5}\n'))
    near(estimated("a.jsonl", clean={"min_chars": 5}), texts)


def test_records_longer_than_a_place_are_found(workshop: Any, estimated: Callable[..., SourceEstimate]) -> None:
    texts = [" ".join(make_texts(8000, seed=number)) for number in range(4)]
    workshop.jsonl("in/a.jsonl", texts)
    near(estimated("in/a.jsonl", clean=False), texts, 0.6)
    workshop.jsonl("in/b.jsonl.gz", texts, pack=gzip.compress)
    near(estimated("in/b.jsonl.gz", clean=False), texts, 0.6)


def test_nothing_in_nothing_out(workshop: Any, estimated: Callable[..., SourceEstimate]) -> None:
    workshop.write("a.jsonl", b"")
    workshop.write("b.jsonl", b"\n\n\n")
    for name in ("a.jsonl", "b.jsonl"):
        assert estimated(name) == SourceEstimate(documents=0, tokens=0, sampled=0)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"content": "x"}\n', "none of 1 records has the text"),
        ("a.parquet", b"PAR1 no", "a.parquet: cannot be read as Parquet"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "x"}\n', mtime=0)[:-9], "the gzip data end before their end mark"),
    ],
)
def test_inputs_that_cannot_be_read_are_named(
    name: str, data: bytes, message: str, workshop: Any, estimated: Callable[..., SourceEstimate]
) -> None:
    workshop.write(name, data)
    with pytest.raises(InputError, match=message):
        estimated(name)


def test_files_are_taken_evenly() -> None:
    def file(number: int) -> InputFile:
        return InputFile(path=str(number), relative="", size=1, checksum="", format="text", compression=None)

    files = [file(number) for number in range(100)]
    assert [entry.path for entry in estimate._spaced(files, 4)] == ["12", "37", "62", "87"]
    assert estimate._spaced(files[:3], 4) == files[:3]


def test_documents_that_bounds_in_tokens_leave_out_do_not_count(workshop: Any, estimated: Any) -> None:
    texts = make_texts(2000)
    workshop.jsonl("a.jsonl", texts)
    kept = [text for text in texts if 30 <= len(text.split()) <= 80]
    assert len(kept) < 0.6 * len(texts)
    near(estimated("a.jsonl", clean={"min_tokens": 30, "max_tokens": 80}), kept)


def test_a_place_in_which_no_record_has_the_text(workshop: Any, estimated: Callable[..., SourceEstimate]) -> None:
    """Records so long that few fit in a place: one bad record there is no wrong name, but all of them are."""
    rows = [{"text" if number != 3 else "other": "word " * 20_000} for number in range(20)]
    workshop.write("a.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    found = estimated("a.jsonl", bad_records="skip", max_bad_fraction=0.1, clean={"exact_dedup": False})
    assert 10 <= found.documents <= 20
    with pytest.raises(InputError, match="none of 1 records has the text"):
        estimated("a.jsonl", bad_records="skip", text_field="body")


def test_the_last_row_of_a_csv_counts(workshop: Any, estimated: Callable[..., SourceEstimate]) -> None:
    workshop.write("a.csv", b"text\none row")
    assert estimated("a.csv").documents == 1
