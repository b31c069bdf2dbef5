"""Index sets: planning, members, blends, the record that finishes a set, and everything that can be wrong with one."""

import dataclasses
import json
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.formats.errors import CorpusError, DataError, FormatError, SettingsError
from gristmill.formats.index_set import (
    IndexSet,
    IndexSettings,
    MemberPlan,
    MemberReport,
    MemberSource,
    SetPlan,
    ShardIdentity,
    SplitRequest,
    build_blend,
    build_member,
    commit_set,
    find_sets,
    order_fingerprint,
    parse_member_report,
    plan_members,
    read_set,
    set_key,
    set_name,
    set_path,
    write_blend,
    write_member,
)
from gristmill.formats.npy import npy_header, open_npy, write_npy
from gristmill.formats.storage import file_facts, read_bytes, write_bytes

Lengths = dict[str, NDArray[np.int32]]
SPLITS = ("train", "valid", "test")


def make_lengths(**counts: int) -> Lengths:
    """Sequence lengths of 0 to 39 tokens for each source, the same for the same name and count."""
    return {
        name: np.random.default_rng([count, *name.encode()]).integers(0, 40, count).astype(np.int32)
        for name, count in counts.items()
    }


LENGTHS = make_lengths(web=300, math=200)


def make_source(
    name: str, sequences: int, weight: float | None = None, max_epochs: float | None = None
) -> MemberSource:
    first = sequences // 2
    shards = (ShardIdentity(f"{name}-0", f"{name}0", first), ShardIdentity(f"{name}-1", f"{name}1", sequences - first))
    return MemberSource(name, weight, max_epochs, shards)


def make_sources(weights: dict[str, float | None] | None = None, lengths: Lengths = LENGTHS) -> list[MemberSource]:
    weights = weights or {}
    return [make_source(name, len(values), weights.get(name)) for name, values in lengths.items()]


def make_settings(**changes: Any) -> IndexSettings:
    return IndexSettings(**{"sequence_length": 16, "seed": 1234, "splits": "90,5,5", **changes})


WEIGHTED = make_settings(train=SplitRequest(samples=900))
WEIGHTS: dict[str, float | None] = {"web": 0.7, "math": 0.3}


def build_set(
    corpus: str, settings: IndexSettings, sources: list[MemberSource], lengths: Lengths = LENGTHS
) -> IndexSet:
    folder = set_path(corpus, settings, sources)
    reports = [
        write_member(folder, plan, build_member(plan, lengths[plan.source])) for plan in plan_members(settings, sources)
    ]
    built = [(split, build_blend(settings, split, reports)) for split in SPLITS]
    blends = [write_blend(folder, split, blend) for split, blend in built if blend is not None]
    return commit_set(folder, settings, sources, reports, blends)


def plan_of(plans: SetPlan, split: str, source: str) -> MemberPlan:
    return next(plan for plan in plans if (plan.split, plan.source) == (split, source))


# Settings and sources


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_length": 0}, "sequence_length must be 1 to 2147483646, not 0"),
        ({"seed": -1}, "seed must be 0 to 4294967295, not -1"),
        ({"seed": 2**32}, "seed must be 0 to 4294967295"),
        ({"splits": "-1,1,0"}, "proportion of train, '-1', must not be negative"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_settings(**changes)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"samples": 5, "epochs": 1}, r"by samples \(5\) or by epochs \(1\), not by both"),
        ({"samples": 0}, "samples of a split must be at least 1, not 0"),
        ({"epochs": -1}, "epochs of a split must be at least 1, not -1"),
    ],
)
def test_requests_out_of_range_are_refused(request_: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SplitRequest(**request_)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": ""}, "source id '' cannot name a folder"),
        ({"id": ".."}, "source id '..' cannot name a folder"),
        ({"id": "a/b"}, "source id 'a/b' cannot name a folder"),
        ({"id": "dataset_index.npy"}, "cannot name a folder"),
        ({"weight": -0.5}, "source 'web': weight -0.5 must be a finite number of at least 0"),
        ({"weight": float("nan")}, "weight nan must be a finite number"),
        ({"weight": float("inf")}, "weight inf must be a finite number"),
        ({"max_epochs": 0.0}, "max_epochs 0.0 must be a finite number above 0"),
        ({"shards": (ShardIdentity("p", "i", -1),)}, "shard p cannot hold -1 sequences"),
    ],
)
def test_sources_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        MemberSource(**{"id": "web", "weight": None, "max_epochs": None, "shards": (), **changes})


# Planning


