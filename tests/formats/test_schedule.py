"""Weight schedules: the rule against a plain oracle and Megatron's blends, sizes, settings, sets and fingerprints."""

import dataclasses
import hashlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gristmill.formats.blend import draw_compiled, draw_numpy, empty_blend, member_samples, normalise
from gristmill.formats.errors import FormatError, SettingsError
from gristmill.formats.index_blend import BlendReport, parse_blend_report
from gristmill.formats.index_order import OrderChange, order_history
from gristmill.formats.index_set import (
    IndexSet,
    IndexSettings,
    MemberReport,
    MemberSource,
    ShardIdentity,
    SplitRequest,
    build_blend,
    build_member,
    commit_set,
    order_fingerprint,
    plan_members,
    read_set,
    set_key,
    set_path,
    write_blend,
    write_member,
)
from gristmill.formats.schedule import (
    Phase,
    count_members,
    draw_phases,
    parse_phases,
    phase_spans,
    phase_targets,
    phases_value,
    shares_above_zero,
)

SPLITS = ("train", "valid", "test")
GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "golden" / "megatron_kernels.json").read_text())
Drawn = tuple[list[int], list[int]]


def oracle(phases: list[Phase], samples: int) -> Drawn:
    """The rule in plain Python, sample by sample."""
    members = len(phases[0].weights)
    drawn, chosen, numbers = [0] * members, [], []
    for sample in range(samples):
        phase = max((one for one in phases if one.from_sample <= sample), key=lambda one: one.from_sample)
        if sample == phase.from_sample:
            since = [0] * members
        x = float(max(sample - phase.from_sample, 1))
        shares = shares_above_zero(shares_above_zero(phase.weights))
        lags = [shares[m] * x - float(since[m]) if shares[m] > 0 else -math.inf for m in range(members)]
        best = lags.index(max(lags))
        chosen.append(best)
        numbers.append(drawn[best])
        drawn[best] += 1
        since[best] += 1
    return chosen, numbers


