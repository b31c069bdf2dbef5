"""What the records of a split carry along, on its way to shards: lines in one file, whose they are in another.

They are written for every record that was read, beside the ids, and taken for those that go on when shards are cut; so
no step in between has to hand them on. Memory is bounded by a run of lines of about a megabyte.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from gristmill.formats.errors import FormatError
from gristmill.formats.storage import read_bytes, read_range

__all__ = ["CARRIED_KINDS", "lines_of", "packed_lines"]

CARRIED_KINDS = ("meta", "place")
"""Endings of the two files: the lines one behind the other, and a record of `_PLACE_DTYPE` for each."""

_PLACE_DTYPE = np.dtype([("record", "<u4"), ("size", "<u4")])
_RUN_BYTES = 1 << 20


def packed_lines(records: "Sequence[int] | range", lines: Sequence[bytes]) -> tuple[bytes, np.ndarray]:
    """Some lines as they are written: their bytes, and whose they are with how many bytes each."""
    places = np.empty(len(lines), _PLACE_DTYPE)
    places["record"] = records
    places["size"] = list(map(len, lines))
    return b"".join(lines), places


def lines_of(tokens: str, records: np.ndarray) -> Iterator[list[bytes]]:
    """The lines of some records of a split, in order, a bounded run at a time.

    Args:
        tokens: path or URL of the spill's `.tok`, beside which they lie.
        records: numbers of the records, ascending.

    Raises:
        FormatError: a record has no line.
        StorageError: a file cannot be read.
    """
    path, place_path = (f"{tokens.removesuffix('.tok')}.{kind}" for kind in CARRIED_KINDS)
    places = np.frombuffer(read_bytes(place_path), _PLACE_DTYPE)
    found = np.searchsorted(places["record"], records)
    if len(records) and (found[-1] >= len(places) or (places["record"][found] != records).any()):
        raise FormatError(f"{place_path}: lacks records that the spill has; remove the folder and run again")
    ends = np.cumsum(places["size"], dtype=np.int64)
    starts, stops = (ends - places["size"])[found], ends[found]
    first = 0
    while first < len(records):
        last = max(first + 1, int(np.searchsorted(stops, int(starts[first]) + _RUN_BYTES, side="right")))
        begin = int(starts[first])
        data = read_range(path, begin, int(stops[last - 1]) - begin)
        pairs = zip((starts[first:last] - begin).tolist(), (stops[first:last] - begin).tolist(), strict=True)
        yield [data[start:stop] for start, stop in pairs]
        first = last