def test_weighted_members_are_built_for_their_share_and_a_surplus() -> None:
    plans = plan_members(
        make_settings(splits="1", train=SplitRequest(samples=100)), make_sources({"web": 3, "math": 7})
    )
    assert [(plan.source, plan.samples, plan.draws, plan.epochs) for plan in plans] == [
        ("web", 31, 30, None),
        ("math", 71, 70, None),
    ]
    assert [plan.weight for plan in plans] == [0.3, 0.7]
    assert [(plan.start, plan.end, plan.source_sequences) for plan in plans] == [(0, 300, 300), (0, 200, 200)]


def test_a_split_without_a_size_is_one_unweighted_pass() -> None:
    plans = plan_members(WEIGHTED, make_sources(WEIGHTS))
    for split in ("valid", "test"):
        assert [(plan.samples, plan.epochs, plan.weight, plan.required) for plan in plans.split(split)] == [
            (None, 1, None, False)
        ] * 2
    assert all(plan.required for plan in plans.split("train"))
    assert len(plans) == 6


def test_members_without_weights_are_built_for_one_pass_or_the_epochs_asked_for() -> None:
    by_samples = plan_members(make_settings(train=SplitRequest(samples=50)), make_sources())
    assert [(plan.samples, plan.epochs) for plan in by_samples.split("train")] == [(None, 1)] * 2
    by_epochs = plan_members(make_settings(train=SplitRequest(epochs=3)), make_sources())
    assert [(plan.samples, plan.epochs) for plan in by_epochs.split("train")] == [(None, 3)] * 2


def test_a_single_member_is_built_for_exactly_what_is_asked() -> None:
    plans = plan_members(WEIGHTED, [make_source("web", 300, 0.7)])
    assert [(plan.samples, plan.draws, plan.weight) for plan in plans.split("train")] == [(900, 900, None)]


def test_a_source_of_weight_zero_is_left_out_of_weighted_blends_alone() -> None:
    lengths = make_lengths(web=300, math=200, code=100)
    plans = plan_members(WEIGHTED, make_sources({"web": 1, "math": 0, "code": 3}, lengths))
    assert [(plan.source, plan.weight, plan.place) for plan in plans.split("train")] == [
        ("web", 0.25, 0),
        ("code", 0.75, 2),
    ]
    assert [plan.source for plan in plans.split("valid")] == ["web", "math", "code"]
    assert [(entry.split, entry.source, entry.reason) for entry in plans.left_out] == [
        ("train", "math", "its weight is 0")
    ]


def test_a_source_without_sequences_in_a_split_is_left_out_there_and_weights_are_shared_anew() -> None:
    sources = [make_source("web", 300, 0.5), make_source("tiny", 1, 0.25), make_source("math", 200, 0.25)]
    plans = plan_members(
        make_settings(splits="1,1", train=SplitRequest(samples=8), valid=SplitRequest(samples=8)), sources
    )
    assert [plan.source for plan in plans.split("train")] == ["web", "math"]
    assert [plan.source for plan in plans.split("valid")] == ["web", "tiny", "math"]
    assert [(entry.split, entry.source) for entry in plans.left_out] == [
        ("train", "tiny"),
        *(("test", source.id) for source in sources),
    ]
    assert plans.left_out[0].reason == "splits '1,1' give it none of the source's 1 sequences"


