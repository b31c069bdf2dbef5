"""Keeps the documents that are written in some languages, as told from their beginnings.

Three detectors: py3langid (the default, model inside, its score a probability), pycld2 (faster, its score the share of
the text) and a fastText model that the user names. Each looks at a bounded number of code points, so a document of any
length costs the same.
"""

import threading
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from gristmill.formats.clean_settings import LanguageSettings
from gristmill.formats.errors import InputError, MissingExtraError, SettingsError
from gristmill.formats.storage import is_local, local_path
from gristmill.pipelines.clean_documents import Documents
from gristmill.pipelines.clean_pins import read_pinned

__all__ = ["LanguageRule"]

_Detector = Callable[[str], tuple[str, float]]
"""Gives language code and score of a text."""

_UNKNOWN = "unknown"
_UNPRINTABLE = frozenset({"Cc", "Cn", "Cs"})


class LanguageRule:
    """Drops documents in other languages.

    Attributes:
        changes_texts: False.
    """

    changes_texts = False

    def __init__(self, settings: LanguageSettings) -> None:
        """Loads the detector.

        Raises:
            MissingExtraError: its library is not installed.
            SettingsError: it does not know a language that is to be kept.
            InputError: the model cannot be loaded, or has changed.
        """
        self._settings = settings
        self._keep = frozenset(settings.keep)
        loaders = {"py3langid": _py3langid, "pycld2": _pycld2, "fasttext": _fasttext}
        self._detect = loaders[settings.detector](settings)

    def apply(self, documents: Documents) -> None:
        """Drops what is not told to be in a language that is kept, or not surely enough."""
        chars, least = self._settings.chars, self._settings.min_score
        for number in documents.numbers():
            language, score = self._detect(documents.texts[number][:chars])
            if language not in self._keep:
                documents.drop(number, "language", f"{language} {score:.3f}")
            elif score < least:
                documents.drop(number, "language", f"{language} {score:.3f} < {least:g}")


def _check_known(settings: LanguageSettings, known: Sequence[str]) -> None:
    foreign = [code for code in settings.keep if code not in set(known)]
    if foreign:
        raise SettingsError(
            f"clean.languages: {settings.detector} knows no language {', '.join(map(repr, foreign))}; it knows "
            f"{', '.join(sorted(set(known)))}"
        )


def _py3langid(settings: LanguageSettings) -> _Detector:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise MissingExtraError("py3langid", "prepare", "clean.languages") from error
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    _check_known(settings, identifier.labels)

    def detect(text: str) -> tuple[str, float]:
        language, score = identifier.classify(text)
        return str(language), float(score)

    return detect


def _pycld2(settings: LanguageSettings) -> _Detector:
    try:
        import pycld2
    except ImportError as error:
        raise MissingExtraError("pycld2", "languages", 'clean.language_detector = "pycld2"') from error
    _check_known(settings, [code for _, code in pycld2.LANGUAGES])

    def detect(text: str) -> tuple[str, float]:
        printable = "".join(letter if unicodedata.category(letter) not in _UNPRINTABLE else " " for letter in text)
        try:
            _, _, details = pycld2.detect(printable.encode("utf-8"), bestEffort=True)
        except pycld2.error:  # a character newer than its tables
            return _UNKNOWN, 0.0
        _, language, percent, _ = details[0]
        return str(language), percent / 100

    return detect


def _fasttext(settings: LanguageSettings) -> _Detector:
    try:
        import fasttext
    except ImportError as error:
        raise MissingExtraError("fasttext", "languages", 'clean.language_detector = "fasttext"') from error
    model = settings.model
    if model is None or not is_local(model.path):
        raise SettingsError(
            f"clean.language_model: {model.path if model else None} must be a file of each machine that cleans texts, "
            "since fastText reads no URLs"
        )
    read_pinned(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loaded: Any = fasttext.load_model(str(local_path(model.path)))
        except ValueError as error:
            raise InputError(f"{model.path}: is no fastText model: {error}") from error
    _check_known(settings, [label.removeprefix("__label__") for label in loaded.get_labels()])
    lock = threading.Lock()

    def detect(text: str) -> tuple[str, float]:
        with lock:
            labels, scores = loaded.predict(text.replace("\n", " "), k=1)
        if not len(labels):
            return _UNKNOWN, 0.0
        return str(labels[0]).removeprefix("__label__"), min(1.0, float(scores[0]))

    return detect
