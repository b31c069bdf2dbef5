"""Fixtures that the tests of the formats share."""

import dataclasses
import itertools
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.index_build import build_index_set
from gristmill.formats.index_extend import extend_index_set
from gristmill.formats.index_set import IndexSet, IndexSettings, SplitRequest
from gristmill.formats.indexed_writer import write_indexed
from gristmill.formats.manifest import (
    InputEntry,
    Manifest,
    RecordAddress,
    ShardEntry,
    SourceEntry,
    TokenizerEntry,
    write_manifest,
)
from gristmill.formats.recipe import Recipe, parse_recipe


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


class CorpusOfLengths:
    """A corpus whose documents are of given lengths; a source is cut into two shards."""

    def __init__(
        self, folder: Path, lengths: dict[str, list[int]], weights: dict[str, float] | None = None, **changes: Any
    ) -> None:
        self.folder, self.lengths = str(folder), lengths
        self.manifest = self.write(lengths, weights or {}, **changes)

    def write(
        self, lengths: dict[str, list[int]], weights: dict[str, float], max_epochs: float | None = None
    ) -> Manifest:
        address = RecordAddress(input="a", split=0, record=0)
        sources = []
        for name, counts in lengths.items():
            shards = []
            for number, part in enumerate((counts[: len(counts) // 2], counts[len(counts) // 2 :])):
                if not part:
                    continue
                path = f"tokens/{name}/{name}-{number:05d}-of-00002"
                with write_indexed(f"{self.folder}/{path}", np.dtype("uint16")) as writer:
                    for length in part:
                        writer.add(np.zeros(length, np.uint16), np.array([length]))
                assert writer.facts is not None
                facts = writer.facts
                shards.append(
                    ShardEntry(
                        path=path,
                        tokens=facts.tokens,
                        documents=facts.documents,
                        eod_tokens=facts.tokens,
                        bin=dataclasses.replace(facts.bin, sha256=f"{name}{number}"),  # the tokens are all 0
                        idx=facts.idx,
                        first=address,
                        last=address,
                    )
                )
            sources.append(
                SourceEntry(
                    id=name,
                    weight=weights.get(name),
                    max_epochs=max_epochs,
                    inputs=(InputEntry(path="a", size=1, xxh3="0" * 32),),
                    documents_in=len(counts),
                    documents_kept=len(counts),
                    dropped={},
                    counted={},
                    shards=tuple(shards),
                )
            )
        manifest = Manifest(
            name="tiny",
            recipe_digest="0" * 64,
            software="0",
            tokenizer=TokenizerEntry(
                fingerprint="0" * 64,
                engine="none",
                engine_version="0",
                eod_id=0,
                eod_token="<eod>",
                pad_id=None,
                vocabulary=5,
            ),
            dtype="uint16",
            sources=tuple(sources),
            index_set=None,
        )
        write_manifest(self.folder, manifest)
        return manifest

    def build(self, samples: int | None, **changes: Any) -> IndexSet:
        values = {"sequence_length": 8, "seed": 5, "splits": "9,1", "train": SplitRequest(samples), **changes}
        return build_index_set(self.folder, self.manifest, IndexSettings(**values))

    def extend(self, parent: IndexSet, **wanted: Any) -> IndexSet:
        return extend_index_set(self.folder, self.manifest, parent, **wanted)


@pytest.fixture
def new_corpus(tmp_path: Path) -> Callable[..., CorpusOfLengths]:
    """Writes corpora of sources whose documents have given lengths, each into a folder of its own."""
    folders = (tmp_path / f"corpus{number}" for number in itertools.count())
    return lambda *arguments, **changes: CorpusOfLengths(next(folders), *arguments, **changes)
