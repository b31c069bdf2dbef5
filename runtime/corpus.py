"""Opens a finished corpus and the streams that its index sets give.

Opening reads the manifest and, for a stream, one `set.json`; arrays and shards are mapped when rows are read, so
start-up costs the same for any number of tokens. Data and indices are matched by content first: an index set of other
shards than those that the manifest lists is never used.
"""

import os.path
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gristmill.formats.corpus_order import order_in_memory, settings_like
from gristmill.formats.errors import CorpusError, SettingsError, StorageError
from gristmill.formats.index_blend import BlendIndices, grow_blend
from gristmill.formats.index_build import build_index_set
from gristmill.formats.index_order import IndexSet, order_fingerprint, order_history, source_value
from gristmill.formats.index_plan import IndexSettings
from gristmill.formats.index_set import INDICES_FOLDER, SET_NAME, find_sets, read_set, set_path
from gristmill.formats.index_sources import index_sources
from gristmill.formats.indices import MemberIndices
from gristmill.formats.manifest import Manifest, SourceEntry, read_manifest
from gristmill.formats.order_facts import order_facts
from gristmill.formats.storage import base_name, exists, is_local, join, local_path
from gristmill.runtime.process import process_number
from gristmill.runtime.reader import Member, RowIndex, RowReader
from gristmill.runtime.shards import Shard
from gristmill.runtime.streams import MegatronStream, PaddedMegatronStream