def draw_all(phases: list[Phase], samples: int, *, cuts: tuple[int, ...] = ()) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rule as it is built, in one go or in pieces."""
    twice = [Phase(phase.from_sample, tuple(shares_above_zero(shares_above_zero(phase.weights)))) for phase in phases]
    blend = empty_blend(samples)
    counts, since = (np.zeros(len(phases[0].weights), np.int64) for _ in range(2))
    edges = [0, *sorted(min(cut, samples) for cut in cuts), samples]
    for start, stop in itertools.pairwise(edges):
        draw_phases(twice, start, counts, since, blend[0][start:stop], blend[1][start:stop])
    assert counts.tolist() == count_members(blend[0], len(counts)).tolist()
    return blend


weight_lists = st.one_of(
    st.lists(st.integers(0, 9).map(float), min_size=4, max_size=4),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
).filter(lambda weights: sum(weights) > 1e-3)
schedules = st.lists(st.tuples(st.integers(1, 90), weight_lists), max_size=4, unique_by=lambda entry: entry[0])


@settings(deadline=None, max_examples=150)
@given(weight_lists, schedules, st.integers(1, 200), st.lists(st.integers(0, 200), max_size=3))
def test_the_rule_is_the_oracles_however_it_is_cut(
    first: list[float], later: list[tuple[int, list[float]]], samples: int, cuts: list[int]
) -> None:
    phases = [Phase(0, tuple(first)), *(Phase(start, tuple(weights)) for start, weights in sorted(later))]
    expected = oracle(phases, samples)
    whole = draw_all(phases, samples)
    assert [array.dtype.name for array in whole] == ["int16", "int64"]
    assert (whole[0].tolist(), whole[1].tolist()) == expected
    pieces = draw_all(phases, samples, cuts=tuple(cuts))
    assert (pieces[0].tolist(), pieces[1].tolist()) == expected


@settings(deadline=None, max_examples=60)
@given(weight_lists, weight_lists, weight_lists, st.integers(1, 60), st.integers(1, 60))
def test_equal_phases_give_the_same_beginning(
    first: list[float], second: list[float], third: list[float], length: int, more: int
) -> None:
    begun = [Phase(0, tuple(first)), Phase(length, tuple(second))]
    longer = [*begun, Phase(length + more, tuple(third))]
    one, other = draw_all(begun, length + more), draw_all(longer, length + more + 50)
    assert [array[: length + more].tolist() for array in other] == [array.tolist() for array in one]


def test_the_rule_begins_anew_and_does_not_catch_up() -> None:
    phases = [Phase(0, (0.9, 0.1)), Phase(1000, (0.1, 0.9))]
    dataset_index, numbers = draw_all(phases, 2000)
    assert np.bincount(dataset_index[:1000]).tolist() == [900, 100]
    assert np.bincount(dataset_index[1000:1010]).tolist() == [1, 9]
    assert np.bincount(dataset_index[1000:1500]).tolist() == [50, 450]
    for member in (0, 1):
        own = numbers[dataset_index == member]
        assert own.tolist() == list(range(len(own))), "a member's own counter goes on"


def digest(*arrays: NDArray[Any]) -> str:
    state = hashlib.sha256()
    for array in arrays:
        state.update(f"{array.dtype.name}{list(array.shape)}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


@pytest.mark.parametrize("rule", [draw_numpy, draw_compiled], ids=["numpy", "compiled"])
def test_every_phase_is_a_blend_of_megatrons(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden blends, one after the other as phases of one schedule, each over some of 200 members."""
    monkeypatch.setattr("gristmill.formats.schedule.draw", rule)
    size = 50_000
    wanted = [blend for blend in GOLDEN["blends"] if rule is draw_compiled or len(blend["weights"]) <= 6]
    members = 200
    random = np.random.default_rng(5)
    places = [np.sort(random.choice(members, len(blend["weights"]), replace=False)) for blend in wanted]
    phases = []
    for number, (blend, place) in enumerate(zip(wanted, places, strict=True)):
        assert blend["size"] == size
        weights = np.zeros(members)
        weights[place] = normalise(blend["weights"])
        phases.append(Phase(number * size, tuple(weights.tolist())))
    blend_arrays = empty_blend(size * len(wanted))
    counts, since = np.zeros(members, np.int64), np.zeros(members, np.int64)
    draw_phases(phases, 0, counts, since, *blend_arrays)
    before = np.zeros(members, np.int64)
    for number, (blend, place) in enumerate(zip(wanted, places, strict=True)):
        chosen = blend_arrays[0][number * size : (number + 1) * size]
        numbers = blend_arrays[1][number * size : (number + 1) * size]
        local = np.searchsorted(place, chosen).astype(np.int16)
        assert digest(local, numbers - before[chosen]) == blend["sha256"]
        before += np.bincount(chosen, minlength=members)


# Sizes


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=9), st.integers(1, 5000))
def test_with_one_phase_a_member_is_as_large_as_megatrons(weights: list[float], samples: int) -> None:
    shares = normalise(weights).tolist()
    lengths = np.full(50, 40, np.int32)
    sources = [make_source(f"s{place}", 50, weight) for place, weight in enumerate(weights)]
    plans = plan_members(make_settings(samples), sources).split("train")
    assert [plan.samples for plan in plans] == member_samples(samples, shares)
    assert len(lengths) == plans[0].source_sequences


def test_a_member_sums_its_phases() -> None:
    schedule = (Phase(100, (0.0, 1.0, 3.0)), Phase(250, (1.0, 0.0, 0.0)))
    sources = [make_source("a", 50, 3.0), make_source("b", 50, 1.0), make_source("c", 50, 0.0)]
    plans = plan_members(make_settings(1000, schedule=schedule), sources).split("train")
    assert [plan.draws for plan in plans] == [75 + 0 + 750, 25 + 38 + 0, 0 + 113 + 0]
    assert [plan.samples for plan in plans] == [math.ceil(plan.draws * 1.005) for plan in plans if plan.draws]
    assert [plan.weight for plan in plans] == [0.75, 0.25, 0.0]


@settings(deadline=None, max_examples=80)
@given(weight_lists, schedules, st.integers(1, 300))
def test_no_member_gives_more_than_its_target(
    first: list[float], later: list[tuple[int, list[float]]], samples: int
) -> None:
    phases = [Phase(0, tuple(first)), *(Phase(start, tuple(weights)) for start, weights in sorted(later))]
    once = [Phase(phase.from_sample, tuple(shares_above_zero(phase.weights))) for phase in phases]
    assert sum(span for _, span in phase_spans(once, samples)) == samples
    targets = phase_targets(once, samples)
    counts = count_members(draw_all(phases, samples)[0], 4)
    assert all(count <= target for count, target in zip(counts.tolist(), targets, strict=True))


