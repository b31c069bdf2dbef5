"""Files of the web by ranges, through faults."""

import io
import random
import sys
from typing import Any

import pytest

from gristmill.formats.errors import StorageError
from gristmill.formats.resuming import open_ranges, open_web, web_length
from gristmill.formats.storage import read_bytes, read_range

DATA = random.Random(1).randbytes(500_000)


@pytest.fixture
def served(hub: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server, with one file below `address`, and waits of no length."""
    monkeypatch.setattr("gristmill.formats.resuming.time.sleep", lambda seconds: None)
    hub.add("a/b", {"data.bin": DATA, "empty": b""}, large=["data.bin"])
    hub.url = f"{hub.address}/datasets/a/b/resolve/{'1' * 40}/data.bin"
    return hub


def fault(kind: str, **settings: Any) -> Any:
    return sys.modules["hub_server"].Fault(kind, "/large/", **settings)


def test_the_whole_and_any_part(served: Any) -> None:
    assert read_bytes(served.url) == DATA
    assert read_range(served.url, 1000, 5000) == DATA[1000:6000]
    size, headers = web_length(served.url)
    assert (size, headers["etag"][0]) == (len(DATA), '"')
    with open_web(served.url) as file:
        file.seek(-10, io.SEEK_END)
        assert (file.read(), file.read()) == (DATA[-10:], b"")


def test_a_file_of_no_bytes(served: Any) -> None:
    assert read_bytes(served.url.replace("data.bin", "empty")) == b""


def test_a_cut_connection_goes_on_from_the_right_byte(served: Any) -> None:
    with open_web(served.url) as file:
        file.seek(100)
        served.reset(fault("cut", times=2, keep=5000))
        assert file.read(200_000) == DATA[100:200_100]
    firsts = [int(found[6:].split("-")[0]) for _, path, found in served.requests if path.startswith("/large/")]
    assert firsts[:3] == [100, 5100, 10_100]


@pytest.mark.parametrize(
    "damage", [{"kind": "status", "status": 429}, {"kind": "status", "status": 502}, {"kind": "drop"}]
)
def test_a_passing_fault(served: Any, damage: dict[str, Any]) -> None:
    served.reset(fault(**damage, times=4))
    assert read_bytes(served.url) == DATA


def test_a_lasting_fault(served: Any) -> None:
    served.reset(fault("status", status=503, times=99))
    with pytest.raises(
        StorageError, match=r"data.bin: cannot be read: the server answered 503 .*, 7 times in a row; run ag"
    ):
        read_bytes(served.url)


def test_a_fault_that_waiting_does_not_mend(served: Any) -> None:
    with pytest.raises(StorageError, match=r"gone: cannot be read: the server answered 404"):
        read_bytes(served.url.replace("data.bin", "gone"))
    assert len(served.requests) == 1


def test_a_file_that_changes_while_it_is_read(served: Any) -> None:
    with open_web(served.url) as file:
        assert file.read(10) == DATA[:10]
        served.repositories["a/b"].files["data.bin"] = DATA[::-1]
        file.seek(400_000)
        with pytest.raises(StorageError, match=r"data.bin: changed while it was read; start again"):
            file.read(10)


def test_a_server_without_ranges(served: Any) -> None:
    served.ranges = False
    with pytest.raises(StorageError, match=r"serves no byte ranges \(status 200\); fetch the file"):
        read_bytes(served.url)


def test_reading_on_fetches_more_and_reading_elsewhere_less() -> None:
    asked: list[tuple[int, int]] = []

    def fetch(start: int, length: int) -> bytes:
        asked.append((start, length))
        return DATA[start : start + length]

    file = open_ranges(fetch, len(DATA))
    assert file.read(200_000) == DATA[:200_000]
    file.seek(400_000)
    assert file.read(10) == DATA[400_000:400_010]
    file.seek(0)
    assert b"".join(iter(lambda: file.read(999), b"")) == DATA
    lengths = [length for _, length in asked]
    assert lengths[0] >= 200_000 - 1
    assert max(lengths[2:]) > 128 << 10