@pytest.mark.parametrize(
    ("settings", "weights", "message"),
    [
        (WEIGHTED, {"web": 0.7}, "train: no weight for 'math' while other sources have one"),
        (WEIGHTED, {"web": 0.0, "math": 0.0}, "train: every source has weight 0"),
        (make_settings(), WEIGHTS, "train: weights .* together with one pass over every source"),
        (make_settings(train=SplitRequest(epochs=2)), WEIGHTS, "train: weights .* together with 2 epochs"),
    ],
    ids=["some without", "all zero", "without a size", "with epochs"],
)
def test_weights_that_cannot_be_followed_are_refused(
    settings: IndexSettings, weights: dict[str, float | None], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_members(settings, make_sources(weights))


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "an index set needs at least one source"),
        ([make_source("web", 3), make_source("web", 4)], "source id 'web' is used twice"),
        ([make_source("web", 2**31)], "source 'web' holds 2147483648 sequences: a document index numbers at most"),
        ([MemberSource(str(place), None, None, ()) for place in range(32_767)], "32767 sources: a blend holds fewer"),
    ],
    ids=["none", "twice", "too large", "too many"],
)
def test_sources_that_cannot_be_indexed_are_refused(sources: list[MemberSource], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan_members(make_settings(), sources)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            make_settings(splits="100,0,0", valid=SplitRequest(samples=8)),
            "valid: 8 samples asked for, but no source can give any .*'web': splits '100,0,0' give it none of",
        ),
        (make_settings(splits="0,1,1", train=SplitRequest(epochs=2)), "train: 2 epochs asked for, but no source"),
    ],
)
def test_asking_an_empty_split_for_something_names_split_sources_and_counts(
    settings: IndexSettings, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        plan_members(settings, make_sources())


def test_an_empty_split_that_nobody_asks_is_left_out() -> None:
    plans = plan_members(make_settings(splits="0,1,1"), make_sources())
    assert plans.split("train") == ()
    assert {entry.source for entry in plans.left_out if entry.split == "train"} == {"web", "math"}


# Members


def only_plan(lengths: list[int], **changes: Any) -> tuple[MemberPlan, NDArray[np.int32]]:
    values = np.array(lengths, dtype=np.int32)
    settings = make_settings(**{"sequence_length": 8, "splits": "1", **changes})
    source = make_source("web", len(values))
    return next(iter(plan_members(settings, [source]))), values


@pytest.mark.parametrize("one_document", [True, False])
@pytest.mark.parametrize(("tokens", "samples"), [(9, 1), (10, 1), (16, 1), (17, 2), (24, 2), (25, 3)])
def test_one_pass_gives_the_whole_samples_of_length_plus_one(tokens: int, samples: int, one_document: bool) -> None:
    plan, lengths = only_plan([tokens] if one_document else [1] * tokens)
    assert build_member(plan, lengths).samples == samples == (tokens - 1) // 8


@pytest.mark.parametrize("lengths", [[7], [8], [1] * 8, [0, 0, 0]])
def test_a_training_source_too_short_for_a_sample_is_an_error_with_the_numbers(lengths: list[int]) -> None:
    plan, values = only_plan(lengths)
    message = f"train: source 'web' gives no sample: its {len(lengths)} sequences hold {sum(lengths)} tokens"
    with pytest.raises(DataError, match=f"{message}, and one sample of length 8 needs 9; add data"):
        build_member(plan, values)


def test_enough_epochs_of_a_short_source_give_samples() -> None:
    plan, lengths = only_plan([3], train=SplitRequest(samples=5))
    indices = build_member(plan, lengths)
    assert (indices.plan.epochs, indices.samples) == (14, 5)


def test_a_validation_source_too_short_for_a_sample_is_named_and_left_out(tmp_path: Path) -> None:
    lengths = {"web": np.full(100, 50, np.int32), "tiny": np.array([40, 40, 7, 9, 0], np.int32)}
    settings = make_settings(splits="3,1,1", train=SplitRequest(epochs=1))
    index_set = build_set(str(tmp_path), settings, make_sources(lengths=lengths), lengths)
    valid, test = index_set.order("valid"), index_set.order("test")
    assert [member.source for member in valid.members] == ["web"]
    assert valid.blend is None
    assert [(entry.source, entry.reason) for entry in (*valid.left_out, *test.left_out)] == [
        ("tiny", "its 1 sequences hold 9 tokens, and one sample of length 16 needs 17"),
        ("tiny", "its 1 sequences hold 0 tokens, and one sample of length 16 needs 17"),
    ]
    assert valid.samples == valid.members[0].rows == (20 * 50 - 1) // 16
    assert not (tmp_path / "indices" / index_set.name / "valid" / "tiny").exists()
    assert read_set(index_set.folder) == index_set
    with pytest.raises(CorpusError, match="valid: source 'tiny' takes no part: its 1 sequences hold 9 tokens"):
        index_set.open_member("valid", "tiny")


def test_lengths_of_other_data_are_refused() -> None:
    plan, lengths = only_plan([9, 9])
    with pytest.raises(DataError, match=r"lengths of shape \(1,\) where the plan counts 2 sequences"):
        build_member(plan, lengths[:1])
    with pytest.raises(DataError, match="lengths are int64; sequence lengths are int32"):
        build_member(plan, lengths.astype(np.int64))  # type: ignore[arg-type]  # refused at run time
    with pytest.raises(DataError, match="sequence 1 has a length of -9 tokens"):
        build_member(plan, np.array([9, -9], np.int32))


@pytest.mark.parametrize(
    ("request_", "allowed", "passes"),
    [
        (SplitRequest(samples=50), 4.0, r"50 samples of 8 tokens \(400 tokens\) of its 90 tokens are 4.444 passes"),
        (SplitRequest(epochs=3), 2.5, "3 epochs of its 90 tokens are 3 passes"),
        (SplitRequest(), 0.5, "1 epochs of its 90 tokens are 1 passes"),
    ],
)
def test_more_passes_than_allowed_are_refused(request_: SplitRequest, allowed: float, passes: str) -> None:
    plan, lengths = only_plan([9] * 10, train=request_)
    with pytest.raises(SettingsError, match=f"would be repeated too often: {passes}, above max_epochs = {allowed:g}"):
        build_member(dataclasses.replace(plan, max_epochs=allowed), lengths)
    build_member(dataclasses.replace(plan, max_epochs=4.5), lengths)


def test_max_epochs_is_a_limit_of_training_alone() -> None:
    source = make_source("web", 100, max_epochs=0.5)
    plans = plan_members(make_settings(splits="1,1", train=SplitRequest(samples=5)), [source])
    assert [(plan.split, plan.max_epochs) for plan in plans] == [("train", 0.5), ("valid", None)]


def test_the_surplus_of_a_blend_does_not_count_against_max_epochs() -> None:
    lengths = np.full(100, 80, np.int32)  # 8,000 tokens: 1,000 samples of 8
    settings = make_settings(sequence_length=8, splits="1", train=SplitRequest(samples=2000))
    sources = [make_source("a", 100, 1.0, max_epochs=1), make_source("b", 100, 1.0)]
    plan = plan_of(plan_members(settings, sources), "train", "a")
    assert (plan.samples, plan.draws) == (1005, 1000)
    assert build_member(plan, lengths).plan.epochs == 2


def test_files_hold_exactly_what_was_built_and_numpy_reads_them(tmp_path: Path) -> None:
    plan, lengths = only_plan([9, 0, 30], train=SplitRequest(samples=20))
    indices = build_member(plan, lengths)
    report = write_member(str(tmp_path), plan, indices)
    for name in ("document_index", "sample_index", "shuffle_index"):
        path = tmp_path / "train" / "web" / f"{name}.npy"
        stored, built = np.load(path), getattr(indices, name)
        assert stored.dtype == built.dtype
        assert np.array_equal(stored, built)
        assert report.files[f"train/web/{name}.npy"] == file_facts(str(path))
    assert report.rows == indices.samples >= 20
    assert (report.tokens, report.epochs, report.left_out) == (39, indices.plan.epochs, None)
    assert parse_member_report(json.loads(json.dumps(dataclasses.asdict(report)))) == report


# The .npy files


@pytest.mark.parametrize("shape", [(1,), (1000,), (7, 2), (123_456_789, 2)])
def test_the_header_is_the_smallest_aligned_one(shape: tuple[int, ...]) -> None:
    header = npy_header(np.int64, shape)
    assert len(header) % 64 == 0
    assert header[:8] == b"\x93NUMPY\x01\x00"
    assert int.from_bytes(header[8:10], "little") == len(header) - 10
    assert header.endswith(b"\n")
    assert f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape!r}, }}".encode() in header


