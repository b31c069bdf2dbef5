"""Callables of the user's as cleaning steps, named by import path.

A callable takes a text and returns a text that takes its place, True to keep it as it is, or False or None to drop the
document. It must give the same answer for the same text every time: work items are retried, and text may be read twice.
Its attribute `version` (a number or string) says so; it is part of what a corpus follows from, so raising it rebuilds.
"""

import importlib
from collections.abc import Callable
from typing import Any

from gristmill.formats.clean_settings import CustomStep
from gristmill.formats.errors import InputError, SettingsError
from gristmill.pipelines.clean_documents import Documents

__all__ = ["custom_version", "CustomCallable", "load_custom"]


class CustomCallable:
    """A step that asks a callable of the user's.

    Attributes:
        name: what changed documents are counted under, and the reason of dropped ones.
        changes_texts: True, since only the callable knows.
    """

    changes_texts = True

    def __init__(self, step: CustomStep) -> None:
        """Imports the callable.

        Raises:
            SettingsError: it cannot be imported, or is of another version than was pinned.
        """
        self.name = f"custom.{step.path}"
        self._path = step.path
        self._call = load_custom(step.path)
        if step.version and custom_version(step.path) != step.version:
            raise SettingsError(
                f"custom step {step.path}: the run was planned with version {step.version}, but here it is "
                f"{custom_version(step.path)}; install the same package everywhere"
            )

    def apply(self, documents: Documents) -> None:
        """Asks for each document that is left.

        Raises:
            InputError: the callable raised, or returned something else.
        """
        for number in documents.numbers():
            text = documents.texts[number]
            try:
                answer = self._call(text)
            except Exception as error:
                raise InputError(
                    f"custom step {self._path}: raised {type(error).__name__}: {error}, for a text that begins "
                    f"{text[:80]!r}; it must return a text, True, False or None for every text"
                ) from error
            if answer is None or answer is False:
                documents.drop(number, self.name)
            elif answer is True or (isinstance(answer, str) and answer == text):
                continue
            elif isinstance(answer, str) and _is_text(answer):
                documents.replace(number, answer)
                documents.counted[self.name] += 1
            else:
                kind = "a lone surrogate" if isinstance(answer, str) else type(answer).__name__
                raise InputError(
                    f"custom step {self._path}: returned {kind}, for a text that begins "
                    f"{text[:80]!r}; it must return a text, True, False or None"
                )


def _is_text(answer: str) -> bool:
    """Whether a string can be written down: it may hold half of a pair of surrogates, which is no character."""
    try:
        answer.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def load_custom(path: str) -> Callable[[str], Any]:
    """Imports a callable by ``package.module:function``.

    Raises:
        SettingsError: there is none.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"custom step {path}: cannot be imported ({error}); install its package wherever texts are cleaned"
        ) from error
    except Exception as error:  # whatever a module of the user's does when it is imported
        raise SettingsError(
            f"custom step {path}: importing {module} raised {type(error).__name__}: {error}; mend the module"
        ) from error
    if not callable(found):
        raise SettingsError(f"custom step {path}: is a {type(found).__name__}; it must be callable with a text")
    return found  # type: ignore[no-any-return]


def custom_version(path: str) -> str:
    """The version that a callable names.

    Raises:
        SettingsError: it cannot be imported, or names none.
    """
    version = getattr(load_custom(path), "version", None)
    if isinstance(version, bool) or not isinstance(version, int | str) or version == "":
        raise SettingsError(
            f"custom step {path}: its attribute `version` is {version!r}; set it to a number or string, and raise it "
            "whenever the answers change, so that corpora are rebuilt"
        )
    return str(version)
