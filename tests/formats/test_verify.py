"""Verification: a sound corpus has nothing wrong with it, and no file of it can be damaged unnoticed."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.errors import CorpusError, FormatError
from gristmill.formats.manifest import read_manifest
from gristmill.formats.origins import ORIGIN_MAGIC, read_origins
from gristmill.formats.storage import file_facts, write_bytes
from gristmill.formats.verify import verify_corpus

FIRST = "tokens/web/web-00000-of-00002"
NOT_CHECKED = ("report/", "_stages/plan.json", "_stages/lock")
"""For people and for reruns: no part of what a corpus says of itself."""


@pytest.fixture
def corpus(small_corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_corpus, tmp_path / "corpus"))


def names(corpus: Path) -> list[str]:
    return sorted(path.relative_to(corpus).as_posix() for path in corpus.rglob("*") if path.is_file())


def one(corpus: Path, pattern: str) -> Path:
    """The first file that a pattern names."""
    return min(corpus.glob(pattern))


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False) + "\n")


def test_a_sound_corpus_has_nothing_wrong_with_it(corpus: Path) -> None:
    assert verify_corpus(str(corpus)) == []
    assert verify_corpus(f"{corpus}/") == []
    assert verify_corpus(f"file://{corpus}") == []


def test_a_corpus_in_another_place_is_as_sound(small_corpus: Path, tmp_path: Path) -> None:
    for name in names(small_corpus):
        write_bytes(f"memory://{tmp_path.name}/{name}", (small_corpus / name).read_bytes())
    assert verify_corpus(f"memory://{tmp_path.name}") == []
    write_bytes(f"memory://{tmp_path.name}/tokens/web/other.bin", b"")
    (problem,) = verify_corpus(f"memory://{tmp_path.name}")
    assert problem.startswith(f"memory://{tmp_path.name}/tokens/web/other.bin: is in no manifest; it is left over from")


def test_what_is_not_part_of_a_corpus_does_not_matter(corpus: Path) -> None:
    shutil.rmtree(corpus / "report")
    (corpus / "_stages" / "plan.json").write_text("{}")
    (corpus / "notes.txt").write_text("mine")
    (corpus / "tokens" / "web" / f".web.bin.{'0' * 32}.tmp").write_bytes(b"of a killed writer")
    (corpus / "spill" / "web").mkdir(parents=True)
    assert verify_corpus(str(corpus)) == []


def test_stages_and_what_they_need_may_be_removed(corpus: Path) -> None:
    for folder in ("_stages", "clean", "rejected"):
        shutil.rmtree(corpus / folder)
    assert verify_corpus(str(corpus)) == []


# ----------------------------------------------------------------------------------------------------- every file


def damages(path: Path) -> Iterator[str]:
    """Damages a file in one way after the other, and mends it between them."""
    data = path.read_bytes()
    is_json = path.suffix == ".json"
    if data and not is_json:  # a byte of JSON text may be one that says nothing
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        yield "a bit flipped"
    if data:
        path.write_bytes(data[: len(data) // 2])
        yield "cut in half"
        path.write_bytes(b"")
        yield "emptied"
    path.write_bytes(data + b"\0")
    yield "a byte longer"
    path.write_bytes(data)


def test_no_file_can_be_damaged_unnoticed(corpus: Path) -> None:
    checked = [name for name in names(corpus) if not name.startswith((*NOT_CHECKED, "manifest.json"))]
    assert sum(name.endswith(".copies.jsonl") for name in checked) == 2
    assert len(checked) > 40
    kinds = {".json", ".jsonl", ".bin", ".idx", ".rec", ".npy", ".keys", ".drops"}
    assert {Path(name).suffix for name in checked} == kinds
    for name in checked:
        for damage in damages(corpus / name):
            problems = verify_corpus(str(corpus))
            assert problems, f"{name} {damage}"
            assert any(name.rsplit(".", 1)[0] in problem for problem in problems), f"{name} {damage}: {problems}"
    assert verify_corpus(str(corpus)) == []


def test_no_file_can_be_missing_unnoticed(corpus: Path) -> None:
    for name in names(corpus):
        if name.startswith((*NOT_CHECKED, "manifest.json", "_stages/")):
            continue
        data = (corpus / name).read_bytes()
        (corpus / name).unlink()
        problems = verify_corpus(str(corpus))
        stem = name.rsplit("/", 1)[0] if name.endswith("set.json") else name
        assert any(stem in problem for problem in problems), f"{name}: {problems}"
        (corpus / name).write_bytes(data)
    assert verify_corpus(str(corpus)) == []


def test_all_that_is_wrong_is_listed(corpus: Path) -> None:
    damaged = [
        FIRST + ".bin",
        "tokens/math/math-00000-of-00001.idx",
        "clean/web/00000.keys",
        "tokenizer/tokenizer.json",
    ]
    damaged += [
        one(corpus, f"indices/*/{rest}").relative_to(corpus).as_posix() for rest in ("test/*.npy", "train/web/*")
    ]
    present = [name for name in damaged if (corpus / name).exists()]
    for name in present:
        with (corpus / name).open("ab") as file:
            file.write(b"\0\0")
    problems = verify_corpus(str(corpus))
    assert len(present) >= 5
    assert [name for name in present if not any(name in problem for problem in problems)] == []
    assert len(problems) == len(set(problems))


# ------------------------------------------------------------------------------------------------------- messages


def swap_tokens(corpus: Path, at: int, token: int) -> None:
    """Puts another token into the first shard, and its new digest wherever a digest is kept."""
    path = corpus / f"{FIRST}.bin"
    before = file_facts(str(path)).sha256
    tokens = np.frombuffer(path.read_bytes(), "<u2").copy()
    tokens[at] = token
    path.write_bytes(tokens.tobytes())
    after = file_facts(str(path)).sha256
    for name in names(corpus):
        if name.endswith(".json"):
            text = (corpus / name).read_text()
            (corpus / name).write_text(text.replace(before, after))


def test_a_token_outside_the_vocabulary_is_named(corpus: Path) -> None:
    swap_tokens(corpus, 3, 40_000)
    vocabulary = read_manifest(str(corpus)).tokenizer.vocabulary
    expected = f"{corpus}/{FIRST}: token 3 is 40000, outside the vocabulary of {vocabulary}"
    assert expected in verify_corpus(str(corpus))


def test_a_document_without_its_eod_is_named(corpus: Path) -> None:
    lengths = np.frombuffer((corpus / f"{FIRST}.idx").read_bytes(), "<i4", 2, 34)
    swap_tokens(corpus, int(lengths[:2].sum()) - 1, 77)
    manifest = read_manifest(str(corpus))
    problems = verify_corpus(str(corpus))
    assert f"{corpus}/{FIRST}: document 1 ends with token 77, not with the EOD 0" in problems
    documents = manifest.sources[0].shards[0].documents
    assert f"{corpus}/{FIRST}: {documents - 1} EOD tokens, but the manifest says {documents}" in problems


def swap_origins(corpus: Path, change: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> None:
    """Puts other numbers and runs into the first shard's `.rec`, and its new digest wherever one is kept."""
    path = f"{corpus}/{FIRST}.rec"
    before = file_facts(path)
    numbers, runs = (array.copy() for array in read_origins(path))
    numbers, runs = change(numbers, runs)
    footer = len(numbers).to_bytes(8, "little") + len(runs).to_bytes(8, "little") + ORIGIN_MAGIC
    after = write_bytes(path, numbers.tobytes() + runs.tobytes() + footer)

    def exchange(value: Any) -> Any:
        if value == {"size": before.size, "sha256": before.sha256}:
            return {"size": after.size, "sha256": after.sha256}
        if isinstance(value, dict):
            return {key: exchange(entry) for key, entry in value.items()}
        return [exchange(entry) for entry in value] if isinstance(value, list) else value

    for name in names(corpus):
        if name.endswith(".json") and not name.startswith("tokenizer/"):
            (corpus / name).write_text(json.dumps(exchange(json.loads((corpus / name).read_bytes()))))


