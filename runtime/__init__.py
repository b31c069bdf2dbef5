"""Training: streams of prepared tokens, read, shaped into fields and delivered to a JAX mesh, with one small state.

Imports `gristmill.formats` alone of the other rooms. Names are loaded when first used, so that reading and inspecting a
corpus needs neither JAX nor Grain.

    open_corpus(path).stream("train")            rows of a finished corpus, in a fixed order
    open_megatron(spec, sequence_length=…, …)    rows of anyone's .bin/.idx pairs or raw token shards, likewise
    open_corpus(path).windows("train")           rows of contiguous windows, for any length, without index arrays
    open_windows(spec, sequence_length=…, …)     the same over anyone's data
    validation_streams(corpus)                   a split source by source; `validation_round` gives the rows of a round
    ObjectStorage(mode="cache", cache_dir=…)     how files at a URL are read: through a cache of the host, or by ranges
    TokenBatches(stream, global_batch, sharding) global batches as sharded arrays, with `get_state` and `set_state`
    StreamSource(stream)                         the same rows one by one, for Grain's own pipelines
    FieldOptions(...)                            how segments, positions and loss follow from the tokens
    HostBatches(stream, global_batch, rows=…)    the batches of one process as NumPy arrays, for other trainers
    maxtext_batches(config, mesh=mesh)           such batches from MaxText's own settings, for its loader
    check_training_setup(stream, vocabulary=…)   what of a job's settings does not fit its data, all at once
    to_training(batch, "huggingface")            a batch in the form that another trainer takes
    parity_options("megatron")                   those options that equal another program's, and what departs from it
    Checkpoints(folder)                          model and data state saved and restored together
    DataSave(batches), DataRestore(batches)      the data state as an item of your own Orbax CheckpointManager
"""

import importlib
from typing import TYPE_CHECKING, Any

from gristmill.formats.errors import MissingExtraError

if TYPE_CHECKING:
    from gristmill.formats.retries import Retries
    from gristmill.runtime.batches import Batch, TokenBatches
    from gristmill.runtime.checkpoint import Checkpoints
    from gristmill.runtime.corpus import Corpus, open_corpus
    from gristmill.runtime.data_handler import DataRestore, DataSave
    from gristmill.runtime.fields import FieldOptions, make_fields
    from gristmill.runtime.host_batches import HostBatches, host_rows, mesh_rows
    from gristmill.runtime.maxtext import maxtext_batches, maxtext_dataset, maxtext_source, maxtext_stream
    from gristmill.runtime.megatron import open_megatron
    from gristmill.runtime.naming import make_megatron_fields
    from gristmill.runtime.object_storage import ObjectStorage
    from gristmill.runtime.presets import parity_options
    from gristmill.runtime.setup_check import check_training_setup
    from gristmill.runtime.source import StreamSource
    from gristmill.runtime.streams import DocumentStream, MegatronStream, PaddedMegatronStream, RowPiece, Stream
    from gristmill.runtime.training_form import TrainingForm, to_training
    from gristmill.runtime.validation import validation_round, validation_streams
    from gristmill.runtime.views import StreamView
    from gristmill.runtime.window_stream import WindowStream
    from gristmill.runtime.windows import WindowOptions, open_windows

__all__ = [
    "Batch",
    "check_training_setup",
    "Checkpoints",
    "Corpus",
    "DataRestore",
    "DataSave",
    "DocumentStream",
    "FieldOptions",
    "host_rows",
    "HostBatches",
    "make_fields",
    "make_megatron_fields",
    "maxtext_batches",
    "maxtext_dataset",
    "maxtext_source",
    "maxtext_stream",
    "MegatronStream",
    "mesh_rows",
    "ObjectStorage",
    "open_corpus",
    "open_megatron",
    "open_windows",
    "PaddedMegatronStream",
    "parity_options",
    "Retries",
    "RowPiece",
    "Stream",
    "StreamSource",
    "StreamView",
    "to_training",
    "TokenBatches",
    "TrainingForm",
    "validation_round",
    "validation_streams",
    "WindowOptions",
    "WindowStream",
]

_MODULES = {
    "Batch": "batches",
    "check_training_setup": "setup_check",
    "Checkpoints": "checkpoint",
    "Corpus": "corpus",
    "DataRestore": "data_handler",
    "DataSave": "data_handler",
    "DocumentStream": "streams",
    "FieldOptions": "fields",
    "host_rows": "host_batches",
    "HostBatches": "host_batches",
    "make_fields": "fields",
    "make_megatron_fields": "naming",
    "maxtext_batches": "maxtext",
    "maxtext_dataset": "maxtext",
    "maxtext_source": "maxtext",
    "maxtext_stream": "maxtext",
    "MegatronStream": "streams",
    "mesh_rows": "host_batches",
    "ObjectStorage": "object_storage",
    "open_corpus": "corpus",
    "open_megatron": "megatron",
    "open_windows": "windows",
    "PaddedMegatronStream": "streams",
    "parity_options": "presets",
    "Retries": "object_storage",
    "RowPiece": "streams",
    "Stream": "streams",
    "StreamSource": "source",
    "StreamView": "views",
    "to_training": "training_form",
    "TokenBatches": "batches",
    "TrainingForm": "training_form",
    "validation_round": "validation",
    "validation_streams": "validation",
    "WindowOptions": "windows",
    "WindowStream": "window_stream",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("gristmill"):
            raise
        raise MissingExtraError(error.name, "train", f"gristmill.runtime.{name}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
