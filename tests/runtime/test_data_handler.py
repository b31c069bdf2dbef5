"""The data state in Orbax checkpoints that a loop makes itself: by a `CheckpointManager`, and as a checkpointable."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint.experimental import v1

from gristmill.formats.errors import CorpusError, FormatError
from gristmill.runtime import DataRestore, DataSave, TokenBatches, open_corpus
from gristmill.runtime.data_handler import DataHandler

G = 8
MODEL = {"weights": jnp.arange(3.0)}


@pytest.fixture
def make_batches(blended_corpus: str) -> Iterator[Callable[..., TokenBatches]]:
    """Makes batches of 8 rows over eight devices, of the small corpus or another one."""
    made: list[TokenBatches] = []

    def make(folder: str = blended_corpus, **options: Any) -> TokenBatches:
        sharding = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))
        made.append(TokenBatches(open_corpus(folder).stream(), G, sharding, **{"prefetch": 3, **options}))
        return made[-1]

    yield make
    for batches in made:
        batches.close()


@pytest.fixture
def other_corpus(make_corpus: Any) -> str:
    """A corpus of other text, in an order of another seed."""
    folder: str = make_corpus(weights={"web": 0.7, "code": 0.3}, seed=3)
    make_corpus.index(folder, samples=200, seed=99)
    return folder


def with_model(data: Any) -> Any:
    return ocp.args.Composite(model=ocp.args.StandardSave(MODEL), data=data)


def data_files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "data").iterdir() if path.suffix != ".txt")


def test_a_manager_saves_and_restores_it(tmp_path: Path, make_batches: Callable[..., TokenBatches]) -> None:
    batches = make_batches()
    next(batches)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=with_model(DataSave(batches)))
        expected = next(batches)  # while the save is under way: it holds what was there when it was asked for
        manager.save(2, args=with_model(DataSave(batches.get_state())))
        manager.wait_until_finished()
        restored = make_batches()
        result = manager.restore(1, args=ocp.args.Composite(data=DataRestore(restored)))
        assert result["data"] is restored
        assert (restored.next_sample, restored.get_state()) == (G, {**batches.get_state(), "next_sample": G})
        found = next(restored)
        assert all((found[name] == expected[name]).all() for name in expected)
        assert manager.restore(2, args=ocp.args.Composite(data=DataRestore()))["data"] == batches.get_state()
    assert data_files(tmp_path / "1") == ["state.json"]
    assert json.loads((tmp_path / "2" / "data" / "state.json").read_text()) == batches.get_state()


def test_it_is_a_checkpointable_of_its_own(tmp_path: Path, make_batches: Callable[..., TokenBatches]) -> None:
    batches = make_batches()
    next(batches)
    saving = v1.save_checkpointables_async(tmp_path / "once", {"model": MODEL, "data": batches})
    next(batches)
    saving.result()
    restored = make_batches()
    assert v1.load_checkpointables(tmp_path / "once", {"model": MODEL, "data": restored})["data"] is restored
    assert restored.next_sample == G
    assert data_files(tmp_path / "once") == ["state.json"]
    with v1.training.Checkpointer(tmp_path / "run") as checkpointer:
        saving = checkpointer.save_checkpointables_async(7, {"model": MODEL, "data": batches})
        next(batches)
        saving.result()
        checkpointer.load_checkpointables(7, {"data": restored})
    assert restored.next_sample == 2 * G


def test_either_way_reads_what_the_other_wrote(tmp_path: Path, make_batches: Callable[..., TokenBatches]) -> None:
    batches = make_batches()
    next(batches)
    with ocp.CheckpointManager(tmp_path / "v0") as manager:
        manager.save(1, args=with_model(DataSave(batches)))
    with v1.training.Checkpointer(tmp_path / "v1") as checkpointer:
        checkpointer.save_checkpointables(1, {"model": MODEL, "data": batches})
    restored = make_batches()
    v1.load_checkpointables(tmp_path / "v0" / "1", {"data": restored})
    assert restored.next_sample == G
    restored = make_batches()
    with ocp.CheckpointManager(tmp_path / "v1") as manager:
        manager.restore(1, args=ocp.args.Composite(data=DataRestore(restored)))
    assert restored.next_sample == G


SAVED_OTHERWISE: dict[str, Callable[[TokenBatches], Any]] = {
    "by Grain's handler": grain.checkpoint.CheckpointSave,
    "as plain JSON": lambda batches: ocp.args.JsonSave(batches.get_state()),
}


@pytest.mark.parametrize("save", SAVED_OTHERWISE.values(), ids=SAVED_OTHERWISE)
def test_what_was_saved_otherwise_is_read(
    tmp_path: Path, make_batches: Callable[..., TokenBatches], save: Callable[[TokenBatches], Any]
) -> None:
    batches, restored = make_batches(), make_batches()
    next(batches)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=ocp.args.Composite(data=save(batches)))
    assert data_files(tmp_path / "1") != ["state.json"]
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.restore(1, args=ocp.args.Composite(data=DataRestore(restored)))
    assert restored.get_state() == batches.get_state()


def test_the_state_of_another_stream_is_refused(
    tmp_path: Path, make_batches: Callable[..., TokenBatches], other_corpus: str
) -> None:
    batches, other = make_batches(), make_batches(other_corpus)
    next(batches)
    message = r"this stream is [0-9a-f]{12}: seed was 1234 and is 99; sources\.web\.content was .* allow_stream_change"
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=with_model(DataSave(batches)))
        manager.wait_until_finished()
        with pytest.raises(CorpusError, match=message):
            manager.restore(1, args=ocp.args.Composite(data=DataRestore(other)))
    with pytest.raises(Exception, match="data") as caught:  # Orbax's own, which it raises for whatever went wrong
        v1.load_checkpointables(tmp_path / "1", {"data": other})
    assert isinstance(caught.value.__cause__, CorpusError)
    assert other.next_sample == 0
    v1.load_checkpointables(tmp_path / "1", {"data": make_batches(other_corpus, allow_stream_change=True)})


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({}, CorpusError, "data: holds no state.json, so it is not known which rows its model has seen"),
        ({"else.json": "{}"}, CorpusError, "data: holds no state.json"),
        ({"state.json": '{"version'}, FormatError, "data/state.json: the data state is damaged .* earlier step"),
        ({"metadata": ""}, FormatError, "data/metadata: the data state is damaged"),
        ({"process_0-of-2.json": "?"}, FormatError, "data/process_0-of-2.json: the data state is damaged"),
        ({"process_1-of-2.json": '{"next_index": 3}'}, FormatError, "the data state has version None; .* of another"),
    ],
)
def test_what_is_no_state_is_refused(
    tmp_path: Path,
    make_batches: Callable[..., TokenBatches],
    files: dict[str, str],
    error: type[Exception],
    message: str,
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    batches = make_batches()
    with pytest.raises(error, match=message):
        DataHandler().restore(folder, args=DataRestore(batches))
    assert batches.next_sample == 0


@pytest.mark.parametrize(("primary_host", "written"), [(0, True), (None, True), (1, False)])
def test_one_process_writes_it_unless_each_has_its_own_folder(
    tmp_path: Path, make_batches: Callable[..., TokenBatches], primary_host: int | None, written: bool
) -> None:
    DataHandler(primary_host=primary_host).save(tmp_path, args=DataSave(make_batches()))
    assert (tmp_path / "state.json").exists() == written
