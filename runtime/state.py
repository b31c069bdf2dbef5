"""The state of a data pipeline: how many rows were delivered, and of which stream. One small JSON value.

Rows are a pure function of stream and number, so nothing about hosts, devices, batch size or prefetch needs to be
stored, and a state can be taken up by any of them. What it must not be taken up by is another stream: the fingerprint
refuses that, and asks for a decision by name.
"""

import operator
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gristmill.formats.errors import CorpusError, FormatError
from gristmill.formats.fingerprint import short

__all__ = ["check_state", "StreamState", "VERSION"]

VERSION = 1
"""Version of the state's form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """Where a run stands in its stream.

    Attributes:
        next_sample: rows delivered so far, which is the number of the next row. Prefetched rows do not count.
        fingerprint: of the stream whose rows they are.
        fields: digest of the options that the fields were made with, or None in a state that does not say.
    """

    next_sample: int
    fingerprint: str
    fields: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The state as a JSON value: version, next_sample, fingerprint and, where known, fields."""
        value: dict[str, Any] = {
            "version": VERSION,
            "next_sample": self.next_sample,
            "fingerprint": self.fingerprint,
        }
        return value if self.fields is None else {**value, "fields": self.fields}

    @classmethod
    def from_json(cls, value: object) -> "StreamState":
        """Reads a state; unknown keys of this version are ignored.

        Raises:
            FormatError: the value is damaged, or of another version.
        """
        if not isinstance(value, Mapping) or not value:
            raise FormatError(
                f"the data state is {value!r:.80}, not a JSON object with version, next_sample and fingerprint: "
                "damaged, or written by another program"
            )
        version = value.get("version")
        if version != VERSION or isinstance(version, bool):
            newer = isinstance(version, int) and version > VERSION
            remedy = "written by a newer Gristmill; upgrade this one" if newer else "damaged, or of another program"
            raise FormatError(
                f"the data state has version {version!r}; this software reads version {VERSION}: {remedy}"
            )
        fingerprint, fields = value.get("fingerprint"), value.get("fields")
        if not isinstance(fingerprint, str) or not fingerprint or not isinstance(fields, str | None):
            raise FormatError(f"the data state has fingerprint {fingerprint!r} and fields {fields!r}: damaged")
        return cls(next_sample=_count(value.get("next_sample")), fingerprint=fingerprint, fields=fields)


def _count(value: object) -> int:
    try:
        count = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # refused at run time
    except TypeError:
        count = -1
    if count < 0:
        raise FormatError(f"the data state has next_sample {value!r}; the rule is a count of rows, 0 or more: damaged")
    return count


def check_state(
    state: StreamState, *, fingerprint: str, rows: int, fields: str | None, allow_stream_change: bool = False
) -> None:
    """Whether a state may be taken up by a stream.

    Args:
        state: as saved.
        fingerprint: of the stream now.
        rows: number of rows of the stream now.
        fields: digest of the field options now.
        allow_stream_change: accept a state of another stream: the run goes on at the same row number of this one.

    Raises:
        CorpusError: the state belongs to another stream, or lies beyond the end of this one.

    Warns:
        UserWarning: the fields are made with other options from here on.
    """
    if state.fingerprint != fingerprint and not allow_stream_change:
        raise CorpusError(
            f"the data state was saved at row {state.next_sample} of the stream {short(state.fingerprint)}, but this "
            f"stream is {short(fingerprint)}: shards, sequence length, seed, split or blend differ, so its first "
            f"{state.next_sample} rows are not those trained on. Open the corpus with the settings of the saved "
            f"run, or pass allow_stream_change=True to go on at row {state.next_sample} of this stream all the same"
        )
    if state.next_sample > rows:
        raise CorpusError(
            f"the data state was saved at row {state.next_sample}, but the stream ends at row {rows}; build an index "
            "set with more samples, or start anew"
        )
    if state.fields is not None and fields is not None and state.fields != fields:
        warnings.warn(
            f"the fields were made with the options {state.fields} before the checkpoint and are made with {fields} "
            "from here on: masks, positions or segments change, the rows do not",
            UserWarning,
            stacklevel=3,
        )
