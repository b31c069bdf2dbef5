"""The command line as a user meets it: exit codes, one sentence per mistake, and no traceback that nobody asked for."""

import bz2
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zstandard

from gristmill import __version__
from gristmill.cli import main

LINES = b"".join(b'{"text": "document number %d"}\n' % number for number in range(3000))
FN_API = ("--runner", "FnApiRunner")
DASK = ("--runner", "DaskRunner", "--max-workers", "2")
PROCESSES = (*FN_API, "--direct_num_workers=2", "--direct_running_mode=multi_processing")


def refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line that a refused command must print on standard error, after what the run said of itself."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    *said, message = done.stderr.rstrip("\n").split("\n")
    told = ("stages ", "test: ", "stage ", "  ")
    assert all(line.startswith(told) for line in said), done.stderr
    assert message.startswith("gristmill: ")
    return message.removeprefix("gristmill: ")


def finished_looking(output: Path) -> list[str]:
    """Files that would make a folder look like a finished corpus, or like a whole part of one."""
    names = (path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file())
    return [name for name in names if name == "manifest.json" or name.endswith((".bin", ".idx", ".npy"))]


@pytest.fixture
def good(workshop: Any) -> Any:
    """A workshop with one JSON lines file, `a.jsonl`."""
    workshop.write("a.jsonl", LINES)
    return workshop


class TestHelp:
    @pytest.mark.parametrize("words", [["--help"], ["--version"], ["prepare", "--help"], ["-h"]])
    def test_it_is_shown_without_loading_what_works(self, repository: Path, words: list[str]) -> None:
        code = (
            "import sys\n"
            "from gristmill.cli import main\n"
            "try:\n"
            f"    main({words!r})\n"
            "except SystemExit as end:\n"
            "    assert end.code == 0\n"
            "heavy = {'apache_beam', 'pyarrow', 'numpy', 'tokenizers', 'transformers', 'jax', 'fsspec', 'orjson'}\n"
            "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert __version__ in done.stdout if "--version" in words else "usage: gristmill" in done.stdout

    def test_every_command_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["--help"])
        said = capsys.readouterr().out
        assert all(f"\n  {command} " in said for command in ("prepare", "index", "verify", "inspect"))

    def test_it_is_installed_as_a_command(self, workshop: Any) -> None:
        script = Path(sys.executable).with_name("gristmill")
        done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == workshop.cli("--version").stdout == f"gristmill {__version__}\n"


