"""Fields in Megatron's naming against the samples of megatron-core's own data sets, under every setting of its masks.

Needs the extra `parity`. 40 cases run by default; a long run takes the number from the environment:

    GRISTMILL_PARITY_CASES=2000 python -m pytest tests/parity/test_parity_fields.py
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.indexed_writer import write_indexed
from gristmill.runtime.fields import FieldOptions
from gristmill.runtime.megatron import open_megatron
from gristmill.runtime.naming import make_megatron_fields
from gristmill.runtime.presets import PRESETS
from gristmill.runtime.raw_rows import PaddedStream
from gristmill.runtime.source import StreamSource

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # Megatron's own imports warn

CASES = int(os.environ.get("GRISTMILL_PARITY_CASES", "40"))
FIRST_SEED = 90_000
EOD, PAD, VOCABULARY = 7, 5, 12


@pytest.fixture(scope="module", autouse=True)
def megatron() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'gristmill[parity]'")
    pytest.importorskip("megatron.core", reason="megatron-core is not installed: pip install 'gristmill[parity]'")


class _Tokenizer:
    vocab_size = VOCABULARY
    eod = EOD
    unique_identifiers: dict[str, str] = {"class": "none"}  # noqa: RUF012 - Megatron reads it as an attribute

    def __init__(self, pad: int | None) -> None:
        if pad is not None:
            self.pad = pad
            self.special_tokens_dict = {"pad_token": pad, "eod": EOD}


def write(prefix: str, random: np.random.Generator) -> None:
    """Writes documents of random tokens, EOD and PAD anywhere among them; none is empty.

    Megatron refuses to keep the last partial sample of data whose order ends in an empty sequence.
    """
    lengths = random.integers(1, 20, random.integers(5, 40))
    lengths[:2] = 20
    dtype = np.dtype(str(random.choice(["uint16", "int32"])))
    with write_indexed(prefix, dtype) as writer:
        for length in lengths.tolist():
            tokens = random.integers(0, VOCABULARY, length)
            writer.add(tokens.astype(dtype), np.array([length]))


def run_megatron(prefix: str, options: FieldOptions, pad: int | None, length: int, seed: int, cache: Path) -> Any:
    """Megatron's validation data set of one pass, its last partial sample kept."""
    import torch
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    torch.distributed.get_rank = lambda *_, **__: 0  # asked for although nothing is distributed
    config = GPTDatasetConfig(
        random_seed=seed,
        sequence_length=length,
        blend=([prefix], None),
        split="0,1,0",
        drop_last_partial_validation_sequence=False,
        path_to_cache=str(cache),
        num_dataset_builder_threads=1,
        tokenizer=_Tokenizer(pad),
        reset_position_ids=options.reset_position_ids,
        reset_attention_mask=options.reset_attention_mask,
        eod_mask_loss=options.eod_mask_loss,
        create_attention_mask=True,
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, [None, None, None], lambda: True, config).build()[1]


def test_fields_equal_megatrons(tmp_path: Path) -> None:
    compared = short = 0
    for seed in range(FIRST_SEED, FIRST_SEED + CASES):
        random = np.random.default_rng(seed)
        prefix = str(tmp_path / str(seed))
        write(prefix, random)
        flags = [bool(bit) for bit in random.integers(0, 2, 3)]
        options = FieldOptions(reset_attention_mask=flags[0], reset_position_ids=flags[1], eod_mask_loss=flags[2])
        pad = PAD if random.random() < 0.5 else None
        length = int(random.integers(2, 24))
        data = run_megatron(prefix, options, pad, length, seed, tmp_path / f"cache{seed}")
        stream = open_megatron(
            prefix,
            sequence_length=length,
            eod_id=EOD,
            seed=seed,
            split="valid",
            splits="0,1,0",
            drop_last_partial=False,
        )
        assert isinstance(stream, PaddedStream)
        assert len(stream) == len(data)
        rows = np.arange(len(stream))
        valid = stream.valid_length(rows)
        short += int((valid < length).sum())
        made = make_megatron_fields(
            stream.read(rows), EOD, options, pad_id=pad, attention_mask=True, valid_length=valid
        )
        source = StreamSource(stream, options, naming="megatron")
        for number in range(len(data)):
            data.masks_and_position_ids_are_cached = False  # or one sample's masks are given for all
            expected = {name: value.numpy() for name, value in data[number].items()}
            assert made.keys() == expected.keys()
            for name, value in expected.items():
                assert made[name].dtype == value.dtype, name
                np.testing.assert_array_equal(made[name][number], value, err_msg=f"seed {seed}, row {number}, {name}")
            if pad is None:
                for name, value in source[number].items():
                    np.testing.assert_array_equal(value, expected[name])
            compared += 1
    assert compared > 4 * CASES
    assert short > CASES // 2


def test_the_preset_is_what_megatron_does_when_nothing_is_set() -> None:
    """The flags of its command line are off unless given."""
    import dataclasses

    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig

    for field in dataclasses.fields(GPTDatasetConfig):
        if field.name in {"reset_position_ids", "reset_attention_mask", "eod_mask_loss"}:
            assert not field.default, field.name
            assert getattr(PRESETS["megatron"], field.name) is False
