"""Presets: what the programs do with nothing set, and a warning that names each setting that departs from it."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gristmill.formats.errors import SettingsError
from gristmill.formats.indexed_writer import write_indexed
from gristmill.runtime.fields import FieldOptions, make_fields
from gristmill.runtime.megatron import open_megatron
from gristmill.runtime.presets import PRESETS, departures, order_departures, parity_options, warn_departures

EOD = 99


def test_presets_make_what_the_programs_make() -> None:
    """MaxText's default merges to 25 segments or so and keeps documents apart; Megatron's looks at no boundary."""
    row = np.full((1, 101), 7)
    row[0, [3, 30, 60]] = EOD
    megatron = make_fields(row, EOD, PRESETS["megatron"])
    assert megatron["inputs_position"].tolist() == [list(range(100))]
    assert set(megatron["inputs_segmentation"].ravel().tolist()) == {1}
    maxtext = make_fields(row, EOD, PRESETS["maxtext"])
    starts = np.flatnonzero(maxtext["inputs_position"][0] == 0).tolist()
    assert starts == [0, 31, 61], "the document of 4 tokens, no more than 100 // 25, joins the one behind it"
    assert maxtext["inputs_segmentation"][0, [0, 30, 31, 60, 61]].tolist() == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("parity", ["megatron", "maxtext"])
def test_a_preset_alone_warns_of_nothing(parity: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parity_options(parity) == PRESETS[parity]
        assert parity_options(parity, cu_seqlens=True).cu_seqlens, "one more array changes none of the others"
        assert parity_options(parity, over_limit="merge"), "of what happens beyond a limit that is not set"
    assert departures(PRESETS[parity], parity) == ()


@pytest.mark.parametrize(
    ("parity", "changes", "named"),
    [
        (
            "megatron",
            {"reset_position_ids": True, "max_segments_per_sample": 4},
            [
                r"reset_position_ids=True \(Megatron: False, unless --reset-position-ids\)",
                r"max_segments_per_sample=4 \(Megatron: has no such setting\)",
            ],
        ),
        ("megatron", {"boundaries": "index"}, [r"boundaries='index' \(Megatron: 'eod', unless inter_document_masking"]),
        (
            "maxtext",
            {"max_segments_per_sample": 0, "reset_position_ids": False},
            [
                r"reset_position_ids=False \(MaxText: True, unless reset_attention_mask, which sets it too\)",
                r"max_segments_per_sample=0 \(MaxText: 25, unless packing_max_segments_per_sample\)",
            ],
        ),
        (
            "maxtext",
            {"segment_limit": 8, "over_limit": "merge"},
            [r"segment_limit=8 \(MaxText: has no", r"over_limit='merge' \(MaxText: has no"],
        ),
    ],
)
def test_each_setting_that_departs_is_named(parity: Any, changes: dict[str, Any], named: list[str]) -> None:
    with pytest.warns(UserWarning, match="parity with Me|parity with Ma") as caught:
        options = parity_options(parity, **changes)
    assert all(getattr(options, name) == value for name, value in changes.items())
    (warning,) = caught
    assert warning.filename == __file__, "the warning is about the line that asked"
    assert str(warning.message).count("(") == len(named)
    for phrase in named:
        with pytest.warns(UserWarning, match=phrase):
            warn_departures(parity, departures(options, parity))


@pytest.mark.parametrize(
    ("parity", "changes", "named"),
    [
        ("megatron", {}, []),
        ("megatron", {"seed": 7}, [r"seed=7 \(Megatron: 1234, unless --seed\)"]),
        (
            "maxtext",
            {"granularity": "document", "surplus": 0.1},
            [
                r"seed=1234 \(MaxText: 0, unless data_shuffle_seed\)",
                r"granularity='document' \(MaxText: 'sequence', unless mmap_split_sentences\)",
                r"surplus=0.1 \(MaxText: 0.005, always\)",
            ],
        ),
    ],
)
def test_opening_names_what_departs_in_the_order(
    tmp_path: Path, parity: Any, changes: dict[str, Any], named: list[str]
) -> None:
    prefix = str(tmp_path / "data")
    with write_indexed(prefix, np.dtype(np.uint16)) as writer:
        writer.add(np.full(40, EOD, np.uint16), np.array([20, 20]))

    def opened(**parity: Any) -> str:
        return open_megatron(prefix, sequence_length=8, eod_id=EOD, **changes, **parity).fingerprint

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fingerprint = opened()
        if not named:
            assert opened(parity=parity) == fingerprint
    for phrase in named:
        with pytest.warns(UserWarning, match=phrase) as caught:
            assert opened(parity=parity) == fingerprint, "the rows are the same"
        assert caught[0].filename == __file__


def test_gristmills_own_defaults_are_neither() -> None:
    assert [phrase.split("=")[0] for phrase in departures(FieldOptions(), "megatron")] == [
        "reset_attention_mask",
        "reset_position_ids",
    ]
    assert [phrase.split("=")[0] for phrase in departures(FieldOptions(), "maxtext")] == ["max_segments_per_sample"]


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(SettingsError, match="parity must be 'megatron' or 'maxtext', not 'nemo'"):
        order_departures("nemo", seed=1)  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(SettingsError, match="parity must be 'megatron' or 'maxtext', not 'nemo'"):
        parity_options("nemo")  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(SettingsError, match="reset_mask: no such field option; there are reset_attention_mask, "):
        parity_options("megatron", reset_mask=True)
