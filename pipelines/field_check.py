"""Refuses, while a run is planned, settings that need fields of records whose files hold nothing but texts."""

from collections.abc import Iterable

from gristmill.formats.errors import SettingsError
from gristmill.formats.recipe import SourceSettings
from gristmill.pipelines.inputs import InputFile

__all__ = ["check_fields"]

_OF_RECORDS = ("tfrecord", "array_record")


def check_fields(files: Iterable[InputFile], source: SourceSettings, key: str) -> None:
    """Looks whether the files of a source can have the fields that it wants besides the text.

    Args:
        files: its files.
        source: the source.
        key: path of its table in the recipe, for messages.

    Raises:
        SettingsError: a file is text or code, or holds records that are texts, and fields are to be carried along or
            addresses looked up.
    """
    if source.carry is None and not source.clean.url_lists:
        return
    for file in files:
        if file.format in {"text", "python"} or (file.format in _OF_RECORDS and source.record == "text"):
            if source.carry is not None:
                setting = f"{key}.{source.carry.setting(source.carry.names[0])}"
                raise SettingsError(
                    f"{setting}: {file.path} holds texts without fields, so nothing can be carried; leave it out"
                )
            raise SettingsError(
                f"{key}.clean.url_lists: {file.path} holds texts without fields, so none for addresses of documents; "
                "set url_lists = [] in the clean table of this source"
            )
