"""Looks whether what a job through Beam's portable interface needs is there, before anything is handed over.

Beam waits minutes for a server that is not there and then names none of it, and learns that there is no Docker in the
middle of a job. Asking first costs a connection, or one call of `docker`.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable

from gristmill.formats.errors import SettingsError

__all__ = ["ANSWER_SECONDS", "EMBEDDED", "require_docker", "require_job_server"]

ANSWER_SECONDS = 30.0
"""How long a server is waited for that may be about to start."""

EMBEDDED = "embed"
"""The endpoint that means a server inside the launching process."""

_ONE_TRY_SECONDS = 5.0
_PAUSE_SECONDS = 0.5
_SILENT_SECONDS = 1.0
_OWN_SERVER = ("FlinkRunner", "SparkRunner", "PrismRunner")  # Beam starts one where no endpoint is given


def require_job_server(
    runner: str,
    endpoint: str,
    *,
    seconds: float = ANSWER_SECONDS,
    say: Callable[[str], object] = lambda _: None,
) -> None:
    """Waits until a job server answers; not for long.

    Args:
        runner: short name of the runner.
        endpoint: value of --job_endpoint.
        seconds: how long to wait.
        say: is told that there is something to wait for.

    Raises:
        SettingsError: none answers; the message names the endpoint, the cause and the remedy.
    """
    from apache_beam.runners.portability.job_server import ExternalJobServer

    until = time.monotonic() + seconds
    why = _await_port(endpoint, until, lambda: say(f"waiting up to {seconds:.0f} s for a job server at {endpoint}"))
    if not why:
        try:
            ExternalJobServer(endpoint, timeout=max(_SILENT_SECONDS, until - time.monotonic())).start()
            return
        except Exception:  # noqa: BLE001 - whatever class gRPC has for it
            why = "what is there does not speak gRPC"
    without = ", or leave it out to have Beam start one" if runner in _OWN_SERVER else ""
    raise SettingsError(
        f"--runner {runner}: no job server answers at --job_endpoint={endpoint} within {seconds:.0f} s ({why}); start "
        f"one there, or name one that runs{without}"
    )


def _await_port(endpoint: str, until: float, waits: Callable[[], object]) -> str:
    """Tries to connect until it works or the time is over; gives the reason why not, empty where it works.

    Names of other forms than HOST:PORT are left to gRPC.
    """
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or host.startswith(("unix", "dns", "ipv", "xds")):
        return ""
    told = False
    while True:
        begun = time.monotonic()
        try:
            patience = max(0.1, min(_ONE_TRY_SECONDS, until - begun))
            socket.create_connection((host.strip("[]"), int(port)), patience).close()
            return ""
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if time.monotonic() + _PAUSE_SECONDS > until:
            return why
        if not told:
            told = True
            waits()
        time.sleep(_PAUSE_SECONDS)


def require_docker(runner: str) -> None:
    """Refuses workers in Docker where this machine has none that answers.

    Args:
        runner: short name of the runner.

    Raises:
        SettingsError: there is no Docker, or it does not answer.
    """
    why = _without_docker()
    if why:
        raise SettingsError(
            f"--runner {runner}: --job_endpoint={EMBEDDED} starts its workers in Docker, {why}; install or start it, "
            "or give --environment_type=LOOPBACK to have them in the launching process"
        )


def _without_docker() -> str:
    """Why there is no Docker to start workers in; empty where there is."""
    program = shutil.which("docker")
    if program is None:
        return "but there is no program `docker` on PATH"
    words = [program, "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"but {program} does not answer ({type(error).__name__})"
    said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    return "" if done.returncode == 0 else f"but {program} does not answer ({said})"
