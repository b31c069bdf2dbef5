"""Makes `megatron_indexed.json` with megatron-core: `.bin/.idx` pairs as its own builder writes them.

Run it in an environment that has the extra `parity` (megatron-core 0.16.1, torch, CPU only):

    python tests/golden/make_indexed.py

It writes the file beside itself: a list of cases, each with `name`, `dtype`, `multimodal`, and either the `documents`
(sequences of tokens) with the two files in hexadecimal, or, for the large ones, `sequences` (their number; see
`large`) with the files' SHA-256 digests. The parity tests call `write_with_megatron` themselves.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).with_name("megatron_indexed.json")
DTYPES = ("uint8", "int8", "int16", "int32", "int64", "uint16")
FLOATS = ("float32", "float64")
LARGE_SEQUENCES = 50_000

Documents = list[list[list[int]]]


def small() -> dict[str, Documents]:
    """Documents that each stand for one shape."""
    return {
        "one": [[[1, 2, 3]]],
        "three": [[[1, 2, 3, 0]], [[4, 0]], [[5, 6, 0]]],
        "many sequences": [[[1, 2, 3], [4, 5]], [[9]], [[7], [8], [6, 5, 4]]],
        "empty document": [[[1, 2, 3], [4, 5]], [], [[9]]],
        "empty first and last": [[], [[1]], []],
        "empty sequences": [[[], [1, 2], []], [[]], [[3]]],
        "nothing but empty": [[[]], [], [[], []]],
        "no document": [],
        "extreme ids": [[[0, 127]], [[127, 127, 0]]],
    }


def large(sequences: int, dtype: str) -> tuple[Any, Any, Any]:
    """Tokens, lengths and sequences per document of a large pair; all follow from the numbers of the entries."""
    lengths = (np.arange(sequences, dtype=np.int64) * 7919) % 13
    tokens = (np.arange(lengths.sum(), dtype=np.int64) * 2_654_435_761) % (np.iinfo(dtype).max + 1)
    ends = np.unique((np.arange(sequences, dtype=np.int64) * 5) // 3)
    bounds = np.append(ends[ends < sequences], sequences)
    return tokens.astype(dtype), lengths.astype(np.int32), np.diff(bounds)


def write_with_megatron(prefix: Path, documents: Any, dtype: str, *, multimodal: bool = False) -> None:
    """Writes a pair with Megatron's builder; each sequence is an array or a list."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.dtype(dtype).type, multimodal=multimodal)
    for document in documents:
        for sequence in document:
            builder.add_item(torch.from_numpy(np.asarray(sequence, dtype=np.int64)))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


def split_up(tokens: Any, lengths: Any, per_document: Any) -> list[list[Any]]:
    """Flat arrays as documents of sequences."""
    sequences = np.split(tokens, np.cumsum(lengths)[:-1]) if len(lengths) else []
    ends = np.cumsum(per_document)
    return [sequences[end - count : end] for end, count in zip(ends, per_document)]


def main() -> None:
    """Writes the golden file."""
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "pair"

        def files() -> tuple[bytes, bytes]:
            return prefix.with_suffix(".idx").read_bytes(), prefix.with_suffix(".bin").read_bytes()

        for dtype, multimodal in [(name, False) for name in (*DTYPES, *FLOATS)] + [("uint16", True)]:
            for name, documents in small().items():
                write_with_megatron(prefix, documents, dtype, multimodal=multimodal)
                idx, bin_ = files()
                case = {"name": name, "dtype": dtype, "multimodal": multimodal, "documents": documents}
                cases.append({**case, "idx": idx.hex(), "bin": bin_.hex()})
        for dtype in ("uint16", "int32"):
            write_with_megatron(prefix, split_up(*large(LARGE_SEQUENCES, dtype)), dtype)
            idx, bin_ = files()
            case = {"name": "large", "dtype": dtype, "multimodal": False, "sequences": LARGE_SEQUENCES}
            digests = {"idx_sha256": hashlib.sha256(idx).hexdigest(), "bin_sha256": hashlib.sha256(bin_).hexdigest()}
            cases.append({**case, **digests})
    lines = ",\n".join(json.dumps(case, sort_keys=True) for case in cases)
    GOLDEN.write_text(f"[\n{lines}\n]\n")
    print(f"{GOLDEN.name}: {len(cases)} cases, {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    main()
