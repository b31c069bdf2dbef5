"""Data for MaxText from its own settings: what its `MultiHostDataLoadIterator` iterates over, and sources for Grain.

MaxText cuts what a process gives it into one block for each of the process's devices, so each process is given the rows
that its devices hold: the global batches are the stream's, row for row, for any number of hosts, and a checkpoint says
in one number how far a run is. MaxText's own pipelines, and its configuration, stay as they are.
"""

from typing import TYPE_CHECKING, Any

import grain

from gristmill.formats.errors import Problem, SettingsError, SetupError
from gristmill.runtime.corpus import open_corpus
from gristmill.runtime.host_batches import HostBatches, host_rows, mesh_rows
from gristmill.runtime.maxtext_settings import MaxTextSettings, Purpose, read_maxtext_settings
from gristmill.runtime.megatron import open_megatron
from gristmill.runtime.process import process_number
from gristmill.runtime.setup_check import check_training_setup
from gristmill.runtime.source import StreamSource
from gristmill.runtime.streams import MegatronStream

if TYPE_CHECKING:
    from jax.sharding import Mesh

__all__ = ["maxtext_batches", "maxtext_dataset", "maxtext_source", "maxtext_stream"]

_WHERE = "MaxText settings"
_NAMES = {"vocabulary": "vocab_size", "eod_id": "mmap_eod_id", "global_batch": "global_batch_size_to_load"}


def maxtext_stream(settings: Any, purpose: Purpose = "train", *, process_index: int | None = None) -> MegatronStream:
    """The stream that MaxText's settings name.

    Args:
        settings: MaxText's configuration, or a mapping; see `read_maxtext_settings`. With
            ``grain_file_type="mmap_npy"`` its files are ``"index_folder|path[:path…][,weight][;…]"``; with
            ``"gristmill"`` the folder or URL of a corpus, whose own splits are used, and whose own seed where
            ``data_shuffle_seed`` is 0, MaxText's default.
        purpose: ``train`` or ``eval``. For data of anyone, the latter is the second of the proportions of
            ``mmap_npy_split``, or all of ``grain_eval_files``.
        process_index: number of this process; 0 writes the indices that it built. None takes JAX's, or 0.

    Raises:
        SetupError: a setting is wrong, or does not fit the data; all are listed.
        GristmillError: as `open_megatron` and `open_corpus`.
    """
    return _stream(read_maxtext_settings(settings), purpose, process_index)


def _stream(wanted: MaxTextSettings, purpose: Purpose, process_index: int | None) -> MegatronStream:
    train = _is_train(purpose)
    files = wanted.train_files if train else wanted.eval_files
    if not files:
        raise SetupError(_WHERE, [Problem("grain_eval_files", "is empty, so there is nothing to validate on")])
    samples = wanted.train_samples if train else wanted.eval_samples
    if wanted.file_type == "gristmill":
        stream = open_corpus(files).stream(
            "train" if train else "valid",
            wanted.sequence_length,
            wanted.seed or None,
            samples=samples if train else None,
        )
        eod_id = wanted.eod_id or None  # a corpus knows its own
    else:
        split = "train" if train or wanted.splits is None else "valid"
        stream = open_megatron(
            files,
            sequence_length=wanted.sequence_length,
            eod_id=wanted.eod_id,
            seed=wanted.seed,
            samples=samples,
            epochs=None if samples is not None else wanted.epochs if train else 1,
            split=split,
            splits=wanted.splits,
            granularity=wanted.granularity,
            blend_cache_dir=wanted.blend_cache,
            blend_index_dir=wanted.blend_index,
            vocabulary=wanted.vocabulary,
            process_index=process_index,
        )
        eod_id = wanted.eod_id
    try:
        check_training_setup(
            stream, vocabulary=wanted.vocabulary, eod_id=eod_id, global_batch=wanted.train_batch if train else None
        )
    except SetupError as error:
        named = [Problem(_NAMES.get(problem.key, problem.key), problem.message) for problem in error.problems]
        raise SetupError(f"{_WHERE} for {stream!r}", named) from error
    return stream


def maxtext_batches(
    settings: Any,
    purpose: Purpose = "train",
    *,
    mesh: "Mesh | None" = None,
    process_index: int | None = None,
    process_count: int | None = None,
    prefetch: int = 2,
    allow_stream_change: bool = False,
) -> HostBatches:
    """What MaxText's `MultiHostDataLoadIterator` takes as its data loader: the batches of this process.

    Each element is a dict of the six fields, int32 NumPy arrays of this process's rows. Iterators of it save themselves
    as Grain's do, each process the same small JSON: ``{"version", "next_sample", "fingerprint", …}``.

    Args:
        settings: see `maxtext_stream`.
        purpose: ``train`` or ``eval``; the latter reads its rows anew in each round, and pads the last batch of a pass.
        mesh: MaxText's, over whose devices it splits the rows; None: the rows of each process are one block.
        process_index: number of this process; None takes JAX's, or 0.
        process_count: number of processes; None takes JAX's. Not used with a mesh.
        prefetch: batches made ahead on a thread; no worker process is needed.
        allow_stream_change: take up a checkpoint of another stream all the same.

    Raises:
        SetupError: a setting is wrong, or does not fit the data or the devices; all are listed.
        GristmillError: as `open_megatron` and `open_corpus`.

    Examples:
        >>> loader = maxtext_batches(config, mesh=mesh)  # doctest: +SKIP
        >>> data_iterator = MultiHostDataLoadIterator(loader, mesh)  # doctest: +SKIP
    """
    wanted = read_maxtext_settings(settings)
    train = _is_train(purpose)
    process = process_number(process_index)
    batch, name = (
        (wanted.train_batch, "global_batch_size_to_load")
        if train
        else (wanted.eval_batch, "global_batch_size_to_load_eval")
    )
    try:
        if mesh is not None:
            rows = mesh_rows(batch, mesh, process)
        else:
            rows = host_rows(batch, process, _process_count() if process_count is None else process_count)
    except SettingsError as error:
        raise SetupError(_WHERE, [Problem(name, str(error))]) from error
    return HostBatches(
        _stream(wanted, purpose, process),
        batch,
        rows=rows,
        options=wanted.options,
        last_batch="drop" if train else "pad",
        prefetch=prefetch,
        allow_stream_change=allow_stream_change,
    )


def maxtext_source(settings: Any, purpose: Purpose = "train", *, process_index: int | None = None) -> StreamSource:
    """The same rows one by one, as a Grain source whose elements are dicts of the six fields; see `maxtext_stream`."""
    wanted = read_maxtext_settings(settings)
    return StreamSource(_stream(wanted, purpose, process_index), wanted.options)


def maxtext_dataset(settings: Any, purpose: Purpose = "train", *, process_index: int | None = None) -> Any:
    """The same rows as a `grain.MapDataset`, not yet dealt out to hosts, batched or repeated; see `maxtext_stream`."""
    return grain.MapDataset.source(maxtext_source(settings, purpose, process_index=process_index))


def _is_train(purpose: str) -> bool:
    if purpose not in {"train", "eval"}:
        raise SettingsError(f"purpose must be 'train' or 'eval', not {purpose!r}")
    return purpose == "train"


def _process_count() -> int:
    """Number of JAX's processes, as far as it can be told without starting JAX; see `process_number`."""
    import jax

    return int(jax.process_count()) if jax.distributed.is_initialized() else 1
