"""Opens window streams: over a finished corpus, or over anyone's data; no index set is looked for or built.

A start reads the manifest, or checks the pairs, and looks up where splits begin. What another process needs to open the
same stream is paths and a few numbers.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gristmill.formats.corpus_order import settings_like
from gristmill.formats.data_sources import agreed_ids, open_data_sources
from gristmill.formats.data_spec import DataEntry
from gristmill.formats.documents import check_unit
from gristmill.formats.errors import CorpusError, SettingsError
from gristmill.formats.index_plan import IndexSettings
from gristmill.formats.index_sources import index_sources
from gristmill.formats.manifest import Manifest, read_manifest
from gristmill.formats.schedule import Phase
from gristmill.formats.split import SPLITS
from gristmill.formats.storage import is_local
from gristmill.runtime.adopted_data import absolute_entry, entries_of, phases_of, shards_of, warn_without_eod
from gristmill.runtime.backends import Backend
from gristmill.runtime.corpus_rows import shard_facts, source_shards
from gristmill.runtime.object_storage import ObjectStorage, StorageMode, object_storage
from gristmill.runtime.provenance import CorpusProvenance
from gristmill.runtime.remote_access import open_access
from gristmill.runtime.whole_number import whole_number, whole_or_none
from gristmill.runtime.window_index import WindowIndex
from gristmill.runtime.window_plan import WindowPlan, WindowRequest, WindowSource, plan_windows
from gristmill.runtime.window_reader import WindowReader
from gristmill.runtime.window_stream import PaddedWindowStream, WindowStream

__all__ = ["corpus_windows", "open_windows", "WindowOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """How the windows of a corpus are chosen and ordered, beyond split, length, seed and number.

    Attributes:
        epochs: whole passes over all windows, whatever the weights, in place of a number of samples; at least 1.
        splits: proportions of train, valid and test, for example ``"98,1,1"``; None takes the corpus's own, or
            Megatron's.
        sources: the sources that take part, by id; None: all. Their weights keep their proportions.
        schedule: later weights of the training split: for each sample from which they hold, one weight for each source
            of the corpus. None takes the corpus's own.
        shuffle: whether each pass is shuffled; without, windows come in the order of the data.
        drop_last_partial: whether the tokens behind the last whole window of a source are left out. Without they are
            one more row, padded at its end, and the stream has a `valid_length`. None does as the corpus's own index
            set.
    """

    epochs: int | None = None
    splits: str | None = None
    sources: Sequence[str] | None = None
    schedule: Mapping[int, Sequence[float]] | None = None
    shuffle: bool = True
    drop_last_partial: bool | None = None


def corpus_windows(
    folder: str,
    manifest: Manifest,
    own: IndexSettings | None,
    *,
    split: str,
    sequence_length: int | None,
    seed: int | None,
    samples: int | None,
    options: WindowOptions,
    max_open_shards: int | None,
    backend: Backend,
    storage: ObjectStorage | None = None,
) -> WindowStream:
    """The window stream of a corpus; see `gristmill.runtime.corpus.Corpus.windows`.

    Args:
        folder: of the corpus, absolute or a URL.
        manifest: its manifest.
        own: settings of its own index set, from which comes what is not asked for; None where it has none.
        split: ``train``, ``valid`` or ``test``.
        sequence_length: L, or None.
        seed: of the order, or None.
        samples: number of rows, or None.
        options: see `WindowOptions`.
        max_open_shards: see `gristmill.runtime.reader.RowReader`.
        backend: likewise.
        storage: how files on an object store are read; None takes the defaults.
    """
    length = sequence_length if sequence_length is not None else None if own is None else own.sequence_length
    if length is None:
        raise CorpusError(f"{folder}: prepared without [index], so no sequence length is set; give sequence_length")
    if split not in SPLITS:
        raise SettingsError(f"split {split!r}: the splits are {', '.join(SPLITS)}")
    wanted = samples if options.epochs is None else None
    settings = settings_like(own, sequence_length=length, seed=seed, split=split, samples=wanted)
    request = settings.request(split)
    chosen = _chosen(folder, manifest, options.sources)
    sized = request.samples if options.epochs is None else samples  # both given is refused below
    later = phases_of(options.schedule) if options.schedule is not None else settings.phases(split)
    asked = WindowRequest(
        sequence_length=length,
        seed=settings.seed,
        split=split,
        splits=settings.splits if options.splits is None else options.splits,
        samples=sized,
        epochs=options.epochs if options.epochs is not None or sized is not None else request.epochs,
        weighted=sized is not None,
        shuffle=options.shuffle,
        drop_last_partial=(
            request.drop_last_partial if options.drop_last_partial is None else options.drop_last_partial
        ),
        schedule=_of_sources(later, manifest, chosen) if sized is not None or options.schedule is not None else (),
    )
    plan = _plan(folder, manifest, chosen, asked)
    index = _accessed(plan.index, storage, folder, manifest)
    reopen = partial(_reopen, folder, chosen, asked, plan.fingerprint, storage)
    tokenizer = manifest.tokenizer
    kind = WindowStream if asked.drop_last_partial else PaddedWindowStream
    return kind(
        name=manifest.name,
        split=split,
        fingerprint=plan.fingerprint,
        eod_id=tokenizer.eod_id,
        vocabulary=tokenizer.vocabulary,
        left_out=plan.left_out,
        reader=WindowReader(reopen, index=index, max_open_shards=max_open_shards, backend=backend),
        history=plan.history,
        facts=plan.facts,
        tokenizer_fingerprint=tokenizer.fingerprint,
        provenance=CorpusProvenance(folder),
    )


def _chosen(folder: str, manifest: Manifest, names: Sequence[str] | None) -> tuple[str, ...]:
    """The ids of the sources that take part, in the order of the manifest."""
    present = [source.id for source in manifest.sources]
    if names is None:
        return tuple(present)
    wanted = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in wanted if name not in present]
    if unknown or not wanted:
        raise SettingsError(
            f"{folder}: sources {', '.join(map(repr, unknown)) or 'of an empty list'}: the corpus has "
            f"{', '.join(map(repr, present))}"
        )
    return tuple(name for name in present if name in wanted)


def _of_sources(phases: Sequence[Phase], manifest: Manifest, chosen: Sequence[str]) -> tuple[Phase, ...]:
    """Phases by the sources that take part."""
    places = [place for place, source in enumerate(manifest.sources) if source.id in chosen]
    found = []
    for phase in phases:
        if len(phase.weights) != len(manifest.sources):
            raise SettingsError(
                f"schedule: {len(phase.weights)} weights from sample {phase.from_sample} on for the "
                f"{len(manifest.sources)} sources of the corpus: give each exactly one"
            )
        found.append(Phase(phase.from_sample, tuple(phase.weights[place] for place in places)))
    return tuple(found)


def _plan(folder: str, manifest: Manifest, chosen: Sequence[str], request: WindowRequest) -> WindowPlan:
    sources = zip(manifest.sources, index_sources(manifest.sources), strict=True)
    return plan_windows(
        [
            WindowSource(source=source, shards=source_shards(folder, manifest, entry))
            for entry, source in sources
            if entry.id in chosen
        ],
        request,
    )


def _accessed(
    index: WindowIndex, storage: ObjectStorage | None, folder: str = "", manifest: Manifest | None = None
) -> WindowIndex:
    """An index that says how its files on an object store are read; of a corpus, with what its manifest tells."""
    shards = [shard for member in index.members for shard in member.shards]
    facts = {} if manifest is None or is_local(folder) else shard_facts(folder, manifest.sources)
    return replace(index, access=open_access(storage, shards, facts))


def _reopen(
    folder: str, chosen: Sequence[str], request: WindowRequest, fingerprint: str, storage: ObjectStorage | None
) -> WindowIndex:
    """Opens the index of a stream that was opened before, in this process or another."""
    manifest = read_manifest(folder)
    plan = _plan(folder, manifest, chosen, request)
    if plan.fingerprint != fingerprint:
        raise CorpusError(
            f"{folder}: {request.split}: prepared anew since the stream was opened; open the corpus again"
        )
    return _accessed(plan.index, storage, folder, manifest)


def open_windows(
    spec: str | os.PathLike[str] | Sequence[DataEntry],
    *,
    sequence_length: int,
    eod_id: int | None = None,
    seed: int = 1234,
    samples: int | None = None,
    epochs: int | None = None,
    schedule: Mapping[int, Sequence[float]] | None = None,
    split: str = "train",
    splits: str | None = None,
    shuffle: bool = True,
    granularity: str = "sequence",
    vocabulary: int | None = None,
    drop_last_partial: bool = True,
    max_open_shards: int | None = None,
    backend: Backend = "auto",
    storage: StorageMode | ObjectStorage = "auto",
) -> WindowStream:
    """Opens data by prefix, folder, manifest of raw shards, or a line of several, as one stream of windows.

    A start checks and identifies every pair, as `open_megatron` does, and builds nothing. Without weights every window
    of every source is one row in each pass; with weights the sources are blended, see `PeriodicBlend`.

    Args:
        spec: the data: ``"path[:path...][,weight][;...]"``, see `gristmill.formats.data_spec`; a path object;
            or entries.
        sequence_length: L; a row holds one token more.
        eod_id: id that closes a document; None only for raw shards, whose manifest names it.
        seed: of every shuffle.
        samples: number of rows; None takes `epochs`.
        epochs: passes over all windows, whatever the weights; None is one, or with weights as many rows as no source
            repeats.
        schedule: later weights: for each sample from which they hold, one weight for each entry. The blend begins anew
            there, see `gristmill.formats.schedule`.
        split: ``train``, ``valid`` or ``test``.
        splits: proportions of the three, for example ``"969,30,1"``; None gives `split` all of the data.
        shuffle: whether each pass is shuffled; without, windows come in the order of the data.
        granularity: what splits are cut by: ``sequence``, those of an index, or ``document``.
        vocabulary: bound of the ids; rows with another id are refused when fields are made. None: unknown, or that of
            raw shards' manifests.
        drop_last_partial: whether the tokens behind the last whole window of an entry are left out. Without they are
            one more row, padded at its end, and the stream has a `valid_length`.
        max_open_shards: how many shards are kept open; None takes `gristmill.runtime.shards.default_open_limit`.
        backend: how local files are read; see `gristmill.runtime.reader.RowReader`.
        storage: how files on an object store are read; see `open_megatron`.

    Raises:
        SettingsError: an argument breaks a rule.
        InputError: a path leads to no data.
        FormatError: a file is damaged, or contradicts its manifest.
        CorpusError: the split has no window.
        StorageError: a file cannot be read.

    Warns:
        UserWarning: no document ends with `eod_id`.
    """
    eod_id, vocabulary = whole_or_none("eod_id", eod_id), whole_or_none("vocabulary", vocabulary)
    request = WindowRequest(
        sequence_length=whole_number("sequence_length", sequence_length),
        seed=whole_number("seed", seed),
        split=split,
        splits=splits if splits is not None else ",".join("1" if name == split else "0" for name in SPLITS),
        samples=whole_or_none("samples", samples),
        epochs=whole_or_none("epochs", epochs),
        shuffle=shuffle,
        drop_last_partial=drop_last_partial,
        schedule=phases_of(schedule),
    )
    sources = open_data_sources(
        [absolute_entry(entry) for entry in entries_of(spec)],
        unit=check_unit(granularity),
        eod_id=eod_id,
        vocabulary=vocabulary,
    )
    eod, bound = agreed_ids(sources, eod_id, vocabulary)
    warn_without_eod(sources, eod)
    plan = plan_windows([WindowSource(source=one.member_source, shards=shards_of(one)) for one in sources], request)
    options = object_storage(storage)
    kind = WindowStream if drop_last_partial else PaddedWindowStream
    return kind(
        name=", ".join(source.id for source in sources),
        split=split,
        fingerprint=plan.fingerprint,
        eod_id=eod,
        vocabulary=bound,
        left_out=plan.left_out,
        reader=WindowReader(
            partial(_accessed, plan.index, options),
            index=_accessed(plan.index, options),
            max_open_shards=max_open_shards,
            backend=backend,
        ),
        history=plan.history,
        facts=plan.facts,
    )
