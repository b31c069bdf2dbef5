"""Rows of `open_megatron` against the samples of megatron-core's own data sets, and its caches used as they are.

Needs the extra `parity`. 60 cases run by default; a long run takes the number from the environment:

    GRISTMILL_PARITY_CASES=2500 python -m pytest tests/parity/test_parity_streams.py
"""

import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.formats.errors import GristmillError
from gristmill.formats.indexed_writer import write_indexed
from gristmill.runtime.megatron import open_megatron
from gristmill.runtime.streams import MegatronStream

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # Megatron's own imports warn

CASES = int(os.environ.get("GRISTMILL_PARITY_CASES", "60"))
BATCHES = 4
FIRST_SEED = 50_000
EOD = 999
SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module", autouse=True)
def megatron() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'gristmill[parity]'")
    pytest.importorskip("megatron.core", reason="megatron-core is not installed: pip install 'gristmill[parity]'")


class _Tokenizer:
    vocab_size = 1000
    eod = EOD
    unique_identifiers: dict[str, str] = {"class": "none"}  # noqa: RUF012 - Megatron reads it as an attribute


def write(prefix: str, lengths: tuple[int, ...], random: np.random.Generator, *, sentences: bool) -> None:
    """Writes sequences of random tokens, alone or in documents of one to three; a document's last token is the EOD."""
    dtype = str(random.choice(["uint16", "int32"]))
    start = 0
    with write_indexed(prefix, np.dtype(dtype)) as writer:
        while start < len(lengths):
            some = lengths[start : start + (int(random.integers(1, 4)) if sentences else 1)]
            tokens = random.integers(0, 900, sum(some))
            tokens[-1:] = EOD
            writer.add(tokens.astype(dtype), np.array(some, np.int64), np.array([len(some)]))
            start += len(some)


def run_megatron(case: Any, prefixes: list[str], cache: Path) -> list[Any]:
    """Megatron's data sets of the three splits."""
    import torch
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    torch.distributed.get_rank = lambda *_, **__: 0  # asked for although nothing is distributed
    config = GPTDatasetConfig(
        random_seed=case.seed,
        sequence_length=case.sequence_length,
        blend=(prefixes, None if case.weights is None else list(case.weights)),
        split=case.split,
        path_to_cache=str(cache),
        num_dataset_builder_threads=1,
        tokenizer=_Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    return list(BlendedMegatronDatasetBuilder(GPTDataset, list(case.samples), lambda: True, config).build())


def rows_of(dataset: Any, count: int) -> NDArray[np.int64]:
    """The first samples as rows of L + 1 tokens."""
    rows = []
    for number in range(count):
        sample = dataset[number]
        rows.append(np.append(sample["tokens"].numpy(), sample["labels"].numpy()[-1]))
    return np.array(rows)


def open_case(case: Any, prefixes: list[str], split: str, **options: Any) -> MegatronStream:
    weights = case.weights or (None,) * len(prefixes)
    parts = [prefix if weight is None else f"{prefix},{weight!r}" for prefix, weight in zip(prefixes, weights)]
    return open_megatron(
        ";".join(parts),
        sequence_length=case.sequence_length,
        eod_id=EOD,
        seed=case.seed,
        samples=case.samples[SPLITS.index(split)],
        split=split,
        splits=case.split,
        **options,
    )


def opened(case: Any, prefixes: list[str], split: str) -> MegatronStream | str:
    """The stream, or the message where Gristmill refuses what Megatron lets pass."""
    try:
        return open_case(case, prefixes, split)
    except GristmillError as error:
        return str(error)


def case_of(oracle: ModuleType, seed: int) -> Any:
    case = oracle.random_case(seed)
    weights = case.weights
    if len(case.lengths) == 1 and seed % 3 == 0 and None not in case.samples:
        weights = (2.0,)  # a blend of one
    return oracle.Case(
        lengths=case.lengths,
        sequence_length=case.sequence_length,
        seed=case.seed,
        split=case.split,
        weights=weights,
        samples=case.samples,
    )


@pytest.mark.parametrize("batch", range(BATCHES))
def test_rows_equal_megatrons_samples_and_its_caches_are_used(batch: int, oracle: ModuleType, tmp_path: Path) -> None:
    compared = 0
    for seed in range(FIRST_SEED + batch, FIRST_SEED + CASES, BATCHES):
        random = np.random.default_rng(seed)
        case = case_of(oracle, seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        prefixes = [str(folder / f"source{place}") for place in range(len(case.lengths))]
        for prefix, lengths in zip(prefixes, case.lengths, strict=True):
            write(prefix, lengths, random, sentences=bool(random.random() < 0.5))
        datasets = run_megatron(case, prefixes, folder / "cache")
        for split, dataset in zip(SPLITS, datasets, strict=True):
            if dataset is None:
                continue
            where = f"seed {seed}, {split}"
            stream = opened(case, prefixes, split)
            if isinstance(stream, str):
                assert re.search("would get none of the|holds no samples of this split|gives no sample", stream), where
                continue
            assert len(stream) <= len(dataset), where
            expected = rows_of(dataset, len(stream))
            np.testing.assert_array_equal(stream.read(np.arange(len(stream))), expected, err_msg=where)
            reused = open_case(case, prefixes, split, cache_dir=folder / "cache", foreign_caches="require")
            assert reused.fingerprint == stream.fingerprint
            np.testing.assert_array_equal(reused.read(np.arange(len(reused))), expected, err_msg=where)
            compared += 1
        assert not list((folder / "cache").glob("*.json")), "Megatron's indices were used, so none were written"
    assert compared > CASES // BATCHES // 2


def test_a_longer_blend_of_megatrons_serves_a_shorter_request(oracle: ModuleType, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    case = oracle.Case(
        lengths=((40,) * 90, (30,) * 90),
        sequence_length=8,
        seed=3,
        split="1",
        weights=(0.3, 0.7),
        samples=(400, None, None),
    )
    prefixes = [str(tmp_path / name) for name in ("a", "b")]
    for prefix, lengths in zip(prefixes, case.lengths, strict=True):
        write(prefix, lengths, random, sentences=False)
    train = run_megatron(oracle.Case(**{**_fields(case), "samples": (400, 1, 1)}), prefixes, tmp_path / "cache")[0]
    shorter = oracle.Case(**{**_fields(case), "samples": (390, None, None)})
    stream = open_case(shorter, prefixes, "train", cache_dir=tmp_path / "cache", foreign_caches="require")
    assert len(stream) == 390
    np.testing.assert_array_equal(stream.read(np.arange(390)), rows_of(train, 390))


def _fields(case: Any) -> dict[str, Any]:
    return {name: getattr(case, name) for name in case.__dataclass_fields__}
