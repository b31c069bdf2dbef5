"""Hub ids, against a server on this machine that speaks the hub's protocol, in a process of their own.

`huggingface_hub` reads its endpoint from the environment when it is imported, hence the processes.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gristmill.tokenize.hugging_face import is_hub_id, is_tokenizer_file
from gristmill.tokenize.load import resolve_tokenizer

END = "<|endoftext|>"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_a-token-that-must-not-be-written-anywhere"


class Hub(BaseHTTPRequestHandler):
    """`/<repo>/resolve/<revision>/<file>` and `/api/models/<repo>…`, as the hub answers them."""

    repositories: ClassVar[dict[str, dict[str, bytes]]] = {}
    asked: ClassVar[list[tuple[str, str, str]]] = []
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        token = self.headers.get("authorization", "")
        self.asked.append((self.command, path, token))
        api = path.startswith("/api/models/")
        owner, name, *rest = path.removeprefix("/api/models/").strip("/").split("/")
        repository = f"{owner}/{name}"
        revision = rest[1] if len(rest) > 1 else "main"
        if repository == "some/gated" and TOKEN not in token:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to it is restricted."})
        elif repository == "some/broken":
            self._send(500, b"no", {})
        elif repository not in self.repositories:
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif revision not in ("main", "v1", COMMIT):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        elif api and rest[:1] == ["tree"]:
            listed = [
                {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for file, data in self.repositories[repository].items()
            ]
            self._send(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})
        elif api:
            siblings = [{"rfilename": file} for file in self.repositories[repository]]
            about = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings, "tags": []}
            self._send(200, json.dumps(about).encode(), {"Content-Type": "application/json"})
        else:
            data = self.repositories[repository].get("/".join(rest[2:]))
            if data is None:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            else:
                self._send(200, data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
        """Says nothing."""


@pytest.fixture(scope="module")
def hub(byte_bpe: str) -> Iterator[str]:
    config = json.dumps({"eos_token": END, "pad_token": "<|pad|>"}).encode()
    vocab = json.loads(byte_bpe)["model"]["vocab"]
    merges = "\n".join(" ".join(pair) for pair in json.loads(byte_bpe)["model"]["merges"])
    Hub.asked.clear()
    Hub.repositories.update(
        {
            "some/model": {
                "tokenizer.json": byte_bpe.encode(),
                "tokenizer_config.json": config,
                "model.safetensors": b"\0" * 100,
            },
            "some/gated": {"tokenizer.json": byte_bpe.encode(), "special_tokens_map.json": config},
            "some/pair": {"vocab.json": json.dumps(vocab).encode(), "merges.txt": merges.encode(), "README.md": b"x"},
            "some/weights": {"model.safetensors": b"\0" * 100},
        }
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


SCRIPT = """
import json, sys
from gristmill.formats.errors import GristmillError
from gristmill.tokenize.load import resolve_tokenizer
from gristmill.tokenize.resolved import write_resolved
for path, eod in json.loads(sys.argv[1]):
    try:
        resolved = resolve_tokenizer(path, eod)
        write_resolved(resolved, sys.argv[2])
        print(json.dumps([resolved.fingerprint, resolved.eod_token, resolved.pad_id]))
    except GristmillError as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def resolve_there(tmp_path: Path, endpoint: str, *paths: str, eod: str | None = None, **more: str) -> list[list[Any]]:
    """Resolves paths in a new process whose hub is `endpoint`, with an empty cache."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "home"),
        "no_proxy": "*",
        "NO_PROXY": "*",
        **more,
    }
    words = json.dumps([[path, eod] for path in paths])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, words, str(tmp_path / "corpus")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_hub_id_is_fetched(hub: str, tmp_path: Path, byte_bpe: str) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_bpe)
    expected = resolve_tokenizer(str(tmp_path / "tokenizer.json"), END)
    found = resolve_there(tmp_path, hub, "some/model", "some/model@v1", f"some/model@{COMMIT}")
    assert found == [[expected.fingerprint, END, 1]] * 3
    assert not [path for _, path, _ in Hub.asked if "safetensors" in path]


def test_a_repository_without_a_tokenizer_json(hub: str, tmp_path: Path) -> None:
    found = resolve_there(tmp_path, hub, "some/pair", eod=END)
    assert found[0][1] == END


def test_what_the_hub_refuses_is_one_sentence(hub: str, tmp_path: Path) -> None:
    answers = resolve_there(
        tmp_path, hub, "some/absent", "some/gated", "some/model@v2", "some/weights", "absent", "--a/b"
    )
    assert all(kind == "TokenizerError" and "\n" not in message for kind, message in answers)
    for (_, message), expected in zip(
        answers,
        [
            "some/absent: no such file or folder here, and no hub repository of this name is visible",
            "some/gated: this hub repository is gated: ask for access on its page and set HF_TOKEN",
            "some/model@v2: the hub repository has no such revision",
            "some/weights: this hub repository holds no tokenizer file",
            "absent: no such file or folder here, and no hub repository of this name is visible",
            "--a/b: no such tokenizer file or folder",
        ],
        strict=True,
    ):
        assert message.startswith(expected)


def test_a_token_opens_a_gated_repository_and_is_written_nowhere(hub: str, tmp_path: Path) -> None:
    found = resolve_there(tmp_path, hub, "some/gated", "some/absent", HF_TOKEN=TOKEN)
    assert found[0][1] == END
    assert TOKEN not in found[1][1]
    assert any(TOKEN in token for _, path, token in Hub.asked if "gated" in path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    written = b"".join(path.read_bytes() for path in (tmp_path / "corpus").iterdir())
    assert hub.encode() not in written
    assert b"some/gated" not in written


def test_offline_the_cache_serves_and_its_absence_is_told(hub: str, tmp_path: Path) -> None:
    online = resolve_there(tmp_path, hub, "some/model")
    assert resolve_there(tmp_path, hub, "some/model", HF_HUB_OFFLINE="1") == online
    (kind, message), *_ = resolve_there(tmp_path, hub, "some/pair", HF_HUB_OFFLINE="1")
    assert kind == "TokenizerError"
    assert message.startswith(
        "some/pair: the hub cannot be reached and its files are not in the cache: check the network"
    )


@pytest.mark.slow
def test_a_hub_that_fails_or_is_not_there_is_told_after_some_tries(hub: str, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        nobody = f"http://127.0.0.1:{server.server_port}"
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda endpoint: resolve_there(tmp_path, endpoint, "some/broken"), (hub, nobody)))
    for (kind, message), *_ in answers:
        assert kind == "TokenizerError"
        assert message.startswith("some/broken: the hub cannot be reached and its files are not in the cache")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("gpt2", True),
        ("meta-llama/Llama-3.1-8B", True),
        ("owner/name@v1.0", True),
        ("owner/name@refs/pr/1", True),
        ("a/b/c", False),
        ("../x", False),
        ("/x", False),
        ("", False),
        ("a b", False),
        ("https://x/y", False),
    ],
)
def test_hub_ids_are_told_from_paths(path: str, expected: bool) -> None:
    assert is_hub_id(path) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tokenizer.json", True),
        ("tokenizer_config.json", True),
        ("gpt2-merges.txt", True),
        ("spiece.model", True),
        ("cl100k_base.tiktoken", True),
        ("model.safetensors", False),
        ("README.md", False),
        ("tokenizer.py", False),
    ],
)
def test_only_tokenizer_files_are_fetched(name: str, expected: bool) -> None:
    assert is_tokenizer_file(name) is expected
