"""The data that a line of text names, opened: each entry one source of shards that behave as their concatenation.

This is where data made by others become what plans, keys and streams work with. Every index file is read once, which
is what a start costs; tokens are not, except those of raw shards that have no index yet.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gristmill.formats.data_spec import DataEntry
from gristmill.formats.documents import Unit
from gristmill.formats.errors import InputError, SettingsError
from gristmill.formats.index_plan import MemberSource
from gristmill.formats.indexed import PairFiles
from gristmill.formats.raw_index import index_raw_shards
from gristmill.formats.raw_manifest import RawManifest, find_raw_manifest, read_raw_manifest
from gristmill.formats.storage import base_name
from gristmill.formats.token_shards import TokenShard, examine_pair, find_prefixes, in_threads

__all__ = ["agreed_ids", "DataSource", "open_data_sources"]

_SHARDS = "shards"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """One entry, opened.

    Attributes:
        id: names it in messages and streams; unique among the sources.
        entry: as it was written.
        shards: its shards in order.
        raw: the manifests of raw shards among its paths.
    """

    id: str
    entry: DataEntry
    shards: tuple[TokenShard, ...]
    raw: tuple[RawManifest, ...]

    @property
    def member_source(self) -> MemberSource:
        """The source as plans and keys see it."""
        return MemberSource(
            id=self.id,
            weight=self.entry.weight,
            max_epochs=None,
            shards=tuple(shard.shard_identity for shard in self.shards),
        )


def open_data_sources(
    entries: Sequence[DataEntry],
    *,
    unit: Unit = "sequence",
    eod_id: int | None = None,
    vocabulary: int | None = None,
    cache_folder: str | None = None,
    write: bool = True,
    identify: bool = True,
) -> list[DataSource]:
    """Finds, checks and identifies the shards of each entry.

    Args:
        entries: what to open.
        unit: what is shuffled as one.
        eod_id: the EOD that the caller counts on; None takes that of raw shards' manifests.
        vocabulary: bound of the ids, in place of the one in raw shards' manifests.
        cache_folder: where indices of raw shards are kept, unless an entry names a folder; None keeps them beside the
            tokens.
        write: whether this process writes indices of raw shards.
        identify: without, identities stay empty and only the ends of indices are checked.

    Raises:
        InputError: a path leads to no data.
        SettingsError: an entry names a pair twice, or mixes raw shards with pairs.
        FormatError: a file is damaged, or contradicts its manifest.
        StorageError: a file cannot be read.
    """
    ids = _unique([_name(entry) for entry in entries])
    sources = []
    for name, entry in zip(ids, entries, strict=True):
        manifests = [find_raw_manifest(path) for path in entry.paths]
        if any(place is not None for place in manifests):
            raw = [place for place in manifests if place is not None]
            if len(raw) < len(manifests):
                raise SettingsError(
                    f"{':'.join(entry.paths)}: raw token shards and .bin/.idx pairs in one entry; make them two entries"
                )
            if len(set(raw)) < len(raw):
                raise SettingsError(f"{':'.join(entry.paths)}: the same raw token shards twice; name them once")
            folder = entry.index_folder or cache_folder
            read = tuple(read_raw_manifest(place, eod_id=eod_id, vocabulary=vocabulary) for place in raw)
            shards = [shard for one in read for shard in _raw_shards(one, unit, folder, write=write, identify=identify)]
            sources.append(DataSource(id=name, entry=entry, shards=tuple(shards), raw=read))
            continue
        prefixes = find_prefixes(entry.paths)
        found = in_threads(lambda prefix: examine_pair(prefix, unit, identify=identify), prefixes)
        if not any(shard.tokens for shard in found):
            raise InputError(f"{':'.join(entry.paths)}: {len(found)} shards without a single token")
        sources.append(DataSource(id=name, entry=entry, shards=tuple(found), raw=()))
    return sources


def _raw_shards(
    manifest: RawManifest, unit: Unit, folder: str | None, *, write: bool, identify: bool
) -> list[TokenShard]:
    indexed = index_raw_shards(manifest, folder, write=write)

    def examine(found: tuple[str, PairFiles]) -> TokenShard:
        sha256, files = found
        return examine_pair(files.tokens.removesuffix(".bin"), unit, files, sha256, identify=identify)

    return in_threads(examine, indexed)


def _name(entry: DataEntry) -> str:
    """What people call an entry: the last part of its first path that says something."""
    parts = [part for part in entry.paths[0].split("/") if part not in {"", ".", ".."}]
    if parts and parts[-1].endswith(".json"):
        parts = parts[:-1]
    if len(parts) > 1 and parts[-1] == _SHARDS:
        parts = parts[:-1]
    name = base_name(parts[-1]) if parts else "data"
    return name.removesuffix(".bin").removesuffix(".idx").removesuffix(".npy") or "data"


def _unique(names: Iterable[str]) -> list[str]:
    """The names, those that came before with a number behind them."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        found.append(name if name not in found else next(other for other in numbered if other not in found))
    return found


def agreed_ids(sources: Sequence[DataSource], eod_id: int | None, vocabulary: int | None) -> tuple[int, int | None]:
    """The EOD and the bound of the ids that hold for all sources: the caller's, else those of the manifests.

    Raises:
        SettingsError: nobody names an EOD, manifests name different ones, or it lies outside the vocabulary.
    """
    manifests = [manifest for source in sources for manifest in source.raw]
    eods = {manifest.eod_id for manifest in manifests} | ({eod_id} if eod_id is not None else set())
    if not eods:
        raise SettingsError(
            "eod_id is needed: the id that closes each document; a .bin/.idx pair does not tell it, and 0 is no default"
        )
    if len(eods) > 1:
        raise SettingsError(f"the data end their documents with different ids: {', '.join(map(str, sorted(eods)))}")
    bounds = {manifest.vocabulary for manifest in manifests if manifest.vocabulary is not None}
    bound = vocabulary if vocabulary is not None else max(bounds, default=None)
    if len(manifests) < sum(len(source.entry.paths) for source in sources) and vocabulary is None:
        bound = None
    (eod,) = eods
    if eod < 0 or (bound is not None and eod >= bound):
        raise SettingsError(f"eod_id {eod} lies outside the vocabulary" + ("" if bound is None else f" of {bound} ids"))
    return eod, bound
