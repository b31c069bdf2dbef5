"""The description of the files, recomputed: its example from its own text, its tables from a real corpus."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from gristmill.formats.carry_table import Carry
from gristmill.formats.dedup_table import ParagraphDedup
from gristmill.formats.fingerprint import digest
from gristmill.formats.indexed import DTYPE_CODES, HEADER_BYTES, MAGIC
from gristmill.formats.indexed_writer import write_indexed
from gristmill.formats.indices import build_indices, plan_epochs
from gristmill.formats.manifest import Manifest, read_manifest
from gristmill.formats.near_table import NearDedup
from gristmill.formats.npy import write_npy
from gristmill.formats.origins import Extent, OriginFile, write_origins
from gristmill.formats.recipe import Recipe

README = (Path(__file__).resolve().parents[2] / "formats" / "README.md").read_text("utf-8")
PLAIN = README.translate({0xD7: "*", 0xF7: "/", 0x2212: "-"})
HEX = re.compile(r"[0-9a-f]{2}( [0-9a-f]{2})*")


def section(heading: str) -> str:
    """Text below a heading, up to the next one of its level or above."""
    marks = re.match("#+", heading)
    assert marks is not None
    level = len(marks[0])
    rest = README[README.index(f"\n{heading}\n") + len(heading) + 1 :]
    ended = re.search(rf"^#{{1,{level}}} ", rest, re.MULTILINE)
    return rest[: ended.start()] if ended else rest


def blocks(text: str) -> list[str]:
    return re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


KEYS = [("hash", "S16"), ("record", "<u4"), ("characters", "<u4"), ("size", "<u4")]


def shown_bytes(block: str) -> bytes:
    """The bytes of a listing, whose offsets must be right."""
    data = b""
    for line in block.splitlines():
        offset, rest = line.split(maxsplit=1)
        found = HEX.match(rest)
        assert found is not None, line
        assert int(offset) == len(data), line
        data += bytes.fromhex(found[0])
    return data


def rows(text: str) -> list[list[str]]:
    """Cells of the body of every table."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def listed_keys(text: str) -> set[str]:
    return {name for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])}


EXAMPLE = section("### A worked example")
DOCUMENTS = [[int(token) for token in line.split()] for line in blocks(EXAMPLE)[0].splitlines()]


def test_the_example_is_what_the_writer_writes(tmp_path: Path) -> None:
    prefix = tmp_path / "pair"
    with write_indexed(str(prefix), np.dtype("uint16")) as writer:
        for document in DOCUMENTS:
            writer.add(np.array(document), np.array([len(document)]))
    assert shown_bytes(blocks(EXAMPLE)[1]) == prefix.with_suffix(".bin").read_bytes()
    assert shown_bytes(blocks(EXAMPLE)[2]) == prefix.with_suffix(".idx").read_bytes()
    assert [document[-1] for document in DOCUMENTS] == [0, 0, 0]


def test_the_example_of_origins_is_what_the_writer_writes(tmp_path: Path) -> None:
    with write_origins(str(tmp_path / "shard.rec")) as writer:
        extents = [Extent(0, 67, 1000), Extent(1, 80, -67)]
        writer.add(2, np.array([40, 70, 72], np.uint32), extents)
    data = shown_bytes(blocks(section("## `.rec`"))[0])
    assert data == (tmp_path / "shard.rec").read_bytes()
    found = [OriginFile(str(tmp_path / "shard.rec")).place(number) for number in range(len(DOCUMENTS))]
    assert [(place.input, place.record) for place in found] == [(0, 1040), (1, 3), (1, 5)]
    assert [place.split_record for place in found] == [40, 70, 72]
    assert {place.split for place in found} == {2}


def test_every_sum_is_right() -> None:
    sums = re.findall(r"(?<![\w.])([0-9(][0-9 ()+*/-]*[0-9)]) ?= ([0-9]+)", PLAIN)
    assert len(sums) == 10
    for formula, result in sums:
        assert eval(formula) == int(result), formula  # noqa: S307 - digits and operators only


def test_the_header_of_the_index_is_as_listed() -> None:
    table = rows(section("## `.bin` and `.idx`"))
    fields = [row for row in table if row[0].isdigit() and int(row[0]) < HEADER_BYTES]
    ends = [int(row[0]) + int(row[1]) for row in fields]
    assert [int(row[0]) for row in fields] == [0, *ends[:-1]]
    assert ends[-1] == HEADER_BYTES
    codes = dict(re.findall(r"(\d) (u?int\d+)", fields[2][2]))
    assert {int(code): np.dtype(name) for code, name in codes.items()} == DTYPE_CODES
    assert MAGIC == b"MMIDIDX\0\0"


