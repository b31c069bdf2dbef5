"""What every way of opening anyone's data shares: paths that hold in any folder, shards, and a look at their ends."""

import os.path
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.data_sources import DataSource
from gristmill.formats.data_spec import DataEntry, parse_data_spec
from gristmill.formats.errors import SettingsError
from gristmill.formats.schedule import Phase
from gristmill.formats.storage import is_local, local_path
from gristmill.formats.token_shards import TokenShard
from gristmill.runtime.shards import Shard
from gristmill.runtime.whole_number import whole_number

__all__ = ["absolute_entry", "entries_of", "folder_of", "phases_of", "shards_of", "warn_without_eod"]

_DOCUMENTS_LOOKED_AT, _SHARDS_LOOKED_AT = 32, 8


def phases_of(schedule: Mapping[int, Sequence[float]] | None) -> tuple[Phase, ...]:
    """Later phases of weights, by the sample from which each holds.

    Raises:
        SettingsError: a phase breaks a rule.
    """
    rule = "the rule is {first sample: one weight for each source}, for example {50_000: (0.1, 0.9)}"
    if not isinstance(schedule, Mapping | None):
        raise SettingsError(f"schedule is {schedule!r:.80}; {rule}")
    found = []
    for start, weights in (schedule or {}).items():
        try:
            phase = tuple(map(float, weights))
        except (TypeError, ValueError) as error:
            raise SettingsError(f"schedule: weights from sample {start!r} on are {weights!r:.80}; {rule}") from error
        found.append(Phase(whole_number("a first sample of a schedule", start), phase))
    return tuple(sorted(found, key=lambda phase: phase.from_sample))


def entries_of(spec: str | os.PathLike[str] | Sequence[DataEntry]) -> tuple[DataEntry, ...]:
    """The entries that name data: of a line of text, of one path, or as they are.

    Raises:
        SettingsError: the text breaks a rule, or it is none of these.
    """
    if isinstance(spec, str):
        return parse_data_spec(spec)
    if isinstance(spec, os.PathLike):
        return (DataEntry(paths=(os.fspath(spec),)),)
    entries = tuple(spec) if isinstance(spec, Iterable) else (spec,)
    wrong = next((entry for entry in entries if not isinstance(entry, DataEntry)), None)
    if wrong is not None or not entries:
        raise SettingsError(
            f'the data are {spec!r:.80}; name them by a path, by a line of text, "path[,weight][;...]", or by entries '
            "of gristmill.formats.data_spec"
        )
    return entries


def folder_of(path: str | os.PathLike[str] | None) -> str | None:
    """A folder as a process in another folder would have to name it; None for none."""
    return _absolute_path(os.fspath(path)) if path is not None and os.fspath(path) else None


def _absolute_path(path: str) -> str:
    return os.path.abspath(local_path(path)) if is_local(path) else path


def absolute_entry(entry: DataEntry) -> DataEntry:
    """The entry as a process in another folder would have to name it."""
    folder = None if entry.index_folder is None else _absolute_path(entry.index_folder)
    return replace(entry, paths=tuple(_absolute_path(path) for path in entry.paths), index_folder=folder)


def shards_of(source: DataSource) -> tuple[Shard, ...]:
    """The shards of a source as readers open them."""
    return tuple(
        Shard(
            prefix=shard.prefix,
            name=shard.name,
            dtype=shard.dtype,
            sequences=shard.sequences,
            tokens=shard.tokens,
            files=shard.files,
            unit=shard.unit,
        )
        for shard in source.shards
    )


def warn_without_eod(sources: Sequence[DataSource], eod_id: int) -> None:
    """Warns of each source of which no document, of some looked at, ends with the EOD.

    Warns:
        UserWarning: none does; for the caller's caller.
    """
    for source in sources:
        shards = [shard for shard in source.shards if shard.tokens]
        chosen = shards[:: max(1, len(shards) // _SHARDS_LOOKED_AT)]
        ends = np.concatenate([_last_tokens(shard, max(1, _DOCUMENTS_LOOKED_AT // len(chosen))) for shard in chosen])
        if len(ends) and not (ends == eod_id).any():
            warnings.warn(
                f"{source.id}: none of {len(ends)} documents looked at ends with eod_id={eod_id} (the first with "
                f"{ends[0]}): another id, or the data were written without EOD, so that documents cannot be told apart",
                stacklevel=3,
            )


def _last_tokens(shard: TokenShard, count: int) -> NDArray[np.int64]:
    """The last token of up to `count` documents of a shard that are not empty."""
    pair = shard.open()
    bounds = pair.document_indices[np.unique(np.linspace(0, pair.num_documents, count + 1).astype(np.int64))]
    ends = [
        int(pair.pointers[bound]) // pair.dtype.itemsize if bound < len(pair) else pair.num_tokens for bound in bounds
    ]
    tokens = [int(pair.read(end - 1, 1)[0]) for end in sorted(set(ends)) if end > 0]
    pair.close()
    return np.array(tokens, np.int64)
