"""What a corpus does not need any more goes, and the corpus stays what it was: on a disk and in a store."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.cli import main
from gristmill.formats.errors import CorpusError
from gristmill.formats.receipts import read_receipt, stage_receipt_path
from gristmill.formats.verify import verify_corpus
from gristmill.pipelines import clean_up as module
from gristmill.pipelines.clean_up import clean_up, find_leftovers
from gristmill.pipelines.run_lock import working_on

TOP: dict[str, Any] = {
    "shards": {"target_tokens": 300},
    "index": {"sequence_length": 16, "samples": 30, "splits": "80,10,10"},
}
TEMPORARY = f".a.bin.{'0' * 32}.tmp"


def fill(workshop: Any) -> list[dict[str, Any]]:
    texts = [f"{number % 40} the quick brown fox" for number in range(60)]
    lines = b"oops\n" + b"".join(b'{"text": "%s"}\n' % text.encode() for text in texts)
    lenient = {"bad_records": "skip", "max_bad_fraction": 0.5}
    return [
        {"files": [workshop.write("a.jsonl", lines)], "weight": 0.5, **lenient},
        {"files": [workshop.write("b.jsonl", lines)], "materialize": True, "weight": 0.5, "clean": False, **lenient},
    ]


@pytest.fixture(scope="module")
def made(new_workshop: Callable[[], Any]) -> Any:
    """A workshop with a finished corpus at `out`, which tests copy."""
    workshop = new_workshop()
    workshop.prepare(*fill(workshop), **TOP)
    return workshop


@pytest.fixture
def corpus(made: Any, tmp_path: Path) -> Path:
    """A copy of the finished corpus."""
    return Path(shutil.copytree(made.folder / "out", tmp_path / "out"))


def again(made: Any, corpus: Path, **changes: Any) -> Any:
    """Runs the recipe again on a corpus, with changes."""
    return made.prepare(*fill(made), output=str(corpus), **{**TOP, **changes})


def below(corpus: Path) -> set[str]:
    return {path.relative_to(corpus).as_posix() for path in corpus.rglob("*") if path.is_file()}


def test_what_nobody_needs_goes_and_the_corpus_stands(
    made: Any, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "tokens" / TEMPORARY).write_bytes(b"half")
    files = below(corpus)
    assert main(["clean-up", str(corpus), "--dry-run"]) == 0
    assert below(corpus) == files
    planned = capsys.readouterr().out
    assert main(["clean-up", f"{corpus}/"]) == 0
    said = capsys.readouterr().out
    assert said == planned.replace("would remove", "removed")
    first, *lines = said.splitlines()
    assert first == "removed temporary files of dead attempts: 1 file, 4 bytes"
    assert [line.split(": ")[0] for line in lines] == [
        "removed raw/ (copies of sources)",
        "removed clean/ (keys and drops of the deduplication)",
        "removed rejected/ (samples of what was left out)",
        "removed receipts of shards and members",
        str(corpus),
    ]
    left = below(corpus)
    assert f"{corpus}: removed {len(files - left)} files, " in said
    names = ["_stages", "indices", "manifest.json", "report", "tokenizer", "tokens"]
    assert sorted(path.name for path in corpus.iterdir()) == names
    assert not [name for name in left if name.startswith("_stages/items/")]
    gone = ("raw/", "clean/", "rejected/")
    assert made.tree(corpus) == {name: digest for name, digest in made.tree().items() if not name.startswith(gone)}
    assert verify_corpus(str(corpus)) == []
    assert again(made, corpus).stages == ()
    assert below(corpus) == left
    assert main(["clean-up", str(corpus)]) == 0
    assert capsys.readouterr().out == f"{corpus}: nothing to remove\n"


@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ({"shards": {"target_tokens": 500}}, ("download", "clean", "tokenize", "index", "blend")),
        ({"index": {"sequence_length": 8, "samples": 30}}, ("index", "blend")),
    ],
)
def test_a_changed_setting_begins_as_far_back_as_it_must(
    made: Any, corpus: Path, tmp_path: Path, changes: dict[str, Any], stages: tuple[str, ...]
) -> None:
    clean_up(str(corpus))
    assert again(made, corpus, **changes).stages == stages
    fresh = tmp_path / "fresh"
    again(made, fresh, **changes)
    if stages[0] == "index":
        for folder in (corpus, fresh):
            clean_up(str(folder), other_sets=True)
    assert made.tree(corpus) == made.tree(fresh)
    assert verify_corpus(str(corpus)) == []


def test_a_stage_that_needs_what_is_gone_is_not_begun_with(made: Any, corpus: Path) -> None:
    clean_up(str(corpus), ("raw",))
    says = r"what stage 'clean' left was cleared away, and stage 'tokenize' needs it; run .* with --from clean"
    with pytest.raises(CorpusError, match=says):
        again(made, corpus, shards={"target_tokens": 500}, options={"first": "tokenize"})
    assert again(made, corpus, shards={"target_tokens": 500}, options={"first": "clean"}).stages[0] == "clean"


@pytest.mark.parametrize("part", module.PARTS, ids=lambda part: part.name)
def test_what_is_to_be_kept_stays(made: Any, corpus: Path, part: Any) -> None:
    before = below(corpus)
    found = clean_up(str(corpus), [part.name])
    kept = {path.removeprefix(f"{corpus}/") for leftover in found if leftover.kept for path in leftover.files}
    assert bool(kept) is (part.name != "spill"), "spills go when the run ends"
    assert kept <= below(corpus) < before
    assert {leftover.kept for leftover in found} - {""} == ({f"--keep-{part.name}"} if kept else set())
    for stage in ("clean", "tokenize"):
        receipt = read_receipt(stage_receipt_path(str(corpus), stage))
        assert receipt is not None
        assert receipt.cleared is (stage == "clean" != part.name)
        assert bool(receipt.samples) is (part.name == "rejected"), "both sources have bad records"
    assert verify_corpus(str(corpus)) == []
    assert again(made, corpus).stages == ()


def test_samples_that_were_removed_by_hand_are_not_missed_any_more(made: Any, corpus: Path) -> None:
    shutil.rmtree(corpus / "rejected")
    assert sorted(problem.split(": ")[0] for problem in verify_corpus(str(corpus))) == [
        f"{corpus}/rejected/{name}" for name in ("s0/00000.copies.jsonl", "s0/00000.jsonl", "s1/00000.jsonl")
    ]
    assert again(made, corpus).stages == ()
    (leftover,) = (found for found in clean_up(str(corpus), ("raw", "clean", "receipts")) if not found.kept)
    assert (leftover.name.split(" ")[0], leftover.files) == ("rejected/", ())
    assert verify_corpus(str(corpus)) == []
    assert again(made, corpus).stages == ()


def test_index_sets_go_on_request_alone(made: Any, corpus: Path) -> None:
    words = ["index", str(corpus), "--seq-length", "8", "--num-samples", "20"]
    assert main(words) == 0
    own = made.manifest(corpus)["index_set"]
    clean_up(str(corpus))
    assert len(list((corpus / "indices").iterdir())) == 2
    (other,) = clean_up(str(corpus), other_sets=True)
    assert other.name.startswith("index set L8-s1234-")
    assert [path.name for path in (corpus / "indices").iterdir()] == [own]
    assert verify_corpus(str(corpus)) == []
    assert again(made, corpus).stages == ()


def test_of_an_unfinished_corpus_only_what_is_done_with_goes(made: Any, tmp_path: Path) -> None:
    corpus = tmp_path / "out"
    again(made, corpus, options={"last": "clean"})
    assert {leftover.kept for leftover in clean_up(str(corpus))} == {"stage tokenize is not finished"}
    again(made, corpus, options={"last": "tokenize"})
    (corpus / "manifest.json").unlink()
    found = {leftover.name.split(" ")[0]: leftover.kept for leftover in clean_up(str(corpus))}
    assert found == {"raw/": "", "clean/": "", "rejected/": "", "receipts": "the corpus is not finished"}
    with pytest.raises(CorpusError, match="no manifest says which index set is its own"):
        clean_up(str(corpus), other_sets=True)
    assert again(made, corpus).stages == ("index", "blend")
    assert verify_corpus(str(corpus)) == []


def test_a_corpus_that_a_run_works_on_is_left_alone(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (corpus / "tokens" / TEMPORARY).write_bytes(b"of the run")
    files = below(corpus)
    with working_on(str(corpus)):
        (corpus / "tokens" / TEMPORARY).write_bytes(b"of the run")
        assert main(["clean-up", str(corpus)]) == 1
        assert "another run is working on this corpus; wait for it or stop it: started " in capsys.readouterr().err
        assert files <= below(corpus)


def test_a_folder_that_is_no_corpus_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_bytes(b"mine")
    assert main(["clean-up", str(tmp_path)]) == 1
    assert "neither manifest nor receipts are there" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert main(["clean-up", str(tmp_path), "--stale-after", "5"]) == 2


def test_killed_in_the_middle_it_can_be_done_again(made: Any, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []

    def dying(path: str) -> None:
        if len(removed) == 6:
            raise KeyboardInterrupt
        removed.append(path)
        Path(path).unlink()

    with monkeypatch.context() as patch:
        patch.setattr(module, "remove", dying)
        with pytest.raises(KeyboardInterrupt):
            clean_up(str(corpus))
    assert verify_corpus(str(corpus)) == []
    assert again(made, corpus).stages == ()
    clean_up(str(corpus))
    assert find_leftovers(str(corpus)) == []
    assert again(made, corpus).stages == ()


def test_a_corpus_in_a_store(bucket: str, made: Any, tmp_path: Path) -> None:
    corpus: Any = f"{bucket}/{tmp_path.name}/out"
    again(made, corpus)
    found = clean_up(corpus)
    assert [leftover.name.split(" ")[0] for leftover in found] == ["raw/", "clean/", "rejected/", "receipts"]
    assert find_leftovers(corpus) == []
    assert verify_corpus(corpus) == []
    assert again(made, corpus).stages == ()