def test_the_example_of_index_arrays_is_what_is_built(tmp_path: Path) -> None:
    text = section("## Index arrays")
    lengths = np.array([len(document) for document in DOCUMENTS], np.int32)
    plan = plan_epochs(tokens=int(lengths.sum()), sequence_length=4)
    built = build_indices(lengths, 0, len(lengths), plan, 1234)
    shown = {name: [int(entry) for entry in rest] for name, *rest in map(str.split, blocks(text)[0].splitlines())}
    arrays = {
        "document_index": built.document_index,
        "sample_index": built.sample_index,
        "shuffle_index": built.shuffle_index,
    }
    assert shown == {name: array.reshape(-1).tolist() for name, array in arrays.items()}
    stream = [token for sequence in built.document_index for token in DOCUMENTS[sequence]]
    starts = [sum(lengths[built.document_index[:place]]) + offset for place, offset in built.sample_index]
    served = [stream[starts[row] : starts[row + 1] + 1] for row in built.shuffle_index]
    first, second = re.findall(r"`([0-9 ]+)`", text)
    assert served == [[int(token) for token in sample.split()] for sample in (first, second)]
    for name, array in arrays.items():
        stated = re.search(rf"`{name}\.npy`(?: has)? 128 \+ 4 \* \d+ = (\d+)", " ".join(PLAIN.split()))
        assert stated is not None
        assert write_npy(str(tmp_path / name), array).size == int(stated[1])


def test_the_key_of_a_text_is_as_shown() -> None:
    text = section("## Keys and drops")
    data = shown_bytes(blocks(text)[0])
    assert data == xxhash.xxh3_128_digest(b"mill") + np.array([7, 4, 4], "<u4").tobytes()
    fields = [row for row in rows(text) if row[0].isdigit()]
    assert [[int(cell) for cell in row[:2]] for row in fields] == [[0, 16], [16, 4], [20, 4], [24, 4]]


# ------------------------------------------------------------------------------------------------- a real corpus


def documented_paths() -> list[re.Pattern[str]]:
    table = rows(README[: README.index("## `.bin` and `.idx`")])
    holes = {"<number>": r"\d{5,}", "<count>": r"\d{5,}", "<part>": r"\d{5,}", "<item>": ".+"}
    patterns = []
    for row in table:
        for path in re.findall(r"^`([^`]+)`", row[0]):
            parts = re.split(r"(<\w+>)", path)
            text = "".join(holes.get(part, "[^/]+") if part.startswith("<") else re.escape(part) for part in parts)
            patterns.append(re.compile(text))
    return patterns


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_every_file_of_a_corpus_is_documented_and_the_reverse(
    small_corpus: Path, small_recipe: Recipe, tmp_path: Path
) -> None:
    from gristmill.pipelines.workflow import PrepareOptions, prepare

    near = NearDedup(sources=(0, 1), max_fraction=1.0, warn_fraction=1.0)
    cut = ParagraphDedup(sources=(0, 1), min_chars=20, max_fraction=1.0, warn_fraction=1.0)
    again = tmp_path / "again.jsonl"
    again.write_text(
        "".join(json.dumps({"text": f"{head}\na line that occurs twice\n"}) + "\n" for head in ("one", "two"))
    )
    sources = (dataclasses.replace(small_recipe.sources[0], files=(str(again),)), *small_recipe.sources[1:])
    part = dataclasses.replace(
        small_recipe, output=str(tmp_path / "part"), near_dedup=near, paragraph_dedup=cut, sources=sources
    )
    carrying = (dataclasses.replace(source, carry=Carry(id_field="text", fields=())) for source in part.sources)
    part = dataclasses.replace(part, sources=tuple(carrying))
    prepare(part, PrepareOptions(runner="loop", quiet=True, source="math", last="tokenize"))  # leaves its spills
    found = files(small_corpus) + files(tmp_path / "part")
    patterns = documented_paths()
    assert [name for name in found if not any(pattern.fullmatch(name) for pattern in patterns)] == []
    assert [pattern.pattern for pattern in patterns if not any(map(pattern.fullmatch, found))] == []


def paths_of(value: Any, stop: frozenset[str], above: str = "") -> set[str]:
    """Dotted paths of all leaves; what lies below a name in `stop` counts as one."""
    if isinstance(value, dict) and above not in stop:
        return set().union(*(paths_of(entry, stop, f"{above}.{key}" if above else key) for key, entry in value.items()))
    if isinstance(value, list) and value and above not in stop:
        return set().union(*(paths_of(entry, stop, f"{above}[]") for entry in value))
    return {above}


def test_every_key_of_the_manifest_is_documented_and_the_reverse(small_corpus: Path) -> None:
    value = json.loads((small_corpus / "manifest.json").read_bytes())
    counts = frozenset({"sources[].dropped", "sources[].counted", "sources[].cleaning"})
    assert listed_keys(section("## `manifest.json`")) == paths_of(value, counts)


