"""Runs a command and says what its whole process tree cost: CPU, wall time, and the largest resident memory."""

import os
import platform
import subprocess
import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command cost.

    Attributes:
        cpu: user and system CPU-seconds of the process and all it waited for.
        wall: seconds from start to end.
        memory: largest sum of resident bytes over the process tree, sampled; pages shared between processes count
            once for each. 0 where it was not asked for: looking costs time on a core that the program may want.
    """

    cpu: float
    wall: float
    memory: int

    def net(self, start: "Cost") -> "Cost":
        """This cost without that of starting up."""
        return Cost(self.cpu - start.cpu, self.wall - start.wall, self.memory)


def measure(command: list[str], environment: dict[str, str] | None = None, *, memory: bool = False) -> Cost:
    """Runs a command to its end.

    Raises:
        SystemExit: the command failed.
    """
    began = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdout=subprocess.DEVNULL)
    largest = 0
    while memory:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        largest = max(largest, _resident(process.pid))
        time.sleep(0.05)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, time.monotonic() - began, largest)


def _resident(pid: int) -> int:
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.Error:
        pass
    return total


def machine() -> str:
    """One line about the machine and how busy it is."""
    load = os.getloadavg()[0]
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f} at start"
