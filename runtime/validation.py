"""Validation: sets by name, and the rows of a round, the same each time or going on from the round before.

A round is a view of a stream, so it follows from its number alone: nothing has to be saved to go on where the last one
stopped, and every host gets its part of the same rows.
"""

import os
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

from gristmill.formats.errors import CorpusError, SettingsError
from gristmill.formats.index_order import IndexSet, order_fingerprint
from gristmill.formats.index_set import INDICES_FOLDER, read_set
from gristmill.formats.manifest import read_manifest
from gristmill.formats.storage import join
from gristmill.runtime.backends import Backend
from gristmill.runtime.corpus import Corpus
from gristmill.runtime.corpus_rows import open_rows
from gristmill.runtime.object_storage import ObjectStorage, StorageMode, object_storage
from gristmill.runtime.reader import RowReader
from gristmill.runtime.row_index import RowIndex
from gristmill.runtime.row_map import Round
from gristmill.runtime.streams import MegatronStream, ReaderStream
from gristmill.runtime.views import StreamView, view_of
from gristmill.runtime.whole_number import whole_number
from gristmill.runtime.window_stream import WindowStream
from gristmill.runtime.windows import WindowOptions

__all__ = ["Rounds", "validation_round", "validation_streams"]

Rounds = Literal["same", "continue"]
"""Which rows rounds of validation take: the first ones each time, or those behind the ones of the round before."""


def validation_round(
    stream: ReaderStream | StreamView, number: int = 0, *, rows: int | None = None, rounds: Rounds = "same"
) -> StreamView:
    """The rows of one round of validation.

    Args:
        stream: the validation set.
        number: of the round, from 0: how many there were before, which follows from the training step.
        rows: of a round, at most those of the set; None takes all of them.
        rounds: ``same`` takes the first rows in every round; ``continue`` goes on where the round before stopped, and
            begins again behind the end of the set. Rounds that together are as long as the set hold each row once.

    Raises:
        SettingsError: an argument is out of range.

    Examples:
        >>> with TokenBatches(validation_round(valid, 3, rows=4096), 64, sharding, last_batch="pad") as batches:
        ...     loss = evaluate(batches)  # doctest: +SKIP
    """
    length = len(stream)
    count = length if rows is None else rows
    number = whole_number("number of a round", number, 0)
    count = whole_number("rows of a round", count, 1)
    if count > length:
        raise SettingsError(f"a round of {count} rows is longer than the set, which has {length}: {stream!r}")
    if rounds not in get_args(Rounds):
        raise SettingsError(f"rounds must be {' or '.join(map(repr, get_args(Rounds)))}, not {rounds!r}")
    first = number * count % length if rounds == "continue" else 0
    return view_of(stream, Round(first, length), count) if first else stream.take(count)


def validation_streams(
    corpus: Corpus,
    split: str = "valid",
    sequence_length: int | None = None,
    seed: int | None = None,
    *,
    index_set: str | None = None,
    windows: WindowOptions | None = None,
    max_open_shards: int | None = None,
    backend: Backend = "auto",
    storage: StorageMode | ObjectStorage = "auto",
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> dict[str, MegatronStream | WindowStream]:
    """Opens a split source by source, to validate on each by itself.

    Args:
        corpus: the corpus.
        split: ``train``, ``valid`` or ``test``.
        sequence_length: L, as for `Corpus.stream`.
        seed: of the order, likewise.
        index_set: name of an index set, where several fit.
        windows: open windows, as `Corpus.windows` does, without an index set; each once, unless these options ask for
            more epochs.
        max_open_shards: how many shards each keeps open, as for `Corpus.stream`.
        backend: how local files are read, likewise.
        storage: how files on an object store are read, likewise.
        cache_dir: folder of the cache, likewise; the sets share it.
        cache_bytes: most bytes that it may hold, likewise.

    Returns:
        By the id of the source, in the order of the corpus: a stream of all samples that the index set has of it, or of
        all its windows. Sources without any are not there.

    Raises:
        SettingsError: `corpus` is none.
        GristmillError: as `Corpus.stream` and `Corpus.windows`.
    """
    if not isinstance(corpus, Corpus):
        raise SettingsError(f"corpus is a {type(corpus).__name__}; open it first: open_corpus(path)")
    access = object_storage(storage, cache_dir, cache_bytes)
    if windows is not None:
        asked = replace(windows, epochs=1 if windows.epochs is None else windows.epochs)

        def opened(options: WindowOptions) -> WindowStream:
            return corpus.windows(
                split,
                sequence_length,
                seed,
                options=options,
                max_open_shards=max_open_shards,
                backend=backend,
                storage=access,
            )

        return {source: opened(replace(asked, sources=[source])) for source in opened(asked).sources}
    chosen = corpus.choose_index_set(sequence_length, seed, index_set)
    chosen.order(split).require_samples()
    found: dict[str, MegatronStream | WindowStream] = {}
    for member in chosen.order(split).members:
        alone = _of_source(chosen, split, member.source)
        fingerprint = order_fingerprint(alone, split)
        reopen = partial(_reopen, corpus.folder, chosen.name, split, member.source, fingerprint, access)
        index = open_rows(corpus.folder, corpus.manifest, alone, split, storage=access)
        reader = RowReader(reopen, index=index, max_open_shards=max_open_shards, backend=backend)
        found[member.source] = corpus.stream_over(alone, split, reader)
    return found


def _of_source(index_set: IndexSet, split: str, source: str) -> IndexSet:
    """An index set of one split that holds the samples of one source alone, all that its arrays have.

    Raises:
        CorpusError: the source takes no part in the split.
    """
    order = index_set.order(split)
    member = order.member(source)
    alone = replace(order, members=(member,), blend=None, samples=member.rows, left_out=())
    return replace(index_set, orders=(alone,), parent=None, history=())


def _reopen(folder: str, name: str, split: str, source: str, fingerprint: str, storage: ObjectStorage) -> RowIndex:
    """Opens the index of a stream of one source that was opened before, in this process or another."""
    index_set = _of_source(read_set(join(folder, INDICES_FOLDER, name)), split, source)
    if order_fingerprint(index_set, split) != fingerprint:
        raise CorpusError(f"{folder}: {split}: prepared anew since the stream was opened; open the corpus again")
    return open_rows(folder, read_manifest(folder), index_set, split, storage=storage)
