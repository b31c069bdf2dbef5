"""Cleans the documents of a batch: steps that change texts, and rules that drop documents, in a fixed order.

A document is counted under the first rule it breaks. What happens to a text depends on that text and the settings
alone, never on its neighbours or the batch; so where the input is read twice, the second reading asks for the texts of
the documents that are left and gets what the first one had. Lengths are in code points, the unit a user sees.

Order: characters (repair, controls, line ends), length, address, language, the families of rules, bad words, the
user's callables, decontamination, masks; then length once more where a step has changed texts.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from gristmill.formats.clean_settings import CleanSettings
from gristmill.formats.errors import InputError
from gristmill.formats.recipe import Recipe
from gristmill.pipelines.carried import carried_id
from gristmill.pipelines.clean_custom import CustomCallable
from gristmill.pipelines.clean_documents import Documents
from gristmill.pipelines.clean_families import Families
from gristmill.pipelines.clean_language import LanguageRule
from gristmill.pipelines.clean_lists import AddressRule, BadWordRule, ContaminationRule
from gristmill.pipelines.clean_pii import mask_emails, mask_ips, mask_phones
from gristmill.pipelines.clean_text import TextStep, compose, remove_controls, repair, unify_newlines
from gristmill.pipelines.records import Batch, Place, RecordAccount

__all__ = ["clean_again", "clean_batch", "prime_cleaning", "Step"]

_CLEANERS = 64


class Step(Protocol):
    """One step of cleaning. It may be shared by threads, and keeps nothing from one batch to the next.

    Attributes:
        changes_texts: whether it can put other texts in place; such steps run again when text is read a second time.
    """

    changes_texts: bool

    def apply(self, documents: Documents) -> None:
        """Marks what it drops and replaces what it changes, among the documents that are still alive."""


def prime_cleaning(recipe: Recipe) -> None:
    """Loads what the cleaning of every source needs, so that what is missing or wrong stops a run before any work.

    Raises:
        SettingsError: a library, file, language or callable that a step needs is missing.
        InputError: a list or model cannot be used.
    """
    for source in recipe.sources:
        _steps(source.clean)


def clean_batch(batch: Batch, settings: CleanSettings, account: RecordAccount, file_of: Callable[[int], str]) -> Batch:
    """The documents of a batch that break no rule, with the texts that go on.

    Args:
        batch: the documents.
        settings: the source's rules.
        account: takes the count of every rule, and of every step that changes texts.
        file_of: gives what messages call the file that a record was read from.

    Returns:
        `batch` itself when every document passes unchanged.

    Raises:
        InputError: a callable of the user's failed.
        SettingsError: a library, file or callable that a step needs is missing.
    """
    documents = Documents(batch.texts, batch.addresses)
    for step in _steps(settings):
        step.apply(documents)
    account.counted.update(documents.counted)
    if not documents.verdicts and not documents.counted:
        return batch
    records = list(batch.records)
    for number, (reason, found) in sorted(documents.verdicts.items()):
        account.drop(reason, _place(file_of, records[number], batch, number), batch.texts[number], found)
    return _left(documents, records)


def clean_again(batch: Batch, settings: CleanSettings) -> Batch:
    """The texts that go on of documents that have been cleaned before and broke no rule; nothing is counted.

    Args:
        batch: the documents as they are read, only those that broke no rule.
        settings: the source's rules.

    Raises:
        InputError: a document is dropped after all.
    """
    steps = [step for step in _steps(settings) if step.changes_texts]
    if not steps:
        return batch
    documents = Documents(batch.texts)
    for step in steps:
        step.apply(documents)
    if documents.verdicts:
        number, (reason, found) = min(documents.verdicts.items())
        raise InputError(
            f"record {batch.records[number]} of its split broke no rule, but read again it breaks {reason} {found}; "
            "an input changed during the run, or a callable does not give the same answer twice. Start again"
        )
    return Batch(documents.texts, batch.records)


def _left(documents: Documents, records: list[int]) -> Batch:
    numbers = documents.numbers()
    return Batch([documents.texts[number] for number in numbers], [records[number] for number in numbers])


def _place(file_of: Callable[[int], str], record: int, batch: Batch, number: int) -> Callable[[], Place]:
    def where() -> Place:
        named = None if batch.carried is None else carried_id(batch.carried[number])
        relative = file_of(record)
        return Place(relative, relative, f": record {record} of its split", named)

    return where


class _Length:
    """Drops documents that are too short, too long, or nothing but white space."""

    changes_texts = False

    def __init__(self, settings: CleanSettings) -> None:
        self._shortest = settings.min_chars
        self._longest = settings.max_chars

    def apply(self, documents: Documents) -> None:
        shortest, longest = self._shortest, self._longest
        for number in documents.numbers():
            text = documents.texts[number]
            length = len(text)
            if length < shortest:
                documents.drop(number, "min_chars", f"{length} < {shortest}")
            elif longest is not None and length > longest:
                documents.drop(number, "max_chars", f"{length} > {longest}")
            elif not text or text.isspace():
                documents.drop(number, "blank")


class _Mask:
    """Masks one kind of personal data."""

    changes_texts = True

    def __init__(self, kind: str) -> None:
        self._name = f"masked.{kind}"
        self._mask = {"email": mask_emails, "ip": mask_ips, "phone": mask_phones}[kind]

    def apply(self, documents: Documents) -> None:
        for number in documents.numbers():
            text, found = self._mask(documents.texts[number])
            if found:
                documents.replace(number, text)
                documents.counted[self._name] += found


@lru_cache(_CLEANERS)
def _steps(settings: CleanSettings) -> tuple[Step, ...]:
    """The steps that settings ask for, in order."""
    characters: list[Step] = []
    if settings.unicode == "repair":
        characters.append(TextStep("repaired.unicode", repair()))
    elif settings.unicode == "nfc":
        characters.append(TextStep("repaired.unicode", compose))
    if settings.controls == "remove":
        characters.append(TextStep("repaired.controls", remove_controls))
    if settings.newlines == "lf":
        characters.append(TextStep("repaired.newlines", unify_newlines))
    length = _Length(settings)
    by_space = settings.words == "spaces"
    rules: list[Step] = []
    if settings.url_lists:
        rules.append(AddressRule(settings.url_lists))
    if settings.languages is not None:
        rules.append(LanguageRule(settings.languages))
    if settings.gopher_repetition or settings.gopher_quality or settings.c4 or settings.fineweb:
        rules.append(Families(settings))
    if settings.bad_words:
        rules.append(BadWordRule(settings.bad_words, by_space=by_space))
    rules += (CustomCallable(step) for step in settings.custom)
    if settings.decontaminate is not None:
        rules.append(ContaminationRule(settings.decontaminate, by_space=by_space))
    rules += (_Mask(kind) for kind in settings.mask)
    again = (length,) if any(step.changes_texts for step in rules) else ()
    return (*characters, length, *rules, *again)
