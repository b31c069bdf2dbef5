"""Steps on the characters of a text: one kind of line end, no control characters, composed or repaired Unicode.

None of them harms code: tabs, line ends and form feeds stay, and so do joiners, soft hyphens and everything else that
scripts and emoji are made of. Repair costs a hundred times more than the rest, so it sees only the lines that a quick
test finds suspicious.
"""

import re
import unicodedata
from collections.abc import Callable

from gristmill.formats.errors import MissingExtraError
from gristmill.pipelines.clean_documents import Documents

__all__ = ["compose", "CONTROLS", "remove_controls", "repair", "TextStep", "unify_newlines"]

CONTROLS = "".join(map(chr, (*range(9), *range(14, 32), *range(127, 133), *range(134, 160), 0xFEFF)))
"""What `controls = "remove"` removes: C0 and C1 without tab, line feed, vertical tab, form feed, carriage return and
NEL; delete; and the byte-order mark. NUL is among them."""

_CONTROLS = re.compile(f"[{re.escape(CONTROLS)}]")
_NO_CONTROLS = dict.fromkeys(map(ord, CONTROLS))
_FOREIGN = re.compile("[^\x00-\x7f]")
_C1 = re.compile("[\x80-\x9f]")
_CARRIAGE_RETURNS = re.compile("\r\n?")


class TextStep:
    """A step that changes texts one by one and drops none.

    Attributes:
        name: what its changes are counted under.
        changes_texts: True.
    """

    changes_texts = True

    def __init__(self, name: str, change: Callable[[str], str]) -> None:
        """Wraps a function that returns the text itself when there is nothing to change."""
        self.name = name
        self._change = change

    def apply(self, documents: Documents) -> None:
        """Changes the texts of the documents that are left."""
        for number in documents.numbers():
            text = documents.texts[number]
            changed = self._change(text)
            if changed is not text and changed != text:
                documents.replace(number, changed)
                documents.counted[self.name] += 1


def unify_newlines(text: str) -> str:
    """The text with a line feed for each carriage return, and for each pair of both."""
    return _CARRIAGE_RETURNS.sub("\n", text) if "\r" in text else text


def remove_controls(text: str) -> str:
    """The text without `CONTROLS`."""
    return text.translate(_NO_CONTROLS) if _CONTROLS.search(text) else text


def compose(text: str) -> str:
    """The text in Unicode's normal form C."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def repair() -> Callable[[str], str]:
    """A function that mends text which was decoded by the wrong table, and composes it.

    Raises:
        MissingExtraError: ftfy is not installed.
    """
    try:
        import ftfy
    except ImportError as error:
        raise MissingExtraError("ftfy", "prepare", 'unicode = "repair"') from error
    config = ftfy.TextFixerConfig(
        unescape_html=False,
        remove_terminal_escapes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        remove_control_chars=False,
        normalization="NFC",
        explain=False,
    )

    def mend(text: str) -> str:
        if text.isascii():
            return text
        pieces: list[str] = []
        done = 0
        while found := _FOREIGN.search(text, done):
            begin = max(done, text.rfind("\n", done, found.start()) + 1)
            end = text.find("\n", found.end()) + 1 or len(text)
            line = text[begin:end]
            composed = compose(line)
            suspicious = ftfy.badness.is_bad(line) or (composed != line and ftfy.badness.is_bad(composed))
            line = str(ftfy.fix_text(line, config)) if suspicious or _C1.search(line) else composed
            pieces += (text[done:begin], line)
            done = end
        return "".join([*pieces, text[done:]])

    return mend