def test_an_array_comes_back_mapped_and_read_only(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "array.npy")
    array = np.arange(3_000_000, dtype=np.uint32).reshape(-1, 2)
    facts = write_npy(path, array)
    assert facts == file_facts(path)
    opened = open_npy(path, np.uint32, array.shape)
    assert isinstance(opened, np.memmap)
    assert not opened.flags.writeable
    assert np.array_equal(opened, array)
    with pytest.raises(
        FormatError, match=r"array\.npy: an array of shape .* and dtype uint32 where shape .* dtype int32"
    ):
        open_npy(path, np.int32, array.shape)
    Path(path).write_bytes(b"x" * facts.size)
    with pytest.raises(FormatError, match=r"array\.npy: no readable \.npy file"):
        open_npy(path, np.uint32, array.shape)


# Whole sets


def test_a_set_is_committed_read_and_found(tmp_path: Path) -> None:
    sources = make_sources(WEIGHTS)
    assert find_sets(str(tmp_path)) == []
    index_set = build_set(str(tmp_path), WEIGHTED, sources)
    assert index_set.folder == str(tmp_path / "indices" / f"L16-s1234-{set_key(WEIGHTED, sources)[:12]}")
    assert index_set.name == set_name(WEIGHTED, sources)
    assert read_set(index_set.folder) == index_set
    assert find_sets(str(tmp_path)) == [index_set]
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        "set.json",
        *(f"{name}_index.npy" for name in ("document", "sample", "shuffle", "dataset", "dataset_sample")),
    }
    assert index_set.files == {
        name: file_facts(str(tmp_path / "indices" / index_set.name / name)) for name in index_set.files
    }
    assert len(index_set.files) == 3 * 2 * 3 + 3 * 2
    with pytest.raises(SettingsError, match="split 'eval': the splits are train, valid, test"):
        index_set.order("eval")


def test_a_weighted_blend_serves_what_was_asked_and_stores_megatrons_arrays(tmp_path: Path) -> None:
    settings = make_settings(splits="1", train=SplitRequest(samples=901))
    index_set = build_set(str(tmp_path), settings, make_sources({"web": 1, "math": 2}))
    order = index_set.order("train")
    assert order.blend is not None
    assert (order.blend.kind, order.samples, order.blend.size) == ("weighted", 901, 301 + 601)
    blend = index_set.open_blend("train")
    assert blend is not None
    assert isinstance(blend.dataset_index, np.memmap)
    assert len(blend.dataset_index) == 902
    assert np.bincount(blend.dataset_index[:901]).tolist() == [301, 600]
    for place, member in enumerate(order.members):
        opened = index_set.open_member("train", member.source)
        assert int(blend.dataset_sample_index[blend.dataset_index == place].max()) < opened.samples


