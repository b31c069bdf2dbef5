"""Whether a training job and its data fit, asked once when the job starts and answered with all that does not.

What is wrong here trains without an error: ids beyond the embedding are clamped by a TPU, another EOD joins documents,
another tokenizer gives noise. A job states what it will do, and nothing is compared that it does not state.
"""

from typing import TYPE_CHECKING

from gristmill.formats.errors import Problem, SettingsError, SetupError
from gristmill.formats.fingerprint import short
from gristmill.runtime.streams import Stream, require_stream

if TYPE_CHECKING:
    from jax.sharding import Sharding

__all__ = ["check_training_setup"]

_FEWEST_DIGITS = 7


def check_training_setup(
    stream: Stream,
    *,
    sequence_length: int | None = None,
    vocabulary: int | None = None,
    eod_id: int | None = None,
    tokenizer_fingerprint: str | None = None,
    global_batch: int | None = None,
    sharding: "Sharding | None" = None,
    microbatches: int | None = None,
    zigzag: bool = False,
    steps: int | None = None,
) -> None:
    """Compares what a training job is set to with the stream that it will read.

    Args:
        stream: what will be read.
        sequence_length: L of the model's batches; None: not compared, and likewise below.
        vocabulary: ids that the model has an embedding for. More than the data need is right: many pad it.
        eod_id: id that the model takes for the end of a document.
        tokenizer_fingerprint: of the tokenizer that the model is used with, or its first digits (7 or more), as the
            manifest and `gristmill inspect` have it.
        global_batch: G, rows of a batch over all processes.
        sharding: how a batch (a microbatch) will lie on the devices; needs `global_batch`.
        microbatches: k, see `TokenBatches`.
        zigzag: see `TokenBatches`.
        steps: how many batches the job will read from the first row; needs `global_batch`.

    Raises:
        SettingsError: `stream` is no stream.
        SetupError: something does not fit; the message lists every such setting, with both values and what to do.
    """
    require_stream(stream)
    problems = [
        *_length(stream, sequence_length),
        *_vocabulary(stream, vocabulary),
        *_eod(stream, eod_id),
        *_tokenizer(stream, tokenizer_fingerprint),
    ]
    if global_batch is not None:
        problems += _batch(stream, global_batch, steps)
        problems += _sharding(stream, global_batch, sharding, microbatches, zigzag=zigzag)
    else:
        needing = {"sharding": sharding, "microbatches": microbatches, "steps": steps}
        problems += [
            Problem(name, "says nothing without global_batch; state that too")
            for name, value in needing.items()
            if value is not None
        ]
    if problems:
        raise SetupError(repr(stream), problems)


def _length(stream: Stream, length: int | None) -> list[Problem]:
    if length is None or length == stream.sequence_length:
        return []
    return [
        Problem(
            "sequence_length",
            f"the job has {length}, the rows of the stream have {stream.sequence_length}; open the stream with "
            f"sequence_length={length} (`gristmill index` builds its order), or set the model to "
            f"{stream.sequence_length}",
        )
    ]


def _vocabulary(stream: Stream, vocabulary: int | None) -> list[Problem]:
    if vocabulary is None:
        return []
    if stream.vocabulary is None:
        return [
            Problem(
                "vocabulary",
                f"the job has {vocabulary}, but nothing says how large the ids of the data are; open them with "
                "vocabulary=, the tokenizer's number of ids, so that rows with a larger one are refused",
            )
        ]
    if vocabulary < stream.vocabulary:
        return [
            Problem(
                "vocabulary",
                f"the job has embeddings for {vocabulary} ids, but the data hold ids up to {stream.vocabulary - 1}, "
                f"which a device may clamp in silence; give the model at least {stream.vocabulary}",
            )
        ]
    return []


def _eod(stream: Stream, eod_id: int | None) -> list[Problem]:
    if eod_id is None or eod_id == stream.eod_id:
        return []
    return [
        Problem(
            "eod_id",
            f"the job has {eod_id}, but documents of the data end with {stream.eod_id}; take the stream's eod_id, or "
            "the corpus of the job's tokenizer",
        )
    ]


def _tokenizer(stream: Stream, fingerprint: str | None) -> list[Problem]:
    if fingerprint is None:
        return []
    known: str | None = getattr(stream, "tokenizer_fingerprint", None)
    if known is None:
        problem = (
            f"the job has {short(fingerprint)}, but the data do not say which tokenizer made them; leave it out, and "
            "compare vocabulary and eod_id"
        )
    elif len(fingerprint) < _FEWEST_DIGITS:
        problem = f"{fingerprint!r} is too short to tell tokenizers apart; give {_FEWEST_DIGITS} digits or more"
    elif known.startswith(fingerprint.lower()):
        return []
    else:
        problem = (
            f"the job has {short(fingerprint)}, but the data were made with {short(known)}; use the corpus's own "
            "tokenizer/tokenizer.json, or prepare the corpus with the job's"
        )
    return [Problem("tokenizer_fingerprint", problem)]


def _batch(stream: Stream, batch: int, steps: int | None) -> list[Problem]:
    rows = len(stream)
    if batch < 1:
        return [Problem("global_batch", f"must be at least 1, not {batch}")]
    if batch > rows:
        return [
            Problem(
                "global_batch",
                f"{batch} is more than the {rows} rows of the stream, so there would be no batch at all; lower it or "
                "build an index set with more samples",
            )
        ]
    if steps is not None and steps * batch > rows:
        return [
            Problem(
                "steps",
                f"{steps} steps of {batch} rows are {steps * batch} rows, but the stream has {rows}, enough for "
                f"{rows // batch} steps; lower steps, or open or build the stream with samples={steps * batch}",
            )
        ]
    return []


def _sharding(
    stream: Stream, batch: int, sharding: "Sharding | None", microbatches: int | None, *, zigzag: bool
) -> list[Problem]:
    if sharding is None or batch < 1:
        return []
    from gristmill.runtime.delivery import plan_batch

    try:
        plan_batch(sharding, batch, stream.sequence_length, microbatches=microbatches, zigzag=zigzag)
    except SettingsError as error:
        return [Problem("sharding", str(error))]
    return []
