"""Loops to compare with: KIND INPUT.jsonl TOKENIZER.json OUTPUT, KIND being flat, batch or megatron.

`flat` is the least that reading, encoding and writing can cost; `batch` uses the reference library's cheapest call;
`megatron` takes the steps of Megatron's preprocess_data: lines go to a pool of processes that parse and encode one at a
time, lists come back, and the wheel's own IndexedDatasetBuilder writes them.
"""

import itertools
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from typing import Any

EOD = "<|endoftext|>"
DOCUMENTS = 128
TOKENIZER: Any = None  # of this process, see `start`


def batches(path: str) -> Iterator[list[str]]:
    """Lists of texts."""
    import orjson

    with open(path, "rb") as file:
        while lines := list(itertools.islice(file, DOCUMENTS)):
            yield [orjson.loads(line)["text"] for line in lines]


def flat(source: str, vocabulary: str, output: str) -> None:
    """orjson, fastokens' flat call, NumPy, one file."""
    import fastokens
    import numpy as np

    tokenizer = fastokens.Tokenizer.from_file(vocabulary)
    eod = tokenizer.token_to_id(EOD)
    with open(output, "wb") as file:
        for texts in batches(source):
            ids, offsets = tokenizer.encode_batch_flat(texts, split_special_tokens=True)
            ends = np.frombuffer(offsets, np.uint64)[1:].astype(np.int64)
            file.write(np.insert(np.frombuffer(ids, np.uint32), ends, eod).astype(np.uint16).tobytes())


def batch(source: str, vocabulary: str, output: str) -> None:
    """orjson, the reference library's fast batch call, one file."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(vocabulary)
    tokenizer.encode_special_tokens = True
    eod = tokenizer.token_to_id(EOD)
    with open(output, "wb") as file:
        for texts in batches(source):
            for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
                file.write(np.array([*encoding.ids, eod], np.uint16).tobytes())


def start(vocabulary: str) -> None:
    """Loads the tokenizer of a pool process."""
    global TOKENIZER
    from tokenizers import Tokenizer

    TOKENIZER = Tokenizer.from_file(vocabulary)


def encode(line: str) -> list[int]:
    """One line to a list of ids."""
    ids: list[int] = TOKENIZER.encode(json.loads(line)["text"], add_special_tokens=False).ids
    return [*ids, TOKENIZER.token_to_id(EOD)] if ids else ids


def megatron(source: str, vocabulary: str, output: str) -> None:
    """A pool of two processes and Megatron's builder."""
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    start(vocabulary)
    builder = IndexedDatasetBuilder(f"{output}.bin", dtype=DType.optimal_dtype(TOKENIZER.get_vocab_size()))
    with open(source, encoding="utf-8") as file, multiprocessing.Pool(2, start, (vocabulary,)) as pool:
        for ids in pool.imap(encode, file, 32):
            builder.add_document(ids, [len(ids)])
        pool.close()
        pool.join()
    builder.finalize(f"{output}.idx")


if __name__ == "__main__":
    {"flat": flat, "batch": batch, "megatron": megatron}[sys.argv[1]](*map(os.fspath, sys.argv[2:5]))
