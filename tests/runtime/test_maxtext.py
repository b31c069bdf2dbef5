"""MaxText's settings and what its loader is given, by a restatement of that loader and by real Grain."""

import importlib.util
import json
import pickle
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh

from gristmill.formats.errors import CorpusError, SettingsError, SetupError
from gristmill.runtime import DataRestore, MegatronStream, TokenBatches, make_fields, open_corpus, open_megatron
from gristmill.runtime.fields import FieldOptions
from gristmill.runtime.maxtext import maxtext_batches, maxtext_dataset, maxtext_source, maxtext_stream
from gristmill.runtime.maxtext_settings import read_maxtext_settings

WORKER = Path(__file__).with_name("maxtext_worker.py")
G, L = 8, 16


def load_worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("maxtext_worker", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Loader = load_worker().Loader


@pytest.fixture
def settings(blended_corpus: str, tmp_path: Path) -> dict[str, Any]:
    """A blend of two folders of pairs, with their indices kept, as a launch script of MaxText's would have it."""
    tokens = f"{blended_corpus}/tokens"
    return {
        "dataset_type": "grain",
        "grain_file_type": "mmap_npy",
        "grain_train_files": f"{tmp_path}/a|{tokens}/web,0.7;{tmp_path}/b|{tokens}/code,0.3",
        "grain_eval_files": f"{tmp_path}/c|{tokens}/web",
        "max_target_length": L,
        "global_batch_size_to_load": G,
        "steps": 6,
        "eval_interval": 3,
        "eval_steps": 2,
        "vocab_size": 512,
        "mmap_eod_id": 1,
        "mmap_npy_split": "8,2",
        "data_shuffle_seed": 7,
        "grain_worker_count": 4,
        "learning_rate": 3e-4,
    }


@pytest.fixture
def mesh() -> Mesh:
    """Eight devices in an order that is not theirs."""
    return Mesh(np.array(jax.devices())[[5, 0, 3, 6, 1, 4, 7, 2]].reshape(4, 2), ("data", "fsdp"))


def stream_of(settings: dict[str, Any], **changes: Any) -> MegatronStream:
    return open_megatron(
        settings["grain_train_files"],
        **{
            "sequence_length": L,
            "eod_id": 1,
            "seed": 7,
            "samples": 48,
            "splits": "8,2",
            "vocabulary": 512,
            **changes,
        },
    )


def fields_of(stream: MegatronStream, first: int, rows: int = G, **options: Any) -> dict[str, np.ndarray]:
    made = FieldOptions(**{"max_segments_per_sample": 25, **options})
    return make_fields(stream.read(np.arange(first, first + rows)), stream.eod_id, made)


def assert_same(found: Any, expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype == np.int32
        np.testing.assert_array_equal(found[name], value, err_msg=name)


# ----------------------------------------------------------------------------------------------------- the loader


class Configuration:
    """Answers as MaxText's configuration object does: a name that it does not know is a ValueError."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.__dict__["keys"] = keys

    def __getattr__(self, name: str) -> Any:
        if name not in self.keys:
            raise ValueError(f"Requested key {name}, not in config")
        return self.keys[name]


@pytest.mark.parametrize("form", [dict, lambda settings: SimpleNamespace(**settings), Configuration])
def test_the_loader_gets_the_stream_row_for_row(settings: dict[str, Any], mesh: Mesh, form: Any) -> None:
    given = form(settings)
    stream = stream_of(settings)
    loader = Loader(maxtext_batches(given, mesh=mesh), mesh)
    for step in range(6):
        batch = next(loader)
        assert_same(batch, fields_of(stream, step * G))
        assert all(array.shape == (G, L) for array in batch.values())
    with pytest.raises(StopIteration):
        next(loader)


def test_validation_reads_the_same_rows_each_round(settings: dict[str, Any], mesh: Mesh) -> None:
    stream = open_megatron(
        settings["grain_eval_files"], sequence_length=L, eod_id=1, seed=7, samples=32, split="valid", splits="8,2"
    )
    loader = Loader(maxtext_batches(settings, "eval", mesh=mesh), mesh, generate_padding_batch=True)
    for _ in range(2):
        loader.reset()
        for step in range(2):
            assert_same(next(loader), fields_of(stream, step * G))
    for _ in range(2):
        next(loader)
    assert not any(np.asarray(array).any() for array in next(loader).values()), "zeros behind the end"


def test_the_last_batch_of_validation_is_padded_by_length(settings: dict[str, Any], mesh: Mesh) -> None:
    """With an EOD that is not 0, so that padding by its id would count in the loss."""
    one_pass = {**settings, "eval_steps": -1}
    stream = maxtext_stream(one_pass, "eval")
    assert len(stream) % G, "the last batch is short"
    loader = Loader(maxtext_batches(one_pass, "eval", mesh=mesh), mesh)
    batches = [next(loader) for _ in range(-(-len(stream) // G))]
    rest = len(stream) % G
    for name, array in batches[-1].items():
        np.testing.assert_array_equal(array[:rest], fields_of(stream, len(stream) - rest, rest)[name])
        assert not np.asarray(array[rest:]).any(), name
    with pytest.raises(StopIteration):
        next(loader)


def test_a_corpus_by_its_folder(blended_corpus: str, settings: dict[str, Any], mesh: Mesh) -> None:
    corpus = {
        "grain_file_type": "gristmill",
        "grain_train_files": blended_corpus,
        "grain_eval_files": blended_corpus,
        "max_target_length": L,
        "global_batch_size_to_load": G,
        "steps": 20,
        "vocab_size": 500,
        "eod_mask_loss": True,
    }
    stream = open_corpus(blended_corpus).stream()
    assert maxtext_stream(corpus).fingerprint == stream.fingerprint
    assert len(maxtext_stream(corpus)) == 160
    assert_same(next(Loader(maxtext_batches(corpus, mesh=mesh), mesh)), fields_of(stream, 0, eod_mask_loss=True))
    assert maxtext_stream(corpus, "eval").fingerprint == open_corpus(blended_corpus).stream("valid").fingerprint
    with pytest.raises(CorpusError, match=r"5000 samples asked for|needs 5000|gristmill index"):
        maxtext_stream({**corpus, "steps": 100_000})
    with pytest.raises(SetupError, match=r"vocab_size: the job has embeddings for 400 ids"):
        maxtext_stream({**corpus, "vocab_size": 400, "mmap_eod_id": 2})


def test_sources_for_grains_own_pipelines(settings: dict[str, Any]) -> None:
    stream = stream_of(settings)
    source = maxtext_source(settings)
    assert len(source) == len(stream) == 48
    dataset = maxtext_dataset(settings)
    assert isinstance(dataset, grain.MapDataset)
    hosts = [iter(dataset[host::2].to_iter_dataset().batch(G // 2)) for host in range(2)]
    for step in range(6):
        expected = fields_of(stream, step * G)
        for host, batches in enumerate(hosts):
            assert_same(next(batches), {name: value[host::2] for name, value in expected.items()})


def test_it_is_a_dataset_of_grains(settings: dict[str, Any]) -> None:
    batches = maxtext_batches(settings, process_index=1, process_count=2)
    stream = stream_of(settings)
    assert len(batches) == 6
    assert batches.rows.tolist() == [4, 5, 6, 7]
    assert repr(batches) == f"HostBatches({stream!r}, global_batch=8, rows=4)"
    masks = list(batches.map(lambda batch: batch["targets_segmentation"]))
    assert len(masks) == 6
    np.testing.assert_array_equal(masks[1], fields_of(stream, G)["targets_segmentation"][4:])
    travelled = pickle.loads(pickle.dumps(batches))
    for found, again in zip(batches, travelled, strict=True):
        assert_same(found, again)


# --------------------------------------------------------------------------------------------------------- states


def test_grains_checkpoints_take_it(settings: dict[str, Any], mesh: Mesh, tmp_path: Path) -> None:
    """By Grain's own handler, as MaxText saves its `local_iterator`, while batches are made ahead."""
    loader = Loader(maxtext_batches(settings, mesh=mesh, prefetch=3), mesh)
    next(loader), next(loader)
    assert isinstance(loader.local_iterator, grain.DatasetIterator)
    handlers = {"iter": grain.checkpoint.CheckpointHandler()}
    with ocp.CheckpointManager(tmp_path / "run", item_handlers=handlers) as manager:
        manager.save(2, args=ocp.args.Composite(iter=grain.checkpoint.CheckpointSave(loader.local_iterator)))
        expected = next(loader)
        manager.wait_until_finished()
        (path,) = (tmp_path / "run" / "2" / "iter").glob("process_*.json")
        assert path.name == "process_0-of-1.json"
        assert json.loads(path.read_text())["next_sample"] == 2 * G
        again = Loader(maxtext_batches(settings, mesh=mesh), mesh)
        manager.restore(2, args=ocp.args.Composite(iter=grain.checkpoint.CheckpointRestore(again.local_iterator)))
    assert_same(next(again), {name: np.asarray(value) for name, value in expected.items()})
    batches = maxtext_batches(
        {**settings, "global_batch_size_to_load": 16, "steps": 3}, process_index=0, process_count=2
    )
    elsewhere = iter(batches)
    elsewhere.set_state(json.loads(path.read_text()))
    stream = stream_of(settings)
    assert_same(next(elsewhere), fields_of(stream, 2 * G, 8))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(mesh.axis_names))
    with TokenBatches(stream, G, sharding, options=read_maxtext_settings(settings).options) as own:
        with ocp.CheckpointManager(tmp_path / "run") as manager:
            manager.restore(2, args=ocp.args.Composite(iter=DataRestore(own)))
        assert_same(next(own), {name: np.asarray(value) for name, value in expected.items()})


def test_another_streams_state_is_refused(settings: dict[str, Any]) -> None:
    iterator = iter(maxtext_batches(settings, process_index=0, process_count=1))
    next(iterator)
    state = iterator.get_state()
    other = {**settings, "data_shuffle_seed": 8}
    with pytest.raises(CorpusError, match=r"seed was 7 and is 8"):
        iter(maxtext_batches(other, process_index=0, process_count=1)).set_state(state)
    lenient = iter(maxtext_batches(other, process_index=0, process_count=1, allow_stream_change=True))
    lenient.set_state(state)
    assert lenient.next_sample == G
    for one in (iterator, lenient):
        one.close()
        with pytest.raises(ValueError, match="closed"):
            next(one)


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_hold_the_rows_of_the_mesh(settings: dict[str, Any], tmp_path: Path, processes: int) -> None:
    """Real ones, over a mesh that mixes their devices; between steps they go on from what they saved."""
    folder = tmp_path / "parts"
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(WORKER), "--port", str(port), "--processes", str(processes)]
    command += ["--folder", str(folder), "--settings", json.dumps(settings)]
    workers = [
        subprocess.Popen(
            [*command, "--process", str(number)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for number in range(processes)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=240)
        assert worker.returncode == 0, errors
    names = sorted(path.name for path in folder.glob("*.json"))
    assert names == [f"process_{number}-of-{processes}.json" for number in range(processes)]
    assert len({(folder / name).read_text() for name in names}) == 1, "all processes save the same"
    stream = stream_of(settings)
    seen = 0
    for number in range(processes):
        with np.load(folder / f"parts-{number}.npz") as parts:
            for name in parts.files:
                step, field, start = name.split("|")
                expected = fields_of(stream, int(step) * G)[field]
                np.testing.assert_array_equal(parts[name], expected[int(start) :][: len(parts[name])], err_msg=name)
                seen += len(parts[name])
    assert seen == 3 * G * 6


# ------------------------------------------------------------------------------------------------------- settings


def test_settings_and_what_they_mean(settings: dict[str, Any]) -> None:
    read = read_maxtext_settings(settings)
    assert (read.train_samples, read.eval_samples, read.granularity, read.seed) == (48, 32, "sequence", 7)
    assert read.options == FieldOptions(max_segments_per_sample=25)
    least = {name: settings[name] for name in ("grain_file_type", "grain_train_files", "max_target_length")}
    plain = read_maxtext_settings({**least, "steps": -1, "global_batch_size_to_load": 4, "num_epoch": 3})
    assert (plain.steps, plain.epochs, plain.train_samples, plain.eval_samples) == (None, 3, None, None)
    assert (plain.seed, plain.eod_id, plain.splits, plain.eval_batch) == (0, 0, None, 4)
    changed = read_maxtext_settings(
        {
            **settings,
            "reset_attention_mask": False,
            "eod_mask_loss": True,
            "packing_max_segments_per_sample": 0,
            "mmap_split_sentences": True,
            "global_batch_size_to_load_eval": 16,
            "steps": 7,
        }
    )
    assert changed.options == FieldOptions(reset_attention_mask=False, reset_position_ids=False, eod_mask_loss=True)
    assert (changed.granularity, changed.eval_batch, changed.eval_samples) == ("document", 16, 3 * 2 * 16)


WRONG: list[tuple[str, Any, str]] = [
    ("dataset_type", "tfds", r"is 'tfds'; it must be 'grain': the data come through its Grain pipeline"),
    ("grain_file_type", "mmap", r"is 'mmap', whose windows leave EOD out .*; take 'mmap_npy'"),
    ("grain_file_type", "arrayrecord", r"is 'arrayrecord'; the rule is 'mmap_npy' or 'gristmill'"),
    ("grain_train_files", " ", r"is empty; name the data"),
    ("grain_train_files", 5, r"is 5; the rule is text"),
    ("grain_eval_files", "", r"is empty, but eval_interval is 3; name data, or set it to -1"),
    ("max_target_length", 0, r"is 0; the rule is a whole number of at least 1"),
    ("global_batch_size_to_load", 8.0, r"is 8.0; the rule is a whole number of at least 1"),
    ("global_batch_size_to_load_eval", -8, r"is -8; the rule is a whole number of at least 1"),
    ("steps", 0, r"is 0; the rule is a number of steps, or -1 for as many as num_epoch makes"),
    ("num_epoch", 0, r"is 0; the rule is a whole number of at least 1"),
    ("data_shuffle_seed", 2**32, r"is 4294967296; the rule is a whole number from 0 to 4294967295"),
    ("enable_data_shuffling", False, r"is False; it must be True: the order is a shuffled one"),
    ("mmap_eod_id", True, r"is True; the rule is a whole number of at least 0"),
    ("mmap_npy_split", "9;1", r"split '9;1': the proportion of train, '9;1', is not a number"),
    ("mmap_npy_split", None, r"is None; the rule is text"),
    ("mmap_split_sentences", "yes", r"is 'yes'; the rule is True or False"),
    ("mmap_eod", 1, r"is no setting; did you mean mmap_eod_id\?"),
    ("blend_zzz", 1, r"is no setting; "),
    ("grain_use_elastic_iterator", True, r"is True; it must be False: what is given here is elastic by itself"),
    ("grain_train_mixture_config_path", "m.json", r"is 'm.json'; it must be '': write the mixture into grain_train_"),
    ("expansion_factor_real_data", 2, r"is 2; it must be -1: every host reads its own rows"),
    ("colocated_python_data_input", True, r"is True; it must be False: there the batches are made by MaxText's own"),
    ("use_sft", True, r"is True; it must be False: the data are documents for pre-training"),
    ("use_dpo", True, r"is True; it must be False"),
    ("packing_max_segments_per_sample", -1, r"is -1; the rule is a whole number of at least 0"),
    ("vocab_size", "32k", r"is '32k'; the rule is a whole number of at least 1"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG, ids=[f"{name}={value!r}" for name, value, _ in WRONG])
def test_a_wrong_setting(settings: dict[str, Any], name: str, value: Any, message: str) -> None:
    with pytest.raises(SetupError, match=rf"^MaxText settings: 1 setting does not fit\n  - {name}: {message}"):
        read_maxtext_settings({**settings, name: value})


def test_all_wrong_settings_are_told_at_once(settings: dict[str, Any], mesh: Mesh) -> None:
    with pytest.raises(SetupError) as caught:
        read_maxtext_settings({})
    missing = ["grain_file_type", "grain_train_files", "max_target_length", "global_batch_size_to_load", "steps"]
    assert [problem.key for problem in caught.value.problems] == missing
    assert all("is not set" in problem.message for problem in caught.value.problems)
    wrong = {**settings, "mmap_eod": 1, "steps": 0, "use_sft": True, "grain_file_type": "gristmill"}
    with pytest.raises(SetupError, match=r"4 settings do not fit") as caught:
        maxtext_batches(wrong, mesh=mesh)
    assert [problem.key for problem in caught.value.problems] == ["mmap_eod", "use_sft", "steps", "mmap_npy_split"]


def test_what_does_not_fit_the_data_or_the_devices(settings: dict[str, Any], mesh: Mesh) -> None:
    with pytest.raises(
        SetupError, match=r"global_batch_size_to_load: global_batch 12 cannot be dealt out to 8 devices"
    ):
        maxtext_batches({**settings, "global_batch_size_to_load": 12}, mesh=mesh)
    with pytest.raises(SetupError, match=r"global_batch_size_to_load_eval: .*process 3 has no device in the mesh of 8"):
        maxtext_batches(settings, "eval", mesh=mesh, process_index=3)
    with pytest.raises(SetupError, match=r"process 2 of 2: processes are numbered from 0"):
        maxtext_batches(settings, process_index=2, process_count=2)
    with pytest.raises(SetupError, match=r"global_batch 8 cannot be dealt out to 3 processes: make it a multiple"):
        maxtext_batches(settings, process_index=2, process_count=3)
    with pytest.raises(SetupError, match=r"grain_eval_files: is empty, so there is nothing to validate on"):
        maxtext_stream({**settings, "grain_eval_files": "", "eval_interval": -1}, "eval")
    with pytest.raises(SettingsError, match=r"purpose must be 'train' or 'eval', not 'test'"):
        maxtext_stream(settings, "test")  # type: ignore[arg-type]  # on purpose


def test_indices_are_kept_where_the_settings_say(settings: dict[str, Any], tmp_path: Path) -> None:
    stream = maxtext_stream(settings, process_index=1)
    assert not list(tmp_path.glob("*/*.npy")), "only process 0 writes"
    assert maxtext_stream(settings).fingerprint == stream.fingerprint
    assert len(list(tmp_path.glob("[ab]/*-document_index.npy"))) == 2
    shutil.rmtree(tmp_path / "a")
