"""Small corpora, written with the real writers, and eight virtual devices, for the tests of the runtime."""

import itertools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
import pytest

from gristmill.formats.index_set import (
    IndexSettings,
    SplitRequest,
    build_blend,
    build_member,
    commit_set,
    plan_members,
    set_path,
    write_blend,
    write_member,
)
from gristmill.formats.index_sources import index_sources
from gristmill.formats.indexed_writer import write_indexed
from gristmill.formats.manifest import (
    InputEntry,
    Manifest,
    RecordAddress,
    ShardEntry,
    SourceEntry,
    TokenizerEntry,
    read_manifest,
    write_manifest,
)
from gristmill.formats.schedule import Phase

if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_platforms", "cpu")

EOD = 1
VOCABULARY = 500


@dataclass(kw_only=True)
class CorpusSpec:
    """What a test corpus holds; see `make_corpus`."""

    documents: dict[str, int] = field(default_factory=lambda: {"web": 60, "code": 30})
    shards: int = 3
    weights: dict[str, float] = field(default_factory=dict)
    longest: int = 40
    dtype: str = "uint16"
    vocabulary: int = VOCABULARY
    seed: int = 0


class CorpusMaker:
    """Writes corpora and index sets; `documents[folder][source]` keeps what was written, shard by shard."""

    eod = EOD

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder
        self.documents: dict[str, dict[str, list[list[np.ndarray]]]] = {}

    def __call__(self, **spec: object) -> str:
        """A new corpus without index sets; keywords as in `CorpusSpec`."""
        wanted = CorpusSpec(**spec)  # type: ignore[arg-type]  # each test passes the fields it cares about
        folder = str(self._new_folder())
        random = np.random.default_rng(wanted.seed)
        written: dict[str, list[list[np.ndarray]]] = {}
        sources = []
        for name, count in wanted.documents.items():
            documents = [
                np.append(random.integers(2, wanted.vocabulary, length), EOD).astype(wanted.dtype)
                for length in random.integers(1, wanted.longest + 1, count)
            ]
            cuts = np.linspace(0, count, wanted.shards + 1).astype(int)
            written[name] = [documents[a:b] for a, b in itertools.pairwise(cuts)]
            sources.append(self._source(folder, name, wanted, written[name]))
        tokenizer = TokenizerEntry(
            fingerprint="0" * 64,
            engine="none",
            engine_version="0",
            eod_id=EOD,
            eod_token="<eod>",
            pad_id=None,
            vocabulary=wanted.vocabulary,
        )
        manifest = Manifest(
            name="tiny",
            recipe_digest="0" * 64,
            software="0",
            tokenizer=tokenizer,
            dtype=wanted.dtype,
            sources=tuple(sources),
            index_set=None,
        )
        write_manifest(folder, manifest)
        self.documents[folder] = written
        return folder

    @staticmethod
    def _source(folder: str, name: str, spec: CorpusSpec, shards: Sequence[Sequence[np.ndarray]]) -> SourceEntry:
        entries = []
        address = RecordAddress(input="part.jsonl", split=0, record=0)
        for number, documents in enumerate(shards):
            path = f"tokens/{name}/{name}-{number:05d}-of-{len(shards):05d}"
            with write_indexed(f"{folder}/{path}", np.dtype(spec.dtype)) as writer:
                for document in documents:
                    writer.add(document, np.array([len(document)]))
            assert writer.facts is not None
            entries.append(
                ShardEntry(
                    path=path,
                    tokens=writer.facts.tokens,
                    documents=writer.facts.documents,
                    eod_tokens=writer.facts.documents,
                    bin=writer.facts.bin,
                    idx=writer.facts.idx,
                    first=address,
                    last=address,
                )
            )
        count = sum(map(len, shards))
        return SourceEntry(
            id=name,
            weight=spec.weights.get(name),
            max_epochs=None,
            inputs=(InputEntry(path="part.jsonl", size=1, xxh3="0" * 32),),
            documents_in=count,
            documents_kept=count,
            dropped={},
            counted={},
            shards=tuple(entries),
        )

    @staticmethod
    def index(
        folder: str,
        sequence_length: int = 16,
        seed: int = 1234,
        samples: int | None = None,
        splits: str = "90,10,0",
        own: bool = True,
        extra: bool = True,
        schedule: tuple[Phase, ...] = (),
    ) -> str:
        """Builds an index set and returns its name; `own` makes it the one that the manifest names."""
        manifest = read_manifest(folder)
        sources = index_sources(manifest.sources)
        settings = IndexSettings(
            sequence_length=sequence_length,
            seed=seed,
            splits=splits,
            train=SplitRequest(samples=samples),
            add_extra_token=extra,
            schedule=schedule,
        )
        target = set_path(folder, settings, sources)
        lengths = {
            source.id: np.concatenate(
                [
                    np.fromfile(f"{folder}/{shard.path}.idx", "<i4", shard.documents, offset=34)
                    for shard in source.shards
                ]
            )
            for source in manifest.sources
        }
        plan = plan_members(settings, sources)
        reports = [write_member(target, member, build_member(member, lengths[member.source])) for member in plan]
        blends = []
        for split in ("train", "valid", "test"):
            blend = build_blend(settings, split, reports)
            if blend is not None:
                blends.append(write_blend(target, split, blend))
        name = commit_set(target, settings, sources, reports, blends).name
        if own:
            path = Path(folder) / "manifest.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "index_set": name}))
        return name


@pytest.fixture(scope="session")
def make_corpus(tmp_path_factory: pytest.TempPathFactory) -> CorpusMaker:
    """Writes corpora, each into a folder of its own."""
    return CorpusMaker(lambda: tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def blended_corpus(make_corpus: CorpusMaker) -> str:
    """Two sources of three shards each, blended 0.7 to 0.3; 200 training rows of 16 tokens."""
    folder = make_corpus(weights={"web": 0.7, "code": 0.3})
    make_corpus.index(folder, samples=200)
    return folder