def set_at(array: np.ndarray, at: int, value: Any, name: str | None = None) -> np.ndarray:
    (array if name is None else array[name])[at] = value
    return array


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda numbers, runs: (numbers[:-1], runs), r"\d+ documents, but the manifest says \d+"),
        (lambda numbers, runs: (set_at(numbers, 4, numbers[3]), runs), "document 4 comes from the record of the one"),
        (lambda numbers, runs: (numbers, set_at(runs, 0, 1, "input")), "a file beyond the 1 of source 'web'"),
        (lambda numbers, runs: (numbers, set_at(runs, 0, -99, "offset")), "of source 'web', or a record below 0"),
        (lambda numbers, runs: (numbers, set_at(runs, 0, 7, "split")), r"its first document is from .*split=7"),
    ],
    ids=["count", "order", "file", "record", "manifest"],
)
def test_origins_that_cannot_be_are_named(corpus: Path, change: Any, message: str) -> None:
    swap_origins(corpus, change)
    problems = verify_corpus(str(corpus))
    assert any(problem.startswith(f"{corpus}/{FIRST}.rec: ") for problem in problems), problems
    assert any(re.search(message, problem) for problem in problems), problems


def test_a_corpus_from_before_there_were_origins_is_sound(corpus: Path) -> None:
    def forget(value: Any) -> None:
        for source in value["sources"]:
            for shard in source["shards"]:
                del shard["rec"]

    shutil.rmtree(corpus / "_stages")
    edit_json(corpus / "manifest.json", forget)
    for path in corpus.glob("tokens/*/*.rec"):
        path.unlink()
    assert verify_corpus(str(corpus)) == []


