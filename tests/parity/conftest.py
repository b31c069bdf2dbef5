"""What the parity tests share: the oracle, and how Gristmill builds one of its cases."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gristmill.formats.errors import SettingsError
from gristmill.formats.index_blend import BlendIndices
from gristmill.formats.index_set import (
    IndexSettings,
    MemberReport,
    MemberSource,
    ShardIdentity,
    SplitRequest,
    build_blend,
    build_member,
    plan_members,
)
from gristmill.formats.indices import MemberIndices, build_indices, plan_epochs
from gristmill.formats.split import SPLITS

Arrays = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    """The module that runs Megatron and makes the golden files; importing it needs neither Megatron nor torch."""
    path = Path(__file__).resolve().parents[1] / "golden" / "make_megatron.py"
    spec = importlib.util.spec_from_file_location("make_megatron", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_megatron"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def rebuild() -> Callable[[Any], Arrays]:
    """Builds a case of the oracle with Gristmill, in the oracle's form; splits without members are absent."""
    return _rebuild


def _rebuild(case: Any) -> Arrays:
    lengths = [np.array(source, dtype=np.int32) for source in case.lengths]
    weights = case.weights or (None,) * len(lengths)
    sources = [
        MemberSource(f"source{place}", weight, None, _shards(len(source)))
        for place, (source, weight) in enumerate(zip(lengths, weights, strict=True))
    ]
    settings = IndexSettings(
        sequence_length=case.sequence_length,
        seed=case.seed,
        splits=case.split,
        add_extra_token=case.add_extra_token,
        schedule=(),
        **{
            split: SplitRequest(samples=samples if _is_present(case.split, split) else None)
            for split, samples in zip(SPLITS, case.samples, strict=True)
        },
    )
    plans = plan_members(settings, sources)
    found: Arrays = {}
    for split in SPLITS:
        members: list[MemberIndices] = []
        reports: list[MemberReport] = []
        for plan in plans.split(split):
            if case.keep_last_partial and split == "valid":
                indices = _keep_last_partial(plan, lengths[plan.place])
            else:
                indices = build_member(plan, lengths[plan.place])
            members.append(indices)
            reports.append(_report(plan, indices))
        if members:
            found[split] = {
                "members": [(one.document_index, one.sample_index, one.shuffle_index) for one in members],
                "blend": _blend(settings, split, reports),
            }
    return found


def _shards(sequences: int) -> tuple[ShardIdentity, ...]:
    """A source cut into two shards, so that several shards are seen to behave as their concatenation."""
    first = sequences // 3
    return (ShardIdentity("a", "a", first), ShardIdentity("b", "b", sequences - first))


def _is_present(text: str, split: str) -> bool:
    """Whether a split has a share; the oracle builds nothing for one that has none."""
    shares = [float(part) for part in text.split(",")] + [0.0, 0.0]
    return shares[SPLITS.index(split)] > 0


def _keep_last_partial(plan: Any, lengths: NDArray[np.int32]) -> MemberIndices:
    epochs = plan_epochs(
        tokens=int(lengths[plan.start : plan.end].sum()),
        sequence_length=plan.sequence_length,
        samples=plan.samples,
        epochs=plan.epochs,
        add_extra_token=plan.add_extra_token,
        drop_last_partial=False,
    )
    return build_indices(lengths, plan.start, plan.end, epochs, plan.seed)


def _report(plan: Any, indices: MemberIndices) -> MemberReport:
    return MemberReport(
        split=plan.split,
        source=plan.source,
        place=plan.place,
        start=plan.start,
        end=plan.end,
        tokens=indices.plan.tokens,
        epochs=indices.plan.epochs,
        separate=indices.plan.separate,
        rows=indices.samples,
        weight=plan.weight,
        left_out=None,
    )


def _blend(settings: IndexSettings, split: str, reports: list[MemberReport]) -> tuple[NDArray[Any], ...] | str | None:
    """The blend's two arrays, or the message of a blend that is refused because a member would get no sample."""
    try:
        blend: BlendIndices | None = build_blend(settings, split, reports)
    except SettingsError as error:
        return str(error)
    return None if blend is None else (blend.dataset_index, blend.dataset_sample_index)