# Settings


@pytest.mark.parametrize(
    ("start", "weights", "message"),
    [
        (-1, (1.0,), "a phase of weights begins at sample -1; samples count from 0"),
        (5, (1.0, -1.0), "weights from sample 5 on: weight -1.0 of member 1 is negative"),
        (5, (float("nan"), 1.0), "weights from sample 5 on: weight nan of member 0 is not a finite number"),
        (5, (float("inf"), 1.0), "weights from sample 5 on: weight inf"),
        (5, (0.0, 0.0), "weights from sample 5 on: all 2 weights are 0"),
        (5, (), "weights from sample 5 on: 0 members"),
    ],
)
def test_phases_that_cannot_be_are_refused(start: int, weights: tuple[float, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Phase(start, weights)


@pytest.mark.parametrize(
    ("samples", "starts", "message"),
    [
        (None, [5], "a schedule of weights needs a number of samples of the training split"),
        (100, [0], "weights from sample 0 on: the rule is from_sample above 0 and below the 100 samples"),
        (100, [100], "weights from sample 100 on: the rule is from_sample above 0 and below the 100 samples"),
        (100, [50, 50], "weights from sample 50 on: the rule is from_sample above 50"),
        (100, [60, 50], "weights from sample 50 on: the rule is from_sample above 60"),
    ],
)
def test_schedules_that_do_not_fit_the_split_are_refused(samples: int | None, starts: list[int], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_settings(samples, schedule=tuple(Phase(start, (1.0, 1.0)) for start in starts))


@pytest.mark.parametrize(
    ("weights", "phase", "sequences", "message"),
    [
        ((None, None), (1.0, 1.0), 50, "train: a schedule changes weights, but the sources have none"),
        ((1.0, 1.0), (1.0,), 50, "train: 1 weights from sample 5 on for 2 sources: give each source exactly one"),
        ((1.0, 1.0), (0.0, 1.0), 0, "train: from sample 5 on, only sources without sequences in this split have a"),
        ((0.0, 1.0), (1.0, 0.0), 0, "train: from sample 0 on, only sources without sequences in this split have a"),
    ],
)
def test_schedules_that_do_not_fit_the_sources_are_refused(
    weights: tuple[float | None, ...], phase: tuple[float, ...], sequences: int, message: str
) -> None:
    sources = [make_source("a", 50, weights[0]), make_source("b", sequences, weights[1])]
    with pytest.raises(SettingsError, match=message):
        plan_members(make_settings(100, schedule=(Phase(5, phase),)), sources)


def test_a_source_of_weight_zero_in_every_phase_is_left_out() -> None:
    sources = [make_source("a", 50, 1.0), make_source("b", 50, 0.0), make_source("c", 50, 0.0)]
    plans = plan_members(make_settings(100, schedule=(Phase(5, (1.0, 0.0, 2.0)),)), sources)
    assert [plan.source for plan in plans.split("train")] == ["a", "c"]
    reasons = [(entry.source, entry.reason) for entry in plans.left_out if entry.split == "train"]
    assert reasons == [("b", "its weight is 0 in every phase")]


def test_a_single_source_left_has_no_blend_and_no_phases(tmp_path: Path) -> None:
    sources = [make_source("a", 60, 1.0), make_source("b", 0, 1.0)]
    index_set = build_set(tmp_path, make_settings(100, schedule=(Phase(5, (1.0, 2.0)),)), sources)
    order = index_set.order("train")
    assert (order.samples, order.blend, order.members[0].weight) == (100, None, None)
    assert order_history(index_set, "train") == ()


# Whole sets


def make_source(name: str, sequences: int, weight: float | None) -> MemberSource:
    return MemberSource(name, weight, None, (ShardIdentity(f"{name}-0", f"{name}0", sequences),))


def make_settings(samples: int | None, **changes: Any) -> IndexSettings:
    values: dict[str, Any] = {"sequence_length": 16, "seed": 1234, "splits": "1", "train": SplitRequest(samples)}
    return IndexSettings(**(values | changes))


def make_lengths(source: MemberSource) -> NDArray[np.int32]:
    return np.random.default_rng([*source.id.encode()]).integers(0, 40, source.sequences).astype(np.int32)


def build_set(folder: Path, wanted: IndexSettings, sources: list[MemberSource]) -> IndexSet:
    target = set_path(str(folder), wanted, sources)
    reports = [
        write_member(target, plan, build_member(plan, make_lengths(sources[plan.place])))
        for plan in plan_members(wanted, sources)
    ]
    built = [(split, build_blend(wanted, split, reports)) for split in SPLITS]
    blends = [write_blend(target, split, blend) for split, blend in built if blend is not None]
    return commit_set(target, wanted, sources, reports, blends)


SOURCES = [make_source("web", 300, 0.8), make_source("math", 200, 0.2), make_source("code", 100, 0.0)]
SCHEDULE = (Phase(300, (0.5, 0.5, 0.0)), Phase(700, (0.0, 0.25, 0.75)))
SETTINGS = make_settings(1001, schedule=SCHEDULE)


@pytest.fixture(scope="module")
def scheduled(tmp_path_factory: pytest.TempPathFactory) -> IndexSet:
    return build_set(tmp_path_factory.mktemp("scheduled"), SETTINGS, SOURCES)


def test_a_scheduled_set_is_stored_and_read_like_any_other(scheduled: IndexSet) -> None:
    assert read_set(scheduled.folder) == scheduled
    order, blend = scheduled.order("train"), scheduled.open_blend("train")
    assert blend is not None
    assert order.blend is not None
    assert [member.source for member in order.members] == ["web", "math", "code"]
    assert (order.samples, blend.kind, order.blend.size) == (1001, "weighted", 700 + 76 + 226)
    assert [phase.from_sample for phase in blend.phases] == [300, 700]
    phases = [Phase(0, (0.8, 0.2, 0.0)), *SCHEDULE]
    expected = oracle(phases, len(blend.dataset_index))
    assert (blend.dataset_index.tolist(), blend.dataset_sample_index.tolist()) == expected
    for place, member in enumerate(order.members):
        assert expected[0].count(place) <= member.rows
    value = json.loads((Path(scheduled.folder) / "set.json").read_text())
    assert value["settings"]["schedule"] == phases_value(SCHEDULE)
    assert parse_phases(value["settings"]["schedule"]) == SCHEDULE
    report = order.blend
    assert parse_blend_report(json.loads(json.dumps(dataclasses.asdict(report)))) == report


def test_a_schedule_is_part_of_the_key_and_an_absent_one_is_not_mentioned() -> None:
    plain = make_settings(1001)
    keys = {
        set_key(SETTINGS, SOURCES),
        set_key(plain, SOURCES),
        set_key(make_settings(1001, schedule=SCHEDULE[:1]), SOURCES),
        set_key(make_settings(1001, schedule=(dataclasses.replace(SCHEDULE[0], from_sample=301),)), SOURCES),
        set_key(make_settings(1001, schedule=(Phase(300, (0.5, 0.4, 0.1)),)), SOURCES),
    }
    assert len(keys) == 5
    whole = make_settings(1001, schedule=(Phase(300, (1, 1, 0)),))
    assert set_key(whole, SOURCES) == set_key(make_settings(1001, schedule=(Phase(300, (1.0, 1.0, 0.0)),)), SOURCES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value["settings"]["schedule"].pop(), "'code' was built but not planned"),
        (
            lambda value: value["settings"]["schedule"][0].update(from_sample=299),
            "(size|phases) .* instead of",
        ),
        (lambda value: value["blends"][0]["phases"].pop(), "phases .* instead of"),
        (lambda value: value["blends"][0]["phases"][0]["weights"].pop(), "phases .* instead of"),
        (lambda value: value["blends"][0]["phases"][0].pop("weights"), "KeyError: 'weights'"),
    ],
)
def test_a_damaged_schedule_is_never_accepted(change: Any, message: str, tmp_path: Path) -> None:
    path = Path(build_set(tmp_path, SETTINGS, SOURCES).folder) / "set.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    with pytest.raises(FormatError, match=rf"set\.json: .*({message})"):
        read_set(str(path.parent))


def test_a_member_that_would_get_no_sample_in_any_phase_is_an_error() -> None:
    wanted = make_settings(100, schedule=(Phase(99, (1.0, 1.0)),))
    sources = [make_source("a", 50, 1.0), make_source("b", 50, 0.0)]
    reports = [
        MemberReport(
            split="train",
            source=plan.source,
            place=plan.place,
            start=0,
            end=50,
            tokens=900,
            epochs=3,
            separate=False,
            rows=150,
            weight=plan.weight,
            left_out=None,
        )
        for plan in plan_members(wanted, sources)
    ]
    with pytest.raises(SettingsError, match="'b' would get none of the 100 samples at its shares in the schedule"):
        build_blend(wanted, "train", reports)


# Fingerprints


def test_each_phase_is_a_change_in_the_history(scheduled: IndexSet) -> None:
    history = order_history(scheduled, "train")
    assert [change.from_sample for change in history] == [300, 700]
    assert history[1].parent == history[0].fingerprint
    assert history[-1].fingerprint == order_fingerprint(scheduled, "train")
    assert len({history[0].parent, history[0].fingerprint, history[1].fingerprint}) == 3
    again = [OrderChange(**json.loads(json.dumps(dataclasses.asdict(change)))) for change in history]
    assert [change.fingerprint for change in again] == [change.fingerprint for change in history]


def train_history(folder: Path, wanted: IndexSettings, sources: list[MemberSource]) -> list[str]:
    """Fingerprints from the oldest stream to the newest."""
    index_set = build_set(folder, wanted, sources)
    return [change.parent for change in order_history(index_set, "train")] + [order_fingerprint(index_set, "train")]


def test_sets_whose_first_phases_are_equal_share_the_beginning_of_their_histories(tmp_path: Path) -> None:
    """Members are built for the same epochs in all of them, so the rows before the first difference are the same."""
    sources = [make_source("web", 300, 0.8), make_source("math", 300, 0.2), make_source("code", 300, 0.0)]
    plain = train_history(tmp_path / "plain", make_settings(300), sources)
    once = train_history(tmp_path / "once", make_settings(320, schedule=SCHEDULE[:1]), sources)
    later = Phase(310, (0.0, 0.5, 0.5))
    twice = train_history(tmp_path / "twice", make_settings(330, schedule=(SCHEDULE[0], later)), sources)
    other = train_history(tmp_path / "other", make_settings(330, schedule=(Phase(299, (0.5, 0.5, 0.0)),)), sources)
    assert [len(plain), len(once), len(twice)] == [1, 2, 3]
    assert twice[:2] == once
    assert once[:1] == plain
    assert other[:1] == plain
    assert other[1] not in once
    without_code = train_history(tmp_path / "absent", make_settings(300), sources[:2])
    assert without_code == plain, "a source of weight 0 is no part of a phase"


def test_a_phase_of_one_member_is_the_order_of_that_member(tmp_path: Path) -> None:
    alone = make_source("web", 300, 1.0)
    single = train_history(tmp_path / "single", make_settings(200), [alone])
    both = [alone, make_source("math", 300, 0.0)]
    begun = train_history(tmp_path / "begun", make_settings(250, schedule=(Phase(200, (0.5, 0.5)),)), both)
    assert begun[:1] == single


def test_the_fingerprint_needs_no_member_of_a_later_phase_to_stay(tmp_path: Path) -> None:
    """Epochs of a member that is drawn from the first phase on are part of the first fingerprint."""
    few = train_history(tmp_path / "few", make_settings(330, schedule=(Phase(300, (0.5, 0.5, 0.0)),)), SOURCES)
    many = train_history(tmp_path / "many", make_settings(3000, schedule=(Phase(300, (0.5, 0.5, 0.0)),)), SOURCES)
    assert few[0] != many[0]


def test_blend_reports_without_phases_are_read_as_before() -> None:
    report = BlendReport(split="train", kind="weighted", weights=(0.5, 0.5), samples=4, size=4)
    value = dataclasses.asdict(report)
    del value["phases"]
    assert parse_blend_report(value) == report
    assert report.all_phases == [Phase(0, (0.5, 0.5))]