def test_a_changed_digest_is_told_from_a_changed_size(corpus: Path) -> None:
    path = corpus / f"{FIRST}.bin"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 0xFF]))
    (problem,) = [problem for problem in verify_corpus(str(corpus)) if "sha256" in problem]
    found = file_facts(str(path)).sha256
    recorded = read_manifest(str(corpus)).sources[0].shards[0].bin.sha256
    assert problem == f"{path}: sha256 {found}, but {recorded} is recorded; its content changed"
    path.write_bytes(data + b"\0\0")
    assert f"{path}: {len(data) + 2} bytes, but {len(data)} are recorded" in verify_corpus(str(corpus))


RECORDED = r"tokenizer/(tokenizer|facts)\.json: (sha256 \w{64}, but \w{64} is|\d+ bytes, but \d+ are) recorded"
"""What the receipt of the tokenize stage says of a changed file of the tokenizer."""


def expect(corpus: Path, *messages: str) -> None:
    """Exactly these problems, in any order, each given as a pattern."""
    problems = verify_corpus(str(corpus))
    assert len(problems) == len(messages), problems
    for message in messages:
        assert any(re.search(message, problem) for problem in problems), (message, problems)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("eod_token", "</s>", r"eod_token is '</s>', but the manifest says '<\|endoftext\|>'"),
        ("pad_id", 3, "pad_id is 3, but the manifest says None"),
        ("vocabulary", 999, r"vocabulary is 999, but the manifest says \d+"),
        ("dtype", "int32", "dtype is 'int32', but the manifest says 'uint16'"),
    ],
)
def test_facts_of_the_tokenizer_that_differ_are_named(corpus: Path, name: str, value: Any, message: str) -> None:
    edit_json(corpus / "tokenizer" / "facts.json", lambda facts: facts.update({name: value}))
    expect(corpus, rf"tokenizer/facts\.json: {message}", RECORDED)


def test_an_eod_that_differs_contradicts_the_fingerprint_too(corpus: Path) -> None:
    edit_json(corpus / "tokenizer" / "facts.json", lambda facts: facts.update(eod_id=1))
    expect(
        corpus,
        r"fingerprint \w{64} does not follow from the tokenizer and its EOD id",
        r"eod_id is 1, but the manifest",
        RECORDED,
    )


def test_another_tokenizer_is_named(corpus: Path) -> None:
    with (corpus / "tokenizer" / "tokenizer.json").open("ab") as file:
        file.write(b"\n")
    expect(corpus, r"tokenizer/tokenizer\.json: sha256 \w{64}, but \S+facts\.json says \w{64}$", RECORDED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda source: source.update(documents_in=0, documents_kept=0, dropped={}, shards=[]), "documents_kept"),
        (lambda source: source["counted"].update(control_hits=5), "counted"),
        (lambda source: source["dropped"].update(min_chars=0, blank=source["dropped"]["min_chars"]), "dropped"),
    ],
    ids=["source emptied", "count", "reason"],
)
def test_a_manifest_that_differs_from_the_receipt_is_named(
    corpus: Path, change: Callable[[Any], None], message: str
) -> None:
    def apply(manifest: Any) -> None:
        change(manifest["sources"][1])
        shards = [shard for source in manifest["sources"] for shard in source["shards"]]
        manifest.update({key: sum(shard[key] for shard in shards) for key in ("tokens", "documents")})

    edit_json(corpus / "manifest.json", apply)
    problems = verify_corpus(str(corpus))
    pattern = rf"_stages/tokenize\.json: source 'math': {message} .*, but the manifest says"
    assert any(re.search(pattern, problem) for problem in problems), problems