@pytest.mark.parametrize(
    ("request_", "kind", "samples"),
    [
        (SplitRequest(), "exhaustive", None),
        (SplitRequest(epochs=2), "exhaustive", None),
        (SplitRequest(samples=50), "proportional", 50),
        (SplitRequest(samples=1_000_000), "proportional", None),
    ],
)
def test_unweighted_members_are_blended_by_their_lengths(
    request_: SplitRequest, kind: str, samples: int | None, tmp_path: Path
) -> None:
    order = build_set(str(tmp_path), make_settings(train=request_), make_sources()).order("train")
    assert order.blend is not None
    everything = sum(member.rows for member in order.members)
    assert (order.blend.kind, order.samples) == (kind, samples or everything)
    assert [member.epochs for member in order.members] == [request_.epochs or 1] * 2
    assert order.blend.weights == pytest.approx([member.rows / everything for member in order.members])


@pytest.mark.parametrize(("request_", "samples"), [(SplitRequest(), 376), (SplitRequest(samples=500), 500)])
def test_a_single_member_needs_no_blend(request_: SplitRequest, samples: int, tmp_path: Path) -> None:
    index_set = build_set(str(tmp_path), make_settings(train=request_, splits="1"), make_sources()[:1])
    order = index_set.order("train")
    assert order.blend is None
    assert index_set.open_blend("train") is None
    assert order.samples == samples <= order.members[0].rows
    for split in ("valid", "test"):
        assert index_set.order(split).samples == 0
        with pytest.raises(CorpusError, match=f"{split}: the index set holds no samples of this split .*'web': splits"):
            index_set.open_blend(split)


def test_a_member_that_would_get_no_sample_is_an_error() -> None:
    settings = make_settings(splits="1", train=SplitRequest(samples=1))
    sources = make_sources({"web": 1.0, "math": 1.0})
    reports = [
        dataclasses.replace(BARE, source=plan.source, place=plan.place, weight=plan.weight, rows=500)
        for plan in plan_members(settings, sources)
    ]
    with pytest.raises(
        SettingsError, match=r"train: source 'math' would get none of the 1 samples at its share of 0\.5"
    ):
        build_blend(settings, "train", reports)


BARE = MemberReport(
    split="train",
    source="web",
    place=0,
    start=0,
    end=300,
    tokens=5000,
    epochs=1,
    separate=False,
    rows=312,
    weight=None,
    left_out=None,
)


def test_a_member_with_fewer_samples_than_the_blend_draws_is_an_error() -> None:
    reports = [
        dataclasses.replace(BARE, source=source, place=place, weight=0.5, rows=400)
        for place, source in enumerate(("web", "math"))
    ]
    with pytest.raises(DataError, match="the blend asks source 'web' for 450 samples, but 400 were built"):
        build_blend(WEIGHTED, "train", reports)


def test_the_order_of_reports_and_the_time_of_building_change_no_byte(tmp_path: Path) -> None:
    sources = make_sources(WEIGHTS)
    first = build_set(str(tmp_path / "a"), WEIGHTED, sources)
    folder = set_path(str(tmp_path / "b"), WEIGHTED, sources)
    plans = list(plan_members(WEIGHTED, sources))
    reports = [write_member(folder, plan, build_member(plan, LENGTHS[plan.source])) for plan in reversed(plans)]
    built = [(split, build_blend(WEIGHTED, split, reports)) for split in reversed(SPLITS)]
    second = commit_set(
        folder, WEIGHTED, sources, reports, [write_blend(folder, split, one) for split, one in built if one is not None]
    )
    for name in (*first.files, "set.json"):
        assert (Path(first.folder) / name).read_bytes() == (Path(second.folder) / name).read_bytes(), name


def test_the_same_data_twice_gives_the_same_order_twice(tmp_path: Path) -> None:
    lengths = {"one": LENGTHS["web"], "two": LENGTHS["web"]}
    sources = [dataclasses.replace(make_source("web", 300, 1.0), id=name) for name in lengths]
    index_set = build_set(str(tmp_path), make_settings(train=SplitRequest(samples=400)), sources, lengths)
    one, two = (index_set.open_member("train", name) for name in lengths)
    assert np.array_equal(one.shuffle_index, two.shuffle_index)
    assert np.array_equal(one.document_index, two.document_index)


