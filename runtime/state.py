"""The state of a data pipeline: how many rows were delivered, and of which stream. One small JSON value.

Rows are a pure function of stream and number, so nothing about hosts, devices, batch size or prefetch needs to be
stored, and a state can be taken up by any of them. What it must not be taken up by is another stream: the fingerprint
refuses that, and asks for a decision by name. A few facts about the stream go along, only to say then what differs.
"""

import json
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gristmill.formats.errors import CorpusError, FormatError
from gristmill.formats.fingerprint import short
from gristmill.formats.index_order import OrderChange
from gristmill.runtime.row_map import rows_before

__all__ = ["check_state", "HasState", "StreamState", "VERSION"]

VERSION = 1
"""Version of the state's form: raised when a key changes its meaning or a new one cannot be ignored. Keys that may be
ignored are added without, so that states go from older to newer software and back. Every version stays readable."""

_MOST_DIFFERENCES = 8


class HasState(Protocol):
    """What has a data state: `TokenBatches`."""

    def get_state(self) -> dict[str, Any]:
        """The state as a JSON value."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on where a state was taken."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """Where a run stands in its stream.

    Attributes:
        next_sample: rows delivered so far, which is the number of the next row. Prefetched rows do not count.
        fingerprint: of the stream whose rows they are.
        fields: digest of the options that the fields were made with, or None in a state that does not say.
        facts: what decides the rows of the stream, in a few JSON values, or None in a state that does not say. Shown
            where a state is refused; decides nothing.
        options: the options that the fields were made with, likewise.
    """

    next_sample: int
    fingerprint: str
    fields: str | None = None
    facts: Mapping[str, Any] | None = None
    options: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The state as a JSON value: version, next_sample, fingerprint and, where known, fields, stream and options."""
        value: dict[str, Any] = {
            "version": VERSION,
            "next_sample": self.next_sample,
            "fingerprint": self.fingerprint,
        }
        if self.fields is not None:
            value["fields"] = self.fields
        if self.facts:
            value["stream"] = dict(self.facts)
        if self.options:
            value["options"] = dict(self.options)
        return value

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
        told = {key: found for key in ("stream", "options") if isinstance(found := value.get(key), Mapping)}
        return cls(
            next_sample=_count(value.get("next_sample")),
            fingerprint=fingerprint,
            fields=fields,
            facts=told.get("stream"),  # only words for a message: nothing to refuse
            options=told.get("options"),
        )


def _count(value: object) -> int:
    try:
        count = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # refused at run time
    except TypeError:
        count = -1
    if count < 0:
        raise FormatError(f"the data state has next_sample {value!r}; the rule is a count of rows, 0 or more: damaged")
    return count


def check_state(
    state: StreamState,
    *,
    fingerprint: str,
    rows: int,
    fields: str | None,
    facts: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    history: Sequence[OrderChange] = (),
    ancestors: Mapping[str, int] | None = None,
    allow_stream_change: bool = False,
) -> None:
    """Whether a state may be taken up by a stream: by the one it was saved of, or by one that goes on from it.

    Args:
        state: as saved.
        fingerprint: of the stream now.
        rows: number of rows of the stream now.
        fields: digest of the field options now.
        facts: what decides the rows of the stream now; see `StreamState.facts`.
        options: the field options now, likewise.
        history: the changes that led to the stream, oldest first. A state of an earlier stream is taken up if no change
            since then touches a row that was delivered.
        ancestors: the same by fingerprint, with how many rows are shared; None takes what `history` says.
        allow_stream_change: accept a state of another stream: the run goes on at the same row number of this one.

    Raises:
        CorpusError: the state belongs to another stream, or to an earlier one that this one has left before the row
            where the state stands, or it lies beyond the end of this one.

    Warns:
        UserWarning: the fields are made with other options from here on.
    """
    shared = (rows_before(history) if ancestors is None else ancestors).get(state.fingerprint)
    if state.fingerprint != fingerprint and not allow_stream_change:
        if shared is not None and state.next_sample > shared:
            raise CorpusError(
                f"the data state was saved at row {state.next_sample} of the stream {short(state.fingerprint)}, which "
                f"this stream, {short(fingerprint)}, left at row {shared}: from there on the rows are not those "
                f"trained on. Go back to a state of row {shared} or before, or {_override(state)}"
            )
        if shared is None:
            told = _differences(state.facts, facts)
            told = told or "shards, sequence length, seed, split or blend differ; the state does not say which"
            remedy = "Open the corpus with the settings of the saved run"
            if _only_epochs_differ(state.facts, facts):
                remedy = (
                    "Another number of samples needs other epochs, and so another order from the first row: ask for as "
                    "many as the saved run did (the order of a prepared corpus can go on behind them: `gristmill index "
                    "--extend`)"
                )
            raise CorpusError(
                f"the data state was saved at row {state.next_sample} of the stream {short(state.fingerprint)}, but "
                f"this stream is {short(fingerprint)}: {told}. So its first "
                f"{state.next_sample} rows are not those trained on. {remedy}, or {_override(state)}"
            )
    if state.next_sample > rows:
        raise CorpusError(
            f"the data state was saved at row {state.next_sample}, but the stream ends at row {rows}; build an index "
            "set with more samples, or start anew"
        )
    if state.fields is not None and fields is not None and state.fields != fields:
        told = _differences(state.options, options)
        warnings.warn(
            f"the fields were made with the options {state.fields} before the checkpoint and are made with {fields} "
            f"from here on{f' ({told})' if told else ''}: masks, positions or segments change, the rows do not",
            UserWarning,
            stacklevel=3,
        )


def _override(state: StreamState) -> str:
    return (
        "pass allow_stream_change=True to TokenBatches or its set_state to go on at row "
        f"{state.next_sample} of this stream all the same"
    )


def _only_epochs_differ(saved: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> bool:
    """Whether two orders differ in nothing but how often the sources are gone through."""
    if not saved or not now:
        return False
    first, second = ({**facts, "sources": _without_epochs(facts.get("sources"))} for facts in (saved, now))
    return first == second


def _without_epochs(sources: object) -> object:
    if not isinstance(sources, Mapping):
        return sources
    return {
        name: {key: fact for key, fact in value.items() if key != "epochs"} if isinstance(value, Mapping) else value
        for name, value in sources.items()
    }


def _differences(saved: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    """What differs between what two states tell, in words; empty where that cannot be said."""
    if not saved or not now:
        return ""
    before, after = dict(_flat(saved)), dict(_flat(now))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    told = [f"{key} was {_value(before, key)} and is {_value(after, key)}" for key in keys[:_MOST_DIFFERENCES]]
    more = len(keys) - len(told)
    return "; ".join(told) + (f"; and {more} more differences" if more else "")


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings, each with its dotted key."""
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(value) if isinstance(value, tuple) else value  # JSON has lists only


def _value(facts: Mapping[str, Any], key: str) -> str:
    return json.dumps(facts[key]) if key in facts else "not there"
