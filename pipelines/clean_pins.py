"""Pins what cleaning reads besides the recipe: the bytes of its files, and the versions of its callables.

The launcher does so once, before the plan: what is pinned enters the identity of a source, so that another word list
or another version of a callable rebuilds, and a worker that finds something else than was pinned stops.
"""

import dataclasses
from collections.abc import Sequence

import xxhash

from gristmill.formats.clean_settings import CleanSettings, PinnedFile
from gristmill.formats.errors import InputError, SettingsError, StorageError
from gristmill.formats.recipe import Recipe
from gristmill.formats.storage import read_bytes
from gristmill.pipelines.clean_custom import custom_version

__all__ = ["pin_recipe", "read_pinned"]


def pin_recipe(recipe: Recipe) -> Recipe:
    """The recipe with everything pinned that its cleaning reads.

    Raises:
        SettingsError: a file cannot be read, or a callable cannot be imported or names no version.
    """
    sources = tuple(dataclasses.replace(source, clean=_pinned(source.clean)) for source in recipe.sources)
    return dataclasses.replace(recipe, sources=sources)


def _pinned(clean: CleanSettings) -> CleanSettings:
    languages, evaluation = clean.languages, clean.decontaminate
    if languages is not None and languages.model is not None:
        languages = dataclasses.replace(languages, model=_pin_files([languages.model])[0])
    if evaluation is not None:
        evaluation = dataclasses.replace(evaluation, files=_pin_files(evaluation.files))
    return dataclasses.replace(
        clean,
        url_lists=_pin_files(clean.url_lists),
        languages=languages,
        bad_words=_pin_files(clean.bad_words),
        custom=tuple(dataclasses.replace(step, version=custom_version(step.path)) for step in clean.custom),
        decontaminate=evaluation,
    )


def _pin_files(files: Sequence[PinnedFile]) -> tuple[PinnedFile, ...]:
    try:
        return tuple(
            PinnedFile(path=file.path, digest=xxhash.xxh3_128_hexdigest(read_bytes(file.path))) for file in files
        )
    except StorageError as error:
        raise SettingsError(f"{error}; a cleaning step of the recipe names this file") from error


def read_pinned(file: PinnedFile) -> bytes:
    """The bytes of a file as they were pinned.

    Raises:
        InputError: they are others.
        StorageError: it cannot be read.
    """
    data = read_bytes(file.path)
    found = xxhash.xxh3_128_hexdigest(data)
    if file.digest and found != file.digest:
        raise InputError(f"{file.path}: has changed since the run was planned; start again")
    return data
