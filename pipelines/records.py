"""Records on their way from a file to the tokenizer: batches of texts, and the account of what was left out.

Every record of a split has a number, bad ones included, so that any later step can say which one it means. A bad
record is handled where it is met, by the source's policy; what was left out is counted by reason and a bounded,
deterministic sample of it is kept.
"""

import bisect
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gristmill.formats.errors import InputError
from gristmill.pipelines.json_values import json_value

__all__ = ["Batch", "Place", "RecordAccount", "SAMPLES_PER_REASON"]

SAMPLES_PER_REASON = 20
"""Left-out records kept as a sample, per split and reason."""

_SHOWN_CHARS = 200


@dataclass(slots=True)
class Batch:
    """Some texts of a split, in order.

    Attributes:
        texts: the texts of good records; none is empty.
        records: their record numbers, ascending, one per text.
        addresses: where each text comes from, None for one that does not say; None where nobody asks.
        carried: what each record carries along, as a JSON object; None where nothing is carried.
    """

    texts: list[str]
    records: "list[int] | range"
    addresses: "list[str | None] | None" = None
    carried: list[bytes] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies.

    Attributes:
        path: path or URL of its file, for the user who must find it.
        relative: the file's name within the source, for what is kept with the corpus.
        detail: where in the file, for example ``:12``; empty for the whole file.
        id: what the record calls itself, where the recipe names a field for it.
    """

    path: str
    relative: str
    detail: str = ""
    id: Any = None


@dataclass(slots=True)
class RecordAccount:
    """What happened to the records of one split.

    Attributes:
        policy: "fail" or "skip", for bad records.
        records: records met so far; the next record's number.
        dropped: records left out, by reason.
        bad: records left out that were bad, of those in `dropped`.
        counted: other counts by name.
        samples: sample of what was left out: reason, where, value, what the rule found, the record's id.
        inputs: one entry per extent: number of the input file, digest of what was read, records met by its end.
        last_bad: what was found in the last bad record.
    """

    policy: str
    records: int = 0
    bad: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[tuple[int, str, int]] = field(default_factory=list)
    last_bad: str = ""

    def reject(self, reason: str, where: Callable[[], Place], value: str, remedy: str) -> None:
        """Leaves out a bad record.

        Args:
            reason: name of the kind of fault.
            where: gives the place; called only when it is needed.
            value: what was found.
            remedy: what the user can do.

        Raises:
            InputError: the policy is "fail".
        """
        if self.policy == "fail":
            place = where()
            named = "" if place.id is None else f" ({json_value(place.id)!r})"
            raise InputError(
                f"{place.path}{place.detail}{named}: {reason.replace('_', ' ')}: {_shown(value)}; {remedy}, or set "
                'bad_records = "skip" to count such records and go on'
            ).about(file=place.path, place=place.detail, rule=reason, value=_shown(value), remedy=remedy)
        self.bad += 1
        self.last_bad = _shown(value)
        self.drop(reason, where, value)

    def drop(self, reason: str, where: Callable[[], Place], value: str, found: str = "") -> None:
        """Leaves out a record by a rule that is no fault; `found` is what the rule found in it."""
        self.dropped[reason] += 1
        if self.dropped[reason] <= SAMPLES_PER_REASON:
            place = where()
            sample = {"reason": reason, "where": place.relative + place.detail, "value": _shown(value)}
            own_id = json_value(place.id)
            named = {} if own_id is None else {"id": own_id}
            self.samples.append(sample | named | ({"found": found} if found else {}))

    def extent_of(self, record: int) -> int:
        """Place, among the extents of the split, of the one that a record was read from."""
        return bisect.bisect_right(self.inputs, record, key=lambda entry: entry[2])

    def samples_jsonl(self) -> bytes:
        """The sample as JSON lines, by reason."""
        ordered = sorted(self.samples, key=lambda entry: str(entry["reason"]))
        return b"".join(json.dumps(entry, sort_keys=True).encode("ascii") + b"\n" for entry in ordered)


def _shown(value: str) -> str:
    return value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + f"... ({len(value)} characters)"
