"""Reads the `clean` tables of a recipe: what a source says overrides what it inherits, key by key.

A family of rules is a boolean (published thresholds, or off) or a table that changes some of them. Nothing is opened
here: files and callables that steps need are pinned when a run starts.
"""

import dataclasses
import re
from typing import Any, TypeVar

from gristmill.formats.clean_settings import (
    WORD_SPLITTERS,
    C4Settings,
    CleanSettings,
    CustomStep,
    DecontaminationSettings,
    FineWebSettings,
    GopherQualitySettings,
    GopherRepetitionSettings,
    LanguageSettings,
    PinnedFile,
)
from gristmill.formats.settings_table import SettingsTable

__all__ = ["read_clean"]

_Family = TypeVar("_Family", GopherQualitySettings, GopherRepetitionSettings, C4Settings, FineWebSettings)

_CALLABLE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_CHARS_SAYS = "a number of characters, 0 or more"
_TOKENS_SAYS = "a number of tokens, 0 or more"
_MASKS = ("email", "ip", "phone")
_DETECTORS = ("py3langid", "pycld2", "fasttext")
_LARGEST_NGRAM = 64


def read_clean(parent: SettingsTable, inherited: CleanSettings) -> CleanSettings:
    """Reads `clean = false`, `clean = true` or a table that overrides what is inherited key by key.

    Args:
        parent: the table that may hold `clean`.
        inherited: what holds where it says nothing.
    """
    if not parent.has("clean"):
        return inherited
    base = inherited if inherited.enabled else CleanSettings()
    if isinstance(parent.peek("clean"), bool):
        return base if parent.take("clean", bool) else CleanSettings(enabled=False, exact_dedup=False)
    table = parent.table("clean")
    settings = CleanSettings(
        unicode=table.choice("unicode", ("keep", "nfc", "repair"), base.unicode),
        newlines=table.choice("newlines", ("keep", "lf"), base.newlines),
        controls=table.choice("controls", ("keep", "remove"), base.controls),
        min_chars=_count(table, "min_chars", base.min_chars, _CHARS_SAYS) or 0,
        max_chars=_count(table, "max_chars", base.max_chars, _CHARS_SAYS),
        url_field=table.take("url_field", str, base.url_field, rule=bool, says="the name of a field") or "url",
        url_lists=_files(table, "url_lists", base.url_lists),
        languages=_languages(table, base.languages),
        words=table.choice("words", tuple(WORD_SPLITTERS), base.words),
        gopher_repetition=_family(table, "gopher_repetition", base.gopher_repetition, GopherRepetitionSettings()),
        gopher_quality=_family(table, "gopher_quality", base.gopher_quality, GopherQualitySettings()),
        c4=_family(table, "c4", base.c4, C4Settings()),
        fineweb=_family(table, "fineweb", base.fineweb, FineWebSettings()),
        bad_words=_files(table, "bad_words", base.bad_words),
        custom=_custom(table, base.custom),
        decontaminate=_decontamination(table, base.decontaminate),
        mask=_mask(table, base.mask),
        min_tokens=_count(table, "min_tokens", base.min_tokens, _TOKENS_SAYS) or 0,
        max_tokens=_count(table, "max_tokens", base.max_tokens, _TOKENS_SAYS),
        exact_dedup=bool(table.take("exact_dedup", bool, base.exact_dedup)),
    )
    for unit in ("chars", "tokens"):
        least, most = getattr(settings, f"min_{unit}"), getattr(settings, f"max_{unit}")
        if most is not None and most < least:
            table.note(f"max_{unit}", f"is {most}, less than min_{unit}, {least}; no document could pass")
    if table.has("url_field") and not settings.url_lists:
        table.note("url_field", "names the field that url_lists are about, but there are no url_lists")
    table.finish()
    return settings


def _count(table: SettingsTable, name: str, default: int | None, says: str) -> int | None:
    return table.take(name, int, default, rule=lambda value: value >= 0, says=says)


def _files(table: SettingsTable, name: str, default: tuple[PinnedFile, ...]) -> tuple[PinnedFile, ...]:
    if not table.has(name):
        return default
    return tuple(PinnedFile(path=path) for path in table.strings(name))


