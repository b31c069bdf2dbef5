"""Makes `megatron_fields.json`: what megatron-core 0.16.1 makes of samples, under every setting of its masks.

    python tests/golden/make_fields.py

A case is a small pair of random documents, written by Megatron's own builder, with EOD behind some of them and in the
middle of others, and ids that pad. The rows of L + 1 tokens are recorded beside what the data set returns for them.
"""

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

EOD, PAD, VOCABULARY = 3, 4, 12
LENGTHS = {"full": 16, "partial": 11}


class _Tokenizer:
    vocab_size = VOCABULARY
    eod = EOD
    unique_identifiers = {"class": "none"}  # noqa: RUF012 - Megatron reads it as an attribute

    def __init__(self, pad: int | None) -> None:
        if pad is not None:
            self.pad = pad
            self.special_tokens_dict = {"pad_token": pad, "eod": EOD}


def cases() -> list[dict[str, Any]]:
    """The settings: three flags, with and without an id that pads, whole samples and a last one that is short."""
    return [
        {
            "reset_attention_mask": segments,
            "reset_position_ids": positions,
            "eod_mask_loss": loss,
            "pad_id": pad,
            "sequence_length": LENGTHS[kind],
            "keep_partial": kind == "partial",
        }
        for segments, positions, loss, pad, kind in itertools.product(
            (False, True), (False, True), (False, True), (None, PAD), LENGTHS
        )
    ]


def write(prefix: str, random: np.random.Generator) -> None:
    """Writes 14 documents with Megatron's builder."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
    for length in random.integers(1, 16, 14):
        document = random.integers(0, VOCABULARY, length)
        if random.random() < 0.6:
            document[-1] = EOD
        builder.add_document(torch.tensor(document), [int(length)])
    builder.finalize(f"{prefix}.idx")


def run(case: dict[str, Any], prefix: str, cache: str) -> dict[str, Any]:
    """The samples of a data set: rows, valid lengths, and what Megatron gives for them."""
    import torch
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    torch.distributed.get_rank = lambda *_, **__: 0  # asked for although nothing is distributed
    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=case["sequence_length"],
        blend=([prefix], None),
        split="0,1,0",
        path_to_cache=cache,
        num_dataset_builder_threads=1,
        tokenizer=_Tokenizer(case["pad_id"]),
        reset_position_ids=case["reset_position_ids"],
        reset_attention_mask=case["reset_attention_mask"],
        eod_mask_loss=case["eod_mask_loss"],
        create_attention_mask=True,
        drop_last_partial_validation_sequence=not case["keep_partial"],
    )
    data = BlendedMegatronDatasetBuilder(GPTDataset, [None, None, None], lambda: True, config).build()[1]
    found: dict[str, Any] = {"rows": [], "valid_length": [], "tokens": [], "labels": [], "loss_mask": []}
    found |= {"position_ids": [], "attention_mask": []}
    dtypes = {}
    for number in range(len(data)):
        data.masks_and_position_ids_are_cached = False  # or the padding of one sample reaches the next
        text, _ = data._query_document_sample_shuffle_indices(number)
        real = _real_tokens(data, number)
        sample = data[number]
        found["rows"].append(text[:real].tolist() + [0] * (len(text) - real))
        found["valid_length"].append(real - 1)
        for name, value in sample.items():
            dtypes[name] = str(value.dtype).removeprefix("torch.")
            array = value.numpy()
            if name == "attention_mask":
                found[name].append(np.packbits(array[0]).tobytes().hex())
            else:
                found[name].append(array.astype(int).tolist())
    return found | {"dtypes": dtypes}


def _real_tokens(data: Any, number: int) -> int:
    """Tokens of a sample before it is padded."""
    place = int(data.shuffle_index[number])
    (first, skip), (last, stop) = data.sample_index[place].tolist(), data.sample_index[place + 1].tolist()
    if first == last:
        return int(stop - skip + 1)
    lengths = data.dataset.sequence_lengths[data.document_index[first : last + 1]].astype(int)
    return int(lengths[:-1].sum()) - int(skip) + int(stop) + 1


def main() -> None:
    """Writes the file beside this one."""
    random = np.random.default_rng(0)
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases()):
            prefix = f"{folder}/{number}"
            write(prefix, random)
            made.append(case | run(case, prefix, f"{folder}/cache{number}"))
    path = Path(__file__).with_name("megatron_fields.json")
    path.write_text(json.dumps({"eod_id": EOD, "cases": made}, separators=(",", ":")) + "\n")
    partial = sum(min(case["valid_length"]) < case["sequence_length"] for case in made)
    print(f"{path.name}: {len(made)} cases, {partial} with a padded sample, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
