"""The log of commands: JSON lines and nothing else where they are asked for, and no secret in either form."""

import http.server
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gristmill.cli import main
from gristmill.formats.errors import InputError, Problem, RecipeError
from gristmill.formats.log import event, inherit_log, logging_as, logs_json, tell_error
from gristmill.formats.log_secrets import without_secrets

JSON = ("--log-format", "json")
FN_API = ("--runner", "FnApiRunner")
PROCESSES = (*FN_API, "--direct_num_workers=2", "--direct_running_mode=multi_processing")
OF_ENVIRONMENT = "a-secret-of-the-environment-0123456789"
OF_URL = "a-secret-of-an-address-0123456789"


def events_of(text: str) -> list[dict[str, Any]]:
    """The records of a log; every line must be one, whole and with what each must have."""
    events = [json.loads(line) for line in text.splitlines()]
    for entry in events:
        assert list(entry)[:5] == ["time", "level", "logger", "event", "message"], entry
        assert entry["time"].endswith("Z")
        assert abs((datetime.now(UTC) - datetime.fromisoformat(entry["time"])).total_seconds()) < 600
        assert entry["level"] in {"info", "warning", "error", "critical"}
    return events


def error_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The error in the log of a command that failed, which is the last but for the command's end."""
    *_, error, end = events_of(done.stderr)
    assert (end["event"], end["exit_code"]) == ("end", done.returncode)
    return error


