"""Texts that cleaning changes are the same whether they are encoded while scanned or read a second time."""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.formats.errors import InputError, SettingsError

WORDS = [
    *("the", "of", "and", "to", "that", "with", "have", "be", "water", "river", "people", "house", "small", "large"),
    *("green", "music", "paper", "engine", "north", "seven", "bridge", "winter", "letter", "garden", "market"),
]

CALLABLES = """
def shout(text):
    if "tiny" in text:
        return None
    return text.replace("engine", "ENGINE") if "engine" in text else True
shout.version = 3

def unversioned(text):
    return True

def broken(text):
    return 5
broken.version = "1"

def half(text):
    return text + "\\ud800"
half.version = 1

def raising(text):
    raise ZeroDivisionError("oh")
raising.version = 1

class Box:
    def keep(text):
        return True
    keep.version = 2

number = 7
"""

CLEAN: dict[str, Any] = {
    "unicode": "repair",
    "newlines": "lf",
    "controls": "remove",
    "min_chars": 40,
    "max_chars": 5000,
    "languages": ["en"],
    "gopher_repetition": {"max_dup_lines": 0.5, "top_ngrams": {"2": 0.4}, "dup_ngrams": {"5": 0.3}},
    "gopher_quality": {"min_words": 14, "min_stop_words": 1},
    "c4": {"min_sentences": 2},
    "fineweb": {"max_newlines_per_word": 0.5, "max_dup_line_chars": 0.2},
    "custom": ["gristmill_test_callables:shout"],
    "mask": ["email", "ip", "phone"],
    "min_tokens": 200,
    "max_tokens": 900,
}
"""Every step, at settings that the texts below break and satisfy."""


@pytest.fixture
def callables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gristmill_test_callables.py").write_text(CALLABLES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "gristmill_test_callables", raising=False)


def some_texts() -> list[str]:
    """Documents of which each step changes some and each rule drops some."""
    draw = random.Random(5)
    texts = []
    for number in range(120):
        counts = [draw.randint(4, 12) for _ in range(1 + number % 30)]
        lines = [" ".join(draw.choices(WORDS, k=count)).capitalize() + "." for count in counts]
        if number % 7 == 3:
            lines.insert(1, "Please enable JavaScript to read this page.")
        if number % 11 == 5:
            lines.append("A winter letter garden is there.")
        if number % 13 == 6:
            lines += ["- a point", "- another", "- a third", "- a fourth"] * 5
        text = "\n".join(lines)
        if number % 3 == 0:
            text = text.replace("\n", "\r\n")
        if number % 4 == 0:
            text += " Cafe\u0301 â€œquotedâ€\x9d \x00\x1b text."
        if number % 5 == 0:
            text += " Write to anna.b@mail.example.net or call +49 30 1234567 from 8.8.8.8."
        texts.append(text)
    return [*texts, "short", "tiny " * 30, texts[7], "\x00" * 60, "x" * 6000]


def read(account: Any, name: str) -> int:
    return int(account["dropped"].get(name, 0) + account["counted"].get(name, 0))


@pytest.mark.usefixtures("callables")
def test_both_ways_to_encode_give_the_same_corpus(new_workshop: Callable[[], Any]) -> None:
    trees, accounts = [], []
    for late in (False, True):
        shop = new_workshop()
        words = shop.write("words.txt", b"winter letter garden\n")
        evaluation = shop.write("eval.txt", " ".join(some_texts()[20].split()[:16]).encode())
        more = {"bad_words": words, "decontaminate": evaluation}
        source = {"files": shop.jsonl("a.jsonl", some_texts()), "clean": CLEAN | more}
        if late:
            shop.prepare(source, options={"last": "clean"})
        shop.prepare(source)
        trees.append(shop.tree())
        accounts.append(shop.manifest()["sources"][0])
        texts = shop.texts("s0")
    assert trees[0] == trees[1]
    account = accounts[0]
    assert account["documents_in"] == 125 == account["documents_kept"] + sum(account["dropped"].values())
    met = {*account["dropped"], *account["counted"]}
    assert {"min_chars", "max_chars", "min_tokens", "max_tokens", "exact_duplicate"} <= met
    assert {"repaired.unicode", "repaired.controls", "repaired.newlines"} <= met
    assert {"bad_words", "contaminated", "c4.lines_removed", "c4.changed"} <= met
    assert {"gopher_quality", "gopher_repetition"} <= {name.split(".")[0] for name in account["dropped"]}
    assert {"masked.email", "masked.ip", "masked.phone", "custom.gristmill_test_callables:shout"} <= met
    assert not any(bad in text for text in texts for bad in ("\r", "\x00", "engine", "anna.b", "8.8.8.8", "1234567"))
    assert any("Café “quoted”  text" in text and "ENGINE" in text for text in texts)


@pytest.mark.usefixtures("callables")
def test_a_sample_of_each_reason_is_kept_with_rule_and_value(workshop: Any) -> None:
    workshop.prepare({"files": workshop.jsonl("a.jsonl", some_texts()), "clean": CLEAN})
    account = workshop.manifest()["sources"][0]
    folder = workshop.folder / "out" / "rejected" / "s0"
    samples = [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]
    for reason, count in account["dropped"].items():
        if reason != "exact_duplicate":
            assert sum(sample["reason"] == reason for sample in samples) == min(count, 20), reason
    short = next(sample for sample in samples if sample["reason"] == "min_chars")
    assert (short["value"], short["found"]) == ("short", "5 < 40")
    few = next(sample for sample in samples if sample["reason"] == "min_tokens")
    assert few["value"].endswith(" tokens")
    assert int(few["value"].split()[0]) < 200


