"""The same corpus, byte for byte, from every way of running the stages, on a disk and in an object store."""

import hashlib
import importlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from gristmill.formats.recipe import parse_recipe
from gristmill.formats.verify import verify_corpus
from gristmill.pipelines.beam_runners import run_beam
from gristmill.pipelines.encoders import TOKENIZER_FOLDER
from gristmill.pipelines.index import plan_index
from gristmill.pipelines.job import make_job
from gristmill.pipelines.plan import plan_run, write_plan
from gristmill.pipelines.shards import plan_shards
from gristmill.pipelines.stage_names import STAGES
from gristmill.tokenize.engine import choose_engine
from gristmill.tokenize.load import resolve_tokenizer
from gristmill.tokenize.resolved import write_resolved

RUNNERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "in memory": ("FnApiRunner", ()),
    "two threads": ("FnApiRunner", ("--direct_num_workers=2",)),
    "two threads over gRPC": ("FnApiRunner", ("--direct_num_workers=2", "--direct_running_mode=multi_threading")),
    "every bundle twice": ("FnApiRunner", ("--direct_runner_bundle_repeat=1",)),
    "every bundle twice, two threads": ("FnApiRunner", ("--direct_runner_bundle_repeat=1", "--direct_num_workers=2")),
    "two processes": ("FnApiRunner", ("--direct_num_workers=2", "--direct_running_mode=multi_processing")),
    "Beam's own choice": ("DirectRunner", ()),
    "bundle based": ("BundleBasedDirectRunner", ()),
    "portable": ("PortableRunner", ("--job_endpoint=embed", "--environment_type=LOOPBACK")),
    "portable, workers over gRPC": (
        "PortableRunner",
        ("--job_endpoint=embed", "--environment_type=beam:env:embedded_python_grpc:v1"),
    ),
    "processes of Dask": ("DaskRunner", ()),
    "processes without Beam": ("loop", ()),
    "auto with an option": ("auto", ("--direct_num_workers=2",)),
}
TOP: dict[str, Any] = {
    "shards": {"target_tokens": 2000},
    "index": {"sequence_length": 32, "samples": 200, "splits": "80,15,5"},
}


