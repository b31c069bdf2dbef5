"""Settings for another order of a corpus, and the order in memory."""

from pathlib import Path

import numpy as np
import pytest

from gristmill.formats.corpus_order import order_in_memory, settings_like
from gristmill.formats.errors import SettingsError
from gristmill.formats.index_build import build_index_set
from gristmill.formats.index_order import order_fingerprint
from gristmill.formats.index_plan import IndexSettings, SplitRequest
from gristmill.formats.manifest import read_manifest
from gristmill.formats.schedule import Phase

OWN = IndexSettings(
    sequence_length=1000,
    seed=5,
    splits="98,1,1",
    train=SplitRequest(samples=301),
    valid=SplitRequest(epochs=2),
    schedule=(Phase(100, (1.0, 2.0)),),
)


def test_as_many_tokens_as_before() -> None:
    found = settings_like(OWN, sequence_length=4000, seed=None, split="train", samples=None)
    assert (found.sequence_length, found.seed, found.splits) == (4000, 5, "98,1,1")
    assert (found.train.samples, found.valid.epochs, found.test) == (76, 2, SplitRequest())
    assert found.schedule == (Phase(25, (1.0, 2.0)),)
    assert settings_like(OWN, sequence_length=1000, seed=5, split="train", samples=None) == OWN


def test_as_many_samples_as_are_asked_for() -> None:
    assert settings_like(OWN, sequence_length=1000, seed=6, split="valid", samples=9).valid == SplitRequest(samples=9)
    found = settings_like(None, sequence_length=10, seed=None, split="train", samples=9)
    assert (found.seed, found.splits, found.train.samples) == (1234, "969,30,1", 9)
    with pytest.raises(SettingsError, match="sequence_length must be 1 to"):
        settings_like(OWN, sequence_length=0, seed=None, split="train", samples=9)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_the_order_in_memory_is_that_of_an_index_set(small_corpus: Path, tmp_path: Path, split: str) -> None:
    import shutil

    corpus = str(shutil.copytree(small_corpus, tmp_path / "corpus"))
    manifest = read_manifest(corpus)
    settings = IndexSettings(sequence_length=8, seed=3, splits="8,1,1", train=SplitRequest(samples=90))
    order = order_in_memory(corpus, manifest, settings, split)
    built = build_index_set(corpus, manifest, settings)
    assert order_fingerprint(order.index_set, split) == order_fingerprint(built, split)
    assert order.index_set.order(split).samples == built.order(split).samples
    for member in order.members:
        stored = built.open_member(split, member.report.source)
        for index in ("document_index", "sample_index", "shuffle_index"):
            np.testing.assert_array_equal(getattr(member.indices, index), getattr(stored, index))
    blend = built.open_blend(split)
    assert (blend is None) == (order.blend is None)
    if blend is not None and order.blend is not None:
        np.testing.assert_array_equal(order.blend.dataset_index, blend.dataset_index)
