"""Receipts: what counts as finished, and what makes it count no more."""

import dataclasses
from pathlib import Path

import pytest

from gristmill.formats.errors import FormatError, StorageError
from gristmill.formats.receipts import (
    STAGES_FOLDER,
    Receipt,
    item_receipt_path,
    read_receipt,
    stage_receipt_path,
    valid_receipt,
    withdraw,
    write_receipt,
)
from gristmill.formats.storage import FileFacts, read_bytes, write_bytes


@pytest.fixture(params=["local", "memory"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


def finished(corpus: str) -> tuple[str, Receipt]:
    """A receipt for two files, as a stage leaves it."""
    files = {name: write_bytes(f"{corpus}/{name}", name.encode()) for name in ("tokens/a.bin", "tokens/a.idx")}
    receipt = Receipt(
        digest="d" * 64, files=files, settings={"seed": 1, "inputs": ["ä"]}, result={"kept": 3, "why": None}
    )
    path = stage_receipt_path(corpus, "tokenize")
    write_receipt(path, receipt)
    return path, receipt


def test_where_receipts_lie() -> None:
    assert STAGES_FOLDER == "_stages"
    assert stage_receipt_path("gs://b/c", "clean") == "gs://b/c/_stages/clean.json"
    assert item_receipt_path("/c", "scan", "web/00001") == "/c/_stages/items/scan/web/00001.json"


def test_a_receipt_reads_back(corpus: str) -> None:
    path, receipt = finished(corpus)
    assert read_receipt(path) == receipt
    assert valid_receipt(corpus, path, receipt.digest) == receipt


def test_samples_are_vouched_for_and_not_needed(corpus: str) -> None:
    path, receipt = finished(corpus)
    plain = read_bytes(path)
    sampled = dataclasses.replace(receipt, samples={"rejected/a.jsonl": FileFacts(3, "e" * 64)})
    write_receipt(path, sampled)
    assert valid_receipt(corpus, path, receipt.digest) == sampled
    write_receipt(path, dataclasses.replace(sampled, samples={}))
    assert read_bytes(path) == plain
    assert b"samples" not in plain


def test_the_files_of_a_folder(corpus: str) -> None:
    _, receipt = finished(corpus)
    more = dataclasses.replace(receipt, files={**receipt.files, "token/c": FileFacts(3, "e" * 64)})
    assert more.facts_below("token/") == {"token/c": {"size": 3, "sha256": "e" * 64}}
    assert list(more.facts_below("tokens/")) == ["tokens/a.bin", "tokens/a.idx"]


def test_a_receipt_of_nothing(corpus: str) -> None:
    path = item_receipt_path(corpus, "index", "a/b/c")
    assert read_receipt(path) is None
    assert valid_receipt(corpus, path, "x") is None
    write_receipt(path, Receipt(digest="x"))
    assert valid_receipt(corpus, path, "x") == Receipt(digest="x", files={}, settings={}, result={})


def test_what_makes_a_receipt_count_no_more(corpus: str) -> None:
    path, receipt = finished(corpus)
    assert valid_receipt(corpus, path, "e" * 64) is None
    write_bytes(f"{corpus}/tokens/a.idx", b"longer than before")
    assert valid_receipt(corpus, path, receipt.digest) is None
    write_bytes(f"{corpus}/tokens/a.idx", b"tokens/a.IDX")  # the size is right: content is left to verify
    assert valid_receipt(corpus, path, receipt.digest) == receipt
    write_receipt(path, dataclasses.replace(receipt, files={**receipt.files, "tokens/b.bin": FileFacts(0, "")}))
    assert valid_receipt(corpus, path, receipt.digest) is None
    write_receipt(path, receipt)
    withdraw(path)
    assert valid_receipt(corpus, path, receipt.digest) is None
    withdraw(path)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "JSONDecodeError"),
        (b'{"digest": "x", "files": {', "JSONDecodeError"),
        (b'{"\xff": 1}', "UnicodeDecodeError"),
        (b"[]", "TypeError"),
        (b"null", "TypeError"),
        (b'{"digest": "x"}', "KeyError: 'files'"),
        (b'{"digest": "x", "files": [], "settings": {}, "result": {}}', "AttributeError"),
        (b'{"digest": "x", "files": {"a": 1}, "settings": {}, "result": {}}', "TypeError"),
        (b'{"digest": "x", "files": {"a": {"size": 1}}, "settings": {}, "result": {}}', "KeyError: 'sha256'"),
        (b'{"digest": "x", "files": {"a": {"size": "?", "sha256": ""}}, "settings": {}, "result": {}}', "ValueError"),
        (b'{"files": {}, "settings": {}, "result": {}}', "KeyError: 'digest'"),
        (b'{"digest": "x", "files": {}, "result": {}}', "KeyError: 'settings'"),
        (b'{"digest": "x", "files": {}, "settings": {}}', "KeyError: 'result'"),
    ],
    ids=str,
)
def test_a_damaged_receipt_is_named_and_counts_as_none(corpus: str, data: bytes, reason: str) -> None:
    path = stage_receipt_path(corpus, "clean")
    write_bytes(path, data)
    with pytest.raises(FormatError, match=rf"_stages/clean\.json: damaged receipt \({reason}.*\); remove it to redo"):
        read_receipt(path)
    assert valid_receipt(corpus, path, "x") is None


def test_a_folder_in_the_place_of_a_receipt(tmp_path: Path) -> None:
    (tmp_path / "_stages" / "clean.json").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"clean\.json: cannot be (opened|read): Is a directory"):
        read_receipt(stage_receipt_path(str(tmp_path), "clean"))
    assert valid_receipt(str(tmp_path), stage_receipt_path(str(tmp_path), "clean"), "x") is None
