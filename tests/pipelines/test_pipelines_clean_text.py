"""Steps on characters and masks: what changes, and above all what does not."""

import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.clean_settings import CleanSettings
from gristmill.pipelines.clean import clean_again, clean_batch
from gristmill.pipelines.clean_pii import mask_emails, mask_ips, mask_phones
from gristmill.pipelines.clean_text import CONTROLS, compose, remove_controls, repair, unify_newlines
from gristmill.pipelines.records import Batch, RecordAccount

CODE = "def f(x):\n\tif x:\n\t\treturn '\\x00'  # ½ “q” ﬁ Ａ\n\n\x0cclass A:\r\n    pass\n"  # noqa: RUF001
SCRIPTS = (
    "汉字かな한국 \U0001f468\u200d\U0001f469\u200d\U0001f467 العربية\u200cنیم "
    "soft\u00adhyphen zero\u200bwidth न\u094d\u200dय"
)
ALL = CleanSettings(unicode="repair", controls="remove", newlines="lf")


def cleaned(text: str, chosen: CleanSettings) -> tuple[str, Any]:
    account = RecordAccount("fail")
    found = clean_batch(Batch([text], range(1)), chosen, account, lambda _: "x")
    again = clean_again(Batch([text], range(1)), chosen)
    assert again.texts == found.texts, "a second reading gives the same text"
    return found.texts[0], dict(account.counted)


@pytest.mark.parametrize("text", [CODE, SCRIPTS, "a\x00b\x1bc", "Cafe\u0301"])
def test_nothing_changes_unless_it_is_asked_for(text: str) -> None:
    assert cleaned(text, CleanSettings()) == (text, {})


def test_cleaning_leaves_code_and_scripts_whole() -> None:
    assert cleaned(SCRIPTS, ALL) == (SCRIPTS, {})
    assert cleaned(CODE, ALL) == (CODE.replace("\r\n", "\n"), {"repaired.newlines": 1})
    assert cleaned(CODE, CleanSettings(controls="remove")) == (CODE, {})


@pytest.mark.parametrize(
    ("text", "setting", "expected", "name"),
    [
        (
            "a\x00b\x07\x1b[1m\x7f\x85\u0090\ufeffc\t\v\f\r\n",
            {"controls": "remove"},
            "ab[1m\x85c\t\v\f\r\n",
            "controls",
        ),
        ("a\r\nb\rc\n\r\n", {"newlines": "lf"}, "a\nb\nc\n\n", "newlines"),
        ("Cafe\u0301", {"unicode": "nfc"}, "Café", "unicode"),
        ("line one\nâ€œquotedâ€\x9d and cafÃ©\nline “three”", {"unicode": "repair"}, "", "unicode"),
    ],
)
def test_what_is_asked_for_changes_and_is_counted(text: str, setting: Any, expected: str, name: str) -> None:
    expected = expected or "line one\n“quoted” and café\nline “three”"
    assert cleaned(text, CleanSettings(**setting)) == (expected, {f"repaired.{name}": 1})


def test_a_text_of_nothing_but_controls_is_dropped() -> None:
    account = RecordAccount("fail")
    assert clean_batch(Batch(["\x00\x01"], range(1)), ALL, account, lambda _: "x").texts == []
    assert account.dropped == {"blank": 1}


def test_the_controls_are_those_of_the_guide() -> None:
    expected = {*range(9), *range(0xE, 0x20), *range(0x7F, 0x85), *range(0x86, 0xA0), 0xFEFF}
    assert set(map(ord, CONTROLS)) == expected


LETTERS = st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("\r\n\t\x00\ufeffÃ©â€œ"))
PIECES = [
    *("plain ", "“q”", "â€œ", "Ã©", "cafÃ© ", "\n", "€", "Ð", "¼", "é", "\x92", "â\x80\x99", " à", "ﬁ", "\r"),
    *("e\u0301", "\u0301", "A\u030a"),
]


@settings(max_examples=300)
@given(st.text(LETTERS, max_size=60))
def test_steps_do_what_they_say(text: str) -> None:
    assert remove_controls(text) == "".join(letter for letter in text if letter not in CONTROLS)
    assert unify_newlines(text) == text.replace("\r\n", "\n").replace("\r", "\n")
    assert compose(text) == unicodedata.normalize("NFC", text)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_repair_is_ftfy_where_it_is_called(text: str) -> None:
    import ftfy

    config = ftfy.TextFixerConfig(
        unescape_html=False,
        remove_terminal_escapes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        remove_control_chars=False,
    )
    assert repair()(text) == ftfy.fix_text(text, config)


EMAILS = [
    ("write to anna.b+x@mail.example.co.uk.", "write to email@example.com.", 1),
    ("<a@b.org>, (c_d@e.museum)", "<email@example.com>, (email@example.com)", 2),
    ("@decorator\ndef f(a@b): x = a @ b", None, 0),
    ("user@localhost and @handle and a@b.c", None, 0),
    ("npm i pkg@1.2.3", None, 0),
]
IPS = [
    ("from 8.8.8.8, to 1.1.1.1:53", "from 192.0.2.1, to 192.0.2.1:53", 2),
    ("10.0.0.1 127.0.0.1 192.168.1.1 169.254.0.1", None, 0),
    ("version 1.2.3.4.5 and 256.1.1.1 and v8.8.8.8", None, 0),
    ("2001:4860:4860::8888 and ::1 and fe80::1", "2001:db8::1 and ::1 and fe80::1", 1),
    ("std::vector<int> a::b::c and 12:30:45", None, 0),
]
PHONES = [
    ("call +49 30 1234567 now", "call 555-0100 now", 1),
    ("(212) 867-5309 or 212-867-5309 or 212.867.5309", "555-0100 or 555-0100 or 555-0100", 3),
    ("2024-01-02 10.1000/182 1234567890 3.14159", None, 0),
    ("+1 is a number, x+123456789 too", None, 0),
]


@pytest.mark.parametrize(
    ("mask", "text", "expected", "count"),
    [
        (mask, *case)
        for mask, cases in ((mask_emails, EMAILS), (mask_ips, IPS), (mask_phones, PHONES))
        for case in cases
    ],
)
def test_masks(mask: Any, text: str, expected: str | None, count: int) -> None:
    assert mask(text) == (text if expected is None else expected, count)


ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
EMAIL = rf"(?<![A-Za-z0-9.@])(?:{ATOM}|\.(?={ATOM})){{1,64}}@(?:{LABEL}\.)+[A-Za-z]{{2,63}}(?![\w@])"


@settings(max_examples=500)
@given(st.lists(st.sampled_from(["a", "b1", ".", "@", "x@y.org", "com", "-", "+", " ", "é", "a" * 63]), max_size=14))
def test_addresses_are_those_of_one_pattern(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert mask_emails(text) == re.subn(EMAIL, "email@example.com", text)


@given(st.text("a1.@:+- ()-\n2568", max_size=60))
def test_masks_find_nothing_in_what_they_leave(text: str) -> None:
    for mask in (mask_emails, mask_ips, mask_phones):
        once, _ = mask(text)
        assert mask(once)[0] == once


def test_long_runs_are_masked_in_bounded_time() -> None:
    for text in ("a" * 300_000 + "@", "1." * 150_000, ":" * 300_000, "+1 " * 100_000, "a." * 150_000 + "@b.c"):
        for mask in (mask_emails, mask_ips, mask_phones):
            mask(text)


def test_repair_takes_time_with_the_length_and_no_more() -> None:
    line = "plain " * 100_000
    assert repair()(f"é\n{line}\nâ€œ{line}") == f"é\n{line}\n“{line}"
