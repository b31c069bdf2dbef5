"""Forecasts of index sets: they say what is then built, and what would stop it, before anything is."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.formats.blend import greedy_blend, normalise
from gristmill.formats.errors import DataError, SettingsError
from gristmill.formats.index_build import build_index_set, source_lengths
from gristmill.formats.index_forecast import IndexForecast, check_forecast, forecast_index, range_tokens
from gristmill.formats.index_plan import IndexSettings, MemberSource, ShardIdentity, SplitRequest
from gristmill.formats.index_set import find_sets
from gristmill.formats.index_sources import index_sources
from gristmill.formats.manifest import Manifest, read_manifest
from gristmill.formats.schedule import Phase


def wanted(**changes: Any) -> IndexSettings:
    values: dict[str, Any] = {"sequence_length": 8, "seed": 5, "splits": "8,1,1", "train": SplitRequest(300)}
    return IndexSettings(**(values | changes))


def forecast_of(corpus: Path, manifest: Manifest, settings_: IndexSettings) -> IndexForecast:
    size = manifest.token_dtype.itemsize
    return forecast_index(
        settings_,
        index_sources(manifest.sources),
        lambda plan: range_tokens(str(corpus), manifest.source(plan.source), size, plan.start, plan.end),
    )


# Token counts


def test_tokens_of_any_range_are_the_sum_of_its_lengths(small_corpus: Path) -> None:
    manifest = read_manifest(str(small_corpus))
    assert max(len(entry.shards) for entry in manifest.sources) > 1
    for source, entry in zip(index_sources(manifest.sources), manifest.sources, strict=True):
        lengths = source_lengths(str(small_corpus), source)
        for start in range(0, len(lengths) + 1, 7):
            for end in range(start, len(lengths) + 1, 5):
                expected = int(lengths[start:end].sum())
                assert range_tokens(str(small_corpus), entry, 2, start, end) == expected, (start, end)
        assert range_tokens(str(small_corpus), entry, 2, 0, len(lengths)) == entry.tokens


def test_lengths_are_as_narrow_as_they_can_be(small_corpus: Path, tmp_path: Path) -> None:
    corpus = shutil.copytree(small_corpus, tmp_path / "corpus")
    manifest = read_manifest(str(corpus))
    (source,) = [one for one in index_sources(manifest.sources) if len(one.shards) > 1]
    assert source_lengths(str(corpus), source).dtype == np.uint16
    before = source_lengths(str(corpus), source).tolist()
    shard = manifest.source(source.id).shards[-1]  # its last document becomes very long
    path = corpus / f"{shard.path}.idx"
    data = bytearray(path.read_bytes())
    at = 34 + 4 * (shard.documents - 1)
    longer = int.from_bytes(data[at : at + 4], "little") + 70_000
    data[at : at + 4] = longer.to_bytes(4, "little")
    path.write_bytes(data)
    with open(corpus / f"{shard.path}.bin", "ab") as file:
        file.write(bytes(140_000))
    lengths = source_lengths(str(corpus), source)
    assert lengths.dtype == np.int32
    assert lengths.tolist() == [*before[:-1], longer]


# What is said is what is built


@pytest.mark.parametrize(
    "settings_",
    [
        wanted(),
        wanted(train=SplitRequest(300), schedule=(Phase(200, (0.0, 1.0)),)),
        wanted(valid=SplitRequest(samples=9), test=SplitRequest(epochs=2)),
        wanted(add_extra_token=False, splits="1,1,0"),
    ],
    ids=["weighted", "scheduled", "held out", "without the extra token"],
)
def test_a_forecast_says_what_is_then_built(small_corpus: Path, tmp_path: Path, settings_: IndexSettings) -> None:
    corpus = shutil.copytree(small_corpus, tmp_path / "corpus")
    manifest = read_manifest(str(corpus))
    forecast = forecast_of(corpus, manifest, settings_)
    check_forecast(forecast)
    built = build_index_set(str(corpus), manifest, settings_)
    for split, order in zip(forecast.splits, built.orders, strict=True):
        assert (split.split, split.samples) == (order.split, order.samples)
        assert split.left_out == order.left_out
        assert [member.report for member in split.members] == [
            dataclasses.replace(member, files={}) for member in order.members
        ]
        if order.blend is None:
            assert split.rule is None
            continue
        assert split.rule is not None
        assert (split.rule.weights, split.rule.size) == (order.blend.weights, order.blend.size)
        blend = built.open_blend(order.split)
        assert blend is not None
        drawn = np.bincount(blend.dataset_index[: order.samples], minlength=len(order.members))
        for member, count in zip(split.members, drawn.tolist(), strict=True):
            assert 0 <= member.samples - count <= len(settings_.schedule) + 1
            assert member.passes == pytest.approx(member.samples * 8 / member.report.tokens)
    assert forecast.file_bytes == sum(facts.size for facts in built.files.values())


def test_a_forecast_without_weights_says_what_is_then_built(small_corpus: Path, tmp_path: Path) -> None:
    corpus = shutil.copytree(small_corpus, tmp_path / "corpus")
    manifest = read_manifest(str(corpus))
    plain = dataclasses.replace(
        manifest, sources=tuple(dataclasses.replace(source, weight=None) for source in manifest.sources)
    )
    for settings_ in (wanted(train=SplitRequest(epochs=2)), wanted(train=SplitRequest(40))):
        forecast = forecast_of(corpus, plain, settings_)
        built = build_index_set(str(corpus), plain, settings_)
        train, order = forecast.splits[0], built.order("train")
        assert train.samples == order.samples
        assert sum(member.samples for member in train.members) == pytest.approx(order.samples, abs=1)
        assert forecast.file_bytes == sum(facts.size for facts in built.files.values())


# What would stop a build


def sources(*entries: tuple[str, float, float | None]) -> list[MemberSource]:
    return [MemberSource(name, weight, most, (ShardIdentity("p", name, 100),)) for name, weight, most in entries]


def test_everything_that_is_wrong_is_said_at_once() -> None:
    tokens = {"web": 10_000, "tiny": 0, "math": 90, "rare": 9}
    forecast = forecast_index(
        wanted(splits="1"),
        sources(("web", 1.0, None), ("tiny", 1.0, None), ("math", 1.0, 2.0), ("rare", 1e-9, None)),
        lambda plan: tokens[plan.source],
    )
    with pytest.raises(DataError) as caught:
        check_forecast(forecast)
    said = str(caught.value).splitlines()
    assert said[0] == "the index set cannot be built, for 2 reasons:"
    assert "source 'tiny' gives no sample: its 100 sequences hold 0 tokens" in said[1]
    assert "source 'math' would be repeated too often" in said[2]
    forecast = forecast_index(
        wanted(splits="1", train=SplitRequest(2)),
        sources(("web", 1.0, None), ("other", 1.0, None), ("rare", 1e-9, None)),
        lambda _: 10_000,
    )
    with pytest.raises(SettingsError, match="source 'rare' would get none of the 2 samples"):
        check_forecast(forecast)


def test_settings_errors_alone_are_a_settings_error() -> None:
    forecast = forecast_index(wanted(splits="1"), sources(("web", 1.0, 1.0), ("math", 1.0, 1.0)), lambda plan: 90)
    with pytest.raises(SettingsError, match="for 2 reasons"):
        check_forecast(forecast)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(1e-6, 1), min_size=2, max_size=6), st.integers(1, 3000))
def test_a_member_that_would_get_no_sample_is_found_without_drawing_all(weights: list[float], samples: int) -> None:
    given_sources = sources(*((f"s{place}", weight, None) for place, weight in enumerate(weights)))
    forecast = forecast_index(wanted(splits="1", train=SplitRequest(samples)), given_sources, lambda _: 10**7)
    drawn = greedy_blend(normalise(normalise(weights).tolist()), samples)[0]
    missing = sorted(set(range(len(weights))) - set(drawn.tolist()))
    assert len(forecast.problems) == min(1, len(missing))
    if missing:
        assert f"source 's{missing[0]}' would get none of the {samples} samples" in str(forecast.problems[0])


def test_nothing_is_built_when_something_is_wrong(small_corpus: Path, tmp_path: Path) -> None:
    corpus = shutil.copytree(small_corpus, tmp_path / "corpus")
    shutil.rmtree(corpus / "indices")
    manifest = read_manifest(str(corpus))
    limited = dataclasses.replace(
        manifest, sources=(manifest.sources[0], dataclasses.replace(manifest.sources[1], max_epochs=0.1))
    )
    with pytest.raises(SettingsError, match="source 'math' would be repeated too often"):
        build_index_set(str(corpus), limited, wanted())
    assert find_sets(str(corpus)) == []
    assert not (corpus / "indices").exists()


def test_preparing_names_it_before_any_member_is_built(workshop: Any) -> None:
    workshop.jsonl("a.jsonl", [f"the quick brown fox {number}" for number in range(40)])
    workshop.jsonl("b.jsonl", [f"the lazy dog {number}" for number in range(40)])
    recipes = [
        {"files": str(workshop.folder / "a.jsonl"), "weight": 1.0},
        {"files": str(workshop.folder / "b.jsonl"), "weight": 1.0, "max_epochs": 1.5},
    ]
    with pytest.raises(SettingsError, match="train: source 's1' would be repeated too often"):
        workshop.prepare(*recipes, index={"sequence_length": 8, "samples": 5000, "splits": "1"})
    assert not list((workshop.folder / "out").rglob("*.npy"))


def test_a_finished_corpus_stays_when_its_recipe_asks_for_too_much(
    workshop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        workshop.jsonl(f"{name}.jsonl", [f"the quick brown fox {number}" for number in range(40)])
    recipes = [
        {"files": str(workshop.folder / f"{name}.jsonl"), "weight": 1.0, "max_epochs": 3.0, "clean": False}
        for name in ("a", "b")
    ]

    def prepare(start: int, samples: int = 120) -> None:
        schedule = [{"from_sample": start, "weights": {"s0": 1, "s1": 3}}]
        index = {"sequence_length": 8, "samples": samples, "splits": "1", "schedule": schedule}
        workshop.prepare(*recipes, index=index, options={"quiet": False})

    prepare(100)
    before = workshop.tree()
    caplog.set_level("INFO", "gristmill")
    with pytest.raises(SettingsError, match="source 's1' would be repeated too often"):
        prepare(100, samples=5000)
    assert workshop.tree() == before
    prepare(90)
    said = caplog.text
    assert "stage index was finished before, but index.schedule.phase_1.from_sample was 100, now 90;" in said