__all__ = ["Corpus", "open_corpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A finished corpus.

    Attributes:
        folder: path (absolute) or URL.
        manifest: what it holds.
    """

    folder: str
    manifest: Manifest

    @property
    def tokenizer_path(self) -> str:
        """Where the corpus keeps its `tokenizer.json`."""
        return join(self.folder, "tokenizer", "tokenizer.json")

    def index_sets(self) -> list[IndexSet]:
        """The finished index sets that were built from these shards, by folder name.

        Raises:
            FormatError: a `set.json` is damaged.
        """
        return [found for found in find_sets(self.folder) if _foreign_source(self.manifest, found) is None]

    def stream(
        self,
        split: str = "train",
        sequence_length: int | None = None,
        seed: int | None = None,
        *,
        index_set: str | None = None,
        samples: int | None = None,
        build: bool = False,
        process_index: int | None = None,
        max_open_shards: int | None = None,
    ) -> MegatronStream:
        """Opens the stream of a split.

        Args:
            split: ``train``, ``valid`` or ``test``.
            sequence_length: L; None takes the corpus's own. Another one selects an index set built for it.
            seed: of the order; None takes the corpus's own. Another one selects an index set built for it.
            index_set: name of an index set (a folder of `indices/`), where several fit.
            samples: number of rows; None takes that of the index set. More are given, without building anything and
                with the same rows before, as far as the stored indices of the sources reach; behind that by an
                extension of the set, if one was built.
            build: whether an index set is built where none fits length and seed: for as many tokens as the corpus's
                own, or for `samples`. Every process builds it for itself, and waits for none; one writes it.
            process_index: with `build`, number of this process; 0 writes. None takes JAX's, or 0.
            max_open_shards: how many shards are kept open; None takes `gristmill.runtime.shards.default_open_limit`.

        Raises:
            CorpusError: no index set fits, several do, the one that does was built from other shards, or the split has
                no samples or not as many; the message says what there is and what to do.
            SettingsError: there is no such split, or `samples` or `max_open_shards` is below 1.
            FormatError: an index is damaged.

        Warns:
            UserWarning: what was built cannot be written; it is in memory.
        """
        if samples is not None and samples < 1:
            raise SettingsError(f"samples must be at least 1, not {samples}; leave it out for those of the index set")
        missing = self._missing(split, sequence_length, seed, samples) if build and index_set is None else None
        if missing is not None:
            chosen, index = _build(self, missing, split, write=process_number(process_index) == 0)
            reopen = partial(_reopen_built, self.folder, missing, split, order_fingerprint(chosen, split))
            return self._stream(chosen, split, RowReader(reopen, index=index, max_open_shards=max_open_shards))
        chosen = self._choose(sequence_length, seed, index_set)
        chosen.order(split)
        try:
            index = _row_index(self.folder, self.manifest, chosen, split, samples)
        except _TooFewError as error:
            chosen, index = self._extension(chosen, split, error, named=index_set is not None)
        reopen = partial(_reopen, self.folder, chosen.name, split, order_fingerprint(chosen, split), samples)
        return self._stream(chosen, split, RowReader(reopen, index=index, max_open_shards=max_open_shards))

    def _stream(self, chosen: IndexSet, split: str, reader: RowReader) -> MegatronStream:
        tokenizer = self.manifest.tokenizer
        kind = PaddedMegatronStream if reader.index.partial else MegatronStream
        return kind(
            name=self.manifest.name,
            split=split,
            fingerprint=order_fingerprint(chosen, split),
            eod_id=tokenizer.eod_id,
            vocabulary=tokenizer.vocabulary,
            left_out=chosen.order(split).left_out,
            reader=reader,
            history=order_history(chosen, split),
            facts=order_facts(chosen, split),
        )

    def _missing(
        self, split: str, sequence_length: int | None, seed: int | None, samples: int | None
    ) -> IndexSettings | None:
        """What to build an index set for; None where one fits, or where no length is named."""
        own = self.manifest.index_set
        settings = None if own is None else read_set(join(self.folder, INDICES_FOLDER, own)).settings
        length, wanted = sequence_length, seed
        if settings is not None:
            length = settings.sequence_length if length is None else length
            wanted = settings.seed if wanted is None else wanted
        if length is None or any(_fits(found, length, wanted) for found in self.index_sets()):
            return None
        return settings_like(settings, sequence_length=length, seed=wanted, split=split, samples=samples)

    def _extension(
        self, base: IndexSet, split: str, error: "_TooFewError", *, named: bool
    ) -> tuple[IndexSet, RowIndex]:
        """The extension of an index set that holds enough rows, and its index."""
        fitting: dict[str, tuple[IndexSet, RowIndex]] = {}
        behind: set[str | None] = set()  # keys of sets that hold enough, and of those that extend them
        for extension in [] if named else _extensions(base, self.index_sets()):
            if extension.parent in behind:
                behind.add(extension.key)
                continue
            with suppress(_TooFewError):
                index = _row_index(self.folder, self.manifest, extension, split, error.samples)
                fitting.setdefault(order_fingerprint(extension, split), (extension, index))
                behind.add(extension.key)
        if len(fitting) == 1:
            return next(iter(fitting.values()))
        if fitting:
            names = ", ".join(found.name for found, _ in fitting.values())
            raise CorpusError(
                f"{error}. Several extensions of {base.name} hold as many, in different orders: {names}; name one with "
                "index_set"
            )
        raise CorpusError(f"{error}{_remedy(self.folder, base, split, error.samples)}")

    def _choose(self, sequence_length: int | None, seed: int | None, name: str | None) -> IndexSet:
        own = self.manifest.index_set
        if name is None and sequence_length is None and seed is None:
            if own is None:
                raise CorpusError(
                    f"{self.folder}: prepared without [index], so no sequence length is set. {self._present()}"
                )
            name = own
        if name is not None:
            found = read_set(join(self.folder, INDICES_FOLDER, name))
            if _fits(found, sequence_length, seed):
                return found
            raise CorpusError(
                f"{self.folder}: index set {name} has sequence length {found.settings.sequence_length} and seed "
                f"{found.settings.seed}, not {_wanted(sequence_length, seed)}; leave out index_set or the other two"
            )
        if own is not None:  # what is not asked for stays the corpus's own
            settings = read_set(join(self.folder, INDICES_FOLDER, own)).settings
            sequence_length = settings.sequence_length if sequence_length is None else sequence_length
            seed = settings.seed if seed is None else seed
        fitting = [found for found in self.index_sets() if _fits(found, sequence_length, seed)]
        best = [found for found in fitting if found.name == own] or fitting
        if len(best) > 1:  # an extension is chosen by name, or by the number of rows
            best = [found for found in best if found.parent is None] or best
        if len(best) == 1:
            return best[0]
        if not best:
            raise CorpusError(
                f"{self.folder}: no index set for {_wanted(sequence_length, seed)}. "
                f"{self._present(sequence_length, seed)}"
            )
        raise CorpusError(
            f"{self.folder}: several index sets fit {_wanted(sequence_length, seed)} and differ in size, splits or "
            f"weights: {', '.join(found.name for found in best)}; name one with index_set"
        )

    def _present(self, sequence_length: int | None = None, seed: int | None = None) -> str:
        """What there is and the command that builds what is missing, as sentences."""
        names = ", ".join(found.name for found in self.index_sets())
        length = "LENGTH" if sequence_length is None else str(sequence_length)
        number = "" if seed is None else f" --seed {seed}"
        present = f"Present: {names}" if names else "There is none"
        return f"{present}; build it with `gristmill index {self.folder} --seq-length {length}{number}`"


def open_corpus(path: str | os.PathLike[str]) -> Corpus:
    """Opens a corpus that `gristmill prepare` finished.

    Args:
        path: its folder, as a path or URL.

    Raises:
        CorpusError: there is no such folder, or its corpus is unfinished.
        FormatError: the manifest is damaged or of another version.
    """
    folder = os.fspath(path)
    if is_local(folder):  # a worker process may run in another folder
        folder = os.path.abspath(local_path(folder))
    return Corpus(folder=folder, manifest=read_manifest(folder))


def _wanted(sequence_length: int | None, seed: int | None) -> str:
    parts = [] if sequence_length is None else [f"sequence length {sequence_length}"]
    return " and ".join(parts + ([] if seed is None else [f"seed {seed}"]))


def _fits(index_set: IndexSet, sequence_length: int | None, seed: int | None) -> bool:
    settings = index_set.settings
    return sequence_length in {None, settings.sequence_length} and seed in {None, settings.seed}


def _foreign_source(manifest: Manifest, index_set: IndexSet) -> str | None:
    """The first source of an index set that is not in the corpus, or in it with other shards."""
    present = {source.id: source_value(source)["shards"] for source in index_sources(manifest.sources)}
    return next((one.id for one in index_set.sources if present.get(one.id) != source_value(one)["shards"]), None)


class _TooFewError(CorpusError):
    """An index set holds fewer rows than are wanted."""

    def __init__(self, message: str, samples: int) -> None:
        super().__init__(message)
        self.samples = samples


def _remedy(folder: str, base: IndexSet, split: str, samples: int) -> str:
    """The commands that build more rows, as the rest of a sentence."""
    settings, blend = base.settings, base.order(split).blend
    if split != "train":
        return "; ask for fewer, or build an index set in which this split is larger"
    anew = (
        f"`gristmill index {folder} --seq-length {settings.sequence_length} --seed {settings.seed} --split "
        f"{settings.splits} --num-samples {samples}` builds Megatron's order for that number, another one from the "
        "first row"
    )
    if blend is not None and blend.kind != "weighted":
        return f"; {anew}"
    return (
        f"; `gristmill index {folder} --extend {base.name} --num-samples {samples}` goes on behind these rows; {anew}"
    )


def _extensions(base: IndexSet, present: list[IndexSet]) -> list[IndexSet]:
    """The sets that extend one, each before those that extend it, and those first that hold the fewest rows."""
    known = {base.key}
    found: list[IndexSet] = []
    while new := [one for one in present if one.parent in known and one.key not in known]:
        found += sorted(new, key=lambda one: (one.order("train").samples, one.name))
        known |= {one.key for one in new}
    return found


def _more(
    index_set: IndexSet, split: str, blend: BlendIndices | None, samples: int
) -> tuple[NDArray[np.int16], NDArray[np.int64]] | None:
    """The rows of a blend behind the stored ones, where so many are wanted.

    Raises:
        _TooFewError: the set does not hold so many.
    """
    order = index_set.order(split)
    where = f"{index_set.folder}: {split}"
    if blend is None:
        held = order.members[0].rows
        if samples > held:
            raise _TooFewError(f"{where}: {samples} samples asked for, but the stored indices hold {held}", samples)
        return None
    if samples <= len(blend.dataset_index):
        return None
    try:
        return grow_blend(split, blend, order.members, samples)
    except CorpusError as error:
        raise _TooFewError(f"{index_set.folder}: {error}", samples) from error


def _row_index(
    folder: str, manifest: Manifest, index_set: IndexSet, split: str, samples: int | None = None
) -> RowIndex:
    foreign = _foreign_source(manifest, index_set)
    if foreign is not None:
        raise CorpusError(
            f"{index_set.folder}: built from other shards of source {foreign!r} than {folder} holds now; build the "
            "indices again: `gristmill prepare` on the recipe does it"
        )
    if not index_set.settings.add_extra_token:
        raise CorpusError(
            f"{index_set.folder}: built without the extra token, so the last input of a row has no target; build an "
            "index set with it"
        )
    blend = index_set.open_blend(split)
    order = index_set.order(split)
    more = None if samples is None else _more(index_set, split, blend, samples)
    members = {report.source: index_set.open_member(split, report.source) for report in order.members}
    rows = order.samples if samples is None else samples
    return _index(folder, manifest, index_set.settings, split, members, blend, rows, more)


def _index(
    folder: str,
    manifest: Manifest,
    settings: IndexSettings,
    split: str,
    members: Mapping[str, MemberIndices],
    blend: BlendIndices | None,
    rows: int,
    more: tuple[NDArray[np.int16], NDArray[np.int64]] | None = None,
) -> RowIndex:
    return RowIndex(
        members=tuple(
            Member(source=source, shards=_shards(folder, manifest, manifest.source(source)), indices=indices)
            for source, indices in members.items()
        ),
        dataset_index=None if blend is None else blend.dataset_index,
        dataset_sample_index=None if blend is None else blend.dataset_sample_index,
        rows=rows,
        more=more,
        sequence_length=settings.sequence_length,
        extra=int(settings.add_extra_token),
        partial=not settings.request(split).drop_last_partial,
    )


def _shards(folder: str, manifest: Manifest, source: SourceEntry) -> tuple[Shard, ...]:
    return tuple(
        Shard(
            prefix=join(folder, shard.path),
            name=shard.path,
            dtype=manifest.dtype,
            sequences=shard.documents,
            tokens=shard.tokens,
        )
        for shard in source.shards
    )


def _reopen(folder: str, name: str, split: str, fingerprint: str, samples: int | None) -> RowIndex:
    """Opens the index of a stream that was opened before, in this process or another."""
    index_set = read_set(join(folder, INDICES_FOLDER, name))
    if order_fingerprint(index_set, split) != fingerprint:
        raise CorpusError(f"{folder}: {split}: prepared anew since the stream was opened; open the corpus again")
    return _row_index(folder, read_manifest(folder), index_set, split, samples)


def _build(corpus: Corpus, settings: IndexSettings, split: str, *, write: bool) -> tuple[IndexSet, RowIndex]:
    """An index set for some settings: the one that is there by now, else a new one, written or in memory."""
    if write:
        try:
            built = build_index_set(corpus.folder, corpus.manifest, settings)
            built.order(split).require_samples()
            return built, _row_index(corpus.folder, corpus.manifest, built, split)
        except StorageError as error:
            warnings.warn(
                f"the index set cannot be kept: {error}; it is in memory and will be built at every start: make "
                f"{join(corpus.folder, INDICES_FOLDER)} writable, or run `gristmill index` where it is",
                stacklevel=3,
            )
    order = order_in_memory(corpus.folder, corpus.manifest, settings, split)
    members = {member.report.source: member.indices for member in order.members}
    rows = order.index_set.order(split).samples
    return order.index_set, _index(corpus.folder, corpus.manifest, settings, split, members, order.blend, rows)


def _reopen_built(folder: str, settings: IndexSettings, split: str, fingerprint: str) -> RowIndex:
    """Opens the index of a stream whose index set was built for it, from the disk where it is there by now."""
    manifest = read_manifest(folder)
    stored = set_path(folder, settings, index_sources(manifest.sources))
    if exists(join(stored, SET_NAME)):
        return _reopen(folder, base_name(stored), split, fingerprint, None)
    found, index = _build(Corpus(folder=folder, manifest=manifest), settings, split, write=False)
    if order_fingerprint(found, split) != fingerprint:
        raise CorpusError(f"{folder}: {split}: prepared anew since the stream was opened; open the corpus again")
    return index
