"""The encoder of a run, loaded once per process and shared by its threads.

Loading a tokenizer takes a tenth of a second and more, so items never do; what they get has been proved by the
launcher, and a worker in which it is another is refused.
"""

import threading

from gristmill.formats.errors import CorpusError
from gristmill.formats.fingerprint import short
from gristmill.pipelines.job import Job
from gristmill.tokenize.encode import Encoder
from gristmill.tokenize.engine import load_engine
from gristmill.tokenize.resolved import load_resolved

__all__ = ["encoder_of", "prime_encoder", "TOKENIZER_FILES", "TOKENIZER_FOLDER"]

TOKENIZER_FOLDER = "tokenizer"
"""Folder of the tokenizer inside a corpus."""

TOKENIZER_FILES = (f"{TOKENIZER_FOLDER}/tokenizer.json", f"{TOKENIZER_FOLDER}/facts.json")
"""Paths of the tokenizer's files, relative to the corpus."""

_ENCODERS: dict[tuple[str, ...], Encoder] = {}
_LOADING = threading.Lock()


def _encoder_key(job: Job) -> tuple[str, ...]:
    return (job.tokenizer, job.engine, job.engine_version, job.recipe.tokenizer.control_text)


def prime_encoder(job: Job, encoder: Encoder) -> None:
    """Hands the launcher's encoder to `encoder_of`, so that items done in the same process need not load it again."""
    with _LOADING:
        _ENCODERS.clear()
        _ENCODERS[_encoder_key(job)] = encoder


def encoder_of(job: Job) -> Encoder:
    """The job's encoder, loaded once per process and shared by its threads.

    Raises:
        CorpusError: the corpus holds another tokenizer than the run was planned with.
        TokenizerError: the engine is missing here, or of another version than the launcher proved.
    """
    key = _encoder_key(job)
    with _LOADING:
        if key not in _ENCODERS:
            folder = job.path(TOKENIZER_FOLDER)
            resolved = load_resolved(folder)
            if resolved.fingerprint != job.tokenizer:
                raise CorpusError(
                    f"{folder}: holds tokenizer {short(resolved.fingerprint)}, but the run was planned with "
                    f"{short(job.tokenizer)}; another run writes to the same output. Start again"
                )
            keep = job.recipe.tokenizer.control_text == "keep"
            engine = load_engine(resolved, job.engine, keep_control_tokens=keep, version=job.engine_version)
            _ENCODERS.clear()
            _ENCODERS[key] = Encoder.of(resolved, engine)
        return _ENCODERS[key]
