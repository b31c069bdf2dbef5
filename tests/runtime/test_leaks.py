"""Nothing is left: no thread, process, open file, mapping or shared memory, however data are left or a process ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("leak_worker.py")

EXIT_CODES = {
    "": 0,
    "the last line": 0,
    "sys.exit": 3,
    "an error": 1,
    "os._exit": 4,
    "SIGINT": -signal.SIGINT,
    "SIGTERM": -signal.SIGTERM,
    "SIGKILL": -signal.SIGKILL,
}


@pytest.mark.slow
def test_nothing_is_left(blended_corpus: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(WORKER), blended_corpus, str(tmp_path / "report.json")],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # threads are no good company of `fork`
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    ends = json.loads(done.stdout.splitlines()[-1])
    assert ends == {name: [code, 0] for name, code in EXIT_CODES.items()}, done.stderr
    assert done.stderr.count("Traceback") == 2, "of the error and of the interrupt, and of nothing that came after"
    assert "ignored" not in done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report) == 10
    for way, (before, after) in report.items():
        assert after == before, way
        assert after["maps of the corpus"] == after["shared memory"] == after["processes"] == 0, way
        assert after["Python threads"] == 1, way
