"""Training: streams of prepared tokens, read, shaped into fields and delivered to a JAX mesh, with one small state.

Imports `gristmill.formats` alone of the other rooms. Names are loaded when first used, so that reading and inspecting a
corpus needs neither JAX nor Grain.

    open_corpus(path).stream("train")            rows of a finished corpus, in a fixed order
    open_megatron(spec, sequence_length=…, …)    rows of anyone's .bin/.idx pairs or raw token shards, likewise
    TokenBatches(stream, global_batch, sharding) global batches as sharded arrays, with `get_state` and `set_state`
    StreamSource(stream)                         the same rows one by one, for Grain's own pipelines
    FieldOptions(...)                            how segments, positions and loss follow from the tokens
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
    from gristmill.runtime.batches import Batch, TokenBatches
    from gristmill.runtime.checkpoint import Checkpoints
    from gristmill.runtime.corpus import Corpus, open_corpus
    from gristmill.runtime.data_handler import DataRestore, DataSave
    from gristmill.runtime.fields import FieldOptions, make_fields
    from gristmill.runtime.megatron import open_megatron
    from gristmill.runtime.naming import make_megatron_fields
    from gristmill.runtime.presets import parity_options
    from gristmill.runtime.setup_check import check_training_setup
    from gristmill.runtime.source import StreamSource
    from gristmill.runtime.streams import DocumentStream, MegatronStream, RowPiece, Stream
    from gristmill.runtime.training_form import TrainingForm, to_training

__all__ = [
    "Batch",
    "check_training_setup",
    "Checkpoints",
    "Corpus",
    "DataRestore",
    "DataSave",
    "DocumentStream",
    "FieldOptions",
    "make_fields",
    "make_megatron_fields",
    "MegatronStream",
    "open_corpus",
    "open_megatron",
    "parity_options",
    "RowPiece",
    "Stream",
    "StreamSource",
    "to_training",
    "TokenBatches",
    "TrainingForm",
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
    "make_fields": "fields",
    "make_megatron_fields": "naming",
    "MegatronStream": "streams",
    "open_corpus": "corpus",
    "open_megatron": "megatron",
    "parity_options": "presets",
    "RowPiece": "streams",
    "Stream": "streams",
    "StreamSource": "source",
    "to_training": "training_form",
    "TokenBatches": "batches",
    "TrainingForm": "training_form",
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
