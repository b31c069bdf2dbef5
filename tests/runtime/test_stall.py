"""A wait that goes on is told in the log, with the file that is waited for."""

import logging
import os
import threading
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gristmill.formats.errors import SettingsError
from gristmill.runtime.batches import TokenBatches
from gristmill.runtime.corpus import open_corpus
from gristmill.runtime.prefetch import Prefetcher
from gristmill.runtime.stall import StallReports


class Recorder(logging.Handler):
    """Keeps messages and says when there are so many."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.enough = threading.Event()
        self._wanted = wanted

    def emit(self, record: logging.LogRecord) -> None:
        assert record.levelno == logging.WARNING
        self.messages.append(record.getMessage())
        if len(self.messages) >= self._wanted:
            self.enough.set()


def one_device() -> NamedSharding:
    return NamedSharding(jax.make_mesh((1,), ("data",), devices=jax.devices()[:1]), PartitionSpec("data"))


@pytest.fixture
def log() -> Any:
    recorder = Recorder(3)
    logger = logging.getLogger("gristmill.runtime.stall")
    logger.addHandler(recorder)
    yield recorder
    logger.removeHandler(recorder)


def test_a_read_that_stalls_names_rows_and_file(make_corpus: Any, log: Recorder) -> None:
    """The first shard is a FIFO, so that opening it waits until somebody writes."""
    folder = make_corpus(documents={"web": 60}, shards=1)
    make_corpus.index(folder)
    (shard,) = Path(folder).rglob("*.idx")
    with TokenBatches(open_corpus(folder).stream("train"), 8, one_device()) as batches:
        next(batches)  # so that compiled code is loaded, and the read is soon at the file
    content = shard.read_bytes()
    shard.unlink()
    os.mkfifo(shard)
    stream = open_corpus(folder).stream("train")
    batches = TokenBatches(stream, 8, one_device(), stall_seconds=0.05)

    def put_back() -> None:
        log.enough.wait(20)
        writer = os.open(shard, os.O_WRONLY)  # waits for the reader, which is there; what it reads is refused
        shard.unlink()
        shard.write_bytes(content)
        os.close(writer)

    rescuer = threading.Thread(target=put_back)
    rescuer.start()
    with pytest.raises(Exception, match=r"\.idx|cannot"):
        next(batches)
    rescuer.join()
    assert len(log.messages) >= 3
    assert f"rows 0 to 7 of {stream!r}: opening {str(shard).removesuffix('.idx')} (for 0 s)" in log.messages[0]
    assert next(batches)["inputs"].shape == (8, 16), "the file is back, so the same rows can be had"
    batches.close()
    assert stream.waiting_on() == []


def test_it_says_so_ever_more_seldom(caplog: pytest.LogCaptureFixture) -> None:
    reports = StallReports(object(), range(8, 16), 30.0)
    waited, told = 0.0, []
    patience = reports.seconds
    for _ in range(4):
        waited += patience
        patience = reports.report(waited)
        told.append(waited)
    assert told == [30.0, 60.0, 120.0, 240.0]
    assert "waiting since 30 s for rows 8 to 15 of <object object" in caplog.messages[0]
    assert caplog.messages[0].endswith("no read is under way, so the fields are being made or handed to the devices")


def test_an_item_that_comes_in_time_is_no_report(caplog: pytest.LogCaptureFixture) -> None:
    prefetcher = Prefetcher((number for number in range(3)), 1, name="test")
    for seconds in (60.0, float("inf"), 1e12):
        prefetcher.get(StallReports(object(), range(1), seconds))
    prefetcher.close()
    assert caplog.messages == []


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_that_is_none_is_refused(blended_corpus: str, seconds: float) -> None:
    stream = open_corpus(blended_corpus).stream("train")
    sharding = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))
    with pytest.raises(SettingsError, match=r"stall_seconds must be above 0, not .*float\('inf'\) reports nothing"):
        TokenBatches(stream, 8, sharding, stall_seconds=seconds)