def test_a_set_on_another_file_system_is_read_into_memory() -> None:
    corpus = "memory://index-set-test/corpus"
    try:
        index_set = build_set(corpus, WEIGHTED, make_sources(WEIGHTS))
        assert find_sets(corpus) == [index_set]
        opened = index_set.open_member("train", "web")
        assert not isinstance(opened.shuffle_index, np.memmap)
        assert np.array_equal(np.sort(opened.shuffle_index), np.arange(opened.samples))
        assert index_set.open_blend("valid") is not None
        name = f"{index_set.folder}/train/web/sample_index.npy"
        data = read_bytes(name)
        write_bytes(name, b"x" + data[1:])
        with pytest.raises(FormatError, match=r"sample_index\.npy: no array of shape"):
            index_set.open_member("train", "web")
    finally:
        fsspec.filesystem("memory").rm("/index-set-test", recursive=True)


# Keys and fingerprints


def replace_shard(source: MemberSource, **changes: Any) -> MemberSource:
    return dataclasses.replace(source, shards=(dataclasses.replace(source.shards[0], **changes), *source.shards[1:]))


@pytest.mark.parametrize(
    "change",
    [
        lambda settings, sources: (settings, [replace_shard(source, path="/moved") for source in sources]),
        lambda settings, sources: (settings, [dataclasses.replace(source, max_epochs=9.0) for source in sources]),
        lambda settings, sources: (dataclasses.replace(settings, splits=" 90.0, 5,5"), sources),
        lambda settings, sources: (settings, [dataclasses.replace(sources[0], weight=1), sources[1]]),
    ],
    ids=["paths", "max_epochs", "spelling of splits", "integer weight"],
)
def test_what_changes_no_byte_changes_no_key(change: Any) -> None:
    sources = make_sources({"web": 1.0, "math": 0.5})
    assert set_key(*change(WEIGHTED, sources)) == set_key(WEIGHTED, sources)


@pytest.mark.parametrize(
    "change",
    [
        lambda settings, sources: (settings, [replace_shard(sources[0], identity="changed"), sources[1]]),
        lambda settings, sources: (settings, [replace_shard(sources[0], sequences=1), sources[1]]),
        lambda settings, sources: (settings, sources[::-1]),
        lambda settings, sources: (settings, [dataclasses.replace(sources[0], weight=2.0), sources[1]]),
        lambda settings, sources: (settings, [dataclasses.replace(sources[0], id="other"), sources[1]]),
        lambda settings, sources: (dataclasses.replace(settings, seed=1), sources),
        lambda settings, sources: (dataclasses.replace(settings, sequence_length=17), sources),
        lambda settings, sources: (dataclasses.replace(settings, splits="91,5,5"), sources),
        lambda settings, sources: (dataclasses.replace(settings, add_extra_token=False), sources),
        lambda settings, sources: (dataclasses.replace(settings, train=SplitRequest(samples=901)), sources),
        lambda settings, sources: (dataclasses.replace(settings, test=SplitRequest(samples=9)), sources),
    ],
    ids=[
        "data",
        "counts",
        "order",
        "weight",
        "id",
        "seed",
        "length",
        "splits",
        "extra token",
        "samples",
        "test samples",
    ],
)
def test_what_can_change_a_byte_changes_the_key(change: Any) -> None:
    sources = make_sources({"web": 1.0, "math": 0.5})
    assert set_key(*change(WEIGHTED, sources)) != set_key(WEIGHTED, sources)


def fingerprints(corpus: Path, settings: IndexSettings, sources: list[MemberSource]) -> dict[str, str]:
    index_set = build_set(str(corpus), settings, sources, {source.id: LENGTHS["web"] for source in sources})
    assert index_set == read_set(index_set.folder)
    return {split: order_fingerprint(index_set, split) for split in SPLITS}


def single(samples: int, **changes: Any) -> tuple[IndexSettings, list[MemberSource]]:
    source = make_source("web", 300)
    return make_settings(train=SplitRequest(samples=samples), **changes), [source]


def test_the_fingerprint_stays_while_the_rows_stay(tmp_path: Path) -> None:
    settings, sources = single(600)
    base = fingerprints(tmp_path / "base", settings, sources)
    assert len(set(base.values())) == 3
    same = [
        fingerprints(tmp_path / "horizon", *single(605)),
        fingerprints(tmp_path / "moved", settings, [replace_shard(sources[0], path="/elsewhere")]),
        fingerprints(tmp_path / "renamed", settings, [dataclasses.replace(sources[0], id="renamed")]),
        fingerprints(tmp_path / "limit", settings, [dataclasses.replace(sources[0], max_epochs=50.0)]),
    ]
    assert same == [base] * len(same)


def test_the_fingerprint_changes_with_the_rows(tmp_path: Path) -> None:
    settings, sources = single(600)
    base = fingerprints(tmp_path / "base", settings, sources)
    changed = [
        fingerprints(tmp_path / "epochs", *single(2000)),
        fingerprints(tmp_path / "seed", *single(600, seed=1)),
        fingerprints(tmp_path / "length", *single(600, sequence_length=17)),
        fingerprints(tmp_path / "splits", *single(600, splits="91,5,4")),
        fingerprints(tmp_path / "extra", *single(600, add_extra_token=False)),
        fingerprints(tmp_path / "data", settings, [replace_shard(sources[0], identity="changed")]),
    ]
    assert len({base["train"], *(one["train"] for one in changed)}) == 1 + len(changed)
    assert changed[0]["valid"] == base["valid"], "the horizon of training is no part of the validation order"


