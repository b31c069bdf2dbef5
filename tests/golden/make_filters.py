"""Makes filters.json: what datatrove's own filter classes decide about documents that the tests make again.

Run in an environment with datatrove 0.10.1 (and its processing extra's regex) from the repository's root:

    PYTHONPATH=tests/pipelines python tests/golden/make_filters.py

The splitter handed to the filters is `gristmill-words-1` as tests/pipelines/filter_definitions.py defines it. For each
document the file holds the reason of each filter, or null where it keeps the document, each filter asked alone, and a
digest of the text that the C4 filter leaves.
"""

import hashlib
import json
from pathlib import Path

from filter_definitions import sentences_of, words_of  # type: ignore[import-not-found]
from filter_documents import documents  # type: ignore[import-not-found]

DOCUMENTS = 400


def decisions(texts: "list[str]") -> "list[list[str | None]]":
    """Reasons of the four filters and the digest of C4's text, for each document."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )
    from datatrove.utils.text import TERMINAL_PUNCTUATION
    from datatrove.utils.word_tokenizers import WordTokenizer

    class Splitter(WordTokenizer):  # type: ignore[misc]
        def word_tokenize(self, text: str) -> "list[str]":
            return list(words_of(text))

        def sent_tokenize(self, text: str) -> "list[str]":
            return list(sentences_of(text, frozenset(TERMINAL_PUNCTUATION)))

        def span_tokenize(self, text: str) -> "list[tuple[int, int]]":
            spans, place = [], 0
            for sentence in self.sent_tokenize(text):
                place = text.index(sentence, place) + len(sentence)
                spans.append((place - len(sentence), place))
            return spans

    kinds = (GopherRepetitionFilter, GopherQualityFilter, C4QualityFilter, FineWebQualityFilter)
    filters = [kind(language=Splitter()) for kind in kinds]
    found = []
    for number, text in enumerate(texts):
        row: list[str | None] = []
        for one in filters:
            own = Document(text=text, id=str(number))
            answer = one.filter(own)
            row.append(None if answer is True else answer[1])
            if isinstance(one, C4QualityFilter):
                left = hashlib.sha256(own.text.encode()).hexdigest()[:16] if answer is True else None
        found.append([*row, left])
    return found


if __name__ == "__main__":
    rows = decisions(documents(DOCUMENTS))
    lines = ",\n".join(json.dumps(row) for row in rows)
    Path("tests/golden/filters.json").write_text(f"[\n{lines}\n]\n")
