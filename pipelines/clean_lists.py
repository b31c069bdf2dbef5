"""Rules that compare documents with lists: bad words and phrases, n-grams of evaluation texts, addresses.

Words are compared in lower case, by 64-bit hashes of the words that follow each other.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.clean_settings import DecontaminationSettings, PinnedFile
from gristmill.formats.errors import InputError
from gristmill.pipelines.clean_classes import fold_table
from gristmill.pipelines.clean_documents import Documents
from gristmill.pipelines.clean_pins import read_pinned
from gristmill.pipelines.clean_words import REAL_WORD, Words, split

__all__ = ["AddressRule", "BadWordRule", "ContaminationRule"]

_FIRST_WORDS = 1 << 16


class _Phrases:
    """A table of phrases.

    Attributes:
        size: phrases in it.
    """

    def __init__(self, hashes: NDArray[np.uint64], pieces: Sequence[tuple[int, int]]) -> None:
        """Takes the hashes of words, and first word and number of words of each phrase."""
        from gristmill.pipelines.clean_kernels import key_of
        from gristmill.pipelines.clean_phrase_kernels import enter, phrase_key

        self.keys = np.array([phrase_key(hashes, first, words) for first, words in pieces], np.uint64)
        self.size = len(np.unique(self.keys))
        self._slots = np.zeros(1 << max(4, int(2 * self.size).bit_length()), np.uint64)
        enter(self._slots, self.keys)
        self._sizes = np.array(sorted({words for _, words in pieces}), np.int64)
        self._first_words = np.zeros(_FIRST_WORDS, bool)
        firsts = {int(key_of(hashes[first])) % _FIRST_WORDS for first, _ in pieces}
        self._first_words[list(firsts)] = True

    def find(self, words: Words, *, skip_symbols: bool, enough: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Phrases found in each document, up to `enough`, and the key of the first one."""
        from gristmill.pipelines.clean_phrase_kernels import find

        documents = len(words.starts) - 1
        hits, found = np.empty(documents, np.int64), np.empty(documents, np.uint64)
        table = (self._sizes, self._first_words, self._slots)
        find(words.starts, words.hashes, words.kinds, skip_symbols, *table, enough, hits, found)
        return hits, found


def _folded_words(documents: Documents, *, by_space: bool) -> Words:
    """The words of the documents that are left, in lower case."""
    codes, starts = documents.codes()
    folded = fold_table()[codes]
    folded.setflags(write=False)
    lower = Documents([])
    lower.alive = documents.alive
    lower.replace_codes(folded, starts, ())
    return split(lower, by_space=by_space)


class BadWordRule:
    """Drops documents with a word or phrase of a list.

    Attributes:
        changes_texts: False.
    """

    changes_texts = False

    def __init__(self, files: Sequence[PinnedFile], *, by_space: bool) -> None:
        """Reads the lists.

        Raises:
            InputError: a list is empty, no UTF-8, or has changed.
        """
        self._by_space = by_space
        phrases = [phrase for file in files for phrase in _lines(file)]
        words = _folded_words(Documents(phrases), by_space=by_space)
        counts = (words.starts[1:] - words.starts[:-1]).tolist()
        pieces = [(int(first), count) for first, count in zip(words.starts[:-1], counts, strict=True)]
        self._phrases = _Phrases(words.hashes, pieces)
        self._named = dict(zip(self._phrases.keys.tolist(), phrases, strict=True))

    def apply(self, documents: Documents) -> None:
        """Drops the documents in which a phrase occurs."""
        words = _folded_words(documents, by_space=self._by_space)
        hits, found = self._phrases.find(words, skip_symbols=False, enough=1)
        for number in np.flatnonzero(hits).tolist():
            documents.drop(number, "bad_words", self._named[int(found[number])])