def test_every_key_of_the_tokenizers_facts_is_documented(small_corpus: Path) -> None:
    value = json.loads((small_corpus / "tokenizer" / "facts.json").read_bytes())
    assert listed_keys(section("## Tokenizer")) == set(value)


def test_every_key_of_a_receipt_is_documented(small_corpus: Path) -> None:
    for path in (small_corpus / "_stages").rglob("*.json"):
        if path.name != "plan.json":
            found = set(json.loads(path.read_bytes()))
            assert ("samples" in found) is (path.name == "clean.json")
            assert found | {"samples"} == listed_keys(section("## Receipts")), path


def test_every_key_of_an_index_set_is_documented(small_corpus: Path) -> None:
    text = section("## `set.json`")
    (path,) = small_corpus.glob("indices/*/set.json")
    value = json.loads(path.read_bytes())
    assert listed_keys(text) == set(value)
    described = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in rows(text)}
    for name in ("members", "blends", "splits"):
        keys = set().union(*(entry.keys() for entry in value[name])) - {"weight"}
        assert keys <= described[name], name
    assert set(value["settings"]) <= described["settings"]
    assert set(value["sources"][0]) | set(value["sources"][0]["shards"][0]) <= described["sources"]


def test_the_identities_are_digests_that_anyone_can_recompute(small_corpus: Path) -> None:
    manifest: Manifest = read_manifest(str(small_corpus))
    facts = json.loads((small_corpus / "tokenizer" / "facts.json").read_bytes())
    expected = digest({"eod_id": facts["eod_id"], "tokenizer_sha256": facts["tokenizer_sha256"]})
    assert manifest.tokenizer.fingerprint == expected
    (path,) = small_corpus.glob("indices/*/set.json")
    value = json.loads(path.read_bytes())
    key = digest({name: value[name] for name in ("order_version", "settings", "sources")})
    assert value["key"] == key
    assert path.parent.name == f"L16-s1234-{key[:12]}" == manifest.index_set
    shard = manifest.sources[0].shards[0]
    identity = digest({"bin": shard.bin.sha256, "idx": shard.idx.sha256})
    assert value["sources"][0]["shards"][0]["identity"] == identity


def test_keys_drops_and_spills_have_the_sizes_that_are_described(
    small_recipe: Recipe, small_corpus: Path, tmp_path: Path
) -> None:
    from gristmill.pipelines.workflow import PrepareOptions, prepare

    part = dataclasses.replace(small_recipe, output=str(tmp_path))
    prepare(part, PrepareOptions(runner="loop", quiet=True, source="math", last="tokenize"))
    keys = np.frombuffer((tmp_path / "clean/math/00000.keys").read_bytes(), KEYS)
    drops = np.frombuffer((tmp_path / "clean/math/00000.drops").read_bytes(), "<u4")
    assert len(drops) > 0, "some documents of the second source are copies of the first's"
    (listed,) = tmp_path.glob("spill/math/00000-*.kept")
    (described,) = tmp_path.glob("spill/math/00000-*.doc")
    (ids,) = tmp_path.glob("spill/math/00000-*.tok")
    kept = np.frombuffer(listed.read_bytes(), [("start", "<i8"), ("record", "<u4"), ("length", "<i4")])
    documents = np.frombuffer(described.read_bytes(), "<u4").reshape(-1, 4)
    tokens = np.frombuffer(ids.read_bytes(), "<u2")
    records = kept["record"]
    assert np.isin(keys["record"], documents[:, 0]).all(), "the scan encoded what the rules let through"
    assert np.array_equal(records, np.setdiff1d(keys["record"], drops))
    assert documents[:, 1].sum() == len(tokens)
    eod = read_manifest(str(small_corpus)).tokenizer.eod_id
    assert (tokens[kept["start"] + kept["length"] - 1] == eod).all()
    text = json.loads(Path(small_recipe.sources[1].files[0]).read_text().splitlines()[records[0]])["text"]
    place = int(np.searchsorted(keys["record"], records[0]))
    whole = (tmp_path / "clean/math/00000.keys").read_bytes()[28 * place : 28 * place + 16]
    assert whole == xxhash.xxh3_128_digest(text.encode())


def test_rejected_records_are_described(small_corpus: Path) -> None:
    listed = set(re.findall(r"`(\w+)`", section("## Rejected").split(".")[0]))
    for path in (small_corpus / "rejected").rglob("*.jsonl"):
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        if path.name.endswith(".copies.jsonl"):
            assert {key for entry in entries for key in entry} == listed - {"value", "found"} | {"kept"}
            continue
        assert {key for entry in entries for key in entry} == listed
        reasons = [entry["reason"] for entry in entries]
        assert reasons == sorted(reasons)
        assert set(reasons) == {"min_chars", "not_a_string"}