def test_the_fingerprint_of_a_blend_covers_its_weights_and_order(tmp_path: Path) -> None:
    def of(name: str, weights: dict[str, float | None], samples: int = 900) -> str:
        sources = [dataclasses.replace(make_source("web", 300, weight), id=one) for one, weight in weights.items()]
        sources = [replace_shard(source, identity=source.id) for source in sources]
        return fingerprints(tmp_path / name, make_settings(train=SplitRequest(samples=samples)), sources)["train"]

    base = of("base", {"a": 1.0, "b": 1.0})
    assert of("scaled", {"a": 2.0, "b": 2.0}) == base
    assert of("longer", {"a": 1.0, "b": 1.0}, samples=910) == base
    assert of("zero", {"a": 1.0, "b": 1.0, "c": 0.0}) == base
    others = [
        of("weights", {"a": 1.0, "b": 1.1}),
        of("order", {"b": 1.0, "a": 1.0}),
        of("none", {"a": None, "b": None}),
    ]
    assert len({base, *others}) == 4


def test_a_split_without_samples_has_no_fingerprint(tmp_path: Path) -> None:
    index_set = build_set(str(tmp_path), make_settings(splits="1"), make_sources()[:1])
    with pytest.raises(CorpusError, match="valid: the index set holds no samples of this split"):
        order_fingerprint(index_set, "valid")


# Damage


@pytest.fixture
def finished(tmp_path: Path) -> IndexSet:
    return build_set(str(tmp_path), WEIGHTED, make_sources(WEIGHTS))


def test_a_set_without_its_record_is_not_finished(finished: IndexSet, tmp_path: Path) -> None:
    (Path(finished.folder) / "set.json").unlink()
    with pytest.raises(CorpusError, match=r"no set\.json, so this index set is missing or unfinished; build it again"):
        read_set(finished.folder)
    assert find_sets(str(tmp_path)) == []
    assert build_set(str(tmp_path), WEIGHTED, make_sources(WEIGHTS)) == finished


@pytest.mark.parametrize("index", ["document_index", "sample_index", "shuffle_index"])
def test_a_missing_or_half_written_index_is_named(index: str, finished: IndexSet) -> None:
    path = Path(finished.folder) / "train" / "web" / f"{index}.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=f"train/web/{index}.npy: {len(whole) // 2} bytes where .*half-written"):
        finished.open_member("train", "web")
    path.unlink()
    with pytest.raises(FormatError, match=f"train/web/{index}.npy: missing; build the indices again"):
        finished.open_member("train", "web")
    finished.open_member("train", "math")


@pytest.mark.parametrize("index", ["dataset_index", "dataset_sample_index"])
def test_a_missing_or_half_written_blend_is_named(index: str, finished: IndexSet) -> None:
    path = Path(finished.folder) / "train" / f"{index}.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=f"train/{index}.npy: .*half-written"):
        finished.open_blend("train")
    path.unlink()
    with pytest.raises(FormatError, match=f"train/{index}.npy: missing"):
        finished.open_blend("train")


@pytest.mark.parametrize(
    ("name", "row", "value", "message"),
    [
        ("train/web/document_index.npy", -1, 300, "holds sequence number 300, outside 0 to 269"),
        ("train/web/shuffle_index.npy", 0, 10**6, "row 0 holds sample number 1000000"),
        ("train/web/sample_index.npy", (-1, 0), 10**6, "holds place in the document index 1000000"),
        ("train/web/sample_index.npy", (-1, 1), -1, "holds token offset -1"),
        ("train/dataset_index.npy", 0, 2, "row 0 names member 2, but there are 0 to 1"),
        ("train/dataset_sample_index.npy", -1, 10**9, "names sample 1000000000 of member"),
    ],
)
def test_an_end_out_of_range_is_named(name: str, row: Any, value: int, message: str, finished: IndexSet) -> None:
    path = Path(finished.folder) / name
    array = np.load(path)
    array[row] = value
    write_npy(str(path), array)
    with pytest.raises(FormatError, match=f"{name}: row .*{message.removeprefix('row 0 ')}"):
        open_everything(finished)


def open_everything(index_set: IndexSet) -> None:
    index_set.open_member("train", "web")
    index_set.open_blend("train")


def edit(finished: IndexSet, change: Any) -> None:
    path = Path(finished.folder) / "set.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value.pop("members"), "KeyError: 'members'"),
        (
            lambda value: value.update(format="other"),
            "format 'other'; an index set's record says 'gristmill-index-set'",
        ),
        (lambda value: value.update(key="0" * 64), "the key 000000000000 is not that of the settings and sources"),
        (lambda value: value["settings"].update(seed=5), "the key [0-9a-f]{12} is not that"),
        (lambda value: value["sources"][0].update(weight=-1), "weight -1 must be a finite number"),
        (lambda value: value["members"].pop(), "test: source 'math' was planned but not built"),
        (lambda value: value["members"].append(value["members"][0]), "two reports of one member"),
        (lambda value: value["members"][0].update(rows=1), "rows 1 instead of"),
        (lambda value: value["members"][0].update(epochs=9), "epochs 9 instead of"),
        (lambda value: value["members"][0].update(extra=1), "unexpected keyword argument 'extra'"),
        (lambda value: value["members"][0].update(left_out="gone"), "left_out 'gone' instead of None"),
        (lambda value: value["members"][0]["files"].popitem(), "files .* instead of"),
        (lambda value: value["blends"].pop(0), "train: 2 sources take part, so the split needs a blend"),
        (lambda value: value["blends"][0].update(samples=7), "the blend is recorded with samples 7 instead of 900"),
        (lambda value: value["splits"][0].update(samples=7), "the summary of the splits contradicts the reports"),
    ],
)
def test_a_damaged_record_is_never_accepted(change: Any, message: str, finished: IndexSet, tmp_path: Path) -> None:
    edit(finished, change)
    with pytest.raises(FormatError, match=rf"set\.json: .*{message}"):
        read_set(finished.folder)
    with pytest.raises(FormatError, match="build the indices again"):
        find_sets(str(tmp_path))