def fill(workshop: Any, less: int = 1) -> list[dict[str, Any]]:
    """Three sources with copies within and across, bad records, and one that is not cleaned; `less` divides them."""
    rng = random.Random(7)
    words = ["the", "quick", "fox", "né", "\n", "x = 1", "世界", "<|endoftext|>"]
    shared = [" ".join(rng.choices(words, k=30)) + str(number) for number in range(40)]

    def texts(count: int) -> list[str]:
        own = [" ".join(rng.choices(words, k=rng.randint(1, 60))) + str(rng.random()) for _ in range(count)]
        return [text for pair in zip(own, rng.choices(shared + own[:5], k=count), strict=True) for text in pair]

    for part in range(4):
        workshop.jsonl(f"web/{part}.jsonl", texts(60 // less))
    with open(workshop.folder / "web" / "2.jsonl", "ab") as file:
        file.write(b'oops\n{"text": 5}\n{"text": ""}\n')
    workshop.write("lines/a.txt", "\n".join(text.replace("\n", " ") for text in texts(80 // less)).encode())
    for number in range(50 // less):
        workshop.write(f"code/m{number}.py", f"# {number % 40}\ndef f():\n\treturn {number % 40}\n".encode())
    folder = workshop.folder
    return [
        {"id": "web", "files": [f"{folder}/web"], "bad_records": "skip", "max_bad_fraction": 0.1, "weight": 0.6},
        {"id": "lines", "files": [f"{folder}/lines/*"], "document": "line", "clean": False, "weight": 0.3},
        {"id": "code", "files": [f"{folder}/code"], "weight": 0.1},
    ]


@pytest.fixture(scope="module", autouse=True)
def small_splits() -> Iterator[None]:
    """Splits of some kilobytes; only the launching process cuts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gristmill.pipelines.plan.SPLIT_BYTES", 6000)
        yield


@pytest.fixture(scope="module")
def by_loop(small_splits: None, new_workshop: Callable[[], Any]) -> tuple[Any, list[dict[str, Any]], dict[str, str]]:
    """A filled workshop, its sources, and what the plain loop makes of them."""
    workshop = new_workshop()
    sources = fill(workshop)
    output = str(workshop.folder / "by-loop")
    workshop.prepare(*sources, output=output, **TOP)
    tree = workshop.tree(output)
    assert sum(name.endswith(".keys") for name in tree) > 10
    assert sum(name.endswith(".bin") for name in tree) > 6
    assert sum(name.startswith("rejected/") for name in tree) >= 1
    assert verify_corpus(output) == []
    return workshop, sources, tree


@pytest.fixture
def loop(by_loop: Any) -> Iterator[Any]:
    """The same, with the place of the other runs empty."""
    yield by_loop
    shutil.rmtree(by_loop[0].folder / "out", ignore_errors=True)


def way(name: str) -> dict[str, Any]:
    """Options of a run by one of `RUNNERS`."""
    runner, flags = RUNNERS[name]
    workers = {"loop": {"max_workers": 3}, "DaskRunner": {"max_workers": 2}}.get(runner, {})
    return {"runner": runner, "flags": flags, **workers}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNERS)
def test_every_runner_makes_the_same_corpus(loop: Any, name: str) -> None:
    workshop, sources, expected = loop
    result = workshop.prepare(*sources, options=way(name), **TOP)
    assert (result.stages, result.finished) == (STAGES, True)
    assert workshop.tree() == expected


@pytest.fixture
def shuffled_listings(monkeypatch: pytest.MonkeyPatch) -> Random:
    """Folders and buckets that are listed in another order each time they are asked."""
    rng = Random(1)
    scan, names = os.scandir, os.listdir

    class Shuffled:
        def __init__(self, path: Any = ".") -> None:
            with scan(path) as found:
                self.entries = iter(shuffled(list(found)))

        def __iter__(self) -> Any:
            return self.entries

        def __next__(self) -> Any:
            return next(self.entries)

        def __enter__(self) -> Any:
            return self.entries

        def __exit__(self, *_: object) -> None: ...

        def close(self) -> None: ...

    def shuffled(found: list[Any]) -> list[Any]:
        return rng.sample(found, len(found))

    monkeypatch.setattr(os, "scandir", Shuffled)
    monkeypatch.setattr(os, "listdir", lambda *path: shuffled(names(*path)))
    stored = importlib.import_module("gcsfs.core").GCSFileSystem
    find = stored._find

    async def found(self: Any, *words: Any, **options: Any) -> Any:
        result = await find(self, *words, **options)
        return dict(shuffled(list(result.items()))) if isinstance(result, dict) else shuffled(result)

    monkeypatch.setattr(stored, "_find", found)
    return rng


@pytest.fixture(scope="module")
def stored(small_splits: None, new_workshop: Callable[[], Any], store: Any) -> tuple[Any, list[Any], dict[str, str]]:
    """A workshop, sources that lie in a store, and what the plain loop makes of the same on the disk."""
    workshop = new_workshop()
    sources = fill(workshop, less=6)
    workshop.prepare(*sources, **TOP)
    out, inputs, objects = workshop.folder / "out", str(workshop.folder), f"{store.url}/in"
    expected = {name: hashlib.md5((out / name).read_bytes()).hexdigest() for name in workshop.tree()}
    for path in workshop.folder.rglob("*"):
        if path.is_file() and not path.is_relative_to(out):
            store.put(f"in/{path.relative_to(workshop.folder).as_posix()}", path.read_bytes())
    moved = [{**source, "files": [path.replace(inputs, objects) for path in source["files"]]} for source in sources]
    return workshop, moved, expected


SAME = {"Beam's own choice", "auto with an option", "portable, workers over gRPC"}
STORED = [name for name in RUNNERS if "twice" not in name and name not in SAME]


@pytest.mark.slow
@pytest.mark.parametrize("name", STORED)
def test_every_runner_from_a_store_to_a_store(
    store: Any, stored: Any, bucket: str, shuffled_listings: Random, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    workshop, sources, expected = stored
    for variable, value in store.environment.items():
        monkeypatch.setenv(variable, value)  # for worker processes
    output = f"out-{STORED.index(name)}"
    result = workshop.prepare(*sources, output=f"{bucket}/{output}", options=way(name), **TOP)
    assert (result.stages, result.finished) == (STAGES, True)
    assert store.tree(output) == expected


def test_the_order_of_listings_is_not_seen(loop: Any, shuffled_listings: Random) -> None:
    workshop, sources, expected = loop
    before = shuffled_listings.getstate()
    workshop.prepare(*sources, **TOP)
    assert workshop.tree() == expected
    assert shuffled_listings.getstate() != before


@pytest.mark.slow
def test_groups_that_are_fetched_bit_by_bit(loop: Any) -> None:
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    workshop, sources, expected = loop
    recipe = parse_recipe(workshop.values(*sources, **TOP))
    plan = plan_run(recipe)
    resolved = resolve_tokenizer(recipe.tokenizer.path, recipe.tokenizer.eod)
    job = make_job(recipe, plan, tokenizer=resolved, engine=choose_engine(resolved).engine)
    write_plan(job.corpus, plan)
    write_resolved(resolved, job.path(TOKENIZER_FOLDER))
    run_beam(job, STAGES, FnApiRunner(use_state_iterables=True), [], write_manifest=True)
    assert workshop.tree() == expected


@pytest.mark.slow
def test_runners_may_take_turns(loop: Any) -> None:
    workshop, sources, expected = loop
    in_memory = {"runner": "FnApiRunner"}
    steps: list[dict[str, Any]] = [
        {**in_memory, "source": "lines"},
        {"last": "clean"},
        {**in_memory, "source": "web", "first": "tokenize"},
        {**in_memory, "last": "tokenize"},
        {},
    ]
    for step in steps:
        workshop.prepare(*sources, options=step, **TOP)
    assert workshop.tree() == expected


@pytest.mark.slow
def test_a_run_without_any_cleaning(workshop: Any) -> None:
    sources = [{"files": [workshop.jsonl(f"{part}.jsonl", [f"text {part}", "both"])]} for part in range(3)]
    top = {"defaults": {"clean": False}}
    workshop.prepare(*sources, output=str(workshop.folder / "by-loop"), **top)
    workshop.prepare(*sources, options={"runner": "FnApiRunner"}, **top)
    assert workshop.tree() == workshop.tree(workshop.folder / "by-loop")
    assert [workshop.texts(f"s{part}") for part in range(3)] == [[f"text {part}", "both"] for part in range(3)]


def test_the_order_of_work_is_not_seen(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop, sources, expected = loop
    rng = random.Random(3)

    def shuffled(plan: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: rng.sample(found := list(plan(*given)), len(found))

    monkeypatch.setattr("gristmill.pipelines.loop.plan_shards", shuffled(plan_shards))
    monkeypatch.setattr("gristmill.pipelines.loop.plan_index", shuffled(plan_index))
    workshop.prepare(*sources, **TOP)
    assert workshop.tree() == expected
