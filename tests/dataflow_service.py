"""A Dataflow of one's own: the REST calls that a batch launch makes, answered on a free port of this machine.

It answers questions about permissions too. A job that is created is done at the next question and nothing is run,
unless something is given that works on jobs.
Beside it, a token endpoint and the key of a service account that exists nowhere: with them Google's default chain of
credentials takes the way it takes everywhere, and no library asks for a machine's own identity.
"""

import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CREATE = re.compile(r"/v1b3/projects/[^/]+/locations/[^/]+/jobs(\?|$)")
_JOB = re.compile(r"/jobs/([^/?]+)")
SECRET = "ya29.a-token-that-no-job-may-hold"


class Service:
    """What the server was asked.

    Attributes:
        address: to give as `--dataflow_endpoint`; "localhost" in it makes Beam speak REST.
        jobs: the jobs as they were sent.
        state: what a job that is asked about has become.
        refuses: message of the refusal of every job; empty to take them.
        authorised: what the requests to create a job were signed with.
        lacks: permissions that nobody has.
        metrics: what the workers of any job counted so far.
        work: works on a job that was sent; the job goes on until it returns, and fails when it raises.
    """

    def __init__(self) -> None:
        self.address = ""
        self.jobs: list[dict[str, Any]] = []
        self.authorised: list[str] = []
        self.state = "JOB_STATE_DONE"
        self.refuses = ""
        self.lacks: set[str] = set()
        self.metrics: list[dict[str, Any]] = []
        self.work: Callable[[dict[str, Any]], object] | None = None
        self._working: dict[int, Future[object]] = {}
        self._workers = ThreadPoolExecutor()

    def create(self, job: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Takes a job."""
        if self.refuses:
            return 403, {"error": {"code": 403, "message": self.refuses, "status": "PERMISSION_DENIED"}}
        self.jobs.append(job)
        number = len(self.jobs) - 1
        if self.work is not None:
            self._working[number] = self._workers.submit(self.work, job)
        return 200, self._answer(number, "JOB_STATE_PENDING")

    def get(self, job_id: str) -> tuple[int, dict[str, Any]]:
        """Tells of a job."""
        number = int(job_id.removeprefix("job-"))
        if number >= len(self.jobs):
            return 404, {"error": {"code": 404, "message": f"no job {job_id}", "status": "NOT_FOUND"}}
        working = self._working.get(number)
        if working is None:
            return 200, self._answer(number, self.state)
        if not working.done():
            return 200, self._answer(number, "JOB_STATE_RUNNING")
        return 200, self._answer(number, self.state if working.exception() is None else "JOB_STATE_FAILED")

    def _answer(self, number: int, state: str) -> dict[str, Any]:
        job = self.jobs[number]
        kept = {name: job.get(name) for name in ("name", "type", "clientRequestId")}
        return {
            "id": f"job-{number}",
            "projectId": "test-project",
            "location": "us-central1",
            "currentState": state,
            **kept,
        }


def _handler(service: Service) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == "/token":
                return self._send(200, {"access_token": SECRET, "expires_in": 3600, "token_type": "Bearer"})
            if self.path.endswith(":testIamPermissions"):
                asked = json.loads(sent)["permissions"]
                return self._send(200, {"permissions": [name for name in asked if name not in service.lacks]})
            if _CREATE.match(self.path):
                service.authorised.append(self.headers.get("Authorization", ""))
                return self._send(*service.create(json.loads(sent)))
            return self._send(404, {"error": {"code": 404, "message": self.path}})

        def do_GET(self) -> None:
            found = _JOB.search(self.path)
            if "/messages" in self.path:
                return self._send(200, {})
            if "/metrics" in self.path:
                return self._send(200, {"metrics": service.metrics})
            if found:
                return self._send(*service.get(found.group(1)))
            return self._send(404, {"error": {"code": 404, "message": self.path}})

        def log_message(self, *_: object) -> None:
            pass

        def _send(self, code: int, value: dict[str, Any]) -> None:
            data = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


@contextmanager
def running() -> Iterator[Service]:
    """Runs the service."""
    service = Service()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(service))
    service.address = f"http://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def key_file(service: Service, folder: Path) -> Path:
    """Writes the key of a service account that gets its tokens from the service."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "key.json"
    account = {
        "type": "service_account",
        "project_id": "test-project",
        "private_key_id": "a-key-id-that-no-job-may-hold",
        "private_key": key.decode(),
        "client_email": "launcher@test-project.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"{service.address}/token",
    }
    path.write_text(json.dumps(account), "utf-8")
    return path
