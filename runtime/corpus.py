"""Opens a finished corpus and the streams that its index sets give.

Opening reads the manifest and, for a stream, one `set.json`; arrays and shards are mapped when rows are read, so
start-up costs the same for any number of tokens. Data and indices are matched by content first: an index set of other
shards than those that the manifest lists is never used.
"""

import os.path
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from gristmill.formats.corpus_order import settings_like
from gristmill.formats.errors import CorpusError, SettingsError
from gristmill.formats.index_order import IndexSet, order_fingerprint, order_history
from gristmill.formats.index_plan import IndexSettings
from gristmill.formats.index_set import INDICES_FOLDER, find_sets, read_set
from gristmill.formats.manifest import Manifest, read_manifest
from gristmill.formats.order_facts import order_facts
from gristmill.formats.storage import is_local, join, local_path
from gristmill.runtime.backends import Backend
from gristmill.runtime.corpus_rows import (
    TooFewError,
    build_rows,
    foreign_source,
    open_rows,
    reopen_built_rows,
    reopen_rows,
)
from gristmill.runtime.object_storage import ObjectStorage, StorageMode, object_storage
from gristmill.runtime.process import process_number
from gristmill.runtime.provenance import CorpusProvenance
from gristmill.runtime.reader import RowReader
from gristmill.runtime.row_index import RowIndex
from gristmill.runtime.streams import MegatronStream, PaddedMegatronStream
from gristmill.runtime.whole_number import whole_or_none
from gristmill.runtime.window_stream import WindowStream
from gristmill.runtime.windows import WindowOptions, corpus_windows

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
        return [found for found in find_sets(self.folder) if foreign_source(self.manifest, found) is None]

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
        backend: Backend = "auto",
        storage: StorageMode | ObjectStorage = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
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
            backend: how local files are read: ``mmap`` through maps, ``pread`` by ranged reads, ``auto`` by ranged
                reads on network and user-space file systems only.
            storage: how files on an object store are read: ``cache`` downloads them, in the order of their first use,
                into a folder that the processes of the host share, ``ranges`` reads what rows need, ``auto`` takes the
                cache where all of them fit into it; or all `ObjectStorage` options.
            cache_dir: folder of the cache, see `ObjectStorage`.
            cache_bytes: most bytes that it may hold, see `ObjectStorage`.

        Raises:
            CorpusError: no index set fits, several do, the one that does was built from other shards, or the split has
                no samples or not as many; the message says what there is and what to do.
            SettingsError: there is no such split, or another argument is out of range.
            FormatError: an index is damaged.
            StorageError: the object store does not answer, or the cache cannot be written.

        Warns:
            UserWarning: what was built cannot be written; it is in memory.
        """
        sequence_length = whole_or_none("sequence_length", sequence_length)
        seed, samples = whole_or_none("seed", seed), whole_or_none("samples", samples)
        if samples is not None and samples < 1:
            raise SettingsError(f"samples must be at least 1, not {samples}; leave it out for those of the index set")
        options = object_storage(storage, cache_dir, cache_bytes)
        missing = self._missing(split, sequence_length, seed, samples) if build and index_set is None else None
        if missing is not None:
            write = process_number(process_index) == 0
            chosen, index = build_rows(self.folder, self.manifest, missing, split, write=write, storage=options)
            fingerprint = order_fingerprint(chosen, split)
            reopen = partial(reopen_built_rows, self.folder, missing, split, fingerprint, options)
            reader = RowReader(reopen, index=index, max_open_shards=max_open_shards, backend=backend)
            return self.stream_over(chosen, split, reader)
        chosen = self.choose_index_set(sequence_length, seed, index_set)
        chosen.order(split)
        try:
            index = open_rows(self.folder, self.manifest, chosen, split, samples, options)
        except TooFewError as error:
            chosen, index = self._extension(chosen, split, error, options, named=index_set is not None)
        fingerprint = order_fingerprint(chosen, split)
        reopen = partial(reopen_rows, self.folder, chosen.name, split, fingerprint, samples, options)
        reader = RowReader(reopen, index=index, max_open_shards=max_open_shards, backend=backend)
        return self.stream_over(chosen, split, reader)

    def windows(
        self,
        split: str = "train",
        sequence_length: int | None = None,
        seed: int | None = None,
        *,
        samples: int | None = None,
        options: WindowOptions | None = None,
        max_open_shards: int | None = None,
        backend: Backend = "auto",
        storage: StorageMode | ObjectStorage = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> WindowStream:
        """Opens a split as windows of its tokens, for any length, seed and size, without an index set.

        The documents of each split are those of an index set of the same proportions. Every window is one row in each
        pass; where the corpus asks for a number of samples and its sources have weights, they are blended instead, each
        going through its own windows.

        Args:
            split: ``train``, ``valid`` or ``test``.
            sequence_length: L; None takes the corpus's own.
            seed: of the order; None takes the corpus's own, else Megatron's.
            samples: number of rows; None takes as many tokens as the corpus's own index set, or its epochs, or one
                pass. Another number gives the same rows as far as both go, and leaves the fingerprint as it is.
            options: more about them; see `WindowOptions`.
            max_open_shards: how many shards are kept open; None takes `gristmill.runtime.shards.default_open_limit`.
            backend: how local files are read, as for `stream`.
            storage: how files on an object store are read, as for `stream`.
            cache_dir: folder of the cache, likewise.
            cache_bytes: most bytes that it may hold, likewise.

        Raises:
            CorpusError: no length is set, or the split has no window.
            DataError: a source would be gone through more often than its `max_epochs` allows.
            SettingsError: an argument is out of range.
            FormatError: an index is damaged.
        """
        own = self.manifest.index_set
        return corpus_windows(
            self.folder,
            self.manifest,
            None if own is None else read_set(join(self.folder, INDICES_FOLDER, own)).settings,
            split=split,
            sequence_length=whole_or_none("sequence_length", sequence_length),
            seed=whole_or_none("seed", seed),
            samples=whole_or_none("samples", samples),
            options=WindowOptions() if options is None else options,
            max_open_shards=max_open_shards,
            backend=backend,
            storage=object_storage(storage, cache_dir, cache_bytes),
        )

    def stream_over(self, chosen: IndexSet, split: str, reader: RowReader) -> MegatronStream:
        """The stream of a split of an index set, whose rows `reader` reads."""
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
            tokenizer_fingerprint=tokenizer.fingerprint,
            provenance=CorpusProvenance(self.folder),
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
        self, base: IndexSet, split: str, error: "TooFewError", storage: ObjectStorage, *, named: bool
    ) -> tuple[IndexSet, RowIndex]:
        """The extension of an index set that holds enough rows, and its index."""
        fitting: dict[str, tuple[IndexSet, RowIndex]] = {}
        behind: set[str | None] = set()  # keys of sets that hold enough, and of those that extend them
        for extension in [] if named else _extensions(base, self.index_sets()):
            if extension.parent in behind:
                behind.add(extension.key)
                continue
            with suppress(TooFewError):
                index = open_rows(self.folder, self.manifest, extension, split, error.samples, storage)
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

    def choose_index_set(self, sequence_length: int | None, seed: int | None, name: str | None) -> IndexSet:
        """The index set that `stream` takes for these arguments; raises as it does."""
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