@pytest.mark.parametrize("name", ["version", "order_version"])
def test_a_set_of_another_version_is_passed_over_unless_named(name: str, finished: IndexSet, tmp_path: Path) -> None:
    edit(finished, lambda value: value.update({name: 99}))
    with pytest.raises(FormatError, match=rf"set\.json: {name} 99; this software reads \d+; build the indices again"):
        read_set(finished.folder)
    assert find_sets(str(tmp_path)) == []


def test_a_record_cut_short_is_never_accepted(finished: IndexSet) -> None:
    path = Path(finished.folder) / "set.json"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(FormatError, match=r"set\.json: damaged record of an index set \(JSONDecodeError"):
        read_set(finished.folder)


def test_a_set_is_not_committed_with_a_member_or_blend_missing_or_surplus(finished: IndexSet, tmp_path: Path) -> None:
    sources = make_sources(WEIGHTS)
    members = [member for order in finished.orders for member in order.members]
    blends = [order.blend for order in finished.orders if order.blend is not None]
    folder = str(tmp_path / "other")
    for reports, pairs, message in [
        (members[1:], blends, "train: source 'web' was planned but not built"),
        ([*members, dataclasses.replace(members[0], source="code")], blends, "'code' was built but not planned"),
        (members, blends[1:], "train: 2 sources take part, so the split needs a blend and has none"),
        (members, [*blends, blends[0]], "at most one for each split"),
        ([dataclasses.replace(members[0], separate=True), *members[1:]], blends, "separate True instead of False"),
    ]:
        with pytest.raises(DataError, match=message):
            commit_set(folder, WEIGHTED, sources, reports, pairs)
    assert not (tmp_path / "other").exists()


# Several writers


def build_in_process(corpus: str) -> str:
    return build_set(corpus, WEIGHTED, make_sources(WEIGHTS)).key


def test_four_processes_that_build_at_once_agree(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        keys = pool.map(build_in_process, [str(tmp_path / "shared")] * 4)
    assert len(set(keys)) == 1
    (index_set,) = find_sets(str(tmp_path / "shared"))
    alone = build_set(str(tmp_path / "alone"), WEIGHTED, make_sources(WEIGHTS))
    assert index_set.files == alone.files
    assert index_set.files == {name: file_facts(f"{index_set.folder}/{name}") for name in index_set.files}
    assert not [path for path in Path(index_set.folder).rglob("*") if path.name.endswith(".tmp")]


def test_what_a_dead_builder_left_does_not_block_the_next(tmp_path: Path) -> None:
    finished = build_set(str(tmp_path / "whole"), WEIGHTED, make_sources(WEIGHTS))
    left = Path(set_path(str(tmp_path / "dead"), WEIGHTED, make_sources(WEIGHTS)))
    shutil.copytree(Path(finished.folder) / "train", left / "train")
    half = left / "train" / "web" / "sample_index.npy"
    half.write_bytes(half.read_bytes()[:100])
    assert find_sets(str(tmp_path / "dead")) == []
    assert build_set(str(tmp_path / "dead"), WEIGHTED, make_sources(WEIGHTS)).files == finished.files
