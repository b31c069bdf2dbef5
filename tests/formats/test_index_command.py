"""The `gristmill index` command: which options go together, and what it builds and says."""

import shutil
from pathlib import Path

import pytest

from gristmill.cli import main
from gristmill.formats.index_set import IndexSet, find_sets
from gristmill.formats.manifest import read_manifest


@pytest.fixture
def corpus(small_corpus: Path, tmp_path: Path) -> str:
    """A corpus of two sources, 0.6 to 0.4, with an index set of 200 training samples of 16 tokens."""
    return str(shutil.copytree(small_corpus, tmp_path / "corpus"))


def sets(corpus: str) -> dict[str, IndexSet]:
    return {found.name: found for found in find_sets(corpus)}


def test_a_set_of_another_length_is_built(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sets(corpus)
    assert main(["index", corpus, "--seq-length", "8", "--seed", "3", "--num-samples", "50", "--split", "9,1"]) == 0
    (built,) = sets(corpus).keys() - before.keys()
    assert built.startswith("L8-s3-")
    said = capsys.readouterr().out
    assert "train of web: " in said
    assert f"indices/{built}: train 50 samples, valid " in said
    assert main(["verify", corpus]) == 0


def test_the_corpus_own_set_is_extended(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = read_manifest(corpus).index_set
    assert own is not None
    assert main(["index", corpus, "--extend", "--num-samples", "2000"]) == 0
    (built,) = sets(corpus).keys() - {own}
    extension = sets(corpus)[built]
    assert extension.parent == sets(corpus)[own].key
    assert extension.order("train").samples == 2000
    said = capsys.readouterr().out
    assert "epochs behind" in said
    assert f"rows before {extension.history[0].from_sample:,} are those of {own}" in said
    assert main(["verify", corpus]) == 0
    assert main(["inspect", corpus, "--documents", "0"]) == 0
    said = capsys.readouterr().out
    assert f"extends the set {sets(corpus)[own].key[:12]}\n" in said
    assert f"at row {extension.history[0].from_sample:,}\n" in said


def test_growth_inside_the_arrays_is_the_same_order(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = read_manifest(corpus).index_set
    assert main(["index", corpus, "--extend", "--num-samples", "201"]) == 0
    assert f"the order is that of {own}, and longer" in capsys.readouterr().out


def test_a_named_set_goes_on_with_other_weights(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = read_manifest(corpus).index_set
    assert own is not None
    words = ["index", corpus, "--extend", own, "--from-sample", "150", "--weights", "web=1, math=3"]
    assert main(words) == 0
    (built,) = sets(corpus).keys() - {own}
    (phase,) = sets(corpus)[built].settings.schedule
    assert (phase.from_sample, phase.weights) == (150, (1.0, 3.0))
    assert f"rows before 150 are those of {own}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--seq-length L: the tokens per sample are missing"),
        (["--seq-length", "8", "--from-sample", "5"], "--from-sample goes with --extend; the weights of a new index"),
        (["--seq-length", "8", "--weights", "web=1"], "--weights goes with --extend"),
        (["--extend", "--seq-length", "8"], "--seq-length does not go with --extend: an extension takes it from the"),
        (["--extend", "--seed", "8"], "--seed does not go with --extend"),
        (["--extend", "--split", "1"], "--split does not go with --extend"),
        (["--extend", "--num-epochs", "1"], "--num-epochs does not go with --extend"),
        (["--extend"], "has 200 samples already: ask for more, or for other weights from some sample on"),
        (["--extend", "--from-sample", "5"], "the reverse: weights is missing"),
        (
            ["--extend", "--weights", "web", "--from-sample", "5"],
            "--weights 'web': 'web' is no weight; write id=weight",
        ),
        (["--extend", "--weights", "web=x", "--from-sample", "5"], "'web=x' is no weight"),
        (["--extend", "--weights", "=1", "--from-sample", "5"], "'=1' is no weight"),
        (["--extend", "--weights", "a=1,a=2", "--from-sample", "5"], "--weights 'a=1,a=2': 'a' is named twice"),
        (["--extend", "--num-samples", "300", "--num-epochs", "1"], "not allowed with argument"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    words: list[str], message: str, small_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sets(str(small_corpus)).keys()
    assert main(["index", str(small_corpus), *words]) == 2
    assert message in capsys.readouterr().err
    assert sets(str(small_corpus)).keys() == before


def test_a_set_that_is_not_there_is_named(small_corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(small_corpus), "--extend", "L8-s1-0", "--num-samples", "300"]) == 1
    assert "L8-s1-0: no set.json, so this index set is missing or unfinished" in capsys.readouterr().err


def test_a_corpus_without_a_set_of_its_own_has_nothing_to_extend(
    corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(corpus) / "manifest.json"
    own = read_manifest(corpus).index_set
    path.write_text(path.read_text().replace(f'"index_set": "{own}"', '"index_set": null'))
    assert main(["index", corpus, "--extend", "--num-samples", "300"]) == 2
    said = capsys.readouterr().err
    assert f"was prepared without [index], so it has no index set of its own; name one ({own})" in said