class TestWrongWords:
    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ([], "the following arguments are required: COMMAND; see `gristmill --help`"),
            (["prepar"], "argument COMMAND: invalid choice: 'prepar'"),
            (["--verbos"], "the following arguments are required: COMMAND"),
            (["prepare"], "the following arguments are required: recipe; see `gristmill prepare --help`"),
            (["prepare", "no-such-recipe.toml"], "no-such-recipe.toml: cannot be opened: No such file or directory"),
            (["prepare", "r.toml", "--to"], "argument --to: expected one argument"),
            (["verify"], "the following arguments are required: corpus"),
            (["verify", "a", "b"], "unrecognized arguments: b"),
            (["verify", "no-such-corpus"], "no-such-corpus"),
            (["inspect", "no-such-corpus"], "no-such-corpus"),
        ],
    )
    def test_are_told_in_one_sentence(
        self, words: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(words) == (1 if words[:1] in (["verify"], ["inspect"]) and len(words) == 2 else 2)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("gristmill: ")
        assert captured.err.count("\n") == 1
        assert says in captured.err

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (
                ["--to", "tokenise"],
                "--to tokenise: no such stage; the stages are download, clean, tokenize, index, blend",
            ),
            (["--from", "index"], "--from index: the run ends before it, with tokenize"),
            (["--source", "s1"], "--source s1: the recipe has no such source; it has s0"),
            (["--runner", "loop", "--direct_num_workers=2"], "--runner loop takes no Beam options"),
            (["--runner", "NoSuchRunner"], "--runner NoSuchRunner: Beam cannot make this runner"),
            (["--runner", "no.such.Runner"], "--runner no.such.Runner: Beam cannot make this runner"),
            (
                ["--direct_num_worker=2"],
                "--direct_num_worker: neither gristmill prepare nor Beam knows this option; did ",
            ),
            (["--direct_num_worker=2"], "did you mean --direct_num_workers?"),
            (
                ["--sorce", "s0"],
                "--sorce: neither gristmill prepare nor Beam knows this option; did you mean --source?",
            ),
            (["-q"], "-q: neither gristmill prepare nor Beam knows this option"),
            (["--direct_num_workers=many"], "argument --direct_num_workers: invalid int value: 'many'"),
            (["--direct_running_mode=fast"], "argument --direct_running_mode: invalid choice: 'fast'"),
            (["--direct_running_mode"], "argument --direct_running_mode: expected one argument"),
            (["other.toml"], "other.toml: belongs to no option; `gristmill prepare` takes one recipe"),
        ],
    )
    def test_of_prepare_leave_no_trace(
        self, good: Any, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        recipe = good.recipe({"files": [str(good.folder / "a.jsonl")]})
        assert main(["prepare", recipe, *words]) == 2
        captured = capsys.readouterr()
        assert says in captured.err
        assert "Traceback" not in captured.err
        assert captured.err.count("\n") == 1, captured.err
        assert not (good.folder / "out").exists()

    def test_the_options_that_are_suggested_are_those_of_prepare(self) -> None:
        import argparse

        from gristmill.pipelines.beam_runners import OWN_OPTIONS
        from gristmill.pipelines.command import add_arguments

        parser = argparse.ArgumentParser()
        add_arguments(parser)
        known = {name for action in parser._actions for name in action.option_strings if name.startswith("--")}
        assert set(OWN_OPTIONS) == known | {"--debug", "--log-format"}


class TestWrongRecipe:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("name = ", "recipe.toml: no valid TOML: Invalid value (at "),
            ("name = 'x\n", "recipe.toml: no valid TOML: "),
            ("", "recipe.toml: "),
            ("name = 'test'\nname = 'test'\n", "no valid TOML: Cannot overwrite a value"),
        ],
    )
    def test_is_told(self, workshop: Any, text: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["prepare", workshop.write("recipe.toml", text.encode())]) == 2
        assert says in capsys.readouterr().err

    def test_that_is_no_text(self, workshop: Any, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["prepare", workshop.write("recipe.toml", b"name = '\xff'")]) == 2
        assert "a recipe must be UTF-8 text" in capsys.readouterr().err

    def test_that_is_a_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["prepare", str(tmp_path)]) == 2
        assert "Is a directory" in capsys.readouterr().err

    def test_every_mistake_is_listed_at_once(self, good: Any, capsys: pytest.CaptureFixture[str]) -> None:
        source = {"files": ["a.jsonl"], "text_feild": "text", "weight": -1}
        assert main(["prepare", good.recipe(source, sead=3, shards={"target_tokens": 0})]) == 2
        said = capsys.readouterr().err
        assert "4 mistakes in the recipe" in said
        assert '  - sources[0].text_feild: is not a known key; did you mean "text_field"?' in said
        assert '  - sead: is not a known key; did you mean "seed"?' in said
        assert "  - sources[0].weight: is -1" in said
        assert "  - shards.target_tokens: is 0" in said

    @pytest.mark.parametrize(
        ("tokenizer", "says"),
        [
            ({"eod": "</eos>"}, "</eos>"),
            ({"eod": "the quick brown"}, "the quick brown"),
            ({"eod": 320}, "320"),
            ({"eod": 10**6}, "1000000"),
            ({"path": "no/such/tokenizer.json"}, "no/such/tokenizer.json: no such tokenizer file or folder"),
            ({"path": "a.jsonl"}, "a.jsonl"),
        ],
        ids=["absent", "many ids", "one too high", "far too high", "no file", "no tokenizer"],
    )
    def test_of_the_tokenizer(
        self, good: Any, tokenizer: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
    ) -> None:
        monkeypatch.chdir(good.folder)
        given = {"path": str(good.tokenizer), "eod": "<|endoftext|>"} | tokenizer
        assert main(["prepare", good.recipe({"files": ["a.jsonl"]}, tokenizer=given), "--quiet"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("gristmill: ")
        assert said.count("\n") == 1
        assert says in said
        assert not (good.folder / "out").exists()

    def test_of_a_tokenizer_without_an_end(self, good: Any, capsys: pytest.CaptureFixture[str]) -> None:
        recipe = good.recipe({"files": [str(good.folder / "a.jsonl")]}, tokenizer={"path": str(good.tokenizer)})
        assert main(["prepare", recipe, "--quiet"]) == 2
        assert "eod" in capsys.readouterr().err

    def test_a_pattern_without_a_match(self, good: Any, capsys: pytest.CaptureFixture[str]) -> None:
        pattern = str(good.folder / "*.parquet")
        assert main(["prepare", good.recipe({"files": [str(good.folder / "a.jsonl"), pattern]})]) == 2
        assert f'gristmill: sources[0].files: nothing to read at "{pattern}"' in capsys.readouterr().err
        assert not (good.folder / "out").exists()


class TestWrongOutput:
    @pytest.mark.parametrize(
        ("output", "says"),
        [
            ("a.jsonl", "is no folder"),
            ("a.jsonl/below/it", "is no folder"),
            ("/proc/gristmill/out", "output /proc/gristmill/out"),
            ("memory:/x", "output"),
            ("nosuch://bucket/out", "Protocol not known: nosuch"),
        ],
    )
    def test_is_told(
        self, good: Any, output: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
    ) -> None:
        monkeypatch.chdir(good.folder)
        if output == "memory:/x":
            Path("memory:").write_bytes(b"")
        assert main(["prepare", good.recipe({"files": ["a.jsonl"]}), "--output", output, "--quiet"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("gristmill: output ")
        assert said.count("\n") == 1
        assert says in said

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_that_may_not_be_written(self, good: Any, capsys: pytest.CaptureFixture[str]) -> None:
        folder = good.folder / "closed"
        folder.mkdir(mode=0o555)
        recipe = good.recipe({"files": [str(good.folder / "a.jsonl")]}, output=str(folder / "out"))
        assert main(["prepare", recipe, "--quiet"]) == 2
        assert "may not be written to" in capsys.readouterr().err

    def test_that_another_run_works_on(self, good: Any, capsys: pytest.CaptureFixture[str]) -> None:
        from gristmill.pipelines.run_lock import working_on

        recipe = good.recipe({"files": [str(good.folder / "a.jsonl")]})
        with working_on(str(good.folder / "out")):
            assert main(["prepare", recipe, "--quiet"]) == 1
        assert "another run is working on this corpus; wait for it or stop it" in capsys.readouterr().err
        assert main(["prepare", recipe, "--quiet"]) == 0


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}


class TestWrongData:
    @pytest.mark.parametrize("kind", PACKERS)
    @pytest.mark.parametrize("keep", [0.5, 0.999])
    @pytest.mark.parametrize("policy", ["fail", "skip"])
    def test_a_file_cut_short(
        self, workshop: Any, kind: str, keep: float, policy: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        packed = PACKERS[kind](LINES)
        path = workshop.write(f"a.jsonl.{kind}", packed[: int(keep * len(packed))])
        assert main(["prepare", workshop.recipe({"files": [path], "bad_records": policy}), "--quiet"]) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"gristmill: {path}: the ")
        assert "data end before their end mark; the file was cut short." in said
        assert said.count("\n") == 1
        assert finished_looking(workshop.folder / "out") == []

    CASES: ClassVar[dict[str, tuple[dict[str, bytes], dict[str, Any], str]]] = {
        "missing field": (
            {"a.jsonl": b'{"content": "a", "id": 1}\n' * 5},
            {},
            "/a.jsonl:1: missing field: no field 'text'; fields seen: content, id; set text_field to one, or set bad_",
        ),
        "missing field everywhere": (
            {"a.jsonl": b'{"content": "a", "id": 1}\n' * 5},
            {"bad_records": "skip", "max_bad_fraction": 1.0},
            "/a.jsonl: none of 5 records has the text: no field 'text'; fields seen: content, id; set text_field",
        ),
        "bad line": ({"a.jsonl": LINES + b'{"text": "cut\n'}, {}, "/a.jsonl:3001: malformed json: "),
        "too many bad lines": (
            {"a.jsonl": LINES + b"oops\n" * 100},
            {"bad_records": "skip"},
            "source 's0': 100 of 3100 records are bad (100 malformed_json), more than max_bad_fraction = 0.01 allows",
        ),
        "no document": ({"a.jsonl": b'{"text": ""}\n'}, {}, "source 's0': no document is left of 1 records read"),
        "empty file": ({"a.jsonl": b""}, {}, "source 's0': its files hold no record"),
        "0 bytes packed": ({"a.jsonl.gz": b""}, {}, "/a.jsonl.gz: has 0 bytes"),
        "other encoding": ({"a.jsonl": LINES.decode().encode("utf-16")}, {}, "/a.jsonl: is UTF-16 text"),
        "no parquet": ({"a.parquet": LINES}, {}, "/a.parquet: cannot be read as Parquet: "),
        "damaged": ({"a.jsonl.gz": gzip.compress(LINES)[:-8] + bytes(8)}, {}, "/a.jsonl.gz: damaged gzip data: "),
    }

    @pytest.mark.parametrize("case", CASES)
    def test_is_told(self, workshop: Any, case: str, capsys: pytest.CaptureFixture[str]) -> None:
        files, settings, says = self.CASES[case]
        paths = [workshop.write(name, content) for name, content in files.items()]
        assert main(["prepare", workshop.recipe({"files": paths, **settings}), "--quiet"]) == 1
        said = capsys.readouterr().err
        assert said.startswith("gristmill: ")
        assert said.count("\n") == 1
        assert says in said
        assert finished_looking(workshop.folder / "out") == []

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "runner", [FN_API, (*FN_API, "--direct_num_workers=2"), PROCESSES, ("--runner", "DirectRunner")]
    )
    def test_a_worker_s_error_is_the_same_sentence(self, workshop: Any, runner: tuple[str, ...]) -> None:
        path = workshop.write("a.jsonl", LINES + b'{"text": "cut\n')
        recipe = workshop.recipe({"files": [path]})
        by_loop = refused(workshop.cli("prepare", recipe, "--runner", "loop"), 1)
        assert by_loop.startswith(f"{path}:3001: malformed json: ")
        assert refused(workshop.cli("prepare", recipe, *runner), 1) == by_loop
        assert finished_looking(workshop.folder / "out") == []

    @pytest.mark.slow
    def test_an_error_of_a_later_step_too(self, workshop: Any) -> None:
        path = workshop.write("a.jsonl", b'{"text": ""}\n')
        recipe = workshop.recipe({"files": [path]})
        by_loop = refused(workshop.cli("prepare", recipe, "--runner", "loop"), 1)
        assert refused(workshop.cli("prepare", recipe, *FN_API), 1) == by_loop


class TestDebug:
    def test_it_shows_the_traceback(self, good: Any) -> None:
        recipe = good.recipe({"files": [str(good.folder / "*.parquet")]})
        for words in (["--debug", "prepare", recipe], ["prepare", recipe, "--debug"]):
            done = good.cli(*words)
            assert done.returncode == 1
            assert "Traceback (most recent call last)" in done.stderr
            assert "gristmill.formats.errors.SettingsError: sources[0].files: nothing to read" in done.stderr


class TestWords:
    def test_a_run_says_what_it_does(self, good: Any) -> None:
        recipe = good.recipe({"files": ["a.jsonl"]}, index={"sequence_length": 32})
        done = good.cli("prepare", recipe)
        assert (done.returncode, done.stdout) == (0, "")
        lines = done.stderr.splitlines()
        assert lines[0].startswith("test: 1 input files, 0.1 MB, 1 splits -> ")
        assert lines[1].startswith("stages download, clean, tokenize, index, blend on this process")
        assert lines[-1].startswith("done in ")
        assert any("  clean is done: 3,000 documents, 3,000 kept" in line for line in lines)
        again = good.cli("prepare", recipe)
        assert again.stderr.splitlines()[-1].startswith("nothing to do: ")

    def test_quiet_says_nothing(self, good: Any) -> None:
        done = good.cli("prepare", good.recipe({"files": ["a.jsonl"]}), "--quiet")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_the_output_of_the_recipe_may_be_replaced(self, good: Any) -> None:
        recipe = good.recipe({"files": ["a.jsonl"]})
        done = good.cli("prepare", recipe, "--quiet", "--output", "elsewhere/x/")
        assert (done.returncode, done.stderr) == (0, "")
        assert (good.folder / "elsewhere" / "x" / "manifest.json").exists()
        assert not (good.folder / "out").exists()

    def test_a_small_corpus_takes_no_beam(self, good: Any) -> None:
        code = (
            "import sys\n"
            "from gristmill.cli import main\n"
            f"assert main(['prepare', {good.recipe({'files': ['a.jsonl']})!r}, '--quiet']) == 0\n"
            "heavy = {'apache_beam', 'transformers', 'jax', 'grain', 'numba'} & set(sys.modules)\n"
            "assert not heavy, heavy\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=good.folder, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")

    def test_verify(self, good: Any, capsys: pytest.CaptureFixture[str]) -> None:
        good.prepare({"files": [str(good.folder / "a.jsonl")]})
        out = good.folder / "out"
        assert main(["verify", str(out)]) == 0
        assert capsys.readouterr().out == f"{out}: sound\n"
        (shard,) = out.rglob("*.bin")
        shard.write_bytes(bytes(len(shard.read_bytes())))
        assert main(["verify", str(out)]) == 1
        said = capsys.readouterr().out.splitlines()
        assert any(line.startswith(f"{shard}: sha256 ") for line in said)
        at = next(number for number, line in enumerate(said) if line.endswith(" problems"))
        assert said[at] == f"{out}: {at} problems"
        assert said[at + 1].startswith("Remove the files named above, then run `gristmill prepare` on the recipe")
        (out / "manifest.json").unlink()
        assert main(["verify", str(out)]) == 1
        assert "gristmill: " in capsys.readouterr().err

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "runner", [("--runner", "loop"), (), FN_API, (*FN_API, "--direct_num_workers=2"), PROCESSES, DASK]
    )
    def test_ctrl_c_ends_a_run_at_once(self, workshop: Any, runner: tuple[str, ...]) -> None:
        lines = b"".join(json.dumps({"text": f"{number} " * 200}).encode() + b"\n" for number in range(50_000))
        workshop.write("a.jsonl", lines)
        recipe = workshop.recipe({"files": ["a.jsonl"]})
        code = (
            "import signal, sys\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from gristmill.cli import entry\n"
            f"sys.argv[1:] = {['prepare', recipe, *runner]!r}\n"
            "entry()\n"
        )
        words = [sys.executable, "-c", code]
        process = subprocess.Popen(
            words, cwd=workshop.folder, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        begun = workshop.folder / "out" / "spill" / "s0"
        while process.poll() is None and not begun.exists():
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the workers too
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 130
        *before, last = said.splitlines()
        assert last == "gristmill: interrupted; what is finished stays, and a rerun goes on from there"
        assert all(line.startswith(("test: ", "stages ", "  ")) for line in before), said
        assert "Traceback" not in said
        assert finished_looking(workshop.folder / "out") == []
