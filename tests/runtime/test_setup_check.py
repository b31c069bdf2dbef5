"""Comparing a training job with its data: nothing to say where all fits, everything at once where it does not."""

from typing import Any

import jax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gristmill.formats.errors import SetupError
from gristmill.runtime import MegatronStream, TokenBatches, check_training_setup, open_corpus, open_megatron


@pytest.fixture(scope="module")
def stream(blended_corpus: str) -> MegatronStream:
    """200 rows of 16 tokens, 500 ids, EOD 1, a tokenizer of sixty-four zeros."""
    return open_corpus(blended_corpus).stream()


@pytest.fixture(scope="module")
def sharding() -> NamedSharding:
    return NamedSharding(jax.make_mesh((8,), ("data",)), P("data"))


FITTING: dict[str, Any] = {
    "sequence_length": 16,
    "vocabulary": 500,
    "eod_id": 1,
    "tokenizer_fingerprint": "0" * 12,
    "global_batch": 8,
    "steps": 25,
}


def test_what_fits(stream: MegatronStream, sharding: NamedSharding) -> None:
    check_training_setup(stream)
    check_training_setup(stream, **FITTING, sharding=sharding)
    check_training_setup(stream, **{**FITTING, "vocabulary": 512, "tokenizer_fingerprint": "0" * 64})
    check_training_setup(stream, **{**FITTING, "global_batch": 16, "steps": 12}, sharding=sharding, microbatches=2)
    assert len(list(TokenBatches(stream, 8, sharding))) == FITTING["steps"], "and no more than so many"


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        (
            {"sequence_length": 32},
            "sequence_length",
            r"the job has 32, the rows of the stream have 16; open the stream",
        ),
        ({"vocabulary": 499}, "vocabulary", r"embeddings for 499 ids, but the data hold ids up to 499.*at least 500"),
        ({"eod_id": 0}, "eod_id", r"the job has 0, but documents of the data end with 1; take the stream's eod_id"),
        (
            {"tokenizer_fingerprint": "a" * 64},
            "tokenizer_fingerprint",
            r"has a{12}, but the data were made with 0{12};",
        ),
        ({"tokenizer_fingerprint": "0" * 6}, "tokenizer_fingerprint", r"'000000' is too short to tell .* 7 digits or"),
        ({"global_batch": 0}, "global_batch", r"must be at least 1, not 0"),
        (
            {"global_batch": 208, "steps": None},
            "global_batch",
            r"208 is more than the 200 rows of the stream, so there would be no",
        ),
        (
            {"steps": 26},
            "steps",
            r"26 steps of 8 rows are 208 rows, but the stream has 200, enough for 25 steps; lower",
        ),
        (
            {"global_batch": 12, "steps": 1},
            "sharding",
            r"global_batch 12 with sequence_length 16 does not fit the shar",
        ),
        ({"microbatches": 3}, "sharding", r"global_batch 8 cannot be cut into 3 microbatches"),
        ({"zigzag": True, "microbatches": 2}, "sharding", r"global_batch 8 in 2 microbatches with sequence_length 16"),
        ({"global_batch": None, "steps": None}, "sharding", r"says nothing without global_batch; state that too"),
    ],
)
def test_what_does_not_fit(
    stream: MegatronStream, sharding: NamedSharding, changes: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(
        SetupError, match=rf"^MegatronStream\('tiny'.*\): 1 setting does not fit\n  - {key}: .*{message}"
    ):
        check_training_setup(stream, **{**FITTING, "sharding": sharding, **changes})


def test_all_of_it_is_told_at_once(stream: MegatronStream, sharding: NamedSharding) -> None:
    wrong: dict[str, Any] = {"sequence_length": 8, "vocabulary": 4, "eod_id": 2, "tokenizer_fingerprint": "b" * 64}
    with pytest.raises(SetupError, match="6 settings do not fit") as caught:
        check_training_setup(stream, **wrong, global_batch=12, steps=50, sharding=sharding)
    assert [problem.key for problem in caught.value.problems] == [*wrong, "steps", "sharding"]
    with pytest.raises(SetupError, match="2 settings do not fit") as caught:
        check_training_setup(stream, microbatches=2, steps=1)
    assert [problem.key for problem in caught.value.problems] == ["microbatches", "steps"]


def test_data_that_do_not_say(blended_corpus: str) -> None:
    stream = open_megatron(f"{blended_corpus}/tokens/web", sequence_length=16, eod_id=1)
    with pytest.raises(SetupError) as caught:
        check_training_setup(stream, vocabulary=500, tokenizer_fingerprint="0" * 64)
    first, second = map(str, caught.value.problems)
    assert first.startswith("vocabulary: the job has 500, but nothing says how large the ids of the data are; open")
    assert second.startswith("tokenizer_fingerprint: the job has 000000000000, but the data do not say which tokenizer")
    known = open_megatron(f"{blended_corpus}/tokens/web", sequence_length=16, eod_id=1, vocabulary=500)
    check_training_setup(known, vocabulary=500, eod_id=1)
