"""Plans of adopted data: the counts of Megatron's builder and MaxText's reader."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from gristmill.formats.adopted_plan import OrderPlan, OrderRequest, plan_order
from gristmill.formats.data_sources import open_data_sources
from gristmill.formats.data_spec import parse_data_spec
from gristmill.formats.errors import DataError, SettingsError

WritePair = Callable[..., str]


@pytest.fixture
def planned(tmp_path: Path, write_pair: WritePair, monkeypatch: pytest.MonkeyPatch) -> Callable[..., OrderPlan]:
    for name, count in (("a", 100), ("b", 50), ("c", 3)):
        write_pair(tmp_path / name, [10] * count)
    monkeypatch.chdir(tmp_path)

    def plan(spec: str, **options: object) -> OrderPlan:
        request = OrderRequest(**{"sequence_length": 8, "seed": 1, **options})  # type: ignore[arg-type]  # as tests say
        return plan_order(open_data_sources(parse_data_spec(spec)), request)

    return plan


def test_one_entry_is_built_for_what_is_asked(planned: Callable[..., OrderPlan]) -> None:
    (member,) = planned("a", samples=1000).members
    assert (member.samples, member.epochs, member.start, member.end) == (1000, None, 0, 100)
    (member,) = planned("a").members
    assert (member.samples, member.epochs) == (None, 1)
    (member,) = planned("a", epochs=3).members
    assert (member.samples, member.epochs) == (None, 3)


@pytest.mark.parametrize(("surplus", "expected"), [(0.005, 1005), (0.0, 1000), (0.5, 1500)])
def test_one_entry_with_a_weight_is_megatrons_blend_of_one(
    planned: Callable[..., OrderPlan], surplus: float, expected: int
) -> None:
    (member,) = planned("a,3", samples=1000, surplus=surplus).members
    assert (member.samples, member.weight) == (expected, None)
    assert planned("a,3;b,0", samples=1000, surplus=surplus).members == (member,)


@pytest.mark.parametrize("surplus", [0.005, 0.1])
def test_weighted_members_have_the_sizes_of_both(planned: Callable[..., OrderPlan], surplus: float) -> None:
    plan = planned("a,0.7;c,0;b,0.3", samples=333, surplus=surplus)
    assert [member.samples for member in plan.members] == [
        math.ceil(math.ceil(333 * share) * (1 + surplus)) for share in (0.7, 0.3)
    ]
    assert [(member.source, member.place) for member in plan.members] == [("a", 0), ("b", 2)]
    assert [(entry.source, entry.reason, entry.place) for entry in plan.left_out] == [("c", "its weight is 0", 1)]
    assert plan.unsized is None


def test_weights_without_a_number_of_samples_are_maxtexts_passes(planned: Callable[..., OrderPlan]) -> None:
    plan = planned("c,0;a,0.7;b,0.3", epochs=2)
    assert [(member.source, member.place, member.samples, member.epochs) for member in plan.members] == [
        ("a", 1, None, 2),
        ("b", 2, None, 2),
    ]
    assert plan.unsized == (0.0, 0.7, 0.3)
    assert [(entry.source, entry.place) for entry in plan.left_out] == [("c", 0)]


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_without_proportions_any_split_is_all_of_the_data(planned: Callable[..., OrderPlan], split: str) -> None:
    for options in ({}, {"samples": 100}):
        plan = planned("a,1;b,1", split=split, **options)
        assert [(member.split, member.start, member.end) for member in plan.members] == [
            (split, 0, 100),
            (split, 0, 50),
        ]


@pytest.mark.parametrize("weights", ["a,1;b,1", "a;b"])
def test_only_the_split_asked_for_is_planned(planned: Callable[..., OrderPlan], weights: str) -> None:
    plan = planned(weights, split="valid", splits="98,2", samples=5)
    assert {member.split for member in plan.members} == {"valid"}
    assert [(member.start, member.end) for member in plan.members] == [(98, 100), (49, 50)]


def test_a_source_without_sequences_in_the_split_is_left_out(planned: Callable[..., OrderPlan]) -> None:
    plan = planned("a,1;c,1", split="valid", splits="9,1", samples=5)
    assert [member.source for member in plan.members] == ["a"]
    assert [entry.source for entry in plan.left_out] == ["c"]
    with pytest.raises(DataError, match=r"valid: 5 samples asked for, but no source can give any \('c': splits '9,1'"):
        planned("c", split="valid", splits="9,1", samples=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "split 'dev': the splits are train, valid, test"),
        ({"surplus": -0.1}, r"a surplus of -0\.1 is no share of at least 0; Megatron's is 0\.005"),
        ({"surplus": math.nan}, "a surplus of nan is no share"),
        ({"sequence_length": 0}, "sequence_length must be 1 to"),
        ({"seed": -1}, "seed must be 0 to"),
        ({"samples": 5, "epochs": 2}, "sized by samples"),
        ({"samples": 0}, "samples of a split must be at least 1, not 0"),
        ({"splits": "9,x"}, "split '9,x': the proportion of valid, 'x', is not a number"),
    ],
)
def test_requests_that_cannot_be_followed(
    planned: Callable[..., OrderPlan], options: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        planned("a", **options)
