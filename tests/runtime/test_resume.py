"""A run that is killed at ten random places while it saves, and resumed under other circumstances each time.

Among these are the number of its processes, one or two, the size of its batches and the place of its corpus.
"""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.index_extend import extend_index_set
from gristmill.formats.index_set import read_set
from gristmill.formats.manifest import read_manifest
from gristmill.runtime import open_corpus

ROWS, CHANGED_FROM, MORE_ROWS = 700, 600, 800
LEFT_OUT = (640, 661)
TWO_PROCESSES = (1, 2, 5, 7)
"""The lives of the run that are jobs of two processes: 1 -> 2, 2 -> 2 and 2 -> 1."""

WORKER = Path(__file__).with_name("resume_worker.py")


@pytest.fixture(scope="module")
def corpus(make_corpus: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A corpus whose order goes through many epochs, at a place of its own, and the name of a set that goes on from it.

    The other set has other weights from row 600 on, and more rows.
    """
    folder = make_corpus(weights={"web": 0.7, "code": 0.3})
    base = read_set(f"{folder}/indices/{make_corpus.index(folder, samples=ROWS)}")
    changed = extend_index_set(
        folder,
        read_manifest(folder),
        base,
        samples=MORE_ROWS,
        from_sample=CHANGED_FROM,
        weights={"web": 0.2, "code": 0.8},
    )
    place = tmp_path_factory.mktemp("mount") / "corpus"
    shutil.copytree(folder, place)
    return str(place), changed.name


def plan_lives(corpus: str, changed: str, tmp_path: Path, chance: random.Random) -> list[dict[str, Any]]:
    """What each of eleven lives is to do; the last goes on to the end."""
    planned: list[dict[str, Any]] = []
    for number in range(11):
        last = number == 10
        life: dict[str, Any] = {
            "corpus": corpus if number < 4 else f"{corpus}-moved",
            "checkpoints": str(tmp_path / "checkpoints"),
            "report": str(tmp_path / f"life-{number}.jsonl"),
            "index_set": None if number < 7 else changed,
            "left_out": None if number < 9 else LEFT_OUT,
            "processes": 1 + (number in TWO_PROCESSES),
            "global_batch": chance.choice([8, 16, 24]),
            "microbatches": chance.choice([None, 1, 2]),
            "prefetch": chance.choice([0, 1, 4]),
            "save_every": chance.randint(1, 3),
            "kill_at": 0 if last else chance.randint(2, 4),
            "kill_after_seconds": chance.choice([0.0, 0.0, 0.005, 0.05, 0.5]),  # before, during and after the writing
        }
        planned.append(life)
    planned[4] |= {"corpus": corpus, "move_to": f"{corpus}-moved"}
    planned[6]["add_to_state"] = {"written_by": "a later Gristmill of the same version of the state", "more": {"a": 1}}
    return planned


@pytest.mark.slow
def test_killed_at_ten_random_places_it_trains_on_the_same_rows(corpus: tuple[str, str], tmp_path: Path) -> None:
    folder, changed = corpus
    stream = open_corpus(folder).stream(index_set=changed)
    reference = stream.read(np.delete(np.arange(MORE_ROWS), slice(*LEFT_OUT)))[:, :-1]
    planned = plan_lives(folder, changed, tmp_path, random.Random(4))
    done = subprocess.run(
        [sys.executable, str(WORKER)],
        input=json.dumps(planned),
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # threads are no good company of `fork`
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    *killed, ended = (json.loads(line) for line in done.stdout.splitlines())
    assert ended == [0], done.stderr
    assert [len(codes) for codes in killed] == [life["processes"] for life in planned[:10]]
    for codes in killed:  # one that is killed a moment later may first notice that the other is gone
        assert -signal.SIGKILL in codes, done.stderr
        assert set(codes) <= {-signal.SIGKILL, -signal.SIGABRT, 1}, done.stderr
    trained = 0
    starts, went_back = [], []
    for life in planned:
        reports = [
            [json.loads(line) for line in Path(f"{life['report']}.{process}").read_text("ascii").splitlines()]
            for process in range(life["processes"])
        ]
        first = reports[0][0][0]
        for start, *_ in reports:
            assert start == [first, first], "model and data of all processes come from the same moment"
        starts.append(first)
        went_back.append(trained - first)
        trained = first  # what was trained on behind the checkpoint is forgotten
        for parts in itertools.zip_longest(*(report[1:] for report in reports), fillvalue=([], [])):
            batch = range(trained, trained + life["global_batch"])
            for rows, tokens in parts:
                assert set(rows) <= set(batch)
                np.testing.assert_array_equal(np.reshape(tokens, (len(rows), 16)), reference[rows], str(life))
            if all(rows for rows, _ in parts):  # else the last batch of a life, which not all came to report
                assert sorted(row for rows, _ in parts for row in rows) == list(batch)
            trained = batch.stop
    assert len(reference) - trained < 24, "to the end of the longer stream"
    assert starts[6] < starts[7] <= CHANGED_FROM, "the other weights are met on the way"
    assert starts[9] <= LEFT_OUT[0], "so is the stretch that was left out since"
    assert starts[0] == went_back[0] == 0
    assert 0 in went_back[1:], "some saves were complete"
    assert any(went_back), "some were not"