def _languages(table: SettingsTable, base: LanguageSettings | None) -> LanguageSettings | None:
    names = ("language_detector", "language_model", "min_language_score", "language_chars")
    keep = table.strings("languages") if table.has("languages") else (base.keep if base else ())
    start = base or LanguageSettings(keep=())
    detector = table.choice("language_detector", _DETECTORS, start.detector)
    path = table.take("language_model", str, start.model.path if start.model else None, rule=bool, says="a path or URL")
    score = table.take(
        "min_language_score", float, start.min_score, rule=lambda value: 0 <= value <= 1, says="a fraction from 0 to 1"
    )
    chars = table.take(
        "language_chars", int, start.chars, rule=lambda value: value > 0, says="a number of characters, 1 or more"
    )
    if not keep:
        for name in names:
            if table.has(name):
                table.note(name, "says how languages are told apart, but `languages` names none to keep")
        return None
    if detector == "fasttext" and path is None:
        table.note("language_model", 'is missing; language_detector = "fasttext" needs the path of its model')
    if detector != "fasttext" and table.has("language_model"):
        table.note("language_model", f'is a fastText model, but language_detector is "{detector}"')
    return LanguageSettings(
        keep=tuple(sorted(set(keep))),
        detector=detector,
        model=PinnedFile(path=path) if path is not None and detector == "fasttext" else None,
        min_score=score or 0.0,
        chars=chars or start.chars,
    )


def _family(table: SettingsTable, name: str, base: _Family | None, published: _Family) -> _Family | None:
    """A family of rules: true for the published thresholds, false for none, or a table of changes."""
    if not table.has(name):
        return base
    value = table.peek(name)
    if isinstance(value, bool):
        return (base or published) if table.take(name, bool) else None
    own = table.table(name)
    start = base or published
    changes = {
        field.name: _threshold(own, field.name, getattr(start, field.name)) for field in dataclasses.fields(start)
    }
    own.finish()
    return dataclasses.replace(start, **changes)


def _threshold(table: SettingsTable, name: str, default: Any) -> Any:
    """A threshold of the same kind as its default."""
    if isinstance(default, bool):
        return table.take(name, bool, default)
    if isinstance(default, int):
        return table.take(name, int, default, rule=lambda value: value >= 0, says="an integer, 0 or more")
    if isinstance(default, float):
        return table.take(name, float, default, rule=lambda value: value >= 0, says="a number, 0 or more")
    if name.endswith("ngrams"):
        return _ngrams(table, name, default)
    if not table.has(name):
        return default
    words = table.strings(name)
    if name == "policy_phrases" and not all(word.isascii() and word == word.lower() for word in words):
        table.note(name, "holds a phrase that is not ASCII in lower case; phrases are compared with lower-cased text")
        return default
    if name == "stop_words" and len(set(words)) > 64:
        table.note(name, f"holds {len(set(words))} words; at most 64 are possible")
        return default
    return words


def _ngrams(table: SettingsTable, name: str, default: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    if not table.has(name):
        return default
    value = table.take(name, dict, None, says="a table of fractions by n, such as {2 = 0.2, 3 = 0.18}")
    found = []
    for key, share in (value or {}).items():
        good = isinstance(share, int | float) and not isinstance(share, bool) and share >= 0
        if not (key.isascii() and key.isdigit() and 1 <= int(key) <= _LARGEST_NGRAM and good):
            table.note(
                f"{name}.{key}", f"is {share!r}; it must be a fraction for a number of words, 1 to {_LARGEST_NGRAM}"
            )
        else:
            found.append((int(key), float(share)))
    return tuple(sorted(found))


def _custom(table: SettingsTable, base: tuple[CustomStep, ...]) -> tuple[CustomStep, ...]:
    if not table.has("custom"):
        return base
    paths = table.strings("custom")
    for number, path in enumerate(paths):
        if _CALLABLE.fullmatch(path) is None:
            table.note(f"custom[{number}]", f'is "{path}"; it must be "package.module:function"')
    return tuple(CustomStep(path=path) for path in paths)


def _decontamination(table: SettingsTable, base: DecontaminationSettings | None) -> DecontaminationSettings | None:
    start = base or DecontaminationSettings(files=())
    files = _files(table, "decontaminate", start.files)
    ngram = table.take(
        "decontaminate_ngram",
        int,
        start.ngram,
        rule=lambda value: 1 <= value <= _LARGEST_NGRAM,
        says=f"a number of words, 1 to {_LARGEST_NGRAM}",
    )
    hits = table.take(
        "decontaminate_hits", int, start.min_hits, rule=lambda value: value > 0, says="a number of n-grams, 1 or more"
    )
    if not files:
        for name in ("decontaminate_ngram", "decontaminate_hits"):
            if table.has(name):
                table.note(name, "says how evaluation texts are found, but `decontaminate` names none")
        return None
    return DecontaminationSettings(files=files, ngram=ngram or start.ngram, min_hits=hits or start.min_hits)


def _mask(table: SettingsTable, base: tuple[str, ...]) -> tuple[str, ...]:
    if not table.has("mask"):
        return base
    kinds = table.strings("mask")
    for number, kind in enumerate(kinds):
        if kind not in _MASKS:
            table.note(
                f"mask[{number}]", f'is "{kind}"; it must be one of ' + ", ".join(f'"{name}"' for name in _MASKS)
            )
    return tuple(kind for kind in _MASKS if kind in kinds)
