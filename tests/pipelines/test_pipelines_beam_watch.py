"""What ends a run of which a worker process died, although Beam waits."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from gristmill.pipelines import beam_watch
from gristmill.pipelines.beam_watch import WorkerGoneError, watched_workers


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds become moments."""
    monkeypatch.setattr(beam_watch, "_PATIENCE_SECONDS", 0.2)


def die() -> None:
    """Says in a thread what Beam says there."""

    def exited() -> None:
        raise RuntimeError("Worker subprocess exited with return code -9")

    thread = threading.Thread(target=exited)
    thread.start()
    thread.join()


def run_and_wait(waiting: Callable[[], object], last: Callable[[], object] = lambda: None) -> None:
    """A run of which a worker dies, which waits then, and for something else when it is woken."""
    with watched_workers():
        try:
            die()
            waiting()
        finally:
            last()


def forever() -> None:
    threading.Event().wait(60)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
class TestAWorkerThatDied:
    def test_ends_a_wait(self) -> None:
        with pytest.raises(WorkerGoneError):
            run_and_wait(forever)

    def test_ends_a_wait_for_the_other_workers_too(self) -> None:
        code = "import time; time.sleep(60)"
        other = subprocess.Popen([sys.executable, "-c", code, "gristmill.pipelines.beam_worker"])
        stranger = subprocess.Popen([sys.executable, "-c", code])
        try:
            with pytest.raises(WorkerGoneError):
                run_and_wait(forever, other.wait)
            assert other.returncode == -signal.SIGKILL
            assert stranger.poll() is None
        finally:
            for process in (other, stranger):
                process.kill()
                process.wait()

    def test_lets_a_run_end_by_itself(self) -> None:
        before = signal.getsignal(signal.SIGUSR1)
        run_and_wait(lambda: None)
        time.sleep(0.5)
        assert signal.getsignal(signal.SIGUSR1) is before
