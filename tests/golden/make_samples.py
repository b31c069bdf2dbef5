"""Makes `megatron_samples.json`: digests of the samples that megatron-core 0.16.1 gives for a pair made by others.

    python tests/golden/make_samples.py PREFIX

`PREFIX` is that of the pair; the digest of its tokens is recorded, so that the right one can be told. A digest covers
the rows of L + 1 tokens as little-endian int32, one row after the other, in the order of the samples.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

CASES: list[dict[str, Any]] = [
    {"sequence_length": 1024, "seed": 1234, "split": "1", "weights": None, "samples": [None, None, None]},
    {"sequence_length": 1024, "seed": 1234, "split": "969, 30, 1", "weights": None, "samples": [1500, 20, 5]},
    {"sequence_length": 512, "seed": 7, "split": "98,1,1", "weights": [0.7, 0.3], "samples": [700, 30, 30]},
    {"sequence_length": 2048, "seed": 0, "split": "1,1", "weights": [1.0], "samples": [400, 400, 1]},
]
"""For each call of Megatron's builder its settings; with two weights the pair is blended with itself."""


class _Tokenizer:
    vocab_size = 5000
    eod = 4999
    unique_identifiers = {"class": "none"}  # noqa: RUF012 - Megatron reads it as an attribute


def run(case: dict[str, Any], prefix: str) -> list[Any]:
    """Megatron's data sets of the three splits."""
    import torch
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    torch.distributed.get_rank = lambda *_, **__: 0  # asked for although nothing is distributed
    weights = case["weights"]
    with tempfile.TemporaryDirectory() as folder:
        config = GPTDatasetConfig(
            random_seed=case["seed"],
            sequence_length=case["sequence_length"],
            blend=([prefix] * len(weights or [1.0]), weights),
            split=case["split"],
            path_to_cache=folder,
            num_dataset_builder_threads=1,
            tokenizer=_Tokenizer(),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
        )
        datasets = BlendedMegatronDatasetBuilder(GPTDataset, list(case["samples"]), lambda: True, config).build()
        return [
            None if dataset is None else _digest(dataset, wanted) for dataset, wanted in zip(datasets, case["samples"])
        ]


def _digest(dataset: Any, wanted: int | None) -> dict[str, Any]:
    count = len(dataset) if wanted is None else wanted
    state = hashlib.sha256()
    for number in range(count):
        sample = dataset[number]
        row = np.append(sample["tokens"].numpy(), sample["labels"].numpy()[-1])
        state.update(row.astype("<i4").tobytes())
    return {"rows": count, "sha256": state.hexdigest()}


def main() -> None:
    """Writes the file beside this one."""
    (prefix,) = sys.argv[1:]
    tokens = hashlib.sha256(Path(f"{prefix}.bin").read_bytes()).hexdigest()
    cases = [case | {"found": run(case, prefix)} for case in CASES]
    path = Path(__file__).with_name("megatron_samples.json")
    path.write_text(json.dumps({"tokens_sha256": tokens, "cases": cases}, indent=1) + "\n")
    print(f"{path.name}: {len(cases)} cases")


if __name__ == "__main__":
    main()