@pytest.mark.parametrize("last", ["clean", None])
@pytest.mark.parametrize("copied", [False, True])
def test_samples_name_the_file_of_their_record(workshop: Any, copied: bool, last: str | None) -> None:
    """A split holds many small files; what is left out of it is looked for in the right one."""
    files = [workshop.write(f"notes/{name}.txt", b"x" * size) for name, size in (("a", 30), ("b", 3), ("c", 40))]
    for name in "de":
        rows = [{"text": name * 30, "n": f"{name}-good"}, {"text": name, "n": f"{name}-short"}]
        data = b"".join(json.dumps(row).encode() + b"\n" for row in [*rows, {"text": "?!" * 400, "n": f"{name}-long"}])
        files.append(workshop.write(f"{name}.jsonl", data))
    clean = {"min_chars": 5, "max_tokens": 60, "exact_dedup": False}
    source = {"clean": clean, "materialize": copied}
    sources = [{**source, "files": files[:3]}, {**source, "files": files[3:], "id_field": "n"}]
    if last is not None:
        workshop.prepare(*sources, options={"last": last})
    workshop.prepare(*sources)
    found = []
    for path in sorted((workshop.folder / "out" / "rejected").rglob("*.jsonl")):
        found += [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [(sample["reason"], sample["where"].split(":")[0], sample.get("id")) for sample in found] == [
        ("min_chars", "b.txt", None),
        ("min_chars", "d.jsonl", "d-short"),
        ("min_chars", "e.jsonl", "e-short"),
        ("max_tokens", "d.jsonl", "d-long"),
        ("max_tokens", "e.jsonl", "e-long"),
    ]
    assert all(sample["found"].endswith(" > 60") for sample in found[3:])


def test_bounds_in_tokens_do_not_count_the_end_mark(workshop: Any) -> None:
    texts = ["!" * count for count in range(1, 6)]
    workshop.prepare({"files": workshop.jsonl("a.jsonl", texts), "clean": {"min_tokens": 2, "max_tokens": 4}})
    assert workshop.texts("s0") == texts[1:4]
    assert workshop.manifest()["sources"][0]["dropped"] == {"max_tokens": 1, "min_tokens": 1}


@pytest.mark.usefixtures("callables")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gristmill_test_callables:unversioned", r"unversioned: its attribute `version` is None; set it to a number"),
        ("gristmill_test_callables:nothing", r"nothing: cannot be imported \(.*nothing.*\); install its package"),
        ("gristmill_no_such_package:f", r"gristmill_no_such_package:f: cannot be imported"),
        ("gristmill_test_callables:number", r"number: is a int; it must be callable with a text"),
    ],
)
def test_a_callable_that_cannot_be_used_stops_before_any_work(workshop: Any, name: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        workshop.prepare({"files": workshop.jsonl("a.jsonl", ["text"]), "clean": {"custom": name}})
    assert not (workshop.folder / "out").exists()


@pytest.mark.usefixtures("callables")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", r"broken: returned int, for a text that begins 'text'; it must return a text, True, False or None"),
        ("half", r"half: returned a lone surrogate, for a text that begins 'text'; it must return a text"),
        ("raising", r"raising: raised ZeroDivisionError: oh, for a text that begins 'text'"),
    ],
)
def test_a_callable_that_misbehaves_is_named(workshop: Any, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        workshop.prepare(
            {"files": workshop.jsonl("a.jsonl", ["text"]), "clean": {"custom": f"gristmill_test_callables:{name}"}}
        )


def test_a_module_that_cannot_be_imported_is_named(
    workshop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "gristmill_broken_module.py").write_text("def f(:\n")
    with pytest.raises(SettingsError, match=r"importing gristmill_broken_module raised SyntaxError: .*; mend the mod"):
        workshop.prepare({"files": workshop.jsonl("a.jsonl", ["x"]), "clean": {"custom": "gristmill_broken_module:f"}})


@pytest.mark.usefixtures("callables")
def test_another_version_of_a_callable_rebuilds(workshop: Any, tmp_path: Path) -> None:
    source = {"files": workshop.jsonl("a.jsonl", ["an engine", "no motor"]), "clean": {"custom": "later:change"}}
    for version, word in ((1, "ENGINE"), (2, "MOTOR")):
        (tmp_path / "later.py").write_text(
            f"def change(text): return text.replace('engine', '{word}')\nchange.version = {version}\n"
        )
        sys.modules.pop("later", None)
        workshop.prepare(source)
        assert workshop.texts("s0") == [f"an {word}", "no motor"]
    sys.modules.pop("later", None)


ODD_TEXTS = [
    "def f(x):\n\tif x:\n\t\treturn x\n\x0c\n\n",
    "nul \x00 escape \x1b soft\u00adhyphen zero\u200bwidth \ufeff",
    "\u6f22\u5b57 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "a\r\nb\rc\u2028d\u0085e",
]


@pytest.mark.parametrize("clean", [False, True, {"controls": "remove"}])
def test_texts_come_back_as_they_were_but_for_what_was_asked(workshop: Any, clean: Any) -> None:
    workshop.prepare({"files": workshop.jsonl("a.jsonl", ODD_TEXTS), "clean": clean})
    gone = dict.fromkeys(map(ord, "\x00\x1b\ufeff")) if isinstance(clean, dict) else {}
    assert workshop.texts("s0") == [text.translate(gone) for text in ODD_TEXTS]
    counted = workshop.manifest()["sources"][0]["counted"]
    assert counted == ({"repaired.controls": 1} if gone else {})
