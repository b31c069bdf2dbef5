"""Times Megatron's GPTDataset behind torch's DataLoader; run by `bench_gather.py`.

    PYTHON megatron_loader.py PREFIX LENGTH BATCH CACHE

Needs an interpreter with megatron-core and torch. Each line on standard input is a number of batches; the answer is a
line with the CPU-seconds that they took, of all threads.
"""

import json
import sys
import time
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

warnings.filterwarnings("ignore")


def batches(prefix: str, length: int, batch: int, cache: str) -> Iterator[Any]:
    """Batches of one pass after another, all options of DataLoader but the batch size left alone."""
    import torch
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=length,
        blend=([prefix], None),
        split="1,0,0",
        path_to_cache=cache,
        tokenizer=SimpleNamespace(eod=0, vocab_size=50_000, unique_identifiers={}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    data = IndexedDataset(prefix, multimodal=False, mmap=True)
    indices = np.arange(data.sequence_lengths.shape[0], dtype=np.int32)
    dataset = GPTDataset(data, prefix, indices, None, Split.train, config)
    while True:
        yield from torch.utils.data.DataLoader(dataset, batch_size=batch, drop_last=True)


def main() -> None:
    """Answers until standard input ends."""
    prefix, length, batch, cache = sys.argv[1:]
    import torch

    torch.set_num_threads(1)
    made = batches(prefix, int(length), int(batch), cache)
    next(made)
    for line in sys.stdin:
        began = time.process_time()
        for _ in range(int(line)):
            next(made)
        print(json.dumps(time.process_time() - began), flush=True)


if __name__ == "__main__":
    main()