class Absent(http.server.BaseHTTPRequestHandler):
    """Knows no page."""

    def do_GET(self) -> None:
        self.send_error(404)

    def do_HEAD(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def absent() -> Iterator[str]:
    """Address of a server that has nothing."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Absent)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


NOISY = """
import logging, os, sys, threading, traceback, warnings

def noisy(text):
    warnings.warn(f"a warning about {text[:3]}", stacklevel=1)
    print("printed", file=sys.stderr)
    os.write(2, b"by a library in C\\n")
    logging.getLogger("a.library").warning("a library's log")
    try:
        raise ValueError("handled")
    except ValueError:
        traceback.print_exc()
    return text

noisy.version = 1
"""


class TestLines:
    @pytest.mark.parametrize(
        "runner",
        [
            ("--runner", "loop", "--max-workers", "2"),
            pytest.param(PROCESSES, marks=pytest.mark.slow),
            pytest.param((*FN_API, "--verbose"), marks=pytest.mark.slow),
        ],
        ids=["pool", "beam processes", "verbose beam"],
    )
    def test_whatever_is_printed_by_whomever_becomes_a_line(self, workshop: Any, runner: tuple[str, ...]) -> None:
        workshop.write("noisy_steps.py", NOISY.encode())
        sources = [
            {"files": [workshop.jsonl(f"{n}.jsonl", [f"{n} a", f"{n} b"])], "clean": {"custom": ["noisy_steps:noisy"]}}
            for n in range(2)
        ]
        recipe = workshop.recipe(*sources)
        done = workshop.cli("prepare", recipe, *runner, *JSON, PYTHONPATH=str(workshop.folder), PYTHONWARNINGS="always")
        events = events_of(done.stderr)
        assert done.returncode == 0, done.stderr
        said = {(entry["event"], entry["message"]) for entry in events}
        assert ("output", "printed") in said
        assert ("output", "by a library in C") in said
        assert ("stage_end", "clean") in {(entry["event"], entry.get("stage")) for entry in events}
        (start, *_), (*_, end) = events, events
        assert (start["event"], start["command"]) == ("start", "prepare")
        assert (end["event"], end["exit_code"]) == ("end", 0)
        assert ("warning", "a warning about 0 a") in said
        if "--verbose" in runner:
            assert any(entry["logger"].startswith("apache_beam") for entry in events), "Beam's log is added"

    def test_of_a_worker_that_dies(self, workshop: Any) -> None:
        workshop.write("noisy_steps.py", b"import os\ndef die(text):\n    os.abort()\ndie.version = 1\n")
        workshop.write("sitecustomize.py", b"import faulthandler\nfaulthandler.enable()\n")
        settings = {"clean": {"custom": ["noisy_steps:die"]}}
        recipe = workshop.recipe(*({"files": [workshop.jsonl(f"{n}.jsonl", ["a"])], **settings} for n in range(2)))
        words = ("prepare", recipe, "--runner", "loop", "--max-workers", "2", *JSON)
        done = workshop.cli(*words, PYTHONPATH=str(workshop.folder))
        events = events_of(done.stderr)
        assert ("output", "Fatal Python error: Aborted") in {(entry["event"], entry["message"]) for entry in events}
        assert error_of(done)["error"] == "PoolWorkerGoneError"
        assert done.returncode == 1

    @pytest.mark.parametrize("command", ["index", "verify"])
    def test_of_other_commands(self, workshop: Any, command: str) -> None:
        workshop.prepare({"files": [workshop.jsonl("a.jsonl", ["a few words", "and more of them"])]})
        words = {
            "index": ["index", "out", "--seq-length", "2"],
            "verify": ["verify", "out"],
        }[command]
        plain, done = workshop.cli(*words), workshop.cli(*words, *JSON)
        events = events_of(done.stderr)
        assert plain.stderr == ""
        assert done.stdout.splitlines()[-1] == plain.stdout.splitlines()[-1], "the answer stays where it is"
        assert events[-2]["message"] == done.stdout.splitlines()[-1]
        assert [entry["event"] for entry in (events[0], *events[-2:])] == [
            "start",
            {"index": "index_set", "verify": "verified"}[command],
            "end",
        ]
        assert events[-1]["seconds"] > 0

    def test_the_environment_may_ask_for_them(self, workshop: Any) -> None:
        done = workshop.cli("verify", "nowhere", GRISTMILL_LOG_FORMAT="json")
        assert error_of(done)["error"] == "CorpusError"
        done = workshop.cli("verify", "nowhere", "--log-format=text", GRISTMILL_LOG_FORMAT="json")
        assert done.stderr.startswith("gristmill: nowhere")

    @pytest.mark.parametrize(("words", "value"), [(["--log-format=xml"], "xml"), (["--log-format"], "(none)")])
    def test_a_form_that_there_is_not(self, words: list[str], value: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["verify", "x", *words]) == 2
        says = f"gristmill: --log-format {value}: there is no such form; the forms are text, json\n"
        assert capsys.readouterr().err == says

    def test_help_names_them(self, capsys: pytest.CaptureFixture[str]) -> None:
        for words in (["--help"], ["prepare", "--help"], ["launch", "--help"], ["index", "--help"]):
            with pytest.raises(SystemExit):
                main(words)
            assert "--log-format" in capsys.readouterr().out


class TestErrors:
    def test_name_the_place_the_rule_and_the_remedy(self, workshop: Any) -> None:
        path = workshop.write("a.jsonl", b'{"text": "one"}\n{"text": "cut\n')
        for runner in (("--runner", "loop"), ("--runner", "loop", "--max-workers", "2")):
            recipe = workshop.recipe({"files": [path]}, {"files": [path], "max_bad_fraction": 0.5})
            done = workshop.cli("prepare", recipe, *runner, *JSON)
            error = error_of(done)
            assert done.returncode == error["exit_code"] == 1
            assert (error["event"], error["level"], error["error"]) == ("error", "error", "InputError")
            assert (error["file"], error["line"], error["rule"]) == (path, 2, "malformed_json")
            assert error["value"]
            assert error["remedy"]
            assert error["message"].startswith(f"{path}:2: malformed json: ")
            assert "traceback" not in error

    def test_of_a_recipe_are_listed_with_their_keys(self, workshop: Any) -> None:
        done = workshop.cli("prepare", workshop.recipe({"files": ["a"], "weight": -1}, sead=1), *JSON)
        error = error_of(done)
        assert {problem["key"] for problem in error["problems"]} == {"sead", "sources[0].weight"}
        assert error["file"].endswith("recipe.toml")
        assert done.returncode == 2
        done = workshop.cli("prepare", workshop.recipe({"files": ["no-such-file"]}), *JSON)
        assert error_of(done)["key"] == "sources[0].files"

    def test_debug_adds_the_traceback_as_one_field(self, workshop: Any) -> None:
        done = workshop.cli("verify", "nowhere", "--debug", *JSON)
        error = error_of(done)
        assert error["traceback"].startswith("Traceback (most recent call last):\n")
        assert error["traceback"].count("CorpusError: ") == 1

    def test_that_nobody_expected_are_one_line_too(self, workshop: Any) -> None:
        workshop.write("broken_steps.py", b"def broken(text):\n    return 1 // 0\nbroken.version = 1\n")
        recipe = workshop.recipe(
            {"files": [workshop.jsonl("a.jsonl", ["a"])], "clean": {"custom": ["broken_steps:broken"]}}
        )
        done = workshop.cli("prepare", recipe, *JSON, PYTHONPATH=str(workshop.folder))
        error = error_of(done)
        assert done.returncode == 1
        assert (error["event"], error["level"]) == ("error", "error")

    def test_an_interrupted_run_says_so(self, workshop: Any) -> None:
        code = (
            "import sys\nfrom gristmill import cli\n"
            "def stop(*_):\n    raise KeyboardInterrupt\n"
            "cli._COMMANDS['prepare'] = ('', stop)\nsys.exit(cli.main(['prepare', '--log-format', 'json']))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 130
        assert [(entry["event"], entry.get("exit_code")) for entry in events_of(done.stderr)] == [
            ("start", None),
            ("interrupted", None),
            ("end", 130),
        ]

    def test_of_a_recipe_that_is_not_there_names_it(self, workshop: Any) -> None:
        for command in ("prepare", "plan"):
            error = error_of(workshop.cli(command, "missing.toml", *JSON))
            assert (error["event"], error["file"], error["exit_code"]) == ("error", "missing.toml", 2)

    def test_help_ends_too(self, workshop: Any) -> None:
        done = workshop.cli("prepare", "--help", *JSON)
        assert [(entry["event"], entry.get("exit_code")) for entry in events_of(done.stderr)] == [
            ("start", None),
            ("end", 0),
        ]

    def test_of_a_thread(self) -> None:
        code = (
            "import threading\nfrom gristmill.formats.log import logging_as\n"
            "with logging_as('json'):\n"
            "    thread = threading.Thread(target=lambda: 1 // 0, name='mine')\n"
            "    thread.start()\n    thread.join()\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        (error,) = events_of(done.stderr)
        assert error["message"] == "uncaught error in thread mine: integer division or modulo by zero"
        assert (error["error"], error["traceback"].count("\n") > 2) == ("ZeroDivisionError", True)


class TestSecrets:
    @pytest.mark.parametrize("form", ["text", "json"])
    def test_are_in_no_line(self, workshop: Any, absent: str, form: str) -> None:
        signed = f"X-Goog-Signature={OF_URL}&sig={OF_URL}&token={OF_URL}&page=1"
        url = f"http://user:{OF_URL}@{absent}/{OF_ENVIRONMENT}/a.jsonl?{signed}"
        words = ("prepare", workshop.recipe({"files": [url]}), "--debug", "--log-format", form)
        done = workshop.cli(*words, HF_TOKEN=OF_ENVIRONMENT)
        assert done.returncode == 1, done.stderr
        assert OF_URL not in done.stderr + done.stdout
        assert OF_ENVIRONMENT not in done.stderr + done.stdout
        assert "Traceback" in done.stderr
        last = done.stderr.splitlines()[-2 if form == "json" else -1]
        assert absent in last, "the rest of the address is told"
        if form == "json":
            shown = f"http://***@{absent}/***/a.jsonl?X-Goog-Signature=***&sig=***&token=***&page=1"
            assert error_of(done)["file"] == shown

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("gs://b/a?x=1&token=abc&y=2", "gs://b/a?x=1&token=***&y=2"),
            ("https://h/a?X-Amz-Credential=A%2FB&X-Amz-Expires=9", "https://h/a?X-Amz-Credential=***&X-Amz-Expires=9"),
            ("https://h/a?sv=1&sig=a%3D", "https://h/a?sv=1&sig=***"),
            ("AccountName=x;AccountKey=abc==;Suffix=y", "AccountName=x;AccountKey=***;Suffix=y"),
            ("s3://key:word@host/a", "s3://***@host/a"),
            ("https://tokentoken@host/a", "https://***@host/a"),
            ("abfs://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
            ("Authorization: Bearer abcdefgh.ijkl", "Authorization: Bearer ***"),
            ("hf_abcdefghijklmnopqrstuvwx is no good", "*** is no good"),
            ("ya29.abc-def is no good", "*** is no good"),
            ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n.", "***\n."),
            ("the value wordofpassage of MY_API_KEY", "the value *** of MY_API_KEY"),
            ("tokens=5 and key 'text'", "tokens=5 and key 'text'"),
            ("short", "short"),
        ],
    )
    def test_each_kind(self, text: str, shown: str) -> None:
        environment = {"MY_API_KEY": "wordofpassage", "OTHER_TOKEN": "short", "PATH": "container"}
        assert without_secrets(text, environment) == shown
        assert without_secrets({"a": [text, 1, None, True]}, environment) == {"a": [shown, 1, None, True]}

    def test_what_is_no_json_number_is_null(self) -> None:
        assert without_secrets([1.5, float("nan"), float("inf"), Path("a")], {}) == [1.5, None, None, "a"]


class TestHere:
    """In one process, where standard error is a stream of whoever imports us."""

    def test_the_form_ends_with_the_block(self, capsys: pytest.CaptureFixture[str]) -> None:
        with logging_as("json"):
            assert logs_json()
            assert os.environ["GRISTMILL_LOG_FORMAT"] == "json"
            event("counted", "three", number=3, message="not this one")
        assert not logs_json()
        assert "GRISTMILL_LOG_FORMAT" not in os.environ
        (record,) = events_of(capsys.readouterr().err)
        assert (record["event"], record["message"], record["number"]) == ("counted", "three", 3)

    def test_quiet_leaves_warnings_and_errors(self, capsys: pytest.CaptureFixture[str]) -> None:
        with logging_as("text", quiet=True):
            event("a", "not said")
            event("b", "said", level=30)
            tell_error(InputError("what is wrong"), trace=False)
        assert capsys.readouterr().err == "said\ngristmill: what is wrong\n"

    def test_errors_carry_facts_through_processes(self) -> None:
        import pickle

        error = InputError("a.jsonl:3: bad").about(file="a.jsonl", line=3).about(rule="bad")
        assert pickle.loads(pickle.dumps(error)).facts == {"file": "a.jsonl", "line": 3, "rule": "bad"}
        assert InputError("other").facts == {}
        assert RecipeError("r.toml", [Problem("a", "b")]).facts == {}

    def test_a_worker_of_a_text_log_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GRISTMILL_LOG_FORMAT", "text")
        inherit_log()
        assert not logs_json()


def test_lines_of_many_processes_do_not_mix(tmp_path: Path) -> None:
    child = (
        "import sys\nfrom gristmill.formats.log import event, inherit_log\ninherit_log()\n"
        "for number in range(200):\n"
        "    event('long', sys.argv[1] * 3000, level=30, traceback=sys.argv[1] * 3000)\n"
    )
    code = (
        "import subprocess, sys\nfrom gristmill.formats.log import event, logging_as\n"
        "with logging_as('json'):\n"
        f"    children = [subprocess.Popen([sys.executable, '-c', {child!r}, letter]) for letter in 'ab']\n"
        "    for number in range(200):\n        event('long', 'c' * 9000)\n"
        "    for process in children:\n        process.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    events = events_of(done.stderr)
    letters = {letter: [entry for entry in events if entry["message"][:1] == letter] for letter in "abc"}
    assert {letter: len(found) for letter, found in letters.items()} == {"a": 200, "b": 200, "c": 200}
    assert {len(entry["message"]) for entry in letters["c"]} == {9000}
    assert all(set(entry["traceback"][:-6]) <= {entry["message"][0]} for entry in letters["a"] + letters["b"])


def test_what_was_printed_before_an_error_stands_before_it() -> None:
    code = (
        "import os\nfrom gristmill.formats.errors import InputError\n"
        "from gristmill.formats.log import logging_as, tell_error\n"
        "with logging_as('json'):\n"
        "    for number in range(2000):\n        os.write(2, b'%d printed\\n' % number)\n"
        "    tell_error(InputError('the end'), trace=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    messages = [entry["message"] for entry in events_of(done.stderr)]
    assert messages == [*(f"{number} printed" for number in range(2000)), "the end"]


@pytest.mark.parametrize("traces", [False, True])
def test_tracebacks_of_libraries_are_printed_where_they_are_asked_for(
    capsys: pytest.CaptureFixture[str], *, traces: bool
) -> None:
    library = logging.getLogger("some_library")
    with logging_as("text", traces=traces):
        try:
            raise OSError("no route")
        except OSError as error:
            library.exception("out of retries: %s", error)
            library.error("worker said\nTraceback (most recent call last):\n  File\nOSError: no route")
            library.error("Traceback (most recent call last):\n  File\nOSError: no route")
        library.warning("of two\nlines")
    told = capsys.readouterr().err
    assert ("Traceback" in told) is traces
    if not traces:
        assert told.splitlines() == [
            "some_library: out of retries: no route",
            "some_library: worker said",
            "some_library: OSError: no route",
            "some_library: of two",
            "lines",
        ]
