"""Rows, fields and hosts against the samples of megatron-core's own data sets, and its caches used as they are.

Needs the extra `parity`. 60 cases run by default; a long run takes the number from the environment:

    GRISTMILL_PARITY_CASES=2500 python -m pytest tests/parity/test_parity_streams.py
"""

import dataclasses
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.formats.errors import GristmillError
from gristmill.formats.indexed_writer import write_indexed
from gristmill.runtime.fields import FieldOptions, make_fields
from gristmill.runtime.megatron import open_megatron
from gristmill.runtime.streams import MegatronStream, PaddedMegatronStream

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # Megatron's own imports warn

CASES = int(os.environ.get("GRISTMILL_PARITY_CASES", "60"))
BATCHES = 4
FIRST_SEED = 50_000
ROWS_COMPARED = 100  # of a split; the indices of all are compared elsewhere
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


FLAGS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
Flags = dict[str, bool]


def run_megatron(case: Any, prefixes: list[str], cache: Path, flags: Flags) -> list[Any]:
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
        drop_last_partial_validation_sequence=not case.keep_last_partial,
        **flags,
    )
    return list(BlendedMegatronDatasetBuilder(GPTDataset, list(case.samples), lambda: True, config).build())


def samples_of(dataset: Any, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Everything that Megatron gives of some samples."""
    found: dict[str, list[NDArray[Any]]] = {}
    for number in rows.tolist():
        for member in getattr(dataset, "datasets", [dataset]):
            member.masks_and_position_ids_are_cached = False  # else a padded sample's loss mask is that of all later
        sample = dataset[number]
        for name in ("tokens", "labels", "loss_mask", "position_ids", "attention_mask"):
            found.setdefault(name, []).append(sample[name].numpy())
    return {name: np.array(arrays) for name, arrays in found.items()}


def compare_fields(
    stream: MegatronStream, rows: NDArray[np.int64], expected: dict[str, NDArray[Any]], flags: Flags, where: str
) -> None:
    """Tokens, labels, loss mask, position ids and who attends to whom, as far as a row holds data."""
    valid = stream.valid_length(rows) if isinstance(stream, PaddedMegatronStream) else None
    fields = make_fields(stream.read(rows), EOD, _options(flags), valid_length=valid)
    length = stream.sequence_length
    used = np.arange(length) < (np.full(len(rows), length) if valid is None else valid)[:, None]
    for name, theirs in (("inputs", "tokens"), ("targets", "labels"), ("inputs_position", "position_ids")):
        np.testing.assert_array_equal(fields[name][used], expected[theirs][used], err_msg=f"{where}, {theirs}")
    np.testing.assert_array_equal(fields["targets_segmentation"], expected["loss_mask"], err_msg=f"{where}, loss mask")
    segments = fields["inputs_segmentation"]
    attends = (segments[:, :, None] == segments[:, None, :]) & np.tri(length, dtype=bool)
    pairs = used[:, :, None] & used[:, None, :]
    np.testing.assert_array_equal(attends[pairs], ~expected["attention_mask"][:, 0][pairs], err_msg=f"{where}, mask")


def _options(flags: Flags) -> FieldOptions:
    return FieldOptions(
        reset_position_ids=flags["reset_position_ids"],
        reset_attention_mask=flags["reset_attention_mask"],
        eod_mask_loss=flags["eod_mask_loss"],
    )


def rows_of(expected: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """The samples as rows of L + 1 tokens."""
    return np.append(expected["tokens"], expected["labels"][:, -1:], axis=1)


def union_of_hosts(hosts: int, opens: Callable[[int], MegatronStream]) -> NDArray[np.integer[Any]]:
    """Rows in the order of batches and hosts, each host reading its own part of every batch from its own stream."""
    streams = [opens(host) for host in range(hosts)]
    assert len({stream.fingerprint for stream in streams}) == 1
    parts = []
    for first in range(0, len(streams[0]) - 2 * hosts + 1, 2 * hosts):
        parts += [stream.read(np.arange(first + 2 * host, first + 2 * host + 2)) for host, stream in enumerate(streams)]
    return np.concatenate([streams[0].read([]), *parts])


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
        drop_last_partial=split != "valid" or not case.keep_last_partial,
        **options,
    )


def open_host(case: Any, prefixes: list[str], split: str, folder: Path, host: int) -> MegatronStream:
    """The stream as a host with a disk of its own opens it."""
    return open_case(case, prefixes, split, cache_dir=folder / f"host{host}", process_index=0)


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
        keep_last_partial=seed % 5 < 2,
    )


def built(case: Any, prefixes: list[str], folder: Path, flags: Flags) -> tuple[Any, list[Any]]:
    """The case as Megatron can run it, and its data sets.

    Where a member's validation split ends in an empty sequence, Megatron refuses to keep the last partial sample.
    """
    try:
        return case, run_megatron(case, prefixes, folder / "cache", flags)
    except AssertionError:
        assert case.keep_last_partial
        shutil.rmtree(folder / "cache")
        case = dataclasses.replace(case, keep_last_partial=False)
        return case, run_megatron(case, prefixes, folder / "cache", flags)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_rows_equal_megatrons_samples_and_its_caches_are_used(batch: int, oracle: ModuleType, tmp_path: Path) -> None:
    compared = padded = 0
    for seed in range(FIRST_SEED + batch, FIRST_SEED + CASES, BATCHES):
        random = np.random.default_rng(seed)
        case = case_of(oracle, seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        prefixes = [str(folder / f"source{place}") for place in range(len(case.lengths))]
        for prefix, lengths in zip(prefixes, case.lengths, strict=True):
            write(prefix, lengths, random, sentences=bool(random.random() < 0.5))
        flags = {name: bool(random.random() < 0.5) for name in FLAGS}
        case, datasets = built(case, prefixes, folder, flags)
        for split, dataset in zip(SPLITS, datasets, strict=True):
            if dataset is None:
                continue
            where = f"seed {seed}, {split}"
            stream = opened(case, prefixes, split)
            if isinstance(stream, str):
                assert re.search("would get none of the|holds no samples of this split|gives no sample", stream), where
                continue
            assert len(stream) <= len(dataset), where
            rows = np.arange(len(stream))
            if len(rows) > ROWS_COMPARED:
                rows = np.sort(random.choice(rows, ROWS_COMPARED, replace=False))
            samples = samples_of(dataset, rows)
            expected = rows_of(samples)
            compare_fields(stream, rows, samples, flags, where)
            padded += isinstance(stream, PaddedMegatronStream) and bool(
                (stream.valid_length(np.arange(len(stream))) < case.sequence_length).any()
            )
            np.testing.assert_array_equal(stream.read(rows), expected, err_msg=where)
            reused = open_case(case, prefixes, split, cache_dir=folder / "cache", foreign_caches="require")
            assert reused.fingerprint == stream.fingerprint
            np.testing.assert_array_equal(reused.read(rows), expected, err_msg=where)
            compared += 1
            if split == "train":
                hosts = int(random.integers(1, 5))
                union = union_of_hosts(hosts, partial(open_host, case, prefixes, split, folder))
                order = stream.read(np.arange(len(stream) // (2 * hosts) * 2 * hosts))
                np.testing.assert_array_equal(union, order, err_msg=where)
        assert not list((folder / "cache").glob("*.json")), "Megatron's indices were used, so none were written"
    assert compared > CASES // BATCHES // 2
    assert padded > 0 or CASES < 60


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
    longer = oracle.Case(**{**_fields(case), "samples": (400, 1, 1)})
    train = run_megatron(longer, prefixes, tmp_path / "cache", dict.fromkeys(FLAGS, False))[0]
    shorter = oracle.Case(**{**_fields(case), "samples": (390, None, None)})
    stream = open_case(shorter, prefixes, "train", cache_dir=tmp_path / "cache", foreign_caches="require")
    assert len(stream) == 390
    np.testing.assert_array_equal(stream.read(np.arange(390)), rows_of(samples_of(train, np.arange(390))))


def _fields(case: Any) -> dict[str, Any]:
    return {name: getattr(case, name) for name in case.__dataclass_fields__}