class ContaminationRule:
    """Drops documents that share n-grams of words with evaluation texts.

    Attributes:
        changes_texts: False.
    """

    changes_texts = False

    def __init__(self, settings: DecontaminationSettings, *, by_space: bool) -> None:
        """Reads the evaluation texts.

        Raises:
            InputError: a file is no UTF-8, has changed, or no text is as long as an n-gram.
        """
        self._settings = settings
        self._by_space = by_space
        texts = [text for file in settings.files for text in _texts(file) if text]
        words = _folded_words(Documents(texts), by_space=by_space)
        real = words.kinds[: words.starts[-1]] & REAL_WORD != 0
        before = np.concatenate([[0], np.cumsum(real)])
        pieces = [
            (first, settings.ngram)
            for start, end in zip(before[words.starts[:-1]].tolist(), before[words.starts[1:]].tolist(), strict=True)
            for first in range(start, end - settings.ngram + 1)
        ]
        if not pieces:
            raise InputError(
                f"{', '.join(file.path for file in settings.files)}: no evaluation text has {settings.ngram} words, so "
                "nothing could be found; set decontaminate_ngram lower"
            )
        self._phrases = _Phrases(words.hashes[: words.starts[-1]][real], pieces)

    def apply(self, documents: Documents) -> None:
        """Drops the documents with too many n-grams in common."""
        words = _folded_words(documents, by_space=self._by_space)
        enough = self._settings.min_hits
        hits, _ = self._phrases.find(words, skip_symbols=True, enough=enough)
        for number in np.flatnonzero(hits >= enough).tolist():
            documents.drop(number, "contaminated", f"{enough} or more shared {self._settings.ngram}-grams")


class AddressRule:
    """Drops documents from domains and addresses of a list.

    Attributes:
        changes_texts: False.
    """

    changes_texts = False

    def __init__(self, files: Sequence[PinnedFile]) -> None:
        """Reads the lists.

        Raises:
            InputError: a list is empty, no UTF-8, or has changed.
        """
        entries = {_without_scheme(line) for file in files for line in _lines(file)}
        self._domains = {entry for entry in entries if "/" not in entry}
        self._prefixes = {entry for entry in entries if "/" in entry}

    def apply(self, documents: Documents) -> None:
        """Drops the documents whose address is listed; one without an address passes, and is counted.

        Raises:
            InputError: the documents come from files without fields.
        """
        if documents.addresses is None:
            raise InputError(
                "clean.url_lists: the documents come without addresses; set url_lists = [] in the clean table of their "
                "source"
            )
        without = sum(not documents.addresses[number] for number in documents.numbers())
        if without:
            documents.counted["no_address"] += without
        for number in documents.numbers():
            address = documents.addresses[number]
            entry = self._listed(address) if address else None
            if entry is not None:
                documents.drop(number, "url_lists", entry)

    def _listed(self, address: str) -> str | None:
        """The entry that an address falls under."""
        plain = _without_scheme(address)
        host, _, path = plain.partition("/")
        host = host.rpartition("@")[2].partition(":")[0].rstrip(".")
        parts = host.split(".")
        for first in range(len(parts)):
            domain = ".".join(parts[first:])
            if domain in self._domains:
                return domain
        pieces = path.split("/")
        for count in range(len(pieces) + 1):
            prefix = "/".join([host, *pieces[:count]])
            if prefix in self._prefixes or f"{prefix}/" in self._prefixes:
                return prefix
        return None


def _without_scheme(address: str) -> str:
    """An address without scheme, query and fragment, in lower case up to its path."""
    whole = address.strip()
    try:
        parts = urlsplit(whole if "://" in whole else f"//{whole}")
    except ValueError:  # a bracket that is not closed, or characters that no host has: compared as it stands
        host, slash, path = (whole.partition("://")[2] or whole).partition("?")[0].partition("#")[0].partition("/")
        return f"{host.lower()}{slash}{path}"
    host = parts.netloc.lower()
    return f"{host}{parts.path}" if parts.path else host


def _decoded(file: PinnedFile) -> str:
    data = read_pinned(file)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file.path}: a list must be UTF-8 text: {error}") from error


def _lines(file: PinnedFile) -> list[str]:
    """The entries of a list: its lines, stripped, without blank ones and comments."""
    lines = [line.strip() for line in _decoded(file).split("\n")]
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise InputError(f"{file.path}: the list is empty; name another file, or leave it out")
    return found


def _texts(file: PinnedFile) -> Iterator[str]:
    """The evaluation texts of a file: every string of JSON lines, or each line of plain text."""
    is_json = file.path.lower().endswith((".jsonl", ".json", ".ndjson"))
    for number, line in enumerate(_decoded(file).split("\n"), 1):
        if not is_json:
            yield line
        elif line.strip():
            try:
                yield from _strings(json.loads(line))
            except ValueError as error:
                raise InputError(f"{file.path}:{number}: no valid JSON: {error}") from error


def _strings(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _strings(entry)
