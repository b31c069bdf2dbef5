"""A Hugging Face hub of one's own, on a free port of this machine: as much of its protocol as datasets need.

It serves the commit of a revision, listings in pages, and files by byte ranges; files of large storage by way of a
redirect, to itself or to another server. Damage is done on request. It is written against the hub's documented
protocol and knows nothing of the library under test.
"""

import base64
import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGE = 3
"""Entries of a listing's page."""


@dataclass
class Repository:
    """A dataset.

    Attributes:
        files: content by path.
        large: paths of files that lie in large storage.
        gated: whether a token is needed.
        revisions: commit by branch or tag; "main" must be there.
    """

    files: dict[str, bytes]
    large: set[str] = field(default_factory=set)
    gated: bool = False
    revisions: dict[str, str] = field(default_factory=lambda: {"main": "1" * 40})


@dataclass
class Fault:
    """Damage done to requests whose path contains `match`.

    Attributes:
        kind: ``status``: an answer of that status; ``cut``: a part of the answer, then the connection is closed;
            ``drop``: no answer.
        keep: bytes of a cut answer that are sent.
    """

    kind: str
    match: str
    times: int = 1
    status: int = 429
    keep: int = 1000


class Hub:
    """The server, on threads.

    Attributes:
        repositories: by id.
        faults: each hits in turn until it is used up.
        requests: method, path and range of each request so far.
        tokens: the tokens that requests carried.
        token: the one that opens gated datasets.
        ranges: whether byte ranges are served.
        elsewhere: where large files are redirected to; None for this server.
        cached: whether other files are redirected too, to a cache of the hub's, by a relative address.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, str]] = []
        self.tokens: list[str] = []
        self.token = "hf_secret"
        self.ranges = True
        self.elsewhere: str | None = None
        self.cached = False
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="hub")
        self._thread.start()

    def add(self, name: str, files: dict[str, bytes], *, large: Any = (), **settings: Any) -> Repository:
        """Adds a dataset; `large` names the files of large storage."""
        self.repositories[name] = Repository(files=files, large=set(large), **settings)
        return self.repositories[name]

    def reset(self, *faults: Fault) -> None:
        """Forgets what was asked, and does other damage from now on."""
        self.faults = list(faults)
        self.requests.clear()
        self.tokens.clear()

    def fault(self, path: str) -> Fault | None:
        with self._lock:
            for one in self.faults:
                if one.times and one.match in path:
                    one.times -= 1
                    return one
        return None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Says nothing."""

        def do_HEAD(self) -> None:
            self._serve()

        def do_GET(self) -> None:
            self._serve()

        def _serve(self) -> None:
            url = urllib.parse.urlsplit(self.path)
            path = urllib.parse.unquote(url.path)
            hub.requests.append((self.command, path, self.headers.get("Range", "")))
            given = self.headers.get("Authorization", "")
            if given:
                hub.tokens.append(given.removeprefix("Bearer "))
            fault = hub.fault(path)
            if fault is not None and fault.kind == "status":
                self._answer(fault.status, b"{}", {"Retry-After": "0"})
            elif fault is not None and fault.kind == "drop":
                self.close_connection = True
            elif path.startswith("/large/"):
                self._large(path, fault)
            elif path.startswith("/api/resolve-cache/"):
                self._resolve(path.replace("/api/resolve-cache", "", 1), given, fault, cached=True)
            elif path.startswith("/api/datasets/"):
                self._api(url, given)
            elif path.startswith("/datasets/"):
                self._resolve(path, given, fault)
            else:
                self._answer(404, b"", {})

        def _repository(self, name: str | None, given: str) -> Repository | None:
            if name is None:
                self._answer(404, b"", {})
                return None
            found = hub.repositories.get(name)
            if found is None:
                self._answer(401, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
            elif found.gated and given != f"Bearer {hub.token}":
                self._answer(401, b'{"error": "gated"}', {"X-Error-Code": "GatedRepo"})
                found = None
            return found

        def _api(self, url: urllib.parse.SplitResult, given: str) -> None:
            match = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)(?:/(.*))?)?", url.path)
            repository = self._repository(match[1] if match else None, given)
            if match is None or repository is None:
                return
            commit = self._commit(repository, urllib.parse.unquote(match[3] or "main"))
            if commit is None:
                return
            if match[2] != "tree":
                self._json({"id": match[1], "sha": commit, "gated": "auto" if repository.gated else False})
                return
            query = urllib.parse.parse_qs(url.query)
            entries = _entries(repository, urllib.parse.unquote(match[4] or ""), query.get("recursive") == ["true"])
            if match[4] and not entries:
                self._answer(404, b'{"error": "no such entry"}', {"X-Error-Code": "EntryNotFound"})
                return
            start = int(query.get("cursor", ["0"])[0])
            headers = {}
            if start + PAGE < len(entries):
                following = urllib.parse.urlencode({**{k: v[0] for k, v in query.items()}, "cursor": start + PAGE})
                headers["Link"] = f'<{hub.address}{url.path}?{following}>; rel="next"'
            self._json(entries[start : start + PAGE], headers)

        def _commit(self, repository: Repository, revision: str) -> str | None:
            known = {**repository.revisions, **{commit: commit for commit in repository.revisions.values()}}
            if revision not in known:
                self._answer(404, b'{"error": "no such revision"}', {"X-Error-Code": "RevisionNotFound"})
            return known.get(revision)

        def _resolve(self, path: str, given: str, fault: Fault | None, *, cached: bool = False) -> None:
            match = re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.*)", path)
            repository = self._repository(match[1] if match else None, given)
            if match is None or repository is None:
                return
            commit = self._commit(repository, match[2])
            if commit is None:
                return
            data = repository.files.get(match[3])
            if data is None:
                self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
            if match[3] in repository.large:
                signed = base64.urlsafe_b64encode(match[1].encode()).decode() + "/" + urllib.parse.quote(match[3])
                where = f"{hub.elsewhere or hub.address}/large/{signed}"
                headers |= {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{_sha256(data)}"'}
                self._answer(302, b"", {**headers, "Location": where})
                return
            if hub.cached and not cached:
                where = "/api/resolve-cache" + urllib.parse.quote(path)
                self._answer(307, b"Temporary Redirect", {**headers, "Location": where})
                return
            self._data(data, {**headers, "ETag": f'"{_blob(data)}"'}, fault)

        def _large(self, path: str, fault: Fault | None) -> None:
            _, _, name, inner = path.split("/", 3)
            repository = hub.repositories[base64.urlsafe_b64decode(name).decode()]
            self._data(repository.files[inner], {"ETag": f'"{_sha256(repository.files[inner])}"'}, fault)

        def _data(self, data: bytes, headers: dict[str, str], fault: Fault | None) -> None:
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if hub.ranges else None
            if match is None:
                self._answer(200, data, headers)
                return
            start, end = int(match[1]), min(len(data), int(match[2] or len(data)) + 1)
            if start >= len(data):
                self._answer(416, b"", {**headers, "Content-Range": f"bytes */{len(data)}"})
                return
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            cut = fault.keep if fault is not None and fault.kind == "cut" else None
            self._answer(206, data[start:end], headers, cut)

        def _json(self, value: Any, headers: dict[str, str] | None = None) -> None:
            self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

        def _answer(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.close_connection = True

    return Handler


def _entries(repository: Repository, folder: str, recursive: bool) -> list[dict[str, Any]]:
    prefix = f"{folder}/" if folder else ""
    found: dict[str, dict[str, Any]] = {}
    for path, data in sorted(repository.files.items()):
        if not path.startswith(prefix):
            continue
        parts = path[len(prefix) :].split("/")
        for depth in range(1, len(parts) if recursive else min(2, len(parts))):
            below = prefix + "/".join(parts[:depth])
            found.setdefault(below, {"type": "directory", "oid": "d" * 40, "size": 0, "path": below})
        if recursive or len(parts) == 1:
            entry: dict[str, Any] = {"type": "file", "oid": _blob(data), "size": len(data), "path": path}
            if path in repository.large:
                entry["lfs"] = {"oid": _sha256(data), "size": len(data), "pointerSize": 134}
            found[path] = entry
    return list(found.values())


def _blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Runs a server while the block lasts."""
    hub = Hub()
    try:
        yield hub
    finally:
        hub.close()