def test_strangers_among_the_tokens_are_named(corpus: Path) -> None:
    shutil.copy(corpus / f"{FIRST}.bin", corpus / "tokens" / "web" / "web-00000-of-00003.bin")
    expect(
        corpus, r"tokens/web/web-00000-of-00003\.bin: is in no manifest; it is left over from something else and may be"
    )


def test_an_unfinished_index_set_is_named(corpus: Path) -> None:
    (finished,) = (corpus / "indices").iterdir()
    shutil.copytree(finished, corpus / "indices" / "L8-s1-000000000000")
    (corpus / "indices" / "L8-s1-000000000000" / "set.json").unlink()
    expect(corpus, r"indices/L8-s1-000000000000: an unfinished index set; build it again or remove it")


def test_one_damaged_index_set_does_not_hide_another(corpus: Path) -> None:
    (finished,) = (corpus / "indices").iterdir()
    shutil.copytree(finished, corpus / "indices" / "L8-s1-000000000000")
    (corpus / "indices" / "L8-s1-000000000000" / "set.json").write_text("{}")
    one(corpus, f"indices/{finished.name}/train/dataset_index.npy").unlink()
    problems = verify_corpus(str(corpus))
    assert any("L8-s1-000000000000/set.json: damaged record of an index set" in problem for problem in problems)
    assert any(f"{finished.name}/train/dataset_index.npy: " in problem for problem in problems)


def test_a_missing_index_set_is_named(corpus: Path) -> None:
    (finished,) = (corpus / "indices").iterdir()
    shutil.rmtree(corpus / "indices")
    shutil.rmtree(corpus / "_stages")
    expect(corpus, rf"indices/{finished.name}: this index set is named by the manifest, but it is not there")


def test_an_index_set_of_other_shards_is_named(corpus: Path) -> None:
    swap_tokens(corpus, 3, 5)  # the set's identity of the shard is a digest of digests, so it stays as it was
    expect(
        corpus, r"indices/L16-s1234-\w{12}: built from other shards or weights than the manifest names; build it again"
    )


def test_a_member_whose_ends_are_wrong_is_named(corpus: Path) -> None:
    path = one(corpus, "indices/*/train/web/shuffle_index.npy")
    data = path.read_bytes()
    path.write_bytes(data[:-4] + b"\xff\xff\xff\x7f")
    problems = verify_corpus(str(corpus))
    assert any(
        re.search(r"shuffle_index\.npy: row \d+ holds sample number 2147483647, outside", each) for each in problems
    )


def test_receipts_are_compared_with_the_files_they_name(corpus: Path) -> None:
    def change(receipt: Any) -> None:
        receipt["files"]["clean/web/00000.keys"]["sha256"] = "0" * 64
        receipt["files"]["clean/web/00009.keys"] = {"size": 0, "sha256": ""}

    edit_json(corpus / "_stages" / "clean.json", change)
    expect(
        corpus,
        r"clean/web/00000\.keys: sha256 \w{64}, but 0{64} is recorded; its content changed",
        r"clean/web/00009\.keys: cannot be opened: No such file",
    )


def test_a_damaged_receipt_is_named(corpus: Path) -> None:
    (corpus / "_stages" / "tokenize.json").write_text('{"digest": ')
    one(corpus, "_stages/items/scan/web/*.json").write_text("[]")
    expect(
        corpus, r"_stages/tokenize\.json: damaged receipt \(JSON", r"items/scan/web/00000\.json: damaged receipt \(Type"
    )
    edit_json(corpus / "_stages" / "clean.json", lambda receipt: receipt.update(files={}, result={}))
    shutil.copy(corpus / "_stages" / "clean.json", corpus / "_stages" / "tokenize.json")
    assert any("tokenize.json: damaged: KeyError: 'sources'" in problem for problem in verify_corpus(str(corpus)))


def test_what_is_no_finished_corpus_is_refused(corpus: Path) -> None:
    (corpus / "manifest.json").write_text("{}")
    with pytest.raises(FormatError, match=r"manifest\.json: damaged manifest: KeyError"):
        verify_corpus(str(corpus))
    (corpus / "manifest.json").unlink()
    with pytest.raises(CorpusError, match=r"corpus: no manifest\.json, so this is no finished corpus"):
        verify_corpus(str(corpus))
    with pytest.raises(CorpusError, match="nowhere: no such folder"):
        verify_corpus(str(corpus / "nowhere"))
